"""The words of a line, each with its tokens: what word alignments count.

A word is what white space separates (as Python's `str.split` sees it). Each is cut into tokens by itself, so that it is
always known which tokens are whose. That is how a tokenizer cuts a whole line, too: none joins characters across white
space.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nmtkit.data.alignments import Link, Share, shares
from nmtkit.data.tokenizer import MARK, Tokenizer
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
    tokenizer: Tokenizer, lines: Sequence[str], given: Sequence[str] | None = None, what: str = "line", first: int = 1
) -> list[WordCut]:
    """Cuts lines into words and the words into tokens.

    Args:
        tokenizer: of that side.
        lines: text as the model was trained on.
        given: the same lines cut into words otherwise, by further white space: "l' homme ." for "l'homme.". Then these
            are the words. A token that reaches over the end of such a word counts for both, by characters.
        what: what a line is called in messages.
        first: the number of the first line, for messages.

    Raises:
        DataError: a line of `given` does not spell the text; names it.
    """
    texts = [line.split() for line in lines]
    distinct = list(dict.fromkeys(word for words in texts for word in words))
    ids = dict(zip(distinct, tokenizer.encode_many(distinct), strict=True))
    cuts = []
    for number, words in enumerate(texts, start=first):
        parts = [[word] for word in words]
        if given is not None:
            parts = _parts(words, given[number - first].split(), f"{what} {number}")
        found: list[Share] = []
        start = 0
        for word, of_word in zip(words, parts, strict=True):
            found += [(start + token, part) for token, part in _shares(tokenizer, word, of_word, ids[word])]
            start += len(ids[word])
        inner = [part for of_word in parts for part in of_word]
        cuts.append(WordCut(inner, [token for word in words for token in ids[word]], found))
    return cuts


def _shares(tokenizer: Tokenizer, word: str, parts: list[str], ids: list[int]) -> list[Share]:
    """What each part of a white-space word has of the word's tokens."""
    if len(parts) == 1 or not ids:
        return [(0, [1.0] * len(ids)) for _ in parts]
    lengths = [len(token.replace(MARK, "")) for token in tokenizer.tokens(word)]
    return shares(lengths, [len(part) for part in parts])


def _parts(words: list[str], given: list[str], place: str) -> list[list[str]]:
    """The given words that make up each white-space word."""
    left = iter(given)
    parts: list[list[str]] = []
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
        parts.append(of_word)
    more = next(left, None)
    if more is not None:
        raise DataError(f"{place}: the file of words goes on with {more!r} where the text ends; is it the same line?")
    return parts


def token_spans(
    tokenizer: Tokenizer, lines: Sequence[str], given: Sequence[str | None], places: Sequence[str]
) -> list[list[tuple[int, int]]]:
    """Which tokens each word of each line has: the first, and the one after the last.

    As `cut` for whole corpora: without the tokens and the shares, and every word is looked at once.

    Args:
        tokenizer: of that side.
        lines: text as the model is trained on.
        given: as in `cut`, or None for a line whose words are what white space separates.
        places: what each line is called in messages.

    Raises:
        DataError: a line of `given` does not spell the text; names it.
    """
    texts = [line.split() for line in lines]
    distinct = list(dict.fromkeys(word for words in texts for word in words))
    ids = dict(zip(distinct, tokenizer.encode_many(distinct), strict=True))
    inner: dict[tuple[str, ...], list[tuple[int, int]]] = {}  # spans within a word of the text, by its parts
    spans = []
    for words, other, place in zip(texts, given, places, strict=True):
        parts = [[word] for word in words] if other is None else _parts(words, other.split(), place)
        start, of_line = 0, []
        for word, of_word in zip(words, parts, strict=True):
            key = tuple(of_word)
            if key not in inner:
                inner[key] = [_span(share) for share in _shares(tokenizer, word, of_word, ids[word])]
            of_line += [(start + first, start + end) for first, end in inner[key]]
            start += len(ids[word])
        spans.append(of_line)
    return spans


def _span(share: Share) -> tuple[int, int]:
    """The tokens that a word has a share in: they stand in a row."""
    first, parts = share
    return (first, first + len(parts)) if parts else (0, 0)


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
