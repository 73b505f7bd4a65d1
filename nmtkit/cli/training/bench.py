"""`nmtkit bench`, `tune` and `doctor`: speed of this machine, its fastest training settings, and its devices."""

import json
import platform
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch

from nmtkit.cli import terminal
from nmtkit.cli.inference import model_options
from nmtkit.cli.options import with_threads
from nmtkit.cli.terminal.reporting import tell
from nmtkit.cli.terminal.reports import show_diagnosis, show_report
from nmtkit.cli.text_io import results
from nmtkit.cli.text_io.reading import stdin_lines
from nmtkit.config import Recipe
from nmtkit.config import load as load_recipe
from nmtkit.config.tasks.builtin import TRANSLATION
from nmtkit.convert.engines import library
from nmtkit.core import device as devices
from nmtkit.core import machine, speed_cache
from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.data.text.files.json_records import EXTRACT_HINT, refuse_json_lines
from nmtkit.data.text.files.lines import read_lines
from nmtkit.data.text.reading import read_pairs
from nmtkit.datacheck.findings import Diagnosis
from nmtkit.experiment import bench, checks, costs
from nmtkit.experiment.execute import begin, choose_device, prepare, resolve_batch
from nmtkit.experiment.preprocessing import preprocess
from nmtkit.experiment.tuning import tune_training
from nmtkit.experiment.workloads import workload_of_run
from nmtkit.inference.answering import model_inputs
from nmtkit.inference.loading.options import DecodingOptions
from nmtkit.metrics.systems import named
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.run import Run, find_run
from nmtkit.training.parallel import processes

UPDATES_IN_A_ROUND = 5


@model_options.opens_model
def run_bench_decoding(
    how: DecodingOptions,
    source: str | None,
    ref: Path | None,
    lines: int | None,
    rounds: int,
    output: Path | None,
) -> None:
    """Carries out `nmtkit bench decode`."""
    results.require_other(output, [None if source is None else Path(source), ref])
    sources, references = read_test_lines(how, source, ref, lines)
    facts, speeds = bench.measure_decoding(how, sources, references, rounds, tell)
    show_machine(facts)
    first, *others = speeds
    columns = ["configuration", *DECODING_COLUMNS, *first.scores]
    rows = [[speed.config, *decoding_cells(speed)] for speed in speeds]
    if others:
        columns.append("other texts")
        for row, speed in zip(rows, speeds, strict=True):
            row.append(f"{speed.differing:,}")
    terminal.table(f"decoding {len(sources):,} lines, {rounds} rounds", columns, rows)
    figures = {"facts": facts, **first.figures(), "beside": [speed.figures() for speed in others]}
    write_figures(output, figures)


def run_bench_training(
    name: str,
    overrides: tuple[str, ...],
    run_path: str | None,
    device: str,
    threads: int | None,
    rounds: int,
    output: Path | None,
) -> None:
    """Carries out `nmtkit bench train`."""
    results.require_other(output, [Path(name)])
    loaded = load_recipe(name, with_threads(overrides, threads))
    speed = _try_training(
        loaded, run_path, choose_device(device, loaded), UPDATES_IN_A_ROUND, rounds
    )[0]
    if loaded.stages:
        tell(
            f"only updates of stage {loaded.stages[0].name} were measured, not those of the other stages"
        )
    write_figures(output, speed.figures())


def _try_training(
    loaded: Recipe,
    run_path: str | None,
    place: torch.device,
    updates: int,
    rounds: int,
    plan: bool = False,
) -> tuple[bench.TrainingSpeed, list[list[str]]]:
    """Measures and prints the speed of a recipe's updates; returns it and, with `plan`, the cost of training."""
    with ExitStack() as stack:
        workload, data = bench.training_workload(loaded, run_path, place, stack, tell)
        speed = bench.measure_training(workload, data, updates, rounds, tell)
        if processes.rank() == 0:
            show_training(loaded.name, speed)
        return speed, costs.planned(workload, speed) if plan else []


def dry_run(loaded: Recipe, run_path: str, place: torch.device) -> None:
    """Runs a warm-up update and a measured update of a recipe (or of its first stage); process 0 prints the cost."""
    rows = _try_training(loaded, run_path, place, 1, 1, plan=True)[1]
    if processes.rank():
        return
    first, *others = [stage.name for stage in loaded.stages] or [""]
    whole = f"stage {first}" if others else "complete training"
    terminal.table(f"{whole} of {loaded.name}", ["what", "value"], rows)
    if others:
        tell(f"the other stages need additional time: {', '.join(others)}")
    tell("nothing was saved; to train, remove --dry-run")


def read_test_lines(
    how: DecodingOptions, source: str | None, ref: Path | None, count: int | None
) -> tuple[list[Any], list[str] | None]:
    """Returns lines and their references, if any: from files, or else from the test or validation set, with tags."""
    if source is not None:
        lines = list(stdin_lines()) if source == "-" else list(read_lines(Path(source)))
        references = None if ref is None else list(read_lines(ref))
        for text, name in ((lines, named(source)), (references or (), str(ref))):
            refuse_json_lines(text, name, EXTRACT_HINT)
        return lines[:count], references and references[:count]
    if ref is not None:
        raise click.UsageError("--ref requires --source; use both options or neither")
    run = find_run(how.model)[0]
    splits = run.recipe.data.splits()
    files = splits.get("test") or splits.get("valid")
    if files is None:
        raise DataError(
            f"{run.folder.path}: the run's recipe has neither a test nor a validation set; use --source FILE"
        )
    pairs = list(read_pairs(files))[:count]
    targets = [pair.tgt for pair in pairs if pair.tgt is not None]
    return model_inputs(TRANSLATION, pairs), targets if len(targets) == len(pairs) else None


def show_machine(facts: dict[str, object]) -> None:
    """Prints a table of facts about the machine."""
    terminal.table(
        "machine", ["what", "value"], [[name, str(value)] for name, value in facts.items()]
    )


DECODING_COLUMNS = ["sentences/s", "min-max", "tokens/s", "alone, ms", "p95", "MiB"]


def decoding_cells(speed: bench.DecodingSpeed) -> list[str]:
    """Returns the cells for `DECODING_COLUMNS`, followed by the scores."""
    figures = speed.figures()
    return [
        f"{median(figures['sentences_per_second']):,.1f}",
        bench.spread(figures["sentences_per_second"], 1),
        f"{speed.tokens / median(speed.seconds):,.0f}",
        f"{figures['latency_ms_median']:.1f}",
        f"{figures['latency_ms_p95']:.1f}",
        f"{speed.peak_mib:,.0f}" if speed.peak_mib else "-",
        *(f"{value:.2f}" for value in speed.scores.values()),
    ]


def show_training(name: str, speed: bench.TrainingSpeed) -> None:
    """Prints the tables of the machine and of a recipe's updates."""
    show_machine(speed.facts)
    cells = {
        "configuration": str(speed.config),
        "tokens/s": f"{median(speed.tokens_per_second):,.0f}",
        "min-max": bench.spread(speed.tokens_per_second),
        "ms per update": f"{1e3 * median(speed.seconds) / speed.updates:,.0f}",
        "tokens per update": f"{speed.tokens / speed.updates:,.0f}",
        "MiB": f"{speed.peak_mib:,.0f}",
    }
    title = (
        f"training {name} on {speed.data}, {len(speed.seconds)} rounds of {speed.updates} updates"
    )
    terminal.table(title, list(cells), [list(cells.values())])


def write_figures(path: Path | None, figures: dict[str, Any]) -> None:
    """Writes all measurements as JSON, unless `path` is None."""
    if path is not None:
        with results.output_file(path, ()) as file:
            file.write(json.dumps(figures, ensure_ascii=False, indent=1) + "\n")
        tell(f"wrote {path}")


def run_tune(name: str, overrides: tuple[str, ...], run_path: str | None, device: str) -> None:
    """Carries out `nmtkit tune`."""
    loaded = load_recipe(name, overrides)
    place = choose_device(device, loaded)
    folder = RunFolder.at(run_path, loaded.name)
    if folder.has_training():
        checks.require_data(loaded)
        checks.require_same_recipe(Run.open(folder.path), loaded)
        run = Run.open_to_write(folder.path, tell)
        run.recipe = loaded
        events = preprocess(run, tell, learned_before=True)
    else:
        planned, run = begin(loaded, place, run_path, notify=tell)
        events = prepare(planned, run, tell)
    with run:
        for event in events:
            if isinstance(event, Diagnosis):
                show_diagnosis(event)
            else:
                show_report(event)
        resolve_batch(run, place, tell)
        # the device is described now, because measuring changes the number of threads
        title = f"training {loaded.name} on {devices.describe(place)}"
        tuned = tune_training(workload_of_run(run, place), again=True)
    if tuned.speeds:
        _show_speeds(tuned, title)
    else:
        tell(
            f"the recipe leaves nothing to measure on {place.type} ({tuned.config}); to measure a key, set it to `auto`"
        )


def _show_speeds(result: speed_cache.TuningResult[Any], title: str) -> None:
    fastest = max(result.speeds.values())
    rows = []
    for config, speed in sorted(result.speeds.items(), key=lambda item: -item[1]):
        taken = "chosen" if config == str(result.config) else ""
        shown = f"{speed:,.0f}" if speed else "stopped: too slow, or not enough memory"
        rows.append([config, shown, f"{speed / fastest:.0%}", taken])
    terminal.table(title, ["settings", "target tokens/s", "relative speed", ""], rows)
    tell(str(result))


LIBRARIES = [
    "numpy",
    "click",
    "cloup",
    "pydantic",
    "pyyaml",
    "rich",
    "safetensors",
    "sentencepiece",
]
LIBRARIES += ["sacrebleu", "rouge-score", "matplotlib", "tensorboard", "ctranslate2"]


def run_doctor(clear: bool) -> None:
    """Carries out `nmtkit doctor`."""
    if clear:
        terminal.say(
            f"deleted {speed_cache.clear()} measurements from {speed_cache.cache_folder()}"
        )
        return
    chosen = devices.choose()
    why = "it is the first CUDA device" if chosen.type == "cuda" else "there is no CUDA device"
    why_no_cuda = (
        "no device or driver was found"
        if torch.version.cuda
        else "this torch was built without CUDA"
    )
    facts = machine.machine_facts(torch.get_num_threads(), chosen)
    facts |= {
        "interpreter": sys.executable,
        "system": platform.platform(),
        "CPU instructions": torch.backends.cpu.get_cpu_capability(),
        "CUDA": "yes" if torch.cuda.is_available() else f"no: {why_no_cuda}",
        "devices": ", ".join(devices.describe(torch.device(name)) for name in devices.available()),
        "will be used": f"{devices.describe(chosen)}, because {why}; --device selects another",
        "measured settings": f"{len(speed_cache.entries())}, stored in {speed_cache.cache_folder()}",
    }
    facts |= {name: machine.library_version(name) for name in LIBRARIES}
    try:
        library("ctranslate2")
    except NmtkitError as fault:
        facts["ctranslate2"] = f"Transformers translate more slowly without it: {fault}"
    show_machine(facts)
