"""Finds the family of a folder that `save_pretrained` of `transformers` wrote."""

from collections.abc import Callable
from pathlib import Path

from nmtkit.core.errors import shorten
from nmtkit.core.registry import Registry
from nmtkit.interchange.external_files import read_json, unsupported
from nmtkit.interchange.import_weights import ImportedModel
from nmtkit.interchange.importing import READERS

FAMILIES: Registry[Callable[[Path], ImportedModel]] = Registry("model type")
"""The reader of a folder, by `model_type` in its `config.json`."""


@READERS.register("huggingface")
def read_huggingface(folder: Path) -> ImportedModel:
    """Converts a folder with `config.json`, weights and tokenizers."""
    place = folder / "config.json"
    kind = str(read_json(place, dict).get("model_type"))
    if kind not in FAMILIES:
        raise unsupported(place, f"a model of type {shorten(kind)!r}", f"supported: {', '.join(FAMILIES.names())}")
    return FAMILIES.get(kind)(folder)
