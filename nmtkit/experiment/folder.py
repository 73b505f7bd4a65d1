"""The folder of a run: the one place that knows the names of its files."""

from dataclasses import dataclass
from pathlib import Path

from nmtkit.errors import NmtkitError

RUNS = Path("runs")


class _Named:
    """A path of that name within a folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: "RunFolder", owner: object = None) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class RunFolder:
    """Names only: making the object touches no file."""

    path: Path

    recipe = _Named("recipe.yaml")
    """The resolved recipe, every default written out."""
    chosen = _Named("chosen.yaml")
    """The recipe that was chosen for a training without one, with the reasons."""
    asked = _Named("asked.json")
    """What it was chosen for: files and options."""
    text = _Named("text")
    """The text of a training without a recipe, where validation pairs had to be held out."""
    vocabulary = _Named("vocabulary")
    """The tokenizers."""
    data = _Named("data")
    """The memory-mapped arrays."""
    progress = _Named("data/progress.json")
    """How far preprocessing has come; gone when it is complete."""
    report = _Named("data-report.json")
    """What preprocessing found in the text."""
    checkpoints = _Named("checkpoints")
    """Weights and training state; where training has stages, a folder for each: `1-NAME`, `2-NAME`, ..."""
    average = _Named("average.safetensors")
    """Averaged weights, made by `nmtkit average`."""
    metrics = _Named("metrics.jsonl")
    """One JSON object a line: every update that was logged and every validation."""
    tensorboard = _Named("tensorboard")
    """TensorBoard's event files."""
    result = _Named("result.json")
    """How training ended; its presence says that the run is finished."""
    test_output = _Named("test.out")
    """The translations of the recipe's test set, one a line."""
    test_scores = _Named("test.json")
    """Their scores."""
    lock = _Named("run.lock")
    """Locked by the process that writes here, and names it. It stays: see `nmtkit.experiment.hold`."""
    replaced = _Named("replaced")
    """The earlier run, while a new one in its place has not saved a state yet; a run's folder itself."""

    @classmethod
    def at(cls, path: str | None, name: str) -> "RunFolder":
        """The folder at a path; without one that of the name under `runs/`."""
        return cls(Path(path) if path else RUNS / name)

    def manifest(self, split: str) -> Path:
        """What the arrays of one split hold; without it they are nothing."""
        return self.data / f"{split}.json"

    def stage(self, number: int, name: str) -> Path:
        """The checkpoints of one stage, counted from 1; without a name those of a training that has no stages."""
        return self.checkpoints / f"{number}-{name}" if name else self.checkpoints

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
        """Makes sure that a training can begin here; `overwrite` says whether an earlier one may be replaced.

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
