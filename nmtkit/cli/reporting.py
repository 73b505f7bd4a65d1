"""Messages, tables and pictures that several commands show."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import click

from nmtkit import console, pictures
from nmtkit.cli.options import QUIET
from nmtkit.data.checking import DataReport
from nmtkit.metrics import LengthBucket
from nmtkit.pictures.curves import save_by_length

tell = partial(console.say, stderr=True)
"""Says something about the results, which have standard output for themselves."""


def is_quiet() -> bool:
    """Whether the command that runs was asked to be `--quiet`."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(QUIET))


def note(text: str) -> None:
    """Tells what is good to know, unless notes are unwanted; what is lost or doubtful is told by `tell`."""
    if not is_quiet():
        tell(text)


def show_report(report: DataReport) -> None:
    """What preprocessing found in the text, on stderr."""
    tell(report.line())
    if rows := report.left_out():
        console.table("left out or cut", ["split", "fault", "pairs", "first line", "done"], rows, stream="stderr")


def save_picture(output: Path, save: Callable[[Path], object]) -> None:
    """Saves a picture and says so; what its fonts lack is told as a line of text."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", pictures.PictureWarning)
        save(output)
    for warning in found:
        tell(str(warning.message))
    note(f"wrote {output}")


def show_lengths(names: Sequence[str], buckets: Sequence[Sequence[LengthBucket]]) -> None:
    """A table of BLEU by length, a column for each system; ranges without lines are left out."""
    rows = []
    for column in zip(*buckets, strict=True):
        found = [f"{bucket.score.value:.2f}" for bucket in column if bucket.score is not None]
        if found:
            rows.append([_range(column[0]), str(column[0].count), *found])
    console.table("BLEU by length", ["words", "lines", *names], rows)


def draw_lengths(names: Sequence[str], buckets: Sequence[Sequence[LengthBucket]], output: Path) -> None:
    """BLEU by length as a figure, a line for each system; ranges without lines are left out."""
    systems = [
        (name, [bucket.score.value for bucket in row if bucket.score is not None])
        for name, row in zip(names, buckets, strict=True)
    ]
    filled = [bucket for bucket in buckets[0] if bucket.count]
    ranges = [_range(bucket) for bucket in filled]
    counts = [bucket.count for bucket in filled]
    save_picture(output, lambda path: save_by_length(ranges, systems, path, counts))


def _range(bucket: LengthBucket) -> str:
    return f"{bucket.low}-{bucket.high}" if bucket.high is not None else f"{bucket.low} and more"
