"""Checkpoints that a thread writes while training goes on."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nmtkit.core.errors import CheckpointError
from nmtkit.training.checkpoints.background import BackgroundCheckpoints
from nmtkit.training.checkpoints.manager import CheckpointManager
from tests.support.tiny_training import run, settings, tiny_model


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Until it is set, no state is written."""
    gate, write = threading.Event(), CheckpointManager.save_last

    def slowly(
        self: CheckpointManager, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
    ) -> None:
        assert gate.wait(10)
        write(self, tensors, facts)

    monkeypatch.setattr(CheckpointManager, "save_last", slowly)
    return gate


def test_a_state_is_as_it_was_when_it_was_saved_whatever_training_does_meanwhile(
    tmp_path: Path, gate: threading.Event
) -> None:
    weight = torch.zeros(3)
    with BackgroundCheckpoints(CheckpointManager(tmp_path)) as files:
        files.save_last({"weights/a": weight}, {"update": 1})
        weight += 1
        assert not files.last.exists()
        gate.set()
        files.wait()
        tensors, facts = files.load_last()
        assert (tensors["weights/a"].tolist(), facts["update"]) == ([0, 0, 0], 1)
        files.save_last({"weights/a": weight}, {"update": 2})
    assert CheckpointManager(tmp_path).load_last()[1]["update"] == 2  # leaving waits


def test_a_disk_that_is_full_ends_the_training_with_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, updates = CheckpointManager.save_last, []

    def fails(
        self: CheckpointManager, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
    ) -> None:
        updates.append(facts["update"])
        if facts["update"] == 4:
            raise CheckpointError("the disk is full")
        write(self, tensors, facts)

    monkeypatch.setattr(CheckpointManager, "save_last", fails)
    with pytest.raises(CheckpointError, match="the disk is full"):
        run(tmp_path, settings(max_updates=20, save_every=2), tiny_model())
    assert updates[:3] == [0, 2, 4]
    assert len(updates) <= 5
    assert CheckpointManager(tmp_path).load_last()[1]["update"] in updates
