"""Fine-tuning of random public models on a few pairs."""

import json
from pathlib import Path
from typing import Any

import torch

from nmtkit.config import load as load_recipe
from nmtkit.experiment.stages import train_stages
from nmtkit.runs.run import Run
from nmtkit.training.events import Step
from tests.convert.huggingface.public import TEXTS
from tests.support.begun_runs import begin_run

LANGUAGES = {
    "nllb": ("eng_Latn", "fra_Latn", "deu_Latn"),
    "m2m100": ("__en__", "__fr__", "__de__"),
    "mbart": ("en_XX", "fr_XX", "de_DE"),
    "mbart50": ("en_XX", "fr_XX", "de_DE"),
}
"""A language to read and two to write."""

SOURCES = [" ".join(text.split()[: 2 + number % 4]) for number, text in enumerate(TEXTS[:12])]
TARGETS = [" ".join(reversed(source.split())) for source in SOURCES]
LR = 0.03


def write_recipe(path: Path, run: Path, corpora: Any, updates: int = 2, **training: Any) -> Path:
    """A recipe that trains on all corpora at once by gradient descent."""
    settings = {
        "init_from": str(run),
        "data": {"train": corpora, "valid": corpora},
        "model": {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0},
        "batch": {"batch_tokens": 100_000},
        "training": {
            "optimizer": "sgd",
            "lr": LR,
            "schedule": {"kind": "constant"},
            "max_updates": updates,
            "validate_every": updates,
            "log_every": 1,
            "clip_norm": None,
            "best_metric": "loss",
        }
        | training,
        "evaluation": {"max_sentences": 2},
    }
    path.write_text(json.dumps(settings), encoding="utf-8")
    return path


def trained(path: Path, folder: Path) -> tuple[Run, list[float]]:
    """The run of a recipe, and the loss of each update."""
    run = begin_run(load_recipe(path), str(folder))
    events = [*train_stages(run, torch.device("cpu"))]
    run.close()
    return run, [event.loss for event in events if isinstance(event, Step)]
