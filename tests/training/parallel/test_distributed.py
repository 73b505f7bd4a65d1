"""Several processes that train as one."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from nmtkit.core.errors import NmtkitError
from nmtkit.models.rnn.rnn_encdec import RnnEncDec
from nmtkit.training.checkpoints.manager import CheckpointManager
from nmtkit.training.events import Event
from nmtkit.training.loop import train
from nmtkit.training.parallel import gradients, processes
from tests.support.ranks import GIVEN, join_as, start_two
from tests.support.tiny_training import (
    Pace,
    TinyStream,
    constant_score,
    ended,
    run,
    settings,
    steps,
    tiny_model,
)

NCCL = "cpu:gloo,cuda:nccl"
SLURM = {
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_ID": "1234567",
}


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("gpu[07-09,12],other", "gpu07"), ("one,two", "one"), ("a-b[3]", "a-b3"), ("alone", "alone")],
)
def test_srun_tells_what_torchrun_would(
    monkeypatch: pytest.MonkeyPatch, nodes: str, first: str
) -> None:
    for name, value in {**SLURM, "SLURM_STEP_NODELIST": nodes}.items():
        monkeypatch.setenv(name, value)
    for name in GIVEN:
        monkeypatch.delenv(name, raising=False)
    expected = dict(zip(GIVEN, ("4", "3", "1", first, "24567"), strict=True))
    assert processes._slurm_environment() == expected


def test_one_task_of_slurm_trains_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a batch script all tasks of the job are counted, but srun has started none of them."""
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_PROCID", "0")
    assert processes._slurm_environment() == {}


def test_a_world_size_without_ranks_is_srun_s_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts for Slurm often export WORLD_SIZE, and leave the rank to the program."""
    for name in (*GIVEN, *SLURM, "SLURM_STEP_NODELIST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(NmtkitError, match="WORLD_SIZE is 4, but RANK is not set"):
        processes.join(torch.device("cpu"))
    monkeypatch.setattr(processes, "is_initialized", lambda: True)
    monkeypatch.setattr(
        os, "environ", {"WORLD_SIZE": "4", **SLURM, "SLURM_STEP_NODELIST": "one,two"}
    )
    processes.join(torch.device("cpu"))
    assert [os.environ[name] for name in GIVEN] == ["4", "3", "1", "one", "24567"]


@pytest.mark.parametrize(
    ("local", "seen", "taken", "kind"), [("3", 8, 3, NCCL), ("3", 1, 0, NCCL), ("5", 4, 1, "gloo")]
)
def test_each_process_takes_a_gpu_that_it_sees(
    monkeypatch: pytest.MonkeyPatch, local: str, seen: int, taken: int, kind: str
) -> None:
    """Only the driver is stood in for: what `join` decides, and what it asks torch for.

    Processes that share a GPU, which NCCL refuses, find so by its number; Slurm may show each of them one of its own.
    """
    asked, store = [], dist.HashStore()
    for other in range(1, 8):
        store.set(f"start 0/gpu {other}", str(other % 4 if kind == "gloo" else other))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=0))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
    monkeypatch.setattr(torch.cuda, "set_device", asked.append)
    monkeypatch.setattr(
        torch.distributed,
        "init_process_group",
        lambda *a, **k: asked.append((a, k.get("device_id"))),
    )
    monkeypatch.setattr(processes, "rendezvous", lambda url, timeout: iter([(store, 0, 8)]))
    monkeypatch.setattr(torch.distributed, "new_group", lambda **k: None)
    monkeypatch.setattr(processes, "_groups", {})
    for name, value in zip(GIVEN, ("8", local, local, "127.0.0.1", "1"), strict=True):
        monkeypatch.setenv(name, value)
    device = torch.device("cuda", taken)
    assert processes.join(torch.device("cuda")) == device
    assert asked == [device, ((kind,), device if kind == NCCL else None)]


def test_a_gpu_that_is_named_is_not_left_for_others_without_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in zip(GIVEN, ("2", "0", "0", "127.0.0.1", "1"), strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(
        NmtkitError,
        match="--device cuda:1: with more than one process, each process uses a different GPU",
    ):
        processes.join(torch.device("cuda:1"))


def one_of_srun(rank: int, port: int, folder: str) -> None:
    for name in GIVEN:
        os.environ.pop(name, None)
    of_rank = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
    os.environ.update(
        {**SLURM, **of_rank, "SLURM_STEP_NODELIST": "localhost", "MASTER_PORT": str(port)}
    )
    processes.join(torch.device("cpu"))
    assert (processes.rank(), processes.size()) == (rank, 2)
    processes._VISIBLE_WITHIN = 0.1
    # A folder of its own for each process, as on disks that are not shared.
    made = Path(folder, str(rank))
    with pytest.raises(
        NmtkitError,
        match="process 1 does not see it; put it on a file system that all machines share",
    ):
        processes.run_on_rank_zero(made.mkdir, made)
    shared = Path(folder, "shared")
    processes.run_on_rank_zero(shared.mkdir, shared)
    processes.leave()


def test_a_folder_of_an_earlier_run_on_a_disk_of_its_own_is_not_that_of_process_0(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else process 1 would go on from a state of its own there, with another optimizer and other batches."""
    monkeypatch.setattr(processes, "_VISIBLE_WITHIN", 0)
    monkeypatch.setattr(processes, "size", lambda: 2)
    monkeypatch.setattr(processes, "rank", lambda: 1)
    monkeypatch.setattr(
        processes, "broadcast_object", lambda value: False if value is False else ".seen-1"
    )
    monkeypatch.setattr(processes, "all_gather_objects", lambda own: [True, own])
    with pytest.raises(
        NmtkitError,
        match="process 1 does not see it; put it on a file system that all machines share",
    ):
        processes.run_on_rank_zero(lambda: None, tmp_path)
    (tmp_path / ".seen-1").touch()  # as process 0 does on a disk that they share
    processes.run_on_rank_zero(lambda: None, tmp_path)
    (tmp_path / ".seen-1").unlink()
    monkeypatch.setattr(processes, "rank", lambda: 0)
    monkeypatch.setattr(processes, "broadcast_object", lambda value: value)
    processes.run_on_rank_zero(lambda: None, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_two_processes_of_srun(tmp_path: Path) -> None:
    start_two(one_of_srun, tmp_path)


@pytest.mark.parametrize("again", [False, True])
def test_gradients_are_sent_while_backward_computes_those_of_lower_layers(
    monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Of two processes whose gradients are the same; one layer is not used."""
    sent, state = [], {"whole": False}

    def all_reduce(flat: Tensor, async_op: bool) -> None:
        assert async_op
        sent.append((flat.numel(), state["whole"]))
        flat.mul_(2)

    monkeypatch.setattr(gradients, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    monkeypatch.setattr(gradients, "_BUCKET_BYTES", 4 * 30)
    torch.manual_seed(1)
    layers = torch.nn.ModuleList(torch.nn.Linear(5, 5) for _ in range(5))
    rows = torch.randn(3, 5)

    def loss(rows: Tensor) -> Tensor:
        for layer in [*layers[:2], *layers[3:]]:
            rows = layer(rows).sigmoid()
        return rows.sum()

    loss(rows).backward()
    expected = [None if p.grad is None else 2 * p.grad for p in layers.parameters()]
    layers.zero_grad()
    summed = gradients.GradientSum(list(layers.parameters()))
    loss(rows[:1]).backward()
    with summed.last_backward():
        loss(rows[1:]).backward()
    state["whole"] = True
    # the last two; the third waits for a layer that nothing reaches
    assert sent == [(30, False), (30, False)]
    if again:  # memory did not suffice
        layers.zero_grad()
        with summed.last_backward():
            loss(rows).backward()
        assert len(sent) == 2
    summed.finish()
    assert sent == [(30, False), (30, False), *[(30, True)] * 3]
    for parameter, gradient in zip(layers.parameters(), expected, strict=True):
        torch.testing.assert_close(
            parameter.grad, torch.zeros_like(parameter) if gradient is None else gradient
        )
    loss(rows).backward()  # nothing of it is left
    assert len(sent) == 5


JOINING = {
    "loss_unit": "sentence",
    "clip_norm": 0.5,
    "unfreeze_every": 2,
    "layer_decay": 0.5,
    "freeze": ["src_embedding"],
}


def one_of_two(rank: int, port: int, folder: str) -> None:
    join_as(rank, port)
    assert processes.sum_over_ranks([rank + 1, 10 * rank]) == [3, 10]
    assert processes.max_over_ranks([rank == 1, -rank, 0.1 + rank]) == [1, 0, 1.1]
    assert processes.all_gather_objects(rank) == [0, 1]
    assert processes.broadcast_object("first" if rank == 0 else None) == "first"

    def training(
        name: str,
        dropout: float = 0.0,
        resume: bool = False,
        stop: Callable[[], bool] | None = None,
        **given: Any,
    ) -> tuple[list[Event], RnnEncDec]:
        model = tiny_model(7 + rank, dropout, torch.float64)  # process 0 decides the first weights
        stream = TinyStream(per_epoch=8)
        model, events = run(
            Path(folder, name), settings(**given), model, stream, resume=resume, stop=stop
        )
        return events, model

    events, model = training(
        "plain", max_updates=6, clip_norm=0.05, schedule={"kind": "constant", "warmup": 3}
    )
    torch.save(
        [(step.loss, step.tokens, step.grad_norm) for step in steps(events)], f"{folder}/{rank}.pt"
    )
    everyone = processes.all_gather_objects(
        torch.cat([p.detach().flatten() for p in model.parameters()])
    )
    assert torch.equal(everyone[0], everyone[1])

    training("joining", max_updates=6, **JOINING)

    gradients._BUCKET_BYTES = 8 * 50  # of this tiny model several
    cut = training(
        "cut", max_updates=6, clip_norm=0.05, schedule={"kind": "constant", "warmup": 3}
    )[1]
    assert all(torch.equal(a, b) for a, b in zip(cut.parameters(), model.parameters(), strict=True))
    training("joining-cut", max_updates=6, **JOINING)

    # One process is told to stop: both do, and resuming gives each its own random numbers back.
    straight = training("straight", max_updates=6, dropout=0.3)[1]
    asked = iter(range(99))
    events, _ = training(
        "broken", max_updates=6, dropout=0.3, stop=lambda: rank == 1 and next(asked) == 3
    )
    assert ended(events) == ("interrupted", 3)
    resumed = training("broken", resume=True, max_updates=6, dropout=0.3)[1]
    assert all(
        torch.equal(a, b) for a, b in zip(straight.parameters(), resumed.parameters(), strict=True)
    )

    # Each has its own clock, and by the second one's all takes three times as long: that of process 0 counts.
    pace = Pace(10 + 20 * rank, per_epoch=8)
    config = settings(
        max_updates=99, max_minutes=2.5, log_every=1, schedule={"kind": "linear", "over": "budget"}
    )
    _, events = run(Path(folder, "timed"), config, None, pace)
    assert ended(events) == ("max_minutes", 15)
    rates = [step.lr / config.lr for step in steps(events)]
    assert rates == pytest.approx([1 - 1 / 99, *[1 - n / 15 for n in range(2, 16)]], abs=1e-9)
    processes.leave()


def one_of_a_shared_gpu(rank: int, port: int, folder: str) -> None:
    """Not by `join`, which gives each process a GPU of its own."""
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model, stream = tiny_model(7 + rank, dtype=torch.float64), TinyStream(per_epoch=8)
    list(
        train(
            model,
            stream,
            settings(),
            constant_score,
            CheckpointManager(Path(folder, "two")),
            torch.device("cuda"),
        )
    )
    processes.leave()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_two_processes_that_share_a_gpu_train_as_one_on_a_cpu(tmp_path: Path) -> None:
    start_two(one_of_a_shared_gpu, tmp_path)
    stream = TinyStream(per_epoch=8)
    model, _ = run(
        tmp_path / "one", settings(accumulate=2), tiny_model(7, dtype=torch.float64), stream
    )
    saved = CheckpointManager(tmp_path / "two").load_last()[0]
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(saved[f"weights/{name}"], parameter.detach(), rtol=0, atol=1e-6)


def test_two_processes_train_as_one_with_twice_the_batches(tmp_path: Path) -> None:
    start_two(one_of_two, tmp_path)

    config = settings(
        max_updates=6, accumulate=2, clip_norm=0.05, schedule={"kind": "constant", "warmup": 3}
    )
    model, events = run(
        tmp_path / "one", config, tiny_model(7, dtype=torch.float64), TinyStream(per_epoch=8)
    )
    saved = CheckpointManager(tmp_path / "plain").load_last()[0]
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            saved[f"weights/{name}"], parameter.detach(), rtol=1e-12, atol=1e-12
        )
    config = settings(max_updates=6, accumulate=2, **JOINING)
    joining, _ = run(
        tmp_path / "joined", config, tiny_model(7, dtype=torch.float64), TinyStream(per_epoch=8)
    )
    for name in ("joining", "joining-cut"):
        saved = CheckpointManager(tmp_path / name).load_last()[0]
        for weight, parameter in joining.named_parameters():
            torch.testing.assert_close(
                saved[f"weights/{weight}"], parameter.detach(), rtol=1e-12, atol=1e-12
            )
    alone = [(step.loss, step.tokens, step.grad_norm) for step in steps(events)]
    for rank in range(2):
        together = torch.load(tmp_path / f"{rank}.pt")
        for one, two in zip(alone, together, strict=True):
            assert one == pytest.approx(two, rel=1e-12)
