"""Speed of training on texts alone: nmtkit's loop, corruption included, beside the same networks in bare torch.

Pretraining by each of its objectives, and language models by their likelihood.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count, cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

import torch

from nmtkit.cli import terminal
from nmtkit.core import device as devices
from nmtkit.core.errors import NmtkitError
from nmtkit.data.batches.batch import Batch, collate
from nmtkit.data.tokenizers.tokenizer import TokenizerConfig, WordTokenizer
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import SPECIALS, Vocabulary
from nmtkit.models.base import Model, VocabularySizes
from nmtkit.models.language.bert import Bert
from nmtkit.models.language.rnn_lm import RnnLM
from nmtkit.models.language.transformer_lm import TransformerLM
from nmtkit.training.checkpoints.manager import CheckpointManager
from nmtkit.training.config import TrainingConfig
from nmtkit.training.events import Step
from nmtkit.training.loop import train
from nmtkit.training.losses.objective import build_objectives
from nmtkit.zoo.electra import Electra
from nmtkit.zoo.elmo import Elmo
from nmtkit.zoo.pointer_sentinel import PointerSentinel
from nmtkit.zoo.xlnet import XLNet

from .pretraining_floors import (
    WORDS,
    BareElmo,
    BarePointerSentinel,
    BarePretraining,
    BareRnnLM,
    BareTransformerLM,
    BareXLNet,
    Floor,
)
from .timing import time_in_turns

TEXTS, LENGTH = 32, 64
"""Texts in a batch, and words in a text."""
SAID = f"Training on texts, updates a second of {TEXTS} texts of {LENGTH} words, V {WORDS:,}, Adam, dropout 0.1"
DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1}
SHAPES: dict[str, dict[str, int]] = {
    "toy": {"hidden_size": 16, "feed_forward_size": 16, "heads": 4, "layers": 2},
    "small": {},
    "base": {"hidden_size": 768, "feed_forward_size": 3072, "heads": 12, "layers": 12},
}
RECURRENT_SHAPES: dict[str, dict[str, int]] = {
    "toy": {"hidden_size": 16},
    "small": {},
    "base": {"hidden_size": 1500},
}
"""Of models without heads; of two layers."""


@dataclass(frozen=True)
class Work:
    """A model, its floor, and what they are trained by."""

    model: type[Model]
    floor: type[Floor]
    objectives: Mapping[str, Any]
    """As in `training`; empty for the likelihood."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the model, beside its shape and dropout."""
    columns: Mapping[str, int] = field(default_factory=lambda: {"tgt": WORDS})
    """What an example has; see `VocabularySizes`."""

    def shape(self, name: str) -> Mapping[str, int]:
        """The sizes of the model, some of which it may not have."""
        return (SHAPES if "heads" in self.model.Config.model_fields else RECURRENT_SHAPES)[name]

    def stream(self, training: TrainingConfig) -> "TextStream":
        """Its batches: the same ones from every new stream."""
        return TextStream(training)

    def build(self, shape: str, dropout: Mapping[str, float] = DROPOUT) -> tuple[Model, Floor]:
        """The model and its floor, of as many parameters; where one can be copied to the other, of the same weights."""
        keys = self.model.Config.model_fields
        given = {
            key: value for key, value in {**dropout, **self.shape(shape)}.items() if key in keys
        }
        config = self.model.Config.model_validate({**given, **self.settings})
        model = self.model(config, VocabularySizes(self.columns, shared=True))
        floor = self.floor(config)
        counts = {sum(one.numel() for one in network.parameters()) for network in (model, floor)}
        if len(counts) != 1:
            raise NmtkitError(
                f"{config.kind}: the floor has another number of parameters than ours: {counts}"
            )
        floor.take_weights(model.state_dict())
        return model, floor

    def training(self, updates: int) -> TrainingConfig:
        """By Adam, without an end; an event after so many updates."""
        never = 10**9
        return TrainingConfig(
            **self.objectives, lr=1e-4, precision="fp32", matmul_precision="highest", max_updates=never,
            log_every=updates, validate_every=never, save_every=never,
        )  # fmt: skip


WORK = {
    "masked_words": Work(Bert, BarePretraining, {"objectives": {"masked_words": {}}}),
    "next_sentence": Work(
        Bert,
        BarePretraining,
        {"objectives": {"masked_words": {}, "next_sentence": 1.0}},
        {"next_sentence": True},
    ),
    "replaced_tokens": Work(
        Electra,
        BarePretraining,
        {"objectives": {"masked_words": {"mask": 1}, "replaced_tokens": 50.0}},
    ),
    "permutation": Work(XLNet, BareXLNet, {"objectives": {"permutation": {}}}),
    "both_directions": Work(Elmo, BareElmo, {"objectives": {"both_directions": {}}}),
    "transformer_lm": Work(TransformerLM, BareTransformerLM, {}),
    "rnn_lm": Work(RnnLM, BareRnnLM, {}),
    "pointer_sentinel": Work(PointerSentinel, BarePointerSentinel, {}),
}
"""By the objective, or by the language model."""


class TextStream:
    """Random texts, corrupted as a training does: the same ones from every new stream."""

    epoch = 0

    def __init__(self, training: TrainingConfig) -> None:
        config = TokenizerConfig(kind="whitespace", specials=["<mask>"])
        tokens = [*SPECIALS, "<mask>", *map(str, range(WORDS - len(SPECIALS) - 1))]
        self.tokenizers = Tokenizers(
            config, {"tgt": WordTokenizer(config, Vocabulary(tokens, ["<mask>"]))}
        )
        self.objectives, self.numbers = build_objectives(training), count()

    def __iter__(self) -> "TextStream":
        return self

    def __next__(self) -> Batch:
        generator = torch.Generator().manual_seed(next(self.numbers))
        batch = collate(
            None, torch.randint(5, WORDS, (TEXTS, LENGTH), generator=generator).tolist()
        )
        for objective in self.objectives:
            batch = objective.corrupt(batch, generator, self.tokenizers)
        return batch

    def state(self) -> dict[str, Any]:
        return {"epoch": 0}

    def restore(self, state: Mapping[str, Any]) -> None:
        raise NotImplementedError


def bare_blocks(
    floor: Floor, stream: Iterator[Batch], training: TrainingConfig, updates: int
) -> Iterator[float]:
    """Forward, backward, a step of fused Adam; batches are made before the clock starts. Gives the last loss."""
    floor.train()
    betas = training.betas[0], training.betas[1]
    optimizer = torch.optim.Adam(floor.parameters(), lr=training.lr, betas=betas, fused=True)
    batches = cycle([*islice(stream, 20)])
    while True:
        for batch in islice(batches, updates):
            optimizer.zero_grad(set_to_none=True)
            loss = floor.loss(batch)
            torch.autograd.backward(loss)
            optimizer.step()
        yield float(loss.detach())


def our_blocks(
    model: Model, stream: "TextStream", training: TrainingConfig, updates: int, folder: Path
) -> Iterator[float]:
    """Updates of `nmtkit.training.loop.train`, whose batches are made as they come. Gives the mean loss."""
    for event in train(
        model, stream, training, lambda model: {}, CheckpointManager(folder), torch.device("cpu")
    ):
        if isinstance(event, Step) and event.update % updates == 0:
            yield event.loss


def measure(
    works: Mapping[str, Work], shape: str, updates: int, rounds: int, threads: int, folder: Path
) -> list[dict[str, Any]]:
    """One row for each work: updates a second, and the ratio to bare torch in the same round."""
    rows = []
    for name, work in works.items():
        devices.prepare(torch.device("cpu"), "highest", threads)
        model, floor = work.build(shape)
        training = work.training(updates)
        ours = our_blocks(model, work.stream(training), training, updates, folder / name)
        bare = bare_blocks(floor, work.stream(training), training, updates)
        jobs = {"nmtkit": partial(next, ours), "bare torch": partial(next, bare)}
        timings = time_in_turns(jobs, rounds, torch.device("cpu"))
        begun = [timings[engine].results[0] for engine in jobs]
        if not math.isclose(*begun, rel_tol=0.2):
            raise NmtkitError(f"{name}: the losses {begun} are not those of one network")
        ratios = [
            b / a
            for a, b in zip(timings["nmtkit"].seconds, timings["bare torch"].seconds, strict=True)
        ]
        speeds = {engine: median(timings[engine].per_second(updates)) for engine in jobs}
        rows.append({"objective": name, **speeds, "ratios": ratios})
    return rows


def show(rows: list[dict[str, Any]], title: str) -> None:
    cells = [
        [row["objective"], f"{row['nmtkit']:.2f}", f"{row['bare torch']:.2f}", f"{median(row['ratios']):.2f}",
         f"{min(row['ratios']):.2f}-{max(row['ratios']):.2f}"]
        for row in rows
    ]  # fmt: skip
    terminal.table(title, ["objective or model", "nmtkit", "bare torch", "ratio", "min-max"], cells)
