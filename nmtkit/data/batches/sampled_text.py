"""Batches of texts whose tokenization is resampled in each epoch, as in BPE-dropout."""

from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import override

from nmtkit.data.batches.batch import Batch, Numbers
from nmtkit.data.batches.batch_stream import BatchStream, EpochPart, length_batches, load, widths
from nmtkit.data.batches.store import Store
from nmtkit.data.text.config import TEXT_COLUMNS
from nmtkit.data.tokenizers.subword_sampling import generator_for
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import SPECIALS


class _SampledMembers(NamedTuple):
    """The members of a batch: some of the examples in a window."""

    window: Numbers
    """Example numbers of the window, `(n,)`."""
    sampled: dict[str, list[Numbers]]
    """Sampled ids of all examples in the window, by column."""
    rows: Numbers
    """Examples of the batch, as indices into the window, `(B,)`."""


class SampledStream(BatchStream):
    """A `BatchStream` that samples new tokenizations of the stored text; alignment links and copying are unsupported.

    The tokenization of a text depends on seed, epoch, example and column and, if weights repeat the example within an
    epoch, on the number of the repetition. It does not depend on the process or on what was read before, so several
    processes build the same batches, and a resumed training run continues exactly where it stopped.

    A window is tokenized when it is reached; its batches consist of texts with similar sampled lengths. Each process
    tokenizes all windows, because it needs these lengths to plan the batches. Memory: 4 bytes per token of a window and
    about 120 bytes per text.
    """

    _resamples_segmentation = True

    def __init__(self, store: Store, *args: Any, tokenizers: Tokenizers, **kwargs: Any) -> None:
        self._tokenizers = {}
        for column, tokenizer in tokenizers.items():
            if tokenizer.config.sampling and store.has(column):
                self._tokenizers[column] = tokenizer
        super().__init__(store, *args, **kwargs)

    @override
    def _start_part(self, part: int, order: Numbers, rng: "np.random.Generator") -> EpochPart:
        repetitions: Numbers = np.zeros(len(order), dtype=np.int64)  # (n,)
        if self._weights:
            # An example may occur in several parts; the shift makes its repetitions distinct.
            repetitions = _repetitions(order) + (part << 32)
        return EpochPart(context=repetitions, items=order, length=len(order))

    @override
    def _batches_of_window(
        self, context: Numbers, begin: int, window: Numbers, rng: "np.random.Generator"
    ) -> list[Any]:
        repetitions = context[begin : begin + len(window)]
        sampled = {column: self._sample(column, window, repetitions) for column in self._tokenizers}
        src_widths, tgt_widths = widths(self._store, self._limits, numbers=window, sampled=sampled)
        batches = length_batches(src_widths, tgt_widths, self._config)
        return [_SampledMembers(window, sampled, rows) for rows in batches]

    def _sample(self, column: str, window: Numbers, repetitions: Numbers) -> list[Numbers]:
        """Returns sampled ids for each text in a window; tags before a text are copied from the stored ids."""
        tokenizer = self._tokenizers[column]
        column_number = TEXT_COLUMNS.index(column)
        tag_ids = range(len(SPECIALS), tokenizer.vocabulary.n_specials)
        sampled: list[Numbers] = []
        for example, repetition in zip(window.tolist(), repetitions.tolist(), strict=True):
            seeds = (self._seed, self.epoch, example, repetition, column_number)
            generator = generator_for(*seeds)
            ids = tokenizer.sample(self._store.text(column, example), generator)
            if tag_ids:
                stored = self._store.ids(column, example).tolist()
                ids = [*takewhile(tag_ids.__contains__, stored), *ids]
            sampled.append(np.array(ids, dtype=np.int32))
        return sampled

    @override
    def _length(self, members: _SampledMembers) -> int:
        return len(members.rows)

    @override
    def _load(self, members: _SampledMembers) -> Batch:
        sampled = {}
        for column, texts in members.sampled.items():
            sampled[column] = [texts[row] for row in members.rows]
        numbers = members.window[members.rows]  # (B,)
        return load(self._store, numbers, limits=self._limits, sampled=sampled)


def _repetitions(order: Numbers) -> Numbers:
    """Returns, for each position, how often its example has occurred earlier in this order, `(n,)`."""
    # The stable sort puts all occurrences of an example side by side, in their original order. The number of a
    # repetition is its distance from the example's first occurrence.
    by_example = np.argsort(order, kind="stable")  # (n,)
    is_first = np.diff(order[by_example], prepend=-1) != 0  # (n,)
    positions = np.arange(len(order))  # (n,)
    first_positions = np.maximum.accumulate(np.where(is_first, positions, 0))  # (n,)
    repetitions: Numbers = np.empty(len(order), dtype=np.int64)
    repetitions[by_example] = positions - first_positions
    return repetitions
