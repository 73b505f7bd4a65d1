"""The processes of translate: whatever ends one of them, or the command, ends all, with one message."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.cases import daily
from tests.support.commands import Command, Finished, as_text, refused, succeeded
from tests.support.processes import Begun, Server, children, is_alive

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="processes are looked up in /proc"
)


def fill(process: Begun) -> None:
    """Endless text for a translation; the thread ends with the command."""

    def write() -> None:
        with suppress(OSError, ValueError):
            while True:
                process.stdin.write(b"ba ce\nce ba\n" * 500)

    threading.Thread(target=write, daemon=True).start()


def workers_of(process: Begun) -> list[int]:
    commands = {
        number: Path(f"/proc/{number}/cmdline").read_bytes() for number in children(process.pid)
    }
    return [number for number, command in commands.items() if b"resource_tracker" not in command]


@contextmanager
def translating(server: Server, run: Path, *options: str) -> Iterator[tuple[Begun, list[int]]]:
    """A translation of endless text, whose first line is out, with the numbers of its workers."""
    with server.begin("translate", "-m", run, "--beam-size", "1", *options) as process:
        fill(process)
        assert process.stdout.readline().endswith(b"\n")
        yield process, workers_of(process)


def ended(process: Begun) -> tuple[int, str]:
    """How it ended and what it said; its results are read, so that it can write."""
    threading.Thread(target=process.stdout.read, daemon=True).start()
    said = process.stderr.read().decode()
    return process.wait(), said


def gone(workers: list[int]) -> bool:
    """Whether all end within a moment; each may be in the middle of a batch."""
    until = time.monotonic() + 120
    while any(map(is_alive, workers)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(is_alive, workers))


TEXT = as_text("ba " * (n % 7) + "ce " * (n % 3) for n in range(300))


def texts_and_scores(rows: Sequence[str]) -> tuple[list[str], list[float]]:
    """Of `translate --scores`."""
    fields = [row.split("\t") for row in rows]
    return [row[2] for row in fields], [float(row[0]) for row in fields]


@pytest.mark.parametrize(
    "options", daily([["--workers", "2"], ["--device", "cpu,cpu"]]), ids=["forks", "from-scratch"]
)
def test_the_text_is_the_same_and_a_lost_worker_ends_the_command(
    trained: Path, nmtkit: Command, server: Server, options: list[str]
) -> None:
    alone = succeeded(nmtkit("translate", "-m", trained, "--scores", stdin=TEXT))
    texts, scores = texts_and_scores(alone.out.splitlines())
    assert len(texts) == 300
    with server.begin("translate", "-m", trained, "--scores", *options) as process:
        process.stdin.write(TEXT.encode())
        fill(process)
        lines = [process.stdout.readline().decode().removesuffix("\n") for _ in range(300)]
        others, theirs = texts_and_scores(lines)
        assert others == texts
        assert theirs == pytest.approx(scores, abs=1e-4)

        workers = workers_of(process)
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGKILL)
        code, said = ended(process)
        refused(
            Finished(code, "", said), f"(process {workers[0]}, cpu) was killed by signal SIGKILL"
        )
        assert gone(workers)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9), (None, 1)],
)
def test_no_worker_outlives_the_command(
    trained: Path, server: Server, number: signal.Signals | None, code: int
) -> None:
    """Without a signal of ours it is the reader of the results who goes."""
    with translating(server, trained, "--workers", "2") as (process, workers):
        assert len(workers) == 2
        if number is not None:
            process.send_signal(number)
            ended_with, said = ended(process)
        else:
            process.stdout.close()
            said, ended_with = process.stderr.read().decode(), process.wait()
        assert ended_with == code
        assert "Traceback" not in said
        assert gone(workers)
