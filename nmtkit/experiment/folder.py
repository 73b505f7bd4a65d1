"""The folder of a run: the one place that knows the names of its files, and how to open the model in it."""

import errno
import json
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nmtkit.data.tokenizer import TokenizerPair
from nmtkit.errors import CheckpointError, DataError, NmtkitError, require_replaceable, writing
from nmtkit.models.base import MODELS, Seq2Seq, VocabularySizes
from nmtkit.recipe import Recipe, load
from nmtkit.settings import parse_json
from nmtkit.task import TASKS
from nmtkit.training.checkpoint import Checkpoints
from nmtkit.training.weights import load_weights

RUNS = Path("runs")
MODEL_VARIABLE = "NMTKIT_MODEL"


@dataclass(frozen=True)
class StageFolder:
    """One stage of a run and where its checkpoints are; a run without stages is one stage without a name."""

    name: str
    """The stage's name; empty if the recipe has no stages."""
    recipe: Recipe
    """The whole recipe of the stage."""
    checkpoints: Checkpoints
    """Its weights and training state."""


@dataclass(frozen=True)
class RunFolder:
    """Names only: making the object touches no file."""

    path: Path

    @property
    def recipe(self) -> Path:
        """The resolved recipe, every default written out."""
        return self.path / "recipe.yaml"

    @property
    def chosen(self) -> Path:
        """The recipe that was chosen for a training without one, with the reasons."""
        return self.path / "chosen.yaml"

    @property
    def asked(self) -> Path:
        """What it was chosen for: files and options."""
        return self.path / "asked.json"

    @property
    def text(self) -> Path:
        """The text of a training without a recipe, where validation pairs had to be held out."""
        return self.path / "text"

    @property
    def vocabulary(self) -> Path:
        """The tokenizers."""
        return self.path / "vocabulary"

    @property
    def data(self) -> Path:
        """The memory-mapped arrays."""
        return self.path / "data"

    def manifest(self, split: str) -> Path:
        """What the arrays of one split hold; without it they are nothing."""
        return self.data / f"{split}.json"

    @property
    def progress(self) -> Path:
        """How far preprocessing has come; gone when it is complete."""
        return self.data / "progress.json"

    @property
    def report(self) -> Path:
        """What preprocessing found in the text."""
        return self.path / "data-report.json"

    @property
    def checkpoints(self) -> Path:
        """Weights and training state; where training has stages, a folder for each: `1-NAME`, `2-NAME`, ..."""
        return self.path / "checkpoints"

    def stages(self, recipe: Recipe, taken: Sequence[float] = (), vocabulary: str = "") -> list[StageFolder]:
        """The stages of the run's recipe, in their order; one without a name if the recipe has none.

        Args:
            recipe: the run's.
            taken: as of `Recipe.by_stage`.
            vocabulary: as `Checkpoints` takes it.
        """
        return [
            StageFolder(
                name,
                one,
                Checkpoints(self.checkpoints / f"{number}-{name}" if name else self.checkpoints, vocabulary),
            )
            for number, (name, one) in enumerate(recipe.by_stage(taken).items(), start=1)
        ]

    def newest_stage(self, recipe: Recipe) -> StageFolder:
        """The last stage that has weights which validation chose; the first while none has."""
        stages = self.stages(recipe)
        return next((stage for stage in reversed(stages) if stage.checkpoints.kept()), stages[0])

    @property
    def average(self) -> Path:
        """Averaged weights, made by `nmtkit average`."""
        return self.path / "average.safetensors"

    @property
    def metrics(self) -> Path:
        """One JSON object a line: every update that was logged and every validation."""
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def result(self) -> Path:
        """How training ended; its presence says that the run is finished."""
        return self.path / "result.json"

    @property
    def test_output(self) -> Path:
        """The translations of the recipe's test set, one a line."""
        return self.path / "test.out"

    @property
    def test_scores(self) -> Path:
        """Their scores."""
        return self.path / "test.json"

    @property
    def lock(self) -> Path:
        """Locked by the process that writes here, and names it. It stays: see `nmtkit.experiment.hold`."""
        return self.path / "run.lock"

    @property
    def replaced(self) -> Path:
        """The earlier run, while a new one in its place has not saved a state yet; a run's folder itself."""
        return self.path / "replaced"

    def exists(self) -> bool:
        """Whether this is the folder of a run."""
        return self.recipe.is_file()

    def begun(self) -> bool:
        """Whether training has left something here that a new one would replace."""
        saved = any(self.checkpoints.rglob("*.safetensors"))
        return self.exists() and (saved or self.average.exists() or self.result.exists())

    def has_state(self) -> bool:
        """Whether training has saved a state here."""
        return any(self.checkpoints.rglob("last.safetensors"))

    def parts_of_preparation(self) -> list[Path]:
        """All that stands here before training begins."""
        parts = [self.recipe, self.chosen, self.asked, self.text, self.vocabulary, self.data, self.report]
        return [part for part in parts if part.exists()]

    def parts_of_training(self) -> list[Path]:
        """All that training wrote here, and that a new training replaces; the states first."""
        parts = [self.checkpoints, self.average, self.metrics, self.tensorboard, self.result]
        return [part for part in [*parts, self.test_output, self.test_scores] if part.exists()]

    def require_free(self, overwrite: bool) -> None:
        """Makes sure that a training can begin here.

        Args:
            overwrite: whether an earlier one may be replaced.

        Raises:
            NmtkitError: there is an earlier one, or the folder holds other things.
        """
        if self.begun() and not overwrite:
            raise NmtkitError(
                f"{self.path}: a training was begun here: go on with it (train --resume), "
                "replace it (train --overwrite), or name another folder (--run DIR)"
            )
        self.require_own()

    def require_own(self) -> None:
        """Makes sure that the folder is a run's, empty, or not there.

        Raises:
            NmtkitError: it holds other things.
        """
        ours = self.exists() or self.chosen.is_file() or self.lock.is_file()
        if self.path.exists() and not ours and any(self.path.iterdir()):
            raise NmtkitError(f"{self.path}: not the folder of a run and not empty; name another one with --run DIR")

    def load_recipe(self) -> Recipe:
        """The recipe of the run.

        Raises:
            CheckpointError: this is not the folder of a run.
        """
        if not self.recipe.is_file():
            what = "it has no recipe.yaml" if self.path.is_dir() else "there is no such folder"
            raise CheckpointError(f"{self.path}: not the folder of a run: {what}; name the folder that `train` wrote")
        return load(self.recipe, otherwise="run")

    def load_tokenizers(self) -> TokenizerPair:
        """The tokenizers of the run.

        Raises:
            CheckpointError: they are missing or damaged.
        """
        if not self.vocabulary.is_dir():
            raise CheckpointError(
                f"{self.vocabulary}: the run has no vocabulary; copy the whole run folder, or train again"
            )
        return TokenizerPair.load(self.vocabulary)

    def weights(self, which: str = "auto") -> Path:
        """The weights' file.

        Args:
            which: `best`, `last`, `average`, the name of a stage (its best), or a file; `auto` is the average if one
                was made, else the best, else the last. Where training has stages, best and last are of the newest one
                that was validated.

        Raises:
            CheckpointError: the run has no such weights.
        """
        recipe = self.load_recipe()
        checkpoints = self.newest_stage(recipe).checkpoints
        best = next(iter(checkpoints.best()), None)
        last = checkpoints.last if checkpoints.last.is_file() else None
        average = self.average if os.path.lexists(self.average) else None
        named = {"best": best, "last": last, "average": average, "auto": average or best or last}
        of_stages = {stage.name: stage.checkpoints.best() for stage in self.stages(recipe) if stage.name}
        named |= {name: next(iter(files), None) for name, files in of_stages.items()}
        found = named[which] if which in named else Path(which)
        if found is None or not found.is_file():
            order = ("average", "best", "last", *of_stages)
            have = [name for name in order if (path := named[name]) and path.is_file()]
            there = f"it has: {', '.join(have)}" if have else "it has none yet; train it first"
            missing = f" ({found} is not there)" if found else ""
            raise CheckpointError(f"{self.path}: no weights {which!r}{missing}; {there}")
        return found

    def build(self, recipe: Recipe, tokenizers: TokenizerPair) -> Seq2Seq:
        """The recipe's model with fresh weights, drawn from torch's generator."""
        return MODELS.get(recipe.model.kind)(recipe.model, sizes_of(tokenizers))

    def open_model(self, device: torch.device, which: str = "auto") -> tuple[Seq2Seq, TokenizerPair, Recipe]:
        """The trained model in evaluation mode on `device`, its tokenizers and its recipe.

        Where training has stages, model and recipe are those of the stage that the weights are from; of the newest one
        that was validated for an average, or a file from elsewhere.

        Args:
            device: where to.
            which: as `weights` takes it.

        Raises:
            NmtkitError: a part of the run is missing, damaged, or does not fit the others.
        """
        recipe = self.load_recipe()
        tokenizers = self.load_tokenizers()
        weights = self.weights(which)
        folder = weights.resolve().parent
        stages = [stage for stage in self.stages(recipe) if stage.checkpoints.folder.resolve() == folder]
        recipe = (stages[0] if stages else self.newest_stage(recipe)).recipe
        model = self.build(recipe, tokenizers)
        load_weights(model, weights, tokenizers.sum)
        return model.to(device).eval(), tokenizers, recipe


def sizes_of(tokenizers: TokenizerPair) -> VocabularySizes:
    """The sizes of both vocabularies, as a model is built for them."""
    return VocabularySizes(len(tokenizers.src.vocabulary), len(tokenizers.tgt.vocabulary), tokenizers.shared)


def find(model: str | None = None, runs: Path = RUNS, task: str | None = None) -> tuple[RunFolder, str]:
    """The run to use, and in words why that one.

    Args:
        model: a run's folder, or its name under `runs`; None takes `$NMTKIT_MODEL`, else the newest finished run.
        runs: the folder of all runs.
        task: the newest run is that of a recipe with this task; None: with any.

    Raises:
        CheckpointError: there is no finished run, or no folder where `$NMTKIT_MODEL` says.
    """
    if model is None and os.environ.get(MODEL_VARIABLE):
        folder, _ = find(os.environ[MODEL_VARIABLE], runs)
        if not folder.path.is_dir():
            raise CheckpointError(
                f"${MODEL_VARIABLE} names {os.environ[MODEL_VARIABLE]}, and there is no such folder; "
                "set it to a run's folder, or name one with -m RUN"
            )
        return folder, f"${MODEL_VARIABLE}"
    if model is not None:
        folder = RunFolder(Path(model))
        if not folder.path.exists() and (runs / model).is_dir():
            folder = RunFolder(runs / model)
        if folder.replaced.is_dir() and not folder.has_state():
            return RunFolder(folder.replaced), "the earlier run, for that which is to replace it has no state yet"
        return folder, "as asked"
    finished = [RunFolder(path.parent) for path in runs.glob("*/result.json")]
    finished.sort(key=lambda run: run.result.stat().st_mtime, reverse=True)
    fitting = (run for run in finished if task is None or run.load_recipe().task == task)
    newest = next(fitting, None)
    of_task = f" for {task}" if task else ""
    if newest is None:
        raise CheckpointError(
            f"no finished run{of_task} under {runs}/: name one with -m RUN or ${MODEL_VARIABLE}, "
            f"or train one (`nmtkit train {TASKS.get(task or 'translation').demo}`)"
        )
    return newest, f"the newest finished run{of_task} under {runs}/"


def write_json(path: Path, data: Any) -> None:
    """Writes JSON so that a reader sees the old file or the new one, never half of it.

    Raises:
        NmtkitError: it cannot be written.
    """
    write_text(path, json.dumps(data, ensure_ascii=False, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a text file atomically.

    Raises:
        NmtkitError: it cannot be written.
    """
    require_replaceable(path)
    temporary = path.with_name(f"{path.name}.new")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def append_json_line(path: Path, data: dict[str, Any]) -> None:
    """Adds one JSON object as a line; a number that is not finite, which JSON cannot say, becomes null."""
    data = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in data.items()
    }
    with writing(path), open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(data, ensure_ascii=False) + "\n")


def cut_json_lines(path: Path, after_update: int) -> None:
    """Takes back what was logged past an update, and a last line cut short: a resumed run writes them again."""
    kept = []
    try:
        if not path.is_file():  # a pipe would be waited for
            raise OSError(errno.EINVAL, "not a file")
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as fault:
        raise NmtkitError(f"{path}: cannot read it: {fault.strerror or fault}; move it away to go on") from fault
    for line in lines:
        with suppress(DataError, TypeError, KeyError):
            if parse_json(line, "")["update"] <= after_update:
                kept.append(line)
    write_text(path, "".join(line + "\n" for line in kept))
