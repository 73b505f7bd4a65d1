"""The columns of an example, declared by its task."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from nmtkit.core.errors import RecipeError

ColumnType = Literal["text", "label", "labels", "features"]
"""Tokenized text, one label, one label per token or word, or rows of numbers."""


@dataclass(frozen=True)
class Column:
    """One column: its name is the key of its files in the splits of `data`."""

    name: str
    type: ColumnType = "text"
    required: tuple[str, ...] = ("train", "valid", "test")
    """The splits that must have this column."""
    plural: str = ""
    """Name of its contents in messages, such as "articles". If empty, the column's name is used."""

    def __post_init__(self) -> None:
        if self.type not in get_args(ColumnType):
            raise RecipeError(
                f"column {self.name} has the unknown type {self.type!r}; the types are "
                f"{', '.join(get_args(ColumnType))}"
            )


def label_type(columns: Iterable[Column]) -> ColumnType | None:
    """Returns the type of the column `labels`, or None if the task has no such column."""
    return next((column.type for column in columns if column.name == "labels"), None)
