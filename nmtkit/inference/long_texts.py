"""Lines longer than a model reads: cut into sentences or windows, each translated by itself, and put together again."""

import heapq
import math
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import ClassVar, overload

from typing_extensions import override

from nmtkit.core.errors import DataError
from nmtkit.data.text.files.lines import split_sentences
from nmtkit.data.text.scripts import unspaced_class
from nmtkit.inference.inputs import require_list
from nmtkit.inference.numbers import missing_numbers
from nmtkit.inference.requests import Request
from nmtkit.inference.result import Translation
from nmtkit.inference.translator import Translator

_SPACED = re.compile(r"(?<![.!?…।۔؟])([.!?…।۔؟]+[\"'”’»)\]]*)\s+(?=(\S+))")
"""Marks that end a sentence where white space follows, and the word behind it."""
_UNSPACED = re.compile(r"(?<=[。！？｡])(?![。！？｡」』）”’])\s*|(?<=[。！？｡][」』）”’])\s*")
_SENTENCE_END = re.compile(r"[.!?…।۔؟。！？｡][\"'”’»)\]」』）]*$")
_CLOSING_UNSPACED = "」』）”’"
_OPENING = "\"'“‘«„‚([¿¡-–—"
_TITLE = re.compile(
    "Mrs?|Ms|Dr|Prof|Rev|Hon|Gov|Sen|Rep|Gen|Col|Capt|Lt|Sgt|St|Mt|Ste|Hrn?|Fr|Mme|Mlle|MM|Sra?|Srta|Dra|Sig|Dott|"
    "vs|cf|ca|approx|bzw|evtl|ggf|inkl|vgl|sog|env"
)
"""Words before a point that never ends a sentence ..."""
_BEFORE_NUMBER = re.compile(
    "[Nn]os?|Nrn?|[Vv]ol|[Ff]igs?|Abb|Tab|Eq|[Aa]rt|Abs|pp?|Bd|pág|Jan|Feb|Mar|Apr|Aug|Sept?|Oct|Nov|Dec"
)
"""... and those where it does not if a number follows."""

MAX_ABBREVIATION_LETTERS = 40
"""The most letters of a word before a full stop that are looked at."""
PARAGRAPH_WORDS = 120
"""Up to this mean number of words, lines are taken for paragraphs and not for articles."""
PARAGRAPH_SENTENCES, PARAGRAPH_BYTES = 3, 100
"""A line with so many sentences and so much text is taken for a paragraph: lines to train on are seldom more than two
sentences."""


def segment_sentences(line: str) -> list[str]:
    """The sentences of a line, in order; an empty line has none.

    A sentence ends at ". ! ? …", and the quotes and brackets that close there, where white space and then no small
    letter follow; at the Chinese and Japanese marks "。！？" wherever they stand; at "। ۔ ؟". A point ends none after a
    title (Dr.), a single capital letter (J. Smith), letters with points between them (e.g., z.B., U.S.), a number of
    one or two digits (German: am 3. Mai), and words such as "Fig." before a number. So two sentences stay one where the
    first ends in such a word. Not known are other abbreviations before a capital letter, sentences that begin with a
    small letter, and languages that end sentences otherwise (Thai, Lao).
    """
    sentences, begin = [], 0
    for end in _SPACED.finditer(line):
        word = line[max(begin, end.end(1) - MAX_ABBREVIATION_LETTERS) : end.end(1)].split()[-1]
        if _ends(word, end[2]):
            sentences.append(line[begin : end.end(1)])
            begin = end.end()
    sentences.append(line[begin:])
    return [part.strip() for piece in sentences for part in _UNSPACED.split(piece) if part.strip()]


def _ends(word: str, following: str) -> bool:
    """Whether a sentence ends between two words; the first has the mark."""
    first = following.lstrip(_OPENING)[:1]
    if first.islower():
        return False
    word = word.lstrip(_OPENING)
    if not word.endswith(".") or word.endswith(".."):
        return True
    word = word[:-1]
    if first.isdigit() and _BEFORE_NUMBER.fullmatch(word):
        return False
    short = re.fullmatch(r"\d\d?|[^\W\d_]", word) and not word.islower()
    return not (short or _TITLE.fullmatch(word) or re.fullmatch(r"(\w\.)+\w", word))


def join_sentences(sentences: Iterable[str]) -> str:
    """One line of the sentences: a space between them, but none behind a mark such as "。"; empty ones are left out."""
    text = ""
    for sentence in filter(None, sentences):
        ended = text.rstrip(_CLOSING_UNSPACED)[-1:] or "。"
        text += ("" if ended in "。！？｡" else " ") + sentence
    return text


def looks_like_paragraph(line: str) -> bool:
    """Whether a line holds far more than the lines that models are trained on; see `PARAGRAPH_SENTENCES`."""
    is_long = len(line.encode("utf-8", "replace")) >= PARAGRAPH_BYTES
    return is_long and len(segment_sentences(line)) >= PARAGRAPH_SENTENCES


def looks_like_one_article(lines: Sequence[str]) -> bool:
    """Whether lines look like the paragraphs of one article.

    Such lines are short, and a blank line separates them at least twice. Articles with one to a line are longer, and
    blank lines between them are rare.
    """
    paragraphs = [line for line in lines if line.strip()]
    text = "\n".join(line.strip() for line in lines).strip("\n")
    gaps = len(re.findall(r"\n{2,}", text))
    if gaps < 2:
        return False
    mean_words = sum(len(line.split()) for line in paragraphs) / len(paragraphs)
    return mean_words <= PARAGRAPH_WORDS


@dataclass(frozen=True)
class JoinedTranslation:
    """The translation of one line that was cut into parts."""

    text: str
    """The translations of the parts, joined in order."""
    parts: list[Translation]
    """Empty for an empty line."""
    kind: str
    """What the parts are: sentences or windows."""
    source: str = ""
    """The whole line."""
    others: tuple["JoinedTranslation", ...] = ()
    """The next best combinations of translations of the parts, if more than one was asked for."""

    @property
    def score(self) -> float:
        """Sum of the scores of the parts, which are ranked independently of each other."""
        return sum(part.score for part in self.parts)

    @property
    def log_prob(self) -> float:
        """Sum of the log-probabilities of the parts, in nats."""
        return sum(part.log_prob for part in self.parts)

    @property
    def tokens(self) -> list[str]:
        """Target pieces of all parts, without EOS."""
        return [token for part in self.parts for token in part.tokens]

    @property
    def finished(self) -> bool:
        """False if the search of a part reached its length limit before EOS."""
        return all(part.finished for part in self.parts)

    @property
    def missing_numbers(self) -> tuple[str, ...]:
        """Numbers, URLs and e-mail addresses of the line that `text` lacks; see `numbers.missing_numbers`."""
        return missing_numbers(self.source, self.text)


def best_combinations(alternatives: Sequence[Sequence[Translation]], count: int, cut_last: bool) -> list[list[int]]:
    """Chooses an alternative for each part, in the `count` combinations with the highest total score.

    This is exact: the beginning of one of the best combinations is among the best combinations of the first parts. With
    `cut_last`, combinations with fewer translations that were cut at the length limit come first, as in a search with
    `at_limit: behind`.

    Returns:
        The index of the translation of each part, for each combination, best first.
    """
    combinations: list[tuple[int, float, list[int]]] = [(0, 0.0, [])]
    for translations in alternatives:
        extended = []
        for penalty, score, chosen in combinations:
            for index, translation in enumerate(translations):
                is_penalized = cut_last and not translation.finished
                extended.append((penalty - is_penalized, score + translation.score, [*chosen, index]))
        combinations = heapq.nlargest(count, extended, key=lambda combination: combination[:2])
    return [chosen for _, _, chosen in combinations]


@dataclass(frozen=True)
class LongTextTranslator(ABC):
    """Cuts each line into parts, translates each part by itself, and joins the translations; lines stay lines."""

    translator: Translator
    kind: ClassVar[str]
    """What the parts are."""

    @abstractmethod
    def cut(self, line: str) -> list[str]:
        """The parts of a line."""

    def join(self, parts: Sequence[Translation]) -> str:
        """One line of the translations of its parts."""
        return " ".join(part.text for part in parts if part.text)

    def stream(
        self, windows: Iterable[Sequence[str | Request]], need_copies: bool = False, n_best: int = 1
    ) -> Generator[list[JoinedTranslation], None, None]:
        """Translates lines that arrive, in order; see `Translator.stream`.

        The `n_best` results of a line are the combinations of its parts' `n_best` results with the highest total
        scores; all but the first are in `JoinedTranslation.others`. The prefix of a request applies to its first part,
        and `must_not` to all parts.
        """
        lines: deque[tuple[str, int]] = deque()  # each line whose result is not out, and the number of its parts
        alternatives: list[list[Translation]] = []
        streamed = self.translator.stream(self._cut_windows(windows, lines), n_best, need_copies=need_copies)
        with closing(streamed) as groups:
            for group in groups:
                results = []
                for translations in group:
                    alternatives.append(translations)
                    source, count = lines[0]
                    if len(alternatives) >= count:
                        lines.popleft()
                        results.append(self._joined(source, alternatives[:count], n_best))
                        alternatives.clear()
                if results:
                    yield results

    def _joined(self, source: str, alternatives: Sequence[Sequence[Translation]], n_best: int) -> JoinedTranslation:
        cut_last = self.translator.config.limit_rule == "behind"
        results = []
        for indices in best_combinations(alternatives, n_best, cut_last):
            parts = [translations[index] for translations, index in zip(alternatives, indices, strict=True)]
            results.append(JoinedTranslation(self.join(parts), parts, self.kind, source))
        return replace(results[0], others=tuple(results[1:]))

    def _cut_windows(
        self, windows: Iterable[Sequence[str | Request]], lines: deque[tuple[str, int]]
    ) -> Iterator[list[str | Request]]:
        """The parts of several lines at a time; a line that has none has an empty one."""
        for window in windows:
            parts: list[str | Request] = []
            for line in window:
                own_parts = self._cut_line(line) if isinstance(line, str) else self._cut_request(line)
                source = line if isinstance(line, str) else line.source
                lines.append((source, len(own_parts)))
                parts += own_parts or [""]
            yield parts

    def _cut_line(self, line: str) -> list[str]:
        tag = self.translator.tokenizers.src.tag(line)  # the language of all parts
        return [tag + part for part in self.cut(line[len(tag) :])]

    def _cut_request(self, request: Request) -> list[Request]:
        sources = self._cut_line(request.source)
        if request.must and len(sources) > 1:
            raise DataError(
                f'{request.where}: "must" does not say to which of its {len(sources)} {self.kind} a term belongs. '
                "Put each sentence on a line of its own, or use a glossary (--terms), whose source terms say it"
            )
        parts = [replace(request, source=source, prefix="") for source in sources]
        if parts:
            parts[0] = replace(parts[0], prefix=request.prefix)
        elif request.prefix or request.must:
            raise DataError(f"{request.where}: it has a prefix or terms but no source to translate; add the source")
        return parts

    def search(
        self, lines: Sequence[str | Request], need_copies: bool = False, n_best: int = 1
    ) -> list[JoinedTranslation]:
        """The translation of each line with its parts; see `stream` and `Translator.search`."""
        require_list(lines=lines)
        with closing(self.stream([lines], need_copies, n_best)) as groups:
            return [result for group in groups for result in group]

    @overload
    def translate(  # type: ignore[overload-overlap]  # as `Translator.translate`
        self, lines: str, terms: Mapping[str, str] | None = None
    ) -> str: ...

    @overload
    def translate(self, lines: Sequence[str], terms: Mapping[str, str] | None = None) -> list[str]: ...

    def translate(self, lines: str | Sequence[str], terms: Mapping[str, str] | None = None) -> str | list[str]:
        """The text for each line, or for the one that is given by itself; an empty line gives an empty line.

        `terms` is a glossary for this call; the terms of a part are those that occur in it.
        """
        if terms is not None:
            return replace(self, translator=self.translator.with_terms(terms)).translate(lines)
        if isinstance(lines, str):
            return self.translate([lines])[0]
        return [result.text for result in self.search(lines)]


class ParagraphTranslator(LongTextTranslator):
    """Translates a paragraph on one line sentence by sentence; sentences are those of `segment_sentences`."""

    kind = "sentences"

    @override
    def cut(self, line: str) -> list[str]:
        return segment_sentences(line)

    @override
    def join(self, parts: Sequence[Translation]) -> str:
        return join_sentences(part.text for part in parts)


@dataclass(frozen=True)
class SummaryLimit:
    """The most sentences and words of a summary. Whole sentences are kept, as many as fit."""

    sentences: int | None = None
    words: int | None = None

    def shorten(self, summaries: Sequence[Translation]) -> str:
        """Shortens the summary of an article, or the summaries of its windows, which are joined.

        Of several windows the first sentence of each is taken, then the second of each, and so on, as long as the
        limits allow; they are printed in the order of the article. An incomplete last sentence, where the search
        reached its limit of tokens, is dropped unless it is the only one. If not even one sentence has few enough
        words, the first one is cut after them and ends in "…".
        """
        texts = [self._complete_sentences(summary) for summary in summaries]
        chosen: list[list[str]] = [[] for _ in texts]
        is_full = [False for _ in texts]
        sentences_left = math.inf if self.sentences is None else self.sentences
        words_left = math.inf if self.words is None else self.words
        for level in range(max(map(len, texts), default=0)):
            for window, sentences in enumerate(texts):
                if level >= len(sentences) or is_full[window] or sentences_left == 0:
                    continue
                words = count_words(sentences[level])
                if words > words_left:
                    is_full[window] = True
                    continue
                chosen[window].append(sentences[level])
                sentences_left -= 1
                words_left -= words
        shortened = " ".join(join_sentences(sentences) for sentences in chosen if sentences)
        first = next((sentences[0] for sentences in texts if sentences), "")
        if not shortened and first and self.words is not None:
            return first_words(first, self.words) + " …"
        return shortened

    @staticmethod
    def _complete_sentences(summary: Translation) -> list[str]:
        text = summary.text
        # Text without capitals, or with the tags of CNN/DailyMail, shows the ends of its sentences otherwise.
        splits_plainly = text.islower() or "</" in text
        sentences = split_sentences(text) if splits_plainly else segment_sentences(text)
        if not summary.finished and len(sentences) > 1 and not _SENTENCE_END.search(sentences[-1]):
            sentences.pop()
        return sentences


@cache
def _word() -> re.Pattern[str]:
    unspaced = unspaced_class()
    return re.compile(rf"[{unspaced}]|(?=[^\s{unspaced}]*\w)[^\s{unspaced}]+")


def count_words(text: str) -> int:
    """Words as white space separates them, without lone punctuation; a Chinese or Japanese character is a word."""
    return sum(1 for _ in _word().finditer(text))


def first_words(text: str, count: int) -> str:
    """The beginning of a text, up to its word number `count`."""
    words = list(islice(_word().finditer(text), count))
    return text[: words[-1].end()]


@dataclass(frozen=True)
class Summarizer(LongTextTranslator):
    """Summarizes articles in windows of whole sentences, or within limits of sentences and words.

    Nothing of the article is left out, and nothing is read twice; but no window knows of the others, so the summary
    grows with the article and may tell in one part what it told in another. Summarizing the summary makes it shorter.
    With windows, `max_source_tokens` of the translator is ignored.
    """

    window: int | None = None
    """The most tokens of a window; None summarizes an article at once, as far as the translator reads it."""
    sentences: int | None = None
    """The most sentences of a summary, see `SummaryLimit`."""
    words: int | None = None
    """The most words of a summary."""
    kind = "windows"

    summarize = LongTextTranslator.translate

    def __post_init__(self) -> None:
        if self.window is not None:
            object.__setattr__(self, "translator", replace(self.translator, max_source_tokens=None))

    @override
    def join(self, parts: Sequence[Translation]) -> str:
        if self.sentences is None and self.words is None:
            return super().join(parts)
        return SummaryLimit(self.sentences, self.words).shorten(parts)

    @override
    def cut(self, line: str) -> list[str]:
        """The windows of an article, as many sentences as fit into each; without `window` the article.

        Sentences are split by `split_sentences`. A sentence that is longer than a window is cut between words; a
        word, as white space separates them, is never cut.
        """
        if self.window is None:
            return [line] if line.strip() else []
        sentences, tokenizer = split_sentences(line), self.translator.tokenizers.src
        pieces: list[tuple[str, int]] = []
        for sentence, ids in zip(sentences, tokenizer.encode_many(sentences), strict=True):
            if len(ids) <= self.window:
                pieces.append((sentence, len(ids)))
            else:
                words = sentence.split()
                lengths = [len(ids) for ids in tokenizer.encode_many(words)]
                pieces += _packed(list(zip(words, lengths, strict=True)), self.window)
        return [text for text, _ in _packed(pieces, self.window)]


def _packed(pieces: Sequence[tuple[str, int]], size: int) -> list[tuple[str, int]]:
    """Joins texts in a row while their tokens fit into `size`; each with its number of tokens."""
    packed: list[tuple[str, int]] = []
    for text, length in pieces:
        if packed and packed[-1][1] + length <= size:
            before, total = packed[-1]
            packed[-1] = (f"{before} {text}", total + length)
        else:
            packed.append((text, length))
    return packed
