"""Functions shared by several commands: saving figures, and showing BLEU by length."""

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
    """Saves a figure to each file, and prints the names of the files and any characters that the fonts lack."""
    for output in outputs:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", PictureWarning)
            save(output)
        for warning in caught:
            tell(str(warning.message))
        note(f"wrote {output}")


FEW_SENTENCES = 10
"""Minimum number of sentences in a length range for a reliable score; points with fewer sentences are hollow."""


def show_lengths(names: Sequence[str], buckets: Sequence[Sequence[LengthBucket]]) -> None:
    """Prints a table of BLEU by length, with a column for each system; ranges without lines are left out."""
    rows = []
    for column in _filled_columns(buckets):
        scores = [f"{score:.2f}".replace("nan", "-") for score in _scores(column)]
        rows.append([_words(column), _counts(column), *scores])
    terminal.table("BLEU by length", ["words", "lines", *names], rows)


def draw_lengths(
    names: Sequence[str], buckets: Sequence[Sequence[LengthBucket]], output: Path
) -> None:
    """Draws BLEU by length as a figure, with a curve for each system."""
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
    """Returns, for each range of lengths that has lines, the bucket of each system."""
    return [
        column for column in zip(*buckets, strict=True) if any(bucket.count for bucket in column)
    ]


def _words(column: Sequence[LengthBucket]) -> str:
    first = column[0]
    return f"{first.low} and more" if first.high is None else f"{first.low}-{first.high}"


def _counts(column: Sequence[LengthBucket]) -> str:
    """Returns the number of lines as text, or one number per system if the numbers differ."""
    counts = [f"{bucket.count:,}" for bucket in column]
    return counts[0] if len(set(counts)) == 1 else "/".join(counts)


def _scores(column: Sequence[LengthBucket]) -> list[float]:
    """Returns the BLEU score of each system, or NaN if there are no lines."""
    return [math.nan if bucket.score is None else bucket.score.value for bucket in column]
