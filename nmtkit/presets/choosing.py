"""Chooses the preset for a text by its size, the device and the minutes. Nothing here needs torch."""

import math
from collections.abc import Callable

from nmtkit.core.errors import RecipeError
from nmtkit.core.registry import suggest_names
from nmtkit.core.task import TASKS
from nmtkit.core.wording import format_minutes
from nmtkit.corpus.statistics import CorpusStatistics
from nmtkit.presets.fitting import PRESETS, FittedPreset

TASKS_WITH_PRESETS = tuple(name for name in TASKS if TASKS.get(name).presets)
"""The tasks that a recipe can be chosen for."""

FEW_PAIRS = 5_000
"""Studies of translation with little text begin here; with fewer pairs nobody should expect much."""
MANY_PAIRS = 100_000
"""With at least this many pairs, a GPU gets `base`."""


def choose_preset(
    task: str,
    size: CorpusStatistics,
    preset: str | None = None,
    gpu: bool = False,
    minutes: float | None = None,
    measure: Callable[[FittedPreset], float | None] = lambda _: None,
) -> FittedPreset:
    """Settings for a corpus, by the size of its training text.

    Args:
        task: one of `TASKS_WITH_PRESETS`.
        size: of the training text.
        preset: one of `PRESETS`; None chooses by the corpus, and by whether training is on a `gpu`.
        gpu: see there.
        minutes: stop training after so many; a smaller preset is taken where they are too few for the one that fits.
        measure: gives the padded tokens that the machine trains on in a minute with a preset; None: not known.

    Raises:
        RecipeError: there is no such preset, or the task has none.
    """
    if task not in TASKS_WITH_PRESETS:
        raise RecipeError(f"there are no presets for task {task!r}: {suggest_names(task, TASKS_WITH_PRESETS)}")
    if preset is not None and preset not in PRESETS:
        raise RecipeError(f"no preset {preset!r}: {suggest_names(preset, PRESETS)}")

    def fitted(name: str, because: str) -> FittedPreset:
        speed = measure(FittedPreset(task, size, name, because, minutes, None))
        return FittedPreset(task, size, name, because, minutes, speed)

    chosen = fitted(*(_preset_by_size(size, gpu) if preset is None else (preset, "you asked for it")))
    names = list(PRESETS)
    while preset is None and minutes and not chosen.is_useful and names.index(chosen.name):
        times = f"{chosen.passes:.2g}"
        because = f"in {minutes:g} min the preset {chosen.name} would read the text only {times} times on this machine"
        smaller = fitted(names[names.index(chosen.name) - 1], because)
        if smaller.speed is None:
            break
        chosen = smaller
    chosen.warnings += _warnings(chosen, gpu, minutes)
    return chosen


def _preset_by_size(size: CorpusStatistics, gpu: bool) -> tuple[str, str]:
    if size.pairs < FEW_PAIRS:
        return "tiny", f"{size.pairs:,} pairs are too few for anything larger"
    if not gpu:
        return "small", f"training is on a CPU, and {size.pairs:,} pairs are enough for it"
    if size.pairs < MANY_PAIRS:
        return "small", f"{size.pairs:,} pairs are fewer than a large model needs"
    return "base", f"{size.pairs:,} pairs are enough for a large model, and there is a GPU to train it"


def _warnings(preset: FittedPreset, gpu: bool, limit: float | None) -> list[str]:
    warnings, pairs = [], preset.size.pairs
    if limit and preset.minutes and preset.total_minutes and preset.passes and preset.passes < 1:
        a_pass = preset.minutes / preset.passes
        warnings.append(
            f"{limit:g} min read the text only {preset.passes:.2g} times, which gives no usable model: one pass takes "
            f"{format_minutes(a_pass)} on this machine, and the preset {preset.name} is meant to make "
            f"{preset.total_minutes / a_pass:.3g} (--minutes {math.ceil(preset.total_minutes)})"
        )
    if pairs < FEW_PAIRS:
        warnings.append(
            f"{pairs:,} pairs are few: the model will hardly learn more than the sentences that it sees; useful "
            f"results begin above {FEW_PAIRS:,}"
        )
    if preset.name == "base" and not gpu:
        warnings.append("preset base takes days on a CPU; --preset small is made for it")
    return warnings
