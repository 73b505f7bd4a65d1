"""What the steps of a search decided, kept on the device, and the hypotheses that come of it.

Letters as in `nmtkit.search.beam`; T steps, n hypotheses asked for of each sentence.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nmtkit.data.batch import Rows
from nmtkit.errors import CheckpointError
from nmtkit.models.base import Readout
from nmtkit.search.rules import INFINITY

Integers = npt.NDArray[np.int64]
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


@dataclass
class _Segment:
    """The steps between two drops: the same R sentences."""

    sentences: Tensor
    """Rows in the batch `(R,)`."""
    choices: list[Choice] = field(default_factory=list)
    final: list[Tensor] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)
    p_gen: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class _Decided:
    """What every step decided, of all B sentences and T steps, on the CPU."""

    candidates: Integers
    """`(T,B,C)`, as in `Choice`."""
    scores: Floats
    """`(T,B,C)`."""
    ended: npt.NDArray[np.bool_]
    """`(T,B,C)`."""
    kept: Integers
    """`(T,B,K)`."""
    final: Floats
    """What candidates are ranked by, `(T,B,C)`."""

    def rank(self, limits: Integers, n_best: int) -> "_Ranking":
        """The best hypotheses there are: of the ended candidates of all steps, and of those cut at the limit `(B,)`."""
        n_steps, n_sentences, n_candidates = self.candidates.shape
        sentence = np.arange(n_sentences)[:, None]
        last = np.minimum(limits, n_steps)[:, None] - 1  # (B,1): the last step before the limit
        cut_at = self.kept[last, sentence, np.arange(self.kept.shape[2])]  # (B,K)
        cut = np.where(limits[:, None] <= n_steps, self.final[last, sentence, cut_at], -INFINITY)
        whole = np.where(self.ended, self.final, -INFINITY).transpose(1, 0, 2).reshape(n_sentences, -1)  # (B,T*C)
        order = np.concatenate([_best_first(whole, n_best), _best_first(cut, n_best) + whole.shape[1]], axis=1)
        finished = order < whole.shape[1]
        chosen = np.where(finished, order % n_candidates, 0)
        chosen[:, n_best:] = np.take_along_axis(cut_at, order[:, n_best:] - whole.shape[1], axis=1)
        return _Ranking(
            score=np.concatenate([whole, cut], axis=1)[sentence, order],
            finished=finished,
            last=np.where(finished, order // n_candidates, last),
            chosen=chosen,
        )

    def follow(self, ranking: "_Ranking", n_tokens: int) -> "_Paths":
        """The way of each ranked hypothesis, back from the last step, all at once; `n_tokens` is X.

        What is found behind the end of one is of no meaning.
        """
        n_steps, n_sentences, _ = self.candidates.shape
        sentence = np.arange(n_sentences)[:, None]
        shape = (*ranking.chosen.shape, n_steps)
        log_probs, tokens, parents = np.zeros(shape, self.scores.dtype), np.zeros(shape, np.int64), np.zeros(shape, int)
        slot = np.zeros(ranking.chosen.shape, np.int64)
        for step in reversed(range(n_steps)):
            here = np.where(step == ranking.last, ranking.chosen, self.kept[step, sentence, slot])
            slot, tokens[:, :, step] = np.divmod(self.candidates[step, sentence, here], n_tokens)
            parents[:, :, step] = slot
            log_probs[:, :, step] = self.scores[step, sentence, here]
        return _Paths(tokens, log_probs, parents)


@dataclass(frozen=True)
class _Ranking:
    """The n best hypotheses of each sentence that ended, best first, and behind them the n best that were cut."""

    score: Floats
    """`(B,2n)`; minus infinity where there are fewer."""
    finished: npt.NDArray[np.bool_]
    """`(B,2n)`."""
    last: Integers
    """The step of the last token `(B,2n)`."""
    chosen: Integers
    """Which candidate of that step it is `(B,2n)`."""


@dataclass(frozen=True)
class _Paths:
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


class Trace:
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

    def read(self, limits: Tensor, src_lengths: Sequence[int], n_best: int) -> list[list[Hypothesis]]:
        """The best hypotheses of all sentences.

        Raises:
            CheckpointError: a log-probability was not a number.
        """
        decided = _Decided(
            candidates=self._whole(lambda segment: [choice.candidates for choice in segment.choices], 0),
            scores=self._whole(lambda segment: [choice.scores for choice in segment.choices], -INFINITY),
            ended=self._whole(lambda segment: [choice.ended for choice in segment.choices], False),
            kept=self._whole(lambda segment: [choice.kept for choice in segment.choices], 0),
            final=self._whole(lambda segment: segment.final, -INFINITY),
        )
        if np.isnan(decided.scores).any():
            raise CheckpointError(
                "the model gives NaN for log-probabilities, so its weights are damaged: use an earlier checkpoint"
            )
        ranking = decided.rank(limits.cpu().numpy(), n_best)
        paths = decided.follow(ranking, self.n_tokens)
        attention = self._followed(lambda segment: segment.attention, paths.parents)  # (T,B,2n,S)
        p_gen = self._followed(lambda segment: segment.p_gen, paths.parents)  # (T,B,2n,1)

        def hypothesis(row: int, which: int) -> Hypothesis:
            length, finished = int(ranking.last[row, which]) + 1, bool(ranking.finished[row, which])
            sums, ids = paths.log_probs[row, which, :length], paths.tokens[row, which, :length].tolist()
            looks = None if attention is None else attention[:length, row, which, : src_lengths[row]].copy()
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
