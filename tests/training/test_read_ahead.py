"""Batches prepared ahead: the same ones in the same order, each at the place where it belongs."""

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from nmtkit.data.batches.batch import Batch
from nmtkit.training.parallel import processes
from nmtkit.training.read_ahead import AHEAD, ReadAhead
from tests.support.tiny_training import TinyStream

CPU = torch.device("cpu")


class Ending(TinyStream):
    """Fails where the third batch should come."""

    def __next__(self) -> Batch:
        if self.drawn == 2:
            raise OSError("the disk is gone")
        return super().__next__()


def draw(stream: Any, count: int) -> list[tuple[Any, ...]]:
    return [(stream.state(), stream.epoch, next(stream).targets.ids.tolist()) for _ in range(count)]


def test_batches_and_their_places_are_those_of_the_stream() -> None:
    with ReadAhead(TinyStream(per_epoch=3), CPU) as ahead:
        assert draw(ahead, 8) == draw(TinyStream(per_epoch=3), 8)


def test_goes_on_where_a_state_was_taken_and_not_where_it_had_read_to() -> None:
    stream, behind = TinyStream(), TinyStream()
    with ReadAhead(stream, CPU) as ahead:
        draw(ahead, 2)
        state = ahead.state()
        ahead.pause()
        assert stream.drawn == 2 + AHEAD
        behind.restore(state)
        expected = draw(behind, 4)
        assert draw(ahead, 4) == expected
        ahead.restore(state)
        assert draw(ahead, 4) == expected


def shares(
    size: int, monkeypatch: pytest.MonkeyPatch, per_update: int = 3, count: int = 4
) -> list[Any]:
    """Of each process its batches in some updates, each update after the state that it begins with."""
    found = []
    for rank in range(size):
        monkeypatch.setattr(processes, "rank", lambda rank=rank: rank)
        monkeypatch.setattr(processes, "size", lambda: size)
        with ReadAhead(TinyStream(), CPU, per_update) as ahead:
            turns = range(-(-per_update // size))
            found.append([(ahead.state(), [next(ahead) for _ in turns]) for _ in range(count)])
    return found


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_the_same_batches_make_an_update_whatever_the_number_of_processes(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    alone = shares(1, monkeypatch)[0]
    for update, *parts in zip(alone, *shares(size, monkeypatch), strict=True):
        assert all(state == update[0] for state, _ in parts)
        dealt = [
            batch for turn in zip(*(batches for _, batches in parts), strict=True) for batch in turn
        ]
        assert dealt[3:] == [None] * (len(dealt) - 3)
        assert all(
            torch.equal(a.targets.ids, b.targets.ids)
            for a, b in zip(update[1], dealt[:3], strict=True)
        )


def test_a_fault_comes_with_the_batch_that_is_not_there() -> None:
    with ReadAhead(Ending(), CPU) as ahead:
        assert len(draw(ahead, 2)) == 2
        with pytest.raises(OSError, match="the disk is gone"):
            next(ahead)


def test_no_thread_is_left_in_a_pause_and_threads_of_torch_stay_as_they_were() -> None:
    threads, computing = threading.active_count(), torch.get_num_threads()
    with ReadAhead(TinyStream(), CPU) as ahead:
        next(ahead)
        assert threading.active_count() == threads + 1
        ahead.pause()
        assert threading.active_count() == threads
        next(ahead)
    assert threading.active_count() == threads
    assert torch.get_num_threads() == computing


def test_for_cuda_batches_are_pinned_by_the_thread_that_prepares_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pinned = []

    def pin(tensor: Tensor) -> Tensor:
        pinned.append(threading.current_thread())
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    with ReadAhead(TinyStream(), torch.device("cuda")) as ahead:
        assert len(next(ahead).tensors()) * (1 + AHEAD) >= len(pinned) > 0
    assert threading.main_thread() not in pinned


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_batches_for_cuda_are_pinned() -> None:
    with ReadAhead(TinyStream(), torch.device("cuda")) as ahead:
        assert all(tensor.is_pinned() for tensor in next(ahead).tensors())
