"""How fast a trained model translates, and the engines of others with the same weights: in turns, in one run."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from nmtkit.autotune.timing import time_interleaved
from nmtkit.core import device as devices
from nmtkit.core.errors import NmtkitError
from nmtkit.core.processes import WorkerProcess, call, call_each
from nmtkit.core.task import TASKS
from nmtkit.experiment.bench import DecodingSpeed, peak_memory_mib, read_clock, require_lines, reset_peak_memory
from nmtkit.experiment.loading import ModelOptions
from nmtkit.interchange import conversion
from nmtkit.interchange.exporting import require_comparable
from nmtkit.runs.saved import SavedRun, find_run
from nmtkit.translation.result import Translation

from . import machine
from .engines import CONTESTANTS, EXACT, Contestant, Decoded, Ours, Setting
from .products import Products

TRIED = 1000
"""Lines by which the best way of each engine is found."""
SECONDS_TO_TRY = 40.0
"""For each engine, after every way was tried once."""
WARM = 256
"""Lines decoded before each turn: in memory that has been used little a process is slower."""
FIRST = 8
"""Lines by which the threads for a line alone are found."""
TIE = 1e-4
"""Two translations whose scores differ by less are equally good."""
SHOWN = 3
"""Differing lines that are shown."""


@dataclass(frozen=True)
class DecodingWork:
    """What is to be decoded, and how often."""

    how: ModelOptions
    sources: Sequence[str]
    references: Sequence[str] | None = None
    against: tuple[str, ...] = ()
    """Names of other engines."""
    rounds: int = 3
    alone: int = 50
    """Lines that are also decoded one at a time."""


@dataclass
class EngineSpeed(DecodingSpeed):
    """One row of the result: an engine in one of its configurations."""

    engine: str
    setting: Setting
    alone_threads: int = 1
    """What is fastest for one sentence at a time."""
    cpu_seconds: list[float] = field(default_factory=list)
    """Of all threads and workers; they say more than the clock where other processes want the cores too."""
    bare: list[float] = field(default_factory=list)
    """Seconds of the matrix products alone in each round; of nmtkit only."""
    gflop: float = 0.0
    """Of these products."""
    gigabytes: float = 0.0
    """That they read and write."""
    differing: int = 0
    """Lines unlike those of nmtkit's first row."""
    ties: int = 0
    """Differing lines whose two translations have nearly one score."""
    cut: int = 0
    """Differing lines that did not end before a length limit, which is not the same for all engines."""

    @property
    def share(self) -> list[float]:
        """The products' part of the time, in each round."""
        return [bare / seconds for bare, seconds in zip(self.bare, self.seconds, strict=False)]

    def figures(self) -> dict[str, Any]:
        """The measurements under plain names, without the translations."""
        more = {"setting": asdict(self.setting), "way": str(self.setting), "share_of_floor": self.share}
        return {**super().figures(), **more, "floor_seconds": self.bare}


@dataclass
class DecodingResult:
    """All that was measured."""

    facts: dict[str, object]
    rows: list[EngineSpeed]
    cold: dict[str, list[float]]
    """Seconds from the start of a process to its end: of `nmtkit translate` with one line, and of `import torch`."""
    examples: list[dict[str, str]]
    """Some lines that differ: the source, nmtkit's translation, the engine and its translation."""
    pressure: dict[str, float | None]


@dataclass
class Service:
    """What a process does for the bench: it has one engine, and is asked by the name of a method and its arguments."""

    name: str
    how: ModelOptions
    contestant: Contestant | None = None

    def __call__(self, asked: tuple[str, Any]) -> Any:
        """Answers."""
        method, arguments = asked
        if self.contestant is None:
            self._empty = peak_memory_mib(devices.choose("cpu"))
            self.contestant = CONTESTANTS[self.name](self.how)
        return getattr(self, f"_{method}")(self.contestant, *arguments)

    def _settings(self, engine: Contestant) -> list[Setting]:
        return engine.settings()

    def _decode(
        self, engine: Contestant, setting: Setting, lines: Sequence[str]
    ) -> tuple[float, float, float, list[Decoded]]:
        """Seconds, those of the CPU, memory and what was found."""
        engine.take(setting)
        engine.decode(lines[:WARM])
        reset_peak_memory(engine.place)
        begun, cpu_begun = read_clock(engine.place), machine.cpu_seconds()
        found = engine.decode(lines)
        seconds, cpu = read_clock(engine.place) - begun, machine.cpu_seconds() - cpu_begun
        before = 0.0 if engine.place.type == "cuda" else self._empty
        peak = peak_memory_mib(engine.place) + machine.peak_of_workers_mib()
        return seconds, cpu, max(0.0, peak - before), found

    def _alone(self, engine: Contestant, setting: Setting, lines: Sequence[str]) -> list[float]:
        """Seconds of each line."""
        engine.take(setting)
        engine.decode(lines[:1])
        taken = []
        for line in lines:
            begun = read_clock(engine.place)
            engine.decode([line])
            taken.append(read_clock(engine.place) - begun)
        return taken

    def _record(self, engine: Contestant, setting: Setting, lines: Sequence[str]) -> tuple[float, float]:
        """GFLOP and gigabytes of the products; what `_bare` computes from now on for this way."""
        products = Products()
        engine.take(replace(setting, searches=1, threads=1))  # one search in this thread sees them all
        engine.reader = replace(engine.reader, steps="eager")  # graphs would hide them
        products.record(lambda: engine.decode(lines))
        self._products = {**getattr(self, "_products", {}), setting: products}
        return products.gflop, products.gigabytes

    def _bare(self, engine: Contestant, setting: Setting) -> float:
        engine.take(setting)
        seconds: float = self._products[setting].seconds(engine.place, setting.searches)
        return seconds

    def _rescore(self, engine: Contestant, lines: Sequence[str], found: Sequence[Decoded]) -> list[float]:
        translations = [Translation(one.text, 0.0, 0.0, one.tokens, [], [], one.finished) for one in found]
        engine.take(engine.settings()[0])
        return [one.score for one in engine.reader.rescore(lines, translations)]


Ask = Callable[..., Any]


def measure_decoding(work: DecodingWork, notify: Callable[[str], None]) -> DecodingResult:
    """Measures; every engine, in each of its ways, has a process of its own that stays.

    Raises:
        NmtkitError: an engine is not installed or cannot do this work; nothing has been measured then.
    """
    run = find_run(work.how.model)[0]
    _refuse_what_cannot_be_done(work, run)
    watch = machine.Watch(notify)
    watch.look("before")
    place = devices.choose(work.how.device)
    facts = machine.facts(work.how.threads or devices.cpu_threads(), place)
    with ExitStack() as stack:
        rows = [row for name in (Ours.name, *work.against) for row in _best(name, work, notify)]
        ask = [_started(row.engine, work.how, stack) for row in rows]
        # Threads that compute the products side by side would keep a process from searching by forks.
        products = _started(Ours.name, work.how, stack)
        for row, asked in zip(rows, ask, strict=True):
            asked("decode", row.setting, work.sources)  # makes room in memory, as an engine that runs has it
            row.alone_threads = _threads_alone(row.setting, asked, work)
            if row.engine == Ours.name:
                row.gflop, row.gigabytes = products("record", row.setting, work.sources)
        for number in range(work.rounds):
            watch.look(f"before round {number + 1}")
            first = number % len(rows)
            turns = list(zip(rows, ask, strict=True))
            for row, asked in turns[first:] + turns[:first]:
                _turn(row, asked, work)
                if row.gflop:
                    row.bare.append(products("bare", row.setting))
        examples = _compare(rows, products, work)
    cold = _cold(work, run)
    watch.look("after")
    return DecodingResult(facts, rows, cold, examples, watch.seen)


def _refuse_what_cannot_be_done(work: DecodingWork, run: SavedRun) -> None:
    require_lines(work.sources, work.references)
    config = run.newest_stage().recipe
    for name in work.against:
        conversion.require_convertible(config.model, name)
        require_comparable(name, config.search.changed(work.how.search_settings or {}))
        conversion.library(name)


def _started(name: str, how: ModelOptions, stack: ExitStack) -> Ask:
    """Starts an engine's process, which ends with the stack."""
    remedy = "take fewer lines, or measure the engines one after the other"
    variables = dict(os.environ)
    if name != Ours.name and devices.WAITING in variables:  # how threads wait was chosen for nmtkit alone
        for variable in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", devices.WAITING):
            del variables[variable]
    worker = WorkerProcess(variables=variables)
    stack.callback(worker.end)
    worker.connection.send(partial(call_each, Service(name, how)))
    return lambda method, *arguments: call(worker, (method, arguments), remedy)


def _best(name: str, work: DecodingWork, notify: Callable[[str], None]) -> list[EngineSpeed]:
    """The quickest exact way of an engine, and the quickest of all if it is another."""
    lines = _filled(work)[:TRIED]
    with ExitStack() as stack:
        ask = _started(name, work.how, stack)
        settings: list[Setting] = ask("settings")

        def best(among: list[Setting]) -> Setting:
            turns = time_interleaved(among, lambda setting, *_: float(ask("decode", setting, lines)[0]), SECONDS_TO_TRY)
            tried = "; ".join(f"{setting}: {turns.slower[setting]:.2f}" for setting in among)
            notify(f"{name}, by {len(lines)} lines, times of the quickest way: {tried}")
            return turns.best

        exact = best([setting for setting in settings if setting.precision == EXACT])
        others = [setting for setting in settings if setting.precision != EXACT]
        chosen = dict.fromkeys([exact, best([exact, *others]) if others else exact])
    return [EngineSpeed(name, setting) for setting in chosen]


def _filled(work: DecodingWork) -> list[str]:
    """The lines that are not empty."""
    return [line for line in work.sources if line.strip()]


def _threads_alone(setting: Setting, ask: Ask, work: DecodingWork) -> int:
    """How many threads are quickest for one line at a time."""
    ways = dict.fromkeys(replace(setting, searches=1, threads=n) for n in (1, setting.threads * setting.searches))
    lines = _filled(work)[:FIRST]
    return time_interleaved(list(ways), lambda way, *_: sum(ask("alone", way, lines)), SECONDS_TO_TRY / 10).best.threads


def _turn(row: EngineSpeed, ask: Ask, work: DecodingWork) -> None:
    """An engine's part of a round."""
    seconds, cpu, peak, row.translations = ask("decode", row.setting, work.sources)
    row.seconds.append(seconds)
    row.cpu_seconds.append(cpu)
    row.peak_mib = max(row.peak_mib, peak)
    lines = _filled(work)[: work.alone]
    row.latencies += ask("alone", replace(row.setting, searches=1, threads=row.alone_threads), lines)


def _compare(rows: Sequence[EngineSpeed], ask: Ask, work: DecodingWork) -> list[dict[str, str]]:
    """Counts in the rows what differs from the first, scores all of them; gives some of the lines that differ."""
    examples = []
    first = rows[0].translations
    for row in rows:
        found = row.translations
        others = [n for n, (one, other) in enumerate(zip(found, first, strict=True)) if one.tokens != other.tokens]
        row.differing = len(others)
        lines = [work.sources[number] for number in others]
        own, expected = (ask("rescore", lines, [some[n] for n in others]) for some in (found, first))
        row.ties = sum(abs(a - b) < TIE for a, b in zip(own, expected, strict=True))
        row.cut = sum(not (found[n].finished and first[n].finished) for n in others)
        for number in others[:SHOWN]:
            shown = {
                "source": work.sources[number],
                "nmtkit": first[number].text,
                "other": found[number].text,
            }
            examples.append({"engine": f"{row.engine}, {row.setting}", "line": str(number + 1), **shown})
        if work.references is not None:
            row.score(find_run(work.how.model)[0], work.sources, work.references)
    return examples


def _cold(work: DecodingWork, run: SavedRun) -> dict[str, list[float]]:
    """How long a process takes that translates one line, and one that only loads torch, in turns."""
    line = next(line for line in work.sources if line.strip())
    command = TASKS.get(run.recipe.task).command
    words = [command, "-m", str(run.folder.path), "--checkpoint", work.how.weights, "--device", work.how.device]
    beam = (work.how.search_settings or {}).get("beam_size")
    words += ["--beam-size", str(beam)] if beam else []
    programs = {f"nmtkit {command}": ["-m", "nmtkit", *words], "import torch": ["-c", "import torch"]}
    taken: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(max(work.rounds, 2)):
        for name, arguments in programs.items():
            begun = time.monotonic()
            program = [sys.executable, *arguments]
            done = subprocess.run(program, input=line + "\n", text=True, capture_output=True, check=False)
            taken[name].append(time.monotonic() - begun)
            if done.returncode:
                raise NmtkitError(f"{name}: it ended with code {done.returncode}: {done.stderr.strip()}")
    return taken
