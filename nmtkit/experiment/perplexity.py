"""How well a language model predicts a text: by token, by word, and by how often its words stand in the training text.

A word is what white space separates in the text as the tokenizer writes it back, and has the log-probability of its
tokens together. The end of a line is one token and one word, as <eos> is in published figures of WikiText.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from nmtkit.core.errors import DataError
from nmtkit.data.batch_stream import BatchConfig
from nmtkit.data.running_text import RunningText
from nmtkit.data.tokenizer import Tokenizer
from nmtkit.data.words import word_spans
from nmtkit.metrics import perplexity
from nmtkit.translation.translator import Translator

FREQUENCIES = {"0": 0, "1": 1, "2 to 4": 2, "5 to 9": 5, "10 to 99": 10, "100 to 999": 100, "1,000 and more": 1000}
"""Ranges of how often a word stands in the training text, with the first number of each."""


@dataclass(frozen=True)
class Fit:
    """How probable a model finds some units of a text, such as its words."""

    unit: str
    count: int
    log_prob: float
    """Of all of them together, in nats."""

    @property
    def figures(self) -> dict[str, float]:
        """Of a unit: nats, bits and the perplexity."""
        nats = -self.log_prob / self.count
        return {"nats": nats, "bits": nats / math.log(2), "perplexity": perplexity(self.log_prob, self.count).value}


def fit_text(
    system: Translator, lines: Sequence[str], config: BatchConfig, counts: Counter[str] | None = None
) -> tuple[list[Fit], list[Fit]]:
    """The fit by token, word and byte of UTF-8 (with the ends of lines), and by the frequency of the words.

    Empty lines are left out. `config` has the blocks, `counts` the words of the training text; see `count_words`.
    """
    system.require_language_model()
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise DataError("there is no text to measure: all lines are empty")
    tokenizer = system.tokenizers.tgt
    rows = tokenizer.encode_many(lines)
    lengths = np.array([*map(len, rows)])
    if config.block_tokens is None:
        config = config.changed({"block_tokens": int(lengths.max()) + 1, "across_documents": False})
    if not system.model.reserve_positions(config.block_tokens or 0):
        raise DataError(f"the model has no {config.block_tokens} positions: cut the text with a smaller --block-tokens")
    config = config.changed({"batch_tokens": system.batch_budget, "batch_size": None})
    log_probs = _log_probs(system, RunningText(lengths, rows.__getitem__, config))
    words = [word for row in rows for word in (*_words(tokenizer, row), ("", 1))]
    of_words = np.add.reduceat(log_probs, np.cumsum([0, *(size for _, size in words[:-1])]))
    sizes = {"token": len(log_probs), "word": len(words), "byte": sum(len(line.encode()) + 1 for line in lines)}
    fits = [Fit(unit, size, float(log_probs.sum())) for unit, size in sizes.items()]
    if counts is None:
        return fits, []
    ranges = np.digitize([counts[word] for word, _ in words], [*FREQUENCIES.values()]) - 1
    ranges[[not word for word, _ in words]] = len(FREQUENCIES)
    parts = [(name, of_words[ranges == number]) for number, name in enumerate([*FREQUENCIES, "end of a line"])]
    return fits, [Fit(name, len(part), float(part.sum())) for name, part in parts if len(part)]


def count_words(tokenizer: Tokenizer, rows: Iterable[Sequence[int]]) -> Counter[str]:
    """How often each word stands in a text of these ids."""
    return Counter(word for row in rows for word, _ in _words(tokenizer, row))


def _words(tokenizer: Tokenizer, ids: Sequence[int]) -> Iterator[tuple[str, int]]:
    """The words of a line, each with the number of its tokens."""
    pieces = tokenizer.pieces(ids)
    return (("".join(pieces[span.start : span.stop]), len(span)) for span in word_spans(pieces))


@torch.inference_mode()
def _log_probs(system: Translator, text: RunningText) -> npt.NDArray[np.float64]:
    """The log-probability of every position of a text."""
    found: dict[int, npt.NDArray[np.float64]] = {}
    for blocks in text.batches(np.arange(len(text))):
        batch = text.load(blocks)
        scored = system.score_targets(batch, attend=False)[1].double()
        found |= {
            n: row[mask].numpy() for n, row, mask in zip(blocks.tolist(), scored, batch.targets.mask, strict=True)
        }
    return np.concatenate([found[number] for number in range(len(text))])
