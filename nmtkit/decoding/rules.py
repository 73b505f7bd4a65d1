"""Rules: which tokens may follow. A search has a list of them and applies each to the scores of every step.

A rule sets log-probabilities `(N,X)` to minus infinity. Those of what stays allowed are not renormalized: the score of
a hypothesis is the model's own. Only a forced prefix also raises what it demands. Letters as in
`nmtkit.decoding.beam_search`.

Rules are plain objects, which all sentences share. One that has tensors with a row for each sentence is a dataclass
that derives from `Rows` as well: its rows move with the slots of their sentences.
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
"""Stands in a history after its last token."""


@dataclass(frozen=True)
class LiveHypotheses:
    """The N hypotheses that a step continues, W for each of B sentences, as rules see them."""

    position: Tensor
    """Tokens of each sentence so far, those of its prompt included, `(B,)`."""
    last_position: Tensor
    """The position of the last token that its length limit allows, `(B,)`."""
    width: int
    """W."""
    memory: "Memory"
    """What the model has read, B rows; its `columns_of` says which columns stand for extended ids."""
    history: Tensor | None = None
    """The columns of all tokens so far `(N,t)`, negative after the last; None if no rule `reads_history`."""
    forced: Tensor | None = None
    """The id that each must continue with `(N,)`: PAD for any, NEW_WORD for any that begins a word or ends the
    sentence. None if the sentences have no prefix."""
    forced_log_probs: Tensor | None = None
    """The log-probability of each forced token before any rule, `(N,1)`."""

    @property
    def lengths(self) -> Tensor:
        """Tokens of each hypothesis so far, those of its prompt included, `(N,)`."""
        return self.of_sentences(self.position)

    @property
    def tokens_left(self) -> Tensor:
        """How many tokens each hypothesis may still have, EOS included, `(N,)`."""
        return self.of_sentences(self.last_position - self.position + 1)

    def of_sentences(self, rows: Tensor) -> Tensor:
        """Repeats the row of each sentence `(B,*)` for its hypotheses: `(N,*)`."""
        return rows.repeat_interleave(self.width, 0)


class Rule(ABC):
    """Decides which tokens may follow.

    `apply` is all that a rule needs. The methods after it have defaults and matter only for a registered rule, which
    `search.rule` names.
    """

    name: ClassVar[str] = ""
    """The setting that it comes from, as `nmtkit explain` shows it."""
    reads_history: ClassVar[bool] = False
    """Whether it reads `LiveHypotheses.history`."""
    needs_log_probs: ClassVar[bool] = True
    """Whether it reads numbers, or sets others than minus infinity. If no rule does, it may get logits, which a large
    vocabulary has in less time."""
    forbids_special_tokens_only: ClassVar[bool] = False
    """Whether it leaves all other tokens as they are."""
    may_forbid_all: ClassVar[bool] = False
    """Whether it can forbid every token. Where it does, EOS is allowed right after it, before the next rule."""

    @abstractmethod
    def apply(self, log_probs: Tensor, live: LiveHypotheses) -> Tensor:
        """Returns the log-probabilities `(N,X)`, or logits, with minus infinity for tokens that may not follow.

        The first V columns are the target vocabulary (with a shortlist, its words), the others are source positions
        whose word may be copied. It may write into `log_probs`.
        """

    @classmethod
    def fault(cls, search: "SearchConfig") -> str:
        """Returns what is wrong with a search that has this rule; empty if nothing is."""
        return ""

    @classmethod
    def of(cls, tokenizers: Tokenizers, device: torch.device) -> Self:
        """Makes the rule for a model with these tokenizers, with its tensors on the model's device.

        Raises:
            RecipeError: the tokenizers do not fit the rule.
        """
        return cls()

    def begin(self, batch: Batch) -> "Rule":
        """Returns the rule for the sentences of a batch, which is on the device of the model."""
        return self

    def fewest_tokens(self) -> Tensor | None:
        """Returns the fewest tokens that each sentence needs, EOS not counted, `(B,)`, on the CPU; None for any number.

        They raise the length limit. It is asked after `begin`. A rule that overrides it overrides `most_needed` too.
        """
        return None

    def most_needed(self, columns: int) -> int:
        """Returns the most that `fewest_tokens` can be for a source of this many tokens, EOS included."""
        return 0


RULES: Registry[type[Rule]] = Registry("decoding rule", {"brackets": "nmtkit.zoo.parsing.brackets"})
"""Rules that `search.rule` can name."""


class ForbiddenTokens(Rule):
    """Some tokens never follow."""

    name = "forbid_unknown"
    needs_log_probs = False
    forbids_special_tokens_only = True

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = ids
        """They are special tokens, whose columns are their ids, also with a shortlist."""

    @override
    def apply(self, log_probs: Tensor, live: LiveHypotheses) -> Tensor:
        for token in self.ids:
            log_probs[:, token] = -INFINITY
        return log_probs


@dataclass(frozen=True)
class MinLength(Rows, Rule):
    """No sentence ends before it has so many tokens."""

    name = "min_length"
    needs_log_probs = False
    forbids_special_tokens_only = True

    fewest: Tensor
    """Fewest tokens, those of the prompt included, EOS not counted, `(B,)`."""

    @override
    def apply(self, log_probs: Tensor, live: LiveHypotheses) -> Tensor:
        is_early = live.of_sentences(self.fewest) > live.lengths  # (N,)
        log_probs[:, EOS].masked_fill_(is_early, -INFINITY)
        return log_probs


@dataclass(frozen=True)
class NoRepeatedNgrams(Rule):
    """No hypothesis has an n-gram of this size twice: Paulus et al. 2018, section 2.5, with trigrams."""

    name = "no_repeat_ngram"
    needs_log_probs = False
    reads_history = True
    may_forbid_all = True

    size: int

    @override
    def apply(self, log_probs: Tensor, live: LiveHypotheses) -> Tensor:
        assert live.history is not None
        history, size = live.history, self.size
        if history.shape[1] < size:
            return log_probs
        ngrams = history.unfold(1, size, 1)  # (N,t-size+1,size)
        lengths = live.lengths  # (N,)
        last_places = torch.arange(size - 1, device=history.device)
        places = (lengths - size + 1)[:, None] + last_places  # (N,size-1)
        last_tokens = history.gather(1, places.clamp(min=0))  # (N,size-1): what the next token would complete
        begins_alike = (ngrams[:, :, :-1] == last_tokens[:, None]).all(2)  # (N,t-size+1)
        is_whole = (ngrams >= 0).all(2)
        is_repeated = begins_alike & is_whole & (lengths >= size)[:, None]
        # Added, not assigned: a token that ends several n-grams stays forbidden if any of them matches.
        ban = torch.zeros_like(is_repeated, dtype=log_probs.dtype).masked_fill_(is_repeated, -INFINITY)
        return log_probs.scatter_add_(1, ngrams[:, :, -1].clamp(min=0), ban)


@dataclass(frozen=True)
class ForcedPrefix(Rule):
    """A translation begins with a given prefix, whatever other rules say."""

    name = "prefix"
    needs_log_probs = False

    word_starts: Tensor | None = None
    """Tokens that begin a word or are no part of one `(V,)`, bool; needed if a prefix has NEW_WORD."""

    @override
    def apply(self, log_probs: Tensor, live: LiveHypotheses) -> Tensor:
        assert live.forced is not None
        assert live.forced_log_probs is not None
        is_new_word = live.forced == NEW_WORD  # (N,)
        token = live.memory.columns_of(live.forced.masked_fill(is_new_word, PAD))[:, None]  # (N,1)
        is_forced = token != PAD
        log_probs.masked_fill_(is_forced, -INFINITY)
        forced = self.score(live.forced_log_probs)  # (N,1)
        log_probs.scatter_(1, token, torch.where(is_forced, forced, log_probs.gather(1, token)))
        if self.word_starts is not None:
            continues_word = self._columns_inside_words(log_probs.shape[1], live.memory)  # (X,)
            log_probs.masked_fill_(is_new_word[:, None] & continues_word, -INFINITY)
        return log_probs

    def score(self, log_probs: Tensor) -> Tensor:
        """Returns the log-probabilities that forced tokens get in place of the model's own."""
        return allow_if_possible(log_probs)

    def _columns_inside_words(self, size: int, memory: "Memory") -> Tensor:
        """The columns of tokens that continue a word `(X,)`, bool; copied words and EOS do not."""
        assert self.word_starts is not None
        starts = self.word_starts if memory.shortlist is None else self.word_starts[memory.shortlist.index.words]
        inside = ~pad(starts, (0, size - len(starts)), value=True)
        inside[EOS] = False
        return inside


@dataclass(frozen=True)
class CertainPrefix(ForcedPrefix):
    """A forced prefix has a probability of 1 in the score: `search.certain_prefix`."""

    needs_log_probs = True

    @override
    def score(self, log_probs: Tensor) -> Tensor:
        return torch.zeros_like(log_probs)


def allow_end_if_stuck(log_probs: Tensor, end: Tensor) -> None:
    """Allows EOS, with the model's own log-probability `end` `(N,)`, where every token is forbidden; in place."""
    is_stuck = log_probs.amax(1) == -INFINITY  # (N,)
    log_probs[:, EOS] = torch.where(is_stuck, allow_if_possible(end), log_probs[:, EOS])


def allow_if_possible(log_probs: Tensor) -> Tensor:
    """Raises log-probabilities of minus infinity to the least finite one; a token that a rule demands must be possible.

    Logits stay as they are.
    """
    return log_probs.masked_fill(log_probs == -INFINITY, math.log(torch.finfo(log_probs.dtype).tiny))
