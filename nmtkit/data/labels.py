"""Labels of examples, or of their words, as ids."""

from collections.abc import Sequence
from typing import ClassVar

from nmtkit.core.columns import ColumnType
from nmtkit.core.errors import DataError, shorten
from nmtkit.data.vocabulary import Vocabulary


class LabelVocabulary(Vocabulary):
    """Labels by id from 0, the most frequent first: a vocabulary without special tokens."""

    reserved: ClassVar[tuple[str, ...]] = ()

    def encode(self, labels: Sequence[str], place: str) -> list[int]:
        """The ids of the labels of an example at `place`; DataError if it has none, or one that train has not."""
        if not labels or "" in labels:
            raise DataError(f"{place}: there is no label; write it there, or leave the example out")
        for label in labels:
            if label not in self:
                known = shorten(", ".join(self.tokens))
                raise DataError(f"{place}: train has no label {shorten(label)!r}, only {known}; correct it")
        return self.ids(labels)


def split_labels(line: str, kind: ColumnType | None) -> list[str]:
    """The labels in a line: "labels" are separated by white space, a "label" is all of it."""
    return line.split() if kind == "labels" else [line.strip()]
