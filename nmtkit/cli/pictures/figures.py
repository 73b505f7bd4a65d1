"""Figures of several commands: the options of their style, and saving them."""

import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from nmtkit.cli import terminal
from nmtkit.cli.terminal.reporting import note, tell
from nmtkit.metrics import LengthBucket
from nmtkit.plots.curves import save_by_length
from nmtkit.plots.fonts import PictureWarning


def save_pictures(outputs: Sequence[Path], save: Callable[[Path], object]) -> None:
    """Saves a picture in each format, and says so; characters that its fonts lack are reported as a line of text."""
    for output in outputs:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", PictureWarning)
            save(output)
        for warning in caught:
            tell(str(warning.message))
        note(f"wrote {output}")


FEW_SENTENCES = 10
"""With fewer sentences of a length, a score says nothing reliable about a system."""


def show_lengths(names: Sequence[str], buckets: Sequence[Sequence[LengthBucket]]) -> None:
    """A table of BLEU by length, a column for each system; ranges without lines are left out."""
    rows = []
    for column in _filled_columns(buckets):
        scores = [f"{score:.2f}".replace("nan", "-") for score in _scores(column)]
        rows.append([_words(column), _counts(column), *scores])
    terminal.table("BLEU by length", ["words", "lines", *names], rows)


def draw_lengths(
    names: Sequence[str], buckets: Sequence[Sequence[LengthBucket]], output: Path
) -> None:
    """The same as a figure, a line for each system."""
    columns = _filled_columns(buckets)
    scores = [_scores(column) for column in columns]
    save_by_length_at = partial(
        save_by_length,
        [_words(column) for column in columns],
        [_counts(column) for column in columns],
        list(zip(names, zip(*scores, strict=True), strict=True)),
        few=[min(bucket.count for bucket in column) < FEW_SENTENCES for column in columns],
    )
    save_pictures([output], lambda path: save_by_length_at(path=path))


def _filled_columns(buckets: Sequence[Sequence[LengthBucket]]) -> list[Sequence[LengthBucket]]:
    """For each range of lengths that has lines, the bucket of each system."""
    return [
        column for column in zip(*buckets, strict=True) if any(bucket.count for bucket in column)
    ]


def _words(column: Sequence[LengthBucket]) -> str:
    first = column[0]
    return f"{first.low} and more" if first.high is None else f"{first.low}-{first.high}"


def _counts(column: Sequence[LengthBucket]) -> str:
    """The number of lines; for test sets of different sizes, the number of each."""
    counts = [f"{bucket.count:,}" for bucket in column]
    return counts[0] if len(set(counts)) == 1 else "/".join(counts)


def _scores(column: Sequence[LengthBucket]) -> list[float]:
    """The BLEU of each system; NaN without lines."""
    return [math.nan if bucket.score is None else bucket.score.value for bucket in column]
