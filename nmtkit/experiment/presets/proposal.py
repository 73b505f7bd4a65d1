"""A proposed recipe: settings with their reasons, written as commented YAML.

`PLANS` defines how long each preset is trained, and gives the reason for the size of its model.
"""

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nmtkit.core.formats import dump_yaml
from nmtkit.data.text.statistics import CorpusStatistics


class Reason(NamedTuple):
    """The reason for the value of a setting."""

    setting: str
    """The dotted key, or the group of settings."""
    value: str
    """The value in readable form."""
    because: str
    """A clause without a full stop."""


class PresetPlan(NamedTuple):
    """The training length of a preset."""

    because: str
    """The reason for the size of its model."""
    passes: tuple[float, int]
    """A good number of passes over one text, and the number of padded tokens in that text."""
    bounds: tuple[int, int]
    """Minimum and maximum number of passes for any text size."""
    fewest_useful: float = 0.0
    """If a time limit allows fewer passes than this, a smaller preset learns more."""


class ProposedRecipe:
    """A recipe proposed for a text of the given size."""

    def __init__(self, size: CorpusStatistics) -> None:
        self.size = size
        self.changes: dict[str, Any] = {}
        """Settings that differ from the base recipe, by group."""
        self.reasons: list[Reason] = []
        self.warnings: list[str] = []
        """Sentences without a full stop."""
        self.advice: list[str] = []
        """Advice that helps more than any setting would; sentences without a full stop."""
        self.minutes: float | None = None
        """Training time on this machine; None if not measured."""

    def explain(self, setting: str, value: str, because: str) -> None:
        """Adds the reason for the value of a setting."""
        self.reasons.append(Reason(setting, value, because))

    def yaml(self, head: Sequence[str], about: Mapping[str, Any], groups: Mapping[str, Any]) -> str:
        """Returns the recipe: header comments, description, and groups preceded by their reasons."""
        sentences: dict[str, list[str]] = {}
        for one in self.reasons:
            group = re.split(r"\W", one.setting)[0]
            sentences.setdefault(group, []).append(
                f"{one.setting}: {one.value}, because {one.because}."
            )
        parts = [
            _comment([*head, *(f"Note: {warning}." for warning in self.warnings)]),
            dump_yaml(about),
        ]
        sentences.pop("preset", None)  # the header contains this reason
        for group in dict.fromkeys((*groups, *sentences)):
            parts.append(_comment(sentences.get(group, [])))
            parts += [dump_yaml({group: groups[group]})] if group in groups else []
        return "".join(parts)


def _comment(sentences: Sequence[str]) -> str:
    lines = [
        line
        for sentence in sentences
        for line in textwrap.wrap(sentence, 108, break_on_hyphens=False)
    ]
    return "".join(f"# {line}\n" for line in lines)


def format_minutes(minutes: float) -> str:
    """Formats a time as "about 5 minutes", "about 3 hours" or "about 2 days"."""
    if minutes < 0.7:
        return "less than a minute"
    if minutes < 1.5:
        return "about a minute"
    hours = minutes / 60
    if hours < 1.7:
        return f"about {minutes:.0f} minutes"
    return f"about {hours:.0f} hours" if hours < 48 else f"about {hours / 24:.0f} days"


PLANS = {
    "preset-tiny": PresetPlan(
        "it is large enough for 20,000 simple pairs (recipe compare-transformer)",
        (22, 520_000),
        (1, 60),
    ),
    "preset-small": PresetPlan(
        "a model of this size reached 38 BLEU with 29,000 pairs (recipe "
        "multi30k-en-de-transformer)",
        (22, 520_000),
        (3, 60),
        5,
    ),
    # 100,000 updates with the 4.5 million pairs of WMT14, as in the paper
    "preset-base": PresetPlan(
        "these are the sizes of the base model in Vaswani et al. 2017, table 3 (not trained by us)",
        (19, 130_000_000),
        (10, 60),
        1.5,
    ),
    "preset-summaries-tiny": PresetPlan(
        "it is large enough for 10,000 synthetic news articles (recipe "
        "demo-news-pointer-generator)",
        (7, 1_000_000),
        (1, 20),
    ),
    "preset-summaries-small": PresetPlan(
        "a model of this size was trained on 3,392 news articles; see the results of recipe "
        "inshorts-pointer-generator",
        (7, 1_000_000),
        (5, 20),
        1.5,
    ),
    # 230,000 updates with the 287,000 articles of CNN/DailyMail, as in the paper
    "preset-summaries-base": PresetPlan(
        "these are the sizes of See et al. 2017, section 5 (not trained by us)",
        (13, 115_000_000),
        (8, 20),
        1.5,
    ),
    "preset-lm-tiny": PresetPlan(
        "a model of this size reached a perplexity of 77 per token with 194,000 words",
        (20, 300_000),
        (1, 60),
    ),
    "preset-lm-small": PresetPlan(
        "it has the shape of GPT and a size between tiny and base (a guess)",
        (20, 300_000),
        (3, 60),
        3,
    ),
    "preset-lm-base": PresetPlan(
        "these are the sizes of GPT-2 small (not trained by us)", (10, 100_000_000), (1, 40), 0.5
    ),
    "preset-classes-tiny": PresetPlan(
        "a model of this size, trained for a minute on 1,622 news articles of five classes, "
        "classified 98% of other articles correctly",
        (20, 1_000_000),
        (5, 60),
    ),
    "preset-classes-small": PresetPlan(
        "these are the sizes of Yang et al. 2016, section 3.3", (10, 1_000_000), (3, 30), 1.5
    ),
    "preset-classes-base": PresetPlan(
        "it is twice as wide as the model in Yang et al. 2016 (a guess)", (5, 100_000_000), (1, 20)
    ),
}
"""Training plans by the name of the preset's recipe."""
