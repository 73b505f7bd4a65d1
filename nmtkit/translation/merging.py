"""From subword pieces to words: attention between pieces becomes attention between words."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.alignments import Share, merge
from nmtkit.data.tokenizer import MARK
from nmtkit.data.words import shown_word_spans
from nmtkit.pictures import SourceWindow


def merge_subwords(
    src_pieces: Sequence[str], tgt_pieces: Sequence[str], weights: NDArray[Any]
) -> tuple[list[str], list[str], NDArray[np.float64]]:
    """Joins pieces to the words that a reader sees (`nmtkit.data.words.shown_word_spans`), and merges their weights.

    Columns (source) of one word are *added*: looking at a word is looking at any of its pieces. Rows (target) of one
    word are *averaged*: the word looks where its pieces look on average. So rows that sum to one still do.

    Args:
        src_pieces: The pieces of the columns, as the tokenizer wrote them.
        tgt_pieces: The pieces of the rows.
        weights: Attention weights, (target pieces, source pieces).

    Returns:
        The source words, the target words, and the weights between them, (T, S).
    """
    shape = (len(tgt_pieces), len(src_pieces))
    assert weights.shape == shape, f"weights {weights.shape} for pieces {shape}"
    return _words(src_pieces), _words(tgt_pieces), merge(weights, _shares(src_pieces), _shares(tgt_pieces))


def merge_windows(
    src_pieces: Sequence[str], tgt_pieces: Sequence[str], windows: Sequence[SourceWindow]
) -> list[SourceWindow]:
    """Windows over pieces become windows over the words that `merge_subwords` makes of the pieces.

    Columns: a word of three pieces is one column wide, so each of its pieces is a third of a column; before the first
    and behind the last word a piece is as wide as a column. Rows of one word: the centre is the mean of its pieces'
    centres, and the window spans all that any of its pieces could see.

    Args:
        src_pieces: The pieces of the columns.
        tgt_pieces: The pieces of the rows.
        windows: One for each target piece, in source pieces: 0 is the middle of the first one; or none at all, where
            attention is global.

    Returns:
        One window for each target word, in source words; or none.
    """
    if not windows:
        return []
    assert len(windows) == len(tgt_pieces), f"{len(windows)} windows for {len(tgt_pieces)} pieces"
    # Where words begin and end, in pieces.
    edges = [start - 0.5 for start in (*(word.start for word in shown_word_spans(src_pieces)), len(src_pieces))]

    def place(piece: float) -> float:
        outside = min(piece - edges[0], 0.0) + max(piece - edges[-1], 0.0)
        return float(np.interp(piece, edges, np.arange(len(edges)) - 0.5) + outside)

    merged = []
    for word in shown_word_spans(tgt_pieces):
        own = [windows[piece] for piece in word]
        centre = sum(place(window.centre) for window in own) / len(own)
        left, right = min(place(window.left) for window in own), max(place(window.right) for window in own)
        merged.append(SourceWindow(centre, centre - left, right - centre))
    return merged


def merge_gates(
    tgt_pieces: Sequence[str], p_gen: Sequence[float], copied: Iterable[int]
) -> tuple[NDArray[np.float64], frozenset[int]]:
    """What is known of target pieces that were generated or copied becomes what is known of their words.

    The pieces with a letter or a digit speak for their word, since a comma that joins a copied name is mostly
    generated; in a word without any, all pieces do. The word's p_gen is the mean of theirs, and the word was copied
    if all of them were.

    Args:
        tgt_pieces: The pieces of the rows.
        p_gen: Probability that each piece was generated.
        copied: Which pieces were copied, from 0.

    Returns:
        For the words that `merge_subwords` makes: p_gen (T,), and which of them were copied.
    """
    assert len(p_gen) == len(tgt_pieces), f"p_gen of {len(p_gen)} for {len(tgt_pieces)} pieces"
    pieces_copied = frozenset(copied)
    merged, words_copied = [], []
    for word, pieces in enumerate(shown_word_spans(tgt_pieces)):
        speaking = [i for i in pieces if any(map(str.isalnum, tgt_pieces[i]))] or pieces
        merged.append(sum(p_gen[i] for i in speaking) / len(speaking))
        if pieces_copied.issuperset(speaking):
            words_copied.append(word)
    return np.array(merged), frozenset(words_copied)


def _shares(pieces: Sequence[str]) -> list[Share]:
    return [(word.start, [1.0] * len(word)) for word in shown_word_spans(pieces)]


def _words(pieces: Sequence[str]) -> list[str]:
    joined = ("".join(pieces[word.start : word.stop]) for word in shown_word_spans(pieces))
    return [word.replace(MARK, " ").strip() or MARK for word in joined]
