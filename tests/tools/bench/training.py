"""Training speed: of nmtkit's loop beside bare torch on the same batches, and of recipes on random words."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Literal

import torch

from nmtkit.cli import terminal
from nmtkit.config import load as load_recipe
from nmtkit.core import device
from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.data.batches.batch import Batch
from nmtkit.data.batches.batch_stream import BatchConfig, BatchStream, Corruption
from nmtkit.data.batches.store import Store
from nmtkit.data.tokenizers.tokenizer import TokenizerConfig, WordTokenizer
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.experiment.bench import TrainingSpeed, measure_training, spread
from nmtkit.experiment.workloads import TrainingWorkload, synthetic_workload
from nmtkit.models.base import MODELS, ModelConfig, Seq2Seq, VocabularySizes
from nmtkit.models.transformer import TransformerConfig
from nmtkit.training.checkpoints.manager import CheckpointManager
from nmtkit.training.config import TrainingConfig
from nmtkit.training.events import Saved, Step
from nmtkit.training.loop import train
from nmtkit.training.losses.likelihood import likelihood
from nmtkit.training.losses.objective import build_objectives

from . import machine
from .floors import SMOOTHING, BareTransformer, load
from .timing import time_in_turns

FLOOR = "bare torch (the floor)"
BATCH_TOKENS = 2048
SEED = 1
CPU = torch.device("cpu")
LR, BETAS = 3e-4, (0.9, 0.98)
SMALL = TransformerConfig(tie="all", dropout=0.1, attention_dropout=0.1, activation_dropout=0.1)
BASE = SMALL.changed(
    {
        "hidden_size": 512,
        "feed_forward_size": 2048,
        "heads": 8,
        "encoder_layers": 6,
        "decoder_layers": 6,
    }
)
TOY = SMALL.changed(
    {
        "hidden_size": 16,
        "feed_forward_size": 16,
        "heads": 2,
        "encoder_layers": 1,
        "decoder_layers": 1,
    }
)
SHAPES = {"toy": TOY, "small": SMALL, "base": BASE}


@dataclass(frozen=True)
class Arithmetic:
    """How precisely matrices are multiplied."""

    name: str
    matmul: device.MatmulPrecision
    autocast: Literal["fp32", "bf16"]


FP32 = Arithmetic("fp32", "highest", "fp32")
BF16 = Arithmetic("bf16 autocast", "highest", "bf16")
ARITHMETICS = {
    "fp32": FP32,
    "medium": Arithmetic("fp32, matmul medium", "medium", "fp32"),
    "bf16": BF16,
}
"""On a CUDA device `medium` is tf32."""


@dataclass(frozen=True)
class Setup:
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
    corrupt: Corruption | None = None
    """What a pretraining objective makes of a batch."""

    def stream(self) -> BatchStream:
        return BatchStream(
            self.store, BatchConfig(batch_tokens=self.batch_tokens), SEED, corrupt=self.corrupt
        )


@dataclass(frozen=True)
class Speed:
    """One row of the result."""

    arithmetic: str
    engine: str
    tokens_per_second: list[float]
    """Target tokens, EOS counted, padding not; one figure a block."""
    ratios: list[float]
    """To the floor's block of the same round; empty for the floor itself."""
    peak_mib: float


def corruption(name: str) -> Corruption:
    """That of an objective of texts, with its defaults; its special tokens have the ids of some words."""
    config = TokenizerConfig(kind="whitespace", specials=["<mask>"], sentinels=100)
    tokenizers = Tokenizers(config, {"tgt": WordTokenizer.learn(config, ["."])})
    (objective,) = build_objectives(TrainingConfig.model_validate({"max_updates": 1, name: {}}))
    return lambda batch, generator: objective.corrupt(batch, generator, tokenizers)


def nmtkit_blocks(
    config: ModelConfig, arithmetic: Arithmetic, setup: Setup, folder: Path
) -> Iterator[int]:
    """Makes so many updates of `nmtkit.training.loop.train` for each block, loading included, and gives its tokens."""
    training = TrainingConfig(
        lr=LR,
        betas=list(BETAS),
        label_smoothing=SMOOTHING,
        clip_norm=1.0,
        precision=arithmetic.autocast,
        matmul_precision=arithmetic.matmul,
        log_every=setup.updates,
        validate_every=10**9,
        save_every=10**9,
        max_updates=10**9,
    )
    model = build(config, setup.store.tgt_size)
    tokens = 0
    for event in train(
        model, setup.stream(), training, lambda model: {}, CheckpointManager(folder), setup.device
    ):
        if isinstance(event, Saved):  # before the first update
            continue
        assert isinstance(event, Step)
        assert event.skipped == 0
        tokens += event.tokens
        if event.update % setup.updates == 0:  # the first update has an event of its own
            yield tokens
            tokens = 0


def floor_blocks(floor: BareTransformer, arithmetic: Arithmetic, setup: Setup) -> Iterator[int]:
    """Forward, backward, one step of fused Adam; all batches are loaded before the first block."""
    floor.to(setup.device).train()
    autocast = torch.autocast(
        setup.device.type, torch.bfloat16, enabled=arithmetic.autocast == "bf16"
    )
    optimizer = torch.optim.Adam(floor.parameters(), lr=LR, betas=BETAS, fused=True)
    count = (setup.blocks + 1) * setup.updates
    batches = iter([load(batch, setup.device) for batch in islice(setup.stream(), count)])
    while block := list(islice(batches, setup.updates)):
        for batch in block:
            optimizer.zero_grad(set_to_none=True)
            with autocast:
                loss = floor.loss(batch)
            torch.autograd.backward(loss)
            optimizer.step()
        yield sum(batch.tokens for batch in block)


def build(config: ModelConfig, vocabulary: int) -> Seq2Seq:
    torch.manual_seed(SEED)
    return MODELS.get(config.kind)(
        config, VocabularySizes({"src": vocabulary, "tgt": vocabulary}, shared=True)
    )


def check_store(store: Store) -> None:
    """Refuses data with two vocabularies: the models here have one for both sides."""
    highest = max(int(store.ids("src", number).max(initial=0)) for number in range(len(store)))
    if highest >= store.tgt_size:
        raise DataError(
            f"{store.folder}: source and target have vocabularies of their own; preprocess with a joint one"
        )


def check_same_function(model: Seq2Seq, floor: BareTransformer, batch: Batch) -> str:
    """Gives the floor our model's weights and compares their losses without dropout, on the CPU.

    Raises:
        NmtkitError: they do not do the same work.
    """
    kind = model.config.kind
    floor.take_weights(model.state_dict())
    sizes = {sum(p.numel() for p in network.parameters()) for network in (model, floor)}
    if len(sizes) != 1:
        raise NmtkitError(f"{kind}: the floor has another number of parameters than ours: {sizes}")
    total, _ = likelihood(
        model.eval()(batch, keep=batch.targets.mask), batch, model.sizes["tgt"], SMOOTHING
    )
    mean, theirs = (
        float(total.detach()) / batch.n_tokens,
        float(floor.eval().loss(load(batch, CPU)).detach()),
    )
    if not math.isclose(mean, theirs, rel_tol=1e-5):
        raise NmtkitError(
            f"{kind}: the floor is another function: its loss is {theirs}, ours {mean}"
        )
    return f"{kind}: {sizes.pop():,} parameters; with equal weights the loss is {mean:.5f}, the floor's {theirs:.5f}"


def beside_floor(
    setup: Setup, config: TransformerConfig, arithmetics: Iterable[Arithmetic]
) -> list[Speed]:
    """Bare torch and nmtkit's training in turns; they must get the same batches.

    The floor drops out everywhere at 0.1; nmtkit does so too, or as it does by default.
    """
    by_default = config.changed({"attention_dropout": 0.0, "activation_dropout": 0.0})
    configs = {"nmtkit, dropout as the floor": config, "nmtkit, its default dropout": by_default}
    model = build(config, setup.store.tgt_size)
    floor = BareTransformer(config, setup.store.tgt_size, config.dropout)
    few = next(replace(setup, batch_tokens=BATCH_TOKENS).stream())  # for a CPU
    terminal.say(check_same_function(model, floor, few))
    rows = []
    for arithmetic in arithmetics:
        floor.take_weights(model.state_dict())
        blocks = {FLOOR: floor_blocks(floor, arithmetic, setup)}
        for name, one in configs.items():
            blocks[name] = nmtkit_blocks(
                one, arithmetic, setup, setup.folder / f"{arithmetic.name}, {name}"
            )
        device.prepare(setup.device, arithmetic.matmul, setup.threads)
        jobs = {name: partial(next, made) for name, made in blocks.items()}
        timings = time_in_turns(jobs, setup.blocks, setup.device)
        tokens = {name: timing.results for name, timing in timings.items()}
        base = timings[FLOOR]
        assert all(counts == base.results for counts in tokens.values()), (
            f"not the same batches: {tokens}"
        )
        for name, timing in timings.items():
            speeds = [
                count / seconds
                for count, seconds in zip(timing.results, timing.seconds, strict=True)
            ]
            ratios = (
                [a / b for a, b in zip(base.seconds, timing.seconds, strict=True)]
                if timing is not base
                else []
            )
            rows.append(Speed(arithmetic.name, name, speeds, ratios, timing.peak_mib))
    return rows


def show(speeds: Sequence[Speed], setup: Setup) -> None:
    rows = []
    for row in speeds:
        ratios = [f"{of(row.ratios):.2f}" if row.ratios else "-" for of in (min, median, max)]
        speed = [f"{median(row.tokens_per_second):,.0f}", spread(row.tokens_per_second)]
        rows.append([row.arithmetic, row.engine, *speed, *ratios, f"{row.peak_mib:,.0f}"])
    terminal.table(
        f"Transformer, target tokens a second (batches of {setup.batch_tokens:,} padded tokens a side, Adam, smoothing "
        f"{SMOOTHING}; nmtkit also clips at 1.0 and loads its batches); ratio to the floor's block of the same round",
        ["arithmetic", "engine", "tok/s", "min-max", "ratio min", "median", "max", "peak MiB"],
        rows,
    )


def made_up_workload(
    name: str,
    lengths: tuple[int, int],
    place: torch.device,
    threads: int,
    overrides: Sequence[str] = (),
) -> TrainingWorkload:
    """The training of a recipe with random words of these lengths, in fp32 unless the overrides say otherwise."""
    fixed = (
        f"training.threads={threads}",
        "training.matmul_precision=highest",
        "training.precision=fp32",
    )
    return synthetic_workload(load_recipe(name, [*fixed, *overrides]), lengths, place)


def pointer_generator(
    place: torch.device, threads: int, updates: int, rounds: int, toy: bool = False
) -> list[TrainingSpeed]:
    """See et al. 2017 with coverage on articles of 400 tokens, 8 a batch, with exact products and with faster ones."""
    overrides = [
        "stages=[]",
        "model.coverage=true",
        "training.objectives.coverage_weight=1.0",
        "batch.batch_tokens=3208",
    ]
    overrides += ["model.embedding_size=8", "model.hidden_size=8"] if toy else []
    rows = []
    for precision in ("highest", "medium"):
        given = [*overrides, f"training.matmul_precision={precision}"]
        workload = made_up_workload("cnndm-pointer-generator", (400, 100), place, threads, given)
        machine.look_at_pressure("before the updates", terminal.say)
        rows.append(measure_training(workload, "random words", updates, rounds, terminal.say))
    return rows
