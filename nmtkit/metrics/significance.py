"""Paired significance tests between systems, and metrics that are means of per-example figures."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Self

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from nmtkit.core.version import __version__
from nmtkit.metrics.metric import Comparison, Options, Resampling, Score, TextMetric, Texts

SIGNIFICANCE_LEVEL = 0.05
"""A p-value below this marks a significant difference."""

_CHUNK = 4_000_000
"""Number of examples drawn at once (32 MB)."""
_ROUNDING = 1e-9
"""Tolerance in points, because the same numbers may be added in a different order."""


@dataclass(frozen=True)
class ExampleMetric(TextMetric):
    """A metric computed from the means of per-example figures."""

    @abstractmethod
    def statistics(self, texts: Texts, options: Options) -> npt.NDArray[np.float64]:
        """Returns the figures of each example, `(examples, figures)`."""

    def value(self, means: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Returns the score from mean figures, `(..., figures)` -> `(...)`; by default the first mean."""
        return means[..., 0]

    def signature(self, options: Options, n_refs: int, resampling: Resampling | None = None) -> str:
        """Returns the options and the version, and the draws and seed of a significance test, if any."""
        return (
            f"nrefs:{n_refs}{f'|{resampling}' if resampling else ''}|version:nmtkit-{__version__}"
        )

    def signature_of(self, texts: Texts, options: Options, resampling: Resampling | None) -> str:
        """Returns the signature; "nrefs:var" if examples have different numbers of references."""
        signature = self.signature(options, len(texts.refs), resampling)
        return (
            signature.replace(f"nrefs:{len(texts.refs)}", "nrefs:var", 1)
            if texts.have_missing
            else signature
        )

    @classmethod
    def score_examples(
        cls, metrics: Sequence[Self], texts: Texts, options: Options, resampling: Resampling | None
    ) -> list[tuple[Score, npt.NDArray[np.float64]]]:
        """Returns the score and the figures of each of `metrics`; overridden if metrics share work."""
        scores = []
        for metric in metrics:
            figures = metric.statistics(texts, options)
            value = float(metric.value(figures.mean(axis=0)))
            scores.append(
                (
                    Score(metric.title, value, metric.signature_of(texts, options, resampling)),
                    figures,
                )
            )
        return scores

    @classmethod
    @override
    def measure(
        cls,
        metrics: Sequence[Self],
        systems: Sequence[Texts],
        options: Options,
        resampling: Resampling | None,
    ) -> list[list[Comparison]]:
        scored = [cls.score_examples(metrics, texts, options, resampling) for texts in systems]
        if resampling is None:
            return [
                [Comparison(score) for score, _ in column] for column in zip(*scored, strict=True)
            ]
        figures = np.stack([np.concatenate([figures.T for _, figures in row]) for row in scored])
        draw = shuffled_means if resampling.kind == "ar" else drawn_means
        drawn, whole = draw(figures, resampling), figures.mean(axis=2)
        rows, first = [], 0
        for column, metric in enumerate(metrics):
            own = slice(first, first + scored[0][column][1].shape[1])
            first = own.stop
            scores = [row[column][0] for row in scored]
            rows.append(
                _compared(scores, metric.value(drawn[..., own]), metric.value(whole[..., own]))
            )
        return rows


def drawn_means(values: npt.NDArray[np.float64], resampling: Resampling) -> npt.NDArray[np.float64]:
    """Returns means over examples drawn with replacement, with the same draws for all systems and figures.

    `(systems, figures, examples)` -> `(draws, systems, figures)`.
    """
    n_systems, n_figures, n_examples = values.shape
    means = np.empty((resampling.n_samples, n_systems * n_figures))
    rows = values.reshape(n_systems * n_figures, n_examples)
    for start, n_draws, random in _parts(resampling, n_examples):
        drawn = random.integers(n_examples, size=(n_draws, n_examples))
        drawn += n_examples * np.arange(n_draws)[:, None]  # one histogram per draw
        counts = np.bincount(drawn.ravel(), minlength=n_draws * n_examples).reshape(
            n_draws, n_examples
        )
        means[start : start + n_draws] = counts @ rows.T / n_examples
    return means.reshape(resampling.n_samples, n_systems, n_figures)


def shuffled_means(
    values: npt.NDArray[np.float64], resampling: Resampling
) -> npt.NDArray[np.float64]:
    """Returns the means of the first system and of each system after swapping a random half of their examples.

    The same examples are swapped for all systems and figures. `(systems, figures, examples)` ->
    `(draws, 2, systems, figures)`; index 0 contains the first system's means, index 1 the
    other system's.
    """
    n_systems, n_figures, n_examples = values.shape
    gaps = (values - values[0]).reshape(n_systems * n_figures, n_examples)
    means = np.empty((resampling.n_samples, 2, n_systems, n_figures))
    for start, n_draws, random in _parts(resampling, n_examples):
        swapped = random.integers(2, size=(n_draws, n_examples)).astype(np.float64)
        moved = (swapped @ gaps.T / n_examples).reshape(n_draws, n_systems, n_figures)
        means[start : start + n_draws, 0] = values[0].mean(axis=-1) + moved
        means[start : start + n_draws, 1] = values.mean(axis=-1) - moved
    return means


def _parts(
    resampling: Resampling, n_examples: int
) -> Iterator[tuple[int, int, np.random.Generator]]:
    """Splits the draws into parts that fit into memory; yields the start and size of each, and the generator."""
    random = np.random.default_rng(resampling.seed)
    at_once = max(1, _CHUNK // n_examples)
    for start in range(0, resampling.n_samples, at_once):
        yield start, min(at_once, resampling.n_samples - start), random


def _compared(
    scores: Sequence[Score], drawn: npt.NDArray[np.float64], whole: npt.NDArray[np.float64]
) -> list[Comparison]:
    """Tests the scores of the `whole` set `(systems,)` against scores of draws `(draws, systems)`.

    Scores of shuffled outputs are `(draws, 2, systems)` and give no intervals.
    """
    gap = np.abs(whole - whole[0])
    means: Iterable[float | None] = repeat(None)
    intervals: Iterable[float | None] = repeat(None)
    if drawn.ndim == 3:
        exceeding = (np.abs(drawn[:, 0] - drawn[:, 1]) > gap + _ROUNDING).sum(axis=0)
    else:
        columns = np.ascontiguousarray(drawn.T)
        low, high = np.quantile(columns, [0.025, 0.975], axis=1)
        gaps = np.abs(columns - columns[0])
        exceeding = (gaps - gaps.mean(axis=1, keepdims=True) > gap[:, None]).sum(axis=1)
        means, intervals = columns.mean(axis=1).tolist(), ((high - low) / 2).tolist()
    p_values = np.where(gap == 0, 1.0, (exceeding + 1) / (len(drawn) + 1)).tolist()
    return list(map(Comparison, scores, means, intervals, [None, *p_values[1:]]))
