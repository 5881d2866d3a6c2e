"""Writes a quantised GGUF file anew with 16-bit weights: `python -m app.stack.expand SOURCE TARGET`.

At temperature 0 the small Q4_1 model answers poorly on llama.cpp's integer kernels; the same weights
as F16 answer like the original. Runs as a child because it needs numpy and half a gigabyte for seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, Keys, LlamaFileType
from gguf.quants import dequantize

_OURS = {Keys.General.ARCHITECTURE, Keys.General.FILE_TYPE, Keys.General.QUANTIZATION_VERSION}


def expand(source: Path, target: Path) -> None:
    """Write `source` to `target` with each matrix as F16 and each vector as F32. Not atomic."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, str(reader.fields[Keys.General.ARCHITECTURE].contents()))
    writer.add_file_type(LlamaFileType.MOSTLY_F16)
    for field in reader.fields.values():
        if field.name in _OURS or field.name.startswith("GGUF."):
            continue
        kind, is_array = field.types[0], field.types[0] == GGUFValueType.ARRAY
        writer.add_key_value(field.name, field.contents(), kind, field.types[-1] if is_array else None)
    for tensor in reader.tensors:
        shape = [int(size) for size in reversed(tensor.shape)]
        width = _width(shape)
        writer.add_tensor_info(tensor.name, shape, width, int(tensor.n_elements) * width.itemsize)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in reader.tensors:
        weights = dequantize(tensor.data, GGMLQuantizationType(tensor.tensor_type))
        writer.write_tensor_data(weights.astype(_width(weights.shape)))
    writer.close()


def _width(shape: Sequence[int]) -> numpy.dtype[Any]:
    return numpy.dtype(numpy.float16 if len(shape) > 1 else numpy.float32)


if __name__ == "__main__":
    expand(Path(sys.argv[1]), Path(sys.argv[2]))
