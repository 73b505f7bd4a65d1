"""What may stand in a recipe: the kinds of a group with the keys of each, and the values of a key with choices.

All of it is read from the types of the settings, the registries and the docstrings of what they name.
"""

import inspect
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from nmtkit.config.schema import Recipe
from nmtkit.core.registry import Registry
from nmtkit.core.settings import group_classes, members_by_name, members_of
from nmtkit.metrics.metric import METRICS, text_metrics

KIND = "kind"
"""The key that chooses among the kinds of a group."""

_PLAIN = {NoneType: "null", bool: "true, false", int: "a number", float: "a number", str: "a text"}


@dataclass(frozen=True)
class KeyChoice:
    """One possible value of a key."""

    name: str
    meaning: str = ""
    """A line, with the paper where there is one."""
    keys: tuple[str, ...] = ()
    """The keys that go with it, where it is a kind of a group."""


@dataclass(frozen=True)
class RecipeKey:
    """A key of a recipe."""

    path: str
    kinds: tuple[str, ...]
    """The kinds of the group that have it; none where the group has no kinds."""
    default: str
    meaning: str

    def is_named(self, keys: str) -> bool:
        """Whether dotted keys name it, a group that it is in, or one kind of that group, as `model.transformer`."""
        group, _, name = self.path.rpartition(".")
        paths = [self.path, *(f"{group}.{kind}.{name}" for kind in self.kinds)]
        return any(f".{keys}." in f".{path}." for path in paths)


def choices(key: str, kinds: Collection[str] = ()) -> list[KeyChoice]:
    """What may stand for a dotted key: the kinds of a group, or the values of a key; empty if it has no choices.

    `kinds` are those of its group that are asked, as in `RecipeKey.kinds`; none: all.
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
    """All keys that a recipe may have, those of all kinds of its groups too, and `kind` once for each group.

    One that is the same in several kinds of a group comes once.
    """
    merged: dict[tuple[str, str, str], tuple[str, ...]] = {}
    for place, group in [("", Recipe), *_groups(Recipe)]:
        kind = _kind(group)
        for name, field in group.model_fields.items():
            path = f"{place}.{name}".removeprefix(".")
            if name == KIND and kind:
                merged[path, "-", describe_key(place)] = ()
            elif group is not Recipe or not group_classes(field):
                value = (
                    "(required)"
                    if field.is_required()
                    else field.get_default(call_default_factory=True)
                )
                about = (path, "-" if value is None else str(value), group.meaning(name))
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


def describe_key(key: str) -> str:
    """What a key is for; empty if there is none of that name."""
    *above, last = key.split(".")
    return next((owner.meaning(last) for owner in _owners(above) if last in owner.model_fields), "")


def _groups(cls: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Every group of settings below a class, of each kind, with its dotted path."""
    for key, field in cls.model_fields.items():
        for group in group_classes(field):
            yield f"{above}{key}", group
            yield from _groups(group, f"{above}{key}.")
        for name, group in members_of(field).items():
            yield f"{above}{key}.{name}", group
            yield from _groups(group, f"{above}{key}.{name}.")


def _owners(path: Sequence[str]) -> list[Any]:
    """The classes whose fields may stand at a path."""
    return (
        [group for place, group in _groups(Recipe) if place == ".".join(path)] if path else [Recipe]
    )


def _kind(group: Any) -> str:
    """The name of one of several kinds of a group; empty where there is one kind only."""
    field = group.model_fields.get(KIND)
    return str(field.default) if field is not None and len(get_args(field.annotation)) == 1 else ""


def _kinds(groups: Sequence[Any]) -> list[KeyChoice]:
    """The kinds of a group. A class that has its module to itself is described by the module's head."""
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
    """The members of its registry; of metrics those that compare texts, which alone a recipe can name."""
    members = []
    for registry in [mark for mark in field.metadata if isinstance(mark, Registry)][:1]:
        names = (
            [metric.name for metric in text_metrics()] if registry is METRICS else registry.names()
        )
        members += [KeyChoice(name, _first_line(registry.get(name))) for name in names]
    return members


def _values(annotation: Any) -> list[KeyChoice]:
    """The values that a type lists, and in words what else it allows; empty if it lists none."""
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
    """A type, or those that it is made of; a `Literal` is one, and so is a group of further keys."""
    if get_origin(annotation) in (Literal, dict) or not get_args(annotation):
        return [annotation]
    return [inner for part in get_args(annotation) for inner in _parts(part)]


def _first_line(thing: Any) -> str:
    """The first sentence of a docstring; of a metric its title."""
    if is_dataclass(thing) and not isinstance(thing, type):
        return str(getattr(thing, "title", ""))
    text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return text.partition("; see the head")[0]
