"""Batches of texts that are cut anew in every epoch, as by BPE-dropout."""

from itertools import takewhile
from typing import Any

import numpy as np
from typing_extensions import override

from nmtkit.data.batches.batch import Batch, Numbers
from nmtkit.data.batches.batch_stream import BatchStream, length_batches, load, widths
from nmtkit.data.batches.store import Store
from nmtkit.data.text.config import TEXT_COLUMNS
from nmtkit.data.tokenizers.subword_sampling import generator_for
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import SPECIALS


class SampledStream(BatchStream):
    """A `BatchStream` that samples new tokenizations of the stored text, without alignment links or extended ids.

    How a text is cut depends on the seed, the epoch, the example, the column and, where weights repeat an example, on
    the number of the repetition. It does not depend on the process, or on what was read before, so several processes
    build the same batches, and a resumed training continues exactly.

    A window is tokenized when its turn comes, and texts of similar sampled length make its batches. Every process
    tokenizes all windows, since it needs them to know the batches. Memory: 4 bytes for each token of a window, and
    about 120 for each text.
    """

    _cuts_anew = True

    def __init__(self, store: Store, *given: Any, tokenizers: Tokenizers, **settings: Any) -> None:
        self._tokenizers = {key: one for key, one in tokenizers.items() if one.config.sampling and store.has(key)}
        super().__init__(store, *given, **settings)

    @override
    def _start_part(self, part: int, order: Numbers, draw: "np.random.Generator") -> tuple[Any, Numbers, int]:
        repetitions: Numbers = np.zeros(len(order), dtype=np.int64)
        if self._weights:
            repetitions = _repetitions(order) + (part << 32)
        return repetitions, order, len(order)

    @override
    def _batches_of_window(self, text: Numbers, begin: int, window: Numbers, draw: "np.random.Generator") -> list[Any]:
        repetitions = text[begin : begin + len(window)]
        sampled = {column: self._cut(column, window, repetitions) for column in self._tokenizers}
        batches = length_batches(*widths(self._store, self._limits, window, sampled), self._config)
        return [(window, sampled, rows) for rows in batches]

    def _cut(self, column: str, window: Numbers, repetitions: Numbers) -> list[Numbers]:
        """Returns the ids of each text; the tags at its beginning stay."""
        tokenizer = self._tokenizers[column]
        column_number = TEXT_COLUMNS.index(column)
        tags = range(len(SPECIALS), tokenizer.vocabulary.n_specials)
        cut: list[Numbers] = []
        for row, repetition in zip(window.tolist(), repetitions.tolist(), strict=True):
            generator = generator_for(self._seed, self.epoch, row, repetition, column_number)
            ids = tokenizer.sample(self._store.text(column, row), generator)
            if tags:
                stored = self._store.ids(column, row).tolist()
                ids = [*takewhile(tags.__contains__, stored), *ids]
            cut.append(np.array(ids, dtype=np.int32))
        return cut

    @override
    def _size(self, members: tuple[Numbers, dict[str, list[Numbers]], Numbers]) -> int:
        return len(members[-1])

    @override
    def _load(self, members: tuple[Numbers, dict[str, list[Numbers]], Numbers]) -> Batch:
        window, sampled, rows = members
        cut = {column: [texts[row] for row in rows] for column, texts in sampled.items()}
        return load(self._store, window[rows], self._limits, cut)


def _repetitions(order: Numbers) -> Numbers:
    """Returns how often each example `(n,)` has occurred before its place in this order."""
    by_example = np.argsort(order, kind="stable")
    is_first = np.diff(order[by_example], prepend=-1) != 0
    places = np.arange(len(order))
    first_places = np.maximum.accumulate(np.where(is_first, places, 0))
    repetitions: Numbers = np.empty(len(order), dtype=np.int64)
    repetitions[by_example] = places - first_places
    return repetitions
