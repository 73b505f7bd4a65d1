"""What models of Joey NMT and of OpenNMT-py have in common: their weights by our names, their words by our ids."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from nmtkit.core.errors import CheckpointError
from nmtkit.core.settings import Settings, classes_of
from nmtkit.core.wording import shortened
from nmtkit.data.tokenizer import WORD_START, TokenizerConfig, TokenizerPair, WordTokenizer
from nmtkit.data.vocabulary import SPECIALS, UNK
from nmtkit.interchange.conversion import NEVER
from nmtkit.interchange.importing import cutter_of, table_of
from nmtkit.interchange.marian import Table
from nmtkit.interchange.outside import ForeignWeights, read_foreign
from nmtkit.layers.transformer import sinusoids
from nmtkit.models.base import MODELS, ModelConfig
from nmtkit.runs.saved import sizes_of
from nmtkit.training.weights import weights_of

_NORMAL, _UNUSED = 1, 5
"""Types of a piece in a sentencepiece model."""


@dataclass(frozen=True)
class ForeignWords:
    """The words of one side by the ids of others, and which of these are special."""

    place: Path
    """What a message calls them."""
    tokens: Sequence[str]
    unknown: int
    padding: int
    start: int
    """The decoder's first input."""
    end: int

    def table(self, pieces: bool) -> Table:
        """Our table of them; `pieces` says whether they are those of a sentencepiece model."""
        special = (self.padding, self.start, self.end)
        if not all(0 <= row < len(self.tokens) for row in (*special, self.unknown)):
            raise CheckpointError(f"{self.place}: a special token has an id that none of its {len(self.tokens)} has")
        words = {row: word if pieces or not word else WORD_START + word for row, word in enumerate(self.tokens)}
        words = {row: "" if word == SPECIALS[UNK] else word for row, word in words.items()}
        words[self.unknown] = SPECIALS[UNK]
        return table_of(self.place, words, special, range(len(words)))


def foreign_tokenizers(
    src: ForeignWords, tgt: ForeignWords, models: tuple[Path, Path] | None, lowercase: bool, restrict: bool = False
) -> tuple[TokenizerPair, tuple[Table, Table]]:
    """The tokenizers, and for each side which rows its words have.

    Args:
        src: the words of the source.
        tgt: those of the target.
        models: the sentencepiece models; None takes what stands between white space, words or pieces.
        lowercase: turn text into lower case first.
        restrict: cut into pieces that the vocabulary has, where the model has others as well.
    """
    cut = any(word.startswith(WORD_START) for word in (*src.tokens, *tgt.tokens))
    of_tgt = tgt.table(cut or models is not None)
    one = (*src.tokens,) == (*tgt.tokens,)
    of_src = of_tgt if one else src.table(cut or models is not None)
    how = TokenizerConfig(
        kind="marian" if models else "pieces" if cut else "whitespace",
        vocab_size=max(5, len(of_src.vocabulary)),
        tgt_vocab_size=None if one else max(5, len(of_tgt.vocabulary)),
        joint=one,
        lowercase=lowercase,
        normalization="none",
    )
    if models is None:
        left = WordTokenizer(how, of_src.vocabulary)
        return TokenizerPair(left, left if one else WordTokenizer(how, of_tgt.vocabulary)), (of_src, of_tgt)
    sides = zip(models, (of_src, of_tgt), strict=True)
    pair = [cutter_of(path.parent, path.name, how, table) for path, table in sides]
    if restrict:
        for number, (path, words) in enumerate(zip(models, (src, tgt), strict=True)):
            content = restricted(read_foreign(path.parent, path.name), {*words.tokens})
            pair[number] = type(pair[number])(how, content, pair[number].vocabulary)
    return TokenizerPair(*pair), (of_src, of_tgt)


def piece_models(folder: Path, names: Sequence[str]) -> tuple[tuple[Path, Path] | None, list[str]]:
    """Where the sentencepiece models of both sides lie: of these names, or as OpenNMT-py calls them; or what to say."""
    there = [
        next((folder / one for one in (name, f"{side}.model", "sentencepiece.model") if (folder / one).is_file()), None)
        for name, side in zip(names, ("source", "target"), strict=True)
    ]
    if there[0] and there[1]:
        return (there[0], there[1]), []
    wanted = " or ".join(dict.fromkeys(name for name, path in zip(names, there, strict=True) if not path))
    return None, [
        f"its words are pieces of sentencepiece, and beside it lies no {wanted}: the run reads and writes text that is "
        "cut into pieces, with blanks between; put the models there and import again for plain text"
    ]


def known_keys(cls: type[Settings], given: Any) -> Any:
    """What a group of settings has a key for, of what others have set; the rest says nothing here."""
    if not isinstance(given, Mapping):
        return given
    found = {}
    for key, field in cls.model_fields.items():
        if given.get(key) is not None:
            inner = classes_of(field)
            found[key] = known_keys(cast(type[Settings], inner[0]), given[key]) if inner else given[key]
    return found


# ------------------------------------------------------------------------------------------------------------- weights


@dataclass(frozen=True)
class ForeignModel:
    """The tensors of a model of others, to be put together as ours; every shape is compared before one is read."""

    weights: ForeignWeights
    tokenizers: TokenizerPair
    tables: tuple[Table, Table]

    def fault(self, what: str) -> CheckpointError:
        """What a user is told where the weights are not those of the settings."""
        return CheckpointError(f"{self.weights.path}: {what}; it is damaged, or of another model than its settings say")

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One of theirs, of this shape."""
        given = self.weights.shapes.get(name)
        if given != shape:
            has = f"has shape {list(given)}" if given is not None else "is missing"
            raise self.fault(f"{shortened(name)!r} {has}, and should have {list(shape)}")
        return self.weights.tensor(name)

    def rows(self, name: str, width: int, side: int) -> Tensor:
        """A matrix with a row of so many numbers for each word of a side (0: source), in our order."""
        order = self.tables[side].rows
        return self.tensor(name, (int(order.max()) + 1, width))[order]

    def bias(self, name: str | None) -> Tensor:
        """The bias of the target's words; without a name there is none of theirs."""
        order = self.tables[1]
        found = torch.zeros(len(order.rows))
        if name is not None:
            found = self.tensor(name, (int(order.rows.max()) + 1,))[order.rows]
        found[order.never] = NEVER
        return found

    def tie(self, src: Tensor, tgt: Tensor, output: Tensor) -> str:
        """Which of the three matrices of words are one."""
        one = self.tokenizers.shared and torch.equal(src, tgt)
        ties = {(True, True): "all", (True, False): "embeddings", (False, True): "decoder", (False, False): "none"}
        return ties[one, tgt.shape == output.shape and torch.equal(tgt, output)]

    def check_sinusoids(self, name: str, width: int) -> None:
        """Makes sure that a table of positions, if it is there, holds sinusoids.

        Raises:
            CheckpointError: it does not.
        """
        if name not in self.weights.shapes:
            return
        table = self.weights.tensor(name)
        if table.shape[-1] != width or table.numel() % width:
            raise self.fault(f"{name!r} has shape {list(table.shape)}, and should have {width} numbers a position")
        table = table.reshape(-1, width)
        if not torch.allclose(table, sinusoids(len(table), width), rtol=0.0, atol=2e-3):
            raise self.fault(f"{name!r} holds other positions than sinusoids, which are not read")

    def joined(
        self,
        model: ModelConfig,
        own: Mapping[str, Tensor],
        places: Callable[[str], Sequence[str]],
        read: Collection[str],
        without: Callable[[str], bool] = lambda _: False,
    ) -> dict[str, Tensor]:
        """All our weights.

        Args:
            model: our settings.
            own: what is made already, by our names.
            places: of each other weight, the names of those of theirs that are its parts, row upon row.
            read: names of theirs that `own` was made of.
            without: whether one of theirs may be missing, and is zero then.
        """
        with torch.device("meta"):
            network = MODELS.get(model.kind)(model, sizes_of(self.tokenizers))
        found, used = {}, {*read}
        for name, tensor in weights_of(network).items():
            shape = tuple(tensor.shape)
            if name not in own:
                parts = [*places(name)]
                used |= {*parts}
                each = (shape[0] // len(parts), *shape[1:])
                missing = [part not in self.weights.shapes and without(part) for part in parts]
                found[name] = torch.cat(
                    [
                        torch.zeros(each) if no else self.tensor(part, each)
                        for part, no in zip(parts, missing, strict=True)
                    ]
                )
            else:
                found[name] = own[name]
            if tuple(found[name].shape) != shape:
                raise self.fault(f"{name}: its parts have {list(found[name].shape)} numbers, not {list(shape)}")
        if left := self.weights.shapes.keys() - used:
            raise self.fault(f"{shortened(repr(min(left)))} is not part of such a model")
        return found


def recurrent_place(name: str, decoder: str = "decoder.rnn.{kind}_l{layer}") -> str | None:
    """Where one of our weights of recurrent layers stands in modules `rnn` of torch; None for those of other layers.

    Args:
        name: ours.
        decoder: how they call those of the decoder.
    """
    if found := re.fullmatch(r"encoder\.(forward|backward)_layers\.(\d+)\.(\w+)_l0", name):
        direction, layer, kind = found.groups()
        return f"encoder.rnn.{kind}_l{layer}{'_reverse' if direction == 'backward' else ''}"
    if found := re.fullmatch(r"decoder\.(\w+)_l(\d+)", name):
        return decoder.format(kind=found[1], layer=found[2])
    return None


# ------------------------------------------------------------------------------------------------------- sentencepiece


def restricted(model: bytes, words: Collection[str]) -> bytes:
    """A sentencepiece model that cuts into these pieces and single characters only.

    What `SetVocabulary` of sentencepiece does to a model in memory: other pieces become unused. The model must have
    been opened before, so it is sound.
    """
    out, at = bytearray(), 0
    while at < len(model):
        begin, (field, start, at) = at, _field(model, at)
        piece = model[start:at]
        if field == (1, 2):
            piece = _typed(piece, words)
            out += b"\x0a" + _varint(len(piece)) + piece
        else:
            out += model[begin:at]
    return bytes(out)


def _typed(piece: bytes, words: Collection[str]) -> bytes:
    """One piece, as a message of protobuf: 1 its text, 2 its score, 3 its type."""
    at, text, kind = 0, "", _NORMAL
    while at < len(piece):
        field, start, at = _field(piece, at)
        if field == (1, 2):
            text = piece[start:at].decode("utf-8")
        elif field == (3, 0):
            kind = piece[start]
    if kind not in (_NORMAL, _UNUSED):
        return piece
    return piece + bytes([0x18, _NORMAL if text in words or len(text) == 1 else _UNUSED])  # the last one counts


def _field(message: bytes, at: int) -> tuple[tuple[int, int], int, int]:
    """Number and wire type of the field that begins there, where its content begins and where it ends."""
    key, start = _read_varint(message, at)
    wire = key & 7
    if wire == 0:
        return (key >> 3, wire), start, _read_varint(message, start)[1]
    if wire == 2:
        size, start = _read_varint(message, start)
        return (key >> 3, wire), start, start + size
    return (key >> 3, wire), start, start + (8 if wire == 1 else 4)


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """The number that begins there, and what follows it."""
    value, shift = 0, 0
    while True:
        value |= (message[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if message[at - 1] < 128:
            return value, at


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
