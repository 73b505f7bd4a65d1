"""Batches of examples of similar length from a stored split, in an order that depends only on seed and epoch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch

from nmtkit.core.errors import CheckpointError
from nmtkit.core.settings import Field, Settings, field_validator, model_validator
from nmtkit.data.batches.batch import Batch, Numbers, collate
from nmtkit.data.batches.shards import row_lengths
from nmtkit.data.batches.shuffling import EpochOrder
from nmtkit.data.batches.store import Store
from nmtkit.data.tokenizers.vocabulary import UNK

LengthLimits: TypeAlias = tuple[int, int]
"""Maximum number of tokens in a source and in a target, excluding EOS; longer texts are truncated."""
Corruption: TypeAlias = Callable[[Batch, torch.Generator], Batch]
"""Returns the batch that the model reads under a denoising objective. All randomness comes from the CPU generator that
is passed in."""

if TYPE_CHECKING:
    BatchTokens = int
else:  # "auto" is replaced by a number before batches are made, so the type checker may ignore it
    BatchTokens = Literal["auto"] | int


class BatchConfig(Settings):
    """Settings for batching training examples."""

    batch_tokens: BatchTokens = 4096
    """Maximum number of tokens, including padding, on the longer side of a batch: number of sentences x length of the
    longest one (including EOS). A sentence that exceeds this limit forms a batch of its own. auto: as many as fit into
    memory (found by trial when training starts), but at most 65,536 and at most 1/32 of the text."""
    batch_size: int | None = Field(default=None, ge=1)
    """Maximum number of sentences in a batch. Default: no limit."""
    sort_window: int = Field(default=100_000, ge=1)
    """Number of randomly drawn sentences that are sorted by length and split into batches, which are then shuffled. A
    larger window reduces padding; it should contain many batches."""
    group: int = Field(default=1, ge=1)
    """Number of batches of similar length that stay together when batches are shuffled. Use a multiple of the number of
    processes, so that no process waits for longer sentences."""
    shuffle_window: int = Field(default=8_000_000, ge=1)
    """Maximum number of examples that are shuffled together, so that memory does not grow with the corpus. If an epoch
    has more, blocks of 8,192 neighbouring examples are put in random order, and the examples of several blocks are
    shuffled together."""
    block_tokens: int | None = Field(default=None, ge=1)
    """Number of tokens in a block of running text, without padding, for tasks whose only column is `tgt`. A batch has
    batch_tokens // block_tokens blocks. Each line is a document, which is not truncated to `data.max_length` and ends
    with EOS. Validation uses blocks, too. Default: no blocks; each line is an example."""
    across_documents: bool = True
    """When a block reaches the end of a document, fill it with the next document. false: the last block of a document
    may be shorter than the others."""

    @field_validator("batch_tokens", mode="before")
    @classmethod
    def _batch_tokens(cls, tokens: object) -> object:
        is_positive_int = type(tokens) is int and tokens >= 1
        if tokens != "auto" and not is_positive_int:
            raise ValueError("must be auto or a positive whole number")
        return tokens

    @model_validator(mode="after")
    def _auto_alone(self) -> "BatchConfig":
        if not self.is_auto:
            return self
        for key in ("batch_size", "block_tokens"):
            if getattr(self, key) is not None:
                raise ValueError(
                    f"batch_tokens: auto cannot be combined with {key}; set a number instead"
                )
        return self

    @property
    def is_auto(self) -> bool:
        """Whether the batch size is still to be determined."""
        return isinstance(self.batch_tokens, str)


def _slices_within_budget(widths: Numbers, budget: int, max_size: int | None) -> list[slice]:
    """Splits consecutive sentences of these widths, `(n,)`, into batches.

    A batch has at most `budget` cells (rows x columns) and at most `max_size` rows. A sentence that is wider than the
    budget forms a batch of its own.
    """
    slices = []
    start = 0
    while start < len(widths):
        # A batch is at least as wide as its first sentence, so it cannot have more than `max_rows` rows.
        max_rows = max(1, budget // int(widths[start]))
        # Width of a batch of the first 1, 2, ... rows.
        columns = np.maximum.accumulate(widths[start : start + max_rows])  # (m,)
        cells = columns * np.arange(1, len(columns) + 1)  # (m,), ascending
        size = max(1, int(np.count_nonzero(cells <= budget)))
        if max_size is not None:
            size = min(size, max_size)
        slices.append(slice(start, start + size))
        start += size
    return slices


def length_batches(src: Numbers, tgt: Numbers, config: BatchConfig) -> list[Numbers]:
    """Sorts sentences by length and splits them into batches; returns the sentence indices of each batch.

    `src` and `tgt` are the source and target lengths, `(n,)` each, including EOS. If there are enough sentences, the
    largest batches are halved until the number of batches is a multiple of `config.group`.
    """
    # The target length is the primary key. Source lengths ascend for even target lengths and descend for odd ones, so
    # that neighbours have similar source lengths even where the target length changes.
    src_keys = np.where(tgt % 2 == 0, src, -src)  # (n,)
    order = np.lexsort((src_keys, tgt))  # (n,); the last key of `lexsort` is the primary one
    widths = np.maximum(src, tgt)[order].astype(np.int64)  # (n,)
    slices = _slices_within_budget(widths, config.batch_tokens, config.batch_size)
    batches: list[Numbers] = [order[part] for part in slices]
    missing_batches = -len(batches) % config.group
    possible_splits = len(order) - len(batches)
    for _ in range(min(missing_batches, possible_splits)):
        sizes = [len(batch) for batch in batches]
        largest = int(np.argmax(sizes))
        halves = np.array_split(batches[largest], 2)
        batches[largest : largest + 1] = halves
    return batches


def bucket_by_length(
    lengths: Sequence[int] | Numbers, batch_tokens: int, batch_size: int | None = None
) -> list[list[int]]:
    """Groups sentences into batches of similar length; returns the sentence indices of each batch.

    `lengths` include EOS. A sentence longer than `batch_tokens` forms a batch of its own. The longest sentences come
    first, so that memory runs out right away, if at all.
    """
    widths = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-widths, kind="stable")
    slices = _slices_within_budget(widths[order], batch_tokens, batch_size)
    return [order[part].tolist() for part in slices]


def load(
    store: Store,
    numbers: Numbers,
    limits: LengthLimits | None,
    sampled: Mapping[str, Sequence[Any]] | None = None,
) -> Batch:
    """Returns a batch of the examples with these numbers, truncated to the limits.

    Unknown target words that occur only in the truncated part of the source become UNK, because they can no longer be
    copied.

    Args:
        store: the split.
        numbers: numbers of the examples, `(B,)`.
        limits: maximum lengths; None for no truncation.
        sampled: ids of each example by column, which replace the stored ids.
    """
    rows = numbers.tolist()
    src_limit: int | None = None
    tgt_limit: int | None = None
    if limits is not None:
        src_limit, tgt_limit = limits

    def column(name: str, limit: int | None) -> list[Any] | None:
        if sampled and name in sampled:
            return [ids[:limit] for ids in sampled[name]]
        if store.has(name):
            return [store.ids(name, number)[:limit] for number in rows]
        return None

    src_extended = column("src_extended", src_limit)
    tgt_extended = column("tgt_extended", tgt_limit)
    n_oov = 0
    if src_extended is not None:
        # Unknown words are numbered in the order of their first occurrence, so those that remain in a truncated source
        # have the smallest ids. All ids below the `end` of a source can be copied from it.
        largest_ids = [int(row.max(initial=0)) for row in src_extended]
        ends = [max(store.tgt_size, largest + 1) for largest in largest_ids]
        n_oov = max(ends) - store.tgt_size
        if tgt_extended is not None:
            examples = zip(tgt_extended, ends, strict=True)
            tgt_extended = [np.where(row < end, row, UNK) for row, end in examples]
    links = column("alignment", None)
    if links is not None and limits is not None:
        links = [_links_within(row, limits) for row in links]
    return collate(
        src=column("src", src_limit),
        tgt=column("tgt", tgt_limit),
        src_extended=src_extended,
        tgt_extended=tgt_extended,
        n_oov=n_oov,
        alignment=links,
        features=column("features", None),
        labels=column("labels", src_limit),
    )


def _links_within(row: Numbers, limits: LengthLimits) -> Numbers:
    """Drops the links of one example that point to truncated tokens; `row` is a flat array of position pairs."""
    links = row.reshape(-1, 2)  # (L, 2)
    is_within = (links < np.array(limits)).all(axis=1)  # (L,)
    return links[is_within].ravel()


def widths(
    store: Store,
    limits: LengthLimits | None,
    numbers: Numbers,
    sampled: Mapping[str, Sequence[Any]] | None = None,
) -> tuple[Numbers, Numbers]:
    """Returns the widths of these examples' sources (or features) and targets, including EOS, `(n,)` each.

    A column that the store does not have has width 0. For `sampled`, see `load`.
    """
    src = "src" if store.has("src") else "features"
    src_widths = _column_widths(store, src, numbers=numbers, sampled=sampled)
    tgt_widths = _column_widths(store, "tgt", numbers=numbers, sampled=sampled)
    if limits is not None:
        src_limit, tgt_limit = limits
        if src == "src":  # features are never truncated
            src_widths = np.minimum(src_widths, src_limit + 1)
        tgt_widths = np.minimum(tgt_widths, tgt_limit + 1)
    return src_widths, tgt_widths


def _column_widths(
    store: Store, column: str, numbers: Numbers, sampled: Mapping[str, Sequence[Any]] | None
) -> Numbers:
    if sampled and column in sampled:
        lengths = row_lengths(sampled[column])
        return lengths + 1
    if store.has(column):
        return store.lengths(column, numbers) + 1
    return np.zeros(len(numbers), dtype=np.int32)


def corrupted(batch: Batch, corrupt: Corruption | None, seeds: Sequence[int]) -> Batch:
    """Returns the batch, corrupted if `corrupt` is given; all randomness depends only on the seeds."""
    if corrupt is None:
        return batch
    mixed_seeds = np.random.SeedSequence(seeds)
    (seed,) = mixed_seeds.generate_state(1, np.uint64)
    generator = torch.Generator()
    generator.manual_seed(int(seed))
    return corrupt(batch, generator)


def widest_batch(
    store: Store, batch_tokens: int, limits: LengthLimits | None, corrupt: Corruption | None
) -> Batch:
    """Returns a batch that consists of the longest examples and has at most `batch_tokens` tokens, including padding.

    Examples are repeated if the corpus is too small.
    """
    numbers = np.arange(len(store))
    src_widths, tgt_widths = widths(store, limits, numbers)
    example_widths = np.maximum(src_widths, tgt_widths)  # (n,)
    longest_first = np.argsort(-example_widths, kind="stable")  # (n,)
    widest = int(example_widths.max())
    size = max(1, batch_tokens // widest)
    members = np.resize(longest_first, size)  # (size,); repeats the examples if there are too few
    batch = load(store, members, limits)
    return corrupted(batch, corrupt, seeds=(0, 0, 0))


def sorted_batches(
    store: Store,
    batch_tokens: int,
    limits: LengthLimits | None = None,
    corrupt: Corruption | None = None,
) -> Iterator[Batch]:
    """Yields all examples of a store once, sorted by length, in a fixed order; used for the validation loss.

    `batch_tokens` limits the tokens on the longer side, including padding; without `limits`, nothing is truncated.
    Batches are corrupted in the same way every time.
    """
    numbers = np.arange(len(store))
    src_widths, tgt_widths = widths(store, limits, numbers)
    batches = length_batches(src_widths, tgt_widths, BatchConfig(batch_tokens=batch_tokens))
    for number, members in enumerate(batches):
        yield corrupted(load(store, members, limits), corrupt, seeds=(number,))


class EpochPart(NamedTuple):
    """A part of an epoch, ready to be cut into windows."""

    context: Any
    """Data that `_batches_of_window` needs besides the items."""
    items: Numbers
    """Items to be cut into windows: numbers of examples, or of blocks of running text."""
    length: int
    """Amount by which the part advances the position in `BatchStream.state`."""


class BatchStream(Iterator[Batch]):
    """An endless stream of training batches, with the corpus in a new random order in each epoch.

    The order depends only on `seed` and epoch. All processes of a run share this single sequence of batches: each
    process loads its share of the batches and skips the rest.

    The weight of a file is the number of times that an epoch contains its examples; `seed` and epoch determine which
    examples the fractional part of a weight adds. `corrupt` is seeded by (seed, epoch, batch number). For memory usage,
    see `EpochOrder`.

    A batch is planned before it is loaded: its `members` are the data that `_load` needs, here the example numbers.
    """

    _resamples_segmentation = False
    """Whether windows are tokenized only when they are reached; a window must then not depend on earlier windows."""

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
        self._start_epoch(0)

    @property
    def identity(self) -> str:
        """Hash of the stored examples and their order; a `state()` is valid only for streams with the same identity."""
        if len(self._order) == 1:
            return self._store.identity
        return f"{self._store.identity} in parts of {self._config.shuffle_window}"

    def state(self) -> dict[str, Any]:
        """Returns the position in the stream, for `restore`; it is the same in all processes of a run."""
        return {"epoch": self.epoch, "examples": self._position, "data": self.identity}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a `state()`: the next batch is the one that would have come next.

        If the batch size has changed, the epoch continues after the same number of examples, or up to one batch later.
        If the data have changed, the epoch starts again. Raises a CheckpointError if the epoch now ends before the
        saved position.
        """
        epoch = state["epoch"]
        position = state["examples"]
        if state.get("data", self.identity) != self.identity:
            self._start_epoch(epoch)
            return
        self._start_epoch(epoch, position)
        while self._position < position:
            _, members = self._next_batch
            end = self._position + self._length(members)
            self._take()
            if self.epoch != epoch and end < position:
                raise CheckpointError(
                    "the data have changed since the checkpoint was saved: an epoch now has fewer examples; restore "
                    "the data, or start a new run (--run DIR)"
                )
            # The rest of the epoch was smaller than a batch of the new size.
            if self.epoch != epoch:
                break

    def __next__(self) -> Batch:
        epoch, number, members = self._take()
        return corrupted(self._load(members), self._corrupt, seeds=(self._seed, epoch, number))

    def skip(self) -> None:
        """Skips the next batch without loading it."""
        self._take()

    def _load(self, members: Any) -> Batch:
        """Returns the batch with these members."""
        return load(self._store, members, self._limits)

    def _start_epoch(self, epoch: int, skipped: int = 0) -> None:
        """Moves to the beginning of an epoch, or of the part or window in it that contains position `skipped`."""
        self.epoch = epoch
        """Epoch of the next batch, counted from 0."""
        self._position = 0
        """Total `_length` of the epoch's batches before the next one."""
        sizes = [len(self._store)]
        if self._weights:
            sizes = self._store.examples_per_file
        self._order = EpochOrder(
            sizes=sizes,
            weights=self._weights,
            window=self._config.shuffle_window,
            seed=self._seed,
            epoch=epoch,
        )
        self._batches = self._batches_of_epoch(skipped)
        self._next_batch = next(self._batches)
        """The next batch: its number in the epoch and its members."""

    def _take(self) -> tuple[int, int, Any]:
        """Advances by one batch; returns the batch's epoch, its number in the epoch and its members."""
        epoch = self.epoch
        number, members = self._next_batch
        following = next(self._batches, None)
        if following is None:
            self._start_epoch(self.epoch + 1)
        else:
            self._position += self._length(members)
            self._next_batch = following
        return epoch, number, members

    def _batches_of_epoch(self, skipped: int) -> Iterator[tuple[int, Any]]:
        """Yields the number and members of each batch in the epoch.

        Omits the parts (and with `_resamples_segmentation` the windows) that end within the first `skipped` examples.
        """
        last_part = len(self._order) - 1
        for part in range(len(self._order)):
            self._store.release()
            order, rng = self._order.part(part)
            context, items, length = self._start_part(part, order, rng)
            if part < last_part and self._position + length <= skipped:
                self._position += length
                continue
            # This numbers the batches without counting those of earlier parts.
            first_number = part << 32
            number = first_number
            begin = 0
            n_windows = max(1, -(-len(items) // self._config.sort_window))  # rounded up
            for window in np.array_split(items, n_windows):
                end = begin + len(window)
                window_rng = rng
                if self._resamples_segmentation:
                    # A window's first batch number and generator do not depend on earlier windows, so windows can be
                    # omitted without being tokenized.
                    number = first_number + begin
                    window_rng = rng.spawn(1)[0]
                    if end < len(items) and self._position + len(window) <= skipped:
                        self._position += len(window)
                        begin = end
                        continue
                batches = self._batches_of_window(context, begin, window=window, rng=window_rng)
                begin = end
                group_size = self._config.group
                n_groups = -(-len(batches) // group_size)  # rounded up
                for group in window_rng.permutation(n_groups):
                    first = group * group_size
                    for members in batches[first : first + group_size]:
                        yield number, members
                        number += 1

    def _start_part(self, part: int, order: Numbers, rng: "np.random.Generator") -> EpochPart:
        """Prepares a part of an epoch with the examples in this order."""
        return EpochPart(context=None, items=order, length=len(order))

    def _batches_of_window(
        self, context: Any, begin: int, window: Numbers, rng: "np.random.Generator"
    ) -> list[Any]:
        """Returns the members of each batch in a window that starts at index `begin` of its part's items.

        All randomness in the window comes from `rng`.
        """
        src_widths, tgt_widths = widths(self._store, self._limits, window)
        batches = length_batches(src_widths, tgt_widths, self._config)
        return [window[rows] for rows in batches]

    def _length(self, members: Any) -> int:
        """Returns the amount by which a batch advances the position in `state`: its number of examples."""
        return len(members)
