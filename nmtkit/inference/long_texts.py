"""Translates lines that are too long for a model: splits them into sentences or windows, and joins the results."""

import heapq
import math
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, islice
from typing import ClassVar, overload

from typing_extensions import override

from nmtkit.core.errors import DataError
from nmtkit.data.text.scripts import unspaced_class
from nmtkit.data.text.sentences import split_sentences
from nmtkit.inference.constraints.requests import Request
from nmtkit.inference.inputs import require_list
from nmtkit.inference.numbers import missing_numbers
from nmtkit.inference.result import Translation
from nmtkit.inference.translator import Translator

_SPACED = re.compile(r"(?<![.!?…।۔؟])([.!?…।۔؟]+[\"'”’»)\]]*)\s+(?=(\S+))")
"""Punctuation that may end a sentence before whitespace (group 1), and the next word (group 2)."""
_UNSPACED = re.compile(r"(?<=[。！？｡])(?![。！？｡」』）”’])\s*|(?<=[。！？｡][」』）”’])\s*")
_SENTENCE_END = re.compile(r"[.!?…।۔؟。！？｡][\"'”’»)\]」』）]*$")
_CLOSING_UNSPACED = "」』）”’"
_OPENING = "\"'“‘«„‚([¿¡-–—"
_TITLE = re.compile(
    "Mrs?|Ms|Dr|Prof|Rev|Hon|Gov|Sen|Rep|Gen|Col|Capt|Lt|Sgt|St|Mt|Ste|Hrn?|Fr|Mme|Mlle|MM|Sra?|Srta|Dra|Sig|Dott|"
    "vs|cf|ca|approx|bzw|evtl|ggf|inkl|vgl|sog|env"
)
"""Abbreviations whose full stop never ends a sentence."""
_BEFORE_NUMBER = re.compile(
    "[Nn]os?|Nrn?|[Vv]ol|[Ff]igs?|Abb|Tab|Eq|[Aa]rt|Abs|pp?|Bd|pág|Jan|Feb|Mar|Apr|Aug|Sept?|Oct|Nov|Dec"
)
"""Abbreviations whose full stop does not end a sentence if a number follows."""

MAX_ABBREVIATION_LETTERS = 40
"""Maximum number of characters before a full stop that are searched for an abbreviation."""
PARAGRAPH_WORDS = 120
"""Maximum mean number of words per line for lines to count as paragraphs; longer lines count as articles."""
PARAGRAPH_SENTENCES = 3
PARAGRAPH_BYTES = 100
"""A line with at least PARAGRAPH_SENTENCES sentences and PARAGRAPH_BYTES bytes is a paragraph; lines in training
corpora rarely have more than two sentences."""


def segment_sentences(line: str) -> list[str]:
    """Splits a line into sentences; an empty line has none.

    A sentence ends at one of ". ! ? … । ۔ ؟" and any closing quotes or brackets, if they are followed by whitespace
    and then by anything but a lower-case letter. The Chinese and Japanese marks "。！？" end a sentence in any context.
    A full stop does not end a sentence after a title (Dr.), a single capital letter (J. Smith), letters with full stops
    between them (e.g., z.B., U.S.), a number of one or two digits (German: am 3. Mai), or words such as "Fig." before a
    number. Therefore, two sentences are not split if the first one ends in such a word. The function does not recognize
    other abbreviations before a capital letter, sentences that begin with a lower-case letter, or the ends of sentences
    in languages that mark them in other ways (Thai, Lao).
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
    """Returns whether a sentence ends between two words, the first of which ends in sentence-final punctuation."""
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
    """Joins nonempty sentences with spaces, but without a space after an East Asian mark such as "。"."""
    text = ""
    for sentence in sentences:
        if not sentence:
            continue
        last_mark = text.rstrip(_CLOSING_UNSPACED)[-1:]
        needs_space = bool(last_mark) and last_mark not in "。！？｡"
        if needs_space:
            text += " "
        text += sentence
    return text


def looks_like_paragraph(line: str) -> bool:
    """Returns whether a line has more text than a typical line of a training corpus; see `PARAGRAPH_BYTES`."""
    is_long = len(line.encode("utf-8", "replace")) >= PARAGRAPH_BYTES
    return is_long and len(segment_sentences(line)) >= PARAGRAPH_SENTENCES


def looks_like_one_article(lines: Sequence[str]) -> bool:
    """Returns whether lines look like the paragraphs of a single article.

    Paragraphs are short, and separated by blank lines; at least two such gaps are required. If each line is a whole
    article instead, lines are longer, and blank lines are rare.
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
    """The translation of a line that was split into parts."""

    text: str
    """The joined translations of the parts."""
    parts: list[Translation]
    """Translation of each part, in order; empty for an empty line."""
    kind: str
    """Kind of the parts: "sentences" or "windows"."""
    source: str = ""
    """The complete line."""
    others: tuple["JoinedTranslation", ...] = ()
    """The next best combinations of the parts' translations, if more than one result was requested."""

    @property
    def score(self) -> float:
        """Sum of the parts' scores."""
        return sum(part.score for part in self.parts)

    @property
    def log_prob(self) -> float:
        """Sum of the parts' log-probabilities, in nats."""
        return sum(part.log_prob for part in self.parts)

    @property
    def tokens(self) -> list[str]:
        """Target tokens of all parts, without EOS."""
        return list(chain.from_iterable(part.tokens for part in self.parts))

    @property
    def finished(self) -> bool:
        """False if the search for any part reached its length limit before EOS."""
        return all(part.finished for part in self.parts)

    @property
    def missing_numbers(self) -> tuple[str, ...]:
        """Numbers, URLs and e-mail addresses of the line that are missing from `text`; see `missing_numbers`."""
        return missing_numbers(self.source, self.text)


def best_combinations(
    alternatives: Sequence[Sequence[Translation]], count: int, cut_last: bool
) -> list[list[int]]:
    """Returns the `count` combinations of the parts' translations with the highest total scores.

    The result is exact, since each prefix of a best combination is itself among the best combinations for the parts
    that it covers.

    Args:
        alternatives: the candidate translations of each part.
        count: maximum number of combinations.
        cut_last: whether combinations with fewer translations that were cut off at the length limit always rank higher,
            as in a search with `at_limit: behind`.

    Returns:
        The combinations, best first. Each one has the index of the chosen translation for every part.
    """
    # (minus the number of translations that were cut off, total score, indices)
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
    """Splits each line into parts, translates the parts, and joins their translations into one line."""

    translator: Translator
    kind: ClassVar[str]
    """Plural noun for the parts in messages."""

    @abstractmethod
    def cut(self, line: str) -> list[str]:
        """Splits a line into parts."""

    def join(self, parts: Sequence[Translation]) -> str:
        """Joins the translations of a line's parts."""
        return " ".join(part.text for part in parts if part.text)

    def stream(
        self, windows: Iterable[Sequence[str | Request]], need_copies: bool = False, n_best: int = 1
    ) -> Generator[list[JoinedTranslation], None, None]:
        """Translates lines that arrive in windows, and yields results in input order; see `Translator.stream`.

        The `n_best` results of a line are the combinations of its parts' `n_best` results with the highest total
        scores; all but the first are in `JoinedTranslation.others`. The prefix of a request applies to its first part,
        and `must_not` applies to all parts.
        """
        # Lines that are not finished, each with its number of parts.
        lines: deque[tuple[str, int]] = deque()
        # N-best lists of the first unfinished line's parts.
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
        """Yields windows of parts, and appends each line and its number of parts to `lines`.

        An empty line has no parts; an empty text is translated instead, so that the line gets a result.
        """
        for window in windows:
            window_parts: list[str | Request] = []
            for line in window:
                parts: Sequence[str | Request]
                if isinstance(line, str):
                    source = line
                    parts = self._cut_line(line)
                else:
                    source = line.text
                    parts = self._cut_request(line)
                lines.append((source, len(parts)))
                window_parts += parts or [""]
            yield window_parts

    def _cut_line(self, line: str) -> list[str]:
        # A line may begin with a language tag, which each part needs.
        tag = self.translator.tokenizers.src.tag(line)
        return [tag + part for part in self.cut(line[len(tag) :])]

    def _cut_request(self, request: Request) -> list[Request]:
        sources = self._cut_line(request.text)
        if request.must and len(sources) > 1:
            raise DataError(
                f'{request.place}: "must" does not specify which of the {len(sources)} {self.kind} a term belongs to. '
                "Put each sentence on its own line, or use a glossary (--terms)"
            )
        parts = [replace(request, source=source, prefix="") for source in sources]
        if parts:
            parts[0] = replace(parts[0], prefix=request.prefix)
        elif request.prefix or request.must:
            raise DataError(
                f"{request.place}: an empty source cannot have a prefix or terms; add the source"
            )
        return parts

    def search(
        self, lines: Sequence[str | Request], need_copies: bool = False, n_best: int = 1
    ) -> list[JoinedTranslation]:
        """Returns the translation of each line, including its parts; see `stream` and `Translator.search`."""
        require_list(lines=lines)
        with closing(self.stream([lines], need_copies, n_best)) as groups:
            return list(chain.from_iterable(groups))

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
        """Returns the resulting text for each line, or for a single string; the result for an empty line is empty.

        `terms` is a glossary for this call; its terms apply to the parts in which they occur.
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
    """Limits the numbers of sentences and words in a summary; as many complete sentences as fit are kept."""

    sentences: int | None = None
    words: int | None = None

    def shorten(self, summaries: Sequence[Translation]) -> str:
        """Shortens an article's summary, or joins and shortens the summaries of its windows.

        With several windows, the first sentence of each window is selected, then the second of each, and so on, as long
        as the limits allow. The selected sentences are joined in the order of the article. A last sentence that is
        incomplete because the search reached its length limit is dropped unless it is the only one. If even the first
        sentence has too many words, it is truncated and ends in "…".
        """
        # the sentences of each window's summary
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
        # `segment_sentences` relies on capital letters. Lower-case text, and text with the tags of CNN/DailyMail, is
        # split by the simpler `split_sentences`.
        needs_simple_split = text.islower() or "</" in text
        sentences = split_sentences(text) if needs_simple_split else segment_sentences(text)
        if not summary.finished and len(sentences) > 1 and not _SENTENCE_END.search(sentences[-1]):
            sentences.pop()
        return sentences


@cache
def _word_pattern() -> re.Pattern[str]:
    unspaced = unspaced_class()
    return re.compile(rf"[{unspaced}]|(?=[^\s{unspaced}]*\w)[^\s{unspaced}]+")


def count_words(text: str) -> int:
    """Counts the words of a text, ignoring lone punctuation; in scripts without spaces, each character is a word."""
    return sum(1 for _ in _word_pattern().finditer(text))


def first_words(text: str, count: int) -> str:
    """Returns the first `count` words of a text."""
    words = list(islice(_word_pattern().finditer(text), count))
    return text[: words[-1].end()]


@dataclass(frozen=True)
class Summarizer(LongTextTranslator):
    """Summarizes articles, optionally window by window, and optionally within a limit of sentences or words.

    Windows consist of complete sentences and cover the article without overlaps. They are summarized independently, so
    the summary grows with the article and may repeat itself; summarizing the summary makes it shorter. With windows,
    the translator's `max_source_tokens` is ignored.
    """

    window: int | None = None
    """Maximum number of tokens in a window. If it is None, there is a single window, with as much of an article as the
    translator reads."""
    sentences: int | None = None
    """Maximum number of sentences in a summary; see `SummaryLimit`."""
    words: int | None = None
    """Maximum number of words in a summary."""
    kind = "windows"

    summarize = LongTextTranslator.translate

    def __post_init__(self) -> None:
        if self.window is not None:
            translator = replace(self.translator, max_source_tokens=None)
            object.__setattr__(self, "translator", translator)  # the dataclass is frozen

    @override
    def join(self, parts: Sequence[Translation]) -> str:
        if self.sentences is None and self.words is None:
            return super().join(parts)
        return SummaryLimit(self.sentences, self.words).shorten(parts)

    @override
    def cut(self, line: str) -> list[str]:
        """Splits an article into windows of as many sentences as fit; returns the whole article if `window` is None.

        `split_sentences` finds the sentences. A sentence that is longer than a window is split between words, but
        whitespace-separated words are never split.
        """
        if self.window is None:
            return [line] if line.strip() else []
        tokenizer = self.translator.tokenizers.src
        sentences = split_sentences(line)
        # Sentences and parts of long sentences, each with its number of tokens.
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
    """Joins consecutive texts as long as the result fits into `size` tokens.

    The input and the result are lists of pairs: a text and its number of tokens.
    """
    packed: list[tuple[str, int]] = []
    for text, length in pieces:
        if packed:
            packed_text, packed_length = packed[-1]
            total_length = packed_length + length
            if total_length <= size:
                packed[-1] = (f"{packed_text} {text}", total_length)
                continue
        packed.append((text, length))
    return packed
