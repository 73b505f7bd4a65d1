"""Names for the things a recipe can choose from."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from nmtkit.core.errors import RecipeError

T = TypeVar("T")


MAX_NAMES = 60
"""The most valid names that a message lists; of more it lists the nearest."""
MAX_KEYS = 20
"""The same for the keys of a recipe."""
_NEARNESS = 0.6
"""Names that are at least this similar to an unknown name are suggested."""
_NEAR = 5
"""How many of more names than that."""


def suggest_names(given: str, valid: Iterable[str], most: int = MAX_NAMES, what: str = "valid names") -> str:
    """Says which valid name is nearest to the one given, and lists them, or the nearest of more than `most`."""
    names = sorted(valid)
    close = difflib.get_close_matches(given, names, n=1, cutoff=_NEARNESS)
    hint = f"did you mean {close[0]!r}? " if close else ""
    if len(names) <= most:
        return f"{hint}{what}: {', '.join(names)}"
    near = difflib.get_close_matches(given, names, n=_NEAR, cutoff=_NEARNESS)
    if not near:
        return f"none of the {len(names):,} {what} is spelled like it"
    return f"{hint}{what}: {', '.join(near)} and {len(names) - len(near):,} others"


def suggest_registered(given: str, valid: Sequence[str]) -> str:
    """The same for names that a user's file may register; if no valid name is similar, says how to run such a file."""
    names = suggest_names(given, valid) if valid else "none is registered"
    if names.startswith("did you mean"):
        return names
    return f"{names}; if a file of yours registers it, run that file in place of nmtkit: `python mine.py COMMAND ...`"


class Registry(Generic[T]):
    """A table from names to things, filled by decorators where the things are defined.

    Messages call the members `what`: "model", "tokenizer".
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._members: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Returns a decorator that enters its argument under `name`; a name can be taken once."""

        def enter(member: T) -> T:
            assert name not in self._members, f"{self.what} {name!r} is registered twice"
            self._members[name] = member
            return member

        return enter

    def get(self, name: str) -> T:
        """The member of that name; raises RecipeError if there is none."""
        if name not in self._members:
            raise RecipeError(f"unknown {self.what} {name!r}: {suggest_names(name, self._members)}")
        return self._members[name]

    def __iter__(self) -> Iterator[str]:
        """All names in the order in which they were entered."""
        return iter(self._members)

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._members)
