"""Batches of examples, and `Rows`, their base class, which selects, repeats and reorders rows.

Shapes: B examples, S source positions, T target positions, F features per row. A text that consists of several
sentences has N sentences of up to W words. All texts are padded with PAD on the right.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nmtkit.core.device import send
from nmtkit.data.batches.shards import row_lengths
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD

Numbers: TypeAlias = npt.NDArray[np.integer[Any]]
Sequences: TypeAlias = Sequence[Sequence[int]] | Sequence[Numbers]

R = TypeVar("R", bound="Rows")


@dataclass(frozen=True)
class Rows:
    """Tensors with the same rows along axis 0: sentences of a batch, or hypotheses of a search.

    Fields may be tensors, tuples of tensors, nested `Rows`, None or plain numbers; a number is shared by all rows.
    """

    def select(self: R, index: Tensor | slice) -> R:
        """Selects rows by an int64 index `(M,)`, which may repeat rows, or by a slice, which yields views."""

        def pick(tensor: Tensor) -> Tensor:
            if isinstance(index, slice):
                return tensor[index]
            return tensor.index_select(0, index.to(tensor.device))

        return self._changed(pick, lambda rows: rows.select(index))

    def put(self: R, index: Tensor, other: R) -> None:
        """Overwrites the rows at the distinct indices `(M,)` with the rows of `other`."""
        assert is_dataclass(self)
        for field in fields(self):
            _put(getattr(self, field.name), getattr(other, field.name), index)

    def mapped(self: R, change: Callable[[Tensor], Tensor]) -> R:
        """Applies a function to all tensors, including those in tuples and nested `Rows`."""
        return self._changed(change, lambda rows: rows.mapped(change))

    def tensors(self) -> list[Tensor]:
        """Returns all tensors, including those in tuples and nested `Rows`, in a fixed order."""
        tensors: list[Tensor] = []

        def note(tensor: Tensor) -> Tensor:
            tensors.append(tensor)
            return tensor

        self.mapped(note)
        return tensors

    def to(self: R, device: torch.device | str) -> R:
        """Sends the rows to a device without waiting for the transfer."""
        return self.mapped(lambda tensor: send(tensor, torch.device(device)))

    def _changed(
        self: R, change: Callable[[Tensor], Tensor], change_rows: Callable[["Rows"], "Rows"]
    ) -> R:
        names = _field_names(type(self))  # type: ignore[arg-type]  # mypy: a class variable of type R is not Hashable
        values = {name: _changed_value(getattr(self, name), change, change_rows) for name in names}
        return type(self)(**values)


@cache
def _field_names(kind: type[Any]) -> list[str]:
    """Returns the names of a dataclass's fields; cached because `dataclasses.fields` is slow."""
    assert is_dataclass(kind)
    return [field.name for field in fields(kind) if field.init]


def _changed_value(
    value: Any, change: Callable[[Tensor], Tensor], change_rows: Callable[["Rows"], "Rows"]
) -> Any:
    # Not a closure in `Rows._changed`: a recursive closure is a reference cycle and would keep its tensors in memory
    # until Python's garbage collector runs.
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_changed_value(item, change, change_rows) for item in value)
    if isinstance(value, Rows):
        return change_rows(value)
    return value


def _put(value: Any, other: Any, index: Tensor) -> None:
    if isinstance(value, Tensor):
        value.index_copy_(0, index, other)
    elif isinstance(value, Rows):
        value.put(index, other)
    elif isinstance(value, tuple):
        for item, other_item in zip(value, other, strict=True):
            _put(item, other_item, index)


ABSENT: Any = None
"""Value of fields that a task does not use. Its type is Any, so that code for tasks that use a field need not check for
None."""


@dataclass(frozen=True)
class CopySource(Rows):
    """Source words that a model can copy; the unknown words of an example have the extended ids V, V+1, ..."""

    extended: Tensor
    """Source ids `(B, S)` in the extended target vocabulary."""
    n_oov: int = 0
    """Largest number of unknown words in an example of the batch; the extended vocabulary has size X = V + n_oov."""


@dataclass(frozen=True)
class Inputs(Rows):
    """Model inputs for B examples: texts, or rows of features."""

    mask: Tensor
    """`(B, S)`, bool: True at positions that are not padding."""
    lengths: Tensor
    """Lengths `(B,)`, including EOS, int64; they stay on the CPU, because packed sequences require them there."""
    ids: Tensor = ABSENT
    """Token ids `(B, S)`, int64."""
    features: Tensor = ABSENT
    """Features `(B, S, F)`, float32."""
    segments: Tensor | None = None
    """Segment number of each position `(B, S)`, int64, counted from 0; None if every text is a single segment."""
    sentences: Tensor | None = None
    """Positions of the words of each sentence `(B, N, W)`, int64, counted from 1 and padded with 0; None if every text
    is a single sentence. EOS counts as a word only if the sentence has no other words."""
    copy: CopySource = ABSENT
    """Source words that can be copied."""

    @classmethod
    def of_texts(
        cls,
        rows: Sequences,
        extended: Sequences | None = None,
        n_oov: int = 0,
        width: int | None = None,
    ) -> "Inputs":
        """Makes inputs from the ids of each text, excluding EOS.

        `extended` ids default to the plain ids. `width` is S; by default, the length of the longest text including EOS.
        """
        ids, mask = _padded(rows, width)
        sentences = _sentences(ids == EOS)
        plain = torch.from_numpy(ids)  # (B, S)
        copied = plain  # (B, S)
        if extended is not None:
            extended_ids, _ = _padded(extended, width)
            copied = torch.from_numpy(extended_ids)
        return cls(
            mask=torch.from_numpy(mask),
            lengths=torch.from_numpy(mask.sum(1)),
            ids=plain,
            sentences=sentences,
            copy=CopySource(copied, n_oov),
        )

    @classmethod
    def of_features(
        cls, rows: Sequence[npt.NDArray[np.floating[Any]]], width: int | None = None
    ) -> "Inputs":
        """Makes inputs from the features `(R, F)` of each example.

        Features are converted to float32; bytes are scaled to 0..1. `width` is S; by default, the largest R.
        """
        lengths = row_lengths(rows)  # (B,)
        if width is None:
            width = int(lengths.max())
        positions = np.arange(width)  # (S,)
        mask = positions < lengths[:, None]  # (B, S)
        n_features = rows[0].shape[1]
        features = np.zeros((len(rows), width, n_features), dtype=np.float32)  # (B, S, F)
        # Assigning through a boolean mask fills positions in row-major order, that is, example by example, which
        # matches the order of the concatenated rows.
        features[mask] = np.concatenate(rows)
        if rows[0].dtype == np.uint8:
            features /= 255
        return cls(
            mask=torch.from_numpy(mask),
            lengths=torch.from_numpy(lengths),
            features=torch.from_numpy(features),
        )


@dataclass(frozen=True)
class Targets(Rows):
    """Texts that a model learns to generate."""

    shifted: Tensor
    """Decoder inputs `(B, T)`: BOS, then the target."""
    ids: Tensor
    """Ids that the decoder predicts `(B, T)`: the target, then EOS."""
    extended: Tensor
    """`ids` in the extended vocabulary `(B, T)`."""
    mask: Tensor
    """`(B, T)`, bool: True at positions that are not padding."""

    @classmethod
    def of_texts(cls, rows: Sequences, extended: Sequences | None = None) -> "Targets":
        """Makes targets from the ids of each text, excluding BOS and EOS; `extended` ids default to the plain ids."""
        ids, mask = _padded(rows)
        shifted = np.full_like(ids, PAD)  # (B, T)
        shifted[:, 0] = BOS
        previous = ids[:, :-1]  # (B, T - 1)
        shifted[:, 1:] = np.where(mask[:, 1:], previous, PAD)
        plain = torch.from_numpy(ids)  # (B, T)
        copied = plain  # (B, T)
        if extended is not None:
            extended_ids, _ = _padded(extended)
            copied = torch.from_numpy(extended_ids)
        return cls(
            shifted=torch.from_numpy(shifted),
            ids=plain,
            extended=copied,
            mask=torch.from_numpy(mask),
        )


NEW_WORD = -1
"""In a prefix, matches any token that begins a word, or the end of the text."""


@dataclass(frozen=True)
class Batch(Rows):
    """A batch of B examples. Texts end with EOS; fields that a task does not use are `ABSENT`."""

    inputs: Inputs = ABSENT
    """Texts or features that the model reads."""
    targets: Targets = ABSENT
    """Texts that the model generates."""
    labels: Tensor = ABSENT
    """Labels of examples `(B,)` or positions `(B, S)`, or an objective's labels `(B, *)`; -1 means no label."""
    alignment: Tensor | None = None
    """Links between target and source tokens `(B, T, S)`, bool; None if there is no alignment."""
    prefix: Tensor | None = None
    """Prefixes that the translations must begin with: extended ids `(B, P)`, padded with PAD on the right. NEW_WORD may
    follow the last id."""
    prompt: Tensor | None = None
    """Texts that a search continues: ids `(B, P)` without BOS, padded with PAD on the right."""
    terms: Rows | None = None
    """Terms that translations must contain or avoid; see `nmtkit.decoding.constraints.Constraints`."""
    soft: Tensor | None = None
    """`(B,)`, bool: True for examples that use soft attention instead of sampled positions while hard attention is
    trained."""
    extras: tuple[Rows, ...] = ()
    """Data that objectives add for their losses or models; each item has a different class."""

    @property
    def size(self) -> int:
        """Number of examples, B."""
        return len(self.tensors()[0])

    @property
    def lengths(self) -> Tensor:
        """Number of input positions of each example `(B,)`, including EOS; 0 if there are no inputs."""
        if self.inputs is ABSENT:
            return torch.zeros(self.size, dtype=torch.long)  # (B,)
        return self.inputs.lengths

    @property
    def reads_text(self) -> bool:
        return self.inputs is not ABSENT and self.inputs.ids is not ABSENT

    def extra(self, kind: type[R]) -> R | None:
        """Returns the item of this class in `extras`, or None."""
        return next((rows for rows in self.extras if isinstance(rows, kind)), None)

    def with_extra(self, rows: Rows) -> "Batch":
        """Returns the batch with `rows` added to `extras`."""
        return replace(self, extras=(*self.extras, rows))

    def halves(self) -> list["Batch"]:
        """Returns the first and the second half as views; a batch of one example is not split."""
        middle = self.size // 2
        if middle == 0:
            return [self]
        first_half = self.select(slice(0, middle))
        second_half = self.select(slice(middle, None))
        return [first_half, second_half]

    @property
    def loss_mask(self) -> Tensor:
        """True where the model predicts a token or label; `(B, T)`, or the shape of `labels`."""
        if self.has_targets:
            return self.targets.mask
        return self.labels >= 0

    def loss_targets(self, extended: bool = False) -> Tensor:
        """Returns the target ids or labels to predict, in the shape of `loss_mask`.

        With `extended`, target ids are in the extended vocabulary, for models that copy.
        """
        if not self.has_targets:
            return self.labels
        if extended:
            return self.targets.extended
        return self.targets.ids

    @property
    def has_targets(self) -> bool:
        return self.targets is not ABSENT

    @property
    def n_tokens(self) -> int:
        """Number of predictions: target tokens including EOS, or labels; 0 if the batch has neither."""
        if not self.has_targets and self.labels is ABSENT:
            return 0
        return int(self.loss_mask.sum())

    @property
    def n_oov(self) -> int:
        """Largest number of unknown words that an example can copy, X - V."""
        if self.inputs is ABSENT or self.inputs.copy is ABSENT:
            return 0
        return self.inputs.copy.n_oov

    def to(self, device: torch.device | str) -> "Batch":
        """Sends the batch to a device, except for the input lengths."""
        device_batch = super().to(device)
        if self.inputs is ABSENT:
            return device_batch
        inputs = replace(device_batch.inputs, lengths=self.inputs.lengths)
        return replace(device_batch, inputs=inputs)


def _padded(
    rows: Sequences, width: int | None = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Appends EOS to each text and pads it with PAD; returns the ids and their mask, `(B, S)` each.

    `width` is S; by default, the length of the longest text including EOS.
    """
    lengths = row_lengths(rows)  # (B,), excluding EOS
    if width is None:
        width = int(lengths.max()) + 1
    positions = np.arange(width)  # (S,)
    mask = positions <= lengths[:, None]  # (B, S), including EOS
    is_token = positions < lengths[:, None]  # (B, S), excluding EOS
    ids = np.full(mask.shape, PAD, dtype=np.int64)  # (B, S)
    ids[np.arange(len(rows)), lengths] = EOS
    # Assigning through a boolean mask fills positions in row-major order, that is, text by text, which matches the
    # order of the concatenated rows.
    arrays = [np.asarray(row, dtype=np.int64) for row in rows]
    ids[is_token] = np.concatenate(arrays)
    return ids, mask


def _sentences(ends: npt.NDArray[np.bool_]) -> Tensor | None:
    """Returns `Inputs.sentences` for texts whose sentences end where `ends` `(B, S)` is True.

    Returns None if every text is one sentence. M below is the number of sentences in all texts.
    """
    # Text number and EOS position of each sentence, in reading order.
    text, end = np.nonzero(ends)  # (M,) each
    if len(text) == len(ends):
        return None
    # `text` is sorted, so the search finds the index of the first sentence in the same text.
    first_sentence = np.searchsorted(text, text)  # (M,)
    number = np.arange(len(text)) - first_sentence  # (M,): number of the sentence in its text
    previous_end = np.roll(end, 1)  # (M,)
    begin = np.where(number == 0, 0, previous_end + 1)  # (M,)
    n_words = np.maximum(end - begin, 1)  # (M,): EOS counts only if the sentence has nothing else
    offsets = np.arange(n_words.max())  # (W,)
    positions = begin[:, None] + offsets + 1  # (M, W), counted from 1
    is_word = offsets < n_words[:, None]  # (M, W)
    shape = (len(ends), number.max() + 1, n_words.max())
    words = np.zeros(shape, dtype=np.int64)  # (B, N, W)
    words[text, number] = np.where(is_word, positions, 0)
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
    """Makes a batch on the CPU from each example's ids, excluding BOS and EOS, or from its features.

    Args:
        src: source ids of each example; None to read `features` instead.
        tgt: target ids.
        src_extended: source ids in the extended vocabulary; by default, the plain ids.
        tgt_extended: target ids in the extended vocabulary; by default, the plain ids.
        n_oov: largest number of unknown words in an example.
        alignment: links between the tokens of each example as a flat array: source position, target position, source
            position, ...
        width: S; by default, the length of the longest source including EOS.
        features: features `(R, F)` of each example.
        labels: labels of each example: an array with one label per source token, or the example's label as `(1, 1)`.
    """
    inputs: Inputs = ABSENT
    targets: Targets = ABSENT
    label_ids: Tensor = ABSENT
    links: Tensor | None = None
    if src is not None:
        inputs = Inputs.of_texts(src, extended=src_extended, n_oov=n_oov, width=width)
    elif features is not None:
        inputs = Inputs.of_features(features, width)
    if tgt is not None:
        assert len(tgt) > 0, "a batch has at least one example"
        targets = Targets.of_texts(tgt, tgt_extended)
    if labels is not None:
        label_ids = _label_ids(labels, inputs.mask.shape[1])
    if alignment is not None:
        links = _link_table(alignment, targets.ids.shape[1], inputs.ids.shape[1])
    return Batch(inputs=inputs, targets=targets, labels=label_ids, alignment=links)


def _label_ids(labels: Sequence[Numbers], width: int) -> Tensor:
    """Returns labels of examples `(B,)`, or of positions `(B, S)`, where S is `width` and -1 means no label."""
    if labels[0].ndim == 2:
        example_labels = np.concatenate(labels)[:, 0]  # (B,)
        return torch.from_numpy(example_labels.astype(np.int64))
    padded = np.full((len(labels), width), -1, dtype=np.int64)  # (B, S)
    for row, ids in zip(padded, labels, strict=True):
        row[: len(ids)] = ids
    return torch.from_numpy(padded)


def _link_table(alignment: Sequences, tgt_width: int, src_width: int) -> Tensor:
    """Returns a table `(B, T, S)` that is True where tokens are linked. L is the number of links in all examples."""
    size = len(alignment)
    n_links = row_lengths(alignment) // 2  # (B,)
    examples = np.repeat(np.arange(size), n_links)  # (L,): example of each link
    arrays = [np.asarray(row, dtype=np.int64) for row in alignment]
    links = np.concatenate(arrays).reshape(-1, 2)  # (L, 2)
    src_positions = links[:, 0]  # (L,)
    tgt_positions = links[:, 1]  # (L,)
    table = np.zeros((size, tgt_width, src_width), dtype=bool)  # (B, T, S)
    table[examples, tgt_positions, src_positions] = True
    return torch.from_numpy(table)
