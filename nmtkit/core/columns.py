"""The columns of an example, declared by its task."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from nmtkit.core.errors import RecipeError

ColumnType = Literal["text", "label", "labels", "features"]
"""Tokenized text, one label, one label per token or word, or rows of numbers."""


@dataclass(frozen=True)
class Column:
    """A column of an example; its name is also the key for its files in each split of `data`."""

    name: str
    type: ColumnType = "text"
    required: tuple[str, ...] = ("train", "valid", "test")
    """The splits that must have this column."""
    plural: str = ""
    """Plural noun for the column's contents in messages, such as "articles". If empty, the column's name is used."""

    def __post_init__(self) -> None:
        if self.type not in get_args(ColumnType):
            raise RecipeError(
                f"column {self.name}: unknown type {self.type!r}; the types are {', '.join(get_args(ColumnType))}"
            )


def label_type(columns: Iterable[Column]) -> ColumnType | None:
    """Returns the type of the column `labels`, or None if the task has no such column."""
    return next((column.type for column in columns if column.name == "labels"), None)
