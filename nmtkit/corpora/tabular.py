"""Corpora of one file with a pair on every line, the sides between tabs, as manythings.org exports Tatoeba."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from nmtkit.corpora.pairs import Pair
from nmtkit.corpora.readers import READERS, Reader
from nmtkit.corpora.texts import text_lines
from nmtkit.errors import DataError
from nmtkit.settings import Field


@READERS.register("tab_separated")
class TabSeparated(Reader):
    """Lines of columns between tabs; columns that are not asked for, such as who wrote a sentence, are passed over."""

    kind: Literal["tab_separated"] = "tab_separated"
    text: str
    """FILE, or FILE:MEMBER for a member of an archive; FILE is what the source gives."""
    src: int = Field(default=1, ge=1)
    """The column of the source, counted from 1."""
    tgt: int = Field(default=2, ge=1)
    """The column of the target."""
    group: int | None = Field(default=None, ge=1)
    """The column whose text may not be divided between splits; default: that of the source."""

    def pairs(self, files: Sequence[Path], dropped: Counter[str]) -> Iterator[Pair]:
        """The pair of every line that is not empty.

        Raises:
            DataError: the file is damaged, or a line has too few columns; the message names the line.
        """
        group = self.group or self.src
        needed = max(self.src, self.tgt, group)
        for number, line in enumerate(text_lines(files, self.text), start=1):
            if not line:
                dropped["empty lines"] += 1
                continue
            columns = line.split("\t")
            if len(columns) < needed:
                raise DataError(
                    f"{self.text}, line {number}: expected {needed} columns between tabs, found {len(columns)}; "
                    "is the file of another layout now?"
                )
            yield Pair(columns[self.src - 1], columns[self.tgt - 1], group=columns[group - 1])
