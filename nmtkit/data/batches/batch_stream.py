"""The batches of a stored split: of similar length, in an order that depends on seed and epoch only."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch

from nmtkit.core.errors import CheckpointError
from nmtkit.core.settings import Field, Settings, field_validator, model_validator
from nmtkit.data.batches.batch import Batch, Numbers, collate
from nmtkit.data.batches.shuffling import EpochOrder
from nmtkit.data.batches.store import Store
from nmtkit.data.tokenizers.vocabulary import UNK

LengthLimits: TypeAlias = tuple[int, int]
"""The most tokens of a source and of a target, without EOS; longer ones are truncated."""
Corruption: TypeAlias = Callable[[Batch, torch.Generator], Batch]
"""Gives the batch that a denoising objective reads. All that is random comes from the generator, a CPU's."""

if TYPE_CHECKING:
    BatchTokens = int
else:  # `auto` is a number by the time that batches are made
    BatchTokens = Literal["auto"] | int


class BatchConfig(Settings):
    """How training examples are batched."""

    batch_tokens: BatchTokens = 4096
    """The most padded tokens of the longer side of a batch: sentences x longest sentence (with EOS). A longer sentence
    is a batch of its own. auto: as many as fit into memory, up to 65,536 and a 32nd of the text, found by trying when a
    training begins."""
    batch_size: int | None = Field(default=None, ge=1)
    """The most sentences in a batch; default: no limit."""
    sort_window: int = Field(default=100_000, ge=1)
    """Sort this many randomly drawn sentences by length, cut them into batches and shuffle the batches. A larger window
    has less padding; it should hold many batches."""
    group: int = Field(default=1, ge=1)
    """Shuffle groups of so many batches of like lengths, in place of batches: with a multiple of the batches that all
    processes take at a time none waits for another that has longer sentences. An update then has like lengths too."""
    shuffle_window: int = Field(default=8_000_000, ge=1)
    """An epoch of more examples is not shuffled as a whole, so that memory does not grow with the corpus: blocks of
    8,192 neighbours come in random order, and the examples of as many blocks as hold so many are shuffled together."""
    block_tokens: int | None = Field(default=None, ge=1)
    """Cut running text into blocks of so many tokens, without padding, for a task whose only column is `tgt`. A batch
    has batch_tokens // block_tokens of them. A document is a line; it is stored whole, whatever `data.max_length` is,
    and ends with EOS. Validation reads such blocks too. Default: a line is an example."""
    across_documents: bool = True
    """A block goes on with the next document where one ends. false: the end of a document is a shorter block."""

    @field_validator("batch_tokens", mode="before")
    @classmethod
    def _batch_tokens(cls, tokens: object) -> object:
        if tokens != "auto" and (type(tokens) is not int or tokens < 1):
            raise ValueError("auto, or a whole number from 1 on")
        return tokens

    @model_validator(mode="after")
    def _auto_alone(self) -> "BatchConfig":
        for key in ("batch_size", "block_tokens") if self.is_auto else ():
            if getattr(self, key) is not None:
                raise ValueError(f"batch_tokens: auto is not possible with {key}; give a number")
        return self

    @property
    def is_auto(self) -> bool:
        """Whether the size is still to be found."""
        return isinstance(self.batch_tokens, str)


def _cut(widths: Numbers, budget: int, most: int | None) -> list[slice]:
    """Cuts sentences with these widths `(n,)` into batches, in their order.

    A batch has at most `most` rows, and rows x columns within the budget; a wider sentence is alone.
    """
    slices = []
    start = 0
    while start < len(widths):
        # No later column can be narrower than the first sentence: a bound on how far to look.
        room = max(1, budget // int(widths[start]))
        widest = np.maximum.accumulate(widths[start : start + room])
        size = max(1, int(np.count_nonzero(widest * np.arange(1, len(widest) + 1) <= budget)))
        end = start + (size if most is None else min(size, most))
        slices.append(slice(start, end))
        start = end
    return slices


def length_batches(src: Numbers, tgt: Numbers, config: BatchConfig) -> list[Numbers]:
    """Sorts sentences by their lengths `(n,)`, with EOS, and cuts them into batches of row numbers.

    Target length comes first; source lengths ascend and descend in turns, so that neighbours are alike on both sides.
    The largest batches are halved until all groups of `config.group` neighbours are full.
    """
    order = np.lexsort((np.where(tgt % 2 == 0, src, -src), tgt))
    widths = np.maximum(src, tgt)[order].astype(np.int64)
    batches: list[Numbers] = [order[part] for part in _cut(widths, config.batch_tokens, config.batch_size)]
    for _ in range(min(-len(batches) % config.group, len(order) - len(batches))):
        largest = int(np.argmax([len(batch) for batch in batches]))
        batches[largest : largest + 1] = np.array_split(batches[largest], 2)
    return batches


def bucket_by_length(
    lengths: Sequence[int] | Numbers, batch_tokens: int, batch_size: int | None = None
) -> list[list[int]]:
    """Batches sentences of similar length, with EOS; the row numbers of each batch.

    A sentence longer than the budget is alone. The longest come first, so that a budget too large fails at once.
    """
    widths = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-widths, kind="stable")
    return [order[part].tolist() for part in _cut(widths[order], batch_tokens, batch_size)]


def load(
    store: Store, numbers: Numbers, limits: LengthLimits | None, sampled: Mapping[str, Sequence[Any]] | None = None
) -> Batch:
    """The batch of these examples, truncated; target words that only the removed part of a source has become UNK.

    `sampled` has ids by column that take the place of the stored ones.
    """
    rows = numbers.tolist()
    src_limit, tgt_limit = limits or (None, None)

    def column(name: str, limit: int | None) -> list[Any] | None:
        if sampled and name in sampled:
            return [ids[:limit] for ids in sampled[name]]
        return [store.ids(name, number)[:limit] for number in rows] if store.has(name) else None

    src, extended = column("src", src_limit), column("src_extended", src_limit)
    tgt, tgt_extended = column("tgt", tgt_limit), column("tgt_extended", tgt_limit)
    n_oov = 0
    if extended is not None:
        # Unknown words have their ids in the order in which they come, so that a cut leaves the first of them.
        ends = [max(store.tgt_size, int(row.max(initial=0)) + 1) for row in extended]
        n_oov = max(ends) - store.tgt_size
        if tgt_extended is not None:
            tgt_extended = [np.where(row < end, row, UNK) for row, end in zip(tgt_extended, ends, strict=True)]
    links = column("alignment", None)
    if links is not None and limits is not None:
        pairs = [row.reshape(-1, 2) for row in links]
        links = [pair[(pair < np.array(limits)).all(1)].ravel() for pair in pairs]
    features, labels = column("features", None), column("labels", src_limit)
    return collate(src, tgt, extended, tgt_extended, n_oov, links, features=features, labels=labels)


def widths(
    store: Store, limits: LengthLimits | None, numbers: Numbers, sampled: Mapping[str, Sequence[Any]] | None = None
) -> tuple[Numbers, Numbers]:
    """Widths of sources (or features) and targets of these examples, with EOS, `(n,)` each; 0 where there are none.

    `sampled` is that of `load`.
    """
    found = []
    for column, limit in zip(("src" if store.has("src") else "features", "tgt"), limits or (None, None), strict=True):
        lengths: Numbers = np.zeros(len(numbers), dtype=np.int32)
        if sampled and column in sampled:
            lengths = np.array([len(ids) + 1 for ids in sampled[column]])
        elif store.has(column):
            lengths = store.lengths(column, numbers) + 1
        found.append(lengths if limit is None or column == "features" else np.minimum(lengths, limit + 1))
    return found[0], found[1]


def corrupted(batch: Batch, corrupt: Corruption | None, *place: int) -> Batch:
    """The batch as a model is to read it; what is random depends on its place alone."""
    if corrupt is None:
        return batch
    seed = int(np.random.SeedSequence(place).generate_state(1, np.uint64)[0])
    return corrupt(batch, torch.Generator().manual_seed(seed))


def widest_batch(store: Store, batch_tokens: int, limits: LengthLimits | None, corrupt: Corruption | None) -> Batch:
    """As many of the longest examples as have so many padded tokens; of a small corpus some come more than once."""
    wider = np.maximum(*widths(store, limits, np.arange(len(store))))
    order = np.argsort(-wider, kind="stable")
    return corrupted(load(store, np.resize(order, max(1, batch_tokens // int(wider.max()))), limits), corrupt, 0, 0, 0)


def sorted_batches(
    store: Store, batch_tokens: int, limits: LengthLimits | None = None, corrupt: Corruption | None = None
) -> Iterator[Batch]:
    """All examples of a store once, sorted by length, in a fixed order (for a validation loss).

    `batch_tokens` counts padded tokens of the longer side; without limits nothing is truncated. A batch is corrupted
    in the same way every time.
    """
    batches = length_batches(*widths(store, limits, np.arange(len(store))), BatchConfig(batch_tokens=batch_tokens))
    for number, members in enumerate(batches):
        yield corrupted(load(store, members, limits), corrupt, number)


class BatchStream(Iterator[Batch]):
    """Training batches without end: the corpus in a new random order each epoch.

    The order depends on `seed` and epoch only. Several processes share this one sequence, which runs through the
    epochs: each makes its own batches, and skips those of the others.

    With weights an epoch has the pairs of each file as often as its weight; `seed` and epoch choose the pairs of a
    fraction. `corrupt` is seeded by (seed, epoch, batch). Memory: that of `EpochOrder`.
    """

    _cuts_anew = False
    """Whether a window is cut into tokens when its turn comes; then it depends on none before it."""

    def __init__(
        self,
        store: Store,
        config: BatchConfig,
        seed: int,
        limits: LengthLimits | None = None,
        weights: Sequence[float] = (),
        corrupt: Corruption | None = None,
    ) -> None:
        self._store = store
        self._config = config
        self._seed = seed
        self._limits = limits
        self._weights = weights
        self._corrupt = corrupt
        self._begin(0)

    @property
    def identity(self) -> str:
        """A hash of what the stream goes through: the examples and their order."""
        parts = f" in parts of {self._config.shuffle_window}" if len(self._order) > 1 else ""
        return self._store.identity + parts

    def state(self) -> dict[str, Any]:
        """The position in the stream, for `restore`; the same in all processes of a run."""
        return {"epoch": self.epoch, "examples": self._examples, "data": self.identity}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a `state()`: the next batch is the one that would have come.

        With other batch sizes the epoch continues after as many examples, give or take a batch. With other data it
        starts again.
        """
        epoch, examples = state["epoch"], state["examples"]
        same = state.get("data", self.identity) == self.identity
        self._begin(epoch, examples if same else 0)
        while same and self._examples < examples:
            end = self._examples + self._size(self._coming[1])
            self._take()
            if self.epoch != epoch and end < examples:
                raise CheckpointError(
                    "the data have changed since the checkpoint was saved: an epoch has fewer examples now"
                )
            if self.epoch != epoch:  # what was left is less than one of these batches
                break

    def __next__(self) -> Batch:
        epoch, number, members = self._take()
        return corrupted(self._load(members), self._corrupt, self._seed, epoch, number)

    def skip(self) -> None:
        """Goes on to the batch after the next, which is not made."""
        self._take()

    def _load(self, members: Any) -> Batch:
        """The batch of these members."""
        return load(self._store, members, self._limits)

    def _begin(self, epoch: int, examples: int = 0) -> None:
        """Goes to the beginning of an epoch, or of the part that has the batch after so many examples."""
        self.epoch = epoch
        """The epoch of the next batch, from 0."""
        self._examples = 0
        sizes = self._store.by_file if self._weights else [len(self._store)]
        self._order = EpochOrder(sizes, self._weights, self._config.shuffle_window, self._seed, epoch)
        self._pending = self._batches_of_epoch(examples)
        self._coming = next(self._pending)

    def _take(self) -> tuple[int, int, Any]:
        """The next batch of the common sequence: epoch, number in the epoch, and members."""
        taken = self.epoch, *self._coming
        coming = next(self._pending, None)
        if coming is None:
            self._begin(self.epoch + 1)
        else:
            self._examples += self._size(self._coming[1])
            self._coming = coming
        return taken

    def _batches_of_epoch(self, examples: int) -> Iterator[tuple[int, Any]]:
        """Number and members of each batch of the epoch, without the parts that end within the first `examples`."""
        for part in range(len(self._order)):
            self._store.release()
            order, draw = self._order.part(part)
            text, order, size = self._start_part(part, order, draw)
            if part < len(self._order) - 1 and self._examples + size <= examples:
                self._examples += size
                continue
            first_number = part << 32  # batches of other parts need not be counted
            number = first_number
            begin = 0
            # A window is sorted when its turn comes.
            for window in np.array_split(order, max(1, -(-len(order) // self._config.sort_window))):
                end = begin + len(window)
                window_draw = draw
                if self._cuts_anew:
                    number = first_number + begin
                    window_draw = draw.spawn(1)[0]
                    if end < len(order) and self._examples + len(window) <= examples:
                        self._examples += len(window)
                        begin = end
                        continue
                batches = self._batches_of_window(text, begin, window, window_draw)
                begin = end
                n_groups = -(-len(batches) // self._config.group)
                for first in window_draw.permutation(n_groups) * self._config.group:
                    for batch in batches[first : first + self._config.group]:
                        yield number, batch
                        number += 1

    def _start_part(self, part: int, order: Numbers, draw: "np.random.Generator") -> tuple[Any, Numbers, int]:
        """For a part of an epoch: what members of batches belong to, all members in order, and their size."""
        return None, order, len(order)

    def _batches_of_window(self, text: Any, begin: int, window: Numbers, draw: "np.random.Generator") -> list[Any]:
        """The members of each batch of a window, which starts at `begin` in the order of its part.

        `draw` gives what is random in the window.
        """
        return [window[rows] for rows in length_batches(*widths(self._store, self._limits, window), self._config)]

    def _size(self, members: Any) -> int:
        """How much of an epoch these are, in what `state` counts: examples."""
        return len(members)
