"""Lines longer than a model reads: they are cut into sentences or windows, which are translated and joined again."""

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
from nmtkit.data.text.scripts import unspaced_class
from nmtkit.data.text.sentences import split_sentences
from nmtkit.inference.inputs import require_list
from nmtkit.inference.numbers import missing_numbers
from nmtkit.inference.requests import Request
from nmtkit.inference.result import Translation
from nmtkit.inference.translator import Translator

_SPACED = re.compile(r"(?<![.!?…।۔؟])([.!?…।۔؟]+[\"'”’»)\]]*)\s+(?=(\S+))")
"""Marks that end a sentence before white space (group 1), and the next word (group 2)."""
_UNSPACED = re.compile(r"(?<=[。！？｡])(?![。！？｡」』）”’])\s*|(?<=[。！？｡][」』）”’])\s*")
_SENTENCE_END = re.compile(r"[.!?…।۔؟。！？｡][\"'”’»)\]」』）]*$")
_CLOSING_UNSPACED = "」』）”’"
_OPENING = "\"'“‘«„‚([¿¡-–—"
_TITLE = re.compile(
    "Mrs?|Ms|Dr|Prof|Rev|Hon|Gov|Sen|Rep|Gen|Col|Capt|Lt|Sgt|St|Mt|Ste|Hrn?|Fr|Mme|Mlle|MM|Sra?|Srta|Dra|Sig|Dott|"
    "vs|cf|ca|approx|bzw|evtl|ggf|inkl|vgl|sog|env"
)
"""Abbreviations whose point never ends a sentence."""
_BEFORE_NUMBER = re.compile(
    "[Nn]os?|Nrn?|[Vv]ol|[Ff]igs?|Abb|Tab|Eq|[Aa]rt|Abs|pp?|Bd|pág|Jan|Feb|Mar|Apr|Aug|Sept?|Oct|Nov|Dec"
)
"""Abbreviations whose point does not end a sentence if a number follows."""

MAX_ABBREVIATION_LETTERS = 40
"""Only this many letters before a full stop are searched for an abbreviation."""
PARAGRAPH_WORDS = 120
"""Lines with at most this mean number of words are paragraphs, not articles."""
PARAGRAPH_SENTENCES = 3
PARAGRAPH_BYTES = 100
"""A line with at least this many sentences and bytes is a paragraph; training lines seldom have more than two
sentences."""


def segment_sentences(line: str) -> list[str]:
    """Splits a line into sentences; an empty line has none.

    A sentence ends at ". ! ? …", and the quotes and brackets that close there, if white space and then no small letter
    follow; at the Chinese and Japanese marks "。！？" in any context; at "। ۔ ؟". A point ends no sentence after a
    title (Dr.), a single capital letter (J. Smith), letters with points between them (e.g., z.B., U.S.), a number of
    one or two digits (German: am 3. Mai), and words such as "Fig." before a number. So two sentences stay together if
    the first ends in such a word. Other abbreviations before a capital letter, sentences that begin with a small
    letter, and languages that end sentences in another way (Thai, Lao) are not recognized.
    """
    pieces = []
    begin = 0
    for match in _SPACED.finditer(line):
        end = match.end(1)
        last_word = line[max(begin, end - MAX_ABBREVIATION_LETTERS) : end].split()[-1]
        if _ends_sentence(last_word, next_word=match[2]):
            pieces.append(line[begin:end])
            begin = match.end()
    pieces.append(line[begin:])
    sentences = []
    for piece in pieces:
        for part in _UNSPACED.split(piece):
            sentence = part.strip()
            if sentence:
                sentences.append(sentence)
    return sentences


def _ends_sentence(last_word: str, next_word: str) -> bool:
    """Returns whether a sentence ends between two words, of which the first has the end mark."""
    first_letter = next_word.lstrip(_OPENING)[:1]
    if first_letter.islower():
        return False
    last_word = last_word.lstrip(_OPENING)
    if not last_word.endswith(".") or last_word.endswith(".."):
        return True
    last_word = last_word[:-1]
    if first_letter.isdigit() and _BEFORE_NUMBER.fullmatch(last_word):
        return False
    is_ordinal_or_initial = re.fullmatch(r"\d\d?|[^\W\d_]", last_word) and not last_word.islower()
    has_inner_points = re.fullmatch(r"(\w\.)+\w", last_word)
    return not (is_ordinal_or_initial or _TITLE.fullmatch(last_word) or has_inner_points)


def join_sentences(sentences: Iterable[str]) -> str:
    """Joins sentences by a space, but without one after a mark such as "。"; empty sentences are left out."""
    text = ""
    for sentence in sentences:
        if not sentence:
            continue
        last_mark = text.rstrip(_CLOSING_UNSPACED)[-1:]
        needs_space = bool(last_mark) and last_mark not in "。！？｡"
        text += f" {sentence}" if needs_space else sentence
    return text


def looks_like_paragraph(line: str) -> bool:
    """Returns whether a line has much more text than the lines of a training corpus; see `PARAGRAPH_SENTENCES`."""
    is_long = len(line.encode("utf-8", "replace")) >= PARAGRAPH_BYTES
    return is_long and len(segment_sentences(line)) >= PARAGRAPH_SENTENCES


def looks_like_one_article(lines: Sequence[str]) -> bool:
    """Returns whether lines look like the paragraphs of one article.

    Such lines are short, and blank lines separate them at least twice. Lines that are whole articles are longer, and
    blank lines between them are rare.
    """
    text = "\n".join(line.strip() for line in lines)
    gaps = re.findall(r"\n{2,}", text.strip("\n"))
    if len(gaps) < 2:
        return False
    word_counts = [len(line.split()) for line in lines if line.strip()]
    mean_words = sum(word_counts) / len(word_counts)
    return mean_words <= PARAGRAPH_WORDS


@dataclass(frozen=True)
class JoinedTranslation:
    """The translation of one line that was cut into parts."""

    text: str
    """The joined translations of the parts."""
    parts: list[Translation]
    """Translations of the parts in their order; none for an empty line."""
    kind: str
    """Kind of the parts: sentences or windows."""
    source: str = ""
    """The whole line."""
    others: tuple["JoinedTranslation", ...] = ()
    """The next best combinations of translations of the parts, if more than one is wanted."""

    @property
    def score(self) -> float:
        """Sum of the scores of the parts."""
        return sum(part.score for part in self.parts)

    @property
    def log_prob(self) -> float:
        """Sum of the log-probabilities of the parts, in nats."""
        return sum(part.log_prob for part in self.parts)

    @property
    def tokens(self) -> list[str]:
        """Target tokens of all parts, without EOS."""
        return [token for part in self.parts for token in part.tokens]

    @property
    def finished(self) -> bool:
        """False if the search of a part reached its length limit before EOS."""
        return all(part.finished for part in self.parts)

    @property
    def missing_numbers(self) -> tuple[str, ...]:
        """Numbers, URLs and e-mail addresses of the line that `text` lacks; see `numbers.missing_numbers`."""
        return missing_numbers(self.source, self.text)


def best_combinations(
    alternatives: Sequence[Sequence[Translation]], count: int, cut_last: bool
) -> list[list[int]]:
    """Chooses an alternative for each part, in the `count` combinations with the highest total score.

    This is exact: the beginning of one of the best combinations is among the best combinations of the first parts.

    Args:
        alternatives: translations of each part.
        count: number of combinations.
        cut_last: whether combinations with fewer translations that were cut at the length limit come first, as in a
            search with `at_limit: behind`.

    Returns:
        The index of the translation of each part, for each combination, best first.
    """
    # minus cut translations, score, indices
    combinations: list[tuple[int, float, list[int]]] = [(0, 0.0, [])]
    for translations in alternatives:
        extended = []
        for finish_rank, score, indices in combinations:
            for index, translation in enumerate(translations):
                is_cut = cut_last and not translation.finished
                extension = (finish_rank - is_cut, score + translation.score, [*indices, index])
                extended.append(extension)
        combinations = heapq.nlargest(count, extended, key=lambda combination: combination[:2])
    return [indices for _, _, indices in combinations]


@dataclass(frozen=True)
class LongTextTranslator(ABC):
    """Cuts each line into parts, translates the parts, and joins their translations to one line."""

    translator: Translator
    kind: ClassVar[str]
    """Kind of the parts, in the plural."""

    @abstractmethod
    def cut(self, line: str) -> list[str]:
        """Returns the parts of a line."""

    def join(self, parts: Sequence[Translation]) -> str:
        """Joins the translations of the parts of a line."""
        return " ".join(part.text for part in parts if part.text)

    def stream(
        self, windows: Iterable[Sequence[str | Request]], need_copies: bool = False, n_best: int = 1
    ) -> Generator[list[JoinedTranslation], None, None]:
        """Translates lines that arrive, in order; see `Translator.stream`.

        The `n_best` results of a line are the combinations of its parts' `n_best` results with the highest total
        scores; all but the first are in `JoinedTranslation.others`. The prefix of a request applies to its first part,
        and `must_not` to all parts.
        """
        # lines without a result yet, and the number of their parts
        lines: deque[tuple[str, int]] = deque()
        # translations of the parts of the first of these lines
        alternatives: list[list[Translation]] = []
        streamed = self.translator.stream(
            self._cut_windows(windows, lines), n_best, need_copies=need_copies
        )
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

    def _joined(
        self, source: str, alternatives: Sequence[Sequence[Translation]], n_best: int
    ) -> JoinedTranslation:
        cut_last = self.translator.config.effective_at_limit == "behind"
        combinations = best_combinations(alternatives, n_best, cut_last)
        results = []
        for indices in combinations:
            parts = [
                translations[index]
                for translations, index in zip(alternatives, indices, strict=True)
            ]
            result = JoinedTranslation(
                text=self.join(parts), parts=parts, kind=self.kind, source=source
            )
            results.append(result)
        return replace(results[0], others=tuple(results[1:]))

    def _cut_windows(
        self, windows: Iterable[Sequence[str | Request]], lines: deque[tuple[str, int]]
    ) -> Iterator[list[str | Request]]:
        """Yields the parts of the lines of each window, and adds these lines to `lines`; an empty line has one part."""
        for window in windows:
            window_parts: list[str | Request] = []
            for line in window:
                parts: Sequence[str | Request]
                if isinstance(line, str):
                    source = line
                    parts = self._cut_line(line)
                else:
                    source = line.source
                    parts = self._cut_request(line)
                lines.append((source, len(parts)))
                window_parts += parts or [""]
            yield window_parts

    def _cut_line(self, line: str) -> list[str]:
        # the language of the line, which each part needs
        tag = self.translator.tokenizers.src.tag(line)
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
            raise DataError(
                f"{request.where}: it has a prefix or terms but no source to translate; add the source"
            )
        return parts

    def search(
        self, lines: Sequence[str | Request], need_copies: bool = False, n_best: int = 1
    ) -> list[JoinedTranslation]:
        """Returns the translation of each line with its parts; see `stream` and `Translator.search`."""
        require_list(lines=lines)
        with closing(self.stream([lines], need_copies, n_best)) as groups:
            return [result for group in groups for result in group]

    @overload
    def translate(  # type: ignore[overload-overlap]  # a string is also a sequence of strings
        self, lines: str, terms: Mapping[str, str] | None = None
    ) -> str: ...

    @overload
    def translate(
        self, lines: Sequence[str], terms: Mapping[str, str] | None = None
    ) -> list[str]: ...

    def translate(
        self, lines: str | Sequence[str], terms: Mapping[str, str] | None = None
    ) -> str | list[str]:
        """Returns the text for each line, or for a single string; the text for an empty line is empty.

        `terms` is a glossary for this call; the terms of a part are those that occur in it.
        """
        if terms is not None:
            translator = self.translator.with_terms(terms)
            return replace(self, translator=translator).translate(lines)
        if isinstance(lines, str):
            (text,) = self.translate([lines])
            return text
        return [result.text for result in self.search(lines)]


class ParagraphTranslator(LongTextTranslator):
    """Translates each line sentence by sentence; see `segment_sentences`."""

    kind = "sentences"

    @override
    def cut(self, line: str) -> list[str]:
        return segment_sentences(line)

    @override
    def join(self, parts: Sequence[Translation]) -> str:
        return join_sentences(part.text for part in parts)


@dataclass(frozen=True)
class SummaryLimit:
    """Maximum number of sentences and words of a summary, which keeps as many whole sentences as fit."""

    sentences: int | None = None
    words: int | None = None

    def shorten(self, summaries: Sequence[Translation]) -> str:
        """Shortens the summary of an article, or the summaries of its windows, which are joined.

        From several windows it takes the first sentence of each, then the second of each, and so on, as long as the
        limits allow; they are written in the order of the article. An incomplete last sentence, cut by the length limit
        of the search, is dropped unless it is the only one. If even the first sentence has too many words, it is cut
        and ends in "…".
        """
        # sentences of each window
        windows = [self._complete_sentences(summary) for summary in summaries]
        chosen: list[list[str]] = [[] for _ in windows]
        is_full = [False for _ in windows]
        sentences_left = math.inf if self.sentences is None else self.sentences
        words_left = math.inf if self.words is None else self.words
        for position in range(max(map(len, windows), default=0)):
            for window, sentences in enumerate(windows):
                if position >= len(sentences) or is_full[window] or sentences_left == 0:
                    continue
                words = count_words(sentences[position])
                if words > words_left:
                    is_full[window] = True
                    continue
                chosen[window].append(sentences[position])
                sentences_left -= 1
                words_left -= words
        shortened = " ".join(join_sentences(sentences) for sentences in chosen if sentences)
        first_sentence = next((sentences[0] for sentences in windows if sentences), "")
        if not shortened and first_sentence and self.words is not None:
            return first_words(first_sentence, self.words) + " …"
        return shortened

    @staticmethod
    def _complete_sentences(summary: Translation) -> list[str]:
        text = summary.text
        # `segment_sentences` needs capitals. Lower-case text, and text with the tags of CNN/DailyMail, has other marks.
        has_plain_marks = text.islower() or "</" in text
        sentences = split_sentences(text) if has_plain_marks else segment_sentences(text)
        if not summary.finished and len(sentences) > 1 and not _SENTENCE_END.search(sentences[-1]):
            sentences.pop()
        return sentences


@cache
def _word() -> re.Pattern[str]:
    unspaced = unspaced_class()
    return re.compile(rf"[{unspaced}]|(?=[^\s{unspaced}]*\w)[^\s{unspaced}]+")


def count_words(text: str) -> int:
    """Counts words between white space, without lone punctuation; a Chinese or Japanese character is a word."""
    return sum(1 for _ in _word().finditer(text))


def first_words(text: str, count: int) -> str:
    """Returns the first `count` words of a text."""
    words = list(islice(_word().finditer(text), count))
    return text[: words[-1].end()]


@dataclass(frozen=True)
class Summarizer(LongTextTranslator):
    """Summarizes articles in windows of whole sentences, or within limits of sentences and words.

    Nothing of the article is left out, and nothing is read twice. But windows are summarized independently, so the
    summary grows with the article and may repeat itself. Summarizing the summary makes it shorter. With windows,
    `max_source_tokens` of the translator is ignored.
    """

    window: int | None = None
    """Maximum number of tokens of a window; None: one window, as much of an article as the translator reads."""
    sentences: int | None = None
    """Maximum number of sentences of a summary, see `SummaryLimit`."""
    words: int | None = None
    """Maximum number of words of a summary."""
    kind = "windows"

    summarize = LongTextTranslator.translate

    def __post_init__(self) -> None:
        if self.window is not None:
            translator = replace(self.translator, max_source_tokens=None)
            object.__setattr__(self, "translator", translator)  # the class is frozen

    @override
    def join(self, parts: Sequence[Translation]) -> str:
        if self.sentences is None and self.words is None:
            return super().join(parts)
        return SummaryLimit(self.sentences, self.words).shorten(parts)

    @override
    def cut(self, line: str) -> list[str]:
        """Returns the windows of an article, with as many sentences as fit into each; without `window` the article.

        Sentences are split by `split_sentences`. A sentence that is longer than a window is cut between words; a
        word, as white space separates them, is never cut.
        """
        if self.window is None:
            return [line] if line.strip() else []
        tokenizer = self.translator.tokenizers.src
        sentences = split_sentences(line)
        # sentences, and parts of long ones, with their number of tokens
        pieces: list[tuple[str, int]] = []
        for sentence, ids in zip(sentences, tokenizer.encode_many(sentences), strict=True):
            if len(ids) <= self.window:
                pieces.append((sentence, len(ids)))
            else:
                words = sentence.split()
                lengths = [len(word_ids) for word_ids in tokenizer.encode_many(words)]
                words_with_lengths = list(zip(words, lengths, strict=True))
                pieces += _packed(words_with_lengths, self.window)
        return [text for text, _ in _packed(pieces, self.window)]


def _packed(pieces: Sequence[tuple[str, int]], size: int) -> list[tuple[str, int]]:
    """Joins consecutive texts while their tokens fit into `size`; a text comes with its number of tokens."""
    packed: list[tuple[str, int]] = []
    for text, length in pieces:
        packed_text, packed_length = packed[-1] if packed else ("", 0)
        if packed and packed_length + length <= size:
            packed[-1] = (f"{packed_text} {text}", packed_length + length)
        else:
            packed.append((text, length))
    return packed
