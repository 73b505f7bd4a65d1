"""Beam search over whole batches; greedy search is beam 1.

Letters as in `models/base.py`, and

    R   sentences still searched (R = B at first; finished ones are dropped)
    W   hypotheses per sentence in this step: 1 in the first, K after it
    C   candidates per sentence and step: 2K, so that K remain when up to K of them end

Everything a step decides stays on the device, in tensors; nothing is read back before the end but, now and then, how
many sentences are finished. Which hypothesis continues which is kept as back-pointers, followed once at the end.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtkit.data.batch import Batch, Rows
from nmtkit.data.vocabulary import BOS, EOS
from nmtkit.errors import CheckpointError, RecipeError
from nmtkit.models.base import Memory, Readout, Seq2Seq
from nmtkit.search.rules import INFINITY, RuleSettings, apply_rules, least_lengths, length_limits
from nmtkit.search.scoring import CoverageKind, LengthPenalty, coverage_penalty, length_penalty
from nmtkit.settings import Beam, Field

BLOCK = 64
"""Columns of which only the best is looked at first; a multiple of the vector width, about sqrt(X)."""
DROP_FRACTION = 8
"""Finished sentences are dropped once they are one in this many; every drop copies the memory of the others."""
CPU_CHECK_EVERY = 1
ACCELERATOR_CHECK_EVERY = 8
"""Steps between two looks at how many sentences are finished; on an accelerator a look waits for the device."""

Integers = npt.NDArray[np.int64]


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


@dataclass(frozen=True)
class Hypothesis:
    """One translation, or as much of it as the length limit allowed."""

    ids: list[int]
    """Without BOS and EOS; a model that copies also gives extended ids."""
    finished: bool
    """Whether it ended in EOS; if not, it was cut at the length limit."""
    score: float
    """What hypotheses are ranked by: the log-probability after length and coverage penalty."""
    log_prob: float
    """Sum of `token_log_probs`."""
    token_log_probs: list[float]
    """One for each id, then that of EOS if finished."""
    attention: npt.NDArray[np.float32] | None
    """One row for each of `token_log_probs`, one column for each source token, EOS counted.

    None if not asked for, or if the model has no attention.
    """
    p_gen: list[float] | None = None
    """One for each of `token_log_probs`: how likely the model was to generate and not to copy. None where `attention`
    was not asked for, or where the model does not copy."""


@dataclass(frozen=True)
class Choice(Rows):
    """What one step decided for each of R sentences; candidates best first, parents among W hypotheses."""

    candidates: Tensor
    """`(R,C)`, int64: parent * X + token."""
    scores: Tensor
    """Log-probability of each candidate, from the start, `(R,C)`."""
    ended: Tensor
    """`(R,C)`, bool: those that become finished hypotheses."""
    kept: Tensor
    """`(R,K)`: the candidates to go on with, by number."""
    kept_scores: Tensor
    """Their log-probabilities `(R,K)`; minus infinity where fewer than K were left."""


Choose = Callable[[Tensor, Tensor, int], Choice]
"""(log_probs `(R*W,X)`, scores `(R,W)`, K) -> Choice."""


def search(
    model: Seq2Seq,
    batch: Batch,
    config: SearchConfig,
    n_best: int = 1,
    need_attention: bool = False,
    prefix: Tensor | None = None,
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

    Returns:
        For each sentence its hypotheses, best first. At least one; fewer than `n_best` only where no more exist.

    Raises:
        RecipeError: `n_best` is more than `beam_size`, or a coverage penalty is asked of a model without attention.
        CheckpointError: the model gives log-probabilities that are not numbers.
    """
    return walk(model, batch, config, choose_best, n_best, need_attention, prefix)


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


@torch.no_grad()  # not inference_mode: what a model keeps from a search (a longer table of positions) must still train
def walk(
    model: Seq2Seq,
    batch: Batch,
    config: SearchConfig,
    choose: Choose,
    n_best: int,
    need_attention: bool = False,
    prefix: Tensor | None = None,
) -> list[list[Hypothesis]]:
    """The loop of `search`, for any way to choose the hypotheses to go on with; see there."""
    _check(model, config, n_best)
    beam_size = config.beam_size
    memory = model.encode(batch)
    state = model.start(memory)
    live, divisors = _begin(memory, batch, config, n_best, prefix)
    model.reserve(len(divisors))
    limits, device = live.limits, live.limits.device
    check_every = CPU_CHECK_EVERY if device.type == "cpu" else ACCELERATOR_CHECK_EVERY
    tokens = torch.full((batch.size,), BOS, device=device)
    scores = torch.zeros(batch.size, 1, device=device)
    history = tokens[:, None][:, :0] if config.no_repeat_ngram else None  # (N,0)
    coverage: Tensor | None = None  # (N,S)
    trace = _Trace(torch.arange(batch.size, device=device))

    for step, divisor in enumerate(divisors):
        attend = need_attention or config.coverage_penalty > 0
        log_probs, readout, state = model.step(tokens, state, live.memory, attend)  # (N,X)
        if log_probs.dtype in (torch.float16, torch.bfloat16):
            log_probs = log_probs.float()
        width, n_tokens = scores.shape[1], log_probs.shape[1]
        wanted = None
        if live.prefix is not None and step < live.prefix.shape[1]:
            wanted = live.prefix[:, step].repeat_interleave(width)  # (N,)
        least = None if live.least is None else live.least.repeat_interleave(width)  # (N,)
        choice = choose(apply_rules(log_probs, config, step, history, wanted, least), scores, beam_size)
        choice = replace(choice, ended=choice.ended & ~live.done[:, None])
        final = choice.scores / divisor  # (R,C)
        if config.coverage_penalty:
            assert readout.attention is not None
            coverage = readout.attention if coverage is None else coverage + readout.attention
            mask = live.memory.mask.repeat_interleave(width, 0)
            cost = coverage_penalty(config.coverage_kind, coverage, mask, config.coverage_penalty)
            cost = cost.view(-1, width)  # (R,W)
            final = final + cost.gather(1, choice.candidates // n_tokens)
        trace.add(choice, final, n_tokens, readout if need_attention else None)
        live = _note_finished(live, choice, final, config, step + 1)

        kept = None  # rows among R, if some are dropped now
        if (step + 1) % check_every == 0:
            n_done = int(live.done.sum())
            if n_done == len(live.done):
                break
            if n_done * DROP_FRACTION >= len(live.done):
                kept = (~live.done).nonzero().view(-1)
        scores = choice.kept_scores
        following = choice.candidates.gather(1, choice.kept)  # (R,K)
        parents = following // n_tokens + torch.arange(len(scores), device=device)[:, None] * width  # rows of the state
        if kept is not None:
            trace.drop(kept)
            live, scores = live.select(kept), scores.index_select(0, kept)
            following, parents = following.index_select(0, kept), parents.index_select(0, kept)
        tokens, parents = (following % n_tokens).view(-1), parents.view(-1)
        if kept is not None or beam_size > 1:  # else every hypothesis is its own parent
            state = state.select(parents)
            history = history.index_select(0, parents) if history is not None else None
            coverage = coverage.index_select(0, parents) if coverage is not None else None
        if history is not None:
            history = torch.cat([history, tokens[:, None]], 1)
    return trace.read(limits, batch.src_lengths.tolist(), n_best)


def _check(model: Seq2Seq, config: SearchConfig, n_best: int) -> None:
    assert not model.training, "the model is in training mode: call model.eval() first"
    if n_best > config.beam_size:
        raise RecipeError(
            f"n_best {n_best} is more than beam_size {config.beam_size}: raise beam_size, or lower n_best"
        )
    if config.coverage_penalty and not model.has_attention:
        raise RecipeError("coverage_penalty: this model has no attention to measure coverage by; set it to 0")


def _begin(
    memory: Memory, batch: Batch, config: SearchConfig, n_best: int, prefix: Tensor | None
) -> tuple[_Sentences, list[float]]:
    """All sentences before the first step, and the length penalties of 1, 2, ... tokens up to the highest limit."""
    device = memory.mask.device
    limits = length_limits(config, batch.src_lengths.cpu(), None if prefix is None else prefix.cpu())
    penalties = length_penalty(config.length_penalty, torch.arange(1, int(limits.max()) + 1), config.alpha)
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
    return sentences, penalties.tolist()


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
    """The choice of beam search; see `search`."""
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
        count: how many, at most M.

    Returns:
        `(R,count)`, int64.
    """
    if values.dtype != torch.float32:
        return values.sort(dim=1, descending=True, stable=True)[1][:, :count]
    # The bits of floats, read as integers, are in order where the sign bit is not set, and in reverse where it is. With
    # the place behind them all keys differ.
    last = values.shape[1] - 1
    bits = values.nan_to_num(nan=INFINITY, posinf=INFINITY, neginf=-INFINITY).view(torch.int32)
    keys = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() << 32
    keys += torch.arange(last, -1, -1, device=values.device)
    return last - (keys.topk(count, 1)[0] & 0xFFFFFFFF)


@dataclass
class _Segment:
    """The steps between two drops: the same R sentences."""

    sentences: Tensor
    """Rows in the batch `(R,)`."""
    choices: list[Choice] = field(default_factory=list)
    final: list[Tensor] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)
    p_gen: list[Tensor] = field(default_factory=list)


class _Trace:
    """What every step decided, on the device; `read` follows the back-pointers."""

    def __init__(self, sentences: Tensor) -> None:
        self.n_tokens = 0
        self._n_sentences = len(sentences)
        self._segments = [_Segment(sentences)]

    def add(self, choice: Choice, final: Tensor, n_tokens: int, readout: Readout | None) -> None:
        """Notes a step: its choice, the ranking scores `(R,C)`, X, and what it was made with, if that is asked for."""
        self.n_tokens = n_tokens
        segment = self._segments[-1]
        segment.choices.append(choice)
        segment.final.append(final)
        if readout is not None and readout.attention is not None:
            segment.attention.append(readout.attention)
        if readout is not None and readout.copy_gate is not None:
            segment.p_gen.append(readout.copy_gate)

    def drop(self, kept: Tensor) -> None:
        """From now on only these rows of the sentences go on."""
        self._segments.append(_Segment(self._segments[-1].sentences.index_select(0, kept)))

    def read(self, limits: Tensor, src_lengths: list[int], n_best: int) -> list[list[Hypothesis]]:
        """The best hypotheses of all sentences; letters as above, T steps.

        Raises:
            CheckpointError: a log-probability was not a number.
        """
        limit = limits.cpu().numpy()  # (B,)
        candidates = self._whole(lambda segment: [choice.candidates for choice in segment.choices], 0)  # (T,B,C)
        scores = self._whole(lambda segment: [choice.scores for choice in segment.choices], -INFINITY)
        ended = self._whole(lambda segment: [choice.ended for choice in segment.choices], False)
        kept = self._whole(lambda segment: [choice.kept for choice in segment.choices], 0)  # (T,B,K)
        final = self._whole(lambda segment: segment.final, -INFINITY)
        if np.isnan(scores).any():
            raise CheckpointError(
                "the model gives NaN for log-probabilities, so its weights are damaged: use an earlier checkpoint"
            )
        n_steps, n_sentences, n_candidates = candidates.shape
        beam_size = kept.shape[2]
        sentence = np.arange(n_sentences)[:, None]

        # All hypotheses there are: the ended candidates of all steps, then those cut at the limit.
        last = np.minimum(limit, n_steps)[:, None] - 1  # (B,1): the last step before the limit
        cut_at = kept[last, sentence, np.arange(beam_size)]  # (B,K)
        cut = final[last, sentence, cut_at]
        cut = np.where(limit[:, None] <= n_steps, cut, -INFINITY)
        whole = np.where(ended, final, -INFINITY).transpose(1, 0, 2).reshape(n_sentences, -1)  # (B,T*C)
        order = np.concatenate(
            [
                np.argsort(-whole, axis=1, kind="stable")[:, :n_best],
                np.argsort(-cut, axis=1, kind="stable")[:, :n_best] + whole.shape[1],
            ],
            axis=1,
        )  # (B,2*n): finished ones first, each kind best first
        score = np.concatenate([whole, cut], axis=1)[sentence, order]
        finished = order < whole.shape[1]
        at = np.where(finished, order // n_candidates, last)  # (B,2*n): the step of the last token
        chosen = np.where(finished, order % n_candidates, 0)
        chosen[:, n_best:] = np.take_along_axis(cut_at, order[:, n_best:] - whole.shape[1], axis=1)

        # Back from the last step, all hypotheses at once; what is found behind the end of one is cut off below.
        log_probs = np.zeros((*order.shape, n_steps), scores.dtype)  # (B,2*n,T): summed from the start
        tokens = np.zeros(log_probs.shape, np.int64)
        parents = np.zeros(log_probs.shape, np.int64)
        slot = np.zeros(order.shape, np.int64)
        for step in reversed(range(n_steps)):
            here = np.where(step == at, chosen, kept[step, sentence, slot])
            slot, tokens[:, :, step] = np.divmod(candidates[step, sentence, here], self.n_tokens)
            parents[:, :, step] = slot
            log_probs[:, :, step] = scores[step, sentence, here]
        attention = self._followed(lambda segment: segment.attention, parents)  # (T,B,2*n,S)
        p_gen = self._followed(lambda segment: segment.p_gen, parents)  # (T,B,2*n,1)

        results = []
        for row in range(n_sentences):
            hypotheses = []
            for which in np.flatnonzero(score[row] > -INFINITY)[:n_best]:
                length = int(at[row, which]) + 1
                sums = log_probs[row, which, :length]
                ids = tokens[row, which, :length].tolist()
                is_finished = bool(finished[row, which])
                hypotheses.append(
                    Hypothesis(
                        ids=ids[:-1] if is_finished else ids,
                        finished=is_finished,
                        score=float(score[row, which]),
                        log_prob=float(sums[-1]),
                        token_log_probs=np.diff(sums, prepend=0.0).tolist(),
                        attention=None
                        if attention is None
                        else attention[:length, row, which, : src_lengths[row]].copy(),
                        p_gen=None if p_gen is None else p_gen[:length, row, which, 0].tolist(),
                    )
                )
            results.append(hypotheses)
        return results

    def _whole(self, pick: Callable[[_Segment], list[Tensor]], fill: float) -> npt.NDArray[Any]:
        """One kind of tensors `(R,*)` of all steps as `(T,B,*)`, `fill` where a sentence had been dropped."""
        parts = []
        for segment in self._segments:
            if segment.choices:
                part = torch.stack(pick(segment)).cpu().numpy()  # (t,R,*)
                full = np.full((part.shape[0], self._n_sentences, part.shape[2]), fill, part.dtype)
                full[:, segment.sentences.cpu().numpy()] = part
                parts.append(full)
        return np.concatenate(parts)

    def _followed(self, pick: Callable[[_Segment], list[Tensor]], parents: Integers) -> npt.NDArray[np.float32] | None:
        """One kind of rows `(R*W,*)` for the hypotheses that were followed: `(T,B,n,*)` for parents `(B,n,T)`."""
        rows = []
        step = 0
        for segment in self._segments:
            position = torch.zeros(self._n_sentences, dtype=torch.long, device=segment.sentences.device)
            position[segment.sentences] = torch.arange(len(segment.sentences), device=position.device)
            for values in pick(segment):
                width = values.shape[0] // len(segment.sentences)
                parent = torch.from_numpy(parents[:, :, step]).to(values.device)  # (B,n)
                # Past the end of a hypothesis the row is any row: it is cut off.
                index = (position[:, None] * width + parent).clamp(max=values.shape[0] - 1)
                rows.append(values[index])
                step += 1
        if not rows:
            return None
        followed: npt.NDArray[np.float32] = torch.stack(rows).float().cpu().numpy()
        return followed
