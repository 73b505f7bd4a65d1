"""Properties of summaries (new or copied words, repetition, length), and recall of given terms.

Words are lower-cased runs of letters and digits, and single letters of scripts without spaces
between words. N-grams do not cross sentences (`metrics.split_sentences`), because an n-gram across
two copied sentences would seem new. Each rate is the mean over the summaries for which it is
defined.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, takewhile

import numpy as np

from nmtkit.core.errors import DataError
from nmtkit.core.version import __version__
from nmtkit.data.text.scripts import mark_class, unspaced_class, word_pattern
from nmtkit.data.text.sentences import split_sentences
from nmtkit.metrics.metric import METRICS, Metric, Score, Texts

NGRAM_ORDERS = (1, 2, 3, 4)
MIN_FRAGMENT_WORDS = 3
"""Number of words that a copied fragment must share with a sentence for the sentence to count as used; shorter
fragments, such as "of the", may be due to chance.
"""


@cache
def _term() -> re.Pattern[str]:
    unspaced = unspaced_class()
    marks = mark_class()
    return re.compile(
        rf"[{unspaced}][{marks}]*|(?:(?![{unspaced}])[\w{marks}])+(?:(?<=\d)[.,:/-](?=\d)\w+)*"
    )


TERM_RECALL = METRICS.register("term-recall")(Metric("term-recall", "term recall", needs="terms"))


@dataclass(frozen=True)
class QualityReport:
    """Means over summaries; shares range from 0 to 100. A mean over no summaries is None."""

    summaries: int
    empty: int
    """Number of summaries without words."""
    words: float
    """Mean number of words, including empty summaries."""
    novel: tuple[float | None, float | None, float | None, float | None]
    """For n from 1 to 4, share of the summary's n-grams that are not in the article (See et al.
    2017, figure 6); every occurrence counts.
    """
    copied: float | None
    """Share of the summary's words in copied fragments: extractive coverage (Grusky et al. 2018, eq. 1)."""
    density: float | None
    """Mean, over the summary's words, of the length of the copied fragment that contains the word:
    extractive fragment density (Grusky et al. 2018, eq. 2).
    """
    repeated_trigrams: float | None
    """Share of the summary's trigrams that occur earlier in the same summary."""
    length_to_article: float | None
    """Words of all summaries divided by words of all articles, in percent."""
    length_to_reference: float | None
    """The same relative to the references; if there are several per summary, their mean length counts."""
    source_words: float | None
    """Share of the article's words in copied fragments."""
    source_sentences: float | None
    """Share of the article's sentences with at least `MIN_FRAGMENT_WORDS` words of a copied fragment."""
    signature: str


def quality(
    summaries: Sequence[str], articles: Sequence[str], references: Sequence[Sequence[str]] = ()
) -> QualityReport:
    """Describes summaries by comparison with their articles and the lengths of `references[r][i]`.

    See, Liu and Manning 2017, "Get To The Point: Summarization with Pointer-Generator Networks"; Grusky, Naaman and
    Artzi 2018, "Newsroom: A Dataset of 1.3 Million Summaries with Diverse Extractive Strategies".
    """
    if not summaries:
        raise DataError("there are no summaries")
    for name, lines in [("articles", articles), *(("references", lines) for lines in references)]:
        if len(lines) != len(summaries):
            raise DataError(f"there are {len(summaries)} summaries, but {len(lines)} {name}")

    rates: dict[str, list[float]] = {}
    n_words = n_article_words = empty = 0
    for summary, article in zip(summaries, articles, strict=True):
        sentences, article_sentences = sentence_words(summary), sentence_words(article)
        words = sum(map(len, sentences))
        n_words += words
        n_article_words += sum(map(len, article_sentences))
        empty += not words
        for name, part, whole in _shares(sentences, article_sentences):
            if whole:
                rates.setdefault(name, []).append(part / whole)

    def mean(name: str, scale: float = 100) -> float | None:
        return scale * float(np.mean(rates[name])) if name in rates else None

    n_reference_words = 0.0
    for row in Texts(summaries, references).references if references else ():
        n_words_of_row = sum(len(words) for line in row for words in sentence_words(line))
        n_reference_words += n_words_of_row * len(references) / len(row)
    return QualityReport(
        summaries=len(summaries),
        empty=empty,
        words=n_words / len(summaries),
        novel=(mean("novel1"), mean("novel2"), mean("novel3"), mean("novel4")),
        copied=mean("copied"),
        density=mean("density", scale=1),
        repeated_trigrams=mean("repeated"),
        length_to_article=100 * n_words / n_article_words if n_article_words else None,
        length_to_reference=100 * n_words * len(references) / n_reference_words
        if n_reference_words
        else None,
        source_words=mean("source_words"),
        source_sentences=mean("source_sentences"),
        signature=f"tok:letters-digits|case:lc|sents:auto|ngrams:in-sentence|agg:mean|version:nmtkit-{__version__}",
    )


def _shares(
    sentences: Sequence[Sequence[str]], article_sentences: Sequence[Sequence[str]]
) -> Iterator[tuple[str, int, int]]:
    """Returns name, part and whole of every rate of a summary; a rate with whole 0 is undefined."""
    article_words = list(chain(*article_sentences))
    n_words = sum(map(len, sentences))
    for n in NGRAM_ORDERS:
        known = set(_ngrams([article_words], n))
        own = list(_ngrams(sentences, n))
        yield f"novel{n}", sum(ngram not in known for ngram in own), len(own)
    trigrams = list(_ngrams(sentences, 3))
    yield "repeated", len(trigrams) - len(set(trigrams)), len(trigrams)
    fragments = copied_fragments(sentences, article_words)
    yield "copied", sum(map(len, fragments)), n_words
    yield "density", sum(len(fragment) ** 2 for fragment in fragments), n_words
    if n_words:
        touched = np.zeros(len(article_words), dtype=bool)
        for fragment in fragments:
            touched[fragment.start : fragment.stop] = True
        yield "source_words", int(touched.sum()), len(article_words)
        yield (
            "source_sentences",
            _sentences_used(fragments, article_sentences),
            len(article_sentences),
        )


def sentence_words(text: str) -> list[list[str]]:
    """Returns the words of each non-empty sentence."""
    sentences = [word_pattern().findall(sentence.lower()) for sentence in split_sentences(text)]
    return [words for words in sentences if words]


def copied_fragments(sentences: Sequence[Sequence[str]], article: Sequence[str]) -> list[range]:
    """Returns the fragments that a summary shares with its article, as places in the article.

    Grusky et al. 2018, figure 3: at each word, takes the longest run of words that the article also
    contains, and continues after it. Here a run ends at the end of its sentence.
    """
    places: dict[str, list[int]] = {}
    for place, word in enumerate(article):
        places.setdefault(word, []).append(place)
    fragments = []
    for words in sentences:
        here = 0
        while here < len(words):
            runs = [
                (_run(words, here, article, place), -place) for place in places.get(words[here], ())
            ]
            length, place = max(
                runs, default=(1, 1)
            )  # of the longest runs, the first in the article
            if runs:
                fragments.append(range(-place, length - place))
            here += length
    return fragments


def _run(words: Sequence[str], here: int, article: Sequence[str], place: int) -> int:
    """Counts equal words from `here` in a sentence and from `place` in the article."""
    rest = words[here:]
    pairs = zip(rest, article[place : place + len(rest)], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _sentences_used(fragments: Sequence[range], article_sentences: Sequence[Sequence[str]]) -> int:
    """Counts the article's sentences with at least `MIN_FRAGMENT_WORDS` words of one fragment."""
    sentence_of = [number for number, words in enumerate(article_sentences) for _ in words]
    used: set[int] = set()
    for fragment in fragments:
        held = Counter(sentence_of[fragment.start : fragment.stop])
        used.update(number for number, count in held.items() if count >= MIN_FRAGMENT_WORDS)
    return len(used)


def _ngrams(sentences: Sequence[Sequence[str]], n: int) -> Iterator[tuple[str, ...]]:
    for words in sentences:
        yield from zip(*(words[i:] for i in range(n)), strict=False)


def term_recall(
    summaries: Sequence[str], terms: Sequence[Sequence[str]], lowercase: bool = False
) -> Score:
    """Returns the share of terms (words or phrases) found in their summary, over the corpus, 0 to 100.

    A word is a run of letters and digits, including ".", ",", ":", "/" and "-" between digits, so 5
    is not found in 3.5 or 2-5, but Smith is found in "Smith's". The words of a phrase must be
    consecutive; punctuation between them is ignored. A term that is repeated for a summary counts once.
    `lowercase` ignores case.
    """
    if len(summaries) != len(terms):
        raise DataError(f"there are {len(summaries)} summaries, but {len(terms)} lists of terms")
    hits = n_terms = 0
    for number, (summary, phrases) in enumerate(zip(summaries, terms, strict=True), start=1):
        text = _joined(summary, lowercase)
        for phrase in dict.fromkeys(phrases):
            words = _joined(phrase, lowercase)
            if not words.strip():
                raise DataError(
                    f"example {number}: the term {phrase!r} contains no letters or digits"
                )
            n_terms += 1
            hits += words in text
    if not n_terms:
        raise DataError("no example has a term, so there is nothing to search for")
    case = "lc" if lowercase else "mixed"
    signature = (
        f"terms:{n_terms}|examples:{sum(map(bool, terms))}|case:{case}|version:nmtkit-{__version__}"
    )
    return Score(TERM_RECALL.title, 100 * hits / n_terms, signature)


def _joined(text: str, lowercase: bool) -> str:
    """Returns the words surrounded by spaces, so that phrases of whole words are substrings."""
    return f" {' '.join(_term().findall(text.lower() if lowercase else text))} "
