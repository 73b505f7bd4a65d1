"""Runs with random weights and learned tokenizers, and folders as others write them, for tests of import and export."""

import importlib.util
import json
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nmtkit.config import Recipe
from nmtkit.convert import engines
from nmtkit.convert.importing import import_run
from nmtkit.core.errors import NmtkitError
from nmtkit.core.files import atomic_write_text
from nmtkit.core.settings import parse
from nmtkit.data.text.blocks import Example
from nmtkit.data.tokenizers.tokenizer import TokenizerConfig
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD
from nmtkit.inference.translator import Translator
from nmtkit.models.base import Seq2Seq
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.run import Run, build_model
from nmtkit.training.checkpoints.weights import get_weights, save_weights
from tests.support.commands import sentence_pairs
from tests.support.learned_tokenizers import learn_tokenizers

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
SEARCH = {"beam_size": 3, "max_length": 40, "max_length_ratio": 0.0}


def learned(joint: bool = True, **more: Any) -> Tokenizers:
    sizes = {"vocab_size": 60} if joint else {"vocab_size": 34, "tgt_vocab_size": 38}
    how = {"kind": "unigram", "joint": joint, **sizes, **more}
    examples = [Example(src, tgt, line) for line, (src, tgt) in enumerate(PAIRS, start=1)]
    return learn_tokenizers(TokenizerConfig(**how), examples)


@cache
def tokenizers(two: bool) -> Tokenizers:
    return learned(joint=not two)


def shake(model: Seq2Seq, end: float = 6.0) -> None:
    """Makes every weight random, so that none can be left out or taken for another unseen; sentences end."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
        model.get_parameter("output.bias")[[PAD, BOS, EOS]] = torch.tensor([-50.0, -50.0, end])


def made_run(folder: Path, settings: dict[str, Any], tokenizers: Tokenizers) -> Run:
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
    return Run(run)


def run_of(kind: dict[str, Any], folder: Path) -> Run:
    """A run with these settings of the model; its two vocabularies are one unless the kind says how they differ."""
    settings = {
        key: value for key, value in kind.items() if key not in ("two", "more source tokens")
    }
    if "more source tokens" in kind:
        return made_run(folder, settings, learned(joint=False, vocab_size=38, tgt_vocab_size=34))
    return made_run(folder, settings, tokenizers("two" in kind))


def require_near(
    found: Seq2Seq,
    own: Seq2Seq,
    step: Callable[[str, Tensor], Tensor | float] = lambda name, tensor: 0.0,
) -> None:
    """Every weight is the same, or as near as it can be where rounding to the given steps moves it."""
    assert len(own.state_dict()) > 30
    for name, tensor in own.state_dict().items():
        assert bool(
            ((found.state_dict()[name] - tensor).abs() <= step(name, tensor) * 1.001).all()
        ), name


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(read(path) | values), encoding="utf-8")


def opened(folder: Path, **more: Any) -> Translator:
    return Translator.load(str(folder), device="cpu", threads=1, **more)


def raw(folder: Path) -> Seq2Seq:
    """The model as it was saved, not laid out for a search."""
    return Run(RunFolder(folder)).open_model(torch.device("cpu"))[0]


Spoil = Callable[[Path], object]
"""Changes a model's folder, or its checkpoint, to one that must be refused."""


def needs(engine: str) -> pytest.MarkDecorator:
    library = engines.LIBRARIES[engine]
    there = importlib.util.find_spec(library) is not None
    return pytest.mark.skipif(
        not there, reason=f"{library} is not installed (pip install 'nmtkit[peers]')"
    )


class Harm:
    """A class whose pickle runs code when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


def changed(file: str, **values: Any) -> Spoil:
    """Changes values of a JSON file in the folder."""
    return lambda folder: change(folder / file, **values)


def import_refused(path: Path, match: str, folder: Path, toolkit: str = "huggingface") -> None:
    """An import that fails with one short line and leaves nothing in the folder."""
    before = {*folder.iterdir()}
    with pytest.raises(NmtkitError, match=match) as fault:
        import_run(path, str(folder / "run"), toolkit=toolkit)
    assert "\n" not in str(fault.value)
    assert len(str(fault.value)) < 600
    assert {*folder.iterdir()} == before


def gone(*files: str) -> Spoil:
    return lambda folder: [(folder / file).unlink() for file in files]


def pipe(file: str) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / file).unlink()
        os.mkfifo(folder / file)

    return spoil


def copied(folder: Path, target: Path) -> Path:
    """A copy of a model's folder, to be changed."""
    return Path(shutil.copytree(folder, target / "model"))


def write_tokenizers(folder: Path, two: bool, pad_last: bool) -> tuple[int, int]:
    """Those of a Marian model, and how many words both sides have; some pieces of the tokenizers have no id."""
    folder.mkdir()
    pair = learned(joint=False)
    words = [
        [word for word in one.vocabulary.tokens[4:] if word[-1:] not in "xX"]
        for one in (pair.src, pair.tgt)
    ]
    sides = words if two else [[*words[0], *words[1]]] * 2
    first, last = (["</s>", "<unk>"], ["<pad>"]) if pad_last else (["</s>", "<unk>", "<pad>"], [])
    tables = ([*first, ">>de<<", *dict.fromkeys(side), *last] for side in sides)
    src, tgt = ({word: row for row, word in enumerate(table)} for table in tables)
    (folder / "source.spm").write_bytes(pair.src.content())
    (folder / "target.spm").write_bytes(pair.tgt.content())
    (folder / "vocab.json").write_text(json.dumps(src), encoding="utf-8")
    if two:
        (folder / "target_vocab.json").write_text(json.dumps(tgt), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"separate_vocabs": two}), encoding="utf-8"
    )
    return len(src), len(tgt)


def marian(folder: Path, kind: dict[str, Any]) -> Any:
    """A model of `transformers` with random weights, in a folder that it wrote itself; some of its sentences end.

    With `pad_last` in `kind` its last token is <pad>, with a row of zeros, as in OPUS-MT.
    """
    library = engines.library("huggingface")
    library.logging.set_verbosity_error()
    library.utils.logging.disable_progress_bar()
    given = {
        "d_model": 16,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "activation_function": "swish",
    } | kind
    rest = {
        "two": False,
        "bias": True,
        "heads": 2,
        "file": "",
        "end": 2.0,
        "spread": 0.4,
        "stops": True,
    }
    rest["pad_last"] = False
    two, bias, heads, file, end, spread, stops, pad_last = (
        given.pop(key, other) for key, other in rest.items()
    )
    src, tgt = write_tokenizers(folder, two, pad_last)
    pad = src - 1 if pad_last else 2
    sides = {f"{side}_attention_heads": heads for side in ("encoder", "decoder")}
    sides |= {f"{side}_ffn_dim": 20 for side in ("encoder", "decoder")}
    ids = {
        "pad_token_id": pad,
        "eos_token_id": 0,
        "decoder_start_token_id": pad,
        "forced_eos_token_id": None,
    }
    torch.manual_seed(5)
    sizes = {
        "vocab_size": src,
        "decoder_vocab_size": tgt,
        "max_position_embeddings": 64,
        "scale_embedding": True,
    }
    config = library.MarianConfig(**sizes | sides | ids | given)
    model = library.MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "positions" not in name and parameter.dim() > 1:
                crossing = 0.8 if "encoder_attn" in name else spread
                parameter.add_(torch.randn_like(parameter), alpha=crossing)
            elif "positions" not in name:
                parameter.add_(torch.randn_like(parameter), alpha=0.05)
        for stack in (model.model.encoder, model.model.decoder) if pad_last else ():
            stack.embed_tokens.weight[pad] = 0.0
        if bias:
            model.final_logits_bias.normal_()
        row = model.lm_head.weight[0]
        model.model.decoder.layers[-1].final_layer_norm.bias.add_(row * end / row.square().sum())
    how = {"num_beams": 4, "early_stopping": stops, "max_new_tokens": 40, "bad_words_ids": [[pad]]}
    model.generation_config.update(**how, length_penalty=1.0, do_sample=False)
    model.save_pretrained(folder)
    if file:
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / file)
    return model
