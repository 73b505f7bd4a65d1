"""Tokenizers that are learned from a few examples."""

from collections.abc import Iterable, Sequence

from nmtkit.core.columns import Column
from nmtkit.data.text.blocks import Example
from nmtkit.data.text.checking import DataReport
from nmtkit.data.tokenizers.tokenizer import TRAIN_LINES, TokenizerConfig
from nmtkit.data.tokenizers.tokenizer_training import (
    PAIR_COLUMNS,
    TokenizerSample,
    learn_from_samples,
)
from nmtkit.data.tokenizers.tokenizers import Tokenizers


def learn_tokenizers(
    config: TokenizerConfig,
    pairs: Iterable[Example],
    report: DataReport | None = None,
    weights: Sequence[float] = (),
    columns: Sequence[Column] = PAIR_COLUMNS,
    most: int = TRAIN_LINES,
) -> Tokenizers:
    """Learns tokenizers of some columns from a sample of training pairs, which are read once."""
    sample = TokenizerSample(most, weights, columns)
    for pair in pairs:
        sample.add(pair)
    return learn_from_samples(config, [sample], report)
