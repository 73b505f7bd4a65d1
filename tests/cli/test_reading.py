"""Windows of input."""

import queue
import threading
import time
from collections.abc import Iterator

import pytest

from nmtkit.cli import reading
from nmtkit.cli.reading import windows


def test_a_file_is_cut_into_full_windows() -> None:
    lines = [str(number) for number in range(300)]
    cut = list(windows(iter(lines), most=100))
    assert [len(window) for window in cut] == [100, 100, 100]
    assert [line for window in cut for line in window] == lines
    assert list(windows(iter([]))) == []


def test_who_waits_for_an_answer_gets_it() -> None:
    given: queue.Queue[str | None] = queue.Queue()

    def lines() -> Iterator[str]:
        while (line := given.get()) is not None:
            yield line

    cut = windows(lines(), patience=0.02)
    for number in range(3):
        given.put(str(number))
        assert next(cut) == [str(number)]
    given.put(None)
    assert list(cut) == []


def test_memory_does_not_grow_with_the_input() -> None:
    """The reader stays little ahead of whoever translates."""
    read = 0

    def lines() -> Iterator[str]:
        nonlocal read
        for read in range(1, 100_000):  # noqa: B007  # counted on purpose
            yield "x"

    cut = windows(lines(), most=50)
    next(cut)
    time.sleep(0.05)
    assert read <= 50 + 50 + 2
    assert threading.active_count() < 20


def test_long_lines_make_small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_CHARACTERS", 10)
    assert list(windows(iter(["a" * 6] * 5), most=100)) == [["a" * 6] * 2, ["a" * 6] * 2, ["a" * 6]]


def test_slow_lines_do_not_wait_for_a_full_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_AGE", 0.0)
    assert list(windows(iter("abc"), most=100)) == [["a"], ["b"], ["c"]]


def test_a_fault_of_the_input_arrives_after_the_lines_before_it() -> None:
    def lines() -> Iterator[str]:
        yield "a"
        yield "b"
        raise ValueError("broken")

    cut = windows(lines())
    assert next(cut) == ["a", "b"]
    with pytest.raises(ValueError, match="broken"):
        next(cut)
