"""Which preset suits a corpus, and the recipe that extends it, with its reasons. Nothing here needs torch."""

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from nmtkit.core.errors import RecipeError
from nmtkit.core.registry import suggest_names
from nmtkit.core.settings import dump_yaml
from nmtkit.core.task import TASKS
from nmtkit.core.wording import format_minutes
from nmtkit.corpus.statistics import CorpusStatistics
from nmtkit.presets.fitting import FittedPreset, Reason

PRESETS = {
    "tiny": "for a try in minutes",
    "small": "for CPUs and small corpora",
    "base": "for GPUs and large corpora",
}
"""By size: what each is for."""
TASKS_WITH_PRESETS = tuple(name for name in TASKS if TASKS.get(name).presets)
"""The tasks that a recipe can be chosen for."""

FEW_PAIRS = 5_000
"""Studies of translation with little text begin here; with fewer pairs nobody should expect much."""
MANY_PAIRS = 100_000
"""From so many pairs on a GPU gets `base`."""


def smaller_preset(name: str) -> str | None:
    """The next smaller preset, if there is one."""
    names = list(PRESETS)
    return names[names.index(name) - 1] if names.index(name) else None


def choose_preset(
    task: str,
    size: CorpusStatistics,
    preset: str | None = None,
    gpu: bool = False,
    minutes: float | None = None,
    tokens_a_minute: Mapping[str, float] | None = None,
) -> FittedPreset:
    """Settings for a corpus, by the size of its training text.

    Args:
        task: one of `TASKS_WITH_PRESETS`.
        size: of the training text.
        preset: one of `PRESETS`; None chooses by the corpus and the device.
        gpu: whether training will be on a GPU.
        minutes: stop training after so many; a smaller preset is taken where they are too few for the one that fits.
        tokens_a_minute: padded tokens that the machine trains on in a minute with a preset, where that was measured.

    Raises:
        RecipeError: there is no such task or preset, or the task has no presets.
    """
    if task not in TASKS:
        raise RecipeError(f"no task {task!r}: {suggest_names(task, TASKS_WITH_PRESETS)}")
    if task not in TASKS_WITH_PRESETS:
        raise RecipeError(
            f"there are no presets for {task}, so no recipe can be chosen for it; write one (`nmtkit recipe explain`). "
            f"Presets are for: {', '.join(TASKS_WITH_PRESETS)}"
        )
    if preset is not None and preset not in PRESETS:
        raise RecipeError(f"no preset {preset!r}: {suggest_names(preset, PRESETS)}")
    speeds = tokens_a_minute or {}

    def fitted(name: str, because: str) -> FittedPreset:
        preset = FittedPreset(task, size, name, because, minutes, speeds.get(name))
        preset.warnings += _warnings(preset, gpu, minutes)
        return preset

    if preset is not None:
        return fitted(preset, "you asked for it")
    found = fitted(*_suited(size, gpu))
    while minutes and not found.is_useful and (less := smaller_preset(found.name)) in speeds:
        assert less is not None
        times = f"{found.passes:.2g}"
        because = f"in {minutes:g} min the preset {found.name} would read the text only {times} times on this machine"
        found = fitted(less, because)
    return found


def _suited(size: CorpusStatistics, gpu: bool) -> tuple[str, str]:
    """The preset for those who name none, and why."""
    if size.pairs < FEW_PAIRS:
        return "tiny", f"{size.pairs:,} pairs are too few for anything larger"
    if not gpu:
        return "small", f"training is on a CPU, and {size.pairs:,} pairs are enough for it"
    if size.pairs < MANY_PAIRS:
        return "small", f"{size.pairs:,} pairs are fewer than a large model needs"
    return "base", f"{size.pairs:,} pairs are enough for a large model, and there is a GPU to train it"


def _warnings(preset: FittedPreset, gpu: bool, limit: float | None) -> list[str]:
    found, pairs = [], preset.size.pairs
    if limit and preset.minutes and preset.whole and preset.passes and preset.passes < 1:
        one = preset.minutes / preset.passes
        found.append(
            f"{limit:g} min read the text only {preset.passes:.2g} times, which gives no usable model: one pass takes "
            f"{format_minutes(one)} on this machine, and the preset {preset.name} is meant to make "
            f"{preset.whole / one:.3g} (--minutes {math.ceil(preset.whole)})"
        )
    if pairs < FEW_PAIRS:
        found.append(
            f"{pairs:,} pairs are few: the model will hardly learn more than the sentences that it sees; useful "
            f"results begin above {FEW_PAIRS:,}"
        )
    if preset.name == "base" and not gpu:
        found.append("preset base takes days on a CPU; --preset small is made for it")
    return found


def recipe_text(preset: FittedPreset, name: str, data: Mapping[str, Any], description: str = "") -> str:
    """A recipe in YAML that extends a preset, with the reasons above the settings.

    `data` has train, valid and test as a recipe names them; limits of length come from the preset.
    """
    size = preset.size
    about = {
        "extends": preset.extends,
        "name": name,
        "description": description or f"{preset.task}, preset {preset.name}",
    }
    head = [
        f"For {size.pairs:,} pairs of {size.src.words:,} and {size.tgt.words:,} words: preset {preset.name} "
        f"({PRESETS[preset.name]}), because {preset.reasons[0].because}. Here stands what differs from it; `nmtkit "
        "recipe show --resolved` prints all settings. Every one can be changed; `nmtkit recipe explain` says what it "
        "means.",
        *(f"Note: {warning}." for warning in preset.warnings),
    ]
    if preset.minutes is not None:
        head.append(f"Training takes {format_minutes(preset.minutes)} on the machine where this was written.")
    groups = {"data": {**data, **preset.changes.get("data", {})}}
    groups |= {group: value for group, value in preset.changes.items() if group != "data"}
    return written_recipe(head, about, groups, preset.reasons[1:])


def written_recipe(
    head: Sequence[str], about: Mapping[str, Any], groups: Mapping[str, Any], reasons: Sequence[Reason]
) -> str:
    """A recipe in YAML: sentences at its head, what it is, and its groups, each below the reasons for its settings."""
    told: dict[str, list[str]] = {}
    for one in reasons:
        sentence = f"{one.setting}: {one.value}, because {one.because}."
        told.setdefault(re.split(r"\W", one.setting)[0], []).append(sentence)
    parts = [_comment(head), dump_yaml(dict(about))]
    for group in dict.fromkeys((*groups, *told)):
        parts.append(_comment(told.get(group, [])))
        parts += [dump_yaml({group: groups[group]})] if group in groups else []
    return "".join(parts)


def _comment(sentences: Sequence[str]) -> str:
    lines = [line for sentence in sentences for line in textwrap.wrap(sentence, 108, break_on_hyphens=False)]
    return "".join(f"# {line}\n" for line in lines)
