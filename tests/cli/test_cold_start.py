"""What a translation of one line imports and reads, without a clock: what it does not need costs a cold start."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.tools.house import traced

NEEDLESS = {"jinja2", "matplotlib", "numpy.random", "requests", "rouge_score", "sacrebleu"}
NEEDLESS |= {
    "PIL",
    "ctranslate2",
    "scipy",
    "tensorboard",
    "tokenizers",
    "torch._dynamo",
    "transformers",
}
OURS_NEEDLESS = {"datasets", "datacheck", "metrics", "plots"}
TRAINING_NEEDED = {"checkpoints", "parallel"}
"""Parts of `nmtkit.training` that decoding uses."""
NEEDED = ("recipe.yaml", "inference.json", "vocabulary", "checkpoints")


def bare(trained: Path, folder: Path) -> Path:
    """A run with nothing but what a translation needs."""
    run = folder / "bare"
    run.mkdir()
    for name in NEEDED:
        part = trained / name
        (shutil.copytree if part.is_dir() else shutil.copy2)(part, run / name)
    (run / "checkpoints" / "last.safetensors").write_bytes(
        b"what training goes on with is not read"
    )
    return run


def test_a_translation_imports_and_reads_only_what_it_needs(trained: Path, tmp_path: Path) -> None:
    opened, imported, entered = traced(
        "translate", "-m", str(bare(trained, tmp_path)), text="ba ce\n"
    )
    vocabulary = {path.name for path in (trained / "vocabulary").iterdir()}
    assert opened["recipe.yaml"] == 1
    assert {name for name in vocabulary if opened[name] > 2} == set(), (
        "for its checksum, and for what it holds"
    )
    assert "torch" in imported
    assert not imported & NEEDLESS
    assert not imported & {"nmtkit.config.schema", "nmtkit.training.config"}
    rooms = {name.split(".")[1] for name in imported if name.startswith("nmtkit.")}
    assert "decoding" in rooms
    assert not rooms & OURS_NEEDLESS
    parts = {name.split(".")[2] for name in imported if name.startswith("nmtkit.training.")}
    assert parts <= TRAINING_NEEDED
    assert 20 < len(entered) < 85
    torch_alone = subprocess.run(
        [sys.executable, "-c", "import torch, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    more = {name for name in imported if name.startswith(("torch.", "sympy."))} - set(
        torch_alone.stdout.split()
    )
    assert not more, "torch's own parts that it does not import by itself"
