"""One call for several metrics, and for several systems."""

from collections.abc import Iterable, Sequence

import numpy as np

from nmtkit.errors import NmtkitError
from nmtkit.metrics.bootstrap import bootstrap
from nmtkit.metrics.rouge import F1, ROUGE_METRICS, mean_scores, rouge, rouge_per_example, rouge_signature
from nmtkit.metrics.score import Comparison, Options, Score, check_lines
from nmtkit.metrics.translation import SACREBLEU_METRICS, sacrebleu_compare, sacrebleu_score
from nmtkit.registry import near_names

MOST_SAMPLES = 10_000
"""How often a bootstrap may draw: sacrebleu holds all draws at once."""


def metric_names(given: Iterable[str]) -> list[str]:
    """Resolves the names a user may give: "rouge" stands for all four, and a repeated name counts once.

    Raises:
        NmtkitError: a name is unknown, or none is given.
    """
    names: list[str] = []
    for name in given:
        if name != "rouge" and name not in SACREBLEU_METRICS + ROUGE_METRICS:
            raise NmtkitError(
                f"unknown metric {name!r}: {near_names(name, (*SACREBLEU_METRICS, *ROUGE_METRICS, 'rouge'))}"
            )
        names += [member for member in (ROUGE_METRICS if name == "rouge" else (name,)) if member not in names]
    if not names:
        raise NmtkitError("no metric is named; give at least one, such as bleu")
    return names


def score_all(
    hyps: Sequence[str], refs: Sequence[Sequence[str]], metrics: Iterable[str], options: Options | None = None
) -> list[Score]:
    """Scores one system with every metric named, in that order.

    Raises:
        DataError: no lines, no references, or different numbers of lines.
        NmtkitError: an unknown metric, tokenizer or sentence rule.
    """
    options = options or Options()
    names = metric_names(metrics)
    types = [name for name in names if name in ROUGE_METRICS]
    rouges = rouge(hyps, refs, options.stem, options.sentences, types) if types else []
    found: dict[str, Score] = dict(zip(types, rouges, strict=True))
    for name in names:
        if name in SACREBLEU_METRICS:
            found[name] = sacrebleu_score(name, hyps, refs, options)
    return [found[name] for name in names]


def compare(
    systems: Sequence[tuple[str, Sequence[str]]],
    refs: Sequence[Sequence[str]],
    metrics: Iterable[str],
    options: Options | None = None,
    n_samples: int = 1000,
    seed: int = 12345,
) -> list[list[Comparison]]:
    """Paired bootstrap resampling of several systems against the first of them.

    Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation": the test set is drawn anew
    `n_samples` times with replacement, and all systems are scored on the same draws. sacrebleu does it for its own
    metrics, and the same arithmetic is used on the F1 per example of ROUGE. With d the difference between two
    systems on the whole test set and d* the absolute difference on one draw, p is the share of draws in which d*
    exceeds its own mean by more than |d|, one added above and below. sacrebleu calls systems of exactly equal score
    significantly different; here their p is 1.

    Memory: sacrebleu holds all draws at once, about `n_samples` times lines times 80 bytes.

    Args:
        systems: name and texts of each system; the first is the baseline.
        refs: `refs[r][i]` is reference `r` of example `i`.
        metrics: names as in `metric_names`.
        options: how texts are compared.
        n_samples: how often to draw, from 1 to `MOST_SAMPLES`.
        seed: of the random draws, at least 1 (sacrebleu takes 0 for "not fixed").

    Returns:
        `[system][metric]`, in the orders given.

    Raises:
        DataError: no lines, no references, or different numbers of lines.
        NmtkitError: an unknown metric, tokenizer or sentence rule, or a number out of range.
    """
    if not 1 <= n_samples <= MOST_SAMPLES or seed < 1:
        raise NmtkitError(
            f"samples and seed of the bootstrap must be at least 1, the samples at most {MOST_SAMPLES:,}; they are "
            f"{n_samples} and {seed}"
        )
    for _, hyps in systems:
        check_lines(hyps, refs)
    options = options or Options()
    names = metric_names(metrics)
    found: dict[str, list[Comparison]] = {}

    own = [name for name in names if name in SACREBLEU_METRICS]
    if own:
        found.update(zip(own, sacrebleu_compare(systems, refs, own, options, n_samples, seed), strict=True))

    types = [name for name in names if name in ROUGE_METRICS]
    if types:
        signature = rouge_signature(options, len(refs), n_samples, seed)
        values = [rouge_per_example(hyps, refs, types, options) for _, hyps in systems]
        scores = [mean_scores(types, of_system, signature) for of_system in values]
        resampled = bootstrap(np.stack([of_system[:, :, F1] for of_system in values]), n_samples, seed)
        for row, name in enumerate(types):
            found[name] = [
                Comparison(given[row], drawn[row].mean, drawn[row].interval, drawn[row].p_value)
                for given, drawn in zip(scores, resampled, strict=True)
            ]

    return [[found[name][i] for name in names] for i in range(len(systems))]
