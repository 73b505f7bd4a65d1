"""`nmtkit doctor`."""

import importlib.metadata
import os
import platform
import sys

import click
import torch

from nmtkit import __version__, console, device

LIBRARIES = ["numpy", "click", "pydantic", "pyyaml", "rich", "safetensors", "sentencepiece"]
LIBRARIES += ["sacrebleu", "rouge-score", "matplotlib", "tensorboard"]


@click.command()
def command() -> None:
    """Versions, devices, and which device will be used and why.

    \b
    Example:
      nmtkit doctor
    """
    rows = [["nmtkit", __version__], ["Python", f"{platform.python_version()} ({sys.executable})"]]
    rows += [["system", platform.platform()], ["torch", torch.__version__]]
    for name in LIBRARIES:
        try:
            rows.append([name, importlib.metadata.version(name)])
        except importlib.metadata.PackageNotFoundError:
            rows.append(
                [
                    name,
                    "not installed" + (" (optional: pip install nmtkit[tensorboard])" if name == "tensorboard" else ""),
                ]
            )
    console.table("versions", ["what", "version"], rows)

    cuda = "yes" if torch.cuda.is_available() else f"no: {_why_no_cuda()}"
    devices = [["CUDA", cuda], ["CPU cores this process may use", str(_cores())]]
    devices += [["CPU threads torch uses", str(torch.get_num_threads())]]
    for name in device.available():
        place = torch.device(name)
        pays = "yes" if device.bf16_pays(place) else "no"
        devices.append([name, f"{device.describe(place)}; bf16 in hardware: {pays}"])
    devices.append(["torch.compile", _compile()])
    chosen = device.choose()
    why = "it is the first CUDA device" if chosen.type == "cuda" else "there is no CUDA device"
    devices.append(["will be used", f"{device.describe(chosen)}, because {why}; --device chooses another"])
    console.table("devices", ["what", "found"], devices)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _why_no_cuda() -> str:
    if torch.version.cuda is None:
        return "this torch was built without CUDA"
    return "torch was built for CUDA, but no device or driver was found"


def _compile() -> str:
    """Tries it, since only that tells: it needs a working C++ compiler or Triton."""
    try:
        doubled = torch.compile(lambda x: x * 2)(torch.ones(2))
    except Exception as fault:  # whatever its back end raises is the answer
        return f"no: {type(fault).__name__}"
    return "works" if doubled.sum().item() == 4.0 else "gives wrong results"
