"""Summaries of articles longer than the model can read in one go, window by window."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import overload

from nmtkit.data.tokenizer import Tokenizer
from nmtkit.translation.inputs import require_list
from nmtkit.translation.paragraphs import stream_segments
from nmtkit.translation.result import Translation
from nmtkit.translation.translator import Translator


@dataclass(frozen=True)
class Summary:
    """The summary of one article."""

    text: str
    """The summaries of its windows, in order, with a space between them."""
    windows: list[Translation]
    """What was found for each window; none for an empty article."""


@dataclass(frozen=True)
class Summarizer:
    """Reads an article in windows of whole sentences and summarizes each window by itself.

    Nothing of the article is left out, and nothing is read twice; but no window knows of the others, so the summary
    grows with the article and may tell in one part what it told in another. Summarizing the summary makes it shorter.
    """

    translator: Translator
    """A model of summaries; its `max_source_tokens` is not looked at."""
    window: int
    """The most tokens of a window."""

    @overload
    def summarize(self, articles: str) -> str: ...  # type: ignore[overload-overlap]  # as `Translator.translate`

    @overload
    def summarize(self, articles: Sequence[str]) -> list[str]: ...

    def summarize(self, articles: str | Sequence[str]) -> str | list[str]:
        """The summary of each article, or of the one that is given by itself; an empty line gives an empty line."""
        if isinstance(articles, str):
            return self.summarize([articles])[0]
        return [summary.text for summary in self.search(articles)]

    def search(self, articles: Sequence[str], need_copies: bool = False) -> list[Summary]:
        """The summary of each article with what was found for its windows; see `Translator.search`."""
        require_list(articles=articles)
        with closing(self.stream([articles], need_copies)) as groups:
            return [summary for group in groups for summary in group]

    def stream(
        self, windows: Iterable[Sequence[str]], need_copies: bool = False
    ) -> Generator[list[Summary], None, None]:
        """What `search` finds for articles that arrive, in order; see `Translator.stream`."""
        whole, tokenizer = replace(self.translator, max_source_tokens=None), self.translator.tokenizers.src
        cut = partial(article_windows, tokenizer=tokenizer, size=self.window)
        with closing(stream_segments(whole, windows, cut, need_copies)) as groups:
            for group in groups:
                yield [Summary(" ".join(one.text for one in read if one.text), read) for read in group]


def article_windows(article: str, tokenizer: Tokenizer, size: int) -> list[str]:
    """Cuts an article into windows of at most `size` tokens, as many sentences as fit into each.

    Sentences are those of `nmtkit.metrics.split_sentences`. One that is longer than a window is cut between words; a
    word, as white space separates them, is never cut.
    """
    from nmtkit.metrics import split_sentences

    sentences = split_sentences(article)
    pieces: list[tuple[str, int]] = []
    for sentence, ids in zip(sentences, tokenizer.encode_many(sentences), strict=True):
        if len(ids) <= size:
            pieces.append((sentence, len(ids)))
        else:
            words = sentence.split()
            lengths = [len(ids) for ids in tokenizer.encode_many(words)]
            pieces += _packed(list(zip(words, lengths, strict=True)), size)
    return [text for text, _ in _packed(pieces, size)]


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
