"""A proposed recipe: settings with the reason of each, written as YAML with the reasons as comments."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nmtkit.core.formats import dump_yaml
from nmtkit.corpus.statistics import CorpusStatistics


class Reason(NamedTuple):
    """Why a setting has its value."""

    setting: str
    """The dotted key, or its group."""
    value: str
    """As a person reads it."""
    because: str
    """A clause, without the full stop."""


class PresetPlan(NamedTuple):
    """How long a preset is trained."""

    because: str
    """Why its model has this size."""
    passes: tuple[float, int]
    """Passes over one text that were right, and the padded tokens of that text."""
    bounds: tuple[int, int]
    """Fewest and most passes, whatever the size of the text."""
    fewest_useful: float = 0.0
    """If a time limit allows fewer passes, a smaller preset learns more in the time."""


class ProposedRecipe:
    """A recipe proposed for a text of this size."""

    def __init__(self, size: CorpusStatistics) -> None:
        self.size = size
        self.changes: dict[str, Any] = {}
        """Settings that differ from the recipe it is based on, by group."""
        self.reasons: list[Reason] = []
        self.warnings: list[str] = []
        """Each a sentence without its full stop."""
        self.minutes: float | None = None
        """How long training takes on this machine; None where that was not measured."""

    def explain(self, setting: str, value: str, because: str) -> None:
        """Adds a reason."""
        self.reasons.append(Reason(setting, value, because))

    def yaml(self, head: Sequence[str], about: Mapping[str, Any], groups: Mapping[str, Any]) -> str:
        """The recipe: a head of sentences, what it is, and its groups, each below the reasons for its settings."""
        sentences: dict[str, list[str]] = {}
        for one in self.reasons:
            group = re.split(r"\W", one.setting)[0]
            sentences.setdefault(group, []).append(f"{one.setting}: {one.value}, because {one.because}.")
        parts = [_comment([*head, *(f"Note: {warning}." for warning in self.warnings)]), dump_yaml(about)]
        sentences.pop("preset", None)  # the head has it
        for group in dict.fromkeys((*groups, *sentences)):
            parts.append(_comment(sentences.get(group, [])))
            parts += [dump_yaml({group: groups[group]})] if group in groups else []
        return "".join(parts)


def _comment(sentences: Sequence[str]) -> str:
    lines = [line for sentence in sentences for line in textwrap.wrap(sentence, 108, break_on_hyphens=False)]
    return "".join(f"# {line}\n" for line in lines)


def format_minutes(minutes: float) -> str:
    """About 5 minutes, about 3 hours, about 2 days."""
    if minutes < 0.7:
        return "less than a minute"
    if minutes < 1.5:
        return "about a minute"
    hours = minutes / 60
    if hours < 1.7:
        return f"about {minutes:.0f} minutes"
    return f"about {hours:.0f} hours" if hours < 48 else f"about {hours / 24:.0f} days"
