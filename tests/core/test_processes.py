"""Work that is shared out to processes: the order, the faults, and that nobody is left over."""

import importlib
import operator
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.core.processes import ordered_map
from nmtkit.data.text.alignments import parse_pharaoh_line

# The other process looks work up by its name, so what is done here comes from libraries.
DOUBLE = partial(operator.mul, 2)


def size(item: object) -> int:
    return 1


def children() -> set[int]:
    """The processes that this one has started and that are still there."""
    found = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError):  # a thread that has ended
            found |= set(map(int, path.read_text().split()))
    return found


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("count", [0, 40])
def test_results_come_in_order(processes: int, count: int) -> None:
    assert list(ordered_map(DOUBLE, range(count), processes, size, 2)) == [
        2 * number for number in range(count)
    ]


def test_other_processes_do_the_work_and_are_gone_afterwards() -> None:
    # Whatever the argument, `os.getpgid(0)` is the process's own group, and every process here has one of its own.
    before = children()
    found = list(ordered_map(os.getpgid, [0] * 30, 2, size, 3))
    assert set(found[:3]) == {os.getpgid(0)}
    assert len(set(found[3:])) == 2
    assert os.getpgid(0) not in found[3:]
    assert children() == before


def test_no_process_is_started_for_little_work() -> None:
    assert set(ordered_map(os.getpgid, [0] * 30, 2, size, 31)) == {os.getpgid(0)}


def test_processes_are_gone_when_the_reader_stops() -> None:
    before = children()
    results = ordered_map(DOUBLE, iter(range(1000)), 2, size, 1)
    assert [next(results) for _ in range(5)] == [0, 2, 4, 6, 8]
    assert len(children() - before) == 2
    results.close()
    assert children() == before


def seven_and_a_fault() -> Iterator[int]:
    yield from range(7)
    raise DataError("line 8")


@pytest.mark.parametrize(
    ("work", "items", "count", "fault", "message"),
    [
        pytest.param(
            partial(operator.floordiv, 12),
            [1, 2, 3, 0, 4],
            3,
            RuntimeError,
            "ZeroDivisionError",
            id="bug",
        ),
        pytest.param(
            partial(parse_pharaoh_line, place="line 3"),
            ["0-0", "1-1", "1-x"],
            2,
            DataError,
            "line 3",
            id="mistake",
        ),
        pytest.param(DOUBLE, seven_and_a_fault(), 7, DataError, "line 8", id="in the items"),
    ],
)
def test_a_fault_comes_after_the_results_before_it(
    work: partial[object], items: Iterable[object], count: int, fault: type[Exception], message: str
) -> None:
    results: list[object] = []
    with pytest.raises(fault, match=message):
        results.extend(ordered_map(work, items, 2, size, 1))
    assert len(results) == count


def test_a_process_that_is_killed_is_one_clear_message() -> None:
    before = children()
    results = ordered_map(DOUBLE, iter(range(1000)), 2, size, 1)
    next(results), next(results)
    for number in children() - before:
        os.kill(number, signal.SIGKILL)
    with pytest.raises(NmtkitError, match=r"was killed by signal SIGKILL, .*--workers N"):
        list(results)
    assert children() == before


class Unknown:
    """Work that no other process can make out."""

    def __call__(self, item: int) -> int:
        return item

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return importlib.import_module, ("nowhere",)


def test_work_that_cannot_be_found_is_one_clear_message(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NmtkitError, match="exited with code 1"):
        list(ordered_map(Unknown(), range(9), 2, size, 1))
    assert "No module named 'nowhere'" in capfd.readouterr().err


PROGRAM = """
import operator, os, signal, sys, time
from contextlib import suppress
from functools import partial
from nmtkit.data.text.alignments import parse_pharaoh_line
from nmtkit.core.processes import ordered_map

signal.signal(signal.SIGINT, signal.default_int_handler)  # a test that runs in the background is begun without it
results = ordered_map(partial(operator.mul, 2), iter(range(10**9)), 2, lambda item: 1, 1)
for _ in range(9):
    next(results)
print(*open(f"/proc/self/task/{os.getpid()}/children").read().split(), *[
    number for task in os.listdir("/proc/self/task") if int(task) != os.getpid()
    for number in open(f"/proc/self/task/{task}/children").read().split()
], flush=True)
for _ in results:
    pass
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_process_outlives_its_caller(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as caller:
        assert caller.stdout is not None
        others = [int(word) for word in caller.stdout.readline().split()]
        assert len(others) == 2
        caller.send_signal(number)
        try:
            caller.wait(120)
        finally:
            caller.kill()
    for _ in range(12_000):  # two minutes, where much else runs
        left = [
            number for number in others if Path(f"/proc/{number}").exists() and not is_over(number)
        ]
        if not left:
            return
        time.sleep(0.01)
    raise AssertionError(f"still there: {left}")


def is_over(number: int) -> bool:
    """Whether a process has ended, even if nobody has asked for its end."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
