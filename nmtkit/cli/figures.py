"""Figures of several commands: the options of their style, and saving them."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from nmtkit import console
from nmtkit.cli.reporting import note, tell
from nmtkit.metrics import LengthBucket
from nmtkit.pictures.curves import save_by_length
from nmtkit.pictures.fonts import PictureWarning


def save_pictures(outputs: Sequence[Path], save: Callable[[Path], object]) -> None:
    """Saves a picture in each format, and says so; characters that its fonts lack are reported as a line of text."""
    for output in outputs:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", PictureWarning)
            save(output)
        for warning in caught:
            tell(str(warning.message))
        note(f"wrote {output}")


def show_lengths(names: Sequence[str], buckets: Sequence[Sequence[LengthBucket]]) -> None:
    """A table of BLEU by length, a column for each system; ranges without lines are left out."""
    rows = [[*head, *(f"{bleu:.2f}".replace("nan", "-") for bleu in scores)] for *head, scores in _rows(buckets)]
    console.table("BLEU by length", ["words", "lines", *names], rows)


def draw_lengths(names: Sequence[str], buckets: Sequence[Sequence[LengthBucket]], output: Path) -> None:
    """The same as a figure, a line for each system."""
    ranges, counts, scores = zip(*_rows(buckets), strict=True)
    systems = [*zip(names, zip(*scores, strict=True), strict=True)]
    save_pictures([output], lambda path: save_by_length(ranges, counts, systems, path))


def _rows(buckets: Sequence[Sequence[LengthBucket]]) -> Iterator[tuple[str, str, list[float]]]:
    """Each range, its lines (of each test set, where they differ), and the BLEU of each system; NaN without lines."""
    for column in zip(*buckets, strict=True):
        first, counts = column[0], [f"{bucket.count:,}" for bucket in column]
        if any(bucket.count for bucket in column):
            words = f"{first.low}-{first.high}" if first.high is not None else f"{first.low} and more"
            scores = [math.nan if bucket.score is None else bucket.score.value for bucket in column]
            yield words, "/".join(counts if len({*counts}) > 1 else counts[:1]), scores
