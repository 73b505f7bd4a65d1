"""Fit of a model to given translations: perplexity and alignment error rate."""

import math
from collections.abc import Sequence

from nmtkit.core.errors import DataError
from nmtkit.core.version import __version__
from nmtkit.data.text.alignments import GoldAlignment, Links
from nmtkit.metrics.metric import METRICS, Metric, Score

METRICS.register("loss")(Metric("loss", "loss", higher_is_better=False, needs="probabilities"))
PERPLEXITY = METRICS.register("perplexity")(
    Metric("perplexity", "perplexity", higher_is_better=False, needs="probabilities")
)
AER = METRICS.register("aer")(Metric("aer", "AER", higher_is_better=False, needs="alignments"))


def perplexity(log_prob: float, n_tokens: int) -> Score:
    """Returns the perplexity per token, `exp(-log_prob / n_tokens)`; `log_prob` is in nats, and EOS is included."""
    if n_tokens < 1:
        raise DataError("perplexity is undefined, because there are no tokens")
    try:
        value = math.exp(-log_prob / n_tokens)
    except OverflowError:
        value = math.inf
    return Score(PERPLEXITY.title, value, f"tokens:{n_tokens}|version:nmtkit-{__version__}")


def aer(predicted: Sequence[Links], gold: Sequence[GoldAlignment]) -> tuple[Score, Score, Score]:
    """Returns the alignment error rate of a corpus (lower is better), its precision and its recall, 0 to 100.

    Och and Ney 2003, "A Systematic Comparison of Various Statistical Alignment Models", section 6:
    with A the predicted, S the sure and P the possible links, `precision = |A & P| / |A|`, `recall
    = |A & S| / |S|`, `AER = 1 - (|A & S| + |A & P|) / (|A| + |S|)`. Precision is 0 without
    predicted links, and recall is 0 without sure links.
    """
    if len(predicted) != len(gold):
        raise DataError(
            f"{len(predicted)} sentence pairs have a predicted alignment, but {len(gold)} have "
            "a gold alignment"
        )
    n_predicted = sum(len(links) for links in predicted)
    n_sure = sum(len(alignment.sure) for alignment in gold)
    if n_predicted + n_sure == 0:
        raise DataError(
            "the alignment error rate is undefined, because there are no predicted links and no "
            "sure gold links"
        )
    hit_sure = sum(
        len(links & alignment.sure) for links, alignment in zip(predicted, gold, strict=True)
    )
    hit_possible = sum(
        len(links & alignment.possible) for links, alignment in zip(predicted, gold, strict=True)
    )
    n_possible = sum(len(alignment.possible) for alignment in gold)
    counts = f"pairs:{len(gold)}|links:{n_predicted}|sure:{n_sure}|possible:{n_possible}"
    signature = f"{counts}|version:nmtkit-{__version__}"
    return (
        Score(AER.title, 100 * (1 - (hit_sure + hit_possible) / (n_predicted + n_sure)), signature),
        Score(
            "alignment precision",
            100 * hit_possible / n_predicted if n_predicted else 0.0,
            signature,
        ),
        Score("alignment recall", 100 * hit_sure / n_sure if n_sure else 0.0, signature),
    )
