"""A preset as a recipe that a person can read and change."""

import textwrap
from collections.abc import Mapping
from typing import Any

from nmtkit.experiment.presets.choice import Preset
from nmtkit.experiment.presets.plans import MEANING
from nmtkit.settings import dump_yaml


def recipe_text(preset: Preset, name: str, data: Mapping[str, Any], description: str = "") -> str:
    """A recipe in YAML, with the reasons above the settings.

    Args:
        preset: the settings.
        name: the recipe's.
        data: its group `data`: train, valid and test as a recipe names them. Limits of length come from the preset.
        description: what it is for, in a sentence.
    """
    size = preset.size
    about: dict[str, Any] = {"name": name, "description": description or f"{preset.task}, preset {preset.name}"}
    if preset.task != "translation":
        about["task"] = preset.task
    head = [
        f"For {size.pairs:,} pairs of {size.src.words:,} and {size.tgt.words:,} words: preset {preset.name} "
        f"({MEANING[preset.name]}), because {preset.reasons[0].because}. Every setting can be changed; `nmtkit recipe "
        "explain` says what it means.",
        *(f"Note: {warning}." for warning in preset.warnings),
    ]
    if preset.minutes is not None:
        head.append(f"Training takes {in_words(preset.minutes)} on the machine where this was written.")
    parts = [_comment(head), dump_yaml(about)]
    for group, value in {"data": {**data, **preset.data}, **preset.groups}.items():
        reasons = [one for one in preset.reasons if one.setting.partition(".")[0] == group]
        parts += [_comment([f"{one.setting}: {one.value}, because {one.because}." for one in reasons])]
        parts += [dump_yaml({group: value})]
    return "".join(parts)


def in_words(minutes: float) -> str:
    """A time as one says it: about 5 minutes, about 3 hours, about 2 days."""
    if minutes < 1.5:
        return "about a minute"
    hours = minutes / 60
    if hours < 1.7:
        return f"about {minutes:.0f} minutes"
    return f"about {hours:.0f} hours" if hours < 48 else f"about {hours / 24:.0f} days"


def _comment(sentences: list[str]) -> str:
    lines = [line for sentence in sentences for line in textwrap.wrap(sentence, 108, break_on_hyphens=False)]
    return "".join(f"# {line}\n" for line in lines)
