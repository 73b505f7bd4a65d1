"""Kills at random moments: `make test-kills`, or `python -m tests.tools.hostile.kills --kills 100 --seed 1`.

A life is `nmtkit preprocess` with two helpers and small shards, then `nmtkit train` with two stages, validations, saved
states and a test set. Some signal ends it somewhere; `nmtkit train --resume auto` must then bring it to the end that an
undisturbed life has: the same tensors bit for bit, each update once in the log, the same translations of the test set.
"""

import argparse
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.compare_runs import differences

from .material import write_corpus
from .runner import SMALL_SHARDS, Done, Runner

SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]
SETTINGS = ("max_updates=40", "ema_decay=0.9", "validate_every=10", "save_every=7")


@dataclass
class Tally:
    """What was done and found."""

    kills: Counter[str] = field(default_factory=Counter)
    """By signal and command."""
    resumed: int = 0
    faults: list[str] = field(default_factory=list)


class Lives:
    """Lives that are ended early, in folders of their own, beside one that was not.

    Args:
        runner: what they are copies of.
        folder: for all of them.
    """

    def __init__(self, runner: Runner, folder: Path) -> None:
        self._runner = runner
        self._folder = folder
        corpus = folder / "corpus"
        corpus.mkdir()
        write_corpus(corpus, train=1200)
        settings = [part for setting in SETTINGS for part in ("--set", f"training.{setting}")]
        self._recipe = [corpus / "staged.yaml", *settings]
        runner.run("--version", cwd=folder)  # everything is loaded by then
        self.seconds = 0.0
        """How long an undisturbed life is."""
        for words in self.commands("straight"):
            done = runner.run(*words, cwd=folder)
            assert done.code == 0, done
            self.seconds += done.seconds

    def commands(self, run: str) -> list[list[object]]:
        """What a life does."""
        return [["preprocess", *self._recipe, "--run", run, "--workers", 2], self.resume(run)]

    def resume(self, run: str) -> list[object]:
        """What brings it to its end, wherever it is."""
        return ["train", *self._recipe, "--run", run, "--resume", "auto"]

    def end_one(self, number: int, draw: random.Random, tally: Tally) -> None:
        """Ends a life, at times twice, and takes it up again."""
        run = f"life-{number}"
        tally.faults += self._disturb(run, self.commands(run), draw, tally)
        if draw.random() < 0.3:
            tally.faults += self._disturb(run, [self.resume(run)], draw, tally)
        done = self._runner.run(*self.resume(run), cwd=self._folder, seconds=120)
        if done.code:
            tally.faults.append(f"{run}: cannot be taken up again: {done}")
            return
        found = differences(self._folder / "straight", self._folder / run)
        tally.faults += [f"{run}: {fault}" for fault in found]
        tally.resumed += not found
        shutil.rmtree(self._folder / run)

    def _disturb(
        self, run: str, commands: list[list[object]], draw: random.Random, tally: Tally
    ) -> Iterator[str]:
        """Sends a signal at a random moment, unless all is over before; the faults of the end."""
        at, which = time.monotonic() + draw.uniform(0, self.seconds), draw.choice(SIGNALS)
        for words in commands:
            process = self._runner.start(*words, cwd=self._folder)
            if not process.ends_within(at - time.monotonic()):
                break
            process.wait()
        else:
            return
        process.signal(which)
        if fault := fault_of(which, process.wait()):
            yield f"{run}, {which.name} in {words[0]}: {fault}"
        tally.kills[f"{which.name} in {words[0]}"] += 1
        for _ in range(100):
            if not self._runner.left():
                return
            time.sleep(0.1)
        yield f"{run}, {which.name} in {words[0]}: it left processes behind"


def fault_of(which: signal.Signals, done: Done) -> str | None:
    """What is wrong with how it ended; None if nothing is."""
    if done.hung or "Traceback" in done.err:
        return f"hangs, or shows a traceback: {done}"
    if done.code == 0 or done.code == -signal.SIGKILL == -which:
        return None  # it had just ended by itself, or could not say anything
    if done.code == -which and not done.out and not done.err:
        return None  # it had not come to its first line yet
    if done.code != 130 or not done.err.strip():
        return f"ended with {done.code} instead of 130 and a message; its last line: {done.err.splitlines()[-1:]}"
    return None


def end_many(count: int, seed: int) -> Tally:
    """Ends so many processes."""
    draw, tally = random.Random(seed), Tally()
    with (
        tempfile.TemporaryDirectory(prefix="nmtkit-kills-") as folder,
        Runner(first=SMALL_SHARDS) as runner,
    ):
        lives, number = Lives(runner, Path(folder)), 0
        while tally.kills.total() < count:
            lives.end_one(number, draw, tally)
            number += 1
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.hostile.kills", description=__doc__
    )
    parser.add_argument("--kills", type=int, default=100, help="how many (default: 100)")
    parser.add_argument(
        "--seed", type=int, default=1, help="of the moments and signals (default: 1)"
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default: 2)")
    given = parser.parse_args()
    begun = time.monotonic()
    seeds = [1000 * given.seed + number for number in range(given.jobs)]
    with ThreadPoolExecutor(given.jobs) as pool:
        tallies = [*pool.map(end_many, [-(-given.kills // given.jobs)] * given.jobs, seeds)]
    kills = sum((tally.kills for tally in tallies), Counter())
    faults = [fault for tally in tallies for fault in tally.faults]
    print(
        f"seed {given.seed}: {kills.total()} kills in {time.monotonic() - begun:.0f} s:",
        dict(kills),
    )
    print(
        f"{sum(tally.resumed for tally in tallies)} lives taken up again and equal bit for bit; {len(faults)} faults"
    )
    for fault in faults:
        print(fault)
    raise SystemExit(bool(faults))


if __name__ == "__main__":
    main()
