"""The catalogue of public corpora: what each is, where it comes from, and what is made of it."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from nmtkit.corpora.entries import Entry, Parameter
from nmtkit.errors import RecipeError
from nmtkit.registry import near_names
from nmtkit.settings import KeyPath, beside_package, is_name, load_yaml, parse, shortened

PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True)
class Corpus:
    """One corpus by its whole name."""

    name: str
    """Without placeholders."""
    entry: Entry
    """With the values in place of the placeholders."""


@dataclass(frozen=True)
class _Template:
    """An entry as its file has it, and where its lines stand."""

    data: dict[str, Any]
    places: Mapping[KeyPath, str]
    parameters: Mapping[str, Parameter]


class Catalogue:
    """The corpora that come with nmtkit, and those of a file of the user's."""

    def __init__(self, templates: Mapping[str, _Template]) -> None:
        self._templates = templates

    @classmethod
    def load(cls, extra: Path | None = None) -> "Catalogue":
        """Reads the catalogue.

        Args:
            extra: a file of the same form; an entry of a name that nmtkit has as well takes its place.

        Raises:
            NmtkitError: a file cannot be read or an entry is not valid; the message gives the line.
        """
        templates: dict[str, _Template] = {}
        for path in (beside_package("data", "corpora.yaml"), *([extra] if extra else [])):
            data, places = load_yaml(path)
            for name, given in data.items():
                # A name that is no text, as 1.5 or null, has no place of its own.
                templates[name] = _template(name, given, places, places.get((name,), str(path)))
        return cls(templates)

    def names(self) -> list[str]:
        """The names of all entries, sorted, with their placeholders."""
        return sorted(self._templates)

    def examples(self, name: str) -> list[str]:
        """Whole names of an entry: all where the values are listed, else of the examples."""
        parameters = self._templates[name].parameters
        rows = product(*(parameter.shown for parameter in parameters.values()))
        values = [dict(zip(parameters, row, strict=True)) for row in rows]
        return [
            _fill(name, row, name) for row in values if not {"src", "tgt"} <= row.keys() or row["src"] != row["tgt"]
        ]

    def get(self, name: str) -> Corpus:
        """The corpus of that whole name.

        Raises:
            RecipeError: there is none, with the nearest name; or its entry is not valid, with the line.
        """
        for entry_name, template in self._templates.items():
            values = _values(entry_name, name, template.parameters)
            if values is not None:
                if not is_name(name):
                    raise RecipeError(f"{name!r} cannot be the name of a corpus: its folder would have that name")
                if "src" in values and values["src"] == values.get("tgt"):
                    raise RecipeError(f"{name}: source and target are the same language; name two")
                return self._make(name, entry_name, values)
        for entry_name, template in self._templates.items():
            free = {key: Parameter(example="x") for key in template.parameters}
            for key, value in (_values(entry_name, name, free) or {}).items():
                allowed = template.parameters[key].values
                if allowed and value not in allowed:
                    raise RecipeError(
                        f"unknown corpus {name!r}: {{{key}}} of {entry_name}: {near_names(value, allowed)}"
                    )
        whole = [example for entry_name in self._templates for example in self.examples(entry_name)]
        near = difflib.get_close_matches(name, [*whole, *self._templates], n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise RecipeError(f"unknown corpus {name!r}: {hint}`nmtkit fetch --list` lists them all")

    def _make(self, name: str, entry_name: str, values: Mapping[str, str]) -> Corpus:
        template = self._templates[entry_name]
        where = template.places[(entry_name,)]
        data = _fill(template.data, _known(values, template.parameters), where) if values else template.data
        places = {key[1:]: place for key, place in template.places.items() if key[0] == entry_name}
        return Corpus(name, parse(Entry, data, where, places, lambda path: (entry_name, *path)))


def _template(name: str, data: Any, places: Mapping[KeyPath, str], where: str) -> _Template:
    """Reads the parameters of an entry; the rest is read when their values are known."""
    if not isinstance(data, dict):
        raise RecipeError(f"{where}: expected the settings of a corpus below `{name}:`")
    if not isinstance(name, str) or not is_name(PLACEHOLDER.sub("x", name)):
        raise RecipeError(
            f"{where}: {shortened(repr(name))} is no name of a corpus, which is a folder's name with {{placeholders}}"
        )
    given = data.get("parameters", {})
    if not isinstance(given, dict) or set(given) != set(PLACEHOLDER.findall(name)):
        raise RecipeError(f"{where}: `parameters` must say what may stand for each placeholder of the name, no others")
    return _Template(data, places, {key: parse(Parameter, value, where) for key, value in given.items()})


def _values(entry_name: str, name: str, parameters: Mapping[str, Parameter]) -> dict[str, str] | None:
    """What stands for the placeholders where `name` is of the form of `entry_name`; None where it is not."""
    form = re.escape(PLACEHOLDER.sub(r"<\1>", entry_name))
    for key, parameter in parameters.items():
        allowed = "|".join(map(re.escape, parameter.values)) if parameter.values else parameter.pattern
        form = form.replace(f"<{key}>", f"(?P<{key}>{allowed})")
    try:
        found = re.fullmatch(form, name)
    except re.error as fault:
        raise RecipeError(f"corpus {entry_name}: the patterns of its `parameters` are none: {fault}") from fault
    return found.groupdict() if found else None


def _known(values: Mapping[str, str], parameters: Mapping[str, Parameter]) -> dict[str, str]:
    """All placeholders that the texts of an entry may have, with what stands for them."""
    theirs = {key: parameters[key].values.get(value, value) for key, value in values.items()}
    known = {**values, **{f"their_{key}": value for key, value in theirs.items()}}
    if {"src", "tgt"} <= values.keys():
        for before, sides in (("", values), ("their_", theirs)):
            known[f"{before}first"], known[f"{before}second"] = sorted((sides["src"], sides["tgt"]))
    return known


def _fill(data: Any, known: Mapping[str, str], where: str) -> Any:
    """The same data with the values in place of the placeholders, in all texts."""
    if isinstance(data, dict):
        return {key: value if key == "parameters" else _fill(value, known, where) for key, value in data.items()}
    if isinstance(data, list):
        return [_fill(item, known, where) for item in data]
    if not isinstance(data, str):
        return data
    unknown = sorted(set(PLACEHOLDER.findall(data)) - known.keys())
    if unknown:
        raise RecipeError(f"{where}: unknown placeholder {{{unknown[0]}}} in {data!r}: {near_names(unknown[0], known)}")
    return PLACEHOLDER.sub(lambda found: known[found[1]], data)
