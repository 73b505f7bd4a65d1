"""Kills at random moments: `make test-kills`, or `python -m tests.hostile.kills --kills 100 --seed 1`.

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

from .material import RECIPE, STAGES, differences, write_corpus
from .runner import SMALL_SHARDS, Done, Process, Runner

SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]
SETTINGS = (
    ("max_updates: 12", "max_updates: 40\n  ema_decay: 0.9"),
    ("validate_every: 6", "validate_every: 10"),
    ("save_every: 4", "save_every: 7"),
)
PLACES = (
    ("nothing said yet", ""),
    ("looking for faults in the text", "looking for faults"),
    ("learning the tokenizer", "learning the tokenizer"),
    ("writing shards and arrays", "reading and checking"),
    ("preprocessed", "the data"),
    ("opening what was preprocessed", "preprocessed before"),
    ("before the first update", "training tiny in"),
    ("first stage, no state yet", "stage first begins"),
    ("first stage", "stage first goes on"),
    ("second stage", "stage second"),
    ("the test set", "finished after"),
    ("behind the last message", "training took"),
)
"""What a process is at, by the last of its messages that is known."""


@dataclass
class Tally:
    """What was done and found."""

    kills: Counter[str] = field(default_factory=Counter)
    moments: Counter[str] = field(default_factory=Counter)
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
        self.corpus = folder / "corpus"
        self.corpus.mkdir()
        write_corpus(self.corpus, train=1200)
        text = RECIPE
        for before, after in SETTINGS:
            assert before in text
            text = text.replace(before, after)
        (self.corpus / "staged.yaml").write_text(text + STAGES, encoding="utf-8")
        runner.run("--version", cwd=folder)  # everything is loaded by then
        self.seconds = 0.0
        """How long an undisturbed life is."""
        for words in self.commands("straight"):
            done = runner.run(*words, cwd=folder)
            assert done.code == 0, done
            self.seconds += done.seconds

    def commands(self, run: str) -> Iterator[list[object]]:
        """What a life does."""
        yield ["preprocess", self.corpus / "staged.yaml", "--run", run, "--workers", 2]
        yield self.resume(run)

    def resume(self, run: str) -> list[object]:
        """What brings it to its end, wherever it is."""
        return ["train", self.corpus / "staged.yaml", "--run", run, "--resume", "auto"]

    def end_one(self, number: int, draw: random.Random, tally: Tally) -> None:
        """Ends a life, at times twice, and takes it up again."""
        run = f"life-{number}"
        self._disturb(run, list(self.commands(run)), draw, tally, number)
        if draw.random() < 0.3:
            self._disturb(run, [self.resume(run)], draw, tally, number)
        done = self._runner.run(*self.resume(run), cwd=self._folder, seconds=120)
        if done.code:
            tally.faults.append(f"life {number}: cannot be taken up again: {done}")
            return
        found = differences(self._folder / "straight", self._folder / run)
        tally.faults += [f"life {number}: {fault}" for fault in found]
        tally.resumed += not found
        shutil.rmtree(self._folder / run)

    def _disturb(self, run: str, commands: list[list[object]], draw: random.Random, tally: Tally, number: int) -> None:
        at, which = time.monotonic() + draw.uniform(0, self.seconds), draw.choice(SIGNALS)
        for words in commands:
            process = self._runner.start(*words, cwd=self._folder)
            if not process.ends_within(at - time.monotonic()):
                break
            process.wait()
        else:
            tally.moments["over before"] += 1
            return
        moment = f"{words[0]}: {self._moment(process, self._folder / run)}"
        process.signal(which)
        done = process.wait()
        tally.kills[which.name] += 1
        tally.moments[moment] += 1
        fault = fault_of(which, done)
        if fault:
            tally.faults.append(f"life {number}, {which.name} while at {moment!r}: {fault}")
        for _ in range(100):
            if not self._runner.left():
                return
            time.sleep(0.1)
        tally.faults.append(f"life {number}, {which.name} while at {moment!r}: it left processes behind")

    def _moment(self, process: Process, run: Path) -> str:
        lines = process.printed.splitlines()
        known = [name for line in lines for name, words in PLACES if words and line.startswith(words)]
        moment = known[-1] if known else PLACES[0][0]
        if any((run / "checkpoints").rglob("*.partial")):
            return f"{moment}, while weights or a state are written"
        if "no state" in moment and (run / "checkpoints/1-first/last.safetensors").exists():
            return "first stage"
        return moment


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


def some(count: int, seed: int, tally: Tally) -> None:
    """Ends so many processes."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="nmtkit-kills-") as folder, Runner(first=SMALL_SHARDS) as runner:
        lives = Lives(runner, Path(folder))
        number = 0
        while tally.kills.total() < count:
            lives.end_one(number, draw, tally)
            number += 1


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="how many (default: 100)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments and signals (default: 1)")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default: 2)")
    given = parser.parse_args()
    begun = time.monotonic()
    tallies = [Tally() for _ in range(given.jobs)]
    with ThreadPoolExecutor(given.jobs) as pool:
        for job in [
            pool.submit(some, -(-given.kills // given.jobs), 1000 * given.seed + n, tally)
            for n, tally in enumerate(tallies)
        ]:
            job.result()
    kills, moments = (sum((getattr(t, name) for t in tallies), Counter()) for name in ("kills", "moments"))
    faults = [fault for tally in tallies for fault in tally.faults]
    print(f"seed {given.seed}: {kills.total()} kills in {time.monotonic() - begun:.0f} s:", dict(kills))
    for moment, count in moments.most_common():
        print(f"{count:5}  {moment}")
    print(f"{sum(tally.resumed for tally in tallies)} lives taken up again and equal bit for bit; {len(faults)} faults")
    for fault in faults:
        print(fault)
    raise SystemExit(bool(faults))


if __name__ == "__main__":
    main()
