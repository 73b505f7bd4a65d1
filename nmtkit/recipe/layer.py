"""What a recipe is made of: the keys of its file, of the one it extends, of its options, one laid over the other."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nmtkit.settings import KeyPath


@dataclass(frozen=True)
class Layer:
    """Some keys of a recipe as a file or an option gives them; laid over another it makes a third."""

    data: Mapping[str, Any]
    """The keys and their values."""
    places: Mapping[KeyPath, str]
    """Where each key stands, as `load_yaml` gives it."""
    name: str
    """Where all of it stands."""

    def over(self, base: "Layer") -> "Layer":
        """This one over another, key by key; a group whose `kind` changes starts afresh: its old keys do not fit."""
        replaced: set[KeyPath] = set()
        data = laid(base.data, self.data, replaced)
        kept = {
            path: place
            for path, place in base.places.items()
            if not any(path[:n] in replaced for n in range(1, len(path) + 1))
        }
        return Layer(data, {**kept, **self.places}, self.name)

    def only(self, keys: Collection[str]) -> "Layer":
        """Without the other keys."""
        data = {key: value for key, value in self.data.items() if key in keys}
        return replace(self, data=data, places={path: place for path, place in self.places.items() if path[0] in data})

    def stage(self, number: int) -> "Layer":
        """What one stage says; the keys begin anew below it."""
        above: KeyPath = ("stages", number)
        places = {path[2:]: place for path, place in self.places.items() if path[:2] == above and path[2:]}
        return Layer(self.data["stages"][number], places, self.places.get(above, self.name))

    def with_stage(self, number: int, stage: "Layer") -> "Layer":
        """The same with another stage of that number."""
        above: KeyPath = ("stages", number)
        stages = [stage.data if n == number else one for n, one in enumerate(self.data["stages"])]
        places = {path: place for path, place in self.places.items() if path[:2] != above or path == above}
        below = {(*above, *path): place for path, place in stage.places.items()}
        return replace(self, data={**self.data, "stages": stages}, places={**places, **below})


def laid(
    base: Mapping[str, Any], extra: Mapping[str, Any], replaced: set[KeyPath] | None = None, path: KeyPath = ()
) -> dict[str, Any]:
    """`extra` laid over `base`, both of which stand at `path`; `replaced` gets the path of every value that is new."""
    data = dict(base)
    for key, value in extra.items():
        old: Any = base.get(key)
        groups = isinstance(value, dict) and isinstance(old, dict)
        if groups and value.get("kind", old.get("kind")) == old.get("kind"):
            data[key] = laid(old, value, replaced, (*path, key))
        else:
            data[key] = value
            if replaced is not None:
                replaced.add((*path, key))
    return data
