"""What fine-tuning has taught and what it has cost: scores before and after, on the new text and on the general one."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from nmtkit import metrics
from nmtkit.core.errors import DataError
from nmtkit.core.files import write_json
from nmtkit.corpus.config import SplitFiles
from nmtkit.corpus.reading import read_pairs
from nmtkit.experiment.loading import DecodingOptions, open_system
from nmtkit.recipe import Recipe
from nmtkit.runs.folder import Notify, RunFolder, ignore
from nmtkit.runs.origin import FineTuningOrigin, read_origin
from nmtkit.runs.saved import SavedRun
from nmtkit.tasks.task import TASKS
from nmtkit.translation.translator import Translator

OWN, GENERAL = "own text", "general text"


@dataclass(frozen=True)
class TestChange:
    """The score of one test set before and after fine-tuning."""

    text: str
    """OWN or GENERAL."""
    metric: str
    """As tables show it."""
    before: float
    after: float

    @property
    def of_general_text(self) -> bool:
        """Whether it is of text like that which the model was trained on before."""
        return self.text == GENERAL


def score_before(run: SavedRun, device: torch.device, threads: int | None = None, notify: Notify = ignore) -> None:
    """Scores the run that a training begins from on both test sets, once, and records it with what was begun from.

    Nothing is done for a run that began from none or from one with another task, which cannot be scored on this one's
    texts, or where that one is not there any more.
    """
    origin = read_origin(run.folder)
    if origin is None or origin.before or origin.parts or not Path(origin.weights).is_file():
        return
    source, tests = SavedRun(RunFolder(Path(origin.run))), _tests(run.recipe, origin)
    if not tests or source.recipe.task != run.recipe.task:
        return
    notify(f"before fine-tuning: scoring {origin.run} on the test sets ({', '.join(tests)})")
    options = DecodingOptions(device=str(device), weights=origin.weights, threads=threads)
    before = {text: _score(source, options, files, run.recipe).value for text, files in tests.items()}
    write_json(run.folder.origin, origin.model_copy(update={"before": before}).model_dump(mode="json"))


def score_after(
    run: SavedRun, device: torch.device, own: metrics.Score | None, threads: int | None = None
) -> list[TestChange]:
    """Both scores of every test set that was scored before; `own` is that of the run's own test set, if known."""
    origin, changes = read_origin(run.folder), []
    if origin is None:
        return []
    options, tests = DecodingOptions(device=str(device), threads=threads), _tests(run.recipe, origin)
    for text, before in origin.before.items():
        if text in tests:
            after = own if text == OWN and own is not None else _score(run, options, tests[text], run.recipe)
            changes.append(TestChange(text, after.name, before, after.value))
    return changes


def _tests(recipe: Recipe, origin: FineTuningOrigin) -> dict[str, SplitFiles]:
    """The test sets that have references; one that is both is the new text's."""
    own, general = recipe.data.splits().get("test"), origin.test
    if own is not None and general is not None and own.texts() == general.texts():
        general = None
    tests = {OWN: own, GENERAL: general}
    references = TASKS.get(recipe.task).references
    return {text: files for text, files in tests.items() if files is not None and references in files.columns}


def _score(run: SavedRun, options: DecodingOptions, files: SplitFiles, like: Recipe) -> metrics.Score:
    """The first metric of a recipe's test, for answers that are searched for as that recipe says."""
    examples = list(read_pairs(files))
    if not examples:
        raise DataError(f"{' '.join(files.paths())}: there is nothing in these files")
    system = open_system(run, options)
    if isinstance(system, Translator):
        system = replace(system, config=like.search)
    return TASKS.get(like.task).judge(system, examples, like.test_metrics[:1], like.evaluation.options).scores[0]
