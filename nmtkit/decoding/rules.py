"""Rules that decide which tokens may come next. In every step, a search applies its rules to the scores one by one.

A rule sets the log-probabilities `(N,X)` of forbidden tokens to minus infinity. The log-probabilities of the other
tokens are not renormalized, so the score of a hypothesis remains the model's own. Only a forced prefix may also raise
the log-probability of its tokens. Notation as in `nmtkit.decoding.beam_search`.

Rules are registered by name. `rule_names` lists those of a search: the rules that have settings of their own, those
that the setting `search.rules` lists, and the terms and prefixes of the sentences.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar, cast

import torch
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import override

from nmtkit.core.registry import Registry
from nmtkit.data.batches.batch import NEW_WORD, Batch, Rows
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, UNK
from nmtkit.decoding.limits import min_lengths

if TYPE_CHECKING:
    from nmtkit.decoding.settings import SearchConfig
    from nmtkit.models.base import Memory

Table = TypeVar("Table")

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


@dataclass(frozen=True)
class TargetTokens:
    """Properties of the target tokens that some rules need; tensors are on the model's device."""

    word_starts: Callable[[], Tensor] | None = None
    """Function that returns a mask of the tokens that begin a word or are not part of one, `(V,)`, bool. It is called
    only for terms and for prefixes with NEW_WORD."""
    tokenizers: Tokenizers | None = None
    """The tokenizers of the model; None if no rule needs them."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Device of the model."""
    tables: dict[object, object] = field(default_factory=dict)
    """What `table` has computed, by the function that computed it."""

    def table(self, compute: Callable[[Tokenizers, torch.device], Table]) -> Table:
        """Returns `compute(tokenizers, device)`, which is computed once and kept for the batches of all searches."""
        if compute not in self.tables:
            assert self.tokenizers is not None, "this rule needs tokenizers"
            self.tables[compute] = compute(self.tokenizers, self.device)
        return cast(Table, self.tables[compute])


NO_TARGET_TOKENS = TargetTokens()


@dataclass(frozen=True)
class WordStarts:
    """Which tokens begin a word or are not part of one."""

    mask: Tensor
    """Mask of these tokens `(V,)`, bool."""

    @classmethod
    def of(cls, tokens: TargetTokens) -> "WordStarts":
        """Computes the mask."""
        assert tokens.word_starts is not None, "this search needs word starts"
        return cls(tokens.word_starts())

    def of_words(self, memory: "Memory") -> Tensor:
        """Returns the mask of the words of a shortlist `(V',)`; without a shortlist, of the vocabulary `(V,)`."""
        if memory.shortlist is None:
            return self.mask
        return self.mask[memory.shortlist.index.words]


class Rule(ABC):
    """Decides which tokens may come next.

    A rule must define `apply`; everything else has a default. A rule that contains tensors with one row per sentence is
    a dataclass that also inherits from `Rows`, so that its rows move together with the slots of their sentences. All
    batches without prefixes and terms must get rules with the same fields, so that their sentences can take each
    other's slots.
    """

    name: str = ""
    """Name of the rule in the output of `nmtkit explain`; "" stands for the name with which it is registered."""
    reads_history: ClassVar[bool] = False
    """Whether the rule reads `LiveHypotheses.history`."""
    effect: ClassVar[Literal["special_tokens", "tokens", "scores"]] = "scores"
    """What the rule may do. The less it does, the faster is a search with a large vocabulary.

    special_tokens: it only forbids special tokens, such as EOS.
    tokens: it only forbids tokens, and does not read scores, so the scores may be logits.
    scores: it may also read scores, or set them to new values, so they are log-probabilities.
    """
    may_forbid_all: ClassVar[bool] = True
    """Whether the rule can forbid every token. EOS is then allowed after all, so that the hypothesis can end."""

    @classmethod
    def begin(cls, batch: Batch, config: "SearchConfig", tokens: TargetTokens) -> "Rule | None":
        """Returns the rule for the sentences of a batch, or None if it does not apply to them.

        Args:
            batch: the sentences, usually on the CPU. The search sends the rows of the rule to the model's device.
            config: the search settings that apply to the batch.
            tokens: properties of the target tokens.

        Raises:
            RecipeError: the rule does not fit the batch, the settings or the tokenizers.
        """
        return cls()

    @abstractmethod
    def apply(self, log_probs: Tensor, live: LiveHypotheses) -> Tensor:
        """Returns the log-probabilities `(N,X)`, or logits, with minus infinity for tokens that may not come next.

        The first V columns are the target vocabulary, or the words of the shortlist. The remaining columns are source
        positions whose words may be copied. A rule may overwrite `log_probs`, but must not change itself:
        `nmtkit.decoding.tracing` applies each rule several times per step.
        """

    def advance(self, parents: Tensor, tokens: Tensor) -> "Rule":
        """Returns the rule for the hypotheses of the next step.

        Args:
            parents: index of the hypothesis that each new hypothesis continues, below W, `(B,K)`.
            tokens: extended id of the last token of each new hypothesis `(B,K)`.
        """
        return self

    @classmethod
    def fault(cls, config: "SearchConfig") -> str:
        """Returns an error message if the settings of a search are incompatible with this rule, else ""."""
        return ""


class DemandingRule(Rule):
    """A rule that requires a number of tokens, for which it raises the length limits."""

    @abstractmethod
    def min_tokens(self) -> Tensor:
        """Returns the number of tokens, without EOS, that the rule requires of each sentence, `(B,)`, on the CPU."""

    @classmethod
    def min_tokens_bound(cls, columns: int) -> int:
        """Returns an upper bound on `min_tokens` for a source of `columns` tokens, including EOS.

        It is used only for batches without prefixes and terms.
        """
        return 0


RULES: Registry[type[Rule]] = Registry(
    "decoding rule",
    {"terms": "nmtkit.decoding.constraints", "brackets": "nmtkit.zoo.parsing.brackets"},
)
"""All rules by name."""
FIRST_RULES = ("unused_tokens", "forbid_unknown", "min_length", "no_repeat_ngram")
"""Rules of every search that come before those of `search.rules`. Each applies only if its setting asks for it."""
LAST_RULES = ("terms", "prefix")
"""Rules of every search that come after those of `search.rules`. They apply only to sentences with terms or prefixes.
The prefix is last, because it overrides all other rules."""


def rule_names(config: "SearchConfig") -> list[str]:
    """Returns the names of the rules that a search uses, in the order in which they are applied."""
    return [*FIRST_RULES, *config.rules, *LAST_RULES]


def begin_rules(batch: Batch, config: "SearchConfig", tokens: TargetTokens) -> dict[str, Rule]:
    """Returns the rules that apply to the sentences of a batch, by name; for the arguments, see `Rule.begin`."""
    rules = {}
    for name in rule_names(config):
        rule = RULES.get(name).begin(batch, config, tokens)
        if rule is not None:
            rules[rule.name or name] = rule
    return rules


def tokens_required(rules: Iterable[Rule]) -> Tensor | None:
    """Returns the number of tokens, without EOS, that the rules require of each sentence `(B,)`, on the CPU.

    Returns None if they do not require any.
    """
    required: Tensor | None = None  # (B,)
    for rule in rules:
        if isinstance(rule, DemandingRule):
            needed = rule.min_tokens()  # (B,)
            required = needed if required is None else required + needed
    return required


# ------------------------------------------------------------------------------------------- rules with settings


class ForbiddenTokens(Rule):
    """Forbids certain special tokens at every position."""

    effect = "special_tokens"
    may_forbid_all = False

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = ids
        """Ids of special tokens. They are also the columns of these tokens, with or without a shortlist."""

    @override
    def apply(self, log_probs: Tensor, live: LiveHypotheses) -> Tensor:
        for token in self.ids:
            log_probs[:, token] = -INFINITY
        return log_probs


@RULES.register("unused_tokens")
class UnusedTokens(ForbiddenTokens):
    """Forbids PAD and BOS, which are not part of any text."""

    @classmethod
    @override
    def begin(cls, batch: Batch, config: "SearchConfig", tokens: TargetTokens) -> Rule | None:
        return cls([PAD, BOS])


@RULES.register("forbid_unknown")
class NoUnknownWord(ForbiddenTokens):
    """Forbids the unknown-word token: `search.forbid_unknown`."""

    @classmethod
    @override
    def begin(cls, batch: Batch, config: "SearchConfig", tokens: TargetTokens) -> Rule | None:
        return cls([UNK]) if config.forbid_unknown else None


@RULES.register("min_length")
@dataclass(frozen=True)
class MinLength(Rows, Rule):
    """Forbids EOS until a hypothesis has enough tokens: `search.min_length` and `search.min_length_ratio`."""

    effect = "special_tokens"
    may_forbid_all = False

    fewest: Tensor
    """Minimum number of tokens in each sentence, including the prompt but not EOS, `(B,)`."""
    name: str = ""
    """The settings that the minimum comes from."""

    @classmethod
    @override
    def begin(cls, batch: Batch, config: "SearchConfig", tokens: TargetTokens) -> Rule | None:
        settings = []
        if config.min_length:
            settings.append("min_length")
        if config.min_length_ratio:
            settings.append("min_length_ratio")
        if not settings:
            return None
        fewest = min_lengths(config, batch.lengths)  # (B,)
        if batch.prompt is not None:
            prompt_lengths = (batch.prompt != PAD).sum(1)  # (B,)
            fewest = fewest.to(prompt_lengths.device) + prompt_lengths  # (B,)
        # A sentence has the larger of the two minimums, so either setting may be the one that forbids an EOS.
        return cls(fewest, " or ".join(settings))

    @override
    def apply(self, log_probs: Tensor, live: LiveHypotheses) -> Tensor:
        is_early = live.per_hypothesis(self.fewest) > live.lengths  # (N,)
        log_probs[:, EOS].masked_fill_(is_early, -INFINITY)
        return log_probs


@RULES.register("no_repeat_ngram")
@dataclass(frozen=True)
class NoRepeatedNgrams(Rule):
    """Forbids repeating an n-gram within a hypothesis: `search.no_repeat_ngram`.

    Paulus et al. 2018, section 2.5, with trigrams.
    """

    effect = "tokens"
    reads_history = True

    size: int

    @classmethod
    @override
    def begin(cls, batch: Batch, config: "SearchConfig", tokens: TargetTokens) -> Rule | None:
        return cls(config.no_repeat_ngram) if config.no_repeat_ngram else None

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


# ------------------------------------------------------------------------------------------- rules with prefixes


@RULES.register("prefix")
@dataclass(frozen=True)
class ForcedPrefix(Rows, DemandingRule):
    """Forces each translation to begin with its prefix, overriding all earlier rules."""

    effect = "tokens"
    may_forbid_all = False

    lengths: Tensor
    """Number of tokens in each prefix, `(B,)`."""
    word_starts: WordStarts | None = None
    """The tokens that begin a word; None if no prefix has NEW_WORD."""

    @classmethod
    @override
    def begin(cls, batch: Batch, config: "SearchConfig", tokens: TargetTokens) -> Rule | None:
        if batch.prefix is None:
            return None
        has_new_word = bool((batch.prefix == NEW_WORD).any())
        prefix_class = CertainPrefix if config.certain_prefix else ForcedPrefix
        return prefix_class(
            lengths=(batch.prefix > PAD).sum(1),  # NEW_WORD is negative
            word_starts=WordStarts.of(tokens) if has_new_word else None,
        )

    @override
    def min_tokens(self) -> Tensor:
        return self.lengths.cpu()

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
            is_start = self.word_starts.of_words(live.memory)  # (V,) or (V',)
            n_copied = log_probs.shape[1] - len(is_start)
            continues_word = ~pad(
                is_start, (0, n_copied), value=True
            )  # (X,): copied words never do
            continues_word[EOS] = False
            is_forbidden = is_new_word[:, None] & continues_word  # (N,X)
            log_probs.masked_fill_(is_forbidden, -INFINITY)
        return log_probs

    def score(self, log_probs: Tensor) -> Tensor:
        """Returns the log-probabilities that forced tokens get, given the model's own `log_probs`."""
        return allow_if_possible(log_probs)


@dataclass(frozen=True)
class CertainPrefix(ForcedPrefix):
    """A forced prefix whose tokens are scored as if they had probability 1, for `search.certain_prefix`."""

    effect = "scores"

    @override
    def score(self, log_probs: Tensor) -> Tensor:
        return torch.zeros_like(log_probs)


# --------------------------------------------------------------------------------------------- tools for rules


def forbid_columns(log_probs: Tensor, columns: Tensor, is_forbidden: Tensor) -> None:
    """Forbids, in place, the `columns` `(N,M)` of `log_probs` `(N,X)` for which `is_forbidden` `(N,M)` is set.

    A column may occur several times with different flags. Minus infinity or zero is therefore added: with an
    assignment, one occurrence would overwrite the others.
    """
    penalty = torch.zeros_like(is_forbidden, dtype=log_probs.dtype)  # (N,M)
    penalty.masked_fill_(is_forbidden, -INFINITY)
    log_probs.scatter_add_(1, columns, penalty)


def apply_rules(rules: Sequence[Rule], log_probs: Tensor, live: LiveHypotheses) -> Tensor:
    """Returns log-probabilities or logits `(N,X)` after applying all rules; may overwrite `log_probs`.

    If a rule that may forbid all tokens is among them, hypotheses without any allowed token may end.
    """
    may_be_stuck = any(rule.may_forbid_all for rule in rules)
    end = log_probs[:, EOS].clone() if may_be_stuck else None  # (N,)
    for rule in rules:
        log_probs = rule.apply(log_probs, live)  # (N,X)
    if end is not None:
        is_stuck = log_probs.amax(1) == -INFINITY  # (N,)
        log_probs[:, EOS] = torch.where(is_stuck, allow_if_possible(end), log_probs[:, EOS])
    return log_probs


def allow_if_possible(log_probs: Tensor) -> Tensor:
    """Replaces minus infinity with the logarithm of the smallest normal number, so that required tokens can be chosen.

    Finite values, such as logits, remain unchanged.
    """
    smallest = torch.finfo(log_probs.dtype).tiny
    return log_probs.masked_fill(log_probs == -INFINITY, math.log(smallest))
