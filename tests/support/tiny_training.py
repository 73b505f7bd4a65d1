"""A tiny model and stream for the tests of training."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nmtkit.data.batches.batch import Batch, CopySource, Inputs, Targets
from nmtkit.models.base import Seq2Seq, VocabularySizes
from nmtkit.models.rnn.rnn_encdec import RnnEncDec, RnnEncDecConfig
from nmtkit.training.checkpoints.manager import CheckpointManager
from nmtkit.training.config import TrainingConfig
from nmtkit.training.events import Event, Step
from nmtkit.training.loop import train
from tests.support.gradients import training_settings
from tests.support.seeds import moved

CPU = torch.device("cpu")
WORDS = 12
SIZES = VocabularySizes({"src": WORDS, "tgt": WORDS}, shared=False)
TINY = RnnEncDecConfig(
    embedding_size=8,
    hidden_size=8,
    maxout_size=None,
    feed_context=False,
    tie="decoder",
    dropout=0.0,
)
Evaluate = Callable[[Seq2Seq], dict[str, float]]


def tiny_model(
    seed: int = 7, dropout: float = 0.0, dtype: torch.dtype = torch.float32
) -> RnnEncDec:
    """A GRU that reads the source, and another that goes on from its last state; the output layer is tied."""
    torch.manual_seed(moved(seed))
    return RnnEncDec(TINY.changed({"dropout": dropout}), SIZES).to(dtype)


def tiny_batch(seed: int, size: int = 4, length: int = 6) -> Batch:
    """Random sources of 1 to `length` words; the target is the source; both end in EOS (3)."""
    draw = torch.Generator().manual_seed(moved(seed))
    lengths = torch.randint(1, length + 1, (size,), generator=draw)
    columns = torch.arange(length + 1)
    mask = columns <= lengths[:, None]
    words = torch.randint(4, WORDS, (size, length + 1), generator=draw)
    src = torch.where(columns == lengths[:, None], 3, words) * mask
    tgt_in = torch.cat([torch.full((size, 1), 2), src[:, :-1]], 1) * mask
    inputs = Inputs(mask, lengths + 1, src, copy=CopySource(src))
    return Batch(inputs, Targets(tgt_in, src, src, mask))


class TinyStream:
    """Epochs of `per_epoch` batches; each batch depends on its epoch and number alone."""

    def __init__(self, per_epoch: int = 5, size: int = 4) -> None:
        self.per_epoch, self.size = per_epoch, size
        self.drawn = 0

    @property
    def epoch(self) -> int:
        return self.drawn // self.per_epoch

    def __next__(self) -> Batch:
        self.drawn += 1
        return tiny_batch(self.drawn - 1, self.size)

    def skip(self) -> None:
        self.drawn += 1

    def state(self) -> dict[str, int]:
        return {"epoch": self.epoch, "examples": self.drawn % self.per_epoch}

    def restore(self, state: Mapping[str, int]) -> None:
        self.drawn = state["epoch"] * self.per_epoch + state["examples"]


class FromList(TinyStream):
    """Given batches, over and over."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        super().__init__(len(batches))
        self.batches = batches

    def __next__(self) -> Batch:
        self.drawn += 1
        return self.batches[(self.drawn - 1) % self.per_epoch]


class Pace(TinyStream):
    """A stream, and a clock by which a model reads a batch in so many seconds; nothing else takes any time."""

    def __init__(self, seconds: float = 0.0, **stream: int) -> None:
        super().__init__(**stream)
        self.seconds = seconds
        self.begun = self.now = 1000.0

    def clock(self) -> float:
        return self.now

    @property
    def spent(self) -> float:
        return self.now - self.begun

    def tick(self) -> None:
        self.now += self.seconds

    def slow_down(self, model: Seq2Seq) -> None:
        read = model.read

        def slowly(*args: Any) -> Any:
            self.tick()
            return read(*args)

        model.read = slowly  # type: ignore[method-assign]  # replaced for one test

    def restore(self, state: Mapping[str, int]) -> None:
        self.now += 77  # loading takes its time, which must not count
        super().restore(state)

    def evaluation(self, *seconds: float) -> Evaluate:
        """One that takes so many seconds: the first time, the second time, and so on."""
        each = cycle(seconds)

        def evaluate(model: Seq2Seq) -> dict[str, float]:
            self.now += next(each)
            return {"bleu": 1.0}

        return evaluate


def settings(**given: Any) -> TrainingConfig:
    basics: dict[str, Any] = {"lr": 0.01, "best_metric": "bleu", "max_updates": 6, "log_every": 2}
    return TrainingConfig.model_validate(training_settings(**basics | given))


def constant_score(model: Seq2Seq) -> dict[str, float]:
    return {"bleu": 1.0}


def run(
    folder: Path,
    config: TrainingConfig,
    model: RnnEncDec | None = None,
    stream: TinyStream | None = None,
    evaluate: Evaluate = constant_score,
    **how: Any,
) -> tuple[RnnEncDec, list[Event]]:
    """Trains to the end; `how` are further arguments of `train`."""
    model = model or tiny_model()
    return model, list(start(folder, config, model, stream or TinyStream(), evaluate, **how))


def start(
    folder: Path,
    config: TrainingConfig,
    model: Seq2Seq,
    stream: Any,
    evaluate: Evaluate = constant_score,
    device: torch.device = CPU,
    **how: Any,
) -> Iterator[Event]:
    clock = time.monotonic
    if isinstance(stream, Pace):
        clock = stream.clock
        stream.slow_down(model)
    return train(
        model, stream, config, evaluate, CheckpointManager(folder), device, clock=clock, **how
    )


def steps(events: list[Event]) -> list[Step]:
    return [event for event in events if isinstance(event, Step)]


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    return all(
        torch.equal(x, y)
        for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )


def same_states(a: Path, b: Path, but: Collection[str] = ()) -> bool:
    """Whether two folders have the same state, bit for bit; some facts may differ."""
    (tensors, facts), (others, other_facts) = (
        CheckpointManager(a).load_last(),
        CheckpointManager(b).load_last(),
    )
    same_facts = all(facts[name] == other_facts[name] for name in facts if name not in but)
    return (
        same_facts
        and tensors.keys() == others.keys()
        and all(torch.equal(tensors[n], others[n]) for n in tensors)
    )


def ended(events: list[Event]) -> tuple[str, int]:
    """Why training stopped, and after which update."""
    return events[-1].reason, events[-1].update
