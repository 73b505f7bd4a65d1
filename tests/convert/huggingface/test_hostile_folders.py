"""Folders of public models that lie, would do harm, or lack what they need are refused in one line by name."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtkit.convert.importing import import_run
from nmtkit.core.errors import NmtkitError
from nmtkit.data.tokenizers.huggingface_tokenizer import parse_tokenizer
from tests.convert.huggingface.random_models import gpt2
from tests.support.random_runs import Harm, Spoil, changed, copied, gone, import_refused

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GPT-2, with the older files of its tokenizer too."""
    path = tmp_path_factory.mktemp("gpt2") / "model"
    tokenizer, _ = gpt2(path)
    model = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    (path / "vocab.json").write_text(json.dumps(tokenizer.get_vocab()), encoding="utf-8")
    merges = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    (path / "merges.txt").write_text("\n".join(merges) + "\n", encoding="utf-8")
    return path


def edited(change: Callable[[dict[str, Any]], object], file: str = "tokenizer.json") -> Spoil:
    def spoil(at: Path) -> None:
        content = json.loads((at / file).read_text(encoding="utf-8"))
        change(content)
        (at / file).write_text(json.dumps(content), encoding="utf-8")

    return spoil


def older(change: Spoil) -> Spoil:
    """Without a tokenizer.json."""

    def spoil(at: Path) -> None:
        (at / "tokenizer.json").unlink()
        change(at)

    return spoil


def with_code(at: Path) -> None:
    (at / "model.safetensors").unlink()
    torch.save({"wte.weight": Harm(at.parent / "harm")}, at / "pytorch_model.bin")


HOSTILE: dict[str, tuple[Spoil, str]] = {
    "half a tokenizer": (
        lambda at: os.truncate(at / "tokenizer.json", 900),
        "tokenizer.json.*not valid JSON",
    ),
    "no model": (edited(lambda one: one.pop("model")), "tokenizer.json.*download the folder again"),
    "no words": (
        edited(lambda one: one["model"].update(vocab=7)),
        "tokenizer.json.*download the folder again",
    ),
    "merges of nothing": (
        edited(lambda one: one["model"]["merges"].append(["zz", "Q"])),
        "tokenizer.json.*out of voc",
    ),
    "two for one": (
        edited(lambda one: one["model"]["vocab"].update(twice=9)),
        "tokenizer.json.*same id",
    ),
    "a far word": (
        edited(lambda one: one["model"]["vocab"].update(far=999)),
        "tokenizer.json.*999.*350",
    ),
    "no byte": (
        edited(lambda one: one["model"]["vocab"].pop("ĉ")),
        "tokenizer.json.*1 of 256 bytes",
    ),
    "older merges of nothing": (
        older(lambda at: (at / "merges.txt").write_text("#version\nzz q\n")),
        "merges.txt.*out of vocabulary",
    ),
    "older merges of three": (
        older(lambda at: (at / "merges.txt").write_text("#v\na b c\n")),
        "merges.txt",
    ),
    "older words": (
        older(lambda at: (at / "vocab.json").write_text("{")),
        "vocab.json.*not valid JSON",
    ),
    "older words twice": (
        older(edited(lambda one: one.update(twice=9), "vocab.json")),
        "merges.txt.*same id",
    ),
    "neither tokenizer.json": (
        gone("tokenizer.json", "merges.txt"),
        "neither tokenizer.json.*vocab.txt",
    ),
    "code": (with_code, "pytorch_model.bin.*no code in it was run"),
    "half the weights": (
        lambda at: os.truncate(at / "model.safetensors", 3000),
        "model.safetensors.*damaged",
    ),
    "another width": (changed("config.json", n_embd=64), r"wte.weight.*\[350, 32\].*\[350, 64\]"),
    "more layers": (changed("config.json", n_layer=3), "h.2.*missing"),
    "fewer layers": (changed("config.json", n_layer=1), "this kind of model has no weight .*h.1"),
    "odd heads": (changed("config.json", n_head=5), "32 is not a multiple of 5"),
    "an activation": (changed("config.json", activation_function="mish"), "activation"),
    "other attention": (changed("config.json", scale_attn_weights=False), "scale_attn_weights"),
    "a far end": (
        changed("generation_config.json", eos_token_id=10**6),
        "generation_config.json.*1000000",
    ),
    "words of BERT": (
        older(lambda at: (at / "vocab.txt").write_text("a\nb\na\n")),
        "vocab.txt.*one token has two",
    ),
    "no sentences": (
        lambda at: (
            gone("tokenizer.json", "merges.txt")(at),
            (at / "spiece.model").write_bytes(b"x" * 99),
        ),
        "spiece.model.*not a SentencePiece model",
    ),
}


@pytest.mark.parametrize("harm", HOSTILE)
def test_a_folder_that_lies_is_refused_by_name(harm: str, folder: Path, tmp_path: Path) -> None:
    spoil, match = HOSTILE[harm]
    spoil(copied(folder, tmp_path))
    import_refused(tmp_path / "model", match, tmp_path)
    assert not (tmp_path / "harm").exists()


def test_older_files_make_the_same_tokenizer(folder: Path, tmp_path: Path) -> None:
    import_run(folder, str(tmp_path / "one"))
    (copied(folder, tmp_path) / "tokenizer.json").unlink()
    import_run(tmp_path / "model", str(tmp_path / "other"))
    texts = [
        (tmp_path / name / "vocabulary" / "tgt.vocab").read_bytes() for name in ("one", "other")
    ]
    assert texts[0] == texts[1]


def test_without_the_library_the_remedy_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    parse_tokenizer.cache_clear()
    with pytest.raises(
        NmtkitError, match=r"not installed; run pip install 'nmtkit\[huggingface\]'"
    ):
        import_run(folder, str(tmp_path / "run"))
