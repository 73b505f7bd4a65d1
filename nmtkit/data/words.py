"""Which tokens make a word: of a text whose words are known, and of tokens alone.

Word alignments count the words of a text, which are what white space separates (as Python's `str.split` sees it). Each
is cut into tokens by itself, so that it is always known which tokens are whose. That is how a tokenizer cuts a whole
line, too: none joins characters across white space. Where only tokens are known, the mark of a word's beginning tells.
"""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from nmtkit.data.alignments import Link, Share, shares
from nmtkit.data.tokenizer import MARK, Tokenizer
from nmtkit.data.vocabulary import BOS, EOS, SPECIALS, UNK
from nmtkit.errors import DataError


@dataclass(frozen=True)
class WordCut:
    """One line, cut into W words and P tokens."""

    words: list[str]
    """W words."""
    ids: list[int]
    """P token ids, without EOS."""
    shares: list[Share]
    """Which tokens each of the words has, and which part of each; see `nmtkit.data.alignments.shares`."""


def cut(
    tokenizer: Tokenizer, lines: Sequence[str], given: Sequence[str | None], places: Sequence[str]
) -> list[WordCut]:
    """Cuts lines into words and the words into tokens.

    Args:
        tokenizer: of that side.
        lines: text as the model was trained on.
        given: the same lines cut into words otherwise, by further white space: "l' homme ." for "l'homme.". Then these
            are the words; None for a line whose words are what white space separates. A token that reaches over the end
            of such a word counts for both, by characters.
        places: what each line is called in messages.

    Raises:
        DataError: a line of `given` does not spell the text; names it.
    """
    cuts = []
    for line in _cut_apart(tokenizer, lines, given, places):
        found: list[Share] = []
        start = 0
        for parts, ids in line:
            found += [(start + first, part) for first, part in _shares(tokenizer, parts, len(ids))]
            start += len(ids)
        words = [part for parts, _ in line for part in parts]
        cuts.append(WordCut(words, [token for _, ids in line for token in ids], found))
    return cuts


def token_spans(
    tokenizer: Tokenizer, lines: Sequence[str], given: Sequence[str | None], places: Sequence[str]
) -> list[list[tuple[int, int]]]:
    """Which tokens each word of each line has: the first, and the one after the last; they stand in a row.

    As `cut`, for whole corpora: without the tokens and the shares, and every word is looked at once.
    """
    within: dict[tuple[str, ...], list[tuple[int, int]]] = {}  # spans within a word of the text, by its parts
    spans = []
    for line in _cut_apart(tokenizer, lines, given, places):
        start, of_line = 0, []
        for parts, ids in line:
            if parts not in within:
                own = _shares(tokenizer, parts, len(ids))
                within[parts] = [(first, first + len(part)) for first, part in own]
            of_line += [(start + first, start + end) for first, end in within[parts]]
            start += len(ids)
        spans.append(of_line)
    return spans


def _cut_apart(
    tokenizer: Tokenizer, lines: Sequence[str], given: Sequence[str | None], places: Sequence[str]
) -> Iterator[list[tuple[tuple[str, ...], list[int]]]]:
    """The white-space words of each line: the words that each of them counts as, and its tokens."""
    texts = [line.split() for line in lines]
    distinct = list(dict.fromkeys(word for words in texts for word in words))
    ids = dict(zip(distinct, tokenizer.encode_many(distinct), strict=True))
    for words, other, place in zip(texts, given, places, strict=True):
        parts = [(word,) for word in words] if other is None else _parts(words, other.split(), place)
        yield list(zip(parts, map(ids.__getitem__, words), strict=True))


def _shares(tokenizer: Tokenizer, parts: Sequence[str], count: int) -> list[Share]:
    """What each part of a white-space word has of its `count` tokens."""
    if len(parts) == 1 or not count:
        return [(0, [1.0] * count) for _ in parts]
    lengths = [len(token.replace(MARK, "")) for token in tokenizer.tokens("".join(parts))]
    return shares(lengths, [len(part) for part in parts])


def _parts(words: list[str], given: list[str], place: str) -> list[tuple[str, ...]]:
    """The given words that make up each white-space word."""
    left = iter(given)
    parts: list[tuple[str, ...]] = []
    for word in words:
        of_word: list[str] = []
        while len(spelled := "".join(of_word)) < len(word):
            part = next(left, None)
            if part is None or not word.startswith(spelled + part):
                found = "has no more words" if part is None else f"has {part!r}"
                raise DataError(
                    f"{place}: the file of words {found} where the text has {word[len(spelled) :]!r}; "
                    "it must hold the same text, with white space added between words and nothing else changed"
                )
            of_word.append(part)
        parts.append(tuple(of_word))
    more = next(left, None)
    if more is not None:
        raise DataError(f"{place}: the file of words goes on with {more!r} where the text ends; is it the same line?")
    return parts


def token_links(
    links: Iterable[Link], src: Sequence[tuple[int, int]], tgt: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Links between words as links between tokens: every token of the one word with every token of the other.

    Args:
        links: between words.
        src: the tokens of each source word, see `token_spans`.
        tgt: the same for the target.

    Returns:
        Source and target token of each link, both from 0; no link occurs twice, also where a token has two words.
    """
    return sorted({(s, t) for i, j in links for s in range(*src[i]) for t in range(*tgt[j])})


# ------------------------------------------------------------------------------------------------------- tokens alone


def known_ids(tokenizer: Tokenizer, tokens: Iterable[str]) -> list[int]:
    """The ids of what `Tokenizer.tokens` gave; an unknown token that spells a special one is no less unknown."""
    return [number if number >= len(SPECIALS) else UNK for number in tokenizer.vocabulary.ids(tokens)]


def word_spans(tokens: Sequence[str]) -> list[range]:
    """The words that white space separates, each as its tokens; it begins at the mark, the first one at once."""
    return _spans([number for number, token in enumerate(tokens) if number == 0 or token.startswith(MARK)], len(tokens))


def shown_word_spans(tokens: Sequence[str]) -> list[range]:
    """What a reader takes for words, each as its tokens.

    They are those of `word_spans`, but "<s>" and "</s>" are words of their own, and in scripts written without spaces
    (Han, kana, Thai, Lao, Khmer, Burmese) every token is one, except that punctuation joins what stands before it, as
    it does elsewhere.
    """
    starts = [i for i in range(len(tokens)) if i == 0 or _is_shown_apart(tokens[i - 1], tokens[i])]
    return _spans(starts, len(tokens))


def _spans(starts: list[int], count: int) -> list[range]:
    return [range(start, end) for start, end in pairwise([*starts, count])]


_STANDALONE = (SPECIALS[BOS], SPECIALS[EOS])
_UNSPACED = ("CJK UNIFIED", "CJK COMPAT", "HIRAGANA", "KATAKANA", "THAI", "LAO ", "KHMER", "MYANMAR")


def _is_shown_apart(before: str, token: str) -> bool:
    if token.startswith(MARK) or token in _STANDALONE or before in _STANDALONE:
        return True
    if before == MARK or unicodedata.category(token[:1] or " ")[0] not in "LN":
        return False
    return any(unicodedata.name(character, "").startswith(_UNSPACED) for character in (*token[:1], *before[-1:]))
