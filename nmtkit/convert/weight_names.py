"""Tables of the weight names and layouts of other toolkits, for importing and exporting.

Each row maps the name of one of our weights to the tensors that the toolkit stores for it:

    "{side}.{layer}.feed_forward.inner.{kind}": "model.{side}.layers.{layer}.fc1.{kind}"

{side} is encoder or decoder, {layer} a number, and {kind} the last part of a name, such as weight
or bias.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

SUPPRESSED_BIAS = -1000.0
"""Output bias of a token that must never be generated; finite, like all weights."""

_PLACEHOLDERS = {"side": "encoder|decoder", "layer": r"\d+", "kind": r"\w+"}


@dataclass(frozen=True)
class Stored:
    """The layout in which a toolkit stores one of our weights."""

    names: Sequence[str]
    """Tensors whose concatenated rows are the rows of our weight."""
    transposed: bool = False
    """Whether matrices are transposed (inputs are rows, outputs are columns)."""
    as_row: bool = False
    """Whether vectors are stored as matrices with one row."""
    unread_rows: int = 0
    """Number of unused rows before the rows of our weight."""

    def part_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of each stored tensor for a weight of this shape."""
        rows = shape[0] // len(self.names) + self.unread_rows
        stored = (rows, *shape[1:])
        if self.as_row:
            return (1, *stored)
        return stored[::-1] if self.transposed else stored

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Returns our weight, assembled from the stored tensors."""
        tensors = []
        for part in parts:
            tensor = part[0] if self.as_row else part
            tensor = tensor.t() if self.transposed else tensor
            tensors.append(tensor[self.unread_rows :])
        return torch.cat(tensors)

    def split(self, weight: Tensor) -> dict[str, Tensor]:
        """Returns the stored tensors of one of our weights by name; unused rows are zero."""
        tensors = {}
        for name, part in zip(self.names, weight.chunk(len(self.names)), strict=True):
            tensor = (
                torch.cat([part.new_zeros(self.unread_rows, *part.shape[1:]), part])
                if self.unread_rows
                else part
            )
            tensor = tensor.t() if self.transposed else tensor
            tensors[name] = tensor[None] if self.as_row else tensor
        return tensors


Row = str | Sequence[str] | Stored
"""A toolkit's layout of a weight: one tensor, several tensors with parts of its rows, or another layout."""


class WeightNames:
    """A table that maps our weight names to a toolkit's."""

    def __init__(self, table: Mapping[str, Row]) -> None:
        self._rows: list[tuple[re.Pattern[str], Stored]] = []
        for ours, row in table.items():
            self._rows.append((_pattern(ours), _stored(row)))

    def __contains__(self, name: str) -> bool:
        return self._find(name) is not None

    def stored(self, name: str) -> Stored:
        """Returns how the toolkit stores a weight; KeyError if it is not in the table."""
        stored = self._find(name)
        if stored is None:
            raise KeyError(name)
        return stored

    def theirs(self, name: str) -> str:
        """Returns the toolkit's name for a weight that it stores as one tensor."""
        (stored_name,) = self.stored(name).names
        return stored_name

    def rename(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns our weights in the toolkit's layout and under its names."""
        tensors: dict[str, Tensor] = {}
        for name, weight in weights.items():
            tensors.update(self.stored(name).split(weight))
        return tensors

    def _find(self, name: str) -> Stored | None:
        for pattern, stored in self._rows:
            match = pattern.fullmatch(name)
            if match:
                names = [stored_name.format(**match.groupdict()) for stored_name in stored.names]
                return replace(stored, names=names)
        return None


def _pattern(ours: str) -> re.Pattern[str]:
    text = re.escape(ours)
    for placeholder, values in _PLACEHOLDERS.items():
        text = text.replace(re.escape(f"{{{placeholder}}}"), f"(?P<{placeholder}>{values})")
    return re.compile(text)


def _stored(row: Row) -> Stored:
    if isinstance(row, Stored):
        return row
    return Stored([row] if isinstance(row, str) else row)
