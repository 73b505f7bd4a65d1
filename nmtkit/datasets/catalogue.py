"""The catalogue of public corpora: what each is, where it comes from, and what is made of it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from nmtkit.config.tasks.builtin import TRANSLATION
from nmtkit.config.tasks.task import TASKS
from nmtkit.core.errors import RecipeError, shorten
from nmtkit.core.files import bundled_path
from nmtkit.core.formats import KeyPath, load_yaml
from nmtkit.core.registry import suggest_names
from nmtkit.core.settings import (
    Field,
    Name,
    Settings,
    is_valid_name,
    model_validator,
    parse,
    registry_name,
)
from nmtkit.datasets.debian import DebianIndexes, DebianPackage
from nmtkit.datasets.debian_readers import DebianDescriptions, DebianSummaries, LibreOfficeHelp
from nmtkit.datasets.readers import AlignedReader, TabSeparatedReader
from nmtkit.datasets.sources import UrlSource
from nmtkit.datasets.stories import StoriesReader, XsumReader

PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")

if TYPE_CHECKING:
    TaskName = str
else:
    TaskName = registry_name(TASKS)

AnySource = Annotated[DebianIndexes | DebianPackage | UrlSource, Field(discriminator="kind")]
AnyReader = Annotated[
    AlignedReader
    | DebianDescriptions
    | DebianSummaries
    | LibreOfficeHelp
    | StoriesReader
    | TabSeparatedReader
    | XsumReader,
    Field(discriminator="kind"),
]


class Parameter(Settings):
    """The values of one placeholder of a name: a list, or a pattern."""

    values: dict[str, str] = Field(default_factory=dict)
    """The values, each with the publisher's name for it. Where both are the same, a list stands for the parameter."""
    example: str = ""
    """If there are no values: one that works, for the list of corpora."""
    pattern: str = r"[A-Za-z0-9_.]+"
    """If there are no values: the regular expression that a value matches."""

    @model_validator(mode="before")
    @classmethod
    def _as_values(cls, given: Any) -> Any:
        if isinstance(given, list) and all(isinstance(value, str) for value in given):
            return {"values": {value: value for value in given}}
        return given

    @model_validator(mode="after")
    def _has_one(self) -> "Parameter":
        if not self.values and not self.example:
            raise ValueError("list its `values`, or give an `example` where any will do")
        return self


class FilterConfig(Settings):
    """Which pairs are kept. Validation and test sets of the corpus itself are not filtered.

    Words are separated by white space; in languages that are written without spaces two letters count as a word.
    """

    min_words: int = Field(default=1, ge=0)
    """The fewest words of a side."""
    max_words: int | None = Field(default=None, ge=1)
    """The most words of a side; default: no limit."""
    max_ratio: float | None = Field(default=None, gt=1.0)
    """The most words of one side for each word of the other; default: no limit."""
    min_letter_ratio: float = Field(default=0.0, ge=0.0, le=1.0)
    """The least share of letters and combining marks in the characters of a side, white space not counted."""
    keep_identical: bool = True
    """Whether pairs with equal sides are kept."""
    keep_duplicates: bool = False
    """Whether repeated pairs are kept."""


class SplitConfig(Settings):
    """How pairs are split if the corpus has no splits of its own; a group of pairs is never divided."""

    valid: float = Field(default=0.0, ge=0.0, lt=1.0)
    """The share of the groups that goes to validation."""
    test: float = Field(default=0.0, ge=0.0, lt=1.0)
    """The share of the groups that goes to the test set."""
    max_pairs: int | None = Field(default=None, ge=1)
    """The most pairs of validation and of test; the rest goes to train. Default: no limit."""

    @model_validator(mode="after")
    def _leave_some(self) -> "SplitConfig":
        if self.valid + self.test >= 1.0:
            raise ValueError("valid and test together leave nothing for train")
        return self


class Entry(Settings):
    """One corpus of the catalogue, or a family of corpora whose name has placeholders such as {src}.

    A placeholder of the name may be used in every text of the entry; {their_src} is the publisher's name for the value.
    {first} and {second} are src and tgt in alphabetical order.
    """

    title: str
    """What it is, in a few words."""
    task: TaskName = TRANSLATION.name
    """The task that it is for."""
    src: str
    """Source language code: en, de, zh_CN."""
    tgt: str
    """Target language code; for summarization the same."""
    size: str
    """Pairs and download size, in words."""
    licence: str
    """Name and main conditions."""
    homepage: str = ""
    citation: str = ""
    parameters: dict[str, Parameter] = Field(default_factory=dict)
    """The values of each placeholder of the name."""
    sources: list[AnySource] = Field(min_length=1)
    """Where its files come from, in the order in which the reader takes them."""
    read: AnyReader
    """How pairs are read from the files."""
    filter: FilterConfig = FilterConfig()
    """Which pairs are kept."""
    split: SplitConfig = SplitConfig()
    """How they are split."""
    expected: dict[Literal["train", "valid", "test"], int] = Field(default_factory=dict)
    """The published number of pairs of its own splits, before filtering. The user is warned if they differ."""
    recipe: Name = ""
    """The name of a recipe of nmtkit for this corpus; without one, a preset is chosen by size."""

    @model_validator(mode="after")
    def _two_languages(self) -> "Entry":
        if self.src == self.tgt and not TASKS.get(self.task).monolingual:
            raise ValueError(f"source and target are the same language, {self.src!r}")
        return self


@dataclass(frozen=True)
class Corpus:
    """A corpus by its full name; the placeholders of its entry are filled in."""

    name: str
    entry: Entry


@dataclass(frozen=True)
class _Template:
    """An entry as it is in its file, with line numbers."""

    data: dict[str, Any]
    places: Mapping[KeyPath, str]
    parameters: Mapping[str, Parameter]


class Catalogue:
    """The corpora of nmtkit and of the user's own catalogue, whose entries replace those of the same name."""

    def __init__(self, extra: Path | None = None) -> None:
        own, given = _own_templates(), _templates(extra) if extra else {}
        # the user's come first: a name may also belong to a family of ours
        self._templates = {**given, **own, **given}

    def names(self) -> list[str]:
        """The names of all entries with their placeholders, sorted."""
        return sorted(self._templates)

    def examples(self, name: str) -> list[str]:
        """Full names of an entry: all, or those of the examples."""
        parameters = self._templates[name].parameters
        rows = product(
            *(list(parameter.values) or [parameter.example] for parameter in parameters.values())
        )
        values = [dict(zip(parameters, row, strict=True)) for row in rows]
        return [
            _fill(name, row, name)
            for row in values
            if not {"src", "tgt"} <= row.keys() or row["src"] != row["tgt"]
        ]

    def get(self, name: str) -> Corpus:
        """The corpus of a full name; RecipeError if there is none, or its entry is not valid."""
        for entry_name, template in self._templates.items():
            values = _values(entry_name, name, template.parameters)
            if values is not None:
                if not is_valid_name(name):
                    raise RecipeError(
                        f"{name!r} cannot be the name of a corpus: its folder would have that name"
                    )
                if "src" in values and values["src"] == values.get("tgt"):
                    raise RecipeError(f"{name}: source and target are the same language; name two")
                return self._make(name, entry_name, values)
        known = [example for entry_name in self._templates for example in self.examples(entry_name)]
        raise RecipeError(
            f"unknown corpus {name!r}: {suggest_names(name, known, most=0)}; `nmtkit fetch --list` says what there is"
        )

    def _make(self, name: str, entry_name: str, values: Mapping[str, str]) -> Corpus:
        template = self._templates[entry_name]
        where = template.places[(entry_name,)]
        data = (
            _fill(template.data, _known(values, template.parameters), where)
            if values
            else template.data
        )
        places = {key[1:]: place for key, place in template.places.items() if key[0] == entry_name}
        return Corpus(name, parse(Entry, data, where, places, lambda path: (entry_name, *path)))


def _templates(path: Path) -> dict[str, _Template]:
    data, places = load_yaml(path)
    # A name that is no text, as 1.5 or null, has no place of its own.
    return {
        name: _template(name, given, places, places.get((name,), str(path)))
        for name, given in data.items()
    }


@cache
def _own_templates() -> dict[str, _Template]:
    return _templates(bundled_path("data", "corpora.yaml"))


def _template(name: str, data: Any, places: Mapping[KeyPath, str], where: str) -> _Template:
    """Reads the parameters of an entry; the rest is parsed when their values are known."""
    if not isinstance(data, dict):
        raise RecipeError(f"{where}: expected the settings of a corpus below `{name}:`")
    if not isinstance(name, str) or not is_valid_name(PLACEHOLDER.sub("x", name)):
        raise RecipeError(
            f"{where}: {shorten(repr(name))} is not a valid corpus name: a folder name with {{placeholders}}"
        )
    given = data.get("parameters", {})
    if not isinstance(given, dict) or set(given) != set(PLACEHOLDER.findall(name)):
        raise RecipeError(
            f"{where}: `parameters` must say what may stand for each placeholder of the name, no others"
        )
    return _Template(
        data, places, {key: parse(Parameter, value, where) for key, value in given.items()}
    )


def _values(
    entry_name: str, name: str, parameters: Mapping[str, Parameter]
) -> dict[str, str] | None:
    """The placeholders' values if `name` matches `entry_name`, else None."""
    form = re.escape(PLACEHOLDER.sub(r"<\1>", entry_name))
    for key, parameter in parameters.items():
        allowed = (
            "|".join(map(re.escape, parameter.values)) if parameter.values else parameter.pattern
        )
        form = form.replace(f"<{key}>", f"(?P<{key}>{allowed})")
    try:
        match = re.fullmatch(form, name)
    except re.error as fault:
        raise RecipeError(
            f"corpus {entry_name}: a pattern of its `parameters` is not a valid regular expression: {fault}"
        ) from fault
    return match.groupdict() if match else None


def _known(values: Mapping[str, str], parameters: Mapping[str, Parameter]) -> dict[str, str]:
    """The values of all placeholders that the texts of an entry may use."""
    theirs = {
        f"their_{key}": parameters[key].values.get(value, value) for key, value in values.items()
    }
    known = {**values, **theirs}
    if {"src", "tgt"} <= values.keys():
        known["first"], known["second"] = sorted((values["src"], values["tgt"]))
    return known


def _fill(data: Any, known: Mapping[str, str], where: str) -> Any:
    """Fills the placeholders in all texts."""
    if isinstance(data, dict):
        return {
            key: value if key == "parameters" else _fill(value, known, where)
            for key, value in data.items()
        }
    if isinstance(data, list):
        return [_fill(item, known, where) for item in data]
    if not isinstance(data, str):
        return data
    unknown = sorted(set(PLACEHOLDER.findall(data)) - known.keys())
    if unknown:
        raise RecipeError(
            f"{where}: unknown placeholder {{{unknown[0]}}} in {data!r}: {suggest_names(unknown[0], known)}"
        )
    return PLACEHOLDER.sub(lambda match: known[match[1]], data)
