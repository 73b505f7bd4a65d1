"""Whether a training that was stopped and resumed is the one that was never stopped: the embedded demo, three models.

On a CPU it is, bit for bit. On a CUDA device that is promised with `--set training.deterministic=true` only, which
holds for the whole process, so each way is a part of its own; without it the difference is measured.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch

from nmtkit import recipe
from nmtkit.experiment.run import Run, choose_device
from nmtkit.runs.folder import RunFolder
from nmtkit.training.events import Stopped

from .results import Part, start

SIZES = {"hidden_size": 128, "dropout": 0.1}
MODELS: dict[str, dict[str, object]] = {
    "transformer": {"kind": "transformer", **SIZES, "encoder_layers": 2, "decoder_layers": 2, "tie": "all"},
    "pointer_generator": {"kind": "pointer_generator", **SIZES, "embedding_size": 64, "coverage": True},
    "luong": {"kind": "luong", **SIZES, "embedding_size": 64, "layers": 2, "window": "local_p"},
}
HALF = 3
"""Updates before and after the stop."""


def written(part: Part, name: str, precision: str) -> recipe.Recipe:
    exact = f"matmul_precision: highest, deterministic: {str(part.options.deterministic).lower()}"
    training = f"lr: 0.001, clip_norm: 1.0, max_updates: {2 * HALF}, threads: {torch.get_num_threads()}"
    overrides = [
        f"model={json.dumps(MODELS[name])}",
        "tokenizer={kind: word, vocab_size: 2000, joint: true}",
        f"training={{{training}, precision: {precision}, {exact}}}",
        "evaluation={max_sentences: 2}",
    ]
    return recipe.load("demo", overrides)


def train(what: recipe.Recipe, folder: Path, device: str, resume: bool = False, until: int | None = None) -> None:
    """As `nmtkit train` does; `until` stops it after so many updates, as a signal would."""
    place = choose_device(device, what)
    work = Run.begin(what, str(folder), resume=resume)
    asked = iter(range(2 * HALF + 2))
    *_, last = work.train(place, lambda text: None, resume, lambda: next(asked) == until)
    assert isinstance(last, Stopped)
    assert (last.reason, last.update) == (("interrupted", until) if until else ("max_updates", 2 * HALF))


def weights(what: recipe.Recipe, folder: Path) -> dict[str, torch.Tensor]:
    """Of the last state, the optimizer's included."""
    return Run(RunFolder(folder), what).stages()[-1].checkpoints.load_last()[0]


def compare(part: Part, name: str, precision: str, ready: Path) -> None:
    """One model, once straight and once stopped and resumed."""
    what = written(part, name, precision)
    folders = [part.scratch / f"{name}-{precision}-{way}" for way in ("straight", "stopped")]
    for folder in folders:
        shutil.copytree(ready, folder)
        train(what, folder, part.options.device, until=HALF if folder is folders[1] else None)
    train(what, folders[1], part.options.device, resume=True)
    one, other = (weights(what, folder) for folder in folders)
    assert one.keys() == other.keys()
    same = all(torch.equal(one[key], other[key]) for key in one)
    far = max(float((one[key].double() - other[key].double()).abs().max()) for key in one if key.startswith("weights/"))
    promised = part.options.deterministic or part.place.type == "cpu"
    figure = "bit for bit" if same else f"weights differ by up to {far:.1e}"
    part.results.add(f"{name}, {precision}", same if promised else None, figure, difference=far)


def main(part: Part) -> None:
    for name in MODELS:
        ready = part.scratch / name
        Run.create(written(part, name, "fp32"), str(ready)).preprocess(lambda text: None, lambda report: None)
        for precision in ("fp32",) if part.quick else ("fp32", "bf16"):
            compare(part, name, precision, ready)


def own(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--deterministic", action="store_true", help="with training.deterministic")


if __name__ == "__main__":
    main(start("resume", __doc__, own))
