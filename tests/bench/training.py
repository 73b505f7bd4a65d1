"""Training speed of nmtkit's own training loop beside the floors, on the same batches, in turns."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Literal

import torch

from nmtkit import console
from nmtkit.core import device
from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.data.batch import Batch, BatchConfig, BatchStream
from nmtkit.data.store import Store
from nmtkit.experiment.bench import peak_memory_mib, read_clock, reset_peak_memory, spread
from nmtkit.models.base import MODELS, ModelConfig, Seq2Seq, VocabularySizes
from nmtkit.models.rnnsearch import RnnSearchConfig
from nmtkit.models.transformer import TransformerConfig
from nmtkit.training.checkpoint import CheckpointManager
from nmtkit.training.config import TrainingConfig
from nmtkit.training.events import Step
from nmtkit.training.loop import train
from nmtkit.training.objectives.likelihood import likelihood

from .floors import SMOOTHING, BareRnnSearch, BareTransformer, Floor, load

BATCH_TOKENS = 2048
SEED = 1
CPU = torch.device("cpu")
LR, BETAS = 3e-4, (0.9, 0.98)
SMALL = TransformerConfig(tie="all", dropout=0.1, attention_dropout=0.1, activation_dropout=0.1)
BASE = SMALL.changed(
    {"hidden_size": 512, "feed_forward_size": 2048, "heads": 8, "encoder_layers": 6, "decoder_layers": 6}
)
TOY = SMALL.changed({"hidden_size": 16, "feed_forward_size": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1})
SHAPES = {"toy": TOY, "small": SMALL, "base": BASE}
RNNSEARCH = RnnSearchConfig()
TOY_RNNSEARCH = RnnSearchConfig(embedding_size=8, hidden_size=8, attention_size=8, maxout_size=8)


@dataclass(frozen=True)
class Arithmetic:
    """How precisely matrices are multiplied."""

    name: str
    matmul: device.MatmulPrecision
    autocast: Literal["fp32", "bf16"]


FP32 = Arithmetic("fp32", "highest", "fp32")
BF16 = Arithmetic("bf16 autocast", "highest", "bf16")
ARITHMETICS = {"fp32": FP32, "medium": Arithmetic("fp32, matmul medium", "medium", "fp32"), "bf16": BF16}
"""On a CUDA device `medium` is tf32."""


@dataclass(frozen=True)
class Work:
    """What is trained on, where, and for how long."""

    store: Store
    folder: Path
    """For the states that training saves."""
    device: torch.device
    threads: int
    blocks: int
    """Measured blocks of each engine."""
    updates: int
    """In a block."""
    batch_tokens: int = BATCH_TOKENS

    def stream(self) -> BatchStream:
        return BatchStream(self.store, BatchConfig(batch_tokens=self.batch_tokens), SEED)

    def some_batch(self) -> Batch:
        """Small enough for a CPU."""
        return next(BatchStream(self.store, BatchConfig(batch_tokens=BATCH_TOKENS), SEED))


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
    peak_mib: float
    """The most memory while it ran; what the other engines keep there is in it. See `peak_memory_mib`."""

    def row(self) -> list[str]:
        ratios = [f"{value:.2f}" for value in _spread(self.ratios)] if self.ratios else ["-", "-", "-"]
        speed = [f"{median(self.tokens_per_second):,.0f}", spread(self.tokens_per_second)]
        return [self.model, self.arithmetic, self.engine, *speed, *ratios, f"{self.peak_mib:,.0f}"]


def _spread(values: Sequence[float]) -> list[float]:
    return [min(values), median(values), max(values)]


class Trained:
    """nmtkit: a block is so many updates of `nmtkit.training.loop.train`, loading included."""

    def __init__(self, name: str, config: ModelConfig, how: Arithmetic, work: Work, folder: Path) -> None:
        self.name = name
        training = TrainingConfig(
            lr=LR,
            betas=list(BETAS),
            label_smoothing=SMOOTHING,
            clip_norm=1.0,
            precision=how.autocast,
            matmul_precision=how.matmul,
            log_every=work.updates,
            validate_every=10**9,
            save_every=10**9,
            max_updates=10**9,
        )
        model = build(config, work.store.tgt_size)
        self._events = train(model, work.stream(), training, _no_evaluation, CheckpointManager(folder), work.device)
        self._updates = work.updates
        next(self._events)  # the state before the first update is saved

    def block(self) -> int:
        tokens = 0
        for event in self._events:
            assert isinstance(event, Step)
            assert event.skipped == 0
            tokens += event.tokens
            if event.update % self._updates == 0:  # the first update has an event of its own
                break
        return tokens


def _no_evaluation(model: Seq2Seq) -> dict[str, float]:
    raise AssertionError("no validation is due")


class Bare:
    """A floor: forward, backward, one step of fused Adam. Its batches are loaded before the clock starts."""

    def __init__(self, floor: Floor, how: Arithmetic, work: Work) -> None:
        self.name = "bare torch (the floor)"
        self._floor = floor.to(work.device).train()
        self._device = work.device
        self._bf16 = how.autocast == "bf16"
        self._stream = work.stream()
        self._updates = work.updates
        self._optimizer = torch.optim.Adam(self._floor.parameters(), lr=LR, betas=BETAS, fused=True)
        self.load()

    def block(self) -> int:
        tokens = 0
        for batch in self._loaded:
            self._optimizer.zero_grad(set_to_none=True)
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
                loss = self._floor.loss(batch)
            torch.autograd.backward(loss)
            self._optimizer.step()
            tokens += batch.tokens
        return tokens

    def load(self) -> None:
        """The batches of the next block."""
        self._loaded = [load(batch, self._device) for batch in islice(self._stream, self._updates)]


def build(config: ModelConfig, vocabulary: int) -> Seq2Seq:
    torch.manual_seed(SEED)
    return MODELS.get(config.kind)(config, VocabularySizes(vocabulary, vocabulary, True))


def check_store(store: Store) -> None:
    """The models here have one vocabulary for both sides.

    Raises:
        DataError: the data were preprocessed with two.
    """
    most = max(int(store.ids("src", number).max(initial=0)) for number in range(len(store)))
    if most >= store.tgt_size:
        raise DataError(
            f"{store.folder}: source and target have vocabularies of their own; preprocess with a joint one"
        )


def check_same_function(model: Seq2Seq, floor: Floor, batch: Batch) -> str:
    """Gives the floor our model's weights and compares their losses without dropout: they must do the same work.

    All on the CPU, whatever device is to be measured: what they compute is the same there.

    Raises:
        NmtkitError: they do not.
    """
    kind = model.config.kind
    floor.take_weights(model.state_dict())
    sizes = {sum(p.numel() for p in network.parameters()) for network in (model, floor)}
    if len(sizes) != 1:
        raise NmtkitError(f"{kind}: the floor has another number of parameters than ours: {sizes}")
    loss = likelihood(model.eval()(batch, keep=batch.tgt_mask), batch, model.sizes.tgt, SMOOTHING)
    mean, theirs = float(loss.total.detach()) / loss.tokens, float(floor.eval().loss(load(batch, CPU)).detach())
    if not math.isclose(mean, theirs, rel_tol=1e-5):
        raise NmtkitError(f"{kind}: the floor is another function: its loss is {theirs}, ours {mean}")
    return f"{kind}: {sizes.pop():,} parameters; with equal weights the loss is {mean:.5f}, the floor's {theirs:.5f}"


def in_turns(model: str, how: Arithmetic, floor: Bare | None, ours: Sequence[Trained], work: Work) -> list[Speed]:
    """Block after block, each engine once a round, in an order that turns; the first round is thrown away."""
    engines: list[Bare | Trained] = [*([] if floor is None else [floor]), *ours]
    speeds: dict[str, list[float]] = {engine.name: [] for engine in engines}
    peaks = dict.fromkeys(speeds, 0.0)
    for number in range(work.blocks + 1):
        first = number % len(engines)
        tokens = {}
        for engine in [*engines[first:], *engines[:first]]:
            device.prepare(work.device, how.matmul, work.threads)
            reset_peak_memory(work.device)
            begun = read_clock(work.device)
            tokens[engine.name] = engine.block()
            seconds = read_clock(work.device) - begun
            peaks[engine.name] = max(peaks[engine.name], peak_memory_mib(work.device))
            if number > 0:
                speeds[engine.name].append(tokens[engine.name] / seconds)
            if isinstance(engine, Bare):
                engine.load()
        assert len(set(tokens.values())) == 1, f"not the same batches: {tokens}"
    rows = []
    for engine in engines:
        own = speeds[engine.name]
        base = own if floor is None or engine is floor else speeds[floor.name]
        ratios = [] if base is own else [a / b for a, b in zip(own, base, strict=True)]
        rows.append(Speed(model, how.name, engine.name, own, ratios, peaks[engine.name]))
    return rows


def transformer(
    work: Work, config: TransformerConfig = SMALL, arithmetics: Iterable[Arithmetic] = tuple(ARITHMETICS.values())
) -> Iterator[Speed]:
    """The floor drops out everywhere at 0.1; nmtkit does so too, or as it does by default."""
    by_default = config.changed({"attention_dropout": 0.0, "activation_dropout": 0.0})
    vocabulary = work.store.tgt_size
    floor = BareTransformer(config, vocabulary, config.dropout)
    console.say(check_same_function(build(config, vocabulary), floor, work.some_batch()))
    weights = build(config, vocabulary).state_dict()
    for how in arithmetics:
        place = work.folder / how.name
        ours = [
            Trained("nmtkit, dropout as the floor", config, how, work, place / "same"),
            Trained("nmtkit, its default dropout", by_default, how, work, place / "default"),
        ]
        floor.take_weights(weights)
        yield from in_turns("transformer", how, Bare(floor, how, work), ours, work)


def rnnsearch(work: Work, config: RnnSearchConfig = RNNSEARCH) -> Iterator[Speed]:
    """The floor drops out where nmtkit does."""
    floor = BareRnnSearch(config, work.store.tgt_size, config.dropout)
    console.say(check_same_function(build(config, work.store.tgt_size), floor, work.some_batch()))
    ours = [Trained("nmtkit", config, FP32, work, work.folder / "rnnsearch")]
    yield from in_turns("rnnsearch", FP32, Bare(floor, FP32, work), ours, work)


def show(speeds: Sequence[Speed], work: Work) -> None:
    console.table(
        f"training, target tokens a second (batches of {work.batch_tokens:,} padded tokens a side, Adam, smoothing "
        f"{SMOOTHING}; nmtkit also clips at 1.0 and loads its batches); ratio to the floor's block of the same round",
        ["model", "arithmetic", "engine", "tok/s", "min-max", "ratio min", "median", "max", "peak MiB"],
        [speed.row() for speed in speeds],
    )


def as_dicts(speeds: Sequence[Speed]) -> list[dict[str, object]]:
    return [asdict(speed) for speed in speeds]
