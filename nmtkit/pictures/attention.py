"""What the pictures of attention show: sentence pairs with their weights.

Letters: T target words (rows), S source words (columns), L layers, A heads. A weight says how much of target word t
came from source word s; each row sums to one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True)
class Window:
    """The stretch of the source that local attention could see while it wrote one target word (Luong et al. 2015, 3.2).

    Attributes:
        centre: p_t, in source columns: 0 is the middle of the first column, 0.5 its right edge.
        half_width: D, how far the window reaches to the left of the centre, and to the right unless told otherwise.
        right_width: How far it reaches to the right where that differs, as it may once subwords were merged.
    """

    centre: float
    half_width: float
    right_width: float | None = None

    @property
    def left(self) -> float:
        """Where the window begins, in source columns; it may lie before the sentence."""
        return self.centre - self.half_width

    @property
    def right(self) -> float:
        """Where the window ends, in source columns; it may lie behind the sentence."""
        return self.centre + (self.half_width if self.right_width is None else self.right_width)


@dataclass(frozen=True, eq=False)
class AttentionPicture:
    """One sentence pair and where the model looked.

    Attributes:
        src_words: The S labels of the columns.
        tgt_words: The T labels of the rows.
        weights: Attention weights, (T, S), not negative.
        title: What the picture shows, such as the model's name.
        score: Log-probability of the target (natural log), if known.
        gold: Pairs (source index, target index), from 0, that are known to be right; drawn as outlines.
        windows: The T windows of local attention, one for each row; empty where attention is global.
    """

    src_words: Sequence[str]
    tgt_words: Sequence[str]
    weights: NDArray[Any]
    title: str = ""
    score: float | None = None
    gold: Sequence[tuple[int, int]] = ()
    windows: Sequence[Window] = ()

    def __post_init__(self) -> None:
        rows, columns = len(self.tgt_words), len(self.src_words)
        assert self.weights.shape == (rows, columns), f"weights {self.weights.shape} for {rows} x {columns} words"
        assert len(self.windows) in (0, rows), f"{len(self.windows)} windows for {rows} rows"

    @property
    def heading(self) -> str:
        """The title with the score behind it."""
        return with_score(self.title, self.score)

    def outside(self, row: int, column: int) -> bool:
        """Whether a column was out of the row's sight: outside its window, and without any weight."""
        if not self.windows or self.weights[row, column] > 0:
            return False
        return not self.windows[row].left <= column <= self.windows[row].right

    @property
    def top(self) -> float:
        """The weight that gets the strongest colour: the largest one, so that diffuse attention can be seen too."""
        return float(self.weights.max()) or 1.0


@dataclass(frozen=True, eq=False)
class LayeredPicture:
    """One sentence pair and where each head of each layer of a Transformer looked.

    Attributes:
        src_tokens: The S source tokens, end of sentence included.
        tgt_tokens: The T target tokens as they were written, end of sentence included.
        encoder: Encoder self-attention, (L, A, S, S); the row looks, the column is looked at, here and below.
        decoder: Decoder self-attention, (L, A, T, T). Row t writes target token t; column u is the decoder's input u:
            the start of the sentence, then target token u - 1. What lies behind the row's own input is zero.
        cross: Attention of the decoder over the source, (L, A, T, S).
        title: What the picture shows, such as the model's name.
        score: Log-probability of the target (natural log), if known.
    """

    src_tokens: Sequence[str]
    tgt_tokens: Sequence[str]
    encoder: NDArray[Any]
    decoder: NDArray[Any]
    cross: NDArray[Any]
    title: str = ""
    score: float | None = None

    def __post_init__(self) -> None:
        rows, columns = len(self.tgt_tokens), len(self.src_tokens)
        for name, weights, shape in (
            ("encoder", self.encoder, (columns, columns)),
            ("decoder", self.decoder, (rows, rows)),
            ("cross", self.cross, (rows, columns)),
        ):
            assert weights.ndim == 4, f"{name} weights {weights.shape} are not (layers, heads, rows, columns)"
            assert weights.shape[2:] == shape, f"{name} weights {weights.shape} for {rows} x {columns} tokens"

    @property
    def heading(self) -> str:
        """The title with the score behind it."""
        return with_score(self.title, self.score)


def with_score(title: str, score: float | None) -> str:
    """A title with the score behind it, if there is one."""
    return title if score is None else f"{title}  (score {score:.2f})".strip()
