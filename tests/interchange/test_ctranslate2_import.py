"""Models of CTranslate2 become runs that compute the same, and a file that lies is refused by name."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import Command
from daily import daily
from portable import (
    SEARCH,
    SOURCES,
    TARGETS,
    change,
    copied,
    import_refused,
    learned,
    made_run,
    needs,
    opened,
    raw,
    read,
    tokenizers,
)

from nmtkit.core.formats import load_yaml
from nmtkit.data.vocabulary import BOS, PAD
from nmtkit.interchange import conversion
from nmtkit.interchange.checkpoint import SUPPRESSED_BIAS
from nmtkit.interchange.exporting import export_run
from nmtkit.interchange.importing import import_run
from nmtkit.layers.transformer import sinusoids
from nmtkit.models.base import Seq2Seq
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.saved import SavedRun

KINDS: list[dict[str, Any]] = [
    {"tie": "all"},
    {"norm": "post", "positions": "sinusoidal_halves", "activation": "silu", "scale_embeddings": False, "tie": "none"},
    {"positions": "learned", "max_positions": 64, "activation": "gelu", "tie": "embeddings"},
    {"two": True, "tie": "decoder", "source_end": False, "norm_epsilon": 1e-6},
]
TYPES = ("float32", "int8", "int16", "int32", "float16", "bfloat16")
"""In the order of their numbers in the file."""
Variables = dict[str, tuple[str, np.ndarray[Any, Any]]]

OWN_SEARCH = SEARCH | {"at_limit": "behind", "min_length": 0}
"""That of the runs that are exported."""


def run_of(kind: dict[str, Any], folder: Path) -> None:
    settings = {key: value for key, value in kind.items() if key != "two"}
    made_run(folder, settings, tokenizers(kind.get("two", False)))


def imported(folder: Path, path: Path) -> tuple[Seq2Seq, list[str]]:
    said: list[str] = []
    import_run(folder, str(path), said.append, "ctranslate2")
    return raw(path), said


# ------------------------------------------------------------------------------------------------- a writer of our own


def variables_of(model: Any, kind: str = "float32") -> Variables:
    """A model's weights by the names of CTranslate2; every weight of two dimensions may be rounded."""
    config, weights = model.config, conversion.plain_weights(model)
    found: dict[str, torch.Tensor] = {}
    for side, name in (("encoder", "src"), ("decoder", "tgt")):
        of_words = "embeddings_0" if side == "encoder" else "embeddings"
        found[f"{side}/{of_words}/weight"] = weights[f"{name}_embedding.weight"]
        table = weights.get(f"{name}_positions.table")
        halves = config.positions == "sinusoidal_halves"
        found[f"{side}/position_encodings/encodings"] = sinusoids(80, 16, halves) if table is None else table
        layers = {own: tensor for own, tensor in weights.items() if own.startswith((f"{side}.", f"{side}_norm."))}
        found |= {conversion.ctranslate2_names(own)[0]: tensor for own, tensor in layers.items()}
    found |= {f"decoder/projection/{end}": weights[f"output.{end}"] for end in ("weight", "bias")}
    return scalars(config) | {name: one for place, tensor in found.items() for name, one in stored(place, tensor, kind)}


def scalars(config: Any) -> Variables:
    small = {"pre_norm": config.norm == "pre", "activation": {"relu": 0, "silu": 2, "gelu": 3}[config.activation]}
    small |= {"scale_embeddings": config.scale_embeddings}
    found: Variables = {}
    for side in ("encoder", "decoder"):
        found[f"{side}/num_heads"] = ("int16", np.array(config.heads, np.int16))
        found |= {f"{side}/{name}": ("int8", np.array(value, np.int8)) for name, value in small.items()}
    return found


def stored(name: str, tensor: torch.Tensor, kind: str) -> list[tuple[str, tuple[str, np.ndarray[Any, Any]]]]:
    values = tensor.numpy()
    if kind == "bfloat16":
        return [(name, (kind, tensor.bfloat16().view(torch.int16).numpy()))]
    if kind in ("float32", "float16"):
        return [(name, (kind, values.astype(kind)))]
    if not name.endswith("/weight"):
        return [(name, ("float32", values))]
    scale = 127 / np.abs(values).max(1) if kind == "int8" else np.array(1024 / np.abs(values).max())
    whole = np.rint(values * (scale[:, None] if scale.ndim else scale)).astype(kind)
    return [(name, (kind, whole)), (f"{name}_scale", ("float32", scale.astype(np.float32)))]


def text(of: str) -> bytes:
    return struct.pack("<H", len(of.encode()) + 1) + of.encode() + b"\0"


def content(
    variables: Variables, aliases: dict[str, str] | None = None, head: tuple[int, str, int] = (6, "TransformerSpec", 7)
) -> bytes:
    parts = [struct.pack("<I", head[0]), text(head[1]), struct.pack("<II", head[2], len(variables))]
    for name, (kind, values) in variables.items():
        parts += [text(name), struct.pack(f"<B{values.ndim}I", values.ndim, *values.shape)]
        parts += [struct.pack("<BI", TYPES.index(kind), values.nbytes), values.tobytes()]
    parts.append(struct.pack("<I", len(aliases or {})))
    return b"".join([*parts, *(text(alias) + text(name) for alias, name in (aliases or {}).items())])


def written(run: Path, folder: Path, kind: str = "float32", spm: bool = True) -> Path:
    """What a converter writes of a run."""
    found, model = opened(run), raw(run)
    folder.mkdir()
    (folder / "model.bin").write_bytes(content(variables_of(model, kind)))
    sides = {"source": found.tokenizers.src, "target": found.tokenizers.tgt}
    for side, one in sides.items():
        name = "shared" if found.tokenizers.shared else side
        (folder / f"{name}_vocabulary.json").write_text(json.dumps(one.vocabulary.tokens), encoding="utf-8")
        if spm:
            (folder / f"{side}.spm").write_bytes(one.content())
    told = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "decoder_start_token": "<s>"}
    own, usual = model.config, model.config.norm_epsilon == 1e-5
    told |= {"add_source_bos": False, "add_source_eos": own.source_end}
    told |= {"layer_norm_epsilon": None if usual else own.norm_epsilon}
    (folder / "config.json").write_text(json.dumps(told), encoding="utf-8")
    return folder


@pytest.mark.parametrize("kind", daily(KINDS, 2), ids=str)
def test_what_was_written_is_read_back(kind: dict[str, Any], tmp_path: Path) -> None:
    run_of(kind, tmp_path / "run")
    own = raw(tmp_path / "run")
    found, said = imported(written(tmp_path / "run", tmp_path / "theirs"), tmp_path / "again")
    assert found.config == own.config
    assert found.sizes == own.sizes
    assert len(found.state_dict()) > 30
    for name, tensor in own.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor), name
    assert len(said) == 2
    before, after = (opened(tmp_path / name, search_settings=OWN_SEARCH) for name in ("run", "again"))
    assert after.translate(SOURCES[:20]) == before.translate(SOURCES[:20])


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "int8", "int16"])
def test_rounded_weights_become_float32(kind: str, tmp_path: Path) -> None:
    run_of({}, tmp_path / "run")
    found, said = imported(written(tmp_path / "run", tmp_path / "theirs", kind), tmp_path / "again")
    own = raw(tmp_path / "run")
    assert found.config == own.config
    assert [line for line in said if "became float32" in line] == said[2:]
    assert len(said) == (3 if kind.startswith("int") else 2)
    for (name, tensor), after in zip(own.state_dict().items(), found.state_dict().values(), strict=True):
        half_step = {"float16": tensor.abs() / 2048 + 1e-7, "bfloat16": tensor.abs() / 256}
        if tensor.dim() > 1:
            half_step |= {"int8": tensor.abs().amax(1, True) / 254, "int16": tensor.abs().max() / 2048}
        most = half_step.get(kind, torch.zeros(()))
        assert bool(((after - tensor).abs() <= most * 1.001).all()), name
        assert tensor.dim() < 2 or not torch.equal(after, tensor), name


def test_words_in_another_order_keep_their_rows(tmp_path: Path) -> None:
    """As of Marian: no <pad>, no <s>, the decoder begins with zeros; and a matrix that stands for another."""
    run_of({"tie": "all", "norm": "post"}, tmp_path / "run")
    theirs, own = written(tmp_path / "run", tmp_path / "theirs", "int8"), raw(tmp_path / "run")
    order = [3, 1, *range(4, 60)]
    given = variables_of(own, "int8")
    for name in ("encoder/embeddings_0/weight", "decoder/embeddings/weight", "decoder/projection/weight"):
        for part in (name, f"{name}_scale"):
            given[part] = (given[part][0], given[part][1][order])
    given["decoder/projection/bias"] = ("float32", given["decoder/projection/bias"][1][order])
    given["decoder/start_from_zero_embedding"] = ("int8", np.array(1, np.int8))
    alias = "encoder/embeddings_0/weight"
    same = {name: one for name, one in given.items() if not name.startswith(alias)}
    (theirs / "model.bin").write_bytes(content(same, {alias: "decoder/embeddings/weight"}))
    tokens = read(theirs / "shared_vocabulary.json")
    (theirs / "shared_vocabulary.json").unlink()
    (theirs / "shared_vocabulary.txt").write_text("".join(f"{tokens[row]}\n" for row in order), encoding="utf-8")
    change(theirs / "config.json", decoder_start_token="</s>", add_source_eos=False)
    found, _ = imported(theirs, tmp_path / "again")
    assert opened(tmp_path / "again").tokenizers.src.vocabulary.tokens == tokens
    assert load_yaml(tmp_path / "again" / "recipe.yaml")[0]["model"]["tie"] == "all"
    words, bias = found.get_parameter("tgt_embedding.weight"), found.get_parameter("output.bias")
    assert not words[BOS].any()
    assert torch.allclose(words[3:], own.get_parameter("tgt_embedding.weight")[3:], atol=0.02)
    assert bias[[PAD, BOS]].tolist() == [SUPPRESSED_BIAS] * 2
    assert torch.equal(bias[3:], own.get_parameter("output.bias")[3:])


def test_a_model_of_words_needs_no_pieces(tmp_path: Path) -> None:
    made_run(tmp_path / "run", {}, learned(kind="word", vocab_size=100))
    theirs = written(tmp_path / "run", tmp_path / "theirs", spm=False)
    _, said = imported(theirs, tmp_path / "again")
    assert "cut into words" in said[2]
    one, other = (opened(tmp_path / name, search_settings=OWN_SEARCH) for name in ("run", "again"))
    assert other.tokenizers.src.encode_many(SOURCES) == one.tokenizers.src.encode_many(SOURCES)
    assert other.translate(SOURCES[:5]) == one.translate(SOURCES[:5])
    own = {"task": "summarization", "tokenizer": {"kind": "word", "lowercase": True, "normalization": "none"}}
    change(theirs / "config.json", nmtkit=own)
    _, said = imported(theirs, tmp_path / "third")
    assert len(said) == 2
    found = load_yaml(tmp_path / "third" / "recipe.yaml")[0]
    assert (found["task"], found["tokenizer"]["lowercase"]) == ("summarization", True)


# ------------------------------------------------------------------------------------------------------------- hostile


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("written")
    run_of({}, path / "run")
    return written(path / "run", path / "out")


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return copied(folder, tmp_path)


def with_variables(folder: Path, changes: dict[str, Any], aliases: dict[str, str] | None = None) -> None:
    """The same model with some variables changed, or left out where they are None."""
    given = variables_of(raw(folder.parent / "own")) | changes
    kept = {name: one for name, one in given.items() if one is not None}
    (folder / "model.bin").write_bytes(content(kept, aliases))


def byte(folder: Path, old: bytes, new: bytes) -> None:
    path = folder / "model.bin"
    given = path.read_bytes()
    assert given.count(old) == 1
    path.write_bytes(given.replace(old, new))


def head(*given: Any) -> Callable[[Path], object]:
    return lambda at: (at / "model.bin").write_bytes(content({}, None, given))  # type: ignore[arg-type]


def flag(value: int, kind: str = "int8") -> tuple[str, np.ndarray[Any, Any]]:
    return kind, np.array(value, kind)


def floats(*shape: int, value: float = 1.0) -> tuple[str, np.ndarray[Any, Any]]:
    return "float32", np.full(shape, value, np.float32)


def pipe(folder: Path) -> None:
    (folder / "model.bin").unlink()
    os.mkfifo(folder / "model.bin")


ATTENTION, FFN = "encoder/layer_0/self_attention", "encoder/layer_0/ffn/linear_0/weight"
SHAPE = text(FFN) + struct.pack("<BII", 2, 24, 16)
HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a cut file": (lambda at: os.truncate(at / "model.bin", 3000), "model.bin.*damaged or cut"),
    "a cut head": (lambda at: os.truncate(at / "model.bin", 7), "model.bin: ends within.*cut"),
    "an empty file": (lambda at: os.truncate(at / "model.bin", 0), "model.bin: ends within.*cut"),
    "no file": (lambda at: (at / "model.bin").unlink(), "model.bin: missing"),
    "a pipe": (pipe, "model.bin: missing, or no file"),
    "a longer file": (lambda at: (at / "model.bin").open("ab").write(b"x"), "1 bytes behind its end"),
    "a lying shape": (lambda at: byte(at, SHAPE, SHAPE[:-4] + b"\xff" * 4), "ffn/linear_0/weight.*would have"),
    "a huge shape": (
        lambda at: byte(at, SHAPE + b"\0" + struct.pack("<I", 1536), SHAPE[:-8] + b"\xff" * 8 + b"\0" + b"\xff" * 4),
        "ffn/linear_0/weight.*would have",
    ),
    "a lying length": (lambda at: byte(at, SHAPE + b"\0", SHAPE + b"\0\xff"), "ffn/linear_0/weight.*would have"),
    "many dimensions": (lambda at: byte(at, SHAPE, text(FFN) + b"\xff" + SHAPE[-8:]), "model.bin.*damaged or cut"),
    "a type unheard of": (lambda at: byte(at, SHAPE + b"\0", SHAPE + b"\x06"), "ffn/linear_0/weight.*type 6"),
    "a name that is none": (lambda at: byte(at, text(FFN), text(FFN)[:-1] + b"x"), "holds no name"),
    "another layout": (head(5, "TransformerSpec", 7), "binary version 5"),
    "a decoder alone": (head(6, "TransformerDecoderSpec", 8), "TransformerDecoderSpec.*not supported"),
    "speech": (head(6, "WhisperSpec", 3), "WhisperSpec.*not supported"),
    "a later one": (head(6, "TransformerSpec", 8), "revision 8"),
    "an alias of nothing": (lambda at: with_variables(at, {}, {"a": "b"}), "'a' stands for 'b'"),
    "one name twice": (lambda at: with_variables(at, {}, {FFN: FFN}), "is defined twice"),
    "whole numbers": (lambda at: with_variables(at, {FFN: ("int8", np.zeros((24, 16), np.int8))}), "without a scale"),
    "wide numbers": (lambda at: with_variables(at, {FFN: ("int32", np.zeros((24, 2), np.int32))}), "without a scale"),
    "scales of zero": (
        lambda at: with_variables(
            at, {FFN: ("int8", np.ones((24, 16), np.int8)), f"{FFN}_scale": floats(24, value=0.0)}
        ),
        "ffn/linear_0/weight' contains NaN",
    ),
    "no numbers": (lambda at: with_variables(at, {FFN: floats(24, 16, value=np.nan)}), "ffn/linear_0/weight.*NaN"),
    "a weight less": (
        lambda at: with_variables(at, {f"{ATTENTION}/linear_1/weight": None}),
        "linear_1/weight.*missing",
    ),
    "another shape": (
        lambda at: with_variables(at, {f"{ATTENTION}/linear_1/weight": floats(16, 15)}),
        r"linear_1/weight' has shape \[16, 15\], and should have \[16, 16\]",
    ),
    "RMS": (lambda at: with_variables(at, {f"{ATTENTION}/layer_norm/beta": None}), "layer_norm/beta.*missing"),
    "relative positions": (
        lambda at: with_variables(at, {f"{ATTENTION}/relative_position_keys": floats(9, 8)}),
        "relative_position_keys' is not part of such a model",
    ),
    "rotary": (lambda at: with_variables(at, {f"{ATTENTION}/rotary_dim": flag(4, "int32")}), "rotary_dim' is 4"),
    "alibi": (lambda at: with_variables(at, {"decoder/alibi": flag(1)}), "decoder/alibi' is 1"),
    "grouped heads": (lambda at: with_variables(at, {f"{ATTENTION}/num_heads_kv": flag(1, "int32")}), "num_heads_kv"),
    "gates": (
        lambda at: with_variables(at, {"encoder/layer_0/ffn/linear_0_noact/weight": floats(24, 16)}),
        "linear_0_noact/weight' is not part of such a model",
    ),
    "normalized words": (
        lambda at: with_variables(at, {"encoder/layernorm_embedding/gamma": floats(16)}),
        "layernorm_embedding/gamma' is not part of such a model",
    ),
    "two embeddings": (
        lambda at: with_variables(at, {"encoder/embeddings_1/weight": floats(60, 16)}),
        "embeddings_1/weight' is not part of such a model",
    ),
    "positions of its own": (
        lambda at: with_variables(at, {"encoder/position_encodings/encodings": None}),
        "position_encodings/encodings' is missing",
    ),
    "narrow positions": (
        lambda at: with_variables(at, {"encoder/position_encodings/encodings": floats(9, 8)}),
        "position_encodings/encodings' has shape",
    ),
    "an activation": (
        lambda at: with_variables(at, {f"{side}/activation": flag(1) for side in ("encoder", "decoder")}),
        "activation 1, which is not supported.*relu",
    ),
    "unlike sides": (lambda at: with_variables(at, {"decoder/pre_norm": flag(0)}), "'pre_norm' of encoder and decoder"),
    "odd heads": (
        lambda at: with_variables(at, {f"{side}/num_heads": flag(3, "int16") for side in ("encoder", "decoder")}),
        "hidden_size 16 is not a multiple of heads 3",
    ),
    "an odd scale": (lambda at: with_variables(at, {"encoder/scale_embeddings": floats(value=3.0)}), "scale_.*3.0"),
    "unlike scales": (lambda at: with_variables(at, {"encoder/scale_embeddings": flag(0)}), "scale_embeddings.*differ"),
    "many layers": (
        lambda at: with_variables(at, {"encoder/layer_999999999/x": floats(1)}),
        "model.bin.*encoder_layers",
    ),
    "no words": (lambda at: with_variables(at, {"encoder/embeddings_0/weight": floats(60)}), "embeddings_0/weight"),
    "more words": (lambda at: (at / "shared_vocabulary.json").write_text('["</s>"]'), "1 source tokens.*has 60"),
    "words that are none": (lambda at: (at / "shared_vocabulary.json").write_text("[1]"), "not a list of tokens"),
    "no vocabulary": (lambda at: (at / "shared_vocabulary.json").unlink(), "no source_vocabulary.json"),
    "no pieces": (lambda at: [(at / f"{side}.spm").unlink() for side in ("source", "target")], "source.spm.*no words"),
    "half the pieces": (lambda at: (at / "target.spm").unlink(), "target.spm: is missing"),
    "no config": (lambda at: (at / "config.json").unlink(), "config.json: is missing"),
    "a start of one's own": (
        lambda at: change(at / "config.json", decoder_start_token=None),
        "decoder_start_token null",
    ),
    "a start unheard of": (
        lambda at: change(at / "config.json", decoder_start_token="<2de>"),
        "<2de>.*no source token",
    ),
    "a beginning": (
        lambda at: change(at / "config.json", add_source_bos=True),
        "add_source_bos true, which is not supported",
    ),
    "an epsilon": (lambda at: change(at / "config.json", layer_norm_epsilon=-1e-6), "norm_epsilon.*greater than 0"),
    "another unknown": (lambda at: change(at / "config.json", unk_token="[UNK]"), r"unk_token '\[UNK\]'"),
    "a lying key": (lambda at: change(at / "config.json", nmtkit={"tokenizer": {"lowercase": 9}}), "lowercase"),
}


@pytest.mark.parametrize("harm", HOSTILE)
def test_a_file_that_lies_is_refused_by_name_and_leaves_nothing(
    harm: str, folder: Path, copy: Path, tmp_path: Path
) -> None:
    spoil, match = HOSTILE[harm]
    (tmp_path / "own").symlink_to(folder.parent / "run")
    spoil(copy)
    import_refused(copy, match, tmp_path, "ctranslate2")


def test_the_command_takes_it(copy: Path, folder: Path, console: Command, tmp_path: Path) -> None:
    (tmp_path / "own").symlink_to(folder.parent / "run")
    (copy / "model.bin").write_bytes(content(variables_of(raw(tmp_path / "own"), "int8")))
    done = console("import", copy, "-o", "runs/mine")
    assert done.code == 0, done
    assert "CTranslate2 model of 2+1 layers of 16, 60 source and 60 target tokens" in done.err
    assert "its int8 weights became float32" in done.err
    found = console("translate", "-m", "mine", "--device", "cpu", stdin=SOURCES[0])
    assert (found.code, len(found.out.splitlines())) == (0, 1), found
    found = console("export", "mine", "again", "--to", "safetensors")
    assert found.code == 0, found
    assert "Imported from the CTranslate2 model model" in (tmp_path / "again" / "README.md").read_text("utf-8")


# ------------------------------------------------------------------------------------------------- CTranslate2's own


@needs("ctranslate2")
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_out_by_ctranslate2_and_in_again_is_the_same_run(kind: dict[str, Any], tmp_path: Path) -> None:
    run_of(kind, tmp_path / "run")
    before, own = opened(tmp_path / "run"), raw(tmp_path / "run")
    export_run(SavedRun(RunFolder(tmp_path / "run")), "ctranslate2", tmp_path / "out")
    found, _ = imported(tmp_path / "out", tmp_path / "again")
    assert found.config == own.config
    for name, tensor in own.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor), name
    assert opened(tmp_path / "again", search_settings=OWN_SEARCH).translate(SOURCES) == before.translate(SOURCES)
    sides = before.tokenizers.src.vocabulary.tokens, before.tokenizers.tgt.vocabulary.tokens
    spec = conversion.to_ctranslate2(raw(tmp_path / "run"), *sides, 64)
    spec._quantize("int8")  # what its converters do last, in place
    spec.save(str(tmp_path / "out"))
    found, said = imported(tmp_path / "out", tmp_path / "whole")
    assert "its int8 weights became float32" in said[2]
    assert found.config.changed({"max_positions": 64}) == own.config.changed({"max_positions": 64})
    for name, tensor in own.state_dict().items():
        most = tensor.abs().amax(-1, True) / 254 if tensor.dim() > 1 and "positions" not in name else torch.zeros(())
        assert bool(((found.state_dict()[name] - tensor).abs() <= most * 1.001).all()), name


@needs("ctranslate2")
@needs("huggingface")
@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("two", [False, True], ids=["tied", "untied, with bias"])
def test_a_marian_model_scores_as_ctranslate2_does(two: bool, quantization: str | None, tmp_path: Path) -> None:
    """The decoder begins with zeros, and <pad> is no token."""
    library = marian(tmp_path / "theirs", two)
    converter = conversion.library("ctranslate2").converters.TransformersConverter(
        str(tmp_path / "theirs"), copy_files=["source.spm", "target.spm"]
    )
    converter.convert(str(tmp_path / "ct2"), quantization=quantization)
    imported(tmp_path / "ct2", tmp_path / "run")
    ours = opened(tmp_path / "run")
    engine = conversion.library("ctranslate2").Translator(str(tmp_path / "ct2"), compute_type="float32")
    tokenizer = library.MarianTokenizer.from_pretrained(tmp_path / "theirs")
    names = tokenizer.convert_ids_to_tokens
    sources = [names(row) for row in tokenizer(SOURCES).input_ids]
    targets = [names(row)[:-1] for row in tokenizer(text_target=TARGETS).input_ids]
    scores = engine.score_batch(sources, targets)
    for found, expected in zip(ours.rescore(SOURCES, TARGETS), scores, strict=True):
        assert found.token_log_probs == pytest.approx(expected.log_probs, abs=1e-4)


def marian(folder: Path, untied: bool) -> Any:
    """A model of `transformers` with random weights whose last token is <pad>, as in OPUS-MT."""
    library = conversion.library("huggingface")
    library.logging.set_verbosity_error()
    library.utils.logging.disable_progress_bar()
    pair = learned(joint=False)
    words = dict.fromkeys(
        word for one in (pair.src, pair.tgt) for word in one.vocabulary.tokens[4:] if word[-1:] != "x"
    )
    table = {word: row for row, word in enumerate(["</s>", "<unk>", *words, "<pad>"])}
    folder.mkdir()
    (folder / "source.spm").write_bytes(pair.src.content())
    (folder / "target.spm").write_bytes(pair.tgt.content())
    (folder / "vocab.json").write_text(json.dumps(table), encoding="utf-8")
    pad = len(table) - 1
    sizes = {"vocab_size": pad + 1, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "scale_embedding": True}
    sizes |= {f"{side}_attention_heads": 2 for side in ("encoder", "decoder")}
    sizes |= {f"{side}_ffn_dim": 20 for side in ("encoder", "decoder")} | {"max_position_embeddings": 64}
    ids = {"pad_token_id": pad, "eos_token_id": 0, "decoder_start_token_id": pad, "forced_eos_token_id": None}
    torch.manual_seed(5)
    config = library.MarianConfig(**sizes, **ids, tie_word_embeddings=not untied, activation_function="swish")
    model = library.MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "positions" not in name:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
        for embedding in (model.model.shared, model.model.encoder.embed_tokens, model.model.decoder.embed_tokens):
            embedding.weight[pad] = 0.0
        if untied:
            model.final_logits_bias.normal_()
    model.save_pretrained(folder)
    library.MarianTokenizer(
        vocab=str(folder / "vocab.json"), source_spm=str(folder / "source.spm"), target_spm=str(folder / "target.spm")
    ).save_pretrained(folder)
    return library
