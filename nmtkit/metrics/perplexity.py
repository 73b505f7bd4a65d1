"""How surprising a reference is to a model."""

import math
from importlib.metadata import version

from nmtkit.errors import DataError
from nmtkit.metrics.score import Score


def perplexity(log_prob: float, n_tokens: int) -> Score:
    """Perplexity per token, `exp(-log_prob / n_tokens)`: lower is better, at least 1; too large a one is infinity.

    Args:
        log_prob: sum of the log-probabilities of all tokens in nats, so at most 0.
        n_tokens: how many tokens were predicted, ends of sentence included.

    Raises:
        DataError: no tokens.
    """
    if n_tokens < 1:
        raise DataError("perplexity is not defined: there are no tokens")
    try:
        value = math.exp(-log_prob / n_tokens)
    except OverflowError:
        value = math.inf
    return Score("perplexity", value, f"tokens:{n_tokens}|version:nmtkit-{version('nmtkit')}")
