"""The state of a search between two steps: what is known of the sentences that are decoded together.

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
    """What the model has read."""
    rules: tuple[Rule, ...]
    """The rules of the search, in the order in which they are applied."""
    tokens: Tensor
    """The token just chosen by each hypothesis `(B,W)`; one that is copied and unknown is V plus its first source
    position."""
    scores: Tensor
    """Log-probabilities of the hypotheses `(B,W)`; minus infinity where a sentence is done."""
    last_position: Tensor
    """The position of the last token that the length limit allows, `(B,)`."""
    done: Tensor
    """Whether the search of the sentence has ended, `(B,)`, bool."""
    n_finished: Tensor
    """Finished hypotheses of each diverse group so far `(B,G)`."""
    best_finished: Tensor | None = None
    """Ranking scores of the best finished hypotheses, best first: for the stop `exact` `(B,n_best)`, for `huggingface`
    `(B,K)`; None for others, which only count."""
    prompt_lengths: Tensor | None = None
    """Tokens of the prompts, `(B,)`; None without any. Positions and limits count these tokens too."""
    prefix: Tensor | None = None
    """Forced ids, those of the prompt included, `(B,P)`, PAD after them; None without any."""
    constraints: Constraints | None = None
    """Terms that the translations must and must not contain."""
    shortlisted: Tensor | None = None
    """The shortlist of each sentence `(B,V)`, bool; None: the whole vocabulary."""
    penalties: Tensor | None = None
    """Repetition penalty of each hypothesis, summed over its tokens, `(B,W)`; None without one."""
    diversity: Tensor | None = None
    """Diversity penalty of each hypothesis, summed over its tokens, `(B,W)`; None for a single group."""

    def written(self, position: Tensor, most: int) -> Tensor:
        """Returns how many tokens follow each prompt before a position `(B,)`.

        They are at most `most`, also of sentences that are done.
        """
        if self.prompt_lengths is None:
            return position
        return (position - self.prompt_lengths).clamp(min=0, max=most)

    def forced_token(self, position: Tensor) -> Tensor | None:
        """Returns the id of the prefix at each position `(B,)`: `(B,)`, PAD after the prefix; None without one."""
        if self.prefix is None:
            return None
        columns = self.prefix.shape[1]
        token = self.prefix.gather(1, position.clamp(max=columns - 1)[:, None]).squeeze(1)
        return token.masked_fill(position >= columns, PAD)


@dataclass(frozen=True)
class HypothesisState(Rows):
    """What a hypothesis inherits from its parent: one row for each of N hypotheses."""

    model: DecoderState
    """The state of the model."""
    history: Tensor | None = None
    """All tokens so far `(N,*)`, NO_TOKEN after them; None where nothing reads it."""
    coverage: Tensor | None = None
    """The sum of all attention so far `(N,S)`; None without a coverage penalty, and before the first step."""
    progress: ConstraintProgress | None = None
    """How many tokens of each constraint are written; None without constraints."""


@dataclass
class SearchState:
    """The whole state. A step replaces its tensors and writes only into the cache."""

    sentences: SentenceState
    hypotheses: HypothesisState
    cache: KVCache
    divisors: Tensor
    """The length penalties of 1, 2, ... tokens, up to the longest limit."""
    limits: list[int]
    """The length limits of the sentences that it began with, on the host."""
    word_starts: Tensor | None = None
    """Tokens that begin a word or are no part of one `(V,)`, bool; None without constraints."""

    @property
    def constraints(self) -> ConstrainedBeam | None:
        """The constraints of the sentences and the progress of the hypotheses with them."""
        terms = self.sentences.constraints
        if terms is None:
            return None
        progress = self.hypotheses.progress
        assert progress is not None
        assert self.word_starts is not None
        return ConstrainedBeam(terms, self.word_starts, progress)

    @property
    def history(self) -> Tensor | None:
        """The tokens of each hypothesis, `(N,t)`, as far as any sentence has come."""
        history = self.hypotheses.history
        return None if history is None else history[:, : self.cache.length - 1]

    def compact(self, order: Integers) -> None:
        """Goes on with these sentences, by number, in an order that moves few of them."""
        count = len(order)
        width = self.sentences.scores.shape[1]
        device = self.sentences.scores.device
        moved = np.flatnonzero(order != np.arange(count))
        holes_on_host = torch.from_numpy(moved)
        movers_on_host = torch.from_numpy(order[moved])
        holes = send(holes_on_host, device)
        movers = send(movers_on_host, device)
        self.sentences.put(holes, self.sentences.select(movers))
        self.hypotheses.put(self._rows(holes), self.hypotheses.select(self._rows(movers)))
        self.sentences = self.sentences.select(slice(count))
        self.hypotheses = self.hypotheses.select(slice(count * width))
        self.cache.compact_batch(holes_on_host, movers_on_host, count)

    def insert(self, slots: Tensor, other: "SearchState", model: Decoder) -> None:
        """Puts the sentences of another state into slots `(M,)`; both have made a step, and S is the same."""
        if len(other.divisors) > len(self.divisors):  # never in a captured state, whose tensors must stay
            self.divisors = other.divisors
        # The shortlists of two batches differ in size: they are left out, and made anew for all sentences together.
        sentences = replace(self.sentences, memory=with_shortlist(model, self.sentences.memory, None))
        others = replace(other.sentences, memory=with_shortlist(model, other.sentences.memory, None))
        sentences.put(slots, others)
        if sentences.shortlisted is not None:
            memory = with_shortlist(model, sentences.memory, sentences.shortlisted)
            sentences = replace(sentences, memory=memory)
        hypotheses = other.hypotheses
        history = self.hypotheses.history
        if history is not None and hypotheses.history is not None:
            hypotheses = replace(hypotheses, history=_padded(hypotheses.history, history.shape[1]))
        self.hypotheses.put(self._rows(slots), hypotheses)
        self.sentences = sentences
        self.cache.insert(slots, other.cache)

    def in_slots(self, slots: int, length: int, penalty: LengthPenalty) -> "SearchState":
        """Returns a copy with so many slots and positions, none of whose tensors changes its size from now on.

        The sentences of this state take the first slots; the others are done.
        """
        count = len(self.sentences.scores)
        device = self.sentences.scores.device
        rows = torch.arange(slots, device=device).clamp(max=count - 1)
        sentences = self.sentences.select(rows)
        sentences.done[count:] = True
        sentences.scores[count:] = -INFINITY
        hypotheses = self.hypotheses.select(self._rows(rows))
        if hypotheses.history is not None:
            hypotheses = replace(hypotheses, history=_padded(hypotheses.history, length))
        cache = copy(self.cache)
        cache.select(rows)
        cache.fix_length(length)
        # Sentences that come later may be longer.
        divisors = penalty.divisors(torch.arange(1, length + 1)).to(self.divisors.dtype)
        return replace(self, sentences=sentences, hypotheses=hypotheses, cache=cache, divisors=send(divisors, device))

    def shallow_copy(self) -> "SearchState":
        """Returns another state of the same tensors."""
        return replace(self, cache=copy(self.cache))

    def changing(self) -> list[Tensor]:
        """Returns the tensors that a step replaces, in a fixed order; it leaves `divisors` as they are."""
        return [*self.sentences.tensors(), *self.hypotheses.tensors(), *self.cache.changing()]

    def _rows(self, sentences: Tensor) -> Tensor:
        """The rows of the hypotheses of sentences `(M,)`: `(M*W,)`."""
        width = self.sentences.scores.shape[1]
        hypotheses = torch.arange(width, device=sentences.device)
        return (sentences[:, None] * width + hypotheses).flatten()


def _padded(history: Tensor, length: int) -> Tensor:
    return pad(history, (0, length - history.shape[1]), value=NO_TOKEN)
