"""Lines longer than a model reads: cut into sentences or windows, each translated by itself, and put together again."""

import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import ClassVar, overload

from typing_extensions import override

from nmtkit.translation.inputs import require_list
from nmtkit.translation.result import Translation
from nmtkit.translation.translator import Translator

_SPACED = re.compile(r"(?<![.!?…।۔؟])([.!?…।۔؟]+[\"'”’»)\]]*)\s+(?=(\S+))")
"""Marks that end a sentence where white space follows, and the word behind it."""
_UNSPACED = re.compile(r"(?<=[。！？｡])(?![。！？｡」』）”’])\s*|(?<=[。！？｡][」』）”’])\s*")
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


@dataclass(frozen=True)
class JoinedTranslation:
    """The translation of one line that was cut into parts."""

    text: str
    """That of its parts, in order."""
    parts: list[Translation]
    """None for an empty line."""
    kind: str
    """What the parts are: sentences or windows."""


@dataclass(frozen=True)
class LongTextTranslator(ABC):
    """Cuts each line into parts, translates each part by itself, and joins the translations; lines stay lines."""

    translator: Translator
    kind: ClassVar[str]
    """What the parts are."""

    @abstractmethod
    def cut(self, line: str) -> list[str]:
        """The parts of a line."""

    def join(self, texts: Iterable[str]) -> str:
        """One line of the translations of its parts."""
        return " ".join(filter(None, texts))

    def stream(
        self, windows: Iterable[Sequence[str]], need_copies: bool = False
    ) -> Generator[list[JoinedTranslation], None, None]:
        """Translates lines that arrive, in order; see `Translator.stream`."""
        counts: deque[int] = deque()  # parts of each line that is not out
        parts: list[Translation] = []
        with closing(self.translator.stream(self._cut_windows(windows, counts), need_copies=need_copies)) as groups:
            for group in groups:
                lines = []
                for best in group:
                    parts.append(best[0])
                    if len(parts) >= counts[0]:
                        own = parts[: counts.popleft()]  # none of an empty line
                        lines.append(JoinedTranslation(self.join(one.text for one in own), own, self.kind))
                        parts.clear()
                if lines:
                    yield lines

    def _cut_windows(self, windows: Iterable[Sequence[str]], counts: deque[int]) -> Iterator[list[str]]:
        """The parts of several lines at a time; a line that has none has an empty one."""
        for lines in windows:
            tags = map(self.translator.tokenizers.src.tag, lines)  # a language is that of all parts
            cut = [[tag + part for part in self.cut(line[len(tag) :])] for tag, line in zip(tags, lines, strict=True)]
            counts.extend(map(len, cut))
            yield [part for parts in cut for part in parts or [""]]

    def search(self, lines: Sequence[str], need_copies: bool = False) -> list[JoinedTranslation]:
        """The translation of each line with its parts; see `Translator.search`."""
        require_list(lines=lines)
        with closing(self.stream([lines], need_copies)) as groups:
            return [result for group in groups for result in group]

    @overload
    def translate(self, lines: str) -> str: ...  # type: ignore[overload-overlap]  # as `Translator.translate`

    @overload
    def translate(self, lines: Sequence[str]) -> list[str]: ...

    def translate(self, lines: str | Sequence[str]) -> str | list[str]:
        """The text for each line, or for the one that is given by itself; an empty line gives an empty line."""
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
    def join(self, texts: Iterable[str]) -> str:
        return join_sentences(texts)


@dataclass(frozen=True)
class Summarizer(LongTextTranslator):
    """Reads an article in windows of whole sentences and summarizes each window by itself.

    Nothing of the article is left out, and nothing is read twice; but no window knows of the others, so the summary
    grows with the article and may tell in one part what it told in another. Summarizing the summary makes it shorter.
    The `max_source_tokens` of the translator are not looked at.
    """

    window: int
    """The most tokens of a window."""
    kind = "windows"

    summarize = LongTextTranslator.translate

    def __post_init__(self) -> None:
        object.__setattr__(self, "translator", replace(self.translator, max_source_tokens=None))

    @override
    def cut(self, line: str) -> list[str]:
        """The windows of an article, as many sentences as fit into each.

        Sentences are those of `nmtkit.metrics.split_sentences`. One that is longer than a window is cut between words;
        a word, as white space separates them, is never cut.
        """
        from nmtkit.metrics import split_sentences

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
