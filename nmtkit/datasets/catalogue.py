"""The catalogue of public corpora: descriptions, sources and processing."""

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
    """The values of a placeholder in a name: a list, or a pattern."""

    values: dict[str, str] = Field(default_factory=dict)
    """Maps each value to the publisher's name for it. If the names are the same as the values, give a plain list of
    values.
    """
    example: str = ""
    """A working example for the list of corpora; required without `values`."""
    pattern: str = r"[A-Za-z0-9_.]+"
    """Regular expression that a value must match; used only without `values`."""

    @model_validator(mode="before")
    @classmethod
    def _as_values(cls, given: Any) -> Any:
        if isinstance(given, list) and all(isinstance(value, str) for value in given):
            return {"values": {value: value for value in given}}
        return given

    @model_validator(mode="after")
    def _has_one(self) -> "Parameter":
        if not self.values and not self.example:
            raise ValueError(
                "list the `values`, or give an `example` if all values that match `pattern` are valid"
            )
        return self


class FilterConfig(Settings):
    """Conditions for keeping a pair. The corpus's own validation and test sets are not filtered.

    Words are separated by white space; in languages without spaces, two letters count as a word.
    """

    min_words: int = Field(default=1, ge=0)
    """Minimum number of words per side."""
    max_words: int | None = Field(default=None, ge=1)
    """Maximum number of words per side. Default: no limit."""
    max_ratio: float | None = Field(default=None, gt=1.0)
    """Maximum number of words on one side per word on the other. Default: no limit."""
    min_letter_ratio: float = Field(default=0.0, ge=0.0, le=1.0)
    """Minimum share of letters and combining marks in each side, not counting white space."""
    keep_identical: bool = True
    """Whether to keep pairs whose two sides are equal."""
    keep_duplicates: bool = False
    """Whether to keep repetitions of a pair."""


class SplitConfig(Settings):
    """How to split pairs if the corpus has no splits of its own; groups of pairs are never divided."""

    valid: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of the groups that is used for validation."""
    test: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of the groups that is used for testing."""
    max_pairs: int | None = Field(default=None, ge=1)
    """Maximum number of pairs in the validation set and in the test set; all other pairs are used for training.
    Default: no limit.
    """

    @model_validator(mode="after")
    def _leave_some(self) -> "SplitConfig":
        if self.valid + self.test >= 1.0:
            raise ValueError(
                "`valid` and `test` leave nothing for training; their sum must be below 1"
            )
        return self


class Entry(Settings):
    """A corpus in the catalogue, or a family of corpora whose name has placeholders such as {src}.

    All texts of the entry may use the placeholders of the name; {their_src} is the publisher's name
    for the value of {src}. {first} and {second} are src and tgt in alphabetical order.
    """

    title: str
    """Short description."""
    task: TaskName = TRANSLATION.name
    """Task of the corpus."""
    src: str
    """Source language code: en, de, zh_CN."""
    tgt: str
    """Target language code; equal to `src` for summarization."""
    size: str
    """Number of pairs and download size, as text."""
    licence: str
    """Licence name and main conditions."""
    homepage: str = ""
    citation: str = ""
    parameters: dict[str, Parameter] = Field(default_factory=dict)
    """Values of each placeholder in the name."""
    sources: list[AnySource] = Field(min_length=1)
    """Sources of the files, in the order that the reader expects."""
    read: AnyReader
    """How to read pairs from the files."""
    filter: FilterConfig = FilterConfig()
    """Conditions for keeping a pair."""
    split: SplitConfig = SplitConfig()
    """How to split the pairs."""
    expected: dict[Literal["train", "valid", "test"], int] = Field(default_factory=dict)
    """Published number of pairs in the corpus's own splits before filtering. A different number causes a warning."""
    recipe: Name = ""
    """Name of nmtkit's recipe for this corpus. Default: a preset is chosen by size."""

    @model_validator(mode="after")
    def _two_languages(self) -> "Entry":
        if self.src == self.tgt and not TASKS.get(self.task).monolingual:
            raise ValueError(
                f"source and target are the same language ({self.src!r}); use two languages"
            )
        return self


@dataclass(frozen=True)
class Corpus:
    """A corpus with its full name, and its entry with the placeholders filled in."""

    name: str
    entry: Entry


@dataclass(frozen=True)
class _Template:
    """An entry as written in its file, with line numbers."""

    data: dict[str, Any]
    places: Mapping[KeyPath, str]
    parameters: Mapping[str, Parameter]


class Catalogue:
    """nmtkit's corpora and those in the user's catalogue, whose entries override nmtkit's entries of the same name."""

    def __init__(self, extra: Path | None = None) -> None:
        own, given = _own_templates(), _templates(extra) if extra else {}
        # the user's entries come first, because a name may also match one of our families
        self._templates = {**given, **own, **given}

    def names(self) -> list[str]:
        """Returns the names of all entries with their placeholders, sorted."""
        return sorted(self._templates)

    def examples(self, name: str) -> list[str]:
        """Returns the full names of an entry's corpora: all of them, or examples if the values are not listed."""
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
        """Returns the corpus with this full name; RecipeError if there is none or its entry is invalid."""
        for entry_name, template in self._templates.items():
            values = _values(entry_name, name, template.parameters)
            if values is not None:
                if not is_valid_name(name):
                    raise RecipeError(
                        f"{name!r} is not a valid corpus name, because it cannot be the name "
                        "of a folder"
                    )
                if "src" in values and values["src"] == values.get("tgt"):
                    raise RecipeError(
                        f"{name}: source and target are the same language; use two languages"
                    )
                return self._make(name, entry_name, values)
        known = [example for entry_name in self._templates for example in self.examples(entry_name)]
        raise RecipeError(
            f"unknown corpus {name!r}: {suggest_names(name, known, most=0)}; `nmtkit fetch "
            "--list` lists all corpora"
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
    # A name that is not a string, such as 1.5 or null, has no recorded place.
    return {
        name: _template(name, given, places, places.get((name,), str(path)))
        for name, given in data.items()
    }


@cache
def _own_templates() -> dict[str, _Template]:
    return _templates(bundled_path("data", "corpora.yaml"))


def _template(name: str, data: Any, places: Mapping[KeyPath, str], where: str) -> _Template:
    """Reads the parameters of an entry; the rest is parsed once their values are known."""
    if not isinstance(data, dict):
        raise RecipeError(f"{where}: expected the settings of a corpus under `{name}:`")
    if not isinstance(name, str) or not is_valid_name(PLACEHOLDER.sub("x", name)):
        raise RecipeError(
            f"{where}: {shorten(repr(name))} is not a valid corpus name; use a folder name, which "
            f"may contain {{placeholders}}"
        )
    given = data.get("parameters", {})
    if not isinstance(given, dict) or set(given) != set(PLACEHOLDER.findall(name)):
        raise RecipeError(
            f"{where}: `parameters` must define exactly the placeholders that occur in the name"
        )
    return _Template(
        data, places, {key: parse(Parameter, value, where) for key, value in given.items()}
    )


def _values(
    entry_name: str, name: str, parameters: Mapping[str, Parameter]
) -> dict[str, str] | None:
    """Returns the placeholders' values if `name` matches `entry_name`, else None."""
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
            f"corpus {entry_name}: a pattern in its `parameters` is not a valid regular "
            f"expression: {fault}"
        ) from fault
    return match.groupdict() if match else None


def _known(values: Mapping[str, str], parameters: Mapping[str, Parameter]) -> dict[str, str]:
    """Returns the values of all placeholders that the texts of an entry may use."""
    theirs = {
        f"their_{key}": parameters[key].values.get(value, value) for key, value in values.items()
    }
    known = {**values, **theirs}
    if {"src", "tgt"} <= values.keys():
        known["first"], known["second"] = sorted((values["src"], values["tgt"]))
    return known


def _fill(data: Any, known: Mapping[str, str], where: str) -> Any:
    """Fills in the placeholders in all texts."""
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
            f"{where}: unknown placeholder {{{unknown[0]}}} in {data!r}: "
            f"{suggest_names(unknown[0], known)}"
        )
    return PLACEHOLDER.sub(lambda match: known[match[1]], data)
