"""Two processes that have half of each weight train as two that have all."""

import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pydantic import ValidationError
from torch import Tensor, nn

from nmtkit.core.errors import TrainingError
from nmtkit.data.batches.batch import collate
from nmtkit.layers.kv_cache import KVCache
from nmtkit.models.base import Seq2Seq
from nmtkit.training import gradients
from nmtkit.training.checkpoints.manager import CheckpointManager
from nmtkit.training.checkpoints.weights import get_weights
from nmtkit.training.events import Evaluated, Event
from nmtkit.training.gradients import UpdateGradients
from nmtkit.training.losses.objective import build_objectives
from nmtkit.training.parallel import processes
from nmtkit.training.sharding import Shards, require_equal_shares
from tests.support.commands import (
    RECIPE,
    Finished,
    environment,
    logged,
    refused,
    sentence_pairs,
    sets,
    succeeded,
    write_pairs,
)
from tests.support.ranks import join_as, start, start_two
from tests.support.tiny_training import CPU, FromList, ended, run, settings, steps
from tests.training.test_parts import build

BATCHES = [
    collate([[5, 6, 7], [8, 9], [4]], [[7, 6], [5], [9, 9, 8, 4]]),
    collate([[4]], [[9, 9, 8, 4]]),
    collate([[7, 7], [6]], [[5], [4, 4, 4]]),
    collate([[9, 8, 7, 6, 5]], [[4]]),
]
LOSS = {"label_smoothing": 0.1}
KINDS = {
    "transformer": {"accumulate": 2, "weight_decay": 0.1, "ema_decay": 0.9},
    "t5": {"optimizer": "sgd"},
    "transformer_lm": {"optimizer": "adagrad", "activation_checkpointing": True},
}


def score(model: Seq2Seq) -> dict[str, float]:
    """Of a pass as searches make it, a step at a time from the memory."""
    memory = model.encode(BATCHES[0])
    cache = KVCache(BATCHES[0].size, 1, CPU)
    output, _ = model.advance(torch.tensor([2, 2, 2]), model.start(memory), memory, cache)
    return {"bleu": float(model.predict(output, memory).sum())}


def training(
    folder: str | Path, name: str, kind: str = "transformer", resume: bool = False, **given: Any
) -> Any:
    config = settings(**{**LOSS, "clip_norm": 0.05, "max_updates": 4, **KINDS[kind], **given})
    return run(Path(folder, name), config, build(kind), FromList(BATCHES), score, resume=resume)


def numbers(events: list[Event]) -> list[tuple[Any, ...]]:
    made = [(step.loss, step.tokens, step.grad_norm) for step in steps(events)]
    return [*made, *((one.metrics["bleu"],) for one in events if isinstance(one, Evaluated))]


def assert_same_state(folder: str | Path, one: str, other: str) -> None:
    first, second = (CheckpointManager(Path(folder, name)).load_last()[0] for name in (one, other))
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        # Attention does not depend on the bias of its keys: its gradient is rounding noise, which Adam scales up.
        atol = 1e-10 if name.endswith("keys_values.bias") else 1e-12
        torch.testing.assert_close(
            second[name], tensor, rtol=1e-9, atol=atol, msg=f"{other}: {name}"
        )


def one_of_two(rank: int, port: int, folder: str) -> None:
    join_as(rank, port)
    # the output layer in other parts than the other process
    gradients._CHUNK_BYTES["cpu"] = 160 if rank else 320
    for kind in KINDS:
        _, plain = training(folder, kind, kind)
        sharded, events = training(folder, f"{kind}-sharded", kind, shard=True)
        for ours, theirs in zip(numbers(events), numbers(plain), strict=True):
            assert ours == pytest.approx(theirs, rel=1e-9)
        own, every = (
            sum(map(count, sharded.parameters()))
            for count in (lambda p: p.to_local().numel(), torch.numel)
        )
        assert own < 0.6 * every
    assert ended(training(folder, "resumed", max_updates=2, shard=True)[1]) == ("max_updates", 2)
    training(folder, "resumed", resume=True, shard=True)
    training(folder, "to-one", max_updates=2, shard=True)

    def out_of_memory(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError

    if rank:
        gradients.GradientAccumulator.backward = out_of_memory
    told = "out of memory, and with training.shard" if rank else "process 1 exited"
    with pytest.raises(TrainingError, match=told):
        training(folder, "full", shard=True)


def one_of_three(rank: int, port: int, folder: str) -> None:
    join_as(rank, port, 3)
    with pytest.raises(
        TrainingError, match="an update has 4 batches, which 3 processes cannot share equally"
    ):
        training(folder, "to-one", resume=True, shard=True)
    processes.leave()


@pytest.mark.slow
def test_two_processes_with_half_of_each_weight_train_as_with_all(tmp_path: Path) -> None:
    start_two(one_of_two, tmp_path)
    for kind in KINDS:
        assert_same_state(tmp_path, kind, f"{kind}-sharded")
    assert_same_state(tmp_path, "transformer", "resumed")
    assert start(one_of_three, tmp_path, 3) == [0, 0, 0]
    training(tmp_path, "to-one", resume=True, shard=True)  # in one process, which has all
    assert_same_state(tmp_path, "transformer", "to-one")


@pytest.fixture
def alone() -> Any:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_model_in_pieces_has_the_same_gradients_and_comes_together_again(alone: Any) -> None:
    def summed(model: nn.Module, shards: Shards | None = None) -> tuple[Any, dict[str, Tensor]]:
        config = settings(**LOSS)
        own = shards.parameters if shards else dict(model.named_parameters())
        update = UpdateGradients(model, build_objectives(config), list(own.values()), CPU)
        update.shards = shards
        sums = update.add_up(BATCHES[:2], update.count(BATCHES[:2]))
        return sums, {name: one.grad for name, one in own.items()}

    expected, of_plain = summed(build("transformer"))
    shards = Shards(build("transformer"), CPU)
    found, of_shards = summed(shards.model, shards)
    torch.testing.assert_close(found, expected)
    for name, gradient in of_plain.items():
        torch.testing.assert_close(of_shards[name], gradient, rtol=1e-9, atol=1e-12)
    whole = shards.whole_model()
    assert type(whole) is type(build("transformer"))
    with torch.no_grad():
        for weight in whole.parameters():
            weight.add_(1)
    shards.load(get_weights(whole), Path("whole"))
    gathered = shards.gather({f"weights/{name}": one for name, one in shards.weights().items()})
    for name, weight in build("transformer").named_parameters():
        assert torch.equal(gathered[f"weights/{name}"], weight + 1)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_each_process_has_a_part_of_the_first_axis(
    monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """As torch cuts it: the last ones may have less, or nothing."""
    monkeypatch.setattr(processes, "size", lambda: 3)
    monkeypatch.setattr(processes, "rank", lambda: rank)
    given = {"five": torch.arange(10).view(5, 2), "one": torch.ones(1), "step": torch.tensor(7)}
    own = Shards.local_parts(None, given)
    assert torch.equal(own["five"], given["five"][2 * rank : 2 * rank + 2])
    assert own["one"].shape == (int(rank == 0),)
    assert own["step"] == 7
    with pytest.raises(TrainingError, match="4 batches, which 3 processes cannot share equally"):
        require_equal_shares(settings(shard=True), 4)
    require_equal_shares(settings(), 4)


@pytest.mark.parametrize(
    "other",
    [
        {"compile": True},
        {"freeze": ["encoder"]},
        {"unfreeze_every": 2},
        {"coverage_weight": 1.0},
        {"reinforce": {}},
    ],
)
def test_what_some_processes_would_do_alone_is_refused(other: dict[str, Any]) -> None:
    sharded = partial(settings, shard=True)
    sharded(activation_checkpointing=True)
    with pytest.raises(ValidationError, match=f"shard cannot be combined with {next(iter(other))}"):
        sharded(**other)


def train(folder: Path, size: int, run: str, *changes: str) -> Finished:
    """`nmtkit train` as torchrun or, one process, a shell starts it."""
    small = (
        "model={kind: transformer, hidden_size: 8, feed_forward_size: 12, heads: 2, layers: 1, dropout: 0}",
    )
    small += tuple(
        f"training.{one}"
        for one in ("precision=fp32", "log_every=1", "validate_every=2", "save_every=1")
    )
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(size), "-m", "--"]
    words = [
        *(torchrun if size > 1 else []),
        "nmtkit",
        "train",
        "r.yaml",
        "--run",
        run,
        "--resume",
        "auto",
    ]
    return command(folder, *words, *sets("search.max_length=4", *small, *changes))


def command(folder: Path, *words: object, stdin: str = "") -> Finished:
    given = {
        "cwd": folder,
        "env": environment(),
        "input": stdin,
        "capture_output": True,
        "text": True,
    }
    done = subprocess.run([sys.executable, "-m", *words], **given, check=False, timeout=300)
    return Finished(done.returncode, done.stdout, done.stderr)


@pytest.mark.slow
def test_torchrun_trains_a_model_in_pieces_that_any_number_goes_on_with(tmp_path: Path) -> None:
    for name, count in (("train", 300), ("valid", 4), ("test", 2)):
        write_pairs(tmp_path, name, sentence_pairs(count, len(name)))
    Path(tmp_path, "r.yaml").write_text(RECIPE, encoding="utf-8")
    succeeded(train(tmp_path, 1, "alone", "training.accumulate=2", "training.max_updates=6"))
    succeeded(train(tmp_path, 2, "two", "training.shard=true", "training.max_updates=3"))
    shutil.copytree(tmp_path / "two", tmp_path / "one")
    shutil.copytree(tmp_path / "two", tmp_path / "whole")
    done = succeeded(train(tmp_path, 1, "one", "training.shard=true", "training.max_updates=6"))
    assert "training.shard has no effect with a single process" in done.err
    succeeded(train(tmp_path, 1, "whole", "training.max_updates=6"))
    succeeded(train(tmp_path, 2, "two", "training.shard=true", "training.max_updates=6"))
    expected = [step["loss"] for step in logged(tmp_path / "alone", "step")]
    assert len(expected) == 6
    for name in ("one", "whole", "two"):
        assert [step["loss"] for step in logged(tmp_path / name, "step")] == pytest.approx(
            expected, rel=1e-5
        )
        assert (
            succeeded(
                command(tmp_path, "nmtkit", "translate", "-m", name, stdin="ba ce\n")
            ).out.count("\n")
            == 1
        )
    done = train(tmp_path, 3, "two", "training.shard=true", "training.max_updates=9")
    assert "an update has 2 batches, which 3 processes cannot share equally" in done.err
    frozen = train(tmp_path, 1, "frozen", "training.shard=true", "training.freeze=[encoder]")
    refused(frozen, "shard cannot be combined with freeze; remove one of them")
