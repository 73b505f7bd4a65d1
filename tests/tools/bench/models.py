"""Training speed of models with layers of their own beside the same networks in bare torch, and their speed of writing.

Batches are random and made before the clock starts, for both. Lengths in a batch differ little, as in batches of a
training, but for the sentences of a text.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch

from nmtkit.cli import terminal
from nmtkit.core import device as devices
from nmtkit.core.errors import NmtkitError
from nmtkit.data.batches.batch import ABSENT, Batch, collate
from nmtkit.data.tokenizers.vocabulary import EOS
from nmtkit.decoding.search_batch import search_batch
from nmtkit.decoding.settings import BeamConfig, SearchConfig
from nmtkit.models.base import Decoder, as_decoder
from nmtkit.models.convs2s import ConvS2S
from nmtkit.models.hierarchical_attention import AttentionClassifier, HierarchicalAttention
from nmtkit.models.rnn.gnmt import Gnmt
from nmtkit.models.rnn.luong import Luong
from nmtkit.models.rnn.pointer_generator import PointerGenerator
from nmtkit.models.rnn.rnnsearch import RnnSearch
from nmtkit.models.transformer import Transformer
from nmtkit.training.config import TrainingConfig
from nmtkit.training.losses.likelihood import likelihood
from nmtkit.zoo.captioning.show_and_tell import ShowAndTell
from nmtkit.zoo.captioning.show_attend_tell import ShowAttendTell
from nmtkit.zoo.lstmn.language_model import Lstmn
from nmtkit.zoo.snail import Snail

from .attention_floors import BareLuong, BarePointerGenerator, BareRnnSearch
from .floors import SMOOTHING
from .models_floors import (
    LABELS,
    REGION,
    BareClassifier,
    BareConvS2S,
    BareGnmt,
    BareLstmn,
    BareMixture,
    BareShowAndTell,
    BareShowAttendTell,
    BareSnail,
)
from .pretraining import DROPOUT, TextStream, Work
from .pretraining_floors import WORDS
from .timing import summary, time_in_turns

TOGETHER = 64
"""Examples in a batch, of training and of a search."""
BATCHES = 8
"""Different ones."""
ALONE = 8
"""Texts that are written one at a time."""
WRITTEN = 30
"""Tokens of a text that is written: no search ends before."""
SHAPES: dict[str, dict[str, int]] = {
    "small": {},
    "toy": {"layers": 2, "filters": 8}
    | dict.fromkeys(["embedding_size", "hidden_size", "attention_size", "feed_forward_size"], 16),
}
"""Of `small` sizes are nmtkit's defaults."""
SAID = f"Training, updates a second of {TOGETHER} examples, V {WORDS:,}, Adam, dropout 0.1"


def rows(draw: np.random.Generator, count: int, least: int, most: int) -> list[list[int]]:
    """Texts of random words, without EOS."""
    return [
        draw.integers(5, WORDS, length).tolist() for length in draw.integers(least, most + 1, count)
    ]


def pairs(draw: np.random.Generator, count: int) -> Batch:
    """Sentences and translations."""
    return collate(rows(draw, count, 20, 25), rows(draw, count, 20, 25))


def articles(draw: np.random.Generator, count: int) -> Batch:
    """A quarter as many, with summaries."""
    count = (count + 3) // 4
    return collate(rows(draw, count, 180, 200), rows(draw, count, 30, 40))


def running_texts(draw: np.random.Generator, count: int) -> Batch:
    """For a language model."""
    return collate(None, rows(draw, count, 32, 32))


def captioned(draw: np.random.Generator, count: int) -> Batch:
    """Pictures of 7 x 7 regions."""
    features = draw.standard_normal((count, 49, REGION), dtype=np.float32)
    return collate(None, rows(draw, count, 9, 13), features=[*features])


def labelled(draw: np.random.Generator, count: int) -> Batch:
    """Texts of one sentence."""
    return collate(rows(draw, count, 64, 80), labels=list(draw.integers(0, LABELS, (count, 1, 1))))


def documents(draw: np.random.Generator, count: int) -> Batch:
    """Labelled texts of 6 to 9 sentences."""
    texts = [
        [word for sentence in rows(draw, number, 5, 25) for word in (*sentence, EOS)][:-1]
        for number in draw.integers(6, 10, count)
    ]
    return collate(texts, labels=list(draw.integers(0, LABELS, (count, 1, 1))))


PAIR, CAPTION, LABEL = (
    {"src": WORDS, "tgt": WORDS},
    {"features": REGION, "tgt": WORDS},
    {"src": WORDS, "labels": LABELS},
)


class ReadyStream(TextStream):
    """The same few batches again and again."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = cycle(batches)

    def __next__(self) -> Batch:
        return next(self.batches)


@dataclass(frozen=True)
class ModelWork(Work):
    """A model and its floor, with batches of random examples."""

    make: Callable[[np.random.Generator, int], Batch] = running_texts

    def shape(self, name: str) -> Mapping[str, int]:
        return SHAPES[name]

    def stream(self, training: TrainingConfig) -> TextStream:
        draw = np.random.default_rng(1)
        return ReadyStream([self.make(draw, TOGETHER) for _ in range(BATCHES)])


LABEL = {"src": WORDS, "labels": LABELS}
PAIR = {"src": WORDS, "tgt": WORDS}
CAPTION = {"features": REGION, "tgt": WORDS}
MIXTURE = {"tie": "all", "experts": {}}
WORK = {
    "hierarchical_attention": ModelWork(
        HierarchicalAttention, BareClassifier, {}, {}, LABEL, documents
    ),
    "attention_classifier": ModelWork(AttentionClassifier, BareClassifier, {}, {}, LABEL, labelled),
    "convs2s": ModelWork(ConvS2S, BareConvS2S, {}, {}, PAIR, pairs),
    "rnnsearch": ModelWork(RnnSearch, BareRnnSearch, {}, {"layers": 1}, PAIR, pairs),
    "luong": ModelWork(Luong, BareLuong, {}, {"layers": 2}, PAIR, pairs),
    "pointer_generator": ModelWork(
        PointerGenerator, BarePointerGenerator, {}, {"layers": 1, "coverage": True}, PAIR, articles
    ),
    "gnmt": ModelWork(Gnmt, BareGnmt, {}, {}, PAIR, pairs),
    "experts": ModelWork(
        Transformer, BareMixture, {"label_smoothing": SMOOTHING}, MIXTURE, PAIR, pairs
    ),
    "show_and_tell": ModelWork(ShowAndTell, BareShowAndTell, {}, {}, CAPTION, captioned),
    "show_attend_tell": ModelWork(ShowAttendTell, BareShowAttendTell, {}, {}, CAPTION, captioned),
    "lstmn": ModelWork(Lstmn, BareLstmn, {}),
    "snail": ModelWork(Snail, BareSnail, {}),
}
"""By the model; `experts` is a Transformer with a mixture of them in every second layer."""


def check_same_function(works: Mapping[str, Work], shape: str) -> None:
    """Compares the losses of each model and its floor without dropout.

    Raises:
        NmtkitError: they do not do the same work.
    """
    for name, work in works.items():
        model, floor = work.build(shape, dict.fromkeys(DROPOUT, 0.0))
        training = work.training(1)
        batch = next(work.stream(training))
        log_probs = model.eval()(batch, keep=batch.loss_mask)
        total, _ = likelihood(log_probs, batch, model.vocabulary_size, training.label_smoothing)
        mean, theirs = (
            float(total.detach()) / batch.n_tokens,
            float(floor.eval().loss(batch).detach()),
        )
        if not math.isclose(mean, theirs, rel_tol=1e-5):
            raise NmtkitError(
                f"{name}: the floor is another function: its loss is {theirs}, ours {mean}"
            )
        size = sum(one.numel() for one in model.parameters())
        terminal.say(
            f"{name}: {size:,} parameters; with equal weights the loss is {mean:.5f}, the floor's {theirs:.5f}"
        )


def write(model: Decoder, batch: Batch, config: SearchConfig, together: int) -> None:
    """Searches for the texts of a batch, so many at a time; of several searches a core has one."""
    parts = [
        batch.select(slice(first, first + together)) for first in range(0, batch.size, together)
    ]

    def search(part: Batch) -> None:
        search_batch(model, part, config)

    if together == 1:  # one text at a time has all threads
        for part in parts:
            search(part)
    else:
        devices.map_batches(search, parts, torch.device("cpu"))


def measure_writing(
    works: Mapping[str, ModelWork], shape: str, beam_size: int, rounds: int, threads: int
) -> list[dict[str, Any]]:
    """One row for each model that writes: texts a second, a batch for each thread at a time and one by one."""
    limits = {"max_length": WRITTEN, "max_length_ratio": 0.0, "min_length": WRITTEN - 1}
    config, found = BeamConfig(beam_size=beam_size, **limits), []
    for name, work in works.items():
        devices.prepare(torch.device("cpu"), "highest", threads)
        model = as_decoder(work.build(shape)[0].eval())
        if model is None:
            continue
        made = work.make(np.random.default_rng(2), threads * TOGETHER)
        reads = made.inputs is not ABSENT
        batch = replace(made, targets=ABSENT) if reads else Batch(prompt=made.targets.ids[:, :8])
        jobs = {
            "together": partial(write, model, batch, config, TOGETHER),
            "alone": partial(write, model, batch.select(slice(0, ALONE)), config, 1),
        }
        timings = time_in_turns(jobs, rounds, torch.device("cpu"))
        together, alone = (
            timings["together"].per_second(batch.size),
            timings["alone"].per_second(ALONE),
        )
        ratios = [many / one for many, one in zip(together, alone, strict=True)]
        found.append({"model": name, "together": together, "alone": alone, "ratios": ratios})
    return found


def show_writing(found: list[dict[str, Any]], beam_size: int) -> None:
    cells = [
        [
            row["model"],
            summary(row["together"], "", 1),
            summary(row["alone"], "", 1),
            summary(row["ratios"], "", 1),
        ]
        for row in found
    ]
    title = f"Writing {WRITTEN} tokens with random weights, texts a second, beam {beam_size}"
    terminal.table(title, ["model", f"{TOGETHER} together", "alone", "ratio"], cells)
