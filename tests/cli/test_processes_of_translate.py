"""The processes of translate: whatever ends one of them, or the command, ends all, with one message."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from commands import Command, environment

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are looked up in /proc")


def children(parent: int) -> dict[int, str]:
    """The processes that a process began, with their commands."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, number = path.read_text(encoding="utf-8").rpartition(")")[2].split()[:2]
            if int(number) == parent and state != "Z":
                found[int(path.parent.name)] = path.with_name("cmdline").read_text(encoding="utf-8")
    return found


def alive(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def translating(run: Path, *options: str) -> Iterator["tuple[subprocess.Popen[bytes], list[int]]"]:
    """A translation of endless text, whose first line is out, with the numbers of its workers."""
    words = [sys.executable, "-m", "nmtkit", "translate", "-m", str(run), "--beam-size", "1", *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, env=environment()) as process:

        def fill() -> None:
            assert process.stdin is not None
            with suppress(OSError):
                while True:
                    process.stdin.write(b"ba ce\nce ba\n" * 500)

        threading.Thread(target=fill, daemon=True).start()
        assert process.stdout is not None
        assert process.stdout.readline().endswith(b"\n")
        workers = [number for number, command in children(process.pid).items() if "resource_tracker" not in command]
        try:
            yield process, workers
        finally:
            process.kill()
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.close()


def ended(process: "subprocess.Popen[bytes]") -> tuple[int, str]:
    """How it ended and what it said; its results are read, so that it can write."""
    assert process.stdout is not None
    assert process.stderr is not None
    threading.Thread(target=process.stdout.read, daemon=True).start()
    said = process.stderr.read().decode()
    return process.wait(120), said


def gone(workers: list[int]) -> bool:
    """Whether all end within a moment; each may be in the middle of a batch."""
    until = time.monotonic() + 120
    while any(map(alive, workers)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(alive, workers))


@pytest.mark.parametrize("options", [["--workers", "2"], ["--device", "cpu,cpu"]], ids=["forks", "from-scratch"])
def test_a_lost_worker_ends_the_command(trained: Path, options: list[str]) -> None:
    with translating(trained, *options) as (process, workers):
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGKILL)
        code, said = ended(process)
        assert code == 2
        assert said.count("nmtkit: error:") == 1
        assert f"(process {workers[0]}, cpu) was ended by signal SIGKILL" in said
        assert "Traceback" not in said
        assert gone(workers)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9), (None, 1)]
)
def test_no_worker_outlives_the_command(trained: Path, number: signal.Signals | None, code: int) -> None:
    """Without a signal of ours it is the reader of the results who goes."""
    with translating(trained, "--workers", "2") as (process, workers):
        assert len(workers) == 2
        if number is not None:
            os.kill(process.pid, number)
            found, said = ended(process)
        else:
            assert process.stdout is not None
            process.stdout.close()
            assert process.stderr is not None
            said, found = process.stderr.read().decode(), process.wait(120)
        assert found == code
        assert "Traceback" not in said
        assert gone(workers)


def test_the_text_is_the_same(trained: Path, nmtkit: Command) -> None:
    text = "".join(f"{'ba ' * (n % 7)}{'ce ' * (n % 3)}\n" for n in range(300))

    def found(*options: str) -> tuple[list[str], list[float]]:
        done = nmtkit("translate", "-m", trained, "--scores", *options, stdin=text)
        assert done.code == 0, done
        rows = [line.split("\t") for line in done.out.splitlines()]
        return [row[2] for row in rows], [float(row[0]) for row in rows]

    texts, scores = found()
    assert len(texts) == 300
    for options in (["--workers", "2"], ["--device", "cpu,cpu"]):
        others, theirs = found(*options)
        assert others == texts
        assert theirs == pytest.approx(scores, abs=1e-4)


def test_options_that_do_not_go_together(trained: Path, nmtkit: Command, tmp_path: Path) -> None:
    done = nmtkit("translate", "-m", trained, "--device", "cpu,cpu", "--workers", "2")
    assert done.code == 2
    assert "leave one of them out" in done.err
    assert "no such device: 'gpu7'" in nmtkit("translate", "-m", trained, "--device", "cpu,gpu7").err
    done = nmtkit("rescore", "-m", trained, "--device", "cpu,cpu", "--source", tmp_path, "--target", tmp_path)
    assert done.code == 2
    assert "one device is taken here" in done.err
