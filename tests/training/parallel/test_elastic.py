"""A training goes on with other numbers of processes; validation is shared; a process that is missing is named."""

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtkit.config import load as load_recipe
from nmtkit.core.errors import TrainingError
from nmtkit.experiment.evaluation import Validation
from nmtkit.inference.translator import Translator
from nmtkit.runs.run import Run, build_model
from nmtkit.training.checkpoints.manager import CheckpointManager
from nmtkit.training.parallel import processes
from nmtkit.training.parallel.agreement import require_same_weights
from tests.support.begun_runs import begin_run
from tests.support.commands import RECIPE, sentence_pairs, write_pairs
from tests.support.ranks import join_as, start
from tests.support.tiny_training import TinyStream, run, settings, steps, tiny_model


def a_part(rank: int, port: int, folder: str, *, size: int, until: int) -> None:
    join_as(rank, port, size)
    losses = trained(Path(folder, "elastic"), until, 7 + rank)
    torch.save(losses, f"{folder}/{until}-{rank}.pt")
    processes.leave()


def trained(folder: Path, until: int, seed: int = 7) -> list[tuple[Any, ...]]:
    """Losses and tokens of the updates of a training, which goes on where it was."""
    config = settings(
        accumulate=3,
        max_updates=until,
        log_every=1,
        ema_decay=0.9,
        clip_norm=0.05,
        validate_every=4,
    )
    model, resume = tiny_model(seed, dtype=torch.float64), (folder / "last.safetensors").exists()
    _, events = run(folder, config, model, TinyStream(per_epoch=7), resume=resume)
    return [(step.update, step.loss, step.tokens, step.grad_norm) for step in steps(events)]


@pytest.mark.slow
def test_one_training_by_1_2_4_and_1_processes(tmp_path: Path) -> None:
    straight = trained(tmp_path / "straight", 12)
    losses = trained(tmp_path / "elastic", 3)
    for size, until in ((2, 6), (4, 9)):
        assert start(partial(a_part, size=size, until=until), tmp_path, size) == [0] * size
        parts = [torch.load(tmp_path / f"{until}-{rank}.pt") for rank in range(size)]
        assert parts == [parts[0]] * size
        losses += parts[0]
    losses += trained(tmp_path / "elastic", 12)
    for one, other in zip(straight, losses, strict=True):
        assert one == pytest.approx(other, rel=1e-12)
    (tensors, facts), (others, other_facts) = (
        CheckpointManager(tmp_path / name).load_last() for name in ("straight", "elastic")
    )
    for name, tensor in tensors.items():
        torch.testing.assert_close(tensor, others[name], rtol=1e-9, atol=1e-12)
    assert (facts["stream"], facts["processes"]) == (
        other_facts["stream"],
        other_facts["processes"],
    )


def judged(folder: Path) -> tuple[Any, ...]:
    """What validation finds of a model with random weights, and how many sentences this process searched for."""
    searched, search = [], Translator.search
    opened = Run.open(str(folder))
    tokenizers = opened.load_tokenizers()
    torch.manual_seed(3)
    model = build_model(opened.recipe, tokenizers).eval()

    def counted(self: Translator, lines: Sequence[Any], *given: Any, **options: Any) -> Any:
        searched.append(len(lines))
        return search(self, lines, *given, **options)

    Translator.search = counted
    try:
        with torch.no_grad():
            found = Validation(
                opened.stages((), tokenizers.checksum)[0].data, opened.recipe, tokenizers
            )(model)
    finally:
        Translator.search = search
    del found["seconds"]
    return found, searched


def one_of_three_judges(rank: int, port: int, folder: str) -> None:
    join_as(rank, port, 3)
    torch.save(judged(Path(folder, "run")), f"{folder}/{rank}.pt")
    processes.leave()


def test_validation_of_three_processes_is_that_of_one(tmp_path: Path) -> None:
    for name, count, seed in (("train", 60, 1), ("valid", 10, 2), ("test", 2, 3)):
        write_pairs(tmp_path, name, sentence_pairs(count, seed))
    (tmp_path / "tiny.yaml").write_text(RECIPE, encoding="utf-8")
    few = ["evaluation.metrics=[bleu,chrf]", "search.max_length=8"]
    begin_run(load_recipe(str(tmp_path / "tiny.yaml"), few), str(tmp_path / "run")).close()
    alone, searched = judged(tmp_path / "run")
    assert searched == [10]
    assert alone["chrf"] > 0
    assert start(one_of_three_judges, tmp_path, 3) == [0, 0, 0]
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(3)]
    assert [each for each, _ in found] == [alone] * 3  # not a bit differs
    assert [lines for _, lines in found] == [[4], [3], [3]]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            [1, 1, 2],
            "the weights of process 2 differ from those of the others, first in 'b', .* by that process is faulty; ",
        ),
        (
            [1, 2],
            "the weights of process 1 differ from those of process 0, first in 'b', .* by one of the two processes is ",
        ),
        (
            [3, 2, 2, 1, 1],
            "the weights of process 0 differ from those of process 1, first in 'b', .* by one of the two processes is ",
        ),
    ],
)
def test_only_a_majority_is_taken_to_be_right(
    monkeypatch: pytest.MonkeyPatch, values: list[int], said: str
) -> None:
    monkeypatch.setattr(processes, "is_initialized", lambda: True)
    monkeypatch.setattr(
        processes, "all_gather_objects", lambda own: [[0, value] for value in values]
    )
    with pytest.raises(TrainingError, match=said):
        require_same_weights({"a": torch.zeros(2), "b": torch.ones(3)}, 7)


def one_is_missing(rank: int, port: int, folder: str) -> None:
    processes._TIMEOUT, processes._TO_MEET = timedelta(seconds=3), timedelta(seconds=2)
    join_as(rank, port, 3)
    weights = {"a": torch.zeros(2), "b": torch.ones(3, dtype=torch.bfloat16)}
    require_same_weights(weights, 1)
    weights["b"][1] += rank == 2
    with pytest.raises(
        TrainingError,
        match="update 7: the weights of process 2 differ from those of the others, first in 'b'",
    ):
        require_same_weights(weights, 7)
    if rank == 1:  # it hangs
        time.sleep(12)
        os._exit(5)
    said = (
        "process 1 did not answer within 0.05 minutes"
        if rank == 0
        else "process 0's error message says which"
    )
    with pytest.raises(TrainingError, match=said):
        processes.sum_over_ranks([1])
    os._exit(0)


@pytest.mark.slow
def test_other_weights_and_a_silent_process_are_named(tmp_path: Path) -> None:
    assert start(one_is_missing, tmp_path, 3) == [0, 5, 0]


def the_first_works_for_long(rank: int, port: int, folder: str) -> None:
    processes._TIMEOUT = timedelta(seconds=2)
    join_as(rank, port)
    processes.run_on_rank_zero(lambda: time.sleep(5))
    processes.leave()


@pytest.mark.slow
def test_others_wait_longer_for_what_the_first_prepares(tmp_path: Path) -> None:
    assert start(the_first_works_for_long, tmp_path, 2) == [0, 0]
