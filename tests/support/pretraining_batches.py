"""Tokenizers and batches of texts alone, for the tests of pretraining objectives."""

import torch

from nmtkit.data.batches.batch import Batch, collate
from nmtkit.data.tokenizers.tokenizer import TokenizerConfig, WordTokenizer
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import SPECIALS, Vocabulary

MASK = 4
WORDS = 100
"""V: the first word has the id 5."""


def tokenizers(words: int = WORDS, specials: tuple[str, ...] = ("<mask>",)) -> Tokenizers:
    """Those of texts of the words w5, w6, ..."""
    config = TokenizerConfig(kind="whitespace", specials=list(specials))
    tokens = [*SPECIALS, *specials]
    tokens += [f"w{number}" for number in range(len(tokens), words)]
    return Tokenizers(config, {"tgt": WordTokenizer(config, Vocabulary(tokens, specials))})


def texts(*lengths: int, seed: int = 1, words: int = WORDS) -> Batch:
    """A stored batch of random texts of so many words."""
    draw = torch.Generator().manual_seed(seed)
    return collate(
        None, [torch.randint(5, words, (length,), generator=draw).tolist() for length in lengths]
    )


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
