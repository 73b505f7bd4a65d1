"""The search rule for parsing: every hypothesis is the beginning of a well-formed linearized tree.

A bracket is closed by its own label and is never empty. The tree has as many placeholders as the source has words, and
the hypothesis ends after the tree. A bracket opens only if the length limit leaves room for the remaining words and all
closing brackets, so every hypothesis can be completed at any time; if a sentence is too long for the limit, the limit
is raised. Notation as in `nmtkit.decoding.beam_search`. `nmtkit.zoo.parsing.trees` explains the linear form.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import override

from nmtkit.core.errors import RecipeError
from nmtkit.data.batches.batch import Batch, Rows
from nmtkit.data.tokenizers.tokenizer import WORD_START, Tokenizer
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import EOS, UNK
from nmtkit.decoding.rules import (
    INFINITY,
    RULES,
    DemandingRule,
    LiveHypotheses,
    TargetTokens,
    allow_if_possible,
)
from nmtkit.decoding.settings import SearchConfig
from nmtkit.zoo.parsing.trees import is_closing, is_opening

MAX_DEPTH = 100
OTHER, OPENING, CLOSING, WORD, END = range(5)
OUTER_BRACKETS = 2
"""Minimum number of tokens in a tree in addition to its words: one pair of brackets."""


@dataclass(frozen=True)
class BracketTokens:
    """The roles that the tokens of both vocabularies play in a tree, on the model's device."""

    kinds: Tensor
    """OPENING, CLOSING, WORD, END or OTHER `(V,)`, int64."""
    closings: Tensor
    """Id of the closing bracket for each opening token `(V,)`, int64."""
    counts: Tensor
    """Number of words (0 or 1) that each source token begins `(V_src,)`, int64."""

    @classmethod
    def from_tokenizers(cls, tokenizers: Tokenizers, device: torch.device) -> Self:
        """Creates the table on `device`; RecipeError if brackets are not tokens, or source words cannot be counted."""
        tokens = [token.removeprefix(WORD_START) for token in tokenizers.tgt.vocabulary.tokens]
        own = range(tokenizers.tgt.vocabulary.n_specials, len(tokens))
        return cls.of_tokens(tokens, own, _starts(tokenizers.src)).to(device)

    @classmethod
    def of_tokens(cls, tokens: Sequence[str], own: range, counts: Sequence[int]) -> Self:
        """Creates the table for target tokens on the CPU; `own` has the ids of all tokens that are not special."""
        closing = {tokens[number][1:]: number for number in own if is_closing(tokens[number])}
        kinds = [OTHER] * len(tokens)
        closings = [0] * len(tokens)
        for number in own:
            token = tokens[number]
            if is_opening(token) and token[1:] in closing:
                kinds[number] = OPENING
                closings[number] = closing[token[1:]]
            elif is_closing(token):
                kinds[number] = CLOSING
            elif not is_opening(token):
                kinds[number] = WORD
        kinds[EOS] = END
        if not {OPENING, WORD} <= {*kinds}:
            raise RecipeError(
                "`search.rules: [brackets]`: the target vocabulary lacks brackets such as (NP and "
                ")NP, or placeholders; set `tokenizer.columns.tgt.kind` to whitespace, and train "
                "on linearized trees (nmtkit linearize)"
            )
        return cls(torch.tensor(kinds), torch.tensor(closings), torch.tensor(counts))

    def to(self, device: torch.device) -> Self:
        """Returns a copy on the given device."""
        return type(self)(self.kinds.to(device), self.closings.to(device), self.counts.to(device))


def _starts(tokenizer: Tokenizer) -> list[int]:
    """Returns, for each source token, 1 if the token begins (or is) a word, else 0."""
    kind, vocabulary = tokenizer.config.kind, tokenizer.vocabulary
    if kind not in ("whitespace", "bpe", "unigram", "char"):
        raise RecipeError(
            f"`search.rules: [brackets]`: the source's `{kind}` tokenizer does not mark word "
            "starts; set `tokenizer.kind` to whitespace, bpe, unigram or char"
        )
    own = [int(kind == "whitespace" or token.startswith(WORD_START)) for token in vocabulary.tokens]
    own[: vocabulary.n_specials] = [0] * vocabulary.n_specials
    # an unknown subword follows a separate word-start mark
    own[UNK] = int(kind == "whitespace")
    return own


@RULES.register("brackets")
@dataclass(frozen=True)
class Brackets(Rows, DemandingRule):
    """Allows only tokens after which a well-formed tree can still be completed."""

    reads_history = True
    may_forbid_all = False

    tokens: BracketTokens
    """Table of token roles, which all sentences share."""
    words: Tensor
    """Number of words in each source `(B,)`, int64."""

    @classmethod
    @override
    def fault(cls, config: SearchConfig) -> str:
        if not (config.min_length or config.min_length_ratio or config.no_repeat_ngram):
            return ""
        return (
            "the source words determine a tree's length and repetitions; remove min_length, "
            "min_length_ratio and no_repeat_ngram"
        )

    @classmethod
    @override
    def begin(cls, batch: Batch, config: SearchConfig, tokens: TargetTokens) -> "Brackets":
        """Counts the words of each source.

        Raises:
            RecipeError: the model reads no text, brackets are not tokens, source words cannot be counted, or the
                sentences have a prefix or terms.
        """
        if not batch.reads_text:
            raise RecipeError(
                "`search.rules: [brackets]` requires a model that reads text, because a tree "
                "contains the words of its source; remove it from search.rules"
            )
        if batch.prefix is not None or batch.terms is not None:
            raise RecipeError(
                "the rule brackets cannot be combined with a prefix or terms: remove them"
            )
        table = tokens.table(BracketTokens.from_tokenizers)
        ids = batch.inputs.ids.to(tokens.device)  # (B,S)
        mask = batch.inputs.mask.to(tokens.device)  # (B,S)
        is_start = table.counts[ids] * mask  # (B,S)
        return cls(table, is_start.sum(1))

    @override
    def min_tokens(self) -> Tensor:
        return self.words.cpu() + OUTER_BRACKETS

    @classmethod
    @override
    def min_tokens_bound(cls, columns: int) -> int:
        return columns + OUTER_BRACKETS

    @override
    def apply(self, log_probs: Tensor, live: LiveHypotheses) -> Tensor:
        """Forbids tokens that break the tree, including all copied tokens."""
        assert live.history is not None
        history = live.history  # (N,t)
        is_token = (history >= 0) & (history < len(self.tokens.kinds))
        kind = self.tokens.kinds[history.clamp(min=0, max=len(self.tokens.kinds) - 1)].masked_fill(
            ~is_token, OTHER
        )
        is_opening_token = kind == OPENING
        depths = (is_opening_token.long() - (kind == CLOSING).long()).cumsum(
            1
        )  # (N,t): after each token
        depth = depths[:, -1] if depths.shape[1] else torch.zeros_like(live.tokens_left)  # (N,)
        left = live.per_hypothesis(self.words) - (kind == WORD).sum(
            1
        )  # (N,): words without a placeholder
        has_begun = is_opening_token.any(1)
        # The innermost open bracket is the last one that was opened at the current depth.
        places = torch.arange(1, history.shape[1] + 1, device=history.device)
        place = (
            ((is_opening_token & (depths == depth[:, None])) * places).amax(1)
            if len(places)
            else depth
        )
        opener = pad(history, (1, 0)).gather(1, place[:, None])  # (N,1)
        is_empty = place == live.lengths  # opened by the last token

        is_open = depth > 0
        has_words = left > 0
        may_open = has_words & (is_open | ~has_begun) & (depth < MAX_DEPTH)
        may_open = may_open & (live.tokens_left > left + depth + 2)
        may_close = is_open & ~is_empty & ((depth > 1) | ~has_words)
        may_end = ~is_open & (has_begun | ~has_words)
        never = torch.zeros_like(is_open)
        # columns in the order of OTHER, OPENING, ...
        by_kind = torch.stack([never, may_open, never, is_open & has_words, may_end], 1)
        allowed = by_kind.index_select(1, self.tokens.kinds)  # (N,V)
        closing = self.tokens.closings[
            opener.clamp(min=0, max=len(self.tokens.closings) - 1)
        ]  # (N,1)
        allowed = allowed.scatter(1, closing, allowed.gather(1, closing) | may_close[:, None])
        allowed = pad(allowed, (0, log_probs.shape[1] - allowed.shape[1]))  # (N,X)
        return allow_if_possible(log_probs).masked_fill(~allowed, -INFINITY)
