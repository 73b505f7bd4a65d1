"""Checkpoints of Joey NMT and OpenNMT-py that lie, would do harm, or have no counterpart are refused by name."""

import pickle
from argparse import Namespace
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from commands import Command
from other_recurrent import opennmt_rnn
from other_toolkits import (
    JOEY,
    OPENNMT,
    joey_config,
    joey_transformer,
    opennmt_options,
    opennmt_transformer,
    words_of,
    write_joey,
    write_opennmt,
)
from portable import SOURCES, Harm, import_refused


@pytest.fixture
def joey(tmp_path: Path) -> Path:
    config, words = joey_config(), (words_of(0, JOEY, pieces=False), words_of(1, JOEY, pieces=False))
    write_joey(tmp_path / "model", config, joey_transformer(config, *map(len, words)), words)
    return tmp_path / "model"


@pytest.fixture
def opennmt(tmp_path: Path) -> Path:
    options, words = opennmt_options(), (words_of(0, OPENNMT, pieces=False), words_of(1, OPENNMT, pieces=False))
    path = tmp_path / "model" / "model_step_5.pt"
    write_opennmt(path, options, opennmt_transformer(options, *map(len, words)), words)
    return path


def reset(config: Path, path: str, value: Any) -> None:
    given = yaml.safe_load(config.read_text(encoding="utf-8"))
    at = given
    *above, last = path.split(".")
    for key in above:
        at = at.setdefault(key, {})
    at[last] = value
    config.write_text(yaml.safe_dump(given), encoding="utf-8")


SETTINGS: dict[str, tuple[Any, str]] = {
    "data.src.normalize": (True, "data.src.normalize"),
    "data.src.lowercase": (True, "data.trg.lowercase: False beside data.src.lowercase True"),
    "data.src.level": ("char", "data.src.level: 'char'.*word, and bpe of sentencepiece"),
    "data.trg.tokenizer_cfg": ({"pretokenizer": "moses"}, "data.trg.tokenizer_cfg.pretokenizer"),
    "data.special_symbols": ({"sep_token": "<sep>"}, "sep_token"),
    "data.special_symbols.unk_id": (7, "src_vocab.txt: '<unk>' does not have the id 7"),
    "model.encoder.type": ("recurrent", "model.decoder.type: transformer beside model.encoder.type recurrent"),
    "model.encoder.alpha": (0.8, "model.encoder.alpha"),
    "model.encoder.layer_norm": (None, "model.decoder.layer_norm: pre beside model.encoder.layer_norm None"),
    "model.encoder.activation": ("tanh", "model.decoder.activation: None beside model.encoder.activation tanh"),
    "model.encoder.num_layers": (9, "encoder.layers.2.*missing"),
    "model.encoder.hidden_size": (1 << 40, "model.encoder.hidden_size"),
    "model.decoder.ff_size": (25, "model.decoder.ff_size: 25 beside model.encoder.ff_size 24"),
    "model.decoder.num_layers": (10**9, "model.decoder.num_layers"),
    "model.decoder.embeddings.scale": (False, "model.decoder.embeddings.scale"),
    "model.decoder": ([], "model.decoder"),
}


@pytest.mark.parametrize("path", SETTINGS)
def test_a_setting_of_joey_nmt_without_counterpart_is_named(path: str, joey: Path, tmp_path: Path) -> None:
    value, match = SETTINGS[path]
    reset(joey / "config.yaml", path, value)
    import_refused(joey, match, tmp_path, "joeynmt")


def test_subword_nmt_is_refused_with_a_way_out(joey: Path, tmp_path: Path) -> None:
    for key, value in (("level", "bpe"), ("tokenizer_type", "subword-nmt")):
        reset(joey / "config.yaml", f"data.src.{key}", value)
    import_refused(joey, "data.src.tokenizer_type: subword-nmt.*cut the text.*set level to word", tmp_path, "joeynmt")


def saved(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes what a checkpoint holds, be it what no checkpoint should."""
    content = torch.load(path, weights_only=False)
    change(content)
    at = path.resolve()
    at.unlink()
    torch.save(content, at)


FIRST = "encoder.layers.0.src_src_att.k_layer.weight"
JOEY_HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "code": (
        lambda at: saved(at / "best.ckpt", lambda state: state.update(stats_state=Harm(at.parent / "harm"))),
        "best.ckpt.*nothing of it was run.*model_state",
    ),
    "a bare pickle": (
        lambda at: (at / "5.ckpt").write_bytes(pickle.dumps(Harm(at.parent / "harm"))),
        "best.ckpt.*nothing of it was run",
    ),
    "options": (
        lambda at: saved(at / "best.ckpt", lambda state: state.update(args=Namespace(a=1))),
        "best.ckpt.*nothing of it was run",
    ),
    "another shape": (
        lambda at: saved(at / "best.ckpt", lambda state: state["model_state"].update({FIRST: torch.zeros(16, 8)})),
        r"best.ckpt.*k_layer.weight' has shape \[16, 8\], and should have \[16, 16\]",
    ),
    "one number for many": (
        lambda at: saved(
            at / "best.ckpt", lambda state: state["model_state"].update({FIRST: torch.zeros(1).expand(16, 16)})
        ),
        "k_layer.weight.*fewer numbers",
    ),
    "no numbers": (
        lambda at: saved(at / "best.ckpt", lambda state: state["model_state"][FIRST].fill_(torch.nan)),
        "k_layer.weight.*NaN",
    ),
    "a weight more": (
        lambda at: saved(at / "best.ckpt", lambda state: state["model_state"].update(x=torch.zeros(1))),
        "'x' is not part of such a model",
    ),
    "other positions": (
        lambda at: saved(at / "best.ckpt", lambda state: state["model_state"]["encoder.pe.pe"].add_(0.1)),
        "encoder.pe.pe.*other positions than sinusoids",
    ),
    "no model": (lambda at: saved(at / "best.ckpt", lambda state: state.pop("model_state")), "no model_state"),
    "no weights": (lambda at: (at / "best.ckpt").unlink(), "none of best.ckpt, latest.ckpt"),
    "no config": (lambda at: (at / "config.yaml").unlink(), "config.yaml.*missing"),
    "no words": (lambda at: (at / "trg_vocab.txt").unlink(), "trg_vocab.txt.*missing"),
    "fewer words": (lambda at: (at / "trg_vocab.txt").write_text("a\n"), "trg_embed.*has shape.*should have"),
    "words that are none": (lambda at: (at / "src_vocab.txt").write_bytes(b"\xff\n"), "src_vocab.txt.*UTF-8"),
    "YAML with objects": (
        lambda at: (at / "config.yaml").write_text("a: !!python/object/apply:os.system ['touch harm']\n"),
        "config.yaml",
    ),
}


@pytest.mark.parametrize("harm", JOEY_HOSTILE)
def test_a_folder_of_joey_nmt_that_lies_is_refused_by_name(harm: str, joey: Path, tmp_path: Path) -> None:
    spoil, match = JOEY_HOSTILE[harm]
    spoil(joey)
    import_refused(joey, match, tmp_path, "joeynmt")


OPTIONS: dict[str, tuple[Any, str]] = {
    "encoder_type": ("mean", "encoder_type"),
    "decoder_type": ("cnn", "decoder_type"),
    "model_task": ("lm", "model_task"),
    "position_encoding": (False, "position_encoding"),
    "position_encoding_type": ("SinusoidalConcat", "position_encoding_type"),
    "max_relative_positions": (20, "max_relative_positions"),
    "self_attn_type": ("average", "self_attn_type"),
    "layer_norm": ("rms", "layer_norm"),
    "pos_ffn_activation_fn": ("silu", "pos_ffn_activation_fn"),
    "parallel_residual": (True, "parallel_residual"),
    "lora_layers": (["linear_keys"], "lora_layers"),
    "num_kv": (1, "num_kv"),
    "transforms": (["prefix"], "transforms: prefix"),
    "src_word_vec_size": (8, "src_word_vec_size: 8 beside enc_hid_size 16"),
    "enc_layers": (9, "encoder.transformer.2.*missing"),
    "dec_layers": (10**9, "dec_layers"),
    "heads": (3, "hidden_size 16 is not a multiple of heads 3"),
    "add_qkvbias": (True, "self_attn.*bias' is missing"),
    "copy_attn": (True, "generator.linear.bias.*missing"),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_of_opennmt_py_without_counterpart_is_named(option: str, opennmt: Path, tmp_path: Path) -> None:
    value, match = OPTIONS[option]
    saved(opennmt, lambda state: setattr(state["opt"], option, value))
    import_refused(opennmt, match, tmp_path, "opennmt-py")


OF_RECURRENT: dict[str, tuple[Any, str]] = {
    "decoder_type": ("transformer", "decoder_type"),
    "global_attention": ("mlp", "global_attention.*general"),
    "coverage_attn": (True, "coverage_attn"),
    "copy_attn": (True, "copy_attn"),
    "bridge": (True, "bridge"),
    "context_gate": ("both", "context_gate"),
    "rnn_type": ("SRU", "rnn_type"),
    "dec_layers": (2, "dec_layers: 2 beside enc_layers 1"),
}


@pytest.mark.parametrize("option", OF_RECURRENT)
def test_an_option_of_a_recurrent_model_without_counterpart_is_named(option: str, tmp_path: Path) -> None:
    value, match = OF_RECURRENT[option]
    options = opennmt_options(encoder_type="rnn", decoder_type="rnn", position_encoding=False, enc_layers=1)
    options |= {"rnn_type": "GRU", "input_feed": 1, "global_attention": "general"}
    words = words_of(0, OPENNMT, pieces=False), words_of(1, OPENNMT, pieces=False)
    path = tmp_path / "model" / "model.pt"
    write_opennmt(path, options | {option: value}, opennmt_rnn(options, *map(len, words)), words)
    import_refused(path, match, tmp_path, "opennmt-py")


OPENNMT_HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "an object": (lambda state: state.update(more=Fraction(1, 2)), "nothing of it was run.*OpenNMT-py 3"),
    "an object in the options": (lambda state: setattr(state["opt"], "heads", Fraction(2)), "nothing of it was run"),
    "text for a number": (lambda state: setattr(state["opt"], "heads", "many"), "heads"),
    "no options": (lambda state: state.pop("opt"), "holds no options"),
    "options of a table": (lambda state: state.update(opt=vars(state["opt"])), "holds no options"),
    "weights elsewhere": (lambda state: state.pop("model"), "'model' is missing.*save_format pytorch"),
    "half a model": (lambda state: state.update(generator=None), "'generator' is missing.*LoRA"),
    "a list of words": (lambda state: state.update(vocab=["a"]), "'vocab'.*OpenNMT-py 3.*convertv2_v3"),
    "numbers for words": (lambda state: state["vocab"].update(src=[1, 2]), "'src' is no list of words"),
    "features": (lambda state: state["vocab"].update(src_feats=[["a"]]), "src_feats"),
    "a language model": (lambda state: state["vocab"].update(data_task="lm"), "data_task: lm"),
    "no first word": (lambda state: state["vocab"].update(decoder_start_token=""), "'tgt' lacks"),
    "more words": (lambda state: state["vocab"]["tgt"].append("more"), "generator.bias.*has shape.*should have"),
}


@pytest.mark.parametrize("harm", OPENNMT_HOSTILE)
def test_a_checkpoint_of_opennmt_py_that_lies_is_refused_by_name(harm: str, opennmt: Path, tmp_path: Path) -> None:
    spoil, match = OPENNMT_HOSTILE[harm]
    saved(opennmt, spoil)
    import_refused(opennmt, match, tmp_path, "opennmt-py")


def test_code_in_a_checkpoint_of_opennmt_py_is_not_run(opennmt: Path, tmp_path: Path) -> None:
    saved(opennmt, lambda state: setattr(state["opt"], "heads", Harm(tmp_path / "harm")))
    import_refused(opennmt, "nothing of it was run", tmp_path, "opennmt-py")


def test_a_vocabulary_of_torchtext_is_refused_with_a_way_out(opennmt: Path, tmp_path: Path) -> None:
    content = b"\x80\x02}X\x05\x00\x00\x00vocabctorchtext.data.field\nField\n)\x81s."
    opennmt.write_bytes(b"")
    torch.save({"vocab": 1}, opennmt, _use_new_zipfile_serialization=False)
    header = opennmt.read_bytes()
    opennmt.write_bytes(header.replace(pickle.dumps({"vocab": 1}, 2), content))
    import_refused(opennmt, "torchtext.*convertv2_v3", tmp_path, "opennmt-py")


def test_runs_of_both_are_runs_for_every_command(joey: Path, opennmt: Path, console: Command, tmp_path: Path) -> None:
    for source, path in (("joeynmt", joey), ("opennmt-py", opennmt)):
        done = console("import", path, "-o", f"runs/{source}")
        assert (done.code, "2+1 layers of 16" in done.err) == (0, True), done
        found = console("translate", "-m", source, "--device", "cpu", stdin=f"{SOURCES[0]}\n\n{SOURCES[1]}\n")
        assert (found.code, len(found.out.splitlines())) == (0, 3), found
        found = console("export", source, f"out-{source}", "--to", "huggingface")
        assert (found.code, "huggingface has no" in found.err) == (2, True), found
    done = console("import", tmp_path / "nowhere", "--from", "opennmt-py")
    assert (done.code, "not there" in done.err) == (2, True), done
