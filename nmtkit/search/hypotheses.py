"""The hypotheses that come of what the steps of a search decided.

Letters as in `nmtkit.search.beam`, but B sentences that are read together, which need not have begun together; T
steps at most, n hypotheses asked for of each sentence.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nmtkit.core.errors import CheckpointError
from nmtkit.search.beam import StepResult
from nmtkit.search.decoding_batch import Integers
from nmtkit.search.rules import INFINITY, SearchConfig

Floats = npt.NDArray[np.floating[Any]]


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
class StepTensors:
    """What every step decided, of all B sentences and T steps, on the CPU."""

    tokens: Integers
    """`(T,B,C)`, as in `BeamStep`."""
    parents: Integers
    """`(T,B,C)`."""
    scores: Floats
    """`(T,B,C)`."""
    ended: npt.NDArray[np.bool_]
    """`(T,B,C)`."""
    kept: Integers
    """`(T,B,K)`."""
    final: Floats
    """What candidates are ranked by, `(T,B,C)`."""
    steps: Integers
    """How many each sentence has made, `(B,)`."""

    def rank(self, limits: Integers, n_best: int, config: SearchConfig) -> "_Ranking":
        """The best hypotheses there are: of the ended candidates of all steps, and of those cut at the limit `(B,)`."""
        _, n_sentences, n_candidates = self.tokens.shape
        compete = config.at_limit != "behind"
        sentence = np.arange(n_sentences)[:, None]
        last = np.minimum(limits, self.steps)[:, None] - 1  # (B,1): the last step before the limit
        cut_at = self.kept[last, sentence, np.arange(self.kept.shape[2])]  # (B,K)
        is_cut = (limits <= self.steps)[:, None] & ~self.ended[last, sentence, cut_at]  # a sample may end in this step
        if compete:  # those that a beam only had in reserve do not
            is_cut &= cut_at % (n_candidates // config.diversity_groups) < config.beam_size // config.diversity_groups
        cut = np.where(is_cut, self.final[last, sentence, cut_at], -INFINITY)
        whole = np.where(self.ended, self.final, -INFINITY).transpose(1, 0, 2).reshape(n_sentences, -1)  # (B,T*C)
        order = np.concatenate([_best_first(whole, n_best), _best_first(cut, n_best) + whole.shape[1]], axis=1)
        if compete:
            order = order[sentence, _best_first(np.concatenate([whole, cut], axis=1)[sentence, order], 2 * n_best)]
        finished = order < whole.shape[1]
        of_cut = np.take_along_axis(cut_at, np.maximum(order - whole.shape[1], 0), axis=1)
        chosen = np.where(finished, order % n_candidates, of_cut)
        return _Ranking(
            score=np.concatenate([whole, cut], axis=1)[sentence, order],
            finished=finished,
            last=np.where(finished, order // n_candidates, last),
            chosen=chosen,
        )

    def follow(self, ranking: "_Ranking") -> "Backtrace":
        """The way of each ranked hypothesis, back from the last step, all at once.

        What is found behind the end of one is of no meaning.
        """
        n_steps, n_sentences, _ = self.tokens.shape
        sentence = np.arange(n_sentences)[:, None]
        shape = (*ranking.chosen.shape, n_steps)
        log_probs, tokens, parents = np.zeros(shape, self.scores.dtype), np.zeros(shape, np.int64), np.zeros(shape, int)
        slot = np.zeros(ranking.chosen.shape, np.int64)
        for step in reversed(range(n_steps)):
            here = np.where(step == ranking.last, ranking.chosen, self.kept[step, sentence, slot])
            tokens[:, :, step] = self.tokens[step, sentence, here]
            slot = parents[:, :, step] = self.parents[step, sentence, here]
            log_probs[:, :, step] = self.scores[step, sentence, here]
        return Backtrace(tokens, log_probs, parents)


@dataclass(frozen=True)
class _Ranking:
    """The n best hypotheses of each sentence that ended, best first, and behind or among them the n best cut ones."""

    score: Floats
    """`(B,2n)`; minus infinity where there are fewer."""
    finished: npt.NDArray[np.bool_]
    """`(B,2n)`."""
    last: Integers
    """The step of the last token `(B,2n)`."""
    chosen: Integers
    """Which candidate of that step it is `(B,2n)`."""


@dataclass(frozen=True)
class Backtrace:
    """The hypotheses of a ranking, step by step."""

    tokens: Integers
    """`(B,2n,T)`."""
    log_probs: Floats
    """Summed from the start, `(B,2n,T)`."""
    parents: Integers
    """Which of the W hypotheses of a step each token continues, `(B,2n,T)`."""


def _best_first(scores: Floats, count: int) -> Integers:
    """The numbers of the best of each row `(B,*)`, of equal ones the first first: `(B,count)`."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :count]


@dataclass(frozen=True)
class StartedSentence:
    """How a sentence began."""

    number: int
    """Of the sentence, among all that are searched."""
    length: int
    """Its source tokens, EOS counted."""
    limit: int
    """The most tokens it may have, EOS counted."""
    extended: Tensor | None
    """The extended ids of its source `(S,)`, for a model that copies: the search numbers unknown words by place."""
    record: StepResult
    """Of its first step, which it made beside others of its batch."""
    row: int
    """Its row there."""
    clock: int
    """How many steps its bank had made before."""

    def extended_ids(self, ids: list[int], size: int) -> list[int]:
        """The tokens of a hypothesis as others know them; `size` is V."""
        if self.extended is None or max(ids) < size:
            return ids
        source = self.extended.tolist()
        return [token if token < size else source[token - size] for token in ids]


@dataclass(frozen=True)
class FinishedSentence:
    """A sentence that is done."""

    begun: StartedSentence
    slot: int
    """Its row in the last record of its bank."""
    clock: int
    """How many steps its bank has made."""


@dataclass
class StepSpan:
    """Steps of a bank between which no slot was given up."""

    clock: int
    """How many steps the bank had made before the first of these."""
    kept: npt.NDArray[np.int64]
    """Which row of the stretch before each row continues; nothing in the first stretch."""
    records: list[StepResult]


class _Steps:
    """What the steps decided of sentences that are read together, which need not have begun together."""

    def __init__(self, done: Sequence[FinishedSentence], stretches: Sequence[StepSpan]) -> None:
        self._done, self._stretches = done, stretches
        ends = np.array([one.clock for one in done])
        self._first = np.array([one.begun.clock for one in done])
        self.counts = ends - self._first + 1
        """How many steps each sentence has made, `(B,)`."""
        self._rows = []  # of the sentences in each stretch, the last stretch first
        rows = np.array([one.slot for one in done])
        for stretch in reversed(stretches):
            self._rows.append(rows)
            inherited = (
                ends > stretch.clock
            )  # the others were done before, and their slot is that of an earlier stretch
            rows = np.where(inherited, stretch.kept[np.where(inherited, rows, 0)], rows) if len(stretch.kept) else rows

    def of(self, pick: Callable[[StepResult], Tensor]) -> npt.NDArray[Any]:
        """One kind of tensors `(*,C)` of all steps, `(T,B,C)`; behind the last step of a sentence of no meaning."""
        begun = torch.stack([pick(one.begun.record)[one.begun.row] for one in self._done]).cpu().numpy()
        whole = np.zeros((int(self.counts.max()), *begun.shape), begun.dtype)
        whole[0] = begun
        for stretch, rows in zip(self._stretches, reversed(self._rows), strict=True):
            if stretch.records:
                part = torch.stack([pick(record) for record in stretch.records]).cpu().numpy()
                step = np.arange(stretch.clock, stretch.clock + len(part))[:, None] - self._first + 1  # (t,B)
                at, sentence = np.nonzero((step > 0) & (step < self.counts))
                whole[step[at, sentence], sentence] = part[at, rows[sentence]]
        return whole

    def decided(self) -> StepTensors:
        """All choices.

        Raises:
            CheckpointError: a log-probability was not a number.
        """
        inside = (np.arange(int(self.counts.max()))[:, None] < self.counts)[:, :, None]  # (T,B,1)
        scores = self.of(lambda record: record.choice.scores)
        if np.isnan(scores).any(where=inside):
            raise CheckpointError(
                "the model gives NaN for log-probabilities, so its weights are damaged: use an earlier checkpoint"
            )
        return StepTensors(
            tokens=self.of(lambda record: record.choice.tokens),
            parents=self.of(lambda record: record.choice.parents),
            scores=scores,
            ended=self.of(lambda record: record.choice.ended) & inside,
            kept=self.of(lambda record: record.choice.kept),
            final=self.of(lambda record: record.final),
            steps=self.counts,
        )

    def followed(
        self, pick: Callable[[StepResult], Tensor | None], parents: Integers
    ) -> npt.NDArray[np.float32] | None:
        """One kind of rows `(*,K,*)` for hypotheses with these parents `(B,n,T)`: `(T,B,n,*)`."""
        if pick(self._done[0].begun.record) is None:
            return None
        whole = self.of(cast(Callable[[StepResult], Tensor], pick))  # (T,B,K,*)
        step, sentence = np.arange(len(whole))[:, None, None], np.arange(whole.shape[1])[:, None]
        return whole[step, sentence, parents.transpose(2, 0, 1)].astype(np.float32)


def read_hypotheses(
    done: Sequence[FinishedSentence], stretches: Sequence[StepSpan], n_best: int, size: int, config: SearchConfig
) -> list[list[Hypothesis]]:
    """The best hypotheses of sentences that are done, so many of each at most.

    Args:
        done: B sentences.
        stretches: all steps that they have made beside their first.
        n_best: n.
        size: V.
        config: how it was searched.

    Raises:
        CheckpointError: a log-probability was not a number.
    """
    steps = _Steps(done, stretches)
    decided = steps.decided()
    ranking = decided.rank(np.array([one.begun.limit for one in done]), n_best, config)
    paths = decided.follow(ranking)
    attention = steps.followed(lambda record: record.attention, paths.parents)  # (T,B,2n,S)
    p_gen = steps.followed(lambda record: record.copy_gate, paths.parents)  # (T,B,2n,1)

    def hypothesis(row: int, which: int) -> Hypothesis:
        length, finished = int(ranking.last[row, which]) + 1, bool(ranking.finished[row, which])
        sums, ids = paths.log_probs[row, which, :length], paths.tokens[row, which, :length].tolist()
        ids = done[row].begun.extended_ids(ids, size)
        looks = None if attention is None else attention[:length, row, which, : done[row].begun.length].copy()
        return Hypothesis(
            ids=ids[:-1] if finished else ids,
            finished=finished,
            score=float(ranking.score[row, which]),
            log_prob=float(sums[-1]),
            token_log_probs=np.diff(sums, prepend=0.0).tolist(),
            attention=looks,
            p_gen=None if p_gen is None else p_gen[:length, row, which, 0].tolist(),
        )

    return [
        [hypothesis(row, which) for which in np.flatnonzero(scores > -INFINITY)[:n_best]]
        for row, scores in enumerate(ranking.score)
    ]
