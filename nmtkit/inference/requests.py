"""Constraints on the translation of a line: its prefix, and terms that it must or must not contain."""

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
    """The translation begins with these words; the last one is a whole word."""
    must: tuple[str, ...] = ()
    """The translation contains each of them as whole words."""
    must_not: tuple[str, ...] = ()
    """The translation contains none of them."""
    in_order: bool = False
    """Whether `must` come in this order."""
    tags: str = ""
    """Special tokens before the source, separated by spaces, see `SplitFiles.tags`."""
    languages: tuple[str, str] = ("", "")
    """The languages of source and target, for an imported multilingual model; empty: the model's default."""
    where: str = ""
    """Name of the line in messages."""

    @classmethod
    def of(cls, line: "str | Rows | Request", where: str = "a line") -> "Request":
        """Returns a line as a request, by default without constraints; `where` is its name in messages."""
        if isinstance(line, Request):
            return line if line.where else replace(line, where=where)
        return cls(line, where=where)

    @classmethod
    def of_fields(cls, line: str, where: str) -> "Request":
        """Reads SOURCE TAB PREFIX; without a tab there is no prefix."""
        source, _, prefix = line.partition("\t")
        if "\t" in prefix:
            raise DataError(f"{where}: more than one tab; expected SOURCE TAB PREFIX")
        return cls(source, prefix.strip(), where=where)

    @classmethod
    def of_json(cls, line: str, where: str) -> "Request":
        """Reads a JSON object with "source", and maybe "prefix", "must", "must_not" and "in_order"."""
        if not line.strip():
            return cls("", where=where)
        record = parse_record(line, where)
        kinds = {"source": str, "prefix": str, "must": list, "must_not": list, "in_order": bool}
        for key, value in record.items():
            if key not in kinds:
                raise DataError(f"{where}: unknown field {key!r}; expected {', '.join(kinds)}")
            kind = kinds[key]
            is_valid = isinstance(value, kind)
            if kind is list:
                is_valid = is_valid and is_list_of_strings(value)
            if not is_valid:
                expected = {str: "a string", list: "a list of strings", bool: "true or false"}[kind]
                raise DataError(f"{where}: field {key!r} is not {expected}")
        if "source" not in record:
            raise DataError(f"{where}: no field 'source'")
        record["source"] = " ".join(record["source"].splitlines())
        record["must"] = tuple(record.get("must", ()))
        record["must_not"] = tuple(record.get("must_not", ()))
        return cls(**record, where=where)


@dataclass(frozen=True)
class TermTokens:
    """Terms of a request as extended token ids."""

    must: tuple[tuple[int, ...], ...]
    must_not: tuple[tuple[int, ...], ...]
    in_order: bool


@cache
def _word() -> re.Pattern[str]:
    marks = mark_class()
    # Each letter of a script without spaces counts as a word.
    unspaced = unspaced_class()
    return re.compile(rf"[{unspaced}]|(?:(?![{unspaced}])[\w{marks}])+|[^\s\w]")


def words_of(text: str) -> list[str]:
    """Words and single marks of a text."""
    return _word().findall(text)


def starts_word(token: str) -> bool:
    """Returns whether a token begins a word, or is a mark; the word before it is then complete."""
    return token.startswith(WORD_START) or words_of("x" + token)[0] == "x"


def word_starts(tokenizer: Tokenizer, device: torch.device) -> Tensor:
    """Returns which tokens of a vocabulary begin a word, or are marks, `(V,)`, bool."""
    specials = [False] * len(SPECIALS)
    tokens = [starts_word(token) for token in tokenizer.vocabulary.tokens[len(SPECIALS) :]]
    return torch.tensor(specials + tokens, device=device)


def find_sublist(term: Sequence[object], words: Sequence[object], begin: int = 0) -> int:
    """Returns the index of a sub-list (of words or tokens) at or after `begin`, or -1."""
    wanted = list(term)
    last_start = len(words) - len(wanted)
    for start in range(begin, last_start + 1):
        part = words[start : start + len(wanted)]
        if list(part) == wanted:
            return start
    return -1


def unmet_constraints(request: Request, tokenizer: Tokenizer, text: str) -> list[str]:
    """Returns messages about the terms that a translation lacks, or contains though it must not.

    Terms are compared as the tokenizer writes them, word by word.
    """

    def words_of_term(term: str) -> list[str]:
        return words_of(tokenizer.join(tokenizer.tokens(term)))

    words = words_of(text)
    unmet = []
    begin = 0  # of the words in which the next term must be
    for term in request.must:
        term_words = words_of_term(term)
        start = find_sublist(term_words, words, begin)
        if start < 0:
            place = " in its place" if begin else ""
            unmet.append(f"lacks {term!r}{place}")
        elif request.in_order:
            begin = start + len(term_words)
    for term in request.must_not:
        if find_sublist(words_of_term(term), words) >= 0:
            unmet.append(f"has {term!r}")
    return unmet


def term_tokens(tokenizer: Tokenizer, term: str) -> list[str]:
    """Returns the tokens of a term; without the mark of a word start if its script has no spaces."""
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
    """Encodes the terms of a request; None if it has none.

    Args:
        request: a source line with constraints.
        tokenizer: the target's.
        oov: words of the source that the target vocabulary lacks, and that the model can copy.
        max_length: the most tokens of a translation, EOS included.
    """
    terms = request.must
    if not request.in_order:
        # without order, a term that is listed twice is one constraint
        terms = tuple(dict.fromkeys(terms))
    must = []
    for term in terms:
        ids, missing = _term_ids(request, term, tokenizer=tokenizer, oov=oov)
        if missing:
            raise DataError(
                f"{request.where}: the term {term!r} cannot be written: the model has no token for "
                f"{missing[0].removeprefix(WORD_START)!r}"
            )
        must.append(ids)
    must_not = []
    for term in request.must_not:
        ids, missing = _term_ids(request, term, tokenizer=tokenizer, oov=oov)
        if not missing:  # the model cannot write the other terms anyway
            must_not.append(ids)
    for ids, term in zip(must, terms, strict=True):
        if any(find_sublist(forbidden, ids) >= 0 for forbidden in must_not):
            raise DataError(
                f"{request.where}: the term {term!r} contains one that the translation must not contain"
            )
    if not must and not must_not:
        return None
    # Each term may need a boundary token after it, and the translation needs EOS.
    needed = sum(len(ids) + 1 for ids in must) + len(tokenizer.tokens(request.prefix)) + 1
    if must and needed > max_length:
        raise DataError(
            f"{request.where}: its terms take {needed} tokens, more than max_length {max_length}: raise it"
        )
    return TermTokens(tuple(must), tuple(must_not), request.in_order)


def _term_ids(
    request: Request, term: str, *, tokenizer: Tokenizer, oov: Sequence[str]
) -> tuple[tuple[int, ...], list[str]]:
    """Returns the extended ids of a term, and its tokens that the model can neither generate nor copy."""
    tokens = term_tokens(tokenizer, term)
    if not words_of(term) or not tokens:
        raise DataError(f"{request.where}: a term is empty")
    ids = tokenizer.vocabulary.extended_target_ids(tokens, oov)
    missing = []
    for token, written in zip(tokens, tokenizer.vocabulary.tokens_of(ids, oov), strict=True):
        if token != written:  # it is written as the unknown word
            missing.append(token)
    return tuple(ids), missing


def parse_dictionary(lines: Iterable[str], where: str) -> dict[str, str]:
    """Reads translations of words or terms: SOURCE TAB TARGET on each line; empty lines are skipped."""
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
    """Translations of terms, for the lines that contain them as whole words."""

    def __init__(self, entries: Mapping[str, str]) -> None:
        self.entries = dict(entries)
        """The translation of each source term."""
        # source words and target, longest first
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

    def applied(self, request: Request) -> Request:
        """Returns the request with the translations of all terms of its source; of terms that overlap, the longest."""
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
    count = min_terms
    length = 1
    for sentence_terms in terms:
        count = max(count, len(sentence_terms))
        length = max([length, *map(len, sentence_terms)])
    padded = torch.full((len(terms), count, length), PAD)  # (B, U, L)
    for row, sentence_terms in enumerate(terms):
        for number, term in enumerate(sentence_terms):
            padded[row, number, : len(term)] = torch.tensor(term)
    return padded
