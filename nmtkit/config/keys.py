"""Lists what a recipe may contain: the kinds of each group with their keys, and the values of keys with choices.

All of this is derived from the types of the settings, the registries and the docstrings of the registered objects.
"""

import inspect
import os
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from nmtkit.config.schema import Recipe
from nmtkit.core.formats import dump_yaml_value
from nmtkit.core.registry import Registry
from nmtkit.core.settings import Settings, group_classes, members_by_name, members_of
from nmtkit.metrics.metric import METRICS, text_metrics

KIND = "kind"
"""The key that selects the kind of a group."""

_PLAIN = {NoneType: "null", bool: "true, false", int: "a number", float: "a number", str: "a text"}


@dataclass(frozen=True)
class KeyChoice:
    """One possible value of a key."""

    name: str
    meaning: str = ""
    """One line of description, with the paper if there is one."""
    keys: tuple[str, ...] = ()
    """The keys of this choice, if it is a kind of a group."""


@dataclass(frozen=True)
class RecipeKey:
    """A key of a recipe."""

    path: str
    kinds: tuple[str, ...]
    """The kinds of the group that have this key; empty if the group has no kinds."""
    default: str
    meaning: str

    def is_named(self, keys: str) -> bool:
        """Returns whether a dotted path refers to this key, its group, or a kind of the group (`model.rnnsearch`)."""
        group, _, name = self.path.rpartition(".")
        paths = [self.path, *(f"{group}.{kind}.{name}" for kind in self.kinds)]
        return any(f".{keys}." in f".{path}." for path in paths)


def choices(key: str, kinds: Collection[str] = ()) -> list[KeyChoice]:
    """Returns the choices of a dotted key: the kinds of a group, or the values of a key; empty if there are none.

    `kinds` restricts the kinds of the key's group, as in `RecipeKey.kinds`; if empty, all kinds are included.
    """
    *above, last = key.split(".")
    if last == KIND and above and (listed := choices(".".join(above))):
        return listed
    for owner in _owners(above):
        if (field := owner.model_fields.get(last)) and (not kinds or _kind(owner) in kinds):
            groups = [group for group in group_classes(field) if _kind(group)]
            if listed := _kinds(groups) or _members(field) or _values(field.annotation):
                return listed
    return []


def all_keys() -> list[RecipeKey]:
    """Returns all keys that a recipe may have, including the keys of all kinds, and `kind` once for each group.

    A key that is identical in several kinds of a group is listed once.
    """
    merged: dict[tuple[str, str, str], tuple[str, ...]] = {}
    for place, group in [("", Recipe), *_groups(Recipe)]:
        kind = _kind(group)
        for name, field in group.model_fields.items():
            path = f"{place}.{name}".removeprefix(".")
            if name == KIND and kind:
                merged[path, "-", describe_key(place)] = ()
            elif group is not Recipe or not group_classes(field):
                default = "(required)"
                if not field.is_required():
                    default = show_value(field.get_default(call_default_factory=True))
                about = (path, default, group.meaning(name))
                merged[about] = (
                    *dict.fromkeys((*merged.get(about, ()), *([kind] if kind else []))),
                )
            if members := members_by_name(field):
                for member in members.names():
                    merged[f"{path}.{member}", "-", members.meaning(member)] = ()
    return [
        RecipeKey(path, kinds, default, meaning)
        for (path, default, meaning), kinds in merged.items()
    ]


def show_value(value: Any) -> str:
    """Returns a key's value as YAML on one line; None is shown as `-`.

    The defaults of groups are left out. Absolute paths are normalized, and relative to the current folder if they are
    below it.
    """
    return "-" if value is None else dump_yaml_value(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, Settings):
        kind = {KIND: getattr(value, KIND)} if hasattr(value, KIND) else {}
        return _plain(kind | value.model_dump(mode="json", exclude_defaults=True))
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, str) or not os.path.isabs(value):
        return value
    path = Path(os.path.normpath(value))
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def describe_key(key: str) -> str:
    """Returns the description of a key; empty if there is no such key."""
    *above, last = key.split(".")
    return next((owner.meaning(last) for owner in _owners(above) if last in owner.model_fields), "")


def _groups(cls: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every group of settings below a class, for each kind, with its dotted path."""
    for key, field in cls.model_fields.items():
        for group in group_classes(field):
            yield f"{above}{key}", group
            yield from _groups(group, f"{above}{key}.")
        for name, group in members_of(field).items():
            yield f"{above}{key}.{name}", group
            yield from _groups(group, f"{above}{key}.{name}.")


def _owners(path: Sequence[str]) -> list[Any]:
    """Returns the classes whose fields are allowed at a path."""
    return (
        [group for place, group in _groups(Recipe) if place == ".".join(path)] if path else [Recipe]
    )


def _kind(group: Any) -> str:
    """Returns the name of the kind that a settings class represents; empty if its group has no kinds."""
    field = group.model_fields.get(KIND)
    return str(field.default) if field is not None and len(get_args(field.annotation)) == 1 else ""


def _kinds(groups: Sequence[Any]) -> list[KeyChoice]:
    """Returns the kinds of a group. A class that is alone in its module is described by the module's docstring."""
    modules = Counter(group.__module__ for group in groups)
    kinds = []
    for group in groups:
        alone = modules[group.__module__] == 1
        meaning = _first_line(sys.modules[group.__module__] if alone else group)
        kinds.append(
            KeyChoice(
                _kind(group), meaning, tuple(key for key in group.model_fields if key != KIND)
            )
        )
    return kinds


def _members(field: Any) -> list[KeyChoice]:
    """Returns the members of a field's registry; for metrics, only those that a recipe can use, which compare texts."""
    members = []
    for registry in [mark for mark in field.metadata if isinstance(mark, Registry)][:1]:
        names = (
            [metric.name for metric in text_metrics()] if registry is METRICS else registry.names()
        )
        members += [KeyChoice(name, _first_line(registry.get(name))) for name in names]
    return members


def _values(annotation: Any) -> list[KeyChoice]:
    """Returns the values that a type lists, if any, and a phrase for each kind of other values that it allows."""
    parts = list(_parts(annotation))
    if not any(get_origin(part) is Literal or part is bool for part in parts):
        return []
    listed = [
        str(value) for part in parts if get_origin(part) is Literal for value in get_args(part)
    ]
    return [
        KeyChoice(name) for name in (*listed, *(_PLAIN[part] for part in parts if part in _PLAIN))
    ]


def _parts(annotation: Any) -> list[Any]:
    """Returns a type, or the members of a union; a `Literal` and a group of keys each count as one type."""
    if get_origin(annotation) in (Literal, dict) or not get_args(annotation):
        return [annotation]
    return [inner for part in get_args(annotation) for inner in _parts(part)]


def _first_line(thing: Any) -> str:
    """Returns the first sentence of a docstring, or the title of a metric."""
    if is_dataclass(thing) and not isinstance(thing, type):
        return str(getattr(thing, "title", ""))
    text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return text.partition("; see the head")[0]
