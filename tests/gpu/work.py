"""What the parts that measure speed work on: made-up captions, and models as they are on a GPU or quick."""

import torch

from nmtkit.data.store import Store
from nmtkit.models.luong import LuongConfig
from nmtkit.models.transformer import TransformerConfig
from nmtkit.runs.folder import RunFolder
from tests.bench import captions, training

from . import fixed_length
from .results import Given

VOCABULARY, QUICK_VOCABULARY = 32_000, 400
QUICK_PAIRS = {"train": 300, "valid": 10, "test": 20}
BATCH_TOKENS, QUICK_BATCH_TOKENS = 25_000, 500
LENGTH = 30
"""Tokens that random weights write."""
QUICK = {"hidden_size": 16, "feed_forward_size": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
LUONG = LuongConfig(
    embedding_size=1000, hidden_size=1000, layers=4, reverse_source=True, bridge="copy", window="local_p", dropout=0.2
)
"""Luong et al. 2015, as in recipes/wmt14-en-de-luong-local-p.yaml."""


def corpus(told: Given) -> RunFolder:
    """The captions, made by whichever part comes first."""
    folder = told.results.path.parent / "captions"
    if not (folder / "run" / "data" / "test.json").exists():
        folder.mkdir(exist_ok=True)
        sizes = (QUICK_VOCABULARY, QUICK_PAIRS) if told.quick else (VOCABULARY, captions.PAIRS)
        captions.make(folder, *sizes)
    return RunFolder(folder / "run")


def transformer(told: Given) -> TransformerConfig:
    return training.BASE.changed(QUICK) if told.quick else training.BASE


def luong(told: Given) -> LuongConfig:
    return LUONG.changed({"embedding_size": 16, "hidden_size": 16, "layers": 1}) if told.quick else LUONG


def to_decode(told: Given, sentences: int) -> fixed_length.Work:
    return fixed_length.open_work(corpus(told), sentences, told.place, transformer(told), 4 if told.quick else LENGTH)


def to_train(told: Given, updates: int = 5, blocks: int = 3) -> training.Work:
    return training.Work(
        Store.open(corpus(told).data, "train"),
        told.scratch,
        told.place,
        torch.get_num_threads(),
        blocks=1 if told.quick else blocks,
        updates=1 if told.quick else updates,
        batch_tokens=QUICK_BATCH_TOKENS if told.quick else BATCH_TOKENS,
    )
