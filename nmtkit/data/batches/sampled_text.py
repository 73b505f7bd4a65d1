"""Batches of texts whose tokenization is sampled in every epoch, as by BPE-dropout."""

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
    """The members of a batch: some texts of a window."""

    window: Numbers
    """The examples of the window, `(n,)`."""
    sampled: dict[str, list[Numbers]]
    """The sampled ids of each of these examples by column."""
    rows: Numbers
    """The texts of the batch, as rows of the window, `(B,)`."""


class SampledStream(BatchStream):
    """A `BatchStream` that samples new tokenizations of the stored text, without alignment links or extended ids.

    How a text is tokenized depends on the seed, the epoch, the example, the column and, where weights repeat an
    example, on the number of the repetition. It does not depend on the process or on what was read before. So several
    processes build the same batches, and a resumed training continues exactly.

    A window is tokenized when its turn comes, and its batches have texts of similar sampled length. Every process
    tokenizes all windows, because it needs the lengths to plan the batches. Memory: 4 bytes per token of a window and
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
            # an example may occur in several parts
            repetitions = _repetitions(order) + (part << 32)
        return EpochPart(context=repetitions, items=order, length=len(order))

    @override
    def _batches_of_window(
        self, context: Numbers, begin: int, window: Numbers, rng: "np.random.Generator"
    ) -> list[Any]:
        repetitions = context[begin : begin + len(window)]
        sampled = {column: self._sample(column, window, repetitions) for column in self._tokenizers}
        src_widths, tgt_widths = widths(self._store, self._limits, window, sampled)
        batches = length_batches(src_widths, tgt_widths, self._config)
        return [_SampledMembers(window, sampled, rows) for rows in batches]

    def _sample(self, column: str, window: Numbers, repetitions: Numbers) -> list[Numbers]:
        """Returns sampled ids of each text of a window; tags at its beginning are copied from the stored ids."""
        tokenizer = self._tokenizers[column]
        column_number = TEXT_COLUMNS.index(column)
        tag_ids = range(len(SPECIALS), tokenizer.vocabulary.n_specials)
        sampled: list[Numbers] = []
        for example, repetition in zip(window.tolist(), repetitions.tolist(), strict=True):
            generator = generator_for(self._seed, self.epoch, example, repetition, column_number)
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
        return load(self._store, members.window[members.rows], self._limits, sampled)


def _repetitions(order: Numbers) -> Numbers:
    """Returns how often each example has occurred earlier in this order, `(n,)`."""
    # The stable sort puts the occurrences of an example side by side, in their order. The number of a repetition is the
    # distance from the first of them.
    by_example = np.argsort(order, kind="stable")  # (n,)
    is_first = np.diff(order[by_example], prepend=-1) != 0  # (n,)
    places = np.arange(len(order))  # (n,)
    first_places = np.maximum.accumulate(np.where(is_first, places, 0))  # (n,)
    repetitions: Numbers = np.empty(len(order), dtype=np.int64)
    repetitions[by_example] = places - first_places
    return repetitions
