"""Sentence pairs with their attention weights, ready to plot.

Notation: T target words (rows), S source words (columns), L layers, A heads. A weight is the share
of target word t's attention that source word s receives; each row sums to one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class SourceWindow:
    """The local attention window of a target word (Luong et al. 2015, section 3.2).

    Positions are in source columns: 0 is the middle of the first column, 0.5 its right edge.
    """

    centre: float
    """The centre p_t."""
    left: float
    """The left edge, p_t - D, which may be to the left of the first word."""
    right: float
    """The right edge, p_t + D, which may be to the right of the last word."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SentencePicture:
    """Base class of figures of texts, with their heading."""

    title: str = ""
    score: float | None = None
    """Log-probability of the target (natural log), if known."""
    left_out: int = 0
    """Number of source tokens at the end that the model did not read; they are not shown."""

    @property
    def heading(self) -> str:
        """The title with the score and the number of unread source tokens."""
        score = "" if self.score is None else f"  (score {self.score:.2f})"
        unread = (
            f"  (the last {self.left_out:,} source tokens were not read)" if self.left_out else ""
        )
        return f"{self.title}{score}{unread}".strip()

    def with_title(self, title: str | None) -> Self:
        """Returns the figure with this title as the whole heading; None leaves the figure unchanged."""
        return self if title is None else replace(self, title=title, score=None, left_out=0)


@dataclass(frozen=True, eq=False)
class AttentionPicture(SentencePicture):
    """A sentence pair with its attention weights.

    Attributes:
        src_words: S column labels.
        tgt_words: T row labels.
        weights: (T, S), non-negative.
        windows: T local attention windows, one for each row; empty for global attention.
        p_gen: Probability that each row's word was generated rather than copied, (T,); None if the
            model cannot copy. A copying model has no windows.
        copied: The rows whose words were copied from the source.
        article: Whether the source is an article and the target its summary; see `is_summary`.
    """

    src_words: Sequence[str]
    tgt_words: Sequence[str]
    weights: NDArray[Any]
    windows: Sequence[SourceWindow] = ()
    p_gen: NDArray[Any] | None = None
    copied: frozenset[int] = frozenset()
    article: bool = False

    def __post_init__(self) -> None:
        rows, columns = len(self.tgt_words), len(self.src_words)
        assert self.weights.shape == (rows, columns), (
            f"weights {self.weights.shape} for {rows} x {columns} words"
        )
        assert len(self.windows) in (0, rows)
        assert self.p_gen is None or self.p_gen.shape == (rows,)
        assert self.p_gen is None or not self.windows

    def _repr_html_(self) -> str:
        """Returns the page that `save` writes, embedded in a frame for notebooks."""
        from nmtkit.plots.pages import attention_page, framed

        return framed(attention_page([self], grid=False), height=450 + 28 * len(self.tgt_words))

    @property
    def is_summary(self) -> bool:
        """Whether to draw the pair as a summary: the source as text with coverage, and p_gen under each target word.

        True for every copying model, and for models that summarize articles with global attention.
        """
        return self.p_gen is not None or (self.article and not self.windows)

    @property
    def coverage(self) -> NDArray[Any]:
        """The sum of each source word's weights, (S,) (See et al. 2017, equation 10)."""
        return np.asarray(self.weights.sum(axis=0))

    def is_outside_window(self, row: int, column: int) -> bool:
        """Returns whether a column is outside the row's window and has no weight."""
        if not self.windows or self.weights[row, column] > 0:
            return False
        return not self.windows[row].left <= column <= self.windows[row].right

    @property
    def max_weight(self) -> float:
        """The weight drawn in the strongest colour: the maximum, so that diffuse attention is also visible."""
        return float(self.weights.max()) or 1.0


@dataclass(frozen=True, eq=False)
class HeadsPicture(SentencePicture):
    """A sentence pair with the attention weights of all layers and heads of a Transformer.

    Attributes:
        src_tokens: The S source tokens including the end of sentence.
        tgt_tokens: The T output tokens including the end of sentence.
        encoder: Encoder self-attention, (L, A, S, S); here and below, rows are queries and columns are keys.
        decoder: Decoder self-attention, (L, A, T, T). Row t predicts target token t; column u is the decoder's input u:
            the start of the sentence, then target token u - 1. Inputs after the row's own have weight zero.
        cross: Attention of the decoder over the source, (L, A, T, S).
    """

    src_tokens: Sequence[str]
    tgt_tokens: Sequence[str]
    encoder: NDArray[Any]
    decoder: NDArray[Any]
    cross: NDArray[Any]

    def __post_init__(self) -> None:
        rows, columns = len(self.tgt_tokens), len(self.src_tokens)
        assert self.encoder.shape[2:] == (columns, columns)
        assert self.decoder.shape[2:] == (rows, rows)
        assert self.cross.shape[2:] == (rows, columns)

    def _repr_html_(self) -> str:
        """Returns the page that `save_heads` writes, embedded in a frame for notebooks."""
        from nmtkit.plots.pages import framed, heads_page

        return framed(heads_page([self]), height=420 + 28 * max(self.cross.shape[2:]))


def condense(picture: AttentionPicture, most: int) -> tuple[AttentionPicture, list[int]]:
    """Condenses a figure without windows to at most `most` source words.

    The words with the most coverage are kept. Each span between them becomes one word, "… 14
    words", with the sum of its weights, so that rows still sum to one.

    Returns:
        The figure, and the number of article words that each of its source words represents.
    """
    by_coverage = np.argsort(-picture.coverage, kind="stable")
    count = len(by_coverage)
    kept = min(count, most)
    starts = _starts(by_coverage[:kept], count)
    while len(starts) > most:
        kept -= (len(starts) - most + 1) // 2  # dropping a word removes at most two rows
        starts = _starts(by_coverage[:kept], count)
    sizes = np.diff([*starts, count]).tolist()
    words = [
        picture.src_words[start] if size == 1 else f"… {size} words"
        for start, size in zip(starts, sizes, strict=True)
    ]
    weights = np.add.reduceat(picture.weights, starts, axis=1) if starts else picture.weights
    return replace(picture, src_words=words, weights=weights), sizes


def _starts(kept: np.ndarray[tuple[int, ...], np.dtype[np.int64]], count: int) -> list[int]:
    """Returns the start of each kept word and of each span between kept words, out of `count` words."""
    alone = np.zeros(count, dtype=bool)
    alone[kept] = True
    return [i for i in range(count) if i == 0 or alone[i] or alone[i - 1]]
