"""Batches of texts that are cut anew in every epoch, as by BPE-dropout."""

from itertools import takewhile
from typing import Any

import numpy as np
from typing_extensions import override

from nmtkit.data.batch import Batch, Numbers
from nmtkit.data.store import Store
from nmtkit.data.tokenizers import Tokenizers
from nmtkit.data.vocabulary import SPECIALS
from nmtkit.streams.batch_stream import BatchStream, length_batches, load, widths

_AT_ONCE = 4096
"""Texts that are cut together."""


class SampledStream(BatchStream):
    """A `BatchStream` that cuts the stored text anew, which gives neither links nor extended ids.

    A window is cut when its turn comes, seeded by (seed, epoch, window), and its batches are of texts that have like
    lengths as they are cut. Every process cuts all windows, for no other way tells it which batches there are. Memory:
    4 bytes for a token of a window, and about 120 for a text.
    """

    _cuts_anew = True

    def __init__(self, store: Store, *given: Any, tokenizers: Tokenizers, **settings: Any) -> None:
        self._tokenizers = {key: one for key, one in tokenizers.items() if one.config.sampling and store.has(key)}
        super().__init__(store, *given, **settings)

    @override
    def _batches_of_window(self, text: None, window: Numbers, draw: "np.random.Generator") -> list[Any]:
        sampled = {column: self._cut(column, window, int(draw.integers(1 << 31))) for column in self._tokenizers}
        batches = length_batches(*widths(self._store, self._limits, window, sampled), self._config)
        return [(window, sampled, rows) for rows in batches]

    def _cut(self, column: str, window: Numbers, seed: int) -> list[Numbers]:
        """The ids of each text; the tags that stand before it stay."""
        tokenizer, rows, found = self._tokenizers[column], window.tolist(), list[Numbers]()
        first, last = len(SPECIALS), tokenizer.vocabulary.n_specials
        for begin in range(0, len(rows), _AT_ONCE):
            own = rows[begin : begin + _AT_ONCE]
            texts = tokenizer.encode_many([self._store.text(column, row) for row in own], seed + begin)
            for row, ids in zip(own, texts, strict=True):
                tags = takewhile(range(first, last).__contains__, self._store.ids(column, row).tolist())
                found.append(np.array([*tags, *ids], dtype=np.int32))
        return found

    @override
    def _size(self, members: tuple[Numbers, dict[str, list[Numbers]], Numbers]) -> int:
        return len(members[-1])

    @override
    def _load(self, members: tuple[Numbers, dict[str, list[Numbers]], Numbers]) -> Batch:
        window, sampled, rows = members
        cut = {column: [texts[row] for row in rows] for column, texts in sampled.items()}
        return load(self._store, window[rows], self._limits, cut)
