"""Imports encoder-decoder Transformers of CTranslate2.

The decoder's first input is the row of `decoder_start_token`, or zeros, as in Marian; a row of zeros behind the last
one, which is never written, then stands for BOS.

`model.bin` is read with numpy: no code is run, and every length is checked against the file's size. Its binary version
6, little-endian (`python/ctranslate2/specs/model_spec.py` writes it):

    u32 version, text specification, u32 revision
    u32 count of variables; of each: text name, u8 rank, u32 dimensions, u8 type, u32 bytes, the numbers
    u32 count of aliases; of each: text alias, text name

A text is a u16 length and UTF-8 that ends in a zero byte, which the length counts. An integer matrix Q has scales s,
one for each row or one for all, and stands for Q / s.
"""

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nmtkit.convert.export_weights import CTRANSLATE2_ACTIVATIONS, ctranslate2_names
from nmtkit.convert.external_files import ExternalSettings, ExternalWeights, read_json, read_text, unsupported
from nmtkit.convert.import_weights import CheckpointConverter, ImportedModel
from nmtkit.convert.importing import READERS, exported_task, license_of
from nmtkit.convert.vocabulary import Maps, build_tokenizers, map_vocabulary
from nmtkit.core.errors import CheckpointError, shorten
from nmtkit.core.settings import parse
from nmtkit.data.tokenizers.tokenizer import WORD_START, Tokenizer
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import BOS, PAD, SPECIALS
from nmtkit.models.transformer import TransformerConfig

_VERSION, _SPECIFICATION, _REVISION = 6, "TransformerSpec", 7
_TYPES = {"float32": "<f4", "int8": "<i1", "int16": "<i2", "int32": "<i4", "float16": "<f2", "bfloat16": "<u2"}
"""Number types in the order of their codes, with numpy's types."""
_WHOLE = ("int8", "int16", "int32")


@dataclass(frozen=True)
class CTranslate2Model:
    """The content of a file; aliases are names like others."""

    weights: ExternalWeights
    """Vectors and matrices; integer ones divided by their scales, which are left out."""
    scalars: dict[str, int | float]
    """Settings of the model; whole numbers and flags are `int`."""
    quantized: str
    """Type of the integer matrices; empty if there are none."""


@dataclass(frozen=True)
class _Variable:
    shape: tuple[int, ...]
    kind: str
    content: npt.NDArray[np.uint8]
    """The bytes of the tensor, read from the file when they are needed."""

    def floats(self) -> Tensor:
        numbers = self.content.view(_TYPES[self.kind])
        if self.kind == "bfloat16":  # the upper half of a float32
            numbers = (numbers.astype("<u4") << 16).view("<f4")
        return torch.from_numpy(numbers.astype(np.float32)).reshape(self.shape)


class _Reader:
    """Reads a file in sequence, never beyond its end."""

    def __init__(self, path: Path) -> None:
        self.path, self._at = path, 0
        self._content = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)

    def fault(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {what}; it is damaged or cut: download it again")

    def bytes(self, count: int) -> npt.NDArray[np.uint8]:
        if count > len(self._content) - self._at:
            raise self.fault(f"ends within {count:,} bytes at byte {self._at:,}")
        self._at += count
        return self._content[self._at - count : self._at]

    def number(self, kind: str) -> int:
        return int(struct.unpack(f"<{kind}", self.bytes(struct.calcsize(f"<{kind}")).tobytes())[0])

    def text(self) -> str:
        raw = self.bytes(self.number("H")).tobytes()
        if not raw.endswith(b"\0") or b"\0" in raw[:-1]:
            raise self.fault(f"holds no name before byte {self._at:,}")
        return raw[:-1].decode("utf-8", "replace")

    def variable(self, name: str) -> _Variable:
        shape = tuple(self.number("I") for _ in range(self.number("B")))
        code, size = self.number("B"), self.number("I")
        if code >= len(_TYPES):
            raise self.fault(f"{shorten(repr(name))} has numbers of type {code}, and the types are 0 to 5")
        kind = [*_TYPES][code]
        expected = math.prod(shape) * np.dtype(_TYPES[kind]).itemsize
        if size != expected:
            of = shorten(str([*shape]))
            raise self.fault(f"{shorten(repr(name))} of shape {of} would have {expected:,} bytes, not {size:,}")
        return _Variable(shape, kind, self.bytes(size))

    def end(self) -> None:
        if self._at != len(self._content):
            raise self.fault(f"has {len(self._content) - self._at:,} bytes after its end")


def read_ctranslate2_file(path: Path) -> CTranslate2Model:
    """The content of `model.bin`; numbers are read when they are needed."""
    if not path.is_file():  # a pipe would be waited for
        raise CheckpointError(f"{path}: missing, or no file; name the folder that CTranslate2's converter wrote")
    variables = _variables(_Reader(path))
    integers = {name for name, one in variables.items() if one.shape and one.kind in _WHOLE}
    for name in sorted(integers):
        scale = variables.get(f"{name}_scale")
        if scale is None or scale.shape not in ((), variables[name].shape[:1]):
            what = f"{shorten(repr(name))} holds {variables[name].kind} numbers without a scale for each row"
            raise unsupported(path, what, "convert with another --quantization")

    def read(name: str) -> Tensor:
        numbers = variables[name].floats()
        if name not in integers:
            return numbers
        return numbers / variables[f"{name}_scale"].floats().reshape(-1, *[1] * (numbers.dim() - 1))

    scales = {f"{name}_scale" for name in integers}
    kept = {name: one for name, one in variables.items() if name not in scales}
    shapes = {name: one.shape for name, one in kept.items() if one.shape}
    scalars = {
        name: (int if one.kind in _WHOLE else float)(one.floats()) for name, one in kept.items() if not one.shape
    }
    quantized = min((variables[name].kind for name in integers), default="")
    return CTranslate2Model(ExternalWeights(path, shapes, read), scalars, quantized)


def _variables(reader: _Reader) -> dict[str, _Variable]:
    """All variables by name; an alias of a matrix has its scales too."""
    version = reader.number("I")
    if version != _VERSION:
        remedy = "convert the model with CTranslate2 3 or 4"
        raise unsupported(reader.path, f"binary version {version}, not {_VERSION}", remedy)
    specification, revision = reader.text(), reader.number("I")
    if (specification, revision) != (_SPECIFICATION, _REVISION):
        remedy = f"supported: {_SPECIFICATION} of revision {_REVISION}, an encoder and a decoder"
        raise unsupported(reader.path, f"a {shorten(specification)} of revision {revision}", remedy)
    variables: dict[str, _Variable] = {}

    def add(name: str, one: _Variable) -> None:
        if name in variables:
            raise reader.fault(f"{shorten(repr(name))} is defined twice")
        variables[name] = one

    for _ in range(reader.number("I")):
        name = reader.text()
        add(name, reader.variable(name))
    for _ in range(reader.number("I")):
        alias, name = reader.text(), reader.text()
        if name not in variables:
            raise reader.fault(f"{shorten(repr(alias))} stands for {shorten(repr(name))}, which is missing")
        add(alias, variables[name])
        if f"{name}_scale" in variables:
            add(f"{alias}_scale", variables[f"{name}_scale"])
    reader.end()
    return variables


_ACTIVATIONS = {number: name for name, number in CTRANSLATE2_ACTIVATIONS.items()}
_START = "decoder/start_from_zero_embedding"
_ALIGNMENT = {"decoder/alignment_layer": -1, "decoder/alignment_heads": 1}
"""Values that these have in a model that was not trained to align."""
_NO_EFFECT = {"encoder/embeddings_merge", "decoder/alibi_use_positive_positions", "decoder/scale_alibi"}
"""Numbers without effect where a side has one embedding and no alibi."""
_MUST_BE_ZERO = {"encoder/multi_query_attention", "decoder/alibi"}
_SAME_ON_BOTH_SIDES = ("num_heads", "pre_norm", "activation")
_EMBEDDINGS = ("encoder/embeddings_0/weight", "decoder/embeddings/weight")
_OUTPUT = "decoder/projection"
_POSITIONS = {
    "src_positions.table": "encoder/position_encodings/encodings",
    "tgt_positions.table": "decoder/position_encodings/encodings",
}


class CTranslate2Config(ExternalSettings):
    """The keys of `config.json` that are read."""

    unk_token: Literal["<unk>"] = "<unk>"
    eos_token: str = "</s>"
    decoder_start_token: str
    add_source_bos: Literal[False] = False
    add_source_eos: bool = False
    layer_norm_epsilon: float = 1e-5


@READERS.register("ctranslate2")
def read_ctranslate2(folder: Path) -> ImportedModel:
    """Converts a folder with config.json, model.bin, vocabularies and, but for words, source.spm and target.spm."""
    place = folder / "config.json"
    given = read_json(place, dict)
    config = parse(CTranslate2Config, given, str(place))
    file = read_ctranslate2_file(folder / "model.bin")
    maps = _maps(folder, config, file)
    tokenizers, notes = _tokenizers(folder, given, maps)
    converter = CheckpointConverter(file.weights.path, file.weights, tokenizers, maps)
    model, tensors = _convert(file, converter, config)
    if file.quantized:
        differs = f"what CTranslate2 computes in {file.quantized} may differ a little"
        notes.append(f"its {file.quantized} weights became float32; {differs}")
    search = {
        "beam_size": 2,
        "at_limit": "compete",
        "min_length": 1,
        "max_length": min(256, model.max_positions) if model.positions == "learned" else 256,
        "max_length_ratio": 0.0,
    }
    origin = exported_task(given), license_of(folder)
    return ImportedModel("ctranslate2", "CTranslate2", model, tensors, tokenizers, search, notes, *origin)


def _maps(folder: Path, config: CTranslate2Config, file: CTranslate2Model) -> Maps:
    shared, maps = _tokens(folder, "shared_vocabulary"), []
    for side, name in zip(("source", "target"), _EMBEDDINGS, strict=True):
        tokens = _tokens(folder, f"{side}_vocabulary") if shared is None else shared
        if tokens is None:
            raise CheckpointError(
                f"{folder}: no {side}_vocabulary.json or shared_vocabulary.json; name the whole folder"
            )
        rows = _shape(file, name)[0]
        if len(tokens) != rows:
            raise CheckpointError(f"{folder}: {len(tokens):,} {side} tokens, and model.bin has {rows:,}")
        ids = {token: row for row, token in reversed([*enumerate(tokens)])}
        end, unknown = ids.get(config.eos_token), ids.get(config.unk_token)
        decodes = shared is not None or side == "target"
        start = ids.get(config.decoder_start_token) if decodes else ids.get(SPECIALS[BOS], end)
        if end is None or start is None or unknown is None:
            names = (config.eos_token, config.decoder_start_token, config.unk_token)
            raise CheckpointError(f"{folder}: one of {shorten(repr(names))} is no {side} token")
        start = rows if decodes and file.scalars.get(_START) else start
        special = (ids.get(SPECIALS[PAD], unknown), start, end)
        maps.append(map_vocabulary(folder, dict(enumerate(tokens)), special, rows))
    return (maps[0] if shared is None else maps[1], maps[1])


def _tokens(folder: Path, name: str) -> list[str] | None:
    """The tokens of a vocabulary file by their ids: a JSON list, or lines; None if there is no such file."""
    path = folder / f"{name}.json"
    if path.exists():
        tokens = read_json(path, list)
        if not all(type(token) is str for token in tokens):
            raise CheckpointError(f"{path}: not a list of tokens")
        return tokens
    path = path.with_suffix(".txt")
    return read_text(path).removesuffix("\n").split("\n") if path.exists() else None


def _tokenizers(folder: Path, given: Mapping[str, Any], maps: Maps) -> tuple[Tokenizers, list[str]]:
    """Tokenizers by the sentencepiece models beside the model, or of words; and notes for the user."""
    own = given.get("nmtkit")
    exported = own.get("tokenizer") if isinstance(own, dict) else None
    exported = exported if isinstance(exported, dict) else {}
    more = {key: exported[key] for key in ("lowercase", "normalization") if key in exported}
    place, models, notes = folder / "config.json", [folder / "source.spm", folder / "target.spm"], list[str]()
    if isinstance(tags := exported.get("specials"), list) and tags:
        what = shorten(", ".join(map(str, tags)))
        notes.append(f"ignored in {place.name}: specials; no text is cut into {what}")
    if any(path.exists() for path in models):
        return build_tokenizers("marian", maps, place, models, **more), notes
    if (kind := exported.get("kind")) in ("word", "whitespace", "pieces", "wordpiece"):
        return build_tokenizers(str(kind), maps, place, **more), notes
    pair = build_tokenizers("word", maps, place, **more)
    if exported or not all(map(_cuts_words, (pair.src, pair.tgt))):
        raise CheckpointError(
            f"{folder}: source.spm and target.spm are missing, and its tokens are not words as nmtkit splits them; put "
            "the SentencePiece models that the model was trained with into the folder, under these names"
        )
    return pair, ["source.spm is not in the folder, and its tokens look like words: text is cut into words"]


def _cuts_words(tokenizer: Tokenizer) -> bool:
    """Whether the vocabulary looks like words: each stays whole when it is cut, and few begin within another."""
    tokens = [token for token in tokenizer.vocabulary.tokens[len(SPECIALS) :] if not token.startswith("<")]
    words = [token.removeprefix(WORD_START) for token in tokens]
    whole = all(tokenizer.tokens(word) == [WORD_START + word] for word in words)
    beginnings = [token.startswith(WORD_START) for token, word in zip(tokens, words, strict=True) if word.isalpha()]
    return whole and 4 * sum(beginnings) > 3 * len(beginnings)


def _shape(file: CTranslate2Model, name: str) -> tuple[int, ...]:
    shape = file.weights.shapes.get(name, ())
    if len(shape) != 2:
        raise CheckpointError(f"{file.weights.path}: {name!r} is missing, or is no matrix")
    return shape


def _convert(
    file: CTranslate2Model, converter: CheckpointConverter, config: CTranslate2Config
) -> tuple[TransformerConfig, dict[str, Tensor]]:
    numbers = _numbers(file)
    width = _shape(file, _EMBEDDINGS[0])[1]
    layers = {}
    for side in ("encoder", "decoder"):
        matches = (re.match(rf"{side}/layer_(\d+)/", name) for name in file.weights.shapes)
        layers[f"{side}_layers"] = 1 + max((int(match[1][:9]) for match in matches if match), default=-1)
    bias = converter.tensor(f"{_OUTPUT}/bias", (converter.vocabularies[1].size,), optional=True)
    own = converter.word_weights(*_EMBEDDINGS, f"{_OUTPUT}/weight", width, width, bias)
    for name in _POSITIONS.values():
        if name not in file.weights.shapes:
            raise converter.fault(f"{name!r} is missing: CTranslate2 then takes sinusoids of other wavelengths")
    positions, tables = converter.positions(_POSITIONS, width)
    settings = {
        "hidden_size": width,
        "feed_forward_size": _shape(file, "encoder/layer_0/ffn/linear_0/weight")[0],
        "heads": numbers["num_heads"],
        "norm": "pre" if numbers["pre_norm"] else "post",
        "norm_epsilon": config.layer_norm_epsilon,
        "scale_embeddings": _scales_embeddings(file, width),
        "activation": _ACTIVATIONS[int(numbers["activation"])],
        # Marian's sources always end with </s>, which its tokenizer adds.
        "source_end": config.add_source_eos or bool(file.scalars.get(_START)),
    }
    layer, heads = (file.scalars.get(name, default) for name, default in _ALIGNMENT.items())
    if layer >= 0:
        settings |= {"alignment_layer": int(layer) + 1, "alignment_heads": 1 if heads == 1 else "mean"}
    return converter.convert(
        TransformerConfig,
        settings | layers | positions,
        own | tables,
        ctranslate2_names,
        optional=lambda name: name.endswith("/bias"),
    )


def _numbers(file: CTranslate2Model) -> dict[str, int | float]:
    """The numbers that encoder and decoder have alike; those without counterpart here are refused."""
    path = file.weights.path
    sides = {f"{side}/{name}" for side in ("encoder", "decoder") for name in (*_SAME_ON_BOTH_SIDES, "scale_embeddings")}
    for name, value in file.scalars.items():
        if name not in sides | _NO_EFFECT | _MUST_BE_ZERO | {_START, *_ALIGNMENT} or (name in _MUST_BE_ZERO and value):
            raise unsupported(path, f"{shorten(repr(name))} is {value}")
    numbers = {}
    for name in _SAME_ON_BOTH_SIDES:
        left, right = (file.scalars.get(f"{side}/{name}") for side in ("encoder", "decoder"))
        if left is None or left != right:
            raise unsupported(path, f"'{name}' of encoder and decoder differ or are missing ({left} and {right})")
        numbers[name] = left
    if numbers["activation"] not in _ACTIVATIONS:
        raise unsupported(path, f"activation {numbers['activation']}", f"supported: {_ACTIVATIONS}")
    return numbers


def _scales_embeddings(file: CTranslate2Model, width: int) -> bool:
    """By a flag, which is true where it is missing, or by the number itself."""
    root, scales = math.sqrt(width), []
    for side in ("encoder", "decoder"):
        scale = file.scalars.get(f"{side}/scale_embeddings", 1)
        scales.append((root if scale else 1.0) if isinstance(scale, int) else scale)
    if scales == [1.0, 1.0]:
        return False
    if not all(math.isclose(scale, root, rel_tol=1e-3) for scale in scales):
        what = f"'scale_embeddings' of encoder and decoder are {scales}, not both 1 or the square root of the width"
        raise unsupported(file.weights.path, what)
    return True
