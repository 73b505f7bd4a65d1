"""Checkpoints of Joey NMT and OpenNMT-py that lie, would do harm, or have no counterpart are refused by name."""

import pickle
from argparse import Namespace
from collections.abc import Callable
from fractions import Fraction
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.convert.external_recurrent import opennmt_rnn
from tests.convert.external_toolkits import joey_config, opennmt_options, write_joey, write_opennmt
from tests.support.commands import Command, refused, succeeded
from tests.support.random_runs import SOURCES, Harm, Spoil, import_refused


@pytest.fixture
def joey(tmp_path: Path) -> Path:
    write_joey(tmp_path / "model", joey_config())
    return tmp_path / "model"


@pytest.fixture
def opennmt(tmp_path: Path) -> Path:
    path = tmp_path / "model" / "model_step_5.pt"
    write_opennmt(path, opennmt_options())
    return path


@pytest.fixture
def recurrent(tmp_path: Path) -> Path:
    options = opennmt_options(
        encoder_type="rnn", decoder_type="rnn", position_encoding=False, enc_layers=1
    )
    options |= {"rnn_type": "GRU", "input_feed": 1, "global_attention": "general"}
    write_opennmt(tmp_path / "model" / "model.pt", options, opennmt_rnn)
    return tmp_path / "model" / "model.pt"


def setting(path: str, value: Any) -> Spoil:
    """Sets a key of Joey NMT's config.yaml."""

    def spoil(folder: Path) -> None:
        given = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        *above, last = path.split(".")
        reduce(lambda group, key: group.setdefault(key, {}), above, given)[last] = value
        (folder / "config.yaml").write_text(yaml.safe_dump(given), encoding="utf-8")

    return spoil


def state(change: Callable[[dict[str, Any]], object]) -> Spoil:
    """Changes what a checkpoint holds, be it what no checkpoint should; of a folder that of Joey NMT."""

    def spoil(path: Path) -> None:
        path = (path / "best.ckpt" if path.is_dir() else path).resolve()
        content = torch.load(path, weights_only=False)
        change(content)
        path.unlink()
        torch.save(content, path)

    return spoil


def weight(name: str, tensor: torch.Tensor) -> Spoil:
    return state(lambda content: content["model_state"].update({name: tensor}))


JOEY_SETTINGS = {
    "data.src.normalize": True,
    "data.trg.tokenizer_cfg.pretokenizer": "moses",
    "data.special_symbols.sep_token": "<sep>",
    "model.encoder.alpha": 0.8,
    "model.encoder.hidden_size": 1 << 40,
    "model.decoder.num_layers": 10**9,
    "model.decoder": [],
}
"""Each must be refused by its name."""
JOEY_HOSTILE: dict[str, tuple[Spoil, str]] = {
    **{key: (setting(key, value), key) for key, value in JOEY_SETTINGS.items()},
    "one side in lower case": (
        setting("data.src.lowercase", True),
        "a `data.trg.lowercase` .False. that differs from `data.src.lowercase` .True.",
    ),
    "characters": (
        setting("data.src.level", "char"),
        "data.src.level 'char' .*only level word, and level bpe with sentencepiece",
    ),
    "another id": (
        setting("data.special_symbols.unk_id", 7),
        "src_vocab.txt: '<unk>' does not have id 7",
    ),
    "two kinds": (
        setting("model.encoder.type", "recurrent"),
        "a `model.decoder.type` .transformer. that differs from `model.encoder.type` .recurrent.",
    ),
    "no norm": (
        setting("model.encoder.layer_norm", None),
        "a `model.decoder.layer_norm` .pre. that differs from `model.encoder.layer_norm` .None.",
    ),
    "two activations": (
        setting("model.encoder.activation", "tanh"),
        "a `model.decoder.activation` .None. that differs from `model.encoder.activation` .tanh.",
    ),
    "two widths": (
        setting("model.decoder.ff_size", 25),
        "a `model.decoder.ff_size` .25. that differs from `model.encoder.ff_size` .24.",
    ),
    "two scales": (
        setting("model.decoder.embeddings.scale", False),
        "model.decoder.embeddings.scale",
    ),
    "subword-nmt": (
        setting("data.src", {"level": "bpe", "tokenizer_type": "subword-nmt"}),
        "data.src.level 'bpe' .subword-nmt.*tokenize other text yourself",
    ),
    "code": (
        lambda at: state(lambda content: content.update(stats_state=Harm(at.parent / "harm")))(at),
        "best.ckpt.*no code in it was run.*model_state",
    ),
    "a bare pickle": (
        lambda at: (at / "5.ckpt").write_bytes(pickle.dumps(Harm(at.parent / "harm"))),
        "no code .* run",
    ),
    "options": (
        state(lambda content: content.update(args=Namespace(a=1))),
        "best.ckpt.*no code in it was run",
    ),
    "other positions": (
        weight("encoder.pe.pe", torch.ones(1, 60, 16)),
        "position embeddings .encoder.pe.pe. are not sinusoidal; the file is damaged",
    ),
    "no model": (state(lambda content: content.pop("model_state")), "no model_state"),
    "no weights": (lambda at: (at / "best.ckpt").unlink(), "no weights .best.ckpt, latest.ckpt"),
    "no config": (lambda at: (at / "config.yaml").unlink(), "config.yaml.*missing"),
    "no words": (lambda at: (at / "trg_vocab.txt").unlink(), "trg_vocab.txt.*missing"),
    "fewer words": (
        lambda at: (at / "trg_vocab.txt").write_text("a\n"),
        "trg_embed.*has shape.*should have",
    ),
    "words that are none": (
        lambda at: (at / "src_vocab.txt").write_bytes(b"\xff\n"),
        "src_vocab.txt.*UTF-8",
    ),
    "YAML with objects": (
        lambda at: (at / "config.yaml").write_text(
            "a: !!python/object/apply:os.system ['touch harm']\n"
        ),
        "config.yaml",
    ),
}


def option(name: str, value: Any) -> Spoil:
    return state(lambda content: setattr(content["opt"], name, value))


def refused_options(options: dict[str, Any]) -> dict[str, tuple[Spoil, str]]:
    """Options that have no counterpart; each must be refused by its name."""
    return {name: (option(name, value), name) for name, value in options.items()}


LANGUAGE_MODEL = {"model_task": "lm", "encoder_type": "mean", "decoder_type": "cnn"}
OTHER_LAYERS = {"layer_norm": "rms", "pos_ffn_activation_fn": "silu", "self_attn_type": "average"}
OTHER_LAYERS |= {
    "position_encoding": False,
    "position_encoding_type": "SinusoidalConcat",
    "max_relative_positions": 20,
}
OTHER_LAYERS |= {
    "parallel_residual": True,
    "lora_layers": ["linear_keys"],
    "num_kv": torch.ones(2),
    "heads": "many",
}
OPENNMT_HOSTILE: dict[str, tuple[Spoil, str]] = {
    **refused_options(
        LANGUAGE_MODEL | OTHER_LAYERS | {"transforms": ["prefix"], "dec_layers": 10**9}
    ),
    "words behind": (
        option("data", {"corpus": {"transforms": ["suffix"]}}),
        "the `suffix` transform .option `transforms`., which adds words",
    ),
    "a list of words": (
        state(lambda content: content.update(vocab=["a"])),
        "'vocab'.*OpenNMT-py 3.*convertv2_v3",
    ),
    "two widths": (
        option("src_word_vec_size", 8),
        "a `src_word_vec_size` .8. that differs from `enc_hid_size` .16.",
    ),
    "no biases": (option("add_qkvbias", True), "self_attn.*bias' is missing"),
    "no gate": (option("copy_attn", True), "generator.linear.bias.*missing"),
    "an object": (
        state(lambda content: content.update(more=Fraction(1, 2))),
        "no code in it was run.*OpenNMT-py 3.*convertv2_v3",
    ),
    "code": (
        lambda at: option("heads", Harm(at.parent.parent / "harm"))(at),
        "no code in it was run",
    ),
    "no options": (state(lambda content: content.pop("opt")), "contains no options"),
    "options of a table": (
        state(lambda content: content.update(opt=vars(content["opt"]))),
        "contains no options",
    ),
    "weights elsewhere": (
        state(lambda content: content.pop("model")),
        "'model' is missing.*pytorch format",
    ),
    "half a model": (
        state(lambda content: content.update(generator=None)),
        "'generator' is missing.*LoRA",
    ),
    "numbers for words": (
        state(lambda content: content["vocab"].update(src=[1, 2])),
        "'src' vocabulary is not a list of words",
    ),
    "features": (state(lambda content: content["vocab"].update(src_feats=[["a"]])), "src_feats"),
    "a language model": (
        state(lambda content: content["vocab"].update(data_task="lm")),
        "nmtkit does not support data_task lm",
    ),
    "no first word": (
        state(lambda content: content["vocab"].update(decoder_start_token="")),
        "target vocabulary lacks the decoder start token",
    ),
}
OTHER_CELLS = {"decoder_type": "transformer", "rnn_type": "SRU", "global_attention": "none"}
OTHER_CELLS |= {"coverage_attn": True, "copy_attn_type": "mlp", "context_gate": "both"}
RECURRENT_HOSTILE: dict[str, tuple[Spoil, str]] = {
    **refused_options(OTHER_CELLS),
    "two depths": (
        option("dec_layers", 2),
        "a `dec_layers` .2. that differs from `enc_layers` .1.",
    ),
    "no bridge": (option("bridge", True), "encoder.bridge.0.weight.*missing"),
    "a bridge across layers": (
        lambda at: [
            option(key, value)(at)
            for key, value in (("bridge", True), ("enc_layers", 2), ("dec_layers", 2))
        ],
        "bridge to several decoder layers",
    ),
}
HOSTILE = {"joey": JOEY_HOSTILE, "opennmt": OPENNMT_HOSTILE, "recurrent": RECURRENT_HOSTILE}


@pytest.mark.parametrize(
    ("model", "harm"), [(model, harm) for model, table in HOSTILE.items() for harm in table]
)
def test_a_checkpoint_that_lies_or_has_no_counterpart_is_refused_by_name(
    model: str, harm: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    path, (spoil, match) = request.getfixturevalue(model), HOSTILE[model][harm]
    spoil(path)
    import_refused(path, match, tmp_path, "joeynmt" if model == "joey" else "opennmt-py")


def test_runs_of_both_are_runs_for_every_command(
    joey: Path, opennmt: Path, console: Command, tmp_path: Path
) -> None:
    for source, path in (("joeynmt", joey), ("opennmt-py", opennmt)):
        assert (
            "2+1 layers of size 16"
            in succeeded(console("import", path, "-o", f"runs/{source}")).err
        )
        lines = f"{SOURCES[0]}\n\n{SOURCES[1]}\n"
        done = succeeded(console("translate", "-m", source, "--device", "cpu", stdin=lines))
        assert len(done.out.splitlines()) == 3
        refused(
            console("export", source, f"out-{source}", "--to", "huggingface"),
            "huggingface does not support",
        )
    refused(console("import", tmp_path / "nowhere", "--from", "opennmt-py"), "not a folder")
