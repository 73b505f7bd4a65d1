"""Memory over a million lines: `make test-memory`, or `python -m tests.tools.hostile.memory --lines 1000000`.

`translate` and `summarize` read a pipe that is filled as they go, `rescore` and `align` files; each is a program of its
own. What it and its workers have in memory (VmRSS) is read from the kernel whenever another percent of the lines has
come out. Between the first tenth and the end it must not grow by more than a few MiB: memory that grows with the input
is a line kept.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from tests.support.commands import WORDS

from .material import make_material
from .runner import Runner

MOST = 20.0
"""MiB that a command may grow by from a tenth of its lines to the last."""
COMMANDS = {
    "translate": ["translate", "-m", "tiny", "--beam-size", "1", "--max-length", "12"],
    "summarize": ["summarize", "-m", "sum", "--beam-size", "1", "--max-length", "6"],
    "translate-by-workers": [
        "translate",
        "-m",
        "tiny",
        "--beam-size",
        "1",
        "--max-length",
        "12",
        "--workers",
        "2",
    ],
    "rescore": ["rescore", "-m", "tiny", "--source", "large.src", "--target", "large.tgt"],
    "align": ["align", "-m", "tiny", "--source", "large.src", "--target", "large.tgt"],
}


def blocks(lines: int, size: int = 1000) -> Iterator[bytes]:
    """So many lines of one to nine words, many at a time: no two blocks are equal."""
    draw = random.Random(lines)
    for start in range(0, lines, size):
        words = draw.choices(WORDS, k=9 * size)
        yield b"".join(
            " ".join(words[9 * n : 9 * n + 1 + draw.randrange(9)]).encode() + b"\n"
            for n in range(min(size, lines - start))
        )


def fill(pipe: BinaryIO, lines: int) -> None:
    with pipe:
        for block in blocks(lines):
            pipe.write(block)


def resident(pid: int) -> float:
    """MiB that a process and those that it began have in memory."""
    begun = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    sizes = []
    for number in (pid, *begun):
        with suppress(OSError, IndexError):  # one that has just ended has none
            status = Path(f"/proc/{number}/status").read_text(encoding="ascii")
            sizes.append(int(status.split("VmRSS:")[1].split()[0]) / 1024)
    return sum(sizes)


def watch(name: str, folder: Path, lines: int) -> bool:
    """Runs a command over the lines and says how its memory went; whether it stayed flat."""
    words = [sys.executable, "-m", "nmtkit", *COMMANDS[name], "--threads", "1"]
    begun = time.monotonic()
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NMTKIT_")}
    with subprocess.Popen(
        words,
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=kept,
    ) as process:
        given = 0 if name in ("rescore", "align") else lines
        threading.Thread(target=fill, args=(process.stdin, given), daemon=True).start()
        out, sizes, step = 0, list[float](), max(lines // 100, 1)
        while block := os.read(process.stdout.fileno(), 1 << 16):
            out += block.count(b"\n")
            if out >= step * (len(sizes) + 1):
                sizes += [resident(process.pid)] * (out // step - len(sizes))
        code = process.wait()
    grown = max(sizes[10:]) - sizes[9] if len(sizes) >= 100 else float("inf")
    flat = code == 0 and out == lines and grown < MOST
    course = " ".join(f"{size:.0f}" for size in sizes[9::10])
    print(
        f"{name:20} {lines} lines in, {out} out, exit code {code}, {time.monotonic() - begun:.0f} s; MiB at tenths: "
        f"{course}; from the first on {grown:+.1f}: {'flat' if flat else 'NOT FLAT'}",
        flush=True,
    )
    return flat


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.hostile.memory", description=__doc__
    )
    parser.add_argument(
        "--lines", type=int, default=1_000_000, help="for each command (default: 1,000,000)"
    )
    parser.add_argument("commands", nargs="*", default=list(COMMANDS), help="which (default: all)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nmtkit-memory-") as name:
        folder = Path(name)
        with Runner() as runner:
            make_material(folder, runner)
        for side in ("src", "tgt"):
            with open(folder / f"large.{side}", "wb") as file:
                file.writelines(blocks(given.lines))
        flat = [watch(name, folder, given.lines) for name in given.commands]
    raise SystemExit(not all(flat))


if __name__ == "__main__":
    main()
