"""What each preset is before the corpus has its say, and where that is from.

Published. Sennrich and Zhang 2019, "Revisiting Low-Resource Neural Machine Translation": with little text a smaller
subword vocabulary, smaller batches, more dropout, label smoothing and tied embeddings help. van Biljon et al. 2020, "On
Optimal Transformer Depth for Low-Resource Language Translation": there fewer layers are often the better ones. Araabi
and Monz 2020, "Optimizing Transformer for Low-Resource Neural Machine Translation": settings fitted to the size of the
corpus gain up to 7.3 BLEU. Vaswani et al. 2017: `base`. See et al. 2017: the pointer-generator.

Measured (recipes/README.md), each at one corpus: `compare-transformer` is `tiny`, `multi30k-en-de-transformer` is
`small`; `demo-news-pointer-generator` and `inshorts-pointer-generator` are those of summaries.

Which time is too short for `small` was seen with Multi30k English-German: where it read the text 1.8 times it had 23
BLEU, and `tiny` in the same time 31 (recipes/README.md). Where between these and 22 times both are equal is a guess.

Not measured: everything between these points and beyond them, for which `choice.py` has rules. `base` was never trained
by us.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

Task: TypeAlias = Literal["translation", "summarization"]
Name: TypeAlias = Literal["tiny", "small", "base"]

TASKS: tuple[Task, ...] = get_args(Task)
"""What a model can be for."""
NAMES: tuple[Name, ...] = get_args(Name)
"""The presets, by size."""
MEANING: dict[Name, str] = {
    "tiny": "for a try in minutes",
    "small": "for CPUs and small corpora",
    "base": "for GPUs and large corpora",
}
"""What each preset is for."""

FEW_PAIRS = 5_000
"""Studies of translation with little text begin here; with fewer pairs nobody should expect much."""
MANY_PAIRS = 100_000
"""From so many pairs on a GPU gets `base`."""

VOCABULARIES = (
    (200_000, 2_000),
    (300_000, 4_000),
    (2_000_000, 8_000),
    (20_000_000, 16_000),
    (math.inf, 32_000),
)
"""A side with fewer running words than the first gets so many subwords. Sennrich and Zhang took 2,000 for 100,000
words; 30,000 and more are usual for WMT; 8,000 is what we measured with 345,000."""


@dataclass(frozen=True)
class Plan:
    """One preset for one task."""

    model: Mapping[str, Any]
    """Kind and sizes of the model."""
    told: str
    """The same in words."""
    because: str
    """Why these."""
    batch_tokens: int
    """Padded tokens of a batch."""
    lr: float
    """Learning rate."""
    most_vocabulary: int
    """Tokens of a vocabulary at most."""
    most_updates: int
    """Updates at most."""
    fewest_useful: float
    """Passes that a time limit must leave room for; where it does not, a smaller preset learns more in the time."""
    passes: float
    """Passes over the text that were right once ..."""
    passes_at: int
    """... with a text of so many padded tokens."""
    fewest_passes: int
    """Passes at least, however large the text."""
    most_passes: int
    """Passes at most, however small."""


TRANSFORMERS: dict[Name, Plan] = {
    "tiny": Plan(
        model={
            "kind": "transformer",
            "hidden_size": 128,
            "feed_forward_size": 256,
            "heads": 4,
            "encoder_layers": 2,
            "decoder_layers": 2,
        },
        told="Transformer, 2+2 layers of 128",
        because="it learns 20,000 simple pairs in minutes (recipe compare-transformer)",
        batch_tokens=1_500,
        lr=0.003,
        most_vocabulary=4_000,
        most_updates=3_000,
        fewest_useful=0,
        passes=22,
        passes_at=520_000,
        fewest_passes=1,
        most_passes=60,
    ),
    "small": Plan(
        model={
            "kind": "transformer",
            "hidden_size": 256,
            "feed_forward_size": 1024,
            "heads": 4,
            "encoder_layers": 3,
            "decoder_layers": 3,
        },
        told="Transformer, 3+3 layers of 256",
        because="with 29,000 pairs it reached 38 BLEU (recipe multi30k-en-de-transformer)",
        batch_tokens=4_096,
        lr=0.0015,
        most_vocabulary=16_000,
        most_updates=30_000,
        fewest_useful=5,
        passes=22,
        passes_at=520_000,
        fewest_passes=3,
        most_passes=60,
    ),
    "base": Plan(
        model={
            "kind": "transformer",
            "hidden_size": 512,
            "feed_forward_size": 2048,
            "heads": 8,
            "encoder_layers": 6,
            "decoder_layers": 6,
        },
        told="Transformer, 6+6 layers of 512",
        because="these are the sizes of the base model in Vaswani et al. 2017, table 3 (not trained by us)",
        batch_tokens=25_000,
        lr=0.0007,
        most_vocabulary=32_000,
        most_updates=100_000,
        fewest_useful=1.5,
        passes=19,
        passes_at=130_000_000,
        fewest_passes=10,
        most_passes=60,
    ),
}
"""Of translation. Passes of base: 100,000 updates with the 4.5 million pairs of WMT14, as in the paper."""

POINTERS: dict[Name, Plan] = {
    "tiny": Plan(
        model={"kind": "pointer_generator", "embedding_size": 64, "hidden_size": 128, "attention_size": 128},
        told="pointer-generator of 128",
        because="it learns 10,000 made-up news in minutes (recipe demo-news-pointer-generator)",
        batch_tokens=6_400,
        lr=0.003,
        most_vocabulary=4_000,
        most_updates=900,
        fewest_useful=0,
        passes=7,
        passes_at=1_000_000,
        fewest_passes=1,
        most_passes=20,
    ),
    "small": Plan(
        model={"kind": "pointer_generator", "embedding_size": 128, "hidden_size": 128, "attention_size": 128},
        told="pointer-generator of 128",
        because="it learned from 3,392 news what is told of the recipe inshorts-pointer-generator",
        batch_tokens=4_800,
        lr=0.002,
        most_vocabulary=20_000,
        most_updates=12_000,
        fewest_useful=1.5,
        passes=7,
        passes_at=1_000_000,
        fewest_passes=5,
        most_passes=20,
    ),
    "base": Plan(
        model={"kind": "pointer_generator", "embedding_size": 128, "hidden_size": 256},
        told="pointer-generator of 256",
        because="these are the sizes of See et al. 2017, section 5 (not trained by us)",
        batch_tokens=6_400,
        lr=0.001,
        most_vocabulary=50_000,
        most_updates=230_000,
        fewest_useful=1.5,
        passes=13,
        passes_at=115_000_000,
        fewest_passes=8,
        most_passes=20,
    ),
}
"""Of summarization. Passes of base: 230,000 updates with the 287,000 articles of CNN/DailyMail, as in the paper."""
