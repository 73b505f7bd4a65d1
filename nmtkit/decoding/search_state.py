"""The state of a search between two steps, for all sentences that are decoded together.

Each sentence has a slot with W hypotheses. Sentences may be at different positions. Notation as in
`nmtkit.decoding.beam_search`.
"""

from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtkit.core.device import send
from nmtkit.data.batches.batch import Rows
from nmtkit.data.tokenizers.vocabulary import PAD
from nmtkit.decoding.constraints import ConstrainedBeam, ConstraintProgress, Constraints
from nmtkit.decoding.rules import INFINITY, NO_TOKEN, Rule
from nmtkit.decoding.scorers import LengthPenalty
from nmtkit.layers.kv_cache import KVCache
from nmtkit.models.abilities import with_shortlist
from nmtkit.models.base import Decoder, DecoderState, Memory

Integers = npt.NDArray[np.int64]


PREFIX_NAME = "prefix"
"""Name of the rule that forces the prefixes, in `SearchState.rule_names`."""


@dataclass(frozen=True)
class SentenceState(Rows):
    """The sentences of a batch; all tensors have one row for each of the B sentences."""

    number: Tensor
    """Each sentence's number within the whole search, `(B,)`."""
    memory: Memory
    """The encoded sources."""
    rules: tuple[Rule, ...]
    """The rules of the search, in the order in which they are applied."""
    tokens: Tensor
    """Last token of each hypothesis `(B,W)`. A copied word outside the vocabulary has the id V plus its first source
    position."""
    scores: Tensor
    """Log-probabilities of the hypotheses `(B,W)`; minus infinity for hypotheses that are not continued."""
    last_position: Tensor
    """Last position that the length limit allows, `(B,)`."""
    done: Tensor
    """Whether the search of the sentence has ended, `(B,)`, bool."""
    n_finished: Tensor
    """Number of finished hypotheses in each group `(B,G)`."""
    best_finished: Tensor | None = None
    """Ranking scores of the best finished hypotheses, best first: `(B,n_best)` if the setting `stop` is `exact`,
    `(B,K)` if it is `huggingface`, and None if it is `first_k`, which only counts finished hypotheses."""
    prompt_lengths: Tensor | None = None
    """Number of tokens in each prompt, `(B,)`; None without prompts. Positions also count these tokens."""
    prefix: Tensor | None = None
    """Forced ids, preceded by the prompts, `(B,P)`, padded with PAD; None without prefixes."""
    constraints: Constraints | None = None
    """Terms that the translations must or must not contain; None without terms."""
    shortlist_mask: Tensor | None = None
    """Mask of each sentence's shortlisted words `(B,V)`, bool; None if the whole vocabulary is allowed."""
    repetition_penalties: Tensor | None = None
    """Repetition penalty of each hypothesis, summed over its tokens, `(B,W)`; None without a repetition penalty."""
    diversity_penalties: Tensor | None = None
    """Diversity penalty of each hypothesis, summed over its tokens, `(B,W)`; None if there is only one group."""

    def tokens_after_prompt(self, position: Tensor, maximum: int) -> Tensor:
        """Returns the number of tokens `(B,)` between the end of each prompt and a position `(B,)`.

        Sentences that are done may be beyond their limits, so with prompts, the result is clamped to `maximum`.
        """
        if self.prompt_lengths is None:
            return position
        return (position - self.prompt_lengths).clamp(min=0, max=maximum)

    def forced_token(self, position: Tensor) -> Tensor | None:
        """Returns the prefix token `(B,)` at each position `(B,)`: PAD after the prefix, None without prefixes."""
        if self.prefix is None:
            return None
        prefix_length = self.prefix.shape[1]
        column = position.clamp(max=prefix_length - 1)  # (B,)
        token = self.prefix.gather(1, column[:, None]).squeeze(1)  # (B,)
        is_after_prefix = position >= prefix_length  # (B,)
        return token.masked_fill(is_after_prefix, PAD)


@dataclass(frozen=True)
class HypothesisState(Rows):
    """State that a hypothesis inherits from its parent; all tensors have one row for each of the N hypotheses."""

    model: DecoderState
    """Decoder state of the model."""
    history: Tensor | None = None
    """All tokens so far `(N,*)`, padded with NO_TOKEN; None if they are not needed."""
    coverage: Tensor | None = None
    """Sum of all attention so far `(N,S)`; None before the first step or without a coverage penalty."""
    progress: ConstraintProgress | None = None
    """Progress towards meeting the constraints; None without constraints."""


@dataclass
class SearchState:
    """The complete state of a search. A step replaces the tensors; only the cache is written in place."""

    sentences: SentenceState
    hypotheses: HypothesisState
    cache: KVCache
    divisors: Tensor
    """Length penalty for each length from 1 to the longest limit, `(longest,)`."""
    limits: list[int]
    """Length limits of the sentences that the state was created for, on the host."""
    rule_names: tuple[str | None, ...]
    """What each of `sentences.rules` comes from: the name of a setting (or of two), `PREFIX_NAME`, or the name of a
    registered rule; None for the rule that every search has."""
    word_starts: Tensor | None = None
    """Mask of the tokens that begin a word or are not part of one `(V,)`, bool; None if it is not needed."""

    @property
    def constraints(self) -> ConstrainedBeam | None:
        """The constraints of the sentences, and the progress of the hypotheses; None without constraints."""
        constraints = self.sentences.constraints
        if constraints is None:
            return None
        progress = self.hypotheses.progress
        assert progress is not None
        assert self.word_starts is not None
        return ConstrainedBeam(constraints, self.word_starts, progress)

    @property
    def history(self) -> Tensor | None:
        """The tokens of each hypothesis `(N,t)`, with t the length of the longest one; None if they are not needed."""
        history = self.hypotheses.history
        if history is None:
            return None
        return history[:, : self.cache.length - 1]

    def keep_slots(self, order: Integers) -> None:
        """Keeps only the slots in `order`, the result of `order_live_slots`, and renumbers them in this order."""
        scores = self.sentences.scores
        width = scores.shape[1]
        device = scores.device
        n_sentences = len(order)
        # Sentences that stay in their slots are not copied. The others move to the slots of removed sentences.
        holes = np.flatnonzero(order != np.arange(n_sentences))  # (M,)
        movers = order[holes]  # (M,)
        host_holes = torch.from_numpy(holes)  # (M,)
        host_movers = torch.from_numpy(movers)  # (M,)
        device_holes = send(host_holes, device)  # (M,)
        device_movers = send(host_movers, device)  # (M,)
        moved_sentences = self.sentences.select(device_movers)
        self.sentences.put(device_holes, moved_sentences)
        moved_hypotheses = self.hypotheses.select(self._hypothesis_rows(device_movers))
        self.hypotheses.put(self._hypothesis_rows(device_holes), moved_hypotheses)
        self.sentences = self.sentences.select(slice(n_sentences))
        self.hypotheses = self.hypotheses.select(slice(n_sentences * width))
        self.cache.compact_batch(host_holes, host_movers, n_sentences)

    def insert(self, slots: Tensor, other: "SearchState", model: Decoder) -> None:
        """Puts the sentences of another state into slots `(M,)`.

        Both states must have taken at least one step, and must have the same number of source columns.
        """
        # Never true for captured steps, whose tensors must not be replaced.
        if len(other.divisors) > len(self.divisors):
            self.divisors = other.divisors

        # The shortlists of the two states differ in size, so both are replaced with a new one for all sentences.
        memory = with_shortlist(model, self.sentences.memory, None)
        sentences = replace(self.sentences, memory=memory)
        new_memory = with_shortlist(model, other.sentences.memory, None)
        new_sentences = replace(other.sentences, memory=new_memory)
        sentences.put(slots, new_sentences)
        if sentences.shortlist_mask is not None:
            memory = with_shortlist(model, sentences.memory, sentences.shortlist_mask)
            sentences = replace(sentences, memory=memory)
        self.sentences = sentences

        new_hypotheses = other.hypotheses
        history = self.hypotheses.history
        if history is not None and new_hypotheses.history is not None:
            padded_history = _pad_history(new_hypotheses.history, history.shape[1])  # (M*W,*)
            new_hypotheses = replace(new_hypotheses, history=padded_history)
        self.hypotheses.put(self._hypothesis_rows(slots), new_hypotheses)
        self.cache.insert(slots, other.cache)

    def with_capacity(
        self, slots: int, length: int, length_penalty: LengthPenalty
    ) -> "SearchState":
        """Returns a copy with a fixed number of slots and positions, whose tensors never change their size.

        The sentences of this state occupy the first slots. The other slots contain copies of the last sentence that are
        marked as done.
        """
        scores = self.sentences.scores
        device = scores.device
        n_sentences = len(scores)
        rows = torch.arange(slots, device=device).clamp(max=n_sentences - 1)  # (slots,)
        sentences = self.sentences.select(rows)
        sentences.done[n_sentences:] = True
        sentences.scores[n_sentences:] = -INFINITY
        hypotheses = self.hypotheses.select(self._hypothesis_rows(rows))
        history = hypotheses.history
        if history is not None:
            hypotheses = replace(hypotheses, history=_pad_history(history, length))
        cache = copy(self.cache)
        cache.select(rows)
        cache.fix_length(length)
        # Sentences that are inserted later may be longer than those of this state.
        lengths = torch.arange(1, length + 1)  # (length,)
        divisors = length_penalty.divisors(lengths).to(self.divisors.dtype)  # (length,)
        divisors = send(divisors, device)  # (length,)
        return replace(
            self, sentences=sentences, hypotheses=hypotheses, cache=cache, divisors=divisors
        )

    def shallow_copy(self) -> "SearchState":
        """Returns another state with the same tensors."""
        return replace(self, cache=copy(self.cache))

    def mutable_tensors(self) -> list[Tensor]:
        """Returns, in a fixed order, the tensors that a step replaces: all except `divisors` and the cache entries."""
        return [
            *self.sentences.tensors(),
            *self.hypotheses.tensors(),
            *self.cache.mutable_tensors(),
        ]

    def _hypothesis_rows(self, sentences: Tensor) -> Tensor:
        """Converts the rows of sentences `(M,)` to the rows of their hypotheses `(M*W,)`."""
        width = self.sentences.scores.shape[1]
        offsets = torch.arange(width, device=sentences.device)  # (W,)
        return (sentences[:, None] * width + offsets).flatten()


def _pad_history(history: Tensor, length: int) -> Tensor:
    return pad(history, (0, length - history.shape[1]), value=NO_TOKEN)
