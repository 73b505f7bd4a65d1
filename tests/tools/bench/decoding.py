"""How fast a trained model translates, beside other engines with the same weights: in turns, in one run."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any
from unittest.mock import patch

from nmtkit.config.tasks.task import TASKS
from nmtkit.convert.engines import library, require_comparable, require_convertible
from nmtkit.core import device as devices
from nmtkit.core.errors import NmtkitError
from nmtkit.core.openmp import WAITING
from nmtkit.core.processes import WorkerProcess, call, call_each
from nmtkit.core.user_module import loaded_modules
from nmtkit.experiment.bench import DecodingSpeed, peak_memory_mib, require_lines
from nmtkit.inference.loading.options import DecodingOptions
from nmtkit.runs.run import Run, find_run

from . import machine
from .engines import ENGINES, EXACT, Engine, Measured, NmtkitEngine, Setting

TRIED = 1000
"""Lines by which the fastest configuration of each engine is found."""
SECONDS_TO_TRY = 40.0
MOST_ROUNDS = 6
"""For each engine, after every configuration was tried once."""
FEW = 8
"""Lines by which the best number of threads for a single line is found."""
TIE = 1e-4
"""Two translations whose scores differ by less are equally good."""
SHOWN = 3
"""Differing lines that are shown."""


@dataclass(frozen=True)
class DecodingWork:
    """What is to be decoded, and how often."""

    how: DecodingOptions
    sources: Sequence[str]
    references: Sequence[str] | None = None
    against: tuple[str, ...] = ()
    """Names of other engines."""
    rounds: int = 3
    alone: int = 50
    """Lines that are also decoded one at a time."""

    @property
    def filled(self) -> list[str]:
        """The lines that are not empty."""
        return [line for line in self.sources if line.strip()]


@dataclass
class EngineSpeed(DecodingSpeed):
    """One row of the result: an engine in one of its configurations."""

    engine: str
    setting: Setting
    alone_threads: int = 1
    """The fastest number for one sentence at a time."""
    cpu_seconds: list[float] = field(default_factory=list)
    """Of all threads and workers; they say more than the clock where other processes want the cores too."""
    matmul_seconds: list[float] = field(default_factory=list)
    """Of the matrix products alone in each round; of nmtkit only."""
    gflop: float = 0.0
    gigabytes: float = 0.0
    """What these products compute, read and write."""
    ties: int = 0
    """Differing lines whose two translations have nearly one score."""
    cut: int = 0
    """Differing lines that did not end before a length limit, which is not the same for all engines."""

    @property
    def share_of_floor(self) -> list[float]:
        """The products' part of the time, in each round."""
        return [
            alone / whole for alone, whole in zip(self.matmul_seconds, self.seconds, strict=False)
        ]

    def figures(self) -> dict[str, Any]:
        more = {
            "setting": asdict(self.setting),
            "way": str(self.setting),
            "share_of_floor": self.share_of_floor,
        }
        return {**super().figures(), **more}


@dataclass
class EngineServer:
    """Opens an engine with the first request, and calls its methods by name."""

    name: str
    how: DecodingOptions
    engine: Engine | None = None

    def __call__(self, request: tuple[str, Any]) -> Any:
        method, arguments = request
        if self.engine is None:
            empty = peak_memory_mib(devices.choose("cpu"))
            self.engine = ENGINES[self.name](self.how)
            self.engine.empty_mib = 0.0 if self.engine.place.type == "cuda" else empty
        return getattr(self.engine, method)(*arguments)


Ask = Callable[..., Any]
"""Calls a method of an engine in its process."""


def start_engine(name: str, how: DecodingOptions, stack: ExitStack) -> Ask:
    """Starts an engine's process, which ends with the stack."""
    variables = dict(os.environ)
    if name != NmtkitEngine.name:
        # Other engines wait as their own users have them wait, unless the user of this program has chosen otherwise.
        variables = {key: value for key, value in variables.items() if WAITING.get(key) != value}
    # the process is killed in the end
    variables["TMPDIR"] = stack.enter_context(tempfile.TemporaryDirectory())
    with patch.dict(os.environ, variables, clear=True):
        worker = WorkerProcess()
    stack.callback(worker.end)
    worker.connection.send(loaded_modules())
    worker.connection.send(partial(call_each, EngineServer(name, how)))
    remedy = "take fewer lines, or measure the engines one after the other"
    return lambda method, *arguments: call(worker, (method, arguments), remedy)


def measure_decoding(
    work: DecodingWork, notify: Callable[[str], None]
) -> tuple[
    list[EngineSpeed], dict[str, list[float]], list[dict[str, str]], dict[str, float | None]
]:
    """Measures; every engine, in each of its configurations, has a process of its own that stays.

    Returns:
        the rows; seconds of cold starts; some lines that differ; how busy the machine was.

    Raises:
        NmtkitError: an engine is not installed or cannot do this work; nothing has been measured then.
    """
    run = find_run(work.how.model)[0]
    require_lines(work.sources, work.references)
    config = run.newest_stage().recipe
    for name in work.against:
        require_convertible(config.model, name)
        require_comparable(name, config.search.changed(work.how.search_settings or {}))
        library(name)
    pressure = {"before": machine.look_at_pressure("before", notify)}
    with ExitStack() as stack:
        rows = [
            row
            for name in (NmtkitEngine.name, *work.against)
            for row in _fastest(name, work, notify)
        ]
        engines = [start_engine(row.engine, work.how, stack) for row in rows]
        # Threads that compute the products side by side would keep a process from searching by forks.
        products = start_engine(NmtkitEngine.name, work.how, stack)
        for row, ask in zip(rows, engines, strict=True):
            ask("measure", row.setting, work.sources)  # the first time takes memory
            row.alone_threads = _threads_alone(row.setting, ask, work)
            if row.engine == NmtkitEngine.name:
                row.gflop, row.gigabytes = products("trace", row.setting, work.sources)
        turns = list(zip(rows, engines, strict=True))
        for number in range(work.rounds):
            when = f"before round {number + 1}"
            pressure[when] = machine.look_at_pressure(when, notify)
            first = number % len(turns)
            for row, ask in turns[first:] + turns[:first]:
                _measure_round(row, ask, work)
                if row.gflop:
                    row.matmul_seconds.append(products("matmul_seconds", row.setting))
        examples = _compare(rows, products, work, run)
    cold = _cold_starts(work, run)
    pressure["after"] = machine.look_at_pressure("after", notify)
    return rows, cold, examples, pressure


def _fastest(name: str, work: DecodingWork, notify: Callable[[str], None]) -> list[EngineSpeed]:
    """The fastest exact configuration of an engine, and the fastest of all if it is another."""
    lines = work.filled[:TRIED]
    with ExitStack() as stack:
        ask = start_engine(name, work.how, stack)

        def seconds_of(setting: Setting) -> float:
            return ask("measure", setting, lines).seconds

        def best(among: list[Setting]) -> Setting:
            seconds = _median_seconds(among, seconds_of, SECONDS_TO_TRY)
            tried = "; ".join(f"{setting}: {seconds[setting]:.2f} s" for setting in among)
            notify(f"{name}, by {len(lines)} lines: {tried}")
            return min(among, key=seconds.__getitem__)

        settings = ask("settings")
        exact = best([setting for setting in settings if setting.precision == EXACT])
        others = [setting for setting in settings if setting.precision != EXACT]
        chosen = dict.fromkeys([exact, best([exact, *others]) if others else exact])
    return [EngineSpeed(engine=name, setting=setting) for setting in chosen]


def _threads_alone(setting: Setting, ask: Ask, work: DecodingWork) -> int:
    """How many threads are fastest for one line at a time."""
    counts = dict.fromkeys((1, setting.threads * setting.searches))
    settings = [replace(setting, searches=1, threads=count) for count in counts]
    lines = work.filled[:FEW]
    seconds = _median_seconds(
        settings, lambda setting: sum(ask("latencies", setting, lines)), SECONDS_TO_TRY / 10
    )
    return min(settings, key=seconds.__getitem__).threads


def _median_seconds(
    settings: Sequence[Setting], seconds_of: Callable[[Setting], float], limit: float
) -> dict[Setting, float]:
    """The median of several turns of each setting; the first round is made, and others while there is time."""
    turns: dict[Setting, list[float]] = {setting: [] for setting in settings}
    begun = time.monotonic()
    for number in range(MOST_ROUNDS):
        before = time.monotonic()
        for setting in settings:
            turns[setting].append(seconds_of(setting))
        now = time.monotonic()
        if number + 1 < MOST_ROUNDS and (now - begun) + (now - before) > limit:
            break
    return {setting: median(seconds) for setting, seconds in turns.items()}


def _measure_round(row: EngineSpeed, ask: Ask, work: DecodingWork) -> None:
    measured: Measured = ask("measure", row.setting, work.sources)
    row.seconds.append(measured.seconds)
    row.cpu_seconds.append(measured.cpu_seconds)
    row.peak_mib = max(row.peak_mib, measured.peak_mib)
    row.translations = measured.lines
    alone = replace(row.setting, searches=1, threads=row.alone_threads)
    row.latencies += ask("latencies", alone, work.filled[: work.alone])


def _compare(
    rows: Sequence[EngineSpeed], ask: Ask, work: DecodingWork, run: Run
) -> list[dict[str, str]]:
    """Counts what differs from the first row, scores all rows, and gives some of the lines that differ."""
    examples = []
    first = rows[0].translations
    for row in rows:
        own = row.translations
        others = [
            n
            for n, (one, other) in enumerate(zip(own, first, strict=True))
            if one.tokens != other.tokens
        ]
        lines = [work.sources[number] for number in others]
        scores = [ask("rescore", lines, [decoded[n] for n in others]) for decoded in (own, first)]
        row.differing = len(others)
        row.ties = sum(abs(a - b) < TIE for a, b in zip(*scores, strict=True))
        row.cut = sum(not (own[n].finished and first[n].finished) for n in others)
        for n in others[:SHOWN]:
            texts = {"source": work.sources[n], "nmtkit": first[n].text, "other": own[n].text}
            examples.append({"engine": f"{row.engine}, {row.setting}", "line": str(n + 1), **texts})
        if work.references is not None:
            row.score(run, work.sources, work.references)
    return examples


def _cold_starts(work: DecodingWork, run: Run) -> dict[str, list[float]]:
    """How long a process takes that translates one line, and one that only loads torch, in turns."""
    command = TASKS.get(run.recipe.task).command
    words = [
        command,
        "-m",
        str(run.folder.path),
        "--checkpoint",
        work.how.weights,
        "--device",
        work.how.device,
    ]
    beam = (work.how.search_settings or {}).get("beam_size")
    words += ["--beam-size", str(beam)] if beam else []
    programs = {
        f"nmtkit {command}": ["-m", "nmtkit", *words],
        "import torch": ["-c", "import torch"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(max(work.rounds, 2)):
        for name, arguments in programs.items():
            begun = time.monotonic()
            program, line = [sys.executable, *arguments], work.filled[0] + "\n"
            done = subprocess.run(program, input=line, text=True, capture_output=True, check=False)
            seconds[name].append(time.monotonic() - begun)
            if done.returncode:
                raise NmtkitError(
                    f"{name}: it ended with code {done.returncode}: {done.stderr.strip()}"
                )
    return seconds
