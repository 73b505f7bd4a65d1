"""Words and their tokens: of a text, and of tokens alone.

Word alignments count words separated by white space (`str.split`). Each word is tokenized by itself, which gives the
same tokens as the whole line, for no tokenizer joins characters across white space: but some imported ones do, and
sentencepiece without normalization does across all but plain spaces. Links of such lines are refused. Of tokens alone,
the mark "▁" tells where words begin.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit.core.errors import DataError
from nmtkit.data.text.alignments import Link
from nmtkit.data.text.scripts import SCRIPTS, UNSPACED, script_of
from nmtkit.data.tokenizers.tokenizer import WORD_START, Tokenizer
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, SPECIALS, UNK

PieceShare = tuple[int, list[float]]
"""The pieces of a word: index of the first, and the share of each from there on."""
_SAME_TEXT = "it must hold the same text, with white space added between words and nothing else changed"

WORDS_AT_ONCE = 128
"""Words whose pieces are summed at a time: a table of all words and pieces would grow with the square of a line."""


@dataclass(frozen=True)
class WordSegmentation:
    """A line as words and token ids, without EOS; `shares` are the words' shares of the tokens."""

    words: list[str]
    ids: list[int]
    shares: list[PieceShare]

    def ids_by_word(self) -> list[list[int]]:
        """The tokens of each word; a token of two words is in both."""
        return [self.ids[first : first + len(parts)] for first, parts in self.shares]


def cut_words(
    tokenizer: Tokenizer, lines: Sequence[str], given: Sequence[str | None], places: Sequence[str]
) -> list[WordSegmentation]:
    """Splits lines into words, and words into tokens.

    A line of `given` has the same text with further white space between words: "l' homme ." for "l'homme."; None:
    without. A token across the end of such a word is shared by both, by characters.
    """
    texts = [line.split() for line in lines]
    distinct = list(dict.fromkeys(word for words in texts for word in words))
    ids_of = dict(zip(distinct, tokenizer.encode_many(distinct), strict=True))
    cuts = []
    shares_of: dict[tuple[str, ...], list[PieceShare]] = {}  # within a word of the text, by its parts
    for words, other, place in zip(texts, given, places, strict=True):
        ids = [token for word in words for token in ids_of[word]]
        if tokenizer.config.kind == "huggingface" and ids != tokenizer.encode(" ".join(words)):
            raise DataError(
                f"{place}: the tokenizer of this imported model cuts a line otherwise than its words, so that words "
                "have no tokens of their own; look at tokens with plot-attention"
            )
        parts = [(word,) for word in words] if other is None else _parts(words, other.split(), place)
        shares: list[PieceShare] = []
        start = 0
        for word, own in zip(words, parts, strict=True):
            if own not in shares_of:
                shares_of[own] = _shares(tokenizer, own, len(ids_of[word]))
            shares += [(start + first, share) for first, share in shares_of[own]]
            start += len(ids_of[word])
        cuts.append(WordSegmentation([*chain(*parts)], ids, shares))
    return cuts


def token_spans(
    tokenizer: Tokenizer, lines: Sequence[str], given: Sequence[str | None], places: Sequence[str]
) -> list[list[tuple[int, int]]]:
    """The token range `(first, end)` of each word of each line; see `cut_words`."""
    cuts = cut_words(tokenizer, lines, given, places)
    return [[(first, first + len(share)) for first, share in cut.shares] for cut in cuts]


def _shares(tokenizer: Tokenizer, parts: Sequence[str], count: int) -> list[PieceShare]:
    """The share of each part of a word in its `count` tokens."""
    if len(parts) == 1 or not count:
        return [(0, [1.0] * count) for _ in parts]
    lengths = [len(token.replace(WORD_START, "")) for token in tokenizer.tokens("".join(parts))]
    return piece_shares(lengths, [len(part) for part in parts])


def _parts(words: list[str], given: list[str], place: str) -> list[tuple[str, ...]]:
    """The given words in each white-space word."""
    left = iter(given)
    parts: list[tuple[str, ...]] = []
    for word in words:
        of_word: list[str] = []
        while len("".join(of_word)) < len(word) and (part := next(left, None)) is not None:
            of_word.append(part)
        if "".join(of_word) != word:
            raise DataError(
                f"{place}: the file of words has {' '.join(of_word)!r} where the text has {word!r}; {_SAME_TEXT}"
            )
        parts.append(tuple(of_word))
    if more := list(left):
        raise DataError(f"{place}: the file of words has {' '.join(more)!r} where the text ends; {_SAME_TEXT}")
    return parts


def token_links(
    links: Iterable[Link], src: Sequence[tuple[int, int]], tgt: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Links between the tokens of linked words, each of one with each of the other, sorted and distinct."""
    return sorted({(s, t) for i, j in links for s in range(*src[i]) for t in range(*tgt[j])})


def piece_shares(piece_lengths: Sequence[int], word_lengths: Sequence[int]) -> list[PieceShare]:
    """The share of each word in each piece, if pieces and words segment the same text differently.

    Lengths are in characters; no word has 0. A piece across a word boundary is shared by characters; its shares sum to
    one. If the tokenizer changed the length of the text (NFKC may), boundaries move in proportion. A piece without
    characters (a single "▁") belongs to the word that begins after it, or to the last.
    """
    # Boundaries of words and of pieces are compared in one unit, of which a character of the pieces has
    # sum(word_lengths) and a character of the words sum(piece_lengths): whole numbers, so that equal ones are equal.
    unit, word_unit = sum(word_lengths), sum(piece_lengths)
    ends = [unit * characters for characters in accumulate(piece_lengths)]
    shares = []
    first = begin = 0
    for number, characters in enumerate(accumulate(word_lengths), start=1):
        end = word_unit * characters
        is_last = number == len(word_lengths)
        while first < len(ends) and (ends[first] < begin or (ends[first] == begin and piece_lengths[first])):
            first += 1
        parts: list[float] = []
        for piece in range(first, len(ends)):
            length = unit * piece_lengths[piece]
            start = ends[piece] - length
            if start >= end and not (is_last and not length):
                break
            overlap = min(ends[piece], end) - max(start, begin)
            parts.append(overlap / length if length else 1.0)
        shares.append((first, parts))
        begin = end
    return shares


def share_table(words: Sequence[PieceShare]) -> NDArray[np.float64]:
    """The share of each word in each piece, up to the last piece of any word: `(W,P)`."""
    table = np.zeros((len(words), max((start + len(parts) for start, parts in words), default=0)))
    for row, (start, parts) in zip(table, words, strict=True):
        row[start : start + len(parts)] = parts
    return table


def merge_to_words(
    weights: NDArray[Any], src_shares: Sequence[PieceShare], tgt_shares: Sequence[PieceShare]
) -> NDArray[np.float64]:
    """Merges attention `(T',S')` between pieces into attention `(T,S)` between words with these shares.

    Columns of a source word are summed, rows of a target word are averaged. A piece of two words counts for each with
    its share. The row of a word without pieces is zero.
    """
    lengths = np.array([sum(parts) for _, parts in tgt_shares])[:, None]
    summed = _sum_pieces(tgt_shares, weights.astype(np.float64))
    rows = np.divide(summed, lengths, out=np.zeros_like(summed), where=lengths > 0)
    return _sum_pieces(src_shares, rows.T).T


def _sum_pieces(words: Sequence[PieceShare], pieces: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rows of pieces `(P,C)` summed by their share in each word: `(W,C)`."""
    sums = np.zeros((len(words), pieces.shape[1]))
    for begin in range(0, len(words), WORDS_AT_ONCE):
        chunk = words[begin : begin + WORDS_AT_ONCE]
        first = min(start for start, _ in chunk)
        table = share_table([(start - first, parts) for start, parts in chunk])
        sums[begin : begin + len(chunk)] = table @ pieces[first : first + table.shape[1]]
    return sums


def known_ids(tokenizer: Tokenizer, tokens: Iterable[str]) -> list[int]:
    """The ids of `Tokenizer.tokens`; a token that spells a special one, such as "<s>", is unknown."""
    return [number if number >= tokenizer.vocabulary.n_specials else UNK for number in tokenizer.vocabulary.ids(tokens)]


def word_spans(tokens: Sequence[str]) -> list[range]:
    """The words separated by white space, each as a range of tokens."""
    starts = [i for i, token in enumerate(tokens) if i == 0 or token.startswith(WORD_START)]
    return [range(*span) for span in pairwise([*starts, len(tokens)])]


def display_word_spans(tokens: Sequence[str]) -> list[range]:
    """Words as a reader sees them, each as a range of tokens.

    Like `word_spans`, but "<s>" and "</s>" are words of their own. In scripts written without spaces (such as Han,
    kana and Thai) every token is one; punctuation joins what stands before it.
    """
    starts = [i for i in range(len(tokens)) if i == 0 or _is_shown_apart(tokens[i - 1], tokens[i])]
    return [range(*span) for span in pairwise([*starts, len(tokens)])]


_STANDALONE = (SPECIALS[BOS], SPECIALS[EOS])


def _is_shown_apart(before: str, token: str) -> bool:
    if token.startswith(WORD_START) or token in _STANDALONE or before in _STANDALONE:
        return True
    if before == WORD_START or unicodedata.category(token[:1] or " ")[0] not in "LN":
        return False
    return any(SCRIPTS[script_of(character)] in UNSPACED for character in (*token[:1], *before[-1:]))
