"""Beam search over whole batches; greedy search is beam 1.

Letters as in `models/base.py`, and

    R   sentences still searched (R = B at first; finished ones are dropped)
    W   hypotheses per sentence in this step: 1 in the first, K after it
    C   candidates per sentence and step: 2K, so that K remain when up to K of them end

Everything a step decides stays on the device, in tensors; nothing is read back before the end but, now and then, how
many sentences are finished. Which hypothesis continues which is kept as back-pointers, followed once at the end.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtkit.data.batch import Batch, Rows
from nmtkit.data.vocabulary import BOS, EOS
from nmtkit.errors import RecipeError
from nmtkit.layers.past import Past
from nmtkit.models.base import DecoderState, Memory, Seq2Seq
from nmtkit.search.rules import INFINITY, RuleSettings, apply_rules, least_lengths, length_limits
from nmtkit.search.scoring import CoverageKind, LengthPenalty, coverage_penalty, length_penalty
from nmtkit.search.trace import Choice, Hypothesis, Trace
from nmtkit.settings import Beam, Field

BLOCK = 64
"""Columns of which only the best is looked at first; a multiple of the vector width, about sqrt(X)."""
DROP_FRACTION = 8
"""Finished sentences are dropped once they are one in this many; every drop copies the memory of the others."""
CPU_CHECK_EVERY = 1
ACCELERATOR_CHECK_EVERY = 8
"""Steps between two looks at how many sentences are finished; on an accelerator a look waits for the device."""


class SearchConfig(RuleSettings):
    """How translations are searched for."""

    beam_size: Beam = Field(default=5, ge=1)
    """Hypotheses kept for each sentence; 1 is greedy search."""
    length_penalty: LengthPenalty = "average"
    """The divisor of the log-probability, |Y| counting EOS: none 1, average |Y|^alpha, gnmt ((5+|Y|)/6)^alpha."""
    alpha: float = Field(default=1.0, ge=0.0)
    """Strength of the length penalty; 0 is none."""
    coverage_penalty: float = Field(default=0.0, ge=0.0, le=1e6)
    """Strength (beta) of the penalty for badly spread attention; needs a model with attention."""
    coverage_kind: CoverageKind = "gnmt"
    """What it punishes: gnmt source words that got little attention, summary those that got more than one word's."""
    stop: Literal["first_k", "exact"] = "first_k"
    """When a sentence is done: with beam_size ended hypotheses, or when no other could still become better (slow)."""


Choose = Callable[[Tensor, Tensor, int], Choice]
"""(log_probs `(R*W,X)`, scores `(R,W)`, K) -> Choice."""


@torch.no_grad()  # not inference_mode: what a model keeps from a search (a longer table of positions) must still train
def beam_search(
    model: Seq2Seq,
    batch: Batch,
    config: SearchConfig,
    n_best: int = 1,
    need_attention: bool = False,
    prefix: Tensor | None = None,
    choose: Choose | None = None,
) -> list[list[Hypothesis]]:
    """Translates every sentence of the batch.

    Each step looks at the 2K best continuations of a sentence's K hypotheses. Those among the first K that end in EOS
    are finished; the K best of the others go on. With `first_k` a sentence is done when K hypotheses are finished: to
    stop with the first one costs BLEU, because short hypotheses finish first. With `exact` it is done when `n_best`
    are finished and no unfinished one could still overtake the last of them, even if it cost nothing from here to the
    length limit. Hypotheses that reach the limit are returned as not finished, behind all finished ones.

    Of equal scores the better parent's comes first, then the smaller id's. So the sentences of a batch do not influence
    each other: not even by the number of their unknown words, which makes the distributions of all of them wider.

    Args:
        model: any model, in eval mode; it is not changed.
        batch: B sentences, on the model's device; targets are not read.
        config: how to search.
        n_best: hypotheses to return for each sentence, at most `beam_size`.
        need_attention: whether to return attention, and p_gen, as well.
        prefix: ids that the translations must begin with `(B,P)`, padded on the right with PAD; its own log-probability
            counts. It may end in EOS: then the translation is given, and only scored.
        choose: another way to choose the hypotheses to go on with.

    Returns:
        For each sentence its hypotheses, best first. At least one; fewer than `n_best` only where no more exist.

    Raises:
        RecipeError: `n_best` is more than `beam_size`, or a coverage penalty is asked of a model without attention.
        CheckpointError: the model gives log-probabilities that are not numbers.
    """
    _check(model, config, n_best)
    beam, divisors = _begin(model, batch, config, n_best, prefix)
    limits, device = beam.sentences.limits, beam.scores.device
    check_every = CPU_CHECK_EVERY if device.type == "cpu" else ACCELERATOR_CHECK_EVERY
    attend = need_attention or config.coverage_penalty > 0
    trace = Trace(torch.arange(batch.size, device=device))

    for step, divisor in enumerate(divisors):
        log_probs, readout, beam.state = model.step(
            beam.tokens, beam.state, beam.sentences.memory, beam.past, attend
        )  # (N,X)
        if log_probs.dtype in (torch.float16, torch.bfloat16):
            log_probs = log_probs.float()
        n_tokens = log_probs.shape[1]
        choice = (choose or choose_best)(beam.ruled(log_probs, config, step), beam.scores, config.beam_size)
        choice = replace(choice, ended=choice.ended & ~beam.sentences.done[:, None])
        final = choice.scores / divisor  # (R,C)
        if config.coverage_penalty:
            final = final + beam.cost(readout.attention, config).gather(1, choice.candidates // n_tokens)
        trace.add(choice, final, n_tokens, readout if need_attention else None)
        beam.sentences = _note_finished(beam.sentences, choice, final, config, step + 1)

        kept = None  # rows among R, if some are dropped now
        if (step + 1) % check_every == 0:
            done = beam.sentences.done
            n_done = int(done.sum())
            if n_done == len(done):
                break
            if n_done * DROP_FRACTION >= len(done):
                kept = (~done).nonzero().view(-1)
                trace.drop(kept)
        beam.select(choice, n_tokens, kept)
    return trace.read(limits, batch.src_lengths.tolist(), n_best)


@dataclass(frozen=True)
class _Sentences(Rows):
    """All that has one row per sentence and is dropped with it."""

    memory: Memory
    limits: Tensor
    """Most tokens, EOS counted, `(R,)`."""
    least: Tensor | None
    """Fewest tokens `(R,)`, EOS not counted; None where they are the same for all."""
    largest_divisor: Tensor
    """The length penalty at the limit `(R,)`."""
    prefix: Tensor | None
    """Forced tokens `(R,P)`."""
    done: Tensor
    """`(R,)`, bool."""
    n_finished: Tensor
    """`(R,)`: finished hypotheses so far."""
    best: Tensor
    """Scores of the best finished hypotheses `(R,n_best)`, best first; kept for `exact` only."""


@dataclass
class _Beam:
    """Where a search stands between two steps: R sentences, and N = R*W hypotheses."""

    sentences: _Sentences
    state: DecoderState
    past: Past
    tokens: Tensor
    """The words just chosen, `(N,)`."""
    scores: Tensor
    """Log-probabilities of the hypotheses, `(R,W)`."""
    history: Tensor | None
    """All words so far `(N,t)`, where a rule asks for them."""
    coverage: Tensor | None = None
    """The sum of all attention so far `(N,S)`, where a penalty asks for it."""

    def ruled(self, log_probs: Tensor, config: SearchConfig, step: int) -> Tensor:
        """The log-probabilities `(N,X)` under the rules."""
        width, prefix, least = self.scores.shape[1], self.sentences.prefix, self.sentences.least
        wanted = None
        if prefix is not None and step < prefix.shape[1]:
            wanted = prefix[:, step].repeat_interleave(width)  # (N,)
        if least is not None:
            least = least.repeat_interleave(width)  # (N,)
        return apply_rules(log_probs, config, step, self.history, wanted, least)

    def cost(self, attention: Tensor | None, config: SearchConfig) -> Tensor:
        """The coverage penalty of each hypothesis `(R,W)`, once it has looked as it does in this step."""
        assert attention is not None
        self.coverage = attention if self.coverage is None else self.coverage + attention
        mask = self.sentences.memory.mask.repeat_interleave(self.scores.shape[1], 0)
        cost = coverage_penalty(config.coverage_kind, self.coverage, mask, config.coverage_penalty)
        return cost.view(self.scores.shape)

    def select(self, choice: Choice, n_tokens: int, kept: Tensor | None) -> None:
        """Goes on with what was chosen of X tokens: follows the parents, and keeps these sentences or all, at once."""
        following = choice.candidates.gather(1, choice.kept)  # (R,K)
        firsts = torch.arange(len(following), device=following.device)[:, None] * self.scores.shape[1]
        parents = following // n_tokens
        self.past.follow(parents if following.shape[1] > 1 else None)
        parents = parents + firsts  # rows of the state
        self.scores = choice.kept_scores
        if kept is not None:
            self.sentences, self.scores = self.sentences.select(kept), self.scores.index_select(0, kept)
            following, parents = following.index_select(0, kept), parents.index_select(0, kept)
            self.past.select(kept)
        self.tokens, parents = (following % n_tokens).view(-1), parents.view(-1)
        if kept is not None or following.shape[1] > 1:  # else every hypothesis is its own parent
            self.state = self.state.select(parents)
            self.history = None if self.history is None else self.history.index_select(0, parents)
            self.coverage = None if self.coverage is None else self.coverage.index_select(0, parents)
        if self.history is not None:
            self.history = torch.cat([self.history, self.tokens[:, None]], 1)


def _check(model: Seq2Seq, config: SearchConfig, n_best: int) -> None:
    assert not model.training, "the model is in training mode: call model.eval() first"
    if n_best > config.beam_size:
        raise RecipeError(
            f"n_best {n_best} is more than beam_size {config.beam_size}: raise beam_size, or lower n_best"
        )
    if config.coverage_penalty and not model.has_attention:
        raise RecipeError("coverage_penalty: this model has no attention to measure coverage by; set it to 0")


def _begin(
    model: Seq2Seq, batch: Batch, config: SearchConfig, n_best: int, prefix: Tensor | None
) -> tuple[_Beam, list[float]]:
    """All sentences before the first step, and the length penalties of 1, 2, ... tokens up to the highest limit."""
    memory = model.encode(batch)
    state = model.start(memory)
    device = memory.mask.device
    limits = length_limits(config, batch.src_lengths.cpu(), None if prefix is None else prefix.cpu())
    penalties = length_penalty(config.length_penalty, torch.arange(1, int(limits.max()) + 1), config.alpha)
    model.reserve(len(penalties))
    zeros = torch.zeros_like(limits)
    sentences = _Sentences(
        memory=memory,
        limits=limits.to(device),
        least=least_lengths(config, batch.src_lengths.cpu()).to(device) if config.min_length_ratio else None,
        largest_divisor=penalties[limits - 1].float().to(device),
        prefix=None if prefix is None else prefix.to(device),
        done=zeros.bool().to(device),
        n_finished=zeros.to(device),
        best=torch.full((batch.size, n_best), -INFINITY, device=device),
    )
    tokens = torch.full((batch.size,), BOS, device=device)
    history = tokens[:, None][:, :0] if config.no_repeat_ngram else None  # (N,0)
    past = Past(batch.size, config.beam_size, width=1)
    return _Beam(sentences, state, past, tokens, torch.zeros(batch.size, 1, device=device), history), penalties.tolist()


def _note_finished(live: _Sentences, choice: Choice, final: Tensor, config: SearchConfig, length: int) -> _Sentences:
    """Counts the hypotheses that ended in this step, at `length` tokens, and says which sentences are done."""
    n_finished = live.n_finished + choice.ended.sum(1)
    best = live.best
    top = choice.kept_scores.amax(1)  # (R,)
    if config.stop == "exact":
        ended = final.masked_fill(~choice.ended, -INFINITY)
        best = torch.cat([best.to(final.dtype), ended], 1).topk(best.shape[1], 1)[0]
        satisfied = best[:, -1] >= top / live.largest_divisor  # as if the rest cost nothing, at the largest divisor
    else:
        satisfied = n_finished >= config.beam_size
    # Where no live hypothesis is left, all ways were forbidden or have ended.
    done = live.done | satisfied | (live.limits <= length) | (top == -INFINITY)
    return replace(live, done=done, n_finished=n_finished, best=best)


def choose_best(log_probs: Tensor, scores: Tensor, beam_size: int) -> Choice:
    """The choice of beam search; see `beam_search`."""
    scores, candidates = best_candidates(log_probs, scores, 2 * beam_size)  # (R,C)
    is_end = candidates % log_probs.shape[1] == EOS
    ended = is_end & (scores > -INFINITY)
    ended[:, beam_size:] = False
    kept = is_end.to(torch.uint8).sort(dim=1, stable=True)[1][:, :beam_size]  # the others, in their order
    return Choice(candidates, scores, ended, kept, scores.gather(1, kept))


def best_candidates(log_probs: Tensor, scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The best continuations of each sentence's hypotheses: top-k of `scores + log_probs`, exactly, in less time.

    Only the best of every `BLOCK` columns takes part in a first top-k; the best continuations all lie in the blocks
    that win it, and only those are looked into. Of equal ones the first wins, in both.

    Args:
        log_probs: `(R*W,X)`.
        scores: log-probabilities of the hypotheses, `(R,W)`.
        count: C.

    Returns:
        Scores of the continuations `(R,C)`, best first, and which they are `(R,C)`: parent * X + token. Where fewer
        than C exist, the rest has a score of minus infinity.
    """
    n_sentences, width = scores.shape
    n_tokens = log_probs.shape[1]
    n_blocks = n_tokens // BLOCK
    whole = n_blocks * BLOCK
    tops = []
    if n_blocks:
        tops.append(log_probs[:, :whole].view(-1, n_blocks, BLOCK).amax(2))
    if whole < n_tokens:
        tops.append(log_probs[:, whole:].amax(1, keepdim=True))
        n_blocks += 1
    block_tops = torch.cat(tops, 1) if len(tops) > 1 else tops[0]  # (N,n_blocks)
    block_tops = (block_tops.view(n_sentences, width, n_blocks) + scores[:, :, None]).view(n_sentences, -1)
    # In their order, so that the columns of all of them are in order.
    blocks = first_of_best(block_tops, min(count, width * n_blocks)).sort(1)[0]  # (R,c)

    parents = blocks // n_blocks
    columns = (blocks % n_blocks * BLOCK)[:, :, None] + torch.arange(BLOCK, device=scores.device)  # (R,c,BLOCK)
    flat = (parents * n_tokens)[:, :, None] + columns.clamp(max=n_tokens - 1)
    flat = flat.view(n_sentences, -1)  # (R,c*BLOCK)
    inside = log_probs.reshape(n_sentences, -1).gather(1, flat).view_as(columns) + scores.gather(1, parents)[:, :, None]
    if whole < n_tokens:
        inside = inside.masked_fill(columns >= n_tokens, -INFINITY)
    inside = inside.view(n_sentences, -1)
    missing = max(0, count - inside.shape[1])
    places = first_of_best(inside, count - missing)
    values, found = inside.gather(1, places), flat.gather(1, places)
    return pad(values, (0, missing), value=-INFINITY), pad(found, (0, missing))


def first_of_best(values: Tensor, count: int) -> Tensor:
    """Where the best values of each row are, best first, and of equal ones the first first.

    `torch.topk` leaves open which of equal values it takes; it depends on how long the row is.

    Args:
        values: `(R,M)`; what is not a number counts as the best.
        count: at most M.

    Returns:
        `(R,count)`, int64.
    """
    if values.dtype != torch.float32:
        return values.sort(dim=1, descending=True, stable=True)[1][:, :count]
    # Read as integers, the bits of positive floats are in order, those of negative ones in reverse. The place comes
    # behind them, so that all keys differ.
    last = values.shape[1] - 1
    bits = values.nan_to_num(nan=INFINITY, posinf=INFINITY, neginf=-INFINITY).view(torch.int32)
    keys = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() << 32
    keys += torch.arange(last, -1, -1, device=values.device)
    return last - (keys.topk(count, 1)[0] & 0xFFFFFFFF)
