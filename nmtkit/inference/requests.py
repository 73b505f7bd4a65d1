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
    """Text; for a model that reads features rows of numbers `(R,F)`."""
    prefix: str = ""
    """The translation begins with these words; the tokenizer takes the last as whole."""
    must: tuple[str, ...] = ()
    """The translation contains each of them as whole words."""
    must_not: tuple[str, ...] = ()
    """It contains none of them."""
    in_order: bool = False
    """Whether `must` come in this order."""
    tags: str = ""
    """Special tokens before the source, with spaces between, see `SplitFiles.tags`."""
    languages: tuple[str, str] = ("", "")
    """The languages of source and target, for an imported multilingual model; empty ones are the model's own."""
    where: str = ""
    """What messages call the line."""

    @classmethod
    def of(cls, line: "str | Rows | Request", where: str = "a line") -> "Request":
        """The request that a line is, or which asks for nothing else; `where` is what messages call it."""
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
        """Reads an object with "source", and if wanted "prefix", "must", "must_not" and "in_order"."""
        if not line.strip():
            return cls("", where=where)
        record = parse_record(line, where)
        kinds = {"source": str, "prefix": str, "must": list, "must_not": list, "in_order": bool}
        for key, value in record.items():
            if key not in kinds:
                raise DataError(f"{where}: unknown field {key!r}; expected {', '.join(kinds)}")
            if not isinstance(value, kinds[key]) or (kinds[key] is list and not is_list_of_strings(value)):
                wanted = {str: "a string", list: "a list of strings", bool: "true or false"}[kinds[key]]
                raise DataError(f"{where}: field {key!r} is not {wanted}")
        if "source" not in record:
            raise DataError(f"{where}: no field 'source'")
        given = {**record, "must": tuple(record.get("must", ())), "must_not": tuple(record.get("must_not", ()))}
        given["source"] = " ".join(given["source"].splitlines())
        return cls(**given, where=where)


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
    """Whether a token begins a word, or is none of its letters: the word before it then is whole."""
    return token.startswith(WORD_START) or words_of("x" + token)[0] == "x"


def word_starts(tokenizer: Tokenizer, device: torch.device) -> Tensor:
    """Which tokens of a vocabulary begin a word, or are none of its letters `(V,)`, bool."""
    rest = [starts_word(token) for token in tokenizer.vocabulary.tokens[len(SPECIALS) :]]
    return torch.tensor([False] * len(SPECIALS) + rest, device=device)


def find_sublist(term: Sequence[object], words: Sequence[object], begin: int = 0) -> int:
    """Where words, or tokens, stand in a row among others, from `begin`; -1 where they do not."""
    size = len(term)
    return next((at for at in range(begin, len(words) - size + 1) if list(words[at : at + size]) == list(term)), -1)


def unmet_constraints(request: Request, tokenizer: Tokenizer, text: str) -> list[str]:
    """What a translation lacks of its request, or has against it, in words; terms are read as the tokenizer does."""

    def words_of_term(term: str) -> list[str]:
        return words_of(tokenizer.join(tokenizer.tokens(term)))

    words, begin, unmet = words_of(text), 0, []
    for term in request.must:
        own = words_of_term(term)
        at = find_sublist(own, words, begin)
        if at < 0:
            unmet.append(f"lacks {term!r}" + (" in its place" if begin else ""))
        elif request.in_order:
            begin = at + len(own)
    return unmet + [f"has {term!r}" for term in request.must_not if find_sublist(words_of_term(term), words) >= 0]


def term_tokens(tokenizer: Tokenizer, term: str) -> list[str]:
    """The tokens of a term; without the mark of a word where its script has none."""
    tokens = tokenizer.tokens(term)
    bare = tokens[0].removeprefix(WORD_START) if tokens else ""
    if unspaced_runs(bare[:1]) and bare in tokenizer.vocabulary:
        tokens = [bare, *tokens[1:]]
    return tokens


def encode_terms(request: Request, tokenizer: Tokenizer, oov: Sequence[str], longest: int) -> TermTokens | None:
    """The terms of a request in tokens; None where it has none.

    The model can copy words `oov` that the vocabulary lacks. A translation has at most `longest` tokens, EOS counted.
    """
    vocabulary = tokenizer.vocabulary

    def of(term: str, refused: bool) -> tuple[int, ...]:
        tokens = term_tokens(tokenizer, term)
        if not words_of(term) or not tokens:
            raise DataError(f"{request.where}: a term is empty")
        ids = vocabulary.extended_target_ids(tokens, oov)
        lacking = [token for token, known in zip(tokens, vocabulary.tokens_of(ids, oov), strict=True) if token != known]
        if lacking and not refused:
            raise DataError(
                f"{request.where}: the term {term!r} cannot be written: the model has no token for "
                f"{lacking[0].removeprefix(WORD_START)!r}"
            )
        return () if lacking else tuple(ids)

    distinct = request.must if request.in_order else tuple(dict.fromkeys(request.must))
    must = tuple(of(term, False) for term in distinct)
    must_not = tuple(ids for term in request.must_not if (ids := of(term, True)))
    for ids, term in zip(must, distinct, strict=True):
        for refused in must_not:
            if find_sublist(refused, ids) >= 0:
                raise DataError(f"{request.where}: the term {term!r} holds one that the translation must not contain")
    room = sum(len(ids) + 1 for ids in must) + len(tokenizer.tokens(request.prefix)) + 1
    if must and room > longest:
        raise DataError(f"{request.where}: its terms take {room} tokens, more than max_length {longest}: raise it")
    return TermTokens(must, must_not, request.in_order) if must or must_not else None


def parse_dictionary(lines: Iterable[str], where: str) -> dict[str, str]:
    """Reads translations of words or terms: "SOURCE TAB TARGET" on each line; empty lines are skipped."""
    entries: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        source, _, target = (side.strip() for side in line.partition("\t"))
        if not source or not target or "\t" in target:
            raise DataError(f"{where}, line {number}: {line!r} is not SOURCE TAB TARGET with a word on both sides")
        if entries.setdefault(source, target) != target:
            raise DataError(f"{where}, line {number}: {source!r} has two translations; leave one")
    return entries


class Terminology:
    """Translations of terms, for the lines that contain them as whole words."""

    def __init__(self, entries: Mapping[str, str]) -> None:
        self.entries = dict(entries)
        """The translation of each source term."""
        self._by_first: dict[str, list[tuple[list[str], str]]] = {}
        for source, target in entries.items():
            words = words_of(comparable(source))
            if not words or not words_of(target):
                raise DataError(f"the term {source!r} with the translation {target!r} is empty; leave it out")
            self._by_first.setdefault(words[0], []).append((words, target))
        for terms in self._by_first.values():
            terms.sort(key=lambda term: -len(term[0]))

    def applied(self, request: Request) -> Request:
        """The request with the translations of all terms of its source; of terms that overlap the longest is taken."""
        words, at, targets = words_of(comparable(request.source)), 0, []
        while at < len(words):
            for term, target in self._by_first.get(words[at], []):
                if words[at : at + len(term)] == term:
                    targets.append(target)
                    at += len(term) - 1
                    break
            at += 1
        more = tuple(term for term in dict.fromkeys(targets) if term not in request.must)
        return replace(request, must=(*request.must, *more))


def pad_terms(terms: Sequence[Sequence[Sequence[int]]], least: int) -> Tensor:
    """Terms of B sentences as `(B,U,L)`, U at least `least`, PAD behind them."""
    count = max(least, *map(len, terms))
    length = max((len(term) for of_one in terms for term in of_one), default=1)
    padded = torch.full((len(terms), count, length), PAD)
    for row, of_one in enumerate(terms):
        for place, term in enumerate(of_one):
            padded[row, place, : len(term)] = torch.tensor(term)
    return padded
