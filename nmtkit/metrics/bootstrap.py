"""Paired bootstrap resampling of scores that are means over examples."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_CHUNK = 4_000_000
"""Draws held at once, in examples: 32 MB of them."""


@dataclass(frozen=True)
class Resampled:
    """What the draws say about one mean. The attributes are those of `Comparison`."""

    mean: float
    interval: float
    p_value: float | None


def bootstrap(values: npt.NDArray[np.float64], n_samples: int, seed: int) -> list[list[Resampled]]:
    """Resamples the examples with replacement, the same draws for all systems and metrics.

    The test of Koehn 2004 in the form that `several.compare` describes; the first system is the baseline.

    Args:
        values: `(systems, metrics, examples)`.
        n_samples: how often to draw.
        seed: of the random draws.

    Returns:
        `[system][metric]`.
    """
    n_systems, n_metrics, n_examples = values.shape
    means = np.empty((n_samples, n_systems * n_metrics))
    rows = values.reshape(n_systems * n_metrics, n_examples)
    random = np.random.default_rng(seed)
    at_once = max(1, _CHUNK // n_examples)
    for start in range(0, n_samples, at_once):
        n_draws = min(at_once, n_samples - start)
        drawn = random.integers(n_examples, size=(n_draws, n_examples))
        drawn += n_examples * np.arange(n_draws)[:, None]  # one histogram for each draw
        counts = np.bincount(drawn.ravel(), minlength=n_draws * n_examples).reshape(n_draws, n_examples)
        means[start : start + n_draws] = counts @ rows.T / n_examples
    draws = means.reshape(n_samples, n_systems, n_metrics)
    whole = values.mean(axis=2)
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    return [
        [
            Resampled(
                mean=float(draws[:, system, metric].mean()),
                interval=float(high[system, metric] - low[system, metric]) / 2,
                p_value=_p_value(draws[:, [0, system], metric], whole[[0, system], metric]) if system > 0 else None,
            )
            for metric in range(n_metrics)
        ]
        for system in range(n_systems)
    ]


def _p_value(draws: npt.NDArray[np.float64], whole: npt.NDArray[np.float64]) -> float:
    """The chance of so large a gap by chance; column 0 is the baseline, column 1 the system."""
    gap = abs(float(whole[1] - whole[0]))
    if gap == 0:
        return 1.0
    gaps = np.abs(draws[:, 1] - draws[:, 0])
    exceeding = int((gaps - gaps.mean() > gap).sum())
    return (exceeding + 1) / (len(draws) + 1)
