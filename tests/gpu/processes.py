"""Two processes that share one device and talk over gloo train as one process with twice the batches does."""

import multiprocessing
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from nmtkit.autotune.training import CyclingStream
from nmtkit.checkpoints.manager import CheckpointManager
from nmtkit.core import device
from nmtkit.data.batch import collate
from nmtkit.models.base import MODELS, Seq2Seq
from nmtkit.training.config import TrainingConfig
from nmtkit.training.events import Stopped
from nmtkit.training.loop import train
from tests.bench import training as bench

from .results import Part

VOCABULARY = 200
SHAPES: dict[str, dict[str, object]] = {
    "transformer": {"hidden_size": 64, "feed_forward_size": 128, "dropout": 0.0},
    "luong": {"hidden_size": 64, "embedding_size": 64, "dropout": 0.0},
}
UPDATES = 4
CLOSE = 1e-3
"""How far the weights may be apart, as a share of how far training moved them: float32 adds in another order."""


def stream_of(rank: int, world: int) -> CyclingStream:
    """Random sentences, the same for everybody; of two processes each takes every second batch."""
    draw = torch.Generator().manual_seed(1)
    batches = []
    for _ in range(2 * UPDATES):
        sides = [
            [torch.randint(4, VOCABULARY, (length,), generator=draw).tolist() for length in lengths]
            for lengths in torch.randint(1, 20, (2, 16), generator=draw).tolist()
        ]
        batches.append(collate(*sides))
    return CyclingStream(batches[rank::world])


def build(kind: str) -> Seq2Seq:
    config = MODELS.get(kind).Config.model_validate({"kind": kind, **SHAPES[kind]})
    return bench.build(config, VOCABULARY)


def trained(kind: str, place: torch.device, folder: Path, rank: int = 0, world: int = 1) -> torch.Tensor:
    """All weights after the updates."""
    exact = {"precision": "fp32", "matmul_precision": "highest"}
    config = TrainingConfig(optimizer="sgd", lr=0.5, max_updates=UPDATES, accumulate=2 // world, **exact)
    device.prepare(place, threads=1 if place.type == "cpu" else None)
    model = build(kind)
    stream, states = stream_of(rank, world), CheckpointManager(folder)
    *_, last = train(model, stream, config, lambda model: {"bleu": 0.0}, states, place)
    assert isinstance(last, Stopped)
    assert last.update == UPDATES
    return flat(model)


def flat(model: Seq2Seq) -> torch.Tensor:
    return torch.cat([parameter.detach().cpu().flatten() for parameter in model.parameters()])


def one_of_two(rank: int, place: torch.device, folder: Path) -> None:
    """Not `distributed.join`, which gives each process a GPU of its own and, with NCCL, must."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2, timeout=timedelta(minutes=1)
    )
    for kind in SHAPES:
        torch.save(trained(kind, place, folder / f"{kind}-two", rank, 2), folder / f"{kind}-{rank}.pt")
    dist.destroy_process_group()


def main(part: Part) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=one_of_two, args=(rank, part.place, part.scratch)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    codes = [process.exitcode for process in processes]
    part.add("both processes come to their end", codes == [0, 0], f"exit codes {codes}")
    if codes != [0, 0]:
        return
    for kind in SHAPES:
        two = [torch.load(part.scratch / f"{kind}-{rank}.pt") for rank in range(2)]
        alone = trained(kind, part.place, part.scratch / f"{kind}-alone")
        moved = float((alone - flat(build(kind))).abs().max())
        apart = float((two[0] - alone).abs().max())
        holds = torch.equal(*two) and moved > 0 and apart <= CLOSE * moved
        figure = f"weights apart by up to {apart:.1e}, moved by up to {moved:.1e}"
        part.add(f"{kind}: equal in both, and to one process", holds, figure, apart=apart, moved=moved)
