"""Encodes required and forbidden terms for the search, and checks finished translations for them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nmtkit.core.errors import DataError
from nmtkit.data.text.scripts import unspaced_runs
from nmtkit.data.tokenizers.tokenizer import WORD_START, Tokenizer
from nmtkit.data.tokenizers.vocabulary import PAD
from nmtkit.inference.constraints.requests import Request
from nmtkit.inference.constraints.words import words_of


@dataclass(frozen=True)
class EncodedTerms:
    """The terms of a request as extended token ids; see `Request`."""

    must: tuple[tuple[int, ...], ...]
    must_not: tuple[tuple[int, ...], ...]
    in_order: bool


NO_TERMS = EncodedTerms(must=(), must_not=(), in_order=False)


def encode_terms(
    request: Request, tokenizer: Tokenizer, oov: Sequence[str], max_length: int
) -> EncodedTerms | None:
    """Encodes the terms of a request; returns None if it has no terms.

    Args:
        request: a source line with constraints.
        tokenizer: the target tokenizer.
        oov: source words that the target vocabulary lacks and that the model can copy.
        max_length: maximum number of tokens in a translation, including EOS.

    Raises:
        DataError: a term is empty; a required term has tokens that the model cannot generate, or contains a forbidden
            term; or the prefix and the required terms do not fit into `max_length` tokens.
    """
    required_terms = request.must
    if not request.in_order:
        # Unless the order matters, a term that is listed twice is a single constraint.
        required_terms = tuple(dict.fromkeys(required_terms))
    required_ids = []
    for term in required_terms:
        ids, missing = _encode_term(request, term, tokenizer=tokenizer, oov=oov)
        if missing:
            raise DataError(
                f"{request.place}: the model cannot generate the term {term!r}, because it has no token for "
                f"{missing[0].removeprefix(WORD_START)!r}"
            )
        required_ids.append(ids)
    forbidden_ids = []
    for term in request.must_not:
        ids, missing = _encode_term(request, term, tokenizer=tokenizer, oov=oov)
        # A term with missing tokens needs no constraint, since the model cannot generate it anyway.
        if not missing:
            forbidden_ids.append(ids)
    for ids, term in zip(required_ids, required_terms, strict=True):
        if any(_find(forbidden, ids) is not None for forbidden in forbidden_ids):
            raise DataError(
                f"{request.place}: the required term {term!r} contains a forbidden term; remove one of them"
            )
    if not required_ids and not forbidden_ids:
        return None
    # Each term may need a boundary token after it, and the translation needs EOS.
    needed = sum(len(ids) + 1 for ids in required_ids) + len(tokenizer.tokens(request.prefix)) + 1
    if required_ids and needed > max_length:
        raise DataError(
            f"{request.place}: the prefix and the required terms need up to {needed} tokens, but max_length is "
            f"{max_length}; raise max_length"
        )
    return EncodedTerms(tuple(required_ids), tuple(forbidden_ids), request.in_order)


def _encode_term(
    request: Request, term: str, *, tokenizer: Tokenizer, oov: Sequence[str]
) -> tuple[tuple[int, ...], list[str]]:
    """Returns a term's extended ids, and those of its tokens that the model can neither generate nor copy."""
    tokens = term_tokens(tokenizer, term)
    if not words_of(term) or not tokens:
        raise DataError(f"{request.place}: a term is empty; remove it")
    ids = tokenizer.vocabulary.extended_target_ids(tokens, oov)
    missing = []
    for token, generated in zip(tokens, tokenizer.vocabulary.tokens_of(ids, oov), strict=True):
        if token != generated:  # the model would generate the unknown word instead
            missing.append(token)
    return tuple(ids), missing


def term_tokens(tokenizer: Tokenizer, term: str) -> list[str]:
    """Returns the tokens of a term.

    In a script without spaces, a term may follow another word directly, in the middle of running text. The first token
    of such a term therefore loses its word-start mark if the vocabulary has the token without the mark.
    """
    tokens = tokenizer.tokens(term)
    if not tokens:
        return []
    first = tokens[0].removeprefix(WORD_START)
    is_unspaced = bool(unspaced_runs(first[:1]))
    if is_unspaced and first in tokenizer.vocabulary:
        return [first, *tokens[1:]]
    return tokens


def unmet_constraints(request: Request, tokenizer: Tokenizer, text: str) -> list[str]:
    """Returns messages about the required terms that a translation lacks and the forbidden terms that it contains.

    Terms match whole words. Each term is tokenized first, and its tokens are joined again, since the tokenizer may have
    changed the words of the translation in the same way.
    """

    def words_of_term(term: str) -> list[str]:
        return words_of(tokenizer.join(tokenizer.tokens(term)))

    words = words_of(text)
    messages = []
    begin = 0  # index of the first word at which the next term may start; moves only if `in_order`
    preceding_term = ""  # the term that ends at `begin`
    for term in request.must:
        term_words = words_of_term(term)
        start = _find(term_words, words, begin)
        if start is None:
            condition = f" after {preceding_term!r}" if preceding_term else ""
            messages.append(f"lacks {term!r}{condition}")
        elif request.in_order:
            begin = start + len(term_words)
            preceding_term = term
    for term in request.must_not:
        if _find(words_of_term(term), words) is not None:
            messages.append(f"contains the forbidden term {term!r}")
    return messages


def _find(part: Sequence[object], items: Sequence[object], begin: int = 0) -> int | None:
    """Returns the first index, at or after `begin`, at which `part` occurs in `items`; None if there is none."""
    wanted = list(part)
    last_start = len(items) - len(wanted)
    for start in range(begin, last_start + 1):
        if list(items[start : start + len(wanted)]) == wanted:
            return start
    return None


def pad_terms(terms: Sequence[Sequence[Sequence[int]]], min_terms: int) -> Tensor:
    """Returns the terms of B sentences as a tensor of token ids `(B, U, L)`, padded with PAD on the right.

    L is the length of the longest term. U is the largest number of terms in a sentence, but at least `min_terms`: the
    search needs `Constraints.positive` to have U > 0.
    """
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
