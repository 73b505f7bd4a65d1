"""The state of a search between two steps, for all sentences that are decoded together.

Each sentence has a slot with W hypotheses, and may be at another position than its neighbours. Letters as in
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


@dataclass(frozen=True)
class SentenceState(Rows):
    """One row for each of B sentences."""

    number: Tensor
    """The number of the sentence within the whole search, `(B,)`."""
    memory: Memory
    """The encoded sources."""
    rules: tuple[Rule, ...]
    """The rules of the search, in the order in which they are applied."""
    tokens: Tensor
    """The last token of each hypothesis `(B,W)`. A copied word that is not in the vocabulary is V plus its first source
    position."""
    scores: Tensor
    """Log-probabilities of the hypotheses `(B,W)`; minus infinity where a sentence is done."""
    last_position: Tensor
    """The position of the last token that the length limit allows, `(B,)`."""
    done: Tensor
    """Whether the search of the sentence has ended, `(B,)`, bool."""
    n_finished: Tensor
    """Number of finished hypotheses in each group of diverse beam search `(B,G)`."""
    best_finished: Tensor | None = None
    """Ranking scores of the best finished hypotheses, best first: `(B,n_best)` for the stop `exact`, `(B,K)` for
    `huggingface`; None for `first_k`, which only counts them."""
    prompt_lengths: Tensor | None = None
    """Number of tokens of the prompts, `(B,)`; None without any. Positions and limits include these tokens."""
    prefix: Tensor | None = None
    """Forced ids, including the prompt, `(B,P)`, padded with PAD; None without any."""
    constraints: Constraints | None = None
    """Terms that the translations must and must not contain."""
    shortlist_mask: Tensor | None = None
    """The words of the shortlist of each sentence `(B,V)`, bool; None for the whole vocabulary."""
    repetition_penalties: Tensor | None = None
    """Repetition penalty of each hypothesis, summed over its tokens, `(B,W)`; None without one."""
    diversity_penalties: Tensor | None = None
    """Diversity penalty of each hypothesis, summed over its tokens, `(B,W)`; None for a single group."""

    def tokens_after_prompt(self, position: Tensor, maximum: int) -> Tensor:
        """Returns how many tokens follow each prompt before a position `(B,)`: `(B,)`.

        Sentences that are done may be beyond their limit, so the numbers are clamped to `maximum`.
        """
        if self.prompt_lengths is None:
            return position
        return (position - self.prompt_lengths).clamp(min=0, max=maximum)

    def forced_token(self, position: Tensor) -> Tensor | None:
        """Returns the id of the prefix at each position `(B,)`: `(B,)`, PAD after the prefix; None without one."""
        if self.prefix is None:
            return None
        prefix_length = self.prefix.shape[1]
        column = position.clamp(max=prefix_length - 1)  # (B,)
        token = self.prefix.gather(1, column[:, None]).squeeze(1)  # (B,)
        is_after_prefix = position >= prefix_length  # (B,)
        return token.masked_fill(is_after_prefix, PAD)


@dataclass(frozen=True)
class HypothesisState(Rows):
    """What a hypothesis inherits from its parent: one row for each of N hypotheses."""

    model: DecoderState
    """The state of the model."""
    history: Tensor | None = None
    """All tokens so far `(N,*)`, filled up with NO_TOKEN; None if nothing reads them."""
    coverage: Tensor | None = None
    """The sum of all attention so far `(N,S)`; None without a coverage penalty, and before the first step."""
    progress: ConstraintProgress | None = None
    """How many tokens of each constraint are written; None without constraints."""


@dataclass
class SearchState:
    """The whole state. A step replaces its tensors, and writes in place only into the cache."""

    sentences: SentenceState
    hypotheses: HypothesisState
    cache: KVCache
    divisors: Tensor
    """The length penalty for 1, 2, ... tokens, up to the longest limit."""
    limits: list[int]
    """The length limits of the sentences that the state began with, on the host."""
    word_starts: Tensor | None = None
    """Tokens that begin a word or are no part of one `(V,)`, bool; None without constraints."""

    @property
    def constraints(self) -> ConstrainedBeam | None:
        """The constraints of the sentences and how far the hypotheses have met them."""
        constraints = self.sentences.constraints
        if constraints is None:
            return None
        progress = self.hypotheses.progress
        assert progress is not None
        assert self.word_starts is not None
        return ConstrainedBeam(constraints, self.word_starts, progress)

    @property
    def history(self) -> Tensor | None:
        """The tokens of each hypothesis, `(N,t)`, up to the position of the longest."""
        history = self.hypotheses.history
        if history is None:
            return None
        return history[:, : self.cache.length - 1]

    def compact(self, order: Integers) -> None:
        """Keeps only these sentences, by number, in an order that moves few of them; see `compaction_order`."""
        scores = self.sentences.scores
        width = scores.shape[1]
        device = scores.device
        count = len(order)
        # Sentences that stay in their row are not copied. A mover goes into the hole of a sentence that is dropped.
        holes = np.flatnonzero(order != np.arange(count))  # (M,)
        movers = order[holes]  # (M,)
        host_holes = torch.from_numpy(holes)
        host_movers = torch.from_numpy(movers)
        device_holes = send(host_holes, device)
        device_movers = send(host_movers, device)
        moved_sentences = self.sentences.select(device_movers)
        self.sentences.put(device_holes, moved_sentences)
        moved_hypotheses = self.hypotheses.select(self._hypothesis_rows(device_movers))
        self.hypotheses.put(self._hypothesis_rows(device_holes), moved_hypotheses)
        self.sentences = self.sentences.select(slice(count))
        self.hypotheses = self.hypotheses.select(slice(count * width))
        self.cache.compact_batch(host_holes, host_movers, count)

    def insert(self, slots: Tensor, other: "SearchState", model: Decoder) -> None:
        """Puts the sentences of another state into slots `(M,)`; both have made a step, and S is the same."""
        # never in a captured state, whose tensors must stay
        if len(other.divisors) > len(self.divisors):
            self.divisors = other.divisors

        # The shortlists of two batches differ in size. So they are removed from both memories, and one is built again
        # for all sentences together.
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
            padded_history = _pad_history(new_hypotheses.history, history.shape[1])
            new_hypotheses = replace(new_hypotheses, history=padded_history)
        self.hypotheses.put(self._hypothesis_rows(slots), new_hypotheses)
        self.cache.insert(slots, other.cache)

    def with_capacity(
        self, slots: int, length: int, length_penalty: LengthPenalty
    ) -> "SearchState":
        """Returns a copy with a fixed number of slots and positions, whose tensors never change their size.

        The sentences of this state take the first slots. The other slots get a copy of the last sentence, as done.
        """
        scores = self.sentences.scores
        device = scores.device
        count = len(scores)
        rows = torch.arange(slots, device=device).clamp(max=count - 1)  # (slots,)
        sentences = self.sentences.select(rows)
        sentences.done[count:] = True
        sentences.scores[count:] = -INFINITY
        hypotheses = self.hypotheses.select(self._hypothesis_rows(rows))
        history = hypotheses.history
        if history is not None:
            hypotheses = replace(hypotheses, history=_pad_history(history, length))
        cache = copy(self.cache)
        cache.select(rows)
        cache.fix_length(length)
        # Sentences that are inserted later may be longer than those of this state.
        lengths = torch.arange(1, length + 1)
        divisors = length_penalty.divisors(lengths).to(self.divisors.dtype)  # (length,)
        divisors = send(divisors, device)
        return replace(
            self, sentences=sentences, hypotheses=hypotheses, cache=cache, divisors=divisors
        )

    def shallow_copy(self) -> "SearchState":
        """Returns another state with the same tensors."""
        return replace(self, cache=copy(self.cache))

    def mutable_tensors(self) -> list[Tensor]:
        """Returns the tensors that a step replaces, in a fixed order: all but `divisors` and the cache's entries."""
        return [
            *self.sentences.tensors(),
            *self.hypotheses.tensors(),
            *self.cache.mutable_tensors(),
        ]

    def _hypothesis_rows(self, sentences: Tensor) -> Tensor:
        """The rows of the hypotheses of sentences `(M,)`: `(M*W,)`."""
        width = self.sentences.scores.shape[1]
        offsets = torch.arange(width, device=sentences.device)  # (W,)
        return (sentences[:, None] * width + offsets).flatten()


def _pad_history(history: Tensor, length: int) -> Tensor:
    return pad(history, (0, length - history.shape[1]), value=NO_TOKEN)
