"""The folder of a run: the one place that knows the names of its files."""

from dataclasses import dataclass
from pathlib import Path

from nmtkit.errors import NmtkitError

RUNS = Path("runs")


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

    def stage(self, number: int, name: str) -> Path:
        """Those of one stage, counted from 1; without a name those of a training that has no stages."""
        return self.checkpoints / f"{number}-{name}" if name else self.checkpoints

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
