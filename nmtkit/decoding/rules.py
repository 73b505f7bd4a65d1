"""Rules that decide which tokens may come next. In every step, a search applies its rules to the scores one by one.

A rule sets the log-probabilities `(N,X)` of forbidden tokens to minus infinity. The log-probabilities of the other
tokens are not renormalized, so the score of a hypothesis remains the model's own. Only a forced prefix may also raise
the log-probability of its tokens. Notation as in `nmtkit.decoding.beam_search`.

A rule is a plain object that all sentences share. A rule that contains tensors with one row per sentence is a dataclass
that also inherits from `Rows`, so that its rows move together with the slots of their sentences.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import override

from nmtkit.core.registry import Registry
from nmtkit.data.batches.batch import NEW_WORD, Batch, Rows
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import EOS, PAD

if TYPE_CHECKING:
    from nmtkit.decoding.settings import SearchConfig
    from nmtkit.models.base import Memory

INFINITY = float("inf")
NO_TOKEN = -1
"""Value that pads a history after its last token."""


@dataclass(frozen=True)
class LiveHypotheses:
    """The N hypotheses that a step continues, W for each of B sentences, as rules see them."""

    position: Tensor
    """Number of tokens of each sentence so far, including its prompt, `(B,)`."""
    last_position: Tensor
    """Last position that the length limit of each sentence allows, `(B,)`."""
    width: int
    """Number of hypotheses per sentence, W."""
    memory: "Memory"
    """The encoded sources, with B rows; `memory.columns_of` maps extended ids to columns."""
    history: Tensor | None = None
    """Columns of all tokens so far `(N,t)`, negative after the last token; None if no rule sets `reads_history`."""
    forced: Tensor | None = None
    """The id with which each hypothesis must continue `(N,)`: PAD allows any token, NEW_WORD any token that begins a
    word or ends the sentence. None if the sentences have no prefix."""
    forced_log_probs: Tensor | None = None
    """Log-probability of each forced token before any rule is applied, `(N,1)`."""

    @property
    def lengths(self) -> Tensor:
        """Number of tokens in each hypothesis so far, including its prompt, `(N,)`."""
        return self.per_hypothesis(self.position)

    @property
    def tokens_left(self) -> Tensor:
        """Number of tokens, including EOS, that each hypothesis may still add, `(N,)`."""
        return self.per_hypothesis(self.last_position - self.position + 1)

    def per_hypothesis(self, rows: Tensor) -> Tensor:
        """Repeats the row of each sentence `(B,*)` for all its hypotheses: `(N,*)`."""
        return rows.repeat_interleave(self.width, 0)


class Rule(ABC):
    """Decides which tokens may come next.

    A rule must define `apply`. The other methods have defaults and matter only for registered rules, which the setting
    `search.rule` can select.
    """

    name: ClassVar[str] = ""
    """Name of a registered rule, as shown by `nmtkit explain`; "" stands for the value of `search.rule`. All other
    rules are named in `BeamSearch._begin_rules`."""
    reads_history: ClassVar[bool] = False
    """Whether the rule reads `LiveHypotheses.history`."""
    needs_log_probs: ClassVar[bool] = True
    """Whether the rule reads scores, or sets any of them to a new finite value. If no rule does so, the scores may be
    logits, which is faster for a large vocabulary."""
    forbids_special_tokens_only: ClassVar[bool] = False
    """Whether the rule leaves the scores of all ordinary tokens unchanged."""
    may_forbid_all: ClassVar[bool] = False
    """Whether the rule can forbid every token. If it does so, EOS is allowed again before the next rule is applied."""

    @abstractmethod
    def apply(self, log_probs: Tensor, live: LiveHypotheses) -> Tensor:
        """Returns the log-probabilities `(N,X)`, or logits, with minus infinity for tokens that may not come next.

        The first V columns are the target vocabulary, or the words of the shortlist. The remaining columns are source
        positions whose words may be copied. A rule may overwrite `log_probs`, but must not change itself:
        `nmtkit.decoding.tracing` applies each rule several times per step.
        """

    @classmethod
    def fault(cls, search: "SearchConfig") -> str:
        """Returns an error message if the settings of a search are incompatible with this rule, else ""."""
        return ""

    @classmethod
    def from_tokenizers(cls, tokenizers: Tokenizers, device: torch.device) -> Self:
        """Builds the rule for a model with these tokenizers, with all tensors on `device`.

        Raises:
            RecipeError: the tokenizers are not suitable for the rule.
        """
        return cls()

    def begin(self, batch: Batch) -> "Rule":
        """Returns the rule for the sentences of a batch, which is on the model's device."""
        return self

    def min_tokens(self) -> Tensor | None:
        """Returns each sentence's minimum number of tokens, without EOS, `(B,)`, on the CPU; None means no minimum.

        Length limits below the minimum are raised. The method is called on the result of `begin`. A rule that overrides
        this method must also override `min_tokens_bound`.
        """
        return None

    def min_tokens_bound(self, columns: int) -> int:
        """Returns an upper bound on `min_tokens` for a source of `columns` tokens, including EOS."""
        return 0


RULES: Registry[type[Rule]] = Registry("decoding rule", {"brackets": "nmtkit.zoo.parsing.brackets"})
"""Rules that the setting `search.rule` can select."""


class ForbiddenTokens(Rule):
    """Forbids certain special tokens at every position."""

    needs_log_probs = False
    forbids_special_tokens_only = True

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = ids
        """Ids of special tokens. They are also the columns of these tokens, with or without a shortlist."""

    @override
    def apply(self, log_probs: Tensor, live: LiveHypotheses) -> Tensor:
        for token in self.ids:
            log_probs[:, token] = -INFINITY
        return log_probs


@dataclass(frozen=True)
class MinLength(Rows, Rule):
    """Forbids EOS until a hypothesis has the minimum number of tokens for its sentence."""

    needs_log_probs = False
    forbids_special_tokens_only = True

    fewest: Tensor
    """Minimum number of tokens in each sentence, including the prompt but not EOS, `(B,)`."""

    @override
    def apply(self, log_probs: Tensor, live: LiveHypotheses) -> Tensor:
        is_early = live.per_hypothesis(self.fewest) > live.lengths  # (N,)
        log_probs[:, EOS].masked_fill_(is_early, -INFINITY)
        return log_probs


@dataclass(frozen=True)
class NoRepeatedNgrams(Rule):
    """Forbids repeating an n-gram within a hypothesis: Paulus et al. 2018, section 2.5, with trigrams."""

    needs_log_probs = False
    reads_history = True
    may_forbid_all = True

    size: int

    @override
    def apply(self, log_probs: Tensor, live: LiveHypotheses) -> Tensor:
        assert live.history is not None
        history = live.history  # (N,t)
        size = self.size
        if history.shape[1] < size:
            return log_probs
        ngrams = history.unfold(1, size, 1)  # (N,t-size+1,size): a view
        beginnings = ngrams[:, :, :-1]  # (N,t-size+1,size-1)
        last_tokens = ngrams[:, :, -1]  # (N,t-size+1)

        # The last size-1 tokens of each hypothesis, which will form an n-gram with the next token.
        lengths = live.lengths  # (N,)
        first_position = lengths - size + 1  # (N,)
        offsets = torch.arange(size - 1, device=history.device)  # (size-1,)
        positions = first_position[:, None] + offsets  # (N,size-1)
        current_beginning = history.gather(1, positions.clamp(min=0))  # (N,size-1)

        begins_alike = (beginnings == current_beginning[:, None]).all(2)  # (N,t-size+1)
        is_complete = (ngrams >= 0).all(2)  # (N,t-size+1)
        is_long_enough = (lengths >= size)[:, None]  # (N,1)
        is_repeated = begins_alike & is_complete & is_long_enough  # (N,t-size+1)
        forbid_columns(log_probs, last_tokens.clamp(min=0), is_repeated)
        return log_probs


@dataclass(frozen=True)
class ForcedPrefix(Rule):
    """Forces each translation to begin with its prefix, overriding all earlier rules."""

    needs_log_probs = False

    word_starts: Tensor | None = None
    """Mask of the tokens that begin a word or are not part of one `(V,)`, bool; required if a prefix has NEW_WORD."""

    @override
    def apply(self, log_probs: Tensor, live: LiveHypotheses) -> Tensor:
        assert live.forced is not None
        assert live.forced_log_probs is not None
        is_new_word = live.forced == NEW_WORD  # (N,)
        forced_ids = live.forced.masked_fill(is_new_word, PAD)  # (N,)
        column = live.memory.columns_of(forced_ids)[:, None]  # (N,1)
        is_forced = column != PAD  # (N,1)
        log_probs.masked_fill_(is_forced, -INFINITY)
        forced_scores = self.score(live.forced_log_probs)  # (N,1)
        # For hypotheses without a forced token, this writes the value of the PAD column back, which changes nothing.
        new_scores = torch.where(is_forced, forced_scores, log_probs.gather(1, column))  # (N,1)
        log_probs.scatter_(1, column, new_scores)
        if self.word_starts is not None:
            continues_word = self._columns_inside_words(log_probs.shape[1], live.memory)  # (X,)
            is_forbidden = is_new_word[:, None] & continues_word  # (N,X)
            log_probs.masked_fill_(is_forbidden, -INFINITY)
        return log_probs

    def score(self, log_probs: Tensor) -> Tensor:
        """Returns the log-probabilities that forced tokens get, given the model's own `log_probs`."""
        return allow_if_possible(log_probs)

    def _columns_inside_words(self, n_columns: int, memory: "Memory") -> Tensor:
        """Returns a mask of the columns whose tokens continue a word `(X,)`, bool. Copied words and EOS never do."""
        assert self.word_starts is not None
        word_starts = self.word_starts  # (V,)
        if memory.shortlist is not None:
            word_starts = word_starts[memory.shortlist.index.words]  # (V',): the shortlisted words
        n_copied = n_columns - len(word_starts)
        is_start = pad(word_starts, (0, n_copied), value=True)  # (X,)
        is_inside = ~is_start  # (X,)
        is_inside[EOS] = False
        return is_inside


@dataclass(frozen=True)
class CertainPrefix(ForcedPrefix):
    """A forced prefix whose tokens are scored as if they had probability 1, for `search.certain_prefix`."""

    needs_log_probs = True

    @override
    def score(self, log_probs: Tensor) -> Tensor:
        return torch.zeros_like(log_probs)


def forbid_columns(log_probs: Tensor, columns: Tensor, is_forbidden: Tensor) -> None:
    """Forbids, in place, the `columns` `(N,M)` of `log_probs` `(N,X)` for which `is_forbidden` `(N,M)` is set.

    A column may occur several times with different flags. Minus infinity or zero is therefore added: with an
    assignment, one occurrence would overwrite the others.
    """
    penalty = torch.zeros_like(is_forbidden, dtype=log_probs.dtype)  # (N,M)
    penalty.masked_fill_(is_forbidden, -INFINITY)
    log_probs.scatter_add_(1, columns, penalty)


def apply_rule(rule: Rule, log_probs: Tensor, live: LiveHypotheses, end: Tensor | None) -> Tensor:
    """Applies a rule as `Rule.apply` does, and allows EOS again if the rule has forbidden every token.

    `end` `(N,)` is the score of EOS before any rule is applied; required only if the rule sets `may_forbid_all`.
    """
    log_probs = rule.apply(log_probs, live)  # (N,X)
    if rule.may_forbid_all:
        assert end is not None
        allow_end_if_stuck(log_probs, end)
    return log_probs


def allow_end_if_stuck(log_probs: Tensor, end: Tensor) -> None:
    """Allows EOS, in place, if all tokens are forbidden; `end` `(N,)` is the model's own log-probability of EOS."""
    is_stuck = log_probs.amax(1) == -INFINITY  # (N,)
    log_probs[:, EOS] = torch.where(is_stuck, allow_if_possible(end), log_probs[:, EOS])


def allow_if_possible(log_probs: Tensor) -> Tensor:
    """Replaces minus infinity with the logarithm of the smallest normal number, so that required tokens can be chosen.

    Finite values, such as logits, remain unchanged.
    """
    smallest = torch.finfo(log_probs.dtype).tiny
    return log_probs.masked_fill(log_probs == -INFINITY, math.log(smallest))
