"""Corpora of two texts side by side: line n, or segment n, of one is the translation of that of the other."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Literal

from nmtkit.corpora.markup import Unit, plain, segments, talks, unescaped
from nmtkit.corpora.pairs import Pair
from nmtkit.corpora.readers import READERS, Reader
from nmtkit.corpora.texts import text_lines
from nmtkit.errors import DataError
from nmtkit.settings import Field, Settings

FORMS: Mapping[str, Callable[[Iterator[str], str, Counter[str]], Iterator[Unit]]] = {
    "lines": plain,
    "talks": talks,
    "segments": segments,
}
"""What makes units out of the lines of a text, by `form`."""


class Part(Settings):
    """Two texts, side by side."""

    src: str
    """FILE, or FILE:MEMBER for a member of an archive; FILE is what a source gives. Either may be gzip-compressed."""
    tgt: str
    """The same of the target."""
    split: Literal["train", "valid", "test", ""] = ""
    """What it is for; empty: `split` of the entry decides."""
    form: Literal["lines", "talks", "segments"] = "lines"
    """lines: a sentence a line. talks: WIT3's train.tags, of which lines with tags are left out. segments: SGML or XML,
    a sentence between <seg> and </seg>."""
    entities: bool | None = None
    """Whether `&quot;` and the like become the letter they stand for; default: in segments, where they are mark-up."""


@READERS.register("aligned")
class Aligned(Reader):
    """Texts side by side, for any number of splits. An archive of both sides is read twice at once, not unpacked."""

    kind: Literal["aligned"] = "aligned"
    parts: list[Part] = Field(min_length=1)
    """The texts, in the order in which they are read."""

    def pairs(self, files: Sequence[Path], dropped: Counter[str]) -> Iterator[Pair]:
        """The pairs of all parts.

        Raises:
            DataError: a text is missing or damaged, the two sides have not the same number of lines or segments, or a
                segment belongs to another document than that of the other side.
        """
        for part in self.parts:
            yield from _pairs(part, files, dropped)


def _pairs(part: Part, files: Sequence[Path], dropped: Counter[str]) -> Iterator[Pair]:
    read = FORMS[part.form]
    sides = [
        read(text_lines(files, part.src), part.src, dropped),
        read(text_lines(files, part.tgt), part.tgt, Counter()),  # what is left out of both sides is counted once
    ]
    settle = unescaped if part.entities or (part.entities is None and part.form == "segments") else str
    count = 0
    for src, tgt in zip_longest(*sides):
        if src is None or tgt is None:
            more = 1 + sum(1 for side in sides for _ in side)
            counts = (count, count + more) if src is None else (count + more, count)
            raise DataError(
                f"{part.src} has {counts[0]} {part.form}, but {part.tgt} has {counts[1]}: they do not belong together"
            )
        count += 1
        if src.place != tgt.place:
            raise DataError(
                f"{part.src} and {part.tgt} part at number {count}: {src.place or 'nothing'} on one side, "
                f"{tgt.place or 'nothing'} on the other"
            )
        yield Pair(settle(src.text), settle(tgt.text), group=src.group, split=part.split)
    if not count:
        raise DataError(f"{part.src}: there are no {part.form} in it; is it of another layout now?")
