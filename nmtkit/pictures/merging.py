"""From subword pieces to words: attention between pieces becomes attention between words."""

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit.pictures.attended import SourceWindow

WORD_START = "▁"
STANDALONE = ("<s>", "</s>")


def merge_subwords(
    src_pieces: Sequence[str], tgt_pieces: Sequence[str], weights: NDArray[Any]
) -> tuple[list[str], list[str], NDArray[np.float64]]:
    """Joins pieces to words and merges their attention weights.

    A piece that begins with "▁" starts a word, and so does the first piece. "<s>" and "</s>" stay words of their own.
    In scripts written without spaces (Han, kana, Thai, Lao, Khmer, Burmese) every piece stays a word of its own, except
    that punctuation joins what stands before it, as it does elsewhere.

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
    src, tgt = _word_starts(src_pieces), _word_starts(tgt_pieces)
    src_words, tgt_words = _words(src_pieces, src), _words(tgt_pieces, tgt)
    if not src or not tgt:
        return src_words, tgt_words, np.zeros((len(tgt), len(src)))
    merged = np.add.reduceat(np.add.reduceat(weights.astype(np.float64), src, axis=1), tgt, axis=0)
    lengths = np.diff([*tgt, len(tgt_pieces)])
    return src_words, tgt_words, merged / lengths[:, None]


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
    edges = [
        start - 0.5 for start in (*_word_starts(src_pieces), len(src_pieces))
    ]  # where words begin and end, in pieces

    def place(piece: float) -> float:
        outside = min(piece - edges[0], 0.0) + max(piece - edges[-1], 0.0)
        return float(np.interp(piece, edges, np.arange(len(edges)) - 0.5) + outside)

    starts = _word_starts(tgt_pieces)
    merged = []
    for start, end in zip(starts, [*starts[1:], len(tgt_pieces)], strict=True):
        own = windows[start:end]
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
    starts = _word_starts(tgt_pieces)
    merged, words_copied = [], []
    for word, (start, end) in enumerate(zip(starts, [*starts[1:], len(tgt_pieces)], strict=False)):
        speaking = [i for i in range(start, end) if any(map(str.isalnum, tgt_pieces[i]))] or range(start, end)
        merged.append(sum(p_gen[i] for i in speaking) / len(speaking))
        if pieces_copied.issuperset(speaking):
            words_copied.append(word)
    return np.array(merged), frozenset(words_copied)


def _word_starts(pieces: Sequence[str]) -> list[int]:
    return [i for i in range(len(pieces)) if i == 0 or _starts_word(pieces[i - 1], pieces[i])]


def _words(pieces: Sequence[str], starts: Sequence[int]) -> list[str]:
    return [_join(pieces[start:end]) for start, end in zip(starts, [*starts[1:], len(pieces)], strict=False)]


def _starts_word(before: str, piece: str) -> bool:
    if piece.startswith(WORD_START) or piece in STANDALONE or before in STANDALONE:
        return True
    if before == WORD_START:
        return False
    if unicodedata.category(piece[:1] or " ")[0] not in "LN":
        return False
    return _is_unspaced(piece[0]) or _is_unspaced(before[-1:])


def _join(pieces: Sequence[str]) -> str:
    return "".join(pieces).replace(WORD_START, " ").strip() or WORD_START


def _is_unspaced(character: str) -> bool:
    """Whether the character belongs to a script that puts no spaces between words."""
    name = unicodedata.name(character, "") if character else ""
    return name.startswith(("CJK UNIFIED", "CJK COMPAT", "HIRAGANA", "KATAKANA", "THAI", "LAO ", "KHMER", "MYANMAR"))
