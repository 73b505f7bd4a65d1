"""Messages, tables and pictures that several commands show."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from nmtkit import console, pictures
from nmtkit.data.checking import DataReport
from nmtkit.metrics import LengthBucket
from nmtkit.pictures.curves import save_by_length

tell = partial(console.say, stderr=True)
"""Says something about the results, which have standard output for themselves."""


def show_report(report: DataReport) -> None:
    """What preprocessing found in the text, on stderr."""
    rows = [list(row) for row in report.rows()]
    console.table("the data", ["split", "what", "how many", "first line", "and then"], rows, stream="stderr")


def save_picture(output: Path, save: Callable[[Path], object]) -> None:
    """Saves a picture and says so; what its fonts lack is told as a line of text."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", pictures.PictureWarning)
        save(output)
    for warning in found:
        tell(str(warning.message))
    tell(f"wrote {output}")


def show_lengths(names: Sequence[str], buckets: Sequence[Sequence[LengthBucket]]) -> None:
    """A table of BLEU by length, a column for each system; the ranges are those of the first."""
    rows = []
    for column, bucket in enumerate(buckets[0]):
        scores = [row[column].score for row in buckets]
        found = ["-" if score is None else f"{score.value:.2f}" for score in scores]
        rows.append([_range(bucket), str(bucket.count), *found])
    console.table("BLEU by length", ["words", "lines", *names], rows)


def draw_lengths(names: Sequence[str], buckets: Sequence[Sequence[LengthBucket]], output: Path) -> None:
    """BLEU by length as a figure, a line for each system."""
    systems = [
        (name, [None if bucket.score is None else bucket.score.value for bucket in row])
        for name, row in zip(names, buckets, strict=True)
    ]
    ranges = [_range(bucket) for bucket in buckets[0]]
    counts = [bucket.count for bucket in buckets[0]]
    save_picture(output, lambda path: save_by_length(ranges, systems, path, counts))


def _range(bucket: LengthBucket) -> str:
    return f"{bucket.low}-{bucket.high}" if bucket.high is not None else f"{bucket.low} and more"
