"""Batches of examples, and `Rows`: the one way to pick, repeat and reorder whatever has one row per sentence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nmtkit.core.device import send
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD

Numbers: TypeAlias = npt.NDArray[np.integer[Any]]
Sequences: TypeAlias = Sequence[Sequence[int]] | Sequence[Numbers]

R = TypeVar("R", bound="Rows")


@dataclass(frozen=True)
class Rows:
    """Tensors with the same rows along axis 0: sentences of a batch, or hypotheses of a search.

    Fields may be tensors, tuples of tensors, other `Rows`, None or plain numbers; the last two are shared by all rows.
    """

    def select(self: R, index: Tensor | slice) -> R:
        """Selects rows: by index `(M,)`, int64, repeated or not, or a range as a view."""

        def pick(tensor: Tensor) -> Tensor:
            return tensor[index] if isinstance(index, slice) else tensor.index_select(0, index.to(tensor.device))

        return self._changed(pick, lambda rows: rows.select(index))

    def put(self: R, index: Tensor, other: R) -> None:
        """Writes other rows in place at the distinct indices `(M,)`."""
        assert is_dataclass(self)
        for field in fields(self):
            _put(getattr(self, field.name), getattr(other, field.name), index)

    def mapped(self: R, change: Callable[[Tensor], Tensor]) -> R:
        """Applies a function to all tensors, also those in tuples and other `Rows`."""
        return self._changed(change, lambda rows: rows.mapped(change))

    def tensors(self) -> list[Tensor]:
        """All tensors, also those in tuples and other `Rows`, in a fixed order."""
        tensors: list[Tensor] = []

        def note(tensor: Tensor) -> Tensor:
            tensors.append(tensor)
            return tensor

        self.mapped(note)
        return tensors

    def to(self: R, device: torch.device | str) -> R:
        """Sends the rows to a device, without waiting for it."""
        return self.mapped(lambda tensor: send(tensor, torch.device(device)))

    def _changed(self: R, change: Callable[[Tensor], Tensor], change_rows: Callable[["Rows"], "Rows"]) -> R:
        names = _names(type(self))  # type: ignore[arg-type]
        return type(self)(**{name: _changed(getattr(self, name), change, change_rows) for name in names})


@cache
def _names(kind: type[Any]) -> list[str]:
    """The fields of a class; looked up once, since `dataclasses.fields` is slow."""
    assert is_dataclass(kind)
    return [field.name for field in fields(kind) if field.init]


def _changed(value: Any, change: Callable[[Tensor], Tensor], change_rows: Callable[["Rows"], "Rows"]) -> Any:
    # Within `Rows._changed` it would hold itself, and with it all tensors until Python looks for such cycles.
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_changed(one, change, change_rows) for one in value)
    return change_rows(value) if isinstance(value, Rows) else value


def _put(value: Any, other: Any, index: Tensor) -> None:
    if isinstance(value, Tensor):
        value.index_copy_(0, index, other)
    elif isinstance(value, Rows):
        value.put(index, other)
    elif isinstance(value, tuple):
        for one, another in zip(value, other, strict=True):
            _put(one, another, index)


ABSENT: Any = None
"""The value of a field that only some tasks have. It is typed as if it were there: code of a task that has it need not
ask."""


@dataclass(frozen=True)
class CopySource(Rows):
    """What a model can copy; unknown words of an example have the extended ids V, V+1, ..."""

    extended: Tensor
    """Source ids `(B,S)` in the extended target vocabulary; without unknown words the plain ids."""
    n_oov: int = 0
    """The most unknown words of any example in the batch; X = V + n_oov."""


@dataclass(frozen=True)
class Inputs(Rows):
    """What a model reads of B examples: texts, or rows of numbers."""

    mask: Tensor
    """`(B,S)`, bool: real positions."""
    lengths: Tensor
    """`(B,)`, int64, of texts with EOS; stays on the CPU, for packing."""
    ids: Tensor = ABSENT
    """Ids of texts `(B,S)`, int64."""
    features: Tensor = ABSENT
    """Rows of numbers `(B,S,F)`."""
    segments: Tensor | None = None
    """The segment of each position `(B,S)`, int64, from 0, where a text has several."""
    sentences: Tensor | None = None
    """The positions of the words of each sentence `(B,N,W)`, int64, counted from 1 and padded with 0, where texts have
    several. The EOS of a sentence is none of its words, unless it has no other."""
    copy: CopySource = ABSENT
    """What can be copied."""

    @classmethod
    def of_texts(
        cls, rows: Sequences, extended: Sequences | None = None, n_oov: int = 0, width: int | None = None
    ) -> "Inputs":
        """From the ids of each text, without EOS; `extended` ids default to them, and `width`, S, to the least."""
        padded, mask = _padded(rows, width)
        ids = torch.from_numpy(padded)
        copied = ids if extended is None else torch.from_numpy(_padded(extended, width)[0])
        lengths = torch.from_numpy(mask.sum(1))
        sentences = _sentences(padded == EOS)
        return cls(torch.from_numpy(mask), lengths, ids, sentences=sentences, copy=CopySource(copied, n_oov))

    @classmethod
    def of_features(cls, rows: Sequence[npt.NDArray[np.floating[Any]]], width: int | None = None) -> "Inputs":
        """From the features `(R,F)` of each example, as float32, bytes as 0 to 1; `width`, S, defaults to the least."""
        counts = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        mask = np.arange(width or counts.max()) < counts[:, None]  # (B,S)
        features = np.zeros((*mask.shape, rows[0].shape[1]), dtype=np.float32)
        features[mask] = np.concatenate(rows)
        features /= 255 if rows[0].dtype == np.uint8 else 1
        return cls(torch.from_numpy(mask), torch.from_numpy(counts), features=torch.from_numpy(features))


@dataclass(frozen=True)
class Targets(Rows):
    """The texts that a model learns to write."""

    shifted: Tensor
    """`(B,T)`: BOS, then the target: what the decoder reads."""
    ids: Tensor
    """`(B,T)`: the target, then EOS: what it predicts."""
    extended: Tensor
    """`(B,T)`: `ids` in the extended vocabulary."""
    mask: Tensor
    """`(B,T)`, bool."""

    @classmethod
    def of_texts(cls, rows: Sequences, extended: Sequences | None = None) -> "Targets":
        """From the ids of each text, without BOS and EOS; `extended` ids default to them."""
        ids, mask = _padded(rows)
        shifted = np.full_like(ids, PAD)
        shifted[:, 0] = BOS
        shifted[:, 1:][mask[:, 1:]] = ids[:, :-1][mask[:, 1:]]
        target = torch.from_numpy(ids)
        copied = target if extended is None else torch.from_numpy(_padded(extended)[0])
        return cls(torch.from_numpy(shifted), target, copied, torch.from_numpy(mask))


NEW_WORD = -1
"""In a prefix: any token that begins a word, or the end."""


@dataclass(frozen=True)
class Batch(Rows):
    """A batch of B examples, padded with PAD on the right. Texts end in EOS; what a task does not have is absent."""

    inputs: Inputs = ABSENT
    """What the model reads."""
    targets: Targets = ABSENT
    """What it writes."""
    labels: Tensor = ABSENT
    """Of each example `(B,)`, of each position `(B,S)`, or as an objective makes them `(B,*)`; -1: none."""
    alignment: Tensor | None = None
    """`(B,T,S)`, bool: links between the tokens of targets and inputs; None without an alignment."""
    prefix: Tensor | None = None
    """Forced beginnings of translations: extended ids `(B,P)`, padded with PAD on the right. NEW_WORD may
    follow the last."""
    prompt: Tensor | None = None
    """Texts that a search goes on with: ids `(B,P)` without BOS, padded with PAD on the right."""
    terms: Rows | None = None
    """Terms that translations must contain or avoid; `nmtkit.decoding.constraints.Constraints`."""
    soft: Tensor | None = None
    """Examples in which a hard attention that is trained draws no places: `(B,)`, bool."""
    extras: tuple[Rows, ...] = ()
    """What objectives add for their terms or their models, each in a class of its own."""

    @property
    def size(self) -> int:
        """B."""
        return len(self.tensors()[0])

    @property
    def lengths(self) -> Tensor:
        """How many positions the model reads of each example `(B,)`: of a text with EOS; 0 where it reads nothing."""
        return torch.zeros(self.size, dtype=torch.long) if self.inputs is ABSENT else self.inputs.lengths

    @property
    def reads_text(self) -> bool:
        """Whether the model reads texts."""
        return self.inputs is not ABSENT and self.inputs.ids is not ABSENT

    def extra(self, kind: type[R]) -> R | None:
        """What an objective has added in this class; None if it added nothing."""
        return next((rows for rows in self.extras if isinstance(rows, kind)), None)

    def with_extra(self, rows: Rows) -> "Batch":
        """The batch with something added."""
        return replace(self, extras=(*self.extras, rows))

    def halves(self) -> list["Batch"]:
        """Its first and its second half as views; one example stays whole."""
        middle = self.size // 2
        return [self.select(slice(0, middle)), self.select(slice(middle, None))] if middle else [self]

    @property
    def loss_mask(self) -> Tensor:
        """Where something is to be predicted: positions of targets `(B,T)`, or of `labels`."""
        return self.targets.mask if self.has_targets else self.labels >= 0

    def wanted(self, extended: bool = False) -> Tensor:
        """What is to be predicted, as `loss_mask`: targets, if need be in the extended vocabulary, or labels."""
        if not self.has_targets:
            return self.labels
        return self.targets.extended if extended else self.targets.ids

    @property
    def has_targets(self) -> bool:
        """Whether there are targets."""
        return self.targets is not ABSENT

    @property
    def n_tokens(self) -> int:
        """What is to be predicted: target tokens with EOS, or labels; 0 without any."""
        return int(self.loss_mask.sum()) if self.has_targets or self.labels is not ABSENT else 0

    @property
    def n_oov(self) -> int:
        """X - V: the most unknown words that an example can copy."""
        return self.inputs.copy.n_oov if self.inputs is not ABSENT and self.inputs.copy is not ABSENT else 0

    def to(self, device: torch.device | str) -> "Batch":
        """Sends the batch to a device, except the lengths."""
        moved = super().to(device)
        if self.inputs is ABSENT:
            return moved
        return replace(moved, inputs=replace(moved.inputs, lengths=self.inputs.lengths))


def _padded(rows: Sequences, width: int | None = None) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Appends EOS and pads with PAD: ids and mask `(B,S)`."""
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    mask = np.arange(width or int(lengths.max()) + 1) <= lengths[:, None]  # (B,S)
    ids = np.full(mask.shape, PAD, dtype=np.int64)
    ids[np.arange(len(rows)), lengths] = EOS
    # Row by row from left to right is the order in which a mask writes: no loop over tokens.
    ids[:, :-1][mask[:, 1:]] = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    return ids, mask


def _sentences(ends: npt.NDArray[np.bool_]) -> Tensor | None:
    """`Inputs.sentences` of texts in which sentences have these ends `(B,S)`; None if each text is one sentence."""
    row, last = np.nonzero(ends)
    if len(row) == len(ends):
        return None
    number = np.arange(len(row)) - np.searchsorted(row, row)
    first = np.where(number == 0, 0, np.roll(last, 1) + 1)
    length = np.maximum(last - first, 1)
    words = np.zeros((len(ends), number.max() + 1, length.max()), dtype=np.int64)
    place = np.arange(length.max())
    words[row, number] = (first[:, None] + place + 1) * (place < length[:, None])
    return torch.from_numpy(words)


def collate(
    src: Sequences | None,
    tgt: Sequences | None = None,
    src_extended: Sequences | None = None,
    tgt_extended: Sequences | None = None,
    n_oov: int = 0,
    alignment: Sequences | None = None,
    width: int | None = None,
    features: Sequence[npt.NDArray[np.floating[Any]]] | None = None,
    labels: Sequence[Numbers] | None = None,
) -> Batch:
    """Makes a batch on the CPU from the ids of each example, without BOS and EOS; without sources from its features.

    Extended ids default to the plain ones. The alignment of an example is a row of links between its tokens: source
    position, target position, source position, ... `width` is S; by default that of the longest source. Labels are a
    row of ids, one for each source token, or `(1,1)`, one for the example.
    """
    inputs = targets = ABSENT
    if src is not None:
        inputs = Inputs.of_texts(src, src_extended, n_oov, width)
    elif features is not None:
        inputs = Inputs.of_features(features, width)
    if tgt is not None:
        assert len(tgt) > 0, "a batch has at least one example"
        targets = Targets.of_texts(tgt, tgt_extended)
    links = None if alignment is None else _linked(alignment, targets.ids.shape[1], inputs.ids.shape[1])
    return Batch(inputs, targets, ABSENT if labels is None else _label_ids(labels, inputs.mask.shape[1]), links)


def _label_ids(labels: Sequence[Numbers], width: int) -> Tensor:
    """Labels `(B,)` of examples, or `(B,S)` of the positions of inputs of width S; -1 where there is none."""
    if labels[0].ndim == 2:
        return torch.from_numpy(np.concatenate(labels)[:, 0].astype(np.int64))
    padded = np.full((len(labels), width), -1, dtype=np.int64)
    for row, ids in zip(padded, labels, strict=True):
        row[: len(ids)] = ids
    return torch.from_numpy(padded)


def _linked(alignment: Sequences, width: int, src_width: int) -> Tensor:
    """Links as a table `(B,T,S)` for target width T and source width S."""
    counts = np.fromiter(map(len, alignment), dtype=np.int64, count=len(alignment)) // 2
    links = np.concatenate([np.asarray(row, dtype=np.int64) for row in alignment]).reshape(-1, 2)
    linked = np.zeros((len(alignment), width, src_width), dtype=bool)
    linked[np.repeat(np.arange(len(alignment)), counts), links[:, 1], links[:, 0]] = True
    return torch.from_numpy(linked)
