"""Models of CTranslate2 become runs that compute the same, and a file that lies is refused by name."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from daily import daily
from portable import (
    SEARCH,
    SOURCES,
    TARGETS,
    Spoil,
    change,
    changed,
    copied,
    gone,
    import_refused,
    learned,
    made_run,
    marian,
    needs,
    opened,
    pipe,
    raw,
    read,
    require_near,
    run_of,
)

from nmtkit.convert import export_weights
from nmtkit.convert.exporting import export_run
from nmtkit.convert.import_weights import SUPPRESSED_BIAS
from nmtkit.convert.importing import import_run
from nmtkit.core.formats import load_yaml
from nmtkit.data.tokenizers.vocabulary import BOS, PAD
from nmtkit.layers.transformer import sinusoids
from nmtkit.models.base import Seq2Seq

KINDS: list[dict[str, Any]] = [
    {"tie": "all", "activation": "gelu_tanh"},
    {"norm": "post", "positions": "sinusoidal_halves", "activation": "silu", "scale_embeddings": False, "tie": "none"},
    {"positions": "learned", "max_positions": 64, "activation": "gelu", "tie": "embeddings"},
    {"two": True, "tie": "decoder", "source_end": False, "norm_epsilon": 1e-6},
]
TYPES = ("float32", "int8", "int16", "int32", "float16", "bfloat16")
"""In the order of their numbers in the file."""
Variables = dict[str, tuple[str, np.ndarray[Any, Any]]]

OWN_SEARCH = SEARCH | {"at_limit": "behind", "min_length": 0}
"""That of the runs that are exported."""


def imported(folder: Path, path: Path) -> tuple[Seq2Seq, list[str]]:
    said: list[str] = []
    import_run(folder, str(path), said.append, "ctranslate2")
    return raw(path), said


def variables_of(model: Any, kind: str = "float32") -> Variables:
    """A model's weights by the names of CTranslate2; every weight of two dimensions may be rounded."""
    config, weights = model.config, export_weights.plain_weights(model)
    found: dict[str, torch.Tensor] = {}
    for side, name in (("encoder", "src"), ("decoder", "tgt")):
        of_words = "embeddings_0" if side == "encoder" else "embeddings"
        found[f"{side}/{of_words}/weight"] = weights[f"{name}_embedding.weight"]
        table = weights.get(f"{name}_positions.table")
        halves = config.positions == "sinusoidal_halves"
        found[f"{side}/position_encodings/encodings"] = (
            sinusoids(80, 16, "sinusoidal_halves" if halves else "sinusoidal") if table is None else table
        )
        layers = {own: tensor for own, tensor in weights.items() if own.startswith((f"{side}.", f"{side}_norm."))}
        found |= {export_weights.ctranslate2_names(own)[0]: tensor for own, tensor in layers.items()}
    found |= {f"decoder/projection/{end}": weights[f"output.{end}"] for end in ("weight", "bias")}
    return scalars(config) | {name: one for place, tensor in found.items() for name, one in stored(place, tensor, kind)}


def scalars(config: Any) -> Variables:
    small = {"pre_norm": config.norm == "pre", "scale_embeddings": config.scale_embeddings}
    small |= {"activation": ["relu", "gelu_tanh", "silu", "gelu"].index(config.activation)}
    numbers = {"num_heads": integer(config.heads, "int16")} | {name: integer(one) for name, one in small.items()}
    return {f"{side}/{name}": number for side in ("encoder", "decoder") for name, number in numbers.items()}


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
    config = model.config
    settings = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "decoder_start_token": "<s>"}
    settings |= {"add_source_bos": False, "add_source_eos": config.source_end}
    settings |= {"layer_norm_epsilon": None if config.norm_epsilon == 1e-5 else config.norm_epsilon}
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


@pytest.mark.parametrize("kind", daily(KINDS, 2), ids=str)
def test_what_was_written_is_read_back(kind: dict[str, Any], tmp_path: Path) -> None:
    run_of(kind, tmp_path / "run")
    own = raw(tmp_path / "run")
    found, said = imported(written(tmp_path / "run", tmp_path / "theirs"), tmp_path / "again")
    assert (found.config, found.sizes, len(said)) == (own.config, own.sizes, 2)
    require_near(found, own)
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

    def half_step(name: str, tensor: torch.Tensor) -> torch.Tensor:
        steps = {"float16": tensor.abs() / 2048 + 1e-7, "bfloat16": tensor.abs() / 256}
        if tensor.dim() > 1:
            steps |= {"int8": tensor.abs().amax(1, True) / 254, "int16": tensor.abs().max() / 2048}
        return steps.get(kind, torch.zeros(()))

    require_near(found, own, half_step)
    matrices = [name for name, tensor in own.state_dict().items() if tensor.dim() > 1]
    assert not any(torch.equal(found.state_dict()[name], own.state_dict()[name]) for name in matrices)


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
    given["decoder/start_from_zero_embedding"] = integer(1)
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("written")
    run_of({}, path / "run")
    return written(path / "run", path / "out")


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    (tmp_path / "own").symlink_to(folder.parent / "run")
    return copied(folder, tmp_path)


def with_variables(changes: dict[str, Any], aliases: dict[str, str] | None = None) -> Spoil:
    """The same model with some variables changed, or left out where they are None."""

    def spoil(folder: Path) -> None:
        given = variables_of(raw(folder.parent / "own")) | changes
        kept = {name: one for name, one in given.items() if one is not None}
        (folder / "model.bin").write_bytes(content(kept, aliases))

    return spoil


def without(name: str) -> Spoil:
    return with_variables({name: None})


def both_sides(name: str, value: Any) -> Spoil:
    return with_variables({f"{side}/{name}": value for side in ("encoder", "decoder")})


def byte(old: bytes, new: bytes) -> Spoil:
    def spoil(folder: Path) -> None:
        given = (folder / "model.bin").read_bytes()
        assert given.count(old) == 1
        (folder / "model.bin").write_bytes(given.replace(old, new))

    return spoil


def head(*given: Any) -> Spoil:
    return lambda folder: (folder / "model.bin").write_bytes(content({}, None, given))  # type: ignore[arg-type]


def cut(size: int) -> Spoil:
    return lambda folder: os.truncate(folder / "model.bin", size)


def words(text: str) -> Spoil:
    return lambda folder: (folder / "shared_vocabulary.json").write_text(text)


def integer(value: int, kind: str = "int8") -> tuple[str, np.ndarray[Any, Any]]:
    return kind, np.array(value, kind)


def floats(*shape: int, value: float = 1.0) -> tuple[str, np.ndarray[Any, Any]]:
    return "float32", np.full(shape, value, np.float32)


ATTENTION, FFN = "encoder/layer_0/self_attention", "encoder/layer_0/ffn/linear_0/weight"
POSITIONS = "encoder/position_encodings/encodings"
SHAPE = text(FFN) + struct.pack("<BII", 2, 24, 16)
EIGHT = "int8", np.ones((24, 16), np.int8)
HOSTILE: dict[str, tuple[Spoil, str]] = {
    "a cut file": (cut(3000), "model.bin.*damaged or cut"),
    "an empty file": (cut(0), "model.bin: ends within.*cut"),
    "no file": (gone("model.bin"), "model.bin: missing"),
    "a pipe": (pipe("model.bin"), "model.bin: missing, or no file"),
    "a longer file": (lambda at: (at / "model.bin").open("ab").write(b"x"), "1 bytes after its end"),
    "a lying shape": (byte(SHAPE, SHAPE[:-4] + b"\xff" * 4), "ffn/linear_0/weight.*would have"),
    "many dimensions": (byte(SHAPE, text(FFN) + b"\xff" + SHAPE[-8:]), "model.bin.*damaged or cut"),
    "a type unheard of": (byte(SHAPE + b"\0", SHAPE + b"\x06"), "ffn/linear_0/weight.*type 6"),
    "a name that is none": (byte(text(FFN), text(FFN)[:-1] + b"x"), "holds no name"),
    "another layout": (head(5, "TransformerSpec", 7), "binary version 5"),
    "a decoder alone": (head(6, "TransformerDecoderSpec", 8), "TransformerDecoderSpec.*not supported"),
    "an alias of nothing": (with_variables({}, {"a": "b"}), "'a' stands for 'b'"),
    "one name twice": (with_variables({}, {FFN: FFN}), "is defined twice"),
    "whole numbers": (with_variables({FFN: EIGHT}), "without a scale"),
    "scales of zero": (with_variables({FFN: EIGHT, f"{FFN}_scale": floats(24, value=0.0)}), "0/weight' contains NaN"),
    "rotary": (with_variables({f"{ATTENTION}/rotary_dim": integer(4, "int32")}), "rotary_dim' is 4"),
    "alibi": (with_variables({"decoder/alibi": integer(1)}), "decoder/alibi' is 1"),
    "positions of its own": (without(POSITIONS), "position_encodings/encodings' is missing"),
    "narrow positions": (with_variables({POSITIONS: floats(9, 8)}), "position_encodings/encodings' has shape"),
    "an activation": (both_sides("activation", integer(4)), "activation 4, which is not supported.*relu"),
    "unlike sides": (with_variables({"decoder/pre_norm": integer(0)}), "'pre_norm' of encoder and decoder"),
    "an odd scale": (with_variables({"encoder/scale_embeddings": floats(value=3.0)}), "scale_.*3.0"),
    "unlike scales": (with_variables({"encoder/scale_embeddings": integer(0)}), "scale_embeddings.*1.0, 4.0"),
    "many layers": (with_variables({"encoder/layer_999999999/x": floats(1)}), "model.bin.*encoder_layers"),
    "no words": (with_variables({"encoder/embeddings_0/weight": floats(60)}), "embeddings_0/weight"),
    "more words": (words('["</s>"]'), "1 source tokens.*has 60"),
    "words that are none": (words("[1]"), "not a list of tokens"),
    "no vocabulary": (gone("shared_vocabulary.json"), "no source_vocabulary.json"),
    "no pieces": (gone("source.spm", "target.spm"), "source.spm.*not words"),
    "half the pieces": (gone("target.spm"), "target.spm: is missing"),
    "no config": (gone("config.json"), "config.json: is missing"),
    "a start of one's own": (changed("config.json", decoder_start_token=None), "config.json.*decoder_start_token"),
    "a start unheard of": (changed("config.json", decoder_start_token="<2de>"), "<2de>.*no source token"),
    "a beginning": (changed("config.json", add_source_bos=True), "config.json.*add_source_bos"),
    "an epsilon": (changed("config.json", layer_norm_epsilon=-1e-6), "norm_epsilon.*greater than 0"),
    "another unknown": (changed("config.json", unk_token="[UNK]"), "config.json.*unk_token"),
    "a lying key": (changed("config.json", nmtkit={"tokenizer": {"lowercase": 9}}), "lowercase"),
}


@pytest.mark.parametrize("harm", HOSTILE)
def test_a_file_that_lies_is_refused_by_name_and_leaves_nothing(harm: str, copy: Path, tmp_path: Path) -> None:
    spoil, match = HOSTILE[harm]
    spoil(copy)
    import_refused(copy, match, tmp_path, "ctranslate2")


@needs("ctranslate2")
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_out_by_ctranslate2_and_in_again_is_the_same_run(kind: dict[str, Any], tmp_path: Path) -> None:
    run = run_of(kind, tmp_path / "run")
    before, own = opened(tmp_path / "run"), raw(tmp_path / "run")
    export_run(run, "ctranslate2", tmp_path / "out")
    found, _ = imported(tmp_path / "out", tmp_path / "again")
    assert found.config == own.config
    require_near(found, own)
    assert opened(tmp_path / "again", search_settings=OWN_SEARCH).translate(SOURCES) == before.translate(SOURCES)


@needs("ctranslate2")
@needs("huggingface")
@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("untied", [False, True], ids=["tied", "untied, with bias"])
def test_a_marian_model_scores_as_ctranslate2_does(untied: bool, quantization: str | None, tmp_path: Path) -> None:
    """The decoder begins with zeros, and <pad> is no token."""
    kind = {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False} if untied else {"bias": False}
    marian(tmp_path / "theirs", kind, pad_last=True)
    library = export_weights.library("huggingface")
    converter = export_weights.library("ctranslate2").converters.TransformersConverter(
        str(tmp_path / "theirs"), copy_files=["source.spm", "target.spm"]
    )
    converter.convert(str(tmp_path / "ct2"), quantization=quantization)
    imported(tmp_path / "ct2", tmp_path / "run")
    ours = opened(tmp_path / "run")
    engine = export_weights.library("ctranslate2").Translator(str(tmp_path / "ct2"), compute_type="float32")
    tokenizer = library.MarianTokenizer.from_pretrained(tmp_path / "theirs")
    names = tokenizer.convert_ids_to_tokens
    sources = [names(row) for row in tokenizer(SOURCES).input_ids]
    targets = [names(row)[:-1] for row in tokenizer(text_target=TARGETS).input_ids]
    scores = engine.score_batch(sources, targets)
    for found, expected in zip(ours.rescore(SOURCES, TARGETS), scores, strict=True):
        assert found.token_log_probs == pytest.approx(expected.log_probs, abs=3e-4)
