"""The contract of a reader: what makes pairs of texts out of the files that a corpus is published as.

A reader is a group of settings, `read:` of a corpus in the catalogue, that knows how to read. To add one: a class in a
file of this folder, registered here under the `kind` that the catalogue calls it by, and the file's name in
`nmtkit/corpora/__init__.py`:

    @READERS.register("two_columns")
    class TwoColumns(Reader):
        \"\"\"Lines of source, tab, target.\"\"\"

        kind: Literal["two_columns"] = "two_columns"
        swap: bool = False
        \"\"\"Whether the target stands first.\"\"\"

        def pairs(self, files: Sequence[Path], dropped: Counter[str]) -> Iterator[Pair]:
            ...
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nmtkit.registry import Registry
from nmtkit.settings import Settings


@dataclass(frozen=True)
class Pair:
    """One sentence and its translation, or one article and its summary; each is one line without a line end."""

    src: str
    """Source text."""
    tgt: str
    """Target text."""
    group: str = ""
    """What may not be divided between splits: pairs of one page, one family of packages, one source sentence. Empty:
    the source text itself."""
    split: str = ""
    """"train", "valid" or "test" where the corpus itself says so; empty where it is for `splits` to decide."""


class Reader(Settings):
    """Settings of one way to read, and the reading itself."""

    kind: str
    """The name it is registered by."""

    @abstractmethod
    def pairs(self, files: Sequence[Path], dropped: Counter[str]) -> Iterator[Pair]:
        """The pairs of the corpus, one at a time, in the same order every time; only a few are in memory at once.

        What is wanted of length, letters or equality is not the reader's business: `keep` of the catalogue says it.

        Args:
            files: what the corpus's sources gave, in the order in which the catalogue names them.
            dropped: how many items were left out, by the reason in a few words ("no translation"). To be counted up by
                the reader; it is shown to the user and stands in the card.

        Raises:
            DataError: a file is damaged or not of the layout that was expected; the message names it and its member.
        """


READERS: Registry[type[Reader]] = Registry("reader")
"""Every reader by its kind."""
