"""Choosing a device."""

import pytest
import torch

from nmtkit import device
from nmtkit.errors import NmtkitError


def test_auto_takes_cuda_where_there_is_one() -> None:
    assert device.choose("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_cpu_is_always_there() -> None:
    assert device.choose("cpu") == torch.device("cpu")
    assert device.available()[-1] == "cpu"


@pytest.mark.parametrize("name", ["cuda:77", "warp", "cpu:x", ""])
def test_what_is_not_there_is_refused_with_what_is(name: str) -> None:
    with pytest.raises(NmtkitError, match=r"no such device.*here there is:.*cpu"):
        device.choose(name)


def test_prepare_sets_precision_and_threads() -> None:
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        device.prepare(torch.device("cpu"), "medium", threads=1)
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.get_num_threads() == 1
    finally:
        device.prepare(torch.device("cpu"), "highest", threads=before[0])
    assert torch.get_float32_matmul_precision() == "highest"
