"""`nmtkit tune` and `nmtkit doctor`: the fastest settings of this machine, and what it has."""

import importlib.metadata
import platform
import sys
from contextlib import suppress
from typing import Any

import click
import torch

from nmtkit import console, recipe
from nmtkit.autotune import cache
from nmtkit.autotune.training import TrainingSpeedConfig, tune_training, workload_of_run
from nmtkit.cli import options
from nmtkit.cli.reporting import tell
from nmtkit.cli.reports import show_diagnosis, show_report
from nmtkit.core import device as devices
from nmtkit.core.processes import available_cores
from nmtkit.core.version import __version__
from nmtkit.corpus.reading import read_pairs
from nmtkit.experiment import checks
from nmtkit.experiment.evaluation import require_validation_files
from nmtkit.experiment.loading import ModelOptions, open_autotuned
from nmtkit.experiment.run import Run, choose_device
from nmtkit.runs.folder import RunFolder, lock_run
from nmtkit.translation.inputs import SearchSpeedConfig

LIBRARIES = ["numpy", "click", "cloup", "pydantic", "pyyaml", "rich", "safetensors", "sentencepiece"]
LIBRARIES += ["sacrebleu", "rouge-score", "matplotlib", "tensorboard"]


@click.command("tune")
@options.recipe
@options.overrides
@options.run_folder
@options.device
def tune_command(name: str, overrides: tuple[str, ...], run_path: str | None, device: str) -> None:
    """Measure the fastest settings to train a recipe on this machine, and print the speed of each.

    A recipe may leave training.precision, training.matmul_precision and training.threads open (auto). Each setting is
    measured by a few updates of the recipe's model with its own text, in turns, in about half a minute. The result
    replaces the one before. Later trainings of such a model, in such batches, on this machine use it; `nmtkit doctor
    --clear` forgets it. `train` measures by itself if there is no result, in at most 5 % of its time.

    The text is preprocessed into the run's folder, as by `nmtkit preprocess`. If the run is trained, its search is
    measured too: precision, batch size, and one search per core or one on all cores.

    \b
    Examples:
      nmtkit tune demo
      nmtkit tune mine.yaml --set batch.batch_tokens=2048
    """
    loaded = recipe.load(name, overrides)
    checks.require_data(loaded)
    place = choose_device(device, loaded)
    folder = RunFolder.at(run_path, loaded.name)

    if folder.has_training():
        Run.open(str(folder.path), same_as=loaded)
        run = Run(folder, loaded, lock_run(folder, tell))
    else:
        run = Run.create(loaded, run_path, notify=tell)
    run.preprocess(tell, show_report, show_diagnosis, learned_before=folder.has_training())
    of_training = tune_training(workload_of_run(run, place), again=True)
    if of_training.speeds:
        _show_speeds(of_training, f"training {loaded.name} on {devices.describe(place)}")
    else:
        tell(f"the recipe leaves nothing open on {place.type}: {of_training.config}; say `auto` to have it measured")
    if not folder.result.is_file():
        tell("the search is measured once the run is trained: at the end of its training, or here")
        return
    lines = [pair.src for pair in read_pairs(require_validation_files(loaded)) if pair.src.strip()]
    how = ModelOptions(device=str(place), threads=devices.cpu_threads())
    _, of_search = open_autotuned(run, how, lines, float("inf"), again=True)
    if of_search.speeds:
        _show_speeds(of_search, "searching with it")
    else:
        tell(f"{len(lines)} validation sentences are too few to measure the search with")


def _show_speeds(result: cache.TuningResult[Any], title: str) -> None:
    fastest = max(result.speeds.values())
    rows = []
    for config, speed in sorted(result.speeds.items(), key=lambda item: -item[1]):
        taken = "taken" if config == str(result.config) else ""
        rows.append([config, result.format_speed(config), f"{speed / fastest:.0%}", taken])
    console.table(title, ["way", result.unit, "of the quickest", ""], rows)
    for sentence in result.sentences():
        tell(sentence)


@click.command("doctor")
@click.option("--clear", is_flag=True, help="Delete the measured settings, and show nothing.")
def doctor_command(clear: bool) -> None:
    """Show versions, devices, which device is used and why, and the measured settings.

    The fastest settings that `nmtkit train` and `nmtkit tune` measured on this machine are kept until --clear.

    \b
    Examples:
      nmtkit doctor
      nmtkit doctor --clear
    """
    if clear:
        console.say(f"{cache.clear()} forgotten: {cache.cache_folder()} is empty")
        return
    versions = dict.fromkeys(LIBRARIES, "not installed")
    versions["tensorboard"] += " (optional: pip install nmtkit[tensorboard])"
    for name in LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    rows = [["nmtkit", __version__], ["Python", f"{platform.python_version()} ({sys.executable})"]]
    rows += [["system", platform.platform()], ["torch", torch.__version__], *map(list, versions.items())]
    console.table("versions", ["what", "version"], rows)

    chosen = devices.choose()
    why = "it is the first CUDA device" if chosen.type == "cuda" else "there is no CUDA device"
    facts = [
        ["CUDA", "yes" if torch.cuda.is_available() else f"no: {_why_no_cuda()}"],
        ["CPU", f"{cache.processor()}, with {torch.backends.cpu.get_cpu_capability()}"],
        ["CPU cores this process may use", str(available_cores())],
        ["CPU threads torch uses", str(torch.get_num_threads())],
        *([name, devices.describe(torch.device(name))] for name in devices.available()),
        ["torch.compile", _try_compile()],
        ["will be used", f"{devices.describe(chosen)}, because {why}; --device chooses another"],
    ]
    console.table("devices", ["what", "found"], facts)
    if settings := [_measured_row(entry) for entry in cache.entries()]:
        columns = ["work", "model, vocabulary, batch or beam", "machine", "taken", "tokens/s or sentences/s", "day"]
        console.table(f"measured settings, kept in {cache.cache_folder()}", columns, settings)


def _measured_row(entry: dict[str, Any]) -> list[str]:
    try:
        key, result = entry["key"], entry["result"]
        machine = key["machine"]
        facts = [str(machine[name]) for name in ("device", "processor") if name in machine]
        facts.append(f"{machine['threads']} cores")
        facts += [f"{name}={machine[name]}" for name in cache.VARIABLES if name in machine and "OMP" not in name]
        config = {"training": TrainingSpeedConfig, "search": SearchSpeedConfig}[key["work"]](**result["config"])
        model = f"{key['model']['kind']}, {max(key['vocabularies']):,}, {key['batch'][0]:,}"
        speed = f"{result['speeds'][str(config)]:,.0f}"
        return [key["work"], model, ", ".join(facts), str(config), speed, result["day"]]
    except (KeyError, TypeError):
        return ["of another version of nmtkit", "", "", "", "", ""]


def _why_no_cuda() -> str:
    if torch.version.cuda is None:
        return "this torch was built without CUDA"
    return "torch was built for CUDA, but no device or driver was found"


def _try_compile() -> str:
    """Tries torch.compile, which needs a working C++ compiler or Triton."""
    try:
        doubled = torch.compile(lambda x: x * 2)(torch.ones(2))
    except Exception as fault:  # whatever its back end raises is the answer
        return f"no: {type(fault).__name__}"
    return "works" if doubled.sum().item() == 4.0 else "gives wrong results"
