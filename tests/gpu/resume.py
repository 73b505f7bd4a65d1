"""Whether a training that was stopped and resumed is the one that was never stopped: the embedded demo, three models.

On a CPU it is, bit for bit. On a CUDA device that is promised with `--set training.deterministic=true` only, which
holds for the whole process, so each way is a part of its own; without it the difference is measured.
"""

import json
import shutil
from pathlib import Path

import torch

from nmtkit import recipe
from nmtkit.experiment.run import Run, choose_device
from nmtkit.runs.folder import RunFolder
from nmtkit.training.events import Stopped

from .results import Part

SIZES = {"hidden_size": 128, "dropout": 0.1}
MODELS: dict[str, dict[str, object]] = {
    "transformer": {"kind": "transformer", **SIZES, "encoder_layers": 2, "decoder_layers": 2, "tie": "all"},
    "pointer_generator": {"kind": "pointer_generator", **SIZES, "embedding_size": 64, "coverage": True},
    "luong": {"kind": "luong", **SIZES, "embedding_size": 64, "layers": 2, "window": "local_p"},
}
HALF = 3
"""Updates before and after the stop."""


def written(name: str, precision: str, deterministic: bool) -> recipe.Recipe:
    exact = f"matmul_precision: highest, deterministic: {json.dumps(deterministic)}"
    training = f"lr: 0.001, clip_norm: 1.0, max_updates: {2 * HALF}, threads: {torch.get_num_threads()}"
    overrides = [
        f"model={json.dumps(MODELS[name])}",
        "tokenizer={kind: word, vocab_size: 2000, joint: true}",
        f"training={{{training}, precision: {precision}, {exact}}}",
        "evaluation={max_sentences: 2}",
    ]
    return recipe.load("demo", overrides)


def train(loaded: recipe.Recipe, folder: Path, device: str, resume: bool = False, until: int | None = None) -> None:
    """As `nmtkit train` does; `until` stops it after so many updates, as a signal would."""
    place = choose_device(device, loaded)
    run = Run.begin(loaded, str(folder), resume=resume)
    updates = iter(range(2 * HALF + 2))
    *_, last = run.train(place, lambda text: None, resume, lambda: next(updates) == until)
    assert isinstance(last, Stopped)
    assert (last.reason, last.update) == (("interrupted", until) if until else ("max_updates", 2 * HALF))


def compare(loaded: recipe.Recipe, straight: Path, stopped: Path, device: str) -> tuple[bool, float]:
    """Trains once straight, once stopped and resumed: whether all is equal, and how far the weights are apart."""
    train(loaded, straight, device)
    train(loaded, stopped, device, until=HALF)
    train(loaded, stopped, device, resume=True)
    runs = [Run(RunFolder(folder), loaded) for folder in (straight, stopped)]
    one, other = (run.stages()[-1].checkpoints.load_last()[0] for run in runs)  # with the optimizer's state
    assert one.keys() == other.keys()
    same = all(torch.equal(one[key], other[key]) for key in one)
    return same, max(
        float((one[key].double() - other[key].double()).abs().max()) for key in one if key.startswith("weights/")
    )


def main(part: Part, deterministic: bool) -> None:
    promised = deterministic or part.place.type == "cpu"
    for name in MODELS:
        ready = part.scratch / name
        Run.create(written(name, "fp32", deterministic), str(ready)).preprocess(lambda text: None, lambda report: None)
        for precision in ("fp32",) if part.quick else ("fp32", "bf16"):
            folders = [part.scratch / f"{name}-{precision}-{kind}" for kind in ("straight", "stopped")]
            for folder in folders:
                shutil.copytree(ready, folder)
            same, far = compare(written(name, precision, deterministic), *folders, str(part.place))
            figure = "bit for bit" if same else f"weights differ by up to {far:.1e}"
            part.add(f"{name}, {precision}", same if promised else None, figure, difference=far)
