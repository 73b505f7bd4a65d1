"""The columns of an example, as a task declares them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from nmtkit.core.errors import RecipeError

ColumnType = Literal["text", "label", "labels", "features"]
"""Text, cut into tokens; one label; a label for every token or word; rows of numbers."""


@dataclass(frozen=True)
class Column:
    """One column: its name is the key of its files in the splits of `data`."""

    name: str
    type: ColumnType = "text"
    required: tuple[str, ...] = ("train", "valid", "test")
    """The splits that must have it."""
    plural: str = ""
    """What messages call its contents ("articles"); empty: by its name."""

    def __post_init__(self) -> None:
        if self.type not in get_args(ColumnType):
            raise RecipeError(
                f"column {self.name}: there is no type {self.type!r}, only {', '.join(get_args(ColumnType))}"
            )


def label_type(columns: Iterable[Column]) -> ColumnType | None:
    """The type of the column `labels`; None without one."""
    return next((column.type for column in columns if column.name == "labels"), None)
