"""Several trained runs side by side: how well they translate, align and scale, measured alike one after the other."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from nmtkit import device as devices
from nmtkit import metrics
from nmtkit.data.reading import read_pairs
from nmtkit.errors import DataError, RecipeError
from nmtkit.experiment.folder import RunFolder
from nmtkit.experiment.opening import Opening, open_translator
from nmtkit.experiment.run import Run
from nmtkit.settings import parse_json

WARM_UP = 64
"""Sentences translated before the clock starts: the first ones of a process are slow."""


@dataclass(frozen=True)
class Measured:
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


def measure(
    run: Run, device: torch.device, longer_than: int, edges: Sequence[int], threads: int | None = None
) -> Measured:
    """Tests one run.

    Args:
        run: trained.
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
    translator = open_translator(run.folder, Opening(device=str(device), threads=threads))
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
    return Measured(
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
    """Median of the target tokens a second, and minutes of training, from a run's log.

    Raises:
        DataError: the log is missing or damaged.
    """
    speeds, seconds = [], 0.0
    try:
        for line in folder.metrics.read_text(encoding="utf-8").splitlines():
            event = parse_json(line, "")
            if event["event"] == "step":
                speeds.append(float(event["tokens_per_second"]))
                seconds = float(event["seconds"])
    except (OSError, DataError, ValueError, KeyError, TypeError, OverflowError) as fault:
        raise DataError(f"{folder.metrics}: the training's log cannot be read ({fault}); train again") from fault
    return statistics.median(speeds) if speeds else 0.0, seconds / 60
