"""Maps words to their tokens, in a text or in a list of tokens.

Word alignments refer to words by their index in the line split at white space (`str.split`). Words are tokenized
separately, which gives the same tokens as tokenizing the whole line, because tokenizers do not merge characters across
white space; the only exceptions are some imported tokenizers. Lines with links are rejected if tokenizing them word by
word gives different tokens. In a list of tokens, the mark "▁" shows where words begin.
"""

import unicodedata
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit.core.errors import DataError
from nmtkit.data.text.alignments import Link
from nmtkit.data.text.scripts import SCRIPTS, UNSPACED, script_of
from nmtkit.data.tokenizers.tokenizer import WORD_START, Tokenizer
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, SPECIALS

PieceShare = tuple[int, list[float]]
"""The pieces of a word: the index of the first piece, and the word's share of that piece and of each following one."""

WORDS_AT_ONCE = 128
"""Number of words whose pieces are summed at a time. A table of all words and pieces would grow quadratically with the
length of the line."""


@dataclass(frozen=True)
class WordSegmentation:
    """A line split into words and into token ids, without EOS."""

    words: list[str]
    ids: list[int]
    shares: list[PieceShare]
    """The tokens of each word, and how much of each token belongs to the word."""

    def ids_by_word(self) -> list[list[int]]:
        """Returns the token ids of each word; a token that belongs to two words is included in both."""
        ids_by_word = []
        for first, parts in self.shares:
            end = first + len(parts)
            ids_by_word.append(self.ids[first:end])
        return ids_by_word


def cut_words(
    tokenizer: Tokenizer,
    lines: Sequence[str],
    segmented: Sequence[str | None],
    places: Sequence[str],
) -> list[WordSegmentation]:
    """Splits lines into words, and words into tokens.

    Args:
        tokenizer: tokenizer of the lines.
        lines: lines of text.
        segmented: the same lines with additional white space between words, such as "l' homme ." for "l'homme."; None
            for a line whose own white space separates the words. A token that crosses the boundary between two such
            words is divided between them in proportion to their characters.
        places: location of each segmented line, for messages.
    """
    words_by_line = [line.split() for line in lines]
    distinct_words = list(dict.fromkeys(chain.from_iterable(words_by_line)))
    word_ids = dict(zip(distinct_words, tokenizer.encode_many(distinct_words), strict=True))
    segmentations = []
    # Cache of `_shares`, whose result depends only on the parts.
    shares_by_parts: dict[tuple[str, ...], list[PieceShare]] = {}
    for words, segmented_line, place in zip(words_by_line, segmented, places, strict=True):
        ids = list(chain.from_iterable(word_ids[word] for word in words))
        if tokenizer.config.kind == "huggingface" and ids != tokenizer.encode(" ".join(words)):
            raise DataError(
                f"{place}: the tokenizer of this imported model splits the line differently from the individual "
                "words, so tokens cannot be assigned to words; use plot-attention, which shows tokens"
            )
        parts_by_word: list[tuple[str, ...]] = [(word,) for word in words]
        if segmented_line is not None:
            parts_by_word = _parts(words, segmented_line.split(), place)
        shares: list[PieceShare] = []
        begin = 0
        for word, parts in zip(words, parts_by_word, strict=True):
            n_tokens = len(word_ids[word])
            if parts not in shares_by_parts:
                shares_by_parts[parts] = _shares(tokenizer, parts, n_tokens)
            for first, part_shares in shares_by_parts[parts]:
                shares.append((begin + first, part_shares))
            begin += n_tokens
        all_parts = list(chain.from_iterable(parts_by_word))
        segmentations.append(WordSegmentation(words=all_parts, ids=ids, shares=shares))
    return segmentations


def token_spans(
    tokenizer: Tokenizer,
    lines: Sequence[str],
    segmented: Sequence[str | None],
    places: Sequence[str],
) -> list[list[tuple[int, int]]]:
    """Returns the token range `(first, end)` of each word in each line; for the arguments, see `cut_words`."""
    spans_by_line = []
    for segmentation in cut_words(tokenizer, lines, segmented=segmented, places=places):
        spans = [(first, first + len(parts)) for first, parts in segmentation.shares]
        spans_by_line.append(spans)
    return spans_by_line


def _shares(tokenizer: Tokenizer, parts: Sequence[str], n_tokens: int) -> list[PieceShare]:
    """Returns the tokens of each part of a word, and how much of each token belongs to the part."""
    if len(parts) == 1 or n_tokens == 0:
        whole_word = (0, [1.0] * n_tokens)
        return [whole_word] * len(parts)
    tokens = tokenizer.tokens("".join(parts))
    token_lengths = [len(token.replace(WORD_START, "")) for token in tokens]
    part_lengths = [len(part) for part in parts]
    return piece_shares(token_lengths, part_lengths)


def _parts(words: list[str], segmented_words: list[str], place: str) -> list[tuple[str, ...]]:
    """Returns the segmented words that form each word of the text; raises a DataError if the two texts differ."""
    hint = "the file must contain the same text, with white space added between words and nothing else changed"
    remaining = deque(segmented_words)
    parts_by_word: list[tuple[str, ...]] = []
    for word in words:
        parts: list[str] = []
        joined = ""
        while len(joined) < len(word) and remaining:
            part = remaining.popleft()
            parts.append(part)
            joined += part
        if joined != word:
            raise DataError(
                f"{place}: the words file has {' '.join(parts)!r} where the text has {word!r}; {hint}"
            )
        parts_by_word.append(tuple(parts))
    if remaining:
        raise DataError(
            f"{place}: the words file has {' '.join(remaining)!r} where the text ends; {hint}"
        )
    return parts_by_word


def token_links(
    links: Iterable[Link], src: Sequence[tuple[int, int]], tgt: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Returns the links between tokens, sorted and distinct: all tokens of linked words are linked.

    `src` and `tgt` are the token ranges of the words; see `token_spans`.
    """
    pairs: set[tuple[int, int]] = set()
    for src_word, tgt_word in links:
        src_tokens = range(*src[src_word])
        tgt_tokens = range(*tgt[tgt_word])
        pairs.update(product(src_tokens, tgt_tokens))
    return sorted(pairs)


def piece_shares(piece_lengths: Sequence[int], word_lengths: Sequence[int]) -> list[PieceShare]:
    """Returns each word's share of its pieces, given the lengths of the pieces and words of the same text.

    Lengths are in characters; no word has length 0. A piece that crosses a word boundary is divided in proportion to
    its characters on either side, so that its shares sum to 1. If the tokenizer has changed the length of the text
    (NFKC may do so), boundaries are moved in proportion. A piece without characters (a single "▁") belongs to the word
    that begins after it, or to the last word.
    """
    # Boundaries of words and of pieces are compared on one scale, on which a character of a piece has the length
    # sum(word_lengths) and a character of a word the length sum(piece_lengths). These are whole numbers, so equal
    # boundaries compare as equal.
    piece_scale = sum(word_lengths)
    word_scale = sum(piece_lengths)
    piece_ends = [piece_scale * characters for characters in accumulate(piece_lengths)]
    word_ends = [word_scale * characters for characters in accumulate(word_lengths)]
    shares = []
    first = 0
    begin = 0
    for number, end in enumerate(word_ends):
        is_last_word = number == len(word_ends) - 1
        # Skip the pieces before the word. A piece without characters at the beginning of the word belongs to the word.
        while first < len(piece_ends):
            piece_end = piece_ends[first]
            is_empty = piece_lengths[first] == 0
            if piece_end > begin or (piece_end == begin and is_empty):
                break
            first += 1
        parts: list[float] = []
        for piece in range(first, len(piece_ends)):
            length = piece_scale * piece_lengths[piece]
            piece_end = piece_ends[piece]
            piece_begin = piece_end - length
            is_empty = length == 0
            if piece_begin >= end and not (is_last_word and is_empty):
                break
            overlap = min(piece_end, end) - max(piece_begin, begin)
            parts.append(1.0 if is_empty else overlap / length)
        shares.append((first, parts))
        begin = end
    return shares


def share_table(words: Sequence[PieceShare]) -> NDArray[np.float64]:
    """Returns a table `(W, P)` with each word's share of each piece, up to the last piece of any word."""
    ends = [first + len(parts) for first, parts in words]
    n_pieces = max(ends, default=0)
    table = np.zeros((len(words), n_pieces))  # (W, P)
    for row, (first, parts) in zip(table, words, strict=True):
        row[first : first + len(parts)] = parts
    return table


def merge_to_words(
    weights: NDArray[Any], src_shares: Sequence[PieceShare], tgt_shares: Sequence[PieceShare]
) -> NDArray[np.float64]:
    """Converts attention between pieces `(T', S')` to attention between words `(T, S)`.

    The columns of a source word's pieces are summed; the rows of a target word's pieces are averaged. A piece that
    belongs to two words contributes to each word according to that word's share. The row of a word without pieces is 0.
    """
    pieces_by_word = [sum(parts) for _, parts in tgt_shares]
    lengths = np.array(pieces_by_word)[:, None]  # (T, 1)
    summed = _sum_pieces(tgt_shares, weights.astype(np.float64))  # (T, S')
    averaged = np.divide(summed, lengths, out=np.zeros_like(summed), where=lengths > 0)  # (T, S')
    return _sum_pieces(src_shares, averaged.T).T


def _sum_pieces(words: Sequence[PieceShare], pieces: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns, for each word, the sum of its pieces' rows `(P, C)` weighted by its shares: `(W, C)`."""
    sums = np.zeros((len(words), pieces.shape[1]))  # (W, C)
    for begin in range(0, len(words), WORDS_AT_ONCE):
        end = begin + WORDS_AT_ONCE
        chunk = words[begin:end]
        # Neighbouring words have neighbouring pieces, so the table of a chunk needs only the pieces of the chunk.
        first_piece = min(first for first, _ in chunk)
        shifted = [(first - first_piece, parts) for first, parts in chunk]
        table = share_table(shifted)  # (words, pieces of the chunk)
        n_pieces = table.shape[1]
        sums[begin:end] = table @ pieces[first_piece : first_piece + n_pieces]
    return sums


def word_spans(tokens: Sequence[str]) -> list[range]:
    """Returns the token range of each word, if words are separated by white space."""
    begins = []
    for position, token in enumerate(tokens):
        if position == 0 or token.startswith(WORD_START):
            begins.append(position)
    return _ranges(begins, len(tokens))


def display_word_spans(tokens: Sequence[str]) -> list[range]:
    """Returns the token range of each word that a reader would see.

    Differs from `word_spans` in that "<s>" and "</s>" are words, and that in scripts written without spaces (such as
    Han, kana and Thai) each token is a word; punctuation belongs to the token before it.
    """
    begins = []
    for position, token in enumerate(tokens):
        if position == 0 or _begins_display_word(tokens[position - 1], token):
            begins.append(position)
    return _ranges(begins, len(tokens))


def _ranges(begins: Sequence[int], end: int) -> list[range]:
    """Returns consecutive ranges that begin at these positions; the last one ends at `end`."""
    bounds = [*begins, end]
    return [range(*bound) for bound in pairwise(bounds)]


_STANDALONE = (SPECIALS[BOS], SPECIALS[EOS])


def _begins_display_word(previous: str, token: str) -> bool:
    if token.startswith(WORD_START) or token in _STANDALONE or previous in _STANDALONE:
        return True
    first_character = token[:1]
    category = unicodedata.category(first_character or " ")
    is_letter_or_number = category[0] in "LN"
    if previous == WORD_START or not is_letter_or_number:
        return False
    # A word begins between two letters if one of them belongs to a script without spaces.
    scripts = {SCRIPTS[script_of(character)] for character in previous[-1:] + first_character}
    return not scripts.isdisjoint(UNSPACED)
