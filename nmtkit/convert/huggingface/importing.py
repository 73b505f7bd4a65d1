"""Detects the family of a folder written by `save_pretrained` of `transformers`, and reads it."""

import re
from dataclasses import replace
from pathlib import Path

from nmtkit.convert.external_files import read_json, read_text, unsupported
from nmtkit.convert.huggingface.families import FAMILIES
from nmtkit.convert.huggingface.generation import generation_file
from nmtkit.convert.imported_model import READERS, ImportedModel
from nmtkit.core.errors import CheckpointError, shorten

_ENCODERS = ("roberta", "bert", "electra", "deberta", "mpnet", "longformer", "xlnet")
_LONG_READERS = ("led", "longt5", "bigbird_pegasus", "pegasus_x")
_NOT_TEXT = ("whisper", "speech", "wav2vec", "seamless", "vit", "clip", "vision")
_TRANSLATORS = ("fsmt", "prophetnet", "blenderbot", "nllb-moe", "umt5")


@READERS.register("huggingface")
def read_huggingface(folder: Path) -> ImportedModel:
    """Converts a folder that contains `config.json`, weights and tokenizers."""
    place = folder / "config.json"
    named = read_json(place, dict).get("model_type")
    if named is None:
        raise CheckpointError(
            f"{place}: `model_type` is missing, so this folder was not saved by transformers; "
            "specify the toolkit with --from"
        )
    model_type = str(named)
    if model_type not in FAMILIES:
        remedy = f"{_advice(model_type)}; supported: {', '.join(FAMILIES.names())}"
        raise unsupported(place, f"models of type {shorten(model_type)!r}", remedy)
    if model_type == "pegasus" and (folder / "source.spm").exists():
        model_type = "marian"  # `export` writes Pegasus models with Marian's tokenizer
    imported = FAMILIES.get(model_type)().read(folder)
    source = f"specified in the model's {generation_file(folder).name}"
    return replace(imported, licence=_license_of(folder), search_source=source)


def _advice(model_type: str) -> str:
    """Returns alternatives to models of this type."""
    if any(name in model_type for name in _NOT_TEXT):
        return "use transformers"
    if model_type in _LONG_READERS:
        return "use transformers, or import BART or Pegasus and use summarize --window"
    if any(name in model_type for name in _TRANSLATORS):
        return "use transformers, or import NLLB, M2M100, OPUS-MT or T5"
    if any(name in model_type for name in _ENCODERS):
        return "use transformers, or import BERT"
    return "use transformers, vLLM or llama.cpp; GPT-2 is the only supported language model"


def _license_of(folder: Path) -> str | None:
    """Returns the licence from the metadata of the model card."""
    try:
        card = read_text(folder / "README.md")
    except CheckpointError:
        return None
    head = re.match(r"---\n(.*?)\n---", card, re.DOTALL)
    named = re.search(r"^license: *([\w.-]+) *$", head.group(1), re.MULTILINE) if head else None
    return named.group(1) if named else None
