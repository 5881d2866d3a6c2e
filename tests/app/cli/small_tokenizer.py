"""A small byte-level BPE of our own, as the files that come with a model: JSON with a template, and GGUF."""

from __future__ import annotations

import json
from pathlib import Path

from gguf import GGUFWriter
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

START, END = "<|start|>", "<|end|>"
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|end|>\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
_TEXTS = (
    "The steelyard is the market balance that buyer and seller both trust.",
    "Every token is weighed once, priced once and billed once; the parts are the whole.",
    "What is the capital of France? The capital of France is Paris. 12345 + 67890 = 80235",
)


def write_json(folder: Path, *, template: str | None = TEMPLATE) -> Path:
    """`tokenizer.json` with its configuration beside it."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=400,
        special_tokens=[START, END],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXTS, trainer)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    config = {"bos_token": START, "eos_token": {"content": END}, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def write_gguf(source: Path, *, kind: str = "gpt2", rule: str = "gpt-2", bos: bool = False) -> Path:
    """The same tokenizer as the metadata of a GGUF file without tensors."""
    model = json.loads(source.read_text(encoding="utf-8"))["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    path = source.with_name("model.gguf")
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(rule)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in (START, END) else 1 for token in tokens])
    writer.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    )
    writer.add_bos_token_id(tokens.index(START))
    writer.add_eos_token_id(tokens.index(END))
    writer.add_add_bos_token(bos)
    writer.add_float32("general.some", 0.5)
    writer.add_chat_template(TEMPLATE)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path
