"""Runs with random weights and learned tokenizers, and folders as others write them, for tests of import and export."""

import importlib.util
import json
import os
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import sentence_pairs

from nmtkit.checkpoints.weights import get_weights, save_weights
from nmtkit.core.errors import NmtkitError
from nmtkit.core.files import atomic_write_text
from nmtkit.core.settings import parse
from nmtkit.corpus.blocks import Example
from nmtkit.data.tokenizer import TokenizerConfig, TokenizerPair
from nmtkit.data.tokenizer_training import learn_tokenizers
from nmtkit.data.vocabulary import BOS, EOS, PAD
from nmtkit.experiment.loading import load_translator
from nmtkit.interchange import conversion
from nmtkit.interchange.importing import import_run
from nmtkit.models.base import Seq2Seq
from nmtkit.recipe import Recipe
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.saved import SavedRun, build_model
from nmtkit.translation.translator import Translator

PAIRS = sentence_pairs(120, 5)
SOURCES = [source for source, _ in PAIRS[:100]]
TARGETS = [target for _, target in PAIRS[:100]]
SMALL = {
    "kind": "transformer",
    "hidden_size": 16,
    "feed_forward_size": 24,
    "heads": 2,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "tie": "all",
}
SEARCH = {"beam_size": 3, "max_length": 40, "max_length_ratio": 0.0, "max_length_offset": 40}


def learned(joint: bool = True, **more: Any) -> TokenizerPair:
    sizes = {"vocab_size": 60} if joint else {"vocab_size": 34, "tgt_vocab_size": 38}
    how = {"kind": "unigram", "joint": joint, **sizes, **more}
    examples = [Example(src, tgt, line) for line, (src, tgt) in enumerate(PAIRS, start=1)]
    return learn_tokenizers(TokenizerConfig(**how), examples)


@cache
def tokenizers(two: bool) -> TokenizerPair:
    return learned(joint=not two)


def shake(model: Seq2Seq, end: float = 6.0) -> None:
    """Makes every weight random, so that none can be left out or taken for another unseen; sentences end."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
        model.get_parameter("output.bias")[[PAD, BOS, EOS]] = torch.tensor([-50.0, -50.0, end])


def made_run(folder: Path, settings: dict[str, Any], tokenizers: TokenizerPair) -> SavedRun:
    """A run of such a model, as if it had been trained."""
    torch.manual_seed(7)
    data = {
        "name": "made",
        "data": {"train": {"src": "/there/train.src", "tgt": "/there/train.tgt"}},
        "tokenizer": tokenizers.src.config.model_dump(),
        "model": SMALL | settings,
        "training": {"max_epochs": 1},
        "search": SEARCH,
    }
    recipe = parse(Recipe, data, "test")
    model = build_model(recipe, tokenizers)
    shake(model)
    run = RunFolder(folder)
    tokenizers.save(run.vocabulary)
    save_weights(run.average, get_weights(model), tokenizers.checksum)
    atomic_write_text(run.recipe, recipe.to_yaml())
    return SavedRun(run)


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(read(path) | values), encoding="utf-8")


def opened(folder: Path, **more: Any) -> Translator:
    return load_translator(str(folder), device="cpu", threads=1, **more)


def raw(folder: Path) -> Seq2Seq:
    """The model as it was saved, not laid out for a search."""
    return SavedRun(RunFolder(folder)).open_model(torch.device("cpu"))[0]


def needs(engine: str) -> pytest.MarkDecorator:
    library = conversion.LIBRARIES[engine]
    there = importlib.util.find_spec(library) is not None
    return pytest.mark.skipif(not there, reason=f"{library} is not installed (pip install 'nmtkit[peers]')")


class Harm:
    """A class whose pickle runs code when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


def import_refused(path: Path, match: str, folder: Path, toolkit: str = "huggingface") -> None:
    """An import that fails with one short line and leaves nothing in the folder."""
    before = {*folder.iterdir()}
    with pytest.raises(NmtkitError, match=match) as fault:
        import_run(path, str(folder / "run"), toolkit=toolkit)
    assert "\n" not in str(fault.value)
    assert len(str(fault.value)) < 600
    assert {*folder.iterdir()} == before


def copied(folder: Path, target: Path) -> Path:
    """A copy of a model's folder, to be changed."""
    return Path(shutil.copytree(folder, target / "model"))
