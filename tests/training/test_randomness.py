"""The same numbers every time on CUDA: process-wide switches, which must not stay behind."""

import os
from contextlib import suppress

import pytest
import torch

from nmtkit.core.errors import TrainingError
from nmtkit.training import randomness


def switches() -> tuple[bool, ...]:
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    fused = cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.cudnn_sdp_enabled()
    return (
        torch.are_deterministic_algorithms_enabled(),
        cudnn.deterministic,
        cudnn.benchmark,
        *fused,
    )


def test_deterministic_turns_the_switches_and_turns_them_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    before = switches()
    assert not before[0]
    cuda = torch.device("cuda")  # the switches are there without such a device as well
    with suppress(ZeroDivisionError), randomness.deterministic(cuda, True):
        assert switches() == (True, True, False, False, False, False)
        assert torch.backends.cuda.math_sdp_enabled()
        raise ZeroDivisionError
    assert switches() == before
    for device, wanted in ((cuda, False), (torch.device("cpu"), True)):
        with randomness.deterministic(device, wanted):
            assert switches() == before


def test_the_workspace_of_cublas_is_fixed_in_time_or_said_to_be_too_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(TrainingError, match="set CUBLAS_WORKSPACE_CONFIG="):
        randomness.require_cublas_workspace()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    randomness.require_cublas_workspace()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    randomness.require_cublas_workspace()
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    with pytest.raises(TrainingError, match="must be :4096:8 before CUDA is initialized"):
        randomness.require_cublas_workspace()
