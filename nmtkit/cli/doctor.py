"""`nmtkit doctor`."""

import importlib.metadata
import platform
import sys
from typing import Any

import click
import torch

from nmtkit import console
from nmtkit.autotune import cache
from nmtkit.autotune.training import TrainingSpeedConfig
from nmtkit.core import device
from nmtkit.core.processes import available_cores
from nmtkit.core.version import __version__
from nmtkit.translation.inputs import SearchSpeedConfig

LIBRARIES = ["numpy", "click", "cloup", "pydantic", "pyyaml", "rich", "safetensors", "sentencepiece"]
LIBRARIES += ["sacrebleu", "rouge-score", "matplotlib", "tensorboard"]


@click.command()
@click.option("--clear", is_flag=True, help="Delete the measured settings, and show nothing.")
def command(clear: bool) -> None:
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
    rows = [["nmtkit", __version__], ["Python", f"{platform.python_version()} ({sys.executable})"]]
    rows += [["system", platform.platform()], ["torch", torch.__version__]]
    for name in LIBRARIES:
        try:
            rows.append([name, importlib.metadata.version(name)])
        except importlib.metadata.PackageNotFoundError:
            remedy = " (optional: pip install nmtkit[tensorboard])" if name == "tensorboard" else ""
            rows.append([name, f"not installed{remedy}"])
    console.table("versions", ["what", "version"], rows)

    devices = [
        ["CUDA", "yes" if torch.cuda.is_available() else f"no: {_why_no_cuda()}"],
        ["CPU", f"{cache.processor()}, with {torch.backends.cpu.get_cpu_capability()}"],
        ["CPU cores this process may use", str(available_cores())],
        ["CPU threads torch uses", str(torch.get_num_threads())],
        *([name, device.describe(torch.device(name))] for name in device.available()),
        ["torch.compile", _compile()],
    ]
    chosen = device.choose()
    why = "it is the first CUDA device" if chosen.type == "cuda" else "there is no CUDA device"
    devices.append(["will be used", f"{device.describe(chosen)}, because {why}; --device chooses another"])
    console.table("devices", ["what", "found"], devices)
    settings = []
    for entry in cache.entries():
        try:
            settings.append(_settings(entry))
        except (KeyError, TypeError):
            settings.append(["of another version of nmtkit", "", "", "", "", ""])
    if settings:
        columns = ["work", "model, vocabulary, batch or beam", "machine", "taken", "tokens/s or sentences/s", "day"]
        console.table(f"measured settings, kept in {cache.cache_folder()}", columns, settings)


def _settings(entry: dict[str, Any]) -> list[str]:
    """The measured settings of one workload, as a row."""
    work, found = entry["work"], entry["found"]
    machine = dict(work["machine"])
    names = [str(machine.pop(key)) for key in ("device", "processor") if key in machine]
    threads = f"{machine.pop('threads')} cores"
    changed = [f"{key}={value}" for key, value in machine.items() if key in cache.VARIABLES and "OMP" not in key]
    way = {"training": TrainingSpeedConfig, "search": SearchSpeedConfig}[work["work"]](**found["way"])
    model = f"{work['model']['kind']}, {max(work['vocabularies']):,}, {work['batch'][0]:,}"
    speed = f"{found['speeds'][str(way)]:,.0f}"
    return [work["work"], model, ", ".join([*names, threads, *changed]), str(way), speed, found["day"]]


def _why_no_cuda() -> str:
    if torch.version.cuda is None:
        return "this torch was built without CUDA"
    return "torch was built for CUDA, but no device or driver was found"


def _compile() -> str:
    """Tries torch.compile, which needs a working C++ compiler or Triton."""
    try:
        doubled = torch.compile(lambda x: x * 2)(torch.ones(2))
    except Exception as fault:  # whatever its back end raises is the answer
        return f"no: {type(fault).__name__}"
    return "works" if doubled.sum().item() == 4.0 else "gives wrong results"
