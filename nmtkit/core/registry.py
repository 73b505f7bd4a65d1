"""Registries of models, losses and other members that a recipe can use, and lazy imports of a package's names."""

import difflib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Generic, TypeVar

from nmtkit.core.errors import RecipeError

T = TypeVar("T")


MAX_NAMES = 60
"""Maximum number of valid names that a message lists in full; if there are more, it lists only the nearest."""
MAX_KEYS = 20
"""The same limit for the keys of a recipe."""
_NEARNESS = 0.6
"""Minimum similarity between an unknown name and a suggested name."""
_NEAR = 5
"""Maximum number of nearest names that a message lists if there are too many names to list all."""


def suggest_names(
    given: str, valid: Iterable[str], most: int = MAX_NAMES, what: str = "valid names"
) -> str:
    """Suggests the nearest valid name, and lists all names or, if there are more than `most`, only the nearest."""
    names = sorted(valid)
    close = difflib.get_close_matches(given, names, n=1, cutoff=_NEARNESS)
    hint = f"did you mean {close[0]!r}? " if close else ""
    if len(names) <= most:
        return f"{hint}{what}: {', '.join(names)}"
    near = difflib.get_close_matches(given, names, n=_NEAR, cutoff=_NEARNESS)
    if not near:
        return f"none of the {len(names):,} {what} is similar"
    return f"{hint}{what}: {', '.join(near)} and {len(names) - len(near):,} others"


def suggest_registered(given: str, valid: Sequence[str]) -> str:
    """Works like `suggest_names`, and also mentions `--user-module` if no valid name is similar."""
    names = suggest_names(given, valid) if valid else "no name is registered"
    if names.startswith("did you mean"):
        return names
    return f"{names}; if your own file registers this name, add `--user-module FILE.py`"


@dataclass
class Entries:
    """The members that a file outside nmtkit has registered."""

    gives_way: bool = False
    """Whether members with the same name from another user file replace the members of this file."""
    names: set[tuple[str, str]] = field(default_factory=set)
    """The kind of each member, such as "model", and its name."""


_entries: ContextVar[Entries | None] = ContextVar("entries", default=None)
"""The entries of the file that is being executed."""


@contextmanager
def noting(entries: Entries) -> Iterator[None]:
    """Records in `entries` what is registered inside the block."""
    token = _entries.set(entries)
    try:
        yield
    finally:
        _entries.reset(token)


class Registry(Generic[T]):
    """A table of members by name. Decorators register the members where they are defined.

    `what` is the noun for a member in messages, such as "model" or "tokenizer". `modules` maps each member of the
    package to the module that registers it, which is imported on first use. Members outside the package are registered
    when their modules are imported.
    """

    def __init__(self, what: str, modules: Mapping[str, str] | None = None) -> None:
        self.what = what
        self._modules = dict(modules or {})
        self._members: dict[str, T] = {}
        self._outside: dict[str, Entries] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Returns a decorator that registers its argument under `name`; each name is unique."""

        def enter(member: T) -> T:
            entries = _entries.get()
            before = self._outside.get(name)
            if (
                entries is not None
                and entries.gives_way
                and before is not None
                and not before.gives_way
            ):
                return member
            # A member of the package is registered while its module is imported, so the module is in `sys.modules`.
            is_reserved = name in self._modules and self._modules[name] not in sys.modules
            assert not is_reserved, f"{self.what} {name!r} belongs to nmtkit: choose another name"
            assert name not in self._members, f"{self.what} {name!r} is registered twice"
            self._members[name] = member
            if entries is not None:
                entries.names.add((self.what, name))
                self._outside[name] = entries
            return member

        return enter

    def get(self, name: str) -> T:
        """Returns the member with this name; raises RecipeError if there is none."""
        if name not in self:
            raise RecipeError(f"unknown {self.what} {name!r}; {suggest_names(name, self)}")
        if name not in self._members:
            import_module(self._modules[name])
        return self._members[name]

    def __contains__(self, name: object) -> bool:
        return name in self._members or name in self._modules

    def __iter__(self) -> Iterator[str]:
        """Yields all names: those in `modules` in their order, then the others in the order of registration."""
        return iter(dict.fromkeys([*self._modules, *self._members]))

    def names(self) -> list[str]:
        """Returns all names, sorted."""
        return sorted(self)


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a package whose public names are imported on first use.

    `modules` maps each public name to its module, relative to the package. This way a package can have names that need
    torch, and still be imported quickly by `nmtkit --help`.
    """

    def import_name(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    return import_name
