"""BLEU of a system over several training runs with different seeds, and significance tests between such systems."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nmtkit.metrics.bleu import bleu_from_statistics, sentence_statistics
from nmtkit.metrics.metric import Options

DRAWS = 1000
"""Number of random partitions in a significance test."""


@dataclass(frozen=True)
class SeedSummary:
    """BLEU of a system over its seeds."""

    name: str
    scores: list[float]
    """BLEU of each training run, 0 to 100."""
    p_value: float | None
    """Probability (p-value) of so large a difference from the first system by chance; None for the first."""

    @property
    def mean(self) -> float:
        """Mean BLEU over the training runs."""
        return statistics.fmean(self.scores)

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation (with divisor n-1); None for a single training run."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None


def summarize_seeds(
    systems: Sequence[tuple[str, Sequence[Sequence[str]]]],
    references: Sequence[str],
    options: Options,
    draws: int = DRAWS,
    seed: int = 12345,
) -> list[SeedSummary]:
    """Summarizes systems (name and outputs of all training runs) and compares them with the first.

    The test is the stratified approximate randomization of Clark et al. 2011, "Better Hypothesis
    Testing for Statistical Machine Translation: Controlling for Optimizer Instability", section 4:
    in every draw the outputs of both systems for a sentence are pooled and redistributed, so
    differences between seeds count as noise.
    """
    figures = []
    for _, outputs in systems:
        figures.append(
            np.stack([sentence_statistics(lines, references, options) for lines in outputs])
        )  # (R,N,F)
    summaries = []
    for number, (name, _) in enumerate(systems):
        scores = [bleu_from_statistics(training.sum(axis=0)) for training in figures[number]]
        p_value = None
        if number > 0:
            p_value = _randomization_test(figures[0], figures[number], draws, seed)
        summaries.append(SeedSummary(name, scores, p_value))
    return summaries


def _randomization_test(
    first: npt.NDArray[np.float64], second: npt.NDArray[np.float64], draws: int, seed: int
) -> float:
    """Returns the p-value of the difference in mean BLEU of two systems, `(trainings, sentences, figures)`."""
    random = np.random.default_rng(seed)
    pooled = np.concatenate([first, second])  # (R,N,F)
    observed = _difference(pooled, len(first))
    exceeding = 0
    for _ in range(draws):
        order = random.random(pooled.shape[:2]).argsort(
            axis=0
        )  # (R,N), a permutation of the training runs for each sentence
        shuffled = np.take_along_axis(pooled, order[:, :, None], axis=0)  # (R,N,F)
        if _difference(shuffled, len(first)) >= observed:
            exceeding += 1
    return (exceeding + 1) / (draws + 1)


def _difference(pooled: npt.NDArray[np.float64], n_first: int) -> float:
    """Returns the absolute difference in mean BLEU between the first training runs and the others."""
    scores = [bleu_from_statistics(training.sum(axis=0)) for training in pooled]
    return abs(statistics.fmean(scores[:n_first]) - statistics.fmean(scores[n_first:]))
