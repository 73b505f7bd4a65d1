"""Training speed of nmtkit's own training loop beside the floors, on the same batches, in turns."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Literal

import torch

from nmtkit import console, device
from nmtkit.data.batch import Batch, BatchConfig, BatchStream
from nmtkit.data.store import Store
from nmtkit.errors import DataError, NmtkitError
from nmtkit.models.base import MODELS, ModelConfig, Seq2Seq, VocabularySizes
from nmtkit.models.rnnsearch import RnnSearchConfig
from nmtkit.models.transformer import TransformerConfig
from nmtkit.training.checkpoint import Checkpoints
from nmtkit.training.loop import Step, TrainingConfig, train
from nmtkit.training.losses import likelihood

from .floors import SMOOTHING, BareRnnSearch, BareTransformer, Floor

CPU = torch.device("cpu")
BATCH_TOKENS = 2048
SEED = 1
LR, BETAS = 3e-4, (0.9, 0.98)
TRANSFORMER = TransformerConfig(tie="all", dropout=0.1, attention_dropout=0.1, activation_dropout=0.1)
RNNSEARCH = RnnSearchConfig()


@dataclass(frozen=True)
class Arithmetic:
    """How precisely matrices are multiplied."""

    name: str
    matmul: device.MatmulPrecision
    autocast: Literal["fp32", "bf16"]


FP32 = Arithmetic("fp32", "highest", "fp32")
ARITHMETICS = [
    FP32,
    Arithmetic("fp32, matmul medium", "medium", "fp32"),
    Arithmetic("bf16 autocast", "highest", "bf16"),
]


@dataclass(frozen=True)
class Speed:
    """One row of the result."""

    model: str
    arithmetic: str
    engine: str
    tokens_per_second: list[float]
    """Target tokens, EOS counted, padding not; one figure a block."""
    ratios: list[float]
    """To the floor's block of the same round; empty for the floor itself."""

    def row(self) -> list[str]:
        ratios = [f"{value:.2f}" for value in _spread(self.ratios)] if self.ratios else ["-", "-", "-"]
        return [self.model, self.arithmetic, self.engine, f"{median(self.tokens_per_second):,.0f}", *ratios]


def _spread(values: Sequence[float]) -> list[float]:
    return [min(values), median(values), max(values)]


class Trained:
    """nmtkit: a block is what `nmtkit.training.loop.train` does between two `Step` events, loading included."""

    def __init__(
        self, name: str, config: ModelConfig, how: Arithmetic, store: Store, updates: int, folder: Path
    ) -> None:
        self.name = name
        training = TrainingConfig(
            lr=LR,
            betas=list(BETAS),
            label_smoothing=SMOOTHING,
            clip_norm=1.0,
            precision=how.autocast,
            matmul_precision=how.matmul,
            log_every=updates,
            validate_every=10**9,
            save_every=10**9,
            max_updates=10**9,
        )
        self._events = train(
            build(config, store.tgt_size), stream(store), training, _no_evaluation, Checkpoints(folder), CPU
        )
        next(self._events)  # the state before the first update is saved

    def block(self) -> int:
        event = next(self._events)
        assert isinstance(event, Step)
        assert event.skipped == 0
        return event.tokens


def _no_evaluation(model: Seq2Seq) -> dict[str, float]:
    raise AssertionError("no validation is due")


class Bare:
    """A floor: forward, backward, one step of fused Adam. Its batches are loaded before the clock starts."""

    def __init__(self, floor: Floor, how: Arithmetic, store: Store, updates: int) -> None:
        self.name = "bare torch (the floor)"
        self._floor = floor.train()
        self._bf16 = how.autocast == "bf16"
        self._stream = stream(store)
        self._updates = updates
        self._optimizer = torch.optim.Adam(floor.parameters(), lr=LR, betas=BETAS, fused=True)
        self._loaded = list(islice(self._stream, updates))

    def block(self) -> int:
        tokens = 0
        for batch in self._loaded:
            self._optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=self._bf16):
                loss = self._floor.loss(batch)
            torch.autograd.backward(loss)
            self._optimizer.step()
            assert batch.tgt_mask is not None
            tokens += int(batch.tgt_mask.sum())
        return tokens

    def load(self) -> None:
        """The batches of the next block."""
        self._loaded = list(islice(self._stream, self._updates))


def stream(store: Store) -> BatchStream:
    return BatchStream(store, BatchConfig(batch_tokens=BATCH_TOKENS), SEED)


def build(config: ModelConfig, vocabulary: int) -> Seq2Seq:
    torch.manual_seed(SEED)
    return MODELS.get(config.kind)(config, VocabularySizes(vocabulary, vocabulary, True))


def check_store(store: Store) -> None:
    """The models here have one vocabulary for both sides.

    Raises:
        DataError: the data were preprocessed with two.
    """
    most = max(int(store.src(number).max(initial=0)) for number in range(len(store)))
    if most >= store.tgt_size:
        raise DataError(
            f"{store.folder}: source and target have vocabularies of their own; preprocess with a joint one"
        )


def check_same_function(model: Seq2Seq, floor: Floor, batch: Batch) -> str:
    """Gives the floor our model's weights and compares their losses without dropout: they must do the same work.

    Raises:
        NmtkitError: they do not.
    """
    kind = model.config.kind
    floor.take_weights(model.state_dict())
    sizes = {sum(p.numel() for p in network.parameters()) for network in (model, floor)}
    if len(sizes) != 1:
        raise NmtkitError(f"{kind}: the floor has another number of parameters than ours: {sizes}")
    loss = likelihood(model.eval()(batch, keep=batch.tgt_mask), batch, model.sizes.tgt, SMOOTHING)
    mean, theirs = float(loss.total.detach()) / loss.tokens, float(floor.eval().loss(batch).detach())
    if not math.isclose(mean, theirs, rel_tol=1e-5):
        raise NmtkitError(f"{kind}: the floor is another function: its loss is {theirs}, ours {mean}")
    return f"{kind}: {sizes.pop():,} parameters; with equal weights the loss is {mean:.5f}, the floor's {theirs:.5f}"


def in_turns(
    model: str, how: Arithmetic, floor: Bare, ours: Sequence[Trained], blocks: int, threads: int
) -> list[Speed]:
    """Block after block, each engine once a round, in an order that turns; the first round is thrown away."""
    engines: list[Bare | Trained] = [floor, *ours]
    speeds: dict[str, list[float]] = {engine.name: [] for engine in engines}
    for number in range(blocks + 1):
        first = number % len(engines)
        tokens = {}
        for engine in [*engines[first:], *engines[:first]]:
            device.prepare(CPU, how.matmul, threads)
            begun = time.perf_counter()
            tokens[engine.name] = engine.block()
            seconds = time.perf_counter() - begun
            if number > 0:
                speeds[engine.name].append(tokens[engine.name] / seconds)
            if isinstance(engine, Bare):
                engine.load()
        assert len(set(tokens.values())) == 1, f"not the same batches: {tokens}"
    base = speeds[floor.name]
    rows = [Speed(model, how.name, floor.name, base, [])]
    for engine in ours:
        own = speeds[engine.name]
        rows.append(Speed(model, how.name, engine.name, own, [a / b for a, b in zip(own, base, strict=True)]))
    return rows


def transformer(store: Store, folder: Path, blocks: int, updates: int, threads: int) -> Iterator[Speed]:
    """The floor drops out everywhere at 0.1; nmtkit does so too, or as it does by default."""
    by_default = TRANSFORMER.changed({"attention_dropout": 0.0, "activation_dropout": 0.0})
    floor = BareTransformer(TRANSFORMER, store.tgt_size, TRANSFORMER.dropout)
    console.say(check_same_function(build(TRANSFORMER, store.tgt_size), floor, next(stream(store))))
    weights = build(TRANSFORMER, store.tgt_size).state_dict()
    for how in ARITHMETICS:
        place = folder / how.name
        ours = [
            Trained("nmtkit, dropout as the floor", TRANSFORMER, how, store, updates, place / "same"),
            Trained("nmtkit, its default dropout", by_default, how, store, updates, place / "default"),
        ]
        floor.take_weights(weights)
        yield from in_turns("transformer", how, Bare(floor, how, store, updates), ours, blocks, threads)


def rnnsearch(store: Store, folder: Path, blocks: int, updates: int, threads: int) -> Iterator[Speed]:
    """The floor drops out where nmtkit does."""
    floor = BareRnnSearch(RNNSEARCH, store.tgt_size, RNNSEARCH.dropout)
    console.say(check_same_function(build(RNNSEARCH, store.tgt_size), floor, next(stream(store))))
    ours = [Trained("nmtkit", RNNSEARCH, FP32, store, updates, folder / "rnnsearch")]
    yield from in_turns("rnnsearch", FP32, Bare(floor, FP32, store, updates), ours, blocks, threads)


def show(speeds: Sequence[Speed]) -> None:
    console.table(
        f"training, target tokens a second (batches of {BATCH_TOKENS:,} padded tokens a side, Adam, smoothing "
        f"{SMOOTHING}; nmtkit also clips at 1.0 and loads its batches); ratio to the floor's block of the same round",
        ["model", "arithmetic", "engine", "tok/s", "ratio min", "median", "max"],
        [speed.row() for speed in speeds],
    )


def as_dicts(speeds: Sequence[Speed]) -> list[dict[str, object]]:
    return [asdict(speed) for speed in speeds]
