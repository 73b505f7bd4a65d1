"""Hypotheses, built from the results of the steps of a search.

Letters as in `nmtkit.decoding.beam`, but B sentences that are read together, which need not have begun together; T
steps at most, n hypotheses wanted for each sentence.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nmtkit.core.errors import CheckpointError
from nmtkit.decoding.beam import LoggedStep
from nmtkit.decoding.decoding_batch import Integers
from nmtkit.decoding.rules import INFINITY, SearchConfig

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Hypothesis:
    """One translation, or as much of it as the length limit allowed."""

    ids: list[int]
    """Without BOS and EOS; a model that copies also gives extended ids."""
    finished: bool
    """Whether it ended in EOS; if not, it was cut at the length limit."""
    score: float
    """The ranking score: the log-probability after length and coverage penalty."""
    log_prob: float
    """Sum of `token_log_probs`."""
    token_log_probs: list[float]
    """One for each id, then that of EOS if finished."""
    attention: npt.NDArray[np.float32] | None
    """One row for each of `token_log_probs`, one column for each source token, EOS included. None if not asked for, or
    if the model has no attention."""
    p_gen: list[float] | None = None
    """The probability of generating, not copying, one for each row of `attention`. None if the model does not copy."""


@dataclass
class SentenceRecord:
    """A sentence of a decoding batch, from its first step to its last."""

    number: int
    """Its number within the whole search."""
    length: int
    """Source tokens, EOS included."""
    limit: int
    """The most tokens that it may have, EOS included."""
    extended: Tensor | None
    """The extended ids of its source `(S,)`, for a model that copies: the search numbers unknown words by position."""
    first: LoggedStep
    """The first step, which it made within a batch of new sentences."""
    row: int
    """Its row in `first`."""
    start: int
    """Steps that the decoding batch had made before."""
    slot: int = 0
    """Its row in the last result of the decoding batch, once it is finished."""
    end: int = 0
    """Steps that the decoding batch has made, once it is finished."""

    def extended_ids(self, ids: list[int], size: int) -> list[int]:
        """The tokens of a hypothesis by their extended ids; `size` is V."""
        if self.extended is None or max(ids) < size:
            return ids
        source = self.extended.tolist()
        return [token if token < size else source[token - size] for token in ids]


@dataclass
class CompactionSpan:
    """Steps of a decoding batch between two compactions."""

    start: int
    """Steps that the batch had made before."""
    kept: Integers
    """The row of the previous span that each row continues; empty in the first span."""
    results: list[LoggedStep]


class _Steps:
    """The steps of finished sentences, on the CPU."""

    def __init__(self, sentences: Sequence[SentenceRecord], spans: Sequence[CompactionSpan]) -> None:
        self._sentences = sentences
        ends, starts = np.array([one.end for one in sentences]), np.array([one.start for one in sentences])
        self.counts = ends - starts + 1
        """How many steps each sentence has made, `(B,)`."""
        self._parts = []  # of each span with results: where they go to, and where they come from
        rows = np.array([one.slot for one in sentences])
        for span in reversed(spans):
            if span.results:
                step = np.arange(span.start, span.start + len(span.results))[:, None] - starts + 1  # (t,B)
                at, sentence = np.nonzero((step > 0) & (step < self.counts))
                self._parts.append((span.results, (step[at, sentence], sentence), (at, rows[sentence])))
            if len(span.kept):
                earlier = ends > span.start  # the others were finished before, in a slot of an earlier span
                rows = np.where(earlier, span.kept[np.where(earlier, rows, 0)], rows)
        inside = (np.arange(int(self.counts.max()))[:, None] < self.counts)[:, :, None]  # (T,B,1)
        self.scores: Floats = self.gather(lambda result: result.step.scores)  # (T,B,C)
        if np.isnan(self.scores).any(where=inside):
            raise CheckpointError(
                "the model gives NaN for log-probabilities, so its weights are damaged: use an earlier checkpoint"
            )
        self.tokens: Integers = self.gather(lambda result: result.step.tokens)
        self.parents: Integers = self.gather(lambda result: result.step.parents)
        self.ended = self.gather(lambda result: result.step.ended) & inside
        self.kept: Integers = self.gather(lambda result: result.step.kept)  # (T,B,K)
        self.final: Floats = self.gather(lambda result: result.final)

    def gather(self, pick: Callable[[LoggedStep], Tensor]) -> npt.NDArray[Any]:
        """One tensor `(*,C)` of each step, `(T,B,C)`; undefined behind the last step of a sentence."""
        read: dict[int, npt.NDArray[Any]] = {}
        for one in self._sentences:
            if id(one.first) not in read:
                read[id(one.first)] = pick(one.first).cpu().numpy()
        first = np.stack([read[id(one.first)][one.row] for one in self._sentences])
        whole = np.zeros((int(self.counts.max()), *first.shape), first.dtype)
        whole[0] = first
        for results, to, origin in self._parts:
            whole[to] = torch.stack([pick(result) for result in results]).cpu().numpy()[origin]
        return whole

    def gather_inherited(
        self, pick: Callable[[LoggedStep], Tensor | None], parents: Integers
    ) -> npt.NDArray[np.float32] | None:
        """One tensor `(*,K,*)` of each step, for hypotheses with these parents `(B,n,T)`: `(T,B,n,*)`."""
        if pick(self._sentences[0].first) is None:
            return None
        whole = self.gather(cast(Callable[[LoggedStep], Tensor], pick))  # (T,B,K,*)
        step, sentence = np.arange(len(whole))[:, None, None], np.arange(whole.shape[1])[:, None]
        return whole[step, sentence, parents.transpose(2, 0, 1)].astype(np.float32)

    def rank(self, n_best: int, config: SearchConfig) -> tuple[Floats, npt.NDArray[np.bool_], Integers, Integers]:
        """The n best of the ended candidates of all steps, best first, and behind or among them the n best cut ones.

        Returns their scores, minus infinity where there are fewer; whether they have ended; the steps of their last
        tokens, and their numbers among the candidates of these steps: `(B,2n)` each.
        """
        _, n_sentences, n_candidates = self.tokens.shape
        limits, compete = np.array([one.limit for one in self._sentences]), config.at_limit != "behind"
        sentence = np.arange(n_sentences)[:, None]
        last = np.minimum(limits, self.counts)[:, None] - 1  # (B,1): the last step before the limit
        cut_at = self.kept[last, sentence, np.arange(self.kept.shape[2])]  # (B,K)
        is_cut = (limits <= self.counts)[:, None] & ~self.ended[last, sentence, cut_at]  # a sample may end in this step
        if compete:  # those that a beam only had in reserve do not
            is_cut &= cut_at % (n_candidates // config.diversity_groups) < config.beam_size // config.diversity_groups
        cut = np.where(is_cut, self.final[last, sentence, cut_at], -INFINITY)
        whole = np.where(self.ended, self.final, -INFINITY).transpose(1, 0, 2).reshape(n_sentences, -1)  # (B,T*C)
        order = np.concatenate([_best_first(whole, n_best), _best_first(cut, n_best) + whole.shape[1]], axis=1)
        both = np.concatenate([whole, cut], axis=1)
        if compete:
            order = order[sentence, _best_first(both[sentence, order], 2 * n_best)]
        finished = order < whole.shape[1]
        of_cut = np.take_along_axis(cut_at, np.maximum(order - whole.shape[1], 0), axis=1)
        steps, numbers = np.divmod(order, n_candidates)
        return both[sentence, order], finished, np.where(finished, steps, last), np.where(finished, numbers, of_cut)

    def trace_back(self, last: Integers, candidate: Integers) -> tuple[Integers, Floats, Integers]:
        """Tokens, log-probabilities from the start, and parents of ranked hypotheses, each `(B,2n,T)`.

        What is behind the end of a hypothesis is undefined.
        """
        n_steps, n_sentences, _ = self.tokens.shape
        sentence = np.arange(n_sentences)[:, None]
        shape = (*candidate.shape, n_steps)
        log_probs, tokens, parents = np.zeros(shape, self.scores.dtype), np.zeros(shape, np.int64), np.zeros(shape, int)
        slot = np.zeros(candidate.shape, np.int64)
        for step in reversed(range(n_steps)):
            here = np.where(step == last, candidate, self.kept[step, sentence, slot])
            tokens[:, :, step] = self.tokens[step, sentence, here]
            slot = parents[:, :, step] = self.parents[step, sentence, here]
            log_probs[:, :, step] = self.scores[step, sentence, here]
        return tokens, log_probs, parents


def _best_first(scores: Floats, count: int) -> Integers:
    """The numbers of the best of each row `(B,*)`, of equal ones the first first: `(B,count)`."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :count]


def read_hypotheses(
    sentences: Sequence[SentenceRecord], spans: Sequence[CompactionSpan], n_best: int, size: int, config: SearchConfig
) -> list[list[Hypothesis]]:
    """The best hypotheses of B finished sentences, at most `n_best` of each; `size` is V."""
    steps = _Steps(sentences, spans)
    score, finished, last, candidate = steps.rank(n_best, config)
    tokens, log_probs, parents = steps.trace_back(last, candidate)
    with np.errstate(invalid="ignore"):  # of what is undefined
        token_log_probs = np.diff(log_probs, prepend=0.0)
    attention = steps.gather_inherited(lambda result: result.attention, parents)  # (T,B,2n,S)
    p_gen = steps.gather_inherited(lambda result: result.copy_gate, parents)  # (T,B,2n,1)

    def hypothesis(row: int, which: int) -> Hypothesis:
        length, has_ended = int(last[row, which]) + 1, bool(finished[row, which])
        sentence = sentences[row]
        ids = sentence.extended_ids(tokens[row, which, :length].tolist(), size)
        return Hypothesis(
            ids=ids[:-1] if has_ended else ids,
            finished=has_ended,
            score=float(score[row, which]),
            log_prob=float(log_probs[row, which, length - 1]),
            token_log_probs=token_log_probs[row, which, :length].tolist(),
            attention=None if attention is None else attention[:length, row, which, : sentence.length].copy(),
            p_gen=None if p_gen is None else p_gen[:length, row, which, 0].tolist(),
        )

    return [
        [hypothesis(row, which) for which in [*compress(range(len(there)), there)][:n_best]]
        for row, there in enumerate((score > -INFINITY).tolist())
    ]
