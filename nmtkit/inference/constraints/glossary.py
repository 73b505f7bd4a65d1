"""Glossaries: if a line contains a source term of a glossary, its translation must contain the target term."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from nmtkit.core.errors import DataError
from nmtkit.data.text.normalization import comparable
from nmtkit.inference.constraints.requests import Request
from nmtkit.inference.constraints.words import words_of


def parse_dictionary(lines: Iterable[str], place: str) -> dict[str, str]:
    """Parses a dictionary of words or terms with SOURCE TAB TARGET on each line; skips empty lines.

    Args:
        lines: the lines of the dictionary.
        place: name of the dictionary's file, for messages.
    """
    entries: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        source, _, target = line.partition("\t")
        source = source.strip()
        target = target.strip()
        if not source or not target or "\t" in target:
            raise DataError(
                f"{place}, line {number}: {line!r} is not SOURCE TAB TARGET with text on both sides"
            )
        if entries.setdefault(source, target) != target:
            raise DataError(
                f"{place}, line {number}: {source!r} has two translations; remove one of them"
            )
    return entries


class _Term(NamedTuple):
    words: tuple[str, ...]
    target: str


class Glossary:
    """Source terms, and the translations that are required wherever these terms occur.

    Source terms match only whole words, and matching is case-sensitive. Spellings with the same words, such as
    "New York" with one space or with two, are the same term.

    Raises:
        DataError: an entry has no words on one side, or two spellings of the same term have different translations.
    """

    def __init__(self, entries: Mapping[str, str]) -> None:
        self.entries = dict(entries)
        """The translation of each source term."""
        self._targets: dict[tuple[str, ...], str] = {}
        """The translation of each source term, keyed by the words of the term."""
        self._by_first_word: dict[str, list[_Term]] = {}
        """Maps a first word to the terms that begin with it, longest first."""
        for source, target in entries.items():
            words = _term_words(source)
            problem = ""
            if not words or not words_of(target):
                problem = "one side has no words"
            elif self._targets.setdefault(words, target) != target:
                problem = (
                    f"another spelling of this term has the translation {self._targets[words]!r}"
                )
            if problem:
                raise DataError(
                    f"the glossary translates {source!r} as {target!r}, but {problem}; remove the entry"
                )
        for words, target in self._targets.items():
            terms_of_word = self._by_first_word.setdefault(words[0], [])
            terms_of_word.append(_Term(words, target))
        for terms_of_word in self._by_first_word.values():
            terms_of_word.sort(key=lambda term: len(term.words), reverse=True)

    def overridden_by(self, newer: "Glossary") -> "Glossary":
        """Returns a glossary with the entries of this one and a newer one, which takes precedence for terms in both."""
        entries = {}
        for source, target in self.entries.items():
            if _term_words(source) not in newer._targets:
                entries[source] = target
        return Glossary(entries | newer.entries)

    def apply(self, request: Request) -> Request:
        """Returns the request with the translations of all terms in its source, a text, added to `must`.

        If terms overlap, the leftmost one counts, or the longest of those that start at the same word. Each translation
        is required only once, even if several terms have it or the request requires it already. With `in_order`, the
        added translations have to follow the request's own terms, in the order of their terms in the source.
        """
        words = tuple(words_of(comparable(request.text)))
        targets = []
        position = 0
        while position < len(words):
            term = self._longest_at(words, position)
            if term is None:
                position += 1
                continue
            targets.append(term.target)
            position += len(term.words)
        new_targets = [target for target in dict.fromkeys(targets) if target not in request.must]
        return replace(request, must=(*request.must, *new_targets))

    def _longest_at(self, words: tuple[str, ...], position: int) -> _Term | None:
        """Returns the longest term that starts at `position`; None if no term does."""
        for term in self._by_first_word.get(words[position], []):
            if words[position : position + len(term.words)] == term.words:
                return term
        return None


def _term_words(source: str) -> tuple[str, ...]:
    """Returns the words by which source terms are compared."""
    return tuple(words_of(comparable(source)))
