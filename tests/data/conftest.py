"""A small made-up corpus, the same in every test."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from nmtkit.data.batches.store import Store
from nmtkit.data.text.blocks import Example
from nmtkit.data.tokenizers.tokenizer import TokenizerConfig
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from tests.data.stored import checker, write_store
from tests.support.learned_tokenizers import learn_tokenizers

NOUNS = [
    *("house", "dog", "river", "mountain", "teacher", "window"),
    *("garden", "bridge", "letter", "winter", "summer", "market"),
]
VERBS = ["sees", "likes", "builds", "crosses", "writes", "sells", "forgets", "opens"]
NAMES = ["Anna", "Otto", "Maria", "Jean", "Süßmann", "Zoë"]


def made_pairs(count: int, seed: int = 0) -> list[Example]:
    """Sentences of 4 to 24 words; the target says the same backwards, and a little more or less."""
    draw = random.Random(seed)
    pairs = []
    for line in range(1, count + 1):
        clauses = [
            f"{draw.choice(NAMES)} {draw.choice(VERBS)} the {draw.choice(NOUNS)}"
            for _ in range(draw.randint(1, 6))
        ]
        words = " and ".join(clauses).split()
        backwards = words[::-1][: len(words) - draw.randint(0, 2)]
        pairs.append(Example(" ".join(words) + ".", " ".join(backwards) + " !", line))
    return pairs


@pytest.fixture(scope="session")
def pairs() -> list[Example]:
    return made_pairs(600)


@pytest.fixture(scope="session")
def tokenizers(pairs: list[Example]) -> Tokenizers:
    return learn_tokenizers(TokenizerConfig(kind="bpe", vocab_size=120), pairs)


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Store]:
    """Stores examples as a training set and opens it."""

    def make(
        examples: list[Example],
        tokenizers: Tokenizers,
        keep_text: bool = False,
        copying: bool = False,
    ) -> Store:
        folder: Path = tmp_path_factory.mktemp("store")
        write_store(folder, "train", examples, tokenizers, checker(), keep_text, copying)
        return Store.open(folder, "train")

    return make
