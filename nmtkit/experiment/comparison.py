"""Several trained runs side by side: how well they translate, align and scale, measured alike one after the other."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from nmtkit import device as devices
from nmtkit import metrics
from nmtkit.data.reading import read_pairs
from nmtkit.errors import RecipeError
from nmtkit.experiment.folder import RunFolder
from nmtkit.experiment.log import Log
from nmtkit.experiment.opening import Opening, open_translator
from nmtkit.experiment.run import Run
from nmtkit.experiment.saved import SavedRun
from nmtkit.metrics import text_metrics
from nmtkit.pictures.curves import Points, Training
from nmtkit.training.events import Evaluated, Step

WARM_UP = 64
"""Sentences translated before the clock starts: the first ones of a process are slow."""
_NO_SCORES = ("loss", "perplexity", "seconds")
"""What validation gives beside scores."""


@dataclass(frozen=True)
class ComparedRun:
    """One run on its test set."""

    name: str
    """The recipe's."""
    kind: str
    """The model's kind."""
    parameters: int
    """Numbers that training fitted, shared ones counted once."""
    bleu: metrics.Score
    """Over the whole test set."""
    long_bleu: metrics.Score | None
    """Over the long sentences; None if there are none."""
    n_long: int
    """How many long sentences there are."""
    aer: metrics.Score | None
    """Alignment error rate; None without gold alignments, or if the model has no attention."""
    training_speed: float
    """Target tokens a second while training: the median of the log's."""
    training_minutes: float
    """Training time, validations included."""
    search_speed: float
    """Target tokens a second in beam search, EOS included."""
    by_length: list[metrics.LengthBucket]
    """BLEU by words of the source."""


def compare_run(
    run: Run, device: torch.device, longer_than: int, edges: Sequence[int], threads: int | None = None
) -> ComparedRun:
    """Tests a run that was trained.

    Args:
        run: which.
        device: where to translate.
        longer_than: a sentence is long if its source has more words than this.
        edges: longest length of each range of `by_length` but the last, in words.
        threads: CPU threads; None is one a core.

    Raises:
        NmtkitError: the recipe names no test set with targets, or the run cannot be opened.
    """
    files = run.recipe.data.splits().get("test")
    if files is None:
        raise RecipeError(f"{run.recipe.name}: the recipe names no test set to compare on; add data.test")
    threads = threads or devices.cpu_threads()  # whatever an earlier training has set
    translator = open_translator(run, Opening(device=str(device), threads=threads))
    translator.translate(pair.src for pair in islice(read_pairs(files), WARM_UP))
    result = run.test(device, threads=threads)
    if result is None or not result.scores:
        raise RecipeError(f"{run.recipe.name}: the test set has no targets, so there is nothing to compare with")
    texts = [translation.text for translation in result.translations]
    how = run.recipe.evaluation
    long = [number for number, line in enumerate(result.sources) if len(line.split()) > longer_than]
    long_bleu = None
    if long:
        references = [[result.references[number] for number in long]]
        long_bleu = metrics.bleu([texts[number] for number in long], references, how.tokenize, how.lowercase)
    written = sum(len(translation.token_log_probs) for translation in result.translations)
    scores = {score.name: score for score in result.scores}
    speed, minutes = _training(run.folder)
    return ComparedRun(
        name=run.recipe.name,
        kind=run.recipe.model.kind,
        parameters=sum(parameter.numel() for parameter in translator.model.parameters()),
        bleu=scores["BLEU"],
        long_bleu=long_bleu,
        n_long=len(long),
        aer=scores.get("AER"),
        training_speed=speed,
        training_minutes=minutes,
        search_speed=written / max(result.seconds, 1e-9),
        by_length=metrics.by_length(
            texts, [result.references], result.sources, edges, metrics.Options(how.tokenize, how.lowercase)
        ),
    )


def _training(folder: RunFolder) -> tuple[float, float]:
    """Median of the target tokens a second, and minutes of training, from a run's log."""
    steps = [logged.event for logged in Log(folder).read() if isinstance(logged.event, Step)]
    speed = statistics.median(step.tokens_per_second for step in steps) if steps else 0.0
    return speed, steps[-1].seconds / 60 if steps else 0.0


def training_curves(run: SavedRun, name: str) -> Training:
    """How a run was trained, as its log tells, to be drawn; it may still be training.

    The score is the one that the recipe chooses weights by (training.best_metric), else BLEU or ROUGE-L. `name` is what
    the pictures call the run.

    Raises:
        DataError: the log is missing or damaged.
    """
    steps: list[Step] = []
    validations: list[Evaluated] = []
    stages: dict[str, int] = {}
    for stage, event in Log(run.folder).read():
        if stage:
            stages[stage] = event.update
        if isinstance(event, Step):
            steps.append(event)
        else:
            validations.append(event)
    # The last stage's metric; a folder whose recipe is missing shows what was logged all the same.
    chosen = [run.newest_stage().recipe.training.best_metric] if run.folder.exists() else []
    measured = dict.fromkeys(name for one in validations for name in one.metrics if name not in _NO_SCORES)
    metric = next((one for one in (*chosen, "bleu", "rougeL", *measured) if one in measured), "bleu")
    known = text_metrics().get(metric)

    def told(term: str) -> Points:
        return [(step.update, step.terms.get(term, math.nan)) for step in steps]

    def validated(key: str) -> Points:
        return [(one.update, one.metrics.get(key, math.nan)) for one in validations]

    return Training(
        name,
        loss=told("nll"),
        perplexity=told("ppl"),
        lr=[(step.update, step.lr) for step in steps],
        valid_loss=validated("loss"),
        valid_perplexity=validated("perplexity"),
        valid_score=[point for point, one in zip(validated(metric), validations, strict=True) if metric in one.metrics],
        metric=known.title if known else metric,
        stages=[*stages.items()],
    )
