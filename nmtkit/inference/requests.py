"""Constraints on a line's translation: a prefix, and terms that it must or must not contain."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from nmtkit.core.errors import DataError
from nmtkit.data.text.features import Rows
from nmtkit.data.text.files.json_records import is_list_of_strings, parse_record
from nmtkit.data.text.normalization import comparable
from nmtkit.data.text.scripts import mark_class, unspaced_class, unspaced_runs
from nmtkit.data.tokenizers.tokenizer import WORD_START, Tokenizer
from nmtkit.data.tokenizers.vocabulary import PAD, SPECIALS


@dataclass(frozen=True)
class Request:
    """A source line with constraints on its translation."""

    source: Any
    """Text, or rows of numbers `(R, F)` for a model that reads features."""
    prefix: str = ""
    """Words with which the translation begins; the search does not continue the last one."""
    must: tuple[str, ...] = ()
    """Terms that the translation must contain as whole words."""
    must_not: tuple[str, ...] = ()
    """Terms that the translation must not contain."""
    in_order: bool = False
    """Whether the terms in `must` have to appear in the given order."""
    tags: str = ""
    """Special tokens to put before the source, separated by spaces; see `SplitFiles.tags`."""
    languages: tuple[str, str] = ("", "")
    """Source and target language, for imported multilingual models; empty strings select the model's defaults."""
    where: str = ""
    """Name of the line in messages."""

    @classmethod
    def from_line(cls, line: "str | Rows | Request", where: str = "a line") -> "Request":
        """Wraps a line in a `Request` without constraints; `where` is the line's name in messages.

        A line that already is a `Request` keeps its constraints, and its name if it has one.
        """
        if isinstance(line, Request):
            return line if line.where else replace(line, where=where)
        return cls(line, where=where)

    @classmethod
    def from_tsv(cls, line: str, where: str) -> "Request":
        """Parses SOURCE TAB PREFIX; without a tab, the whole line is the source. Strips spaces around the prefix."""
        source, _, prefix = line.partition("\t")
        if "\t" in prefix:
            raise DataError(f"{where}: more than one tab; expected SOURCE TAB PREFIX")
        return cls(source, prefix.strip(), where=where)

    @classmethod
    def from_json(cls, line: str, where: str) -> "Request":
        """Parses a JSON object with a "source" and, optionally, "prefix", "must", "must_not" and "in_order".

        A blank line becomes a request with an empty source. The prefix is used as given, including spaces around it.
        """
        if not line.strip():
            return cls("", where=where)
        record = parse_record(line, where)
        field_types = {
            "source": str,
            "prefix": str,
            "must": list,
            "must_not": list,
            "in_order": bool,
        }
        for key, value in record.items():
            if key not in field_types:
                raise DataError(
                    f"{where}: unknown field {key!r}; expected {', '.join(field_types)}"
                )
            field_type = field_types[key]
            is_valid = isinstance(value, field_type)
            if field_type is list:
                is_valid = is_valid and is_list_of_strings(value)
            if not is_valid:
                descriptions = {str: "a string", list: "a list of strings", bool: "true or false"}
                raise DataError(f"{where}: field {key!r} is not {descriptions[field_type]}")
        if "source" not in record:
            raise DataError(f"{where}: no field 'source'")
        record["source"] = " ".join(record["source"].splitlines())  # a source is one line
        record["must"] = tuple(record.get("must", ()))
        record["must_not"] = tuple(record.get("must_not", ()))
        return cls(**record, where=where)


@dataclass(frozen=True)
class TermTokens:
    """A request's terms as extended token ids."""

    must: tuple[tuple[int, ...], ...]
    must_not: tuple[tuple[int, ...], ...]
    in_order: bool


@cache
def _word_pattern() -> re.Pattern[str]:
    combining_marks = mark_class()
    unspaced = unspaced_class()
    alternatives = (
        rf"[{unspaced}]",  # a single letter of a script without spaces
        rf"(?:(?![{unspaced}])[\w{combining_marks}])+",  # a word of any other script
        r"[^\s\w]",  # a punctuation mark or symbol
    )
    return re.compile("|".join(alternatives))


def words_of(text: str) -> list[str]:
    """Splits a text into words and punctuation marks."""
    return _word_pattern().findall(text)


def starts_word(token: str) -> bool:
    """Returns whether a token begins a word or a punctuation mark, so that the preceding word is complete."""
    # If "x" stays a word of its own, the token does not continue a word.
    return token.startswith(WORD_START) or words_of("x" + token)[0] == "x"


def word_starts(tokenizer: Tokenizer, device: torch.device) -> Tensor:
    """Returns which tokens of a vocabulary begin a word or a punctuation mark, `(V,)`, bool."""
    specials = [False] * len(SPECIALS)
    tokens = [starts_word(token) for token in tokenizer.vocabulary.tokens[len(SPECIALS) :]]
    return torch.tensor(specials + tokens, device=device)


def find_sublist(part: Sequence[object], items: Sequence[object], begin: int = 0) -> int:
    """Returns the first index, from `begin` on, at which `items` (words or token ids) contain `part`; -1 if none."""
    wanted = list(part)
    last_start = len(items) - len(wanted)
    for start in range(begin, last_start + 1):
        if list(items[start : start + len(wanted)]) == wanted:
            return start
    return -1


def unmet_constraints(request: Request, tokenizer: Tokenizer, text: str) -> list[str]:
    """Returns messages about the required terms that a translation lacks and the forbidden terms that it contains.

    Terms are tokenized and joined first, so they are compared in the form that the tokenizer produces.
    """

    def words_of_term(term: str) -> list[str]:
        return words_of(tokenizer.join(tokenizer.tokens(term)))

    words = words_of(text)
    unmet = []
    begin = 0  # the first word at which the next term may start; moves only if `in_order`
    for term in request.must:
        term_words = words_of_term(term)
        start = find_sublist(term_words, words, begin)
        if start < 0:
            condition = " after the terms before it" if begin else ""
            unmet.append(f"lacks {term!r}{condition}")
        elif request.in_order:
            begin = start + len(term_words)
    for term in request.must_not:
        if find_sublist(words_of_term(term), words) >= 0:
            unmet.append(f"has {term!r}")
    return unmet


def term_tokens(tokenizer: Tokenizer, term: str) -> list[str]:
    """Returns the tokens of a term.

    In a script without spaces, the first token loses its word-start marker if the vocabulary has it without the marker:
    the term can then occur in the middle of running text.
    """
    tokens = tokenizer.tokens(term)
    if not tokens:
        return []
    first = tokens[0].removeprefix(WORD_START)
    is_unspaced = bool(unspaced_runs(first[:1]))
    if is_unspaced and first in tokenizer.vocabulary:
        return [first, *tokens[1:]]
    return tokens


def encode_terms(
    request: Request, tokenizer: Tokenizer, oov: Sequence[str], max_length: int
) -> TermTokens | None:
    """Encodes the terms of a request; returns None if it has no terms.

    Args:
        request: a source line with constraints.
        tokenizer: the target tokenizer.
        oov: source words that the target vocabulary lacks and that the model can copy.
        max_length: maximum number of tokens in a translation, including EOS.

    Raises:
        DataError: a required term is empty, has tokens that the model cannot write, or contains a forbidden term; or
            the required terms exceed `max_length`.
    """
    terms = request.must
    if not request.in_order:
        # Unless the order matters, a term that is listed twice is a single constraint.
        terms = tuple(dict.fromkeys(terms))
    must = []
    for term in terms:
        ids, missing = _term_ids(request, term, tokenizer=tokenizer, oov=oov)
        if missing:
            raise DataError(
                f"{request.where}: the model cannot write the term {term!r}: it has no token for "
                f"{missing[0].removeprefix(WORD_START)!r}"
            )
        must.append(ids)
    must_not = []
    for term in request.must_not:
        ids, missing = _term_ids(request, term, tokenizer=tokenizer, oov=oov)
        # A term with missing tokens needs no constraint, since the model cannot write it anyway.
        if not missing:
            must_not.append(ids)
    for ids, term in zip(must, terms, strict=True):
        if any(find_sublist(forbidden, ids) >= 0 for forbidden in must_not):
            raise DataError(
                f"{request.where}: the required term {term!r} contains a forbidden term; remove one of them"
            )
    if not must and not must_not:
        return None
    # Each term may need a boundary token after it, and the translation needs EOS.
    needed = sum(len(ids) + 1 for ids in must) + len(tokenizer.tokens(request.prefix)) + 1
    if must and needed > max_length:
        raise DataError(
            f"{request.where}: its terms take {needed} tokens, more than max_length {max_length}; raise max_length"
        )
    return TermTokens(tuple(must), tuple(must_not), request.in_order)


def _term_ids(
    request: Request, term: str, *, tokenizer: Tokenizer, oov: Sequence[str]
) -> tuple[tuple[int, ...], list[str]]:
    """Returns a term's extended ids, and those of its tokens that the model can neither generate nor copy."""
    tokens = term_tokens(tokenizer, term)
    if not words_of(term) or not tokens:
        raise DataError(f"{request.where}: a term is empty")
    ids = tokenizer.vocabulary.extended_target_ids(tokens, oov)
    missing = []
    for token, written in zip(tokens, tokenizer.vocabulary.tokens_of(ids, oov), strict=True):
        if token != written:  # the model would write the unknown word instead
            missing.append(token)
    return tuple(ids), missing


def parse_dictionary(lines: Iterable[str], where: str) -> dict[str, str]:
    """Parses a dictionary of words or terms with SOURCE TAB TARGET on each line; skips empty lines."""
    entries: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        source, _, target = line.partition("\t")
        source = source.strip()
        target = target.strip()
        has_both_sides = bool(source and target)
        if not has_both_sides or "\t" in target:
            raise DataError(
                f"{where}, line {number}: {line!r} is not SOURCE TAB TARGET with a word on both sides"
            )
        if entries.setdefault(source, target) != target:
            raise DataError(
                f"{where}, line {number}: {source!r} has two translations; remove one of them"
            )
    return entries


class Terminology:
    """A glossary: source terms and the translations that are required wherever these terms occur as whole words."""

    def __init__(self, entries: Mapping[str, str]) -> None:
        self.entries = dict(entries)
        """The translation of each source term."""
        # the words of each source term and its translation, longest term first
        self._by_first_word: dict[str, list[tuple[list[str], str]]] = {}
        for source, target in entries.items():
            words = words_of(comparable(source))
            if not words or not words_of(target):
                raise DataError(
                    f"the term {source!r} with the translation {target!r} is empty; leave it out"
                )
            terms = self._by_first_word.setdefault(words[0], [])
            terms.append((words, target))
        for terms in self._by_first_word.values():
            terms.sort(key=lambda term: -len(term[0]))

    def apply(self, request: Request) -> Request:
        """Returns the request with the translations of all terms in its source added to `must`.

        If terms overlap, the leftmost one counts; of several that start at the same word, the longest. With `in_order`,
        the added translations have to follow the request's own terms, in the order of the source.
        """
        words = words_of(comparable(request.source))
        targets = []
        position = 0
        while position < len(words):
            for term, target in self._by_first_word.get(words[position], []):
                if words[position : position + len(term)] == term:
                    targets.append(target)
                    position += len(term)
                    break
            else:
                position += 1
        new_targets = [target for target in dict.fromkeys(targets) if target not in request.must]
        return replace(request, must=(*request.must, *new_targets))


def pad_terms(terms: Sequence[Sequence[Sequence[int]]], min_terms: int) -> Tensor:
    """Returns the terms of B sentences as `(B, U, L)`, padded with PAD on the right; U is at least `min_terms`."""
    n_terms = min_terms
    term_length = 1
    for sentence_terms in terms:
        n_terms = max(n_terms, len(sentence_terms))
        for term in sentence_terms:
            term_length = max(term_length, len(term))
    padded = torch.full((len(terms), n_terms, term_length), PAD)  # (B, U, L)
    for row, sentence_terms in enumerate(terms):
        for column, term in enumerate(sentence_terms):
            padded[row, column, : len(term)] = torch.tensor(term)
    return padded
