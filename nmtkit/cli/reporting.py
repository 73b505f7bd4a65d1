"""Messages, tables and pictures that several commands show."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nmtkit import console, pictures
from nmtkit.cli.options import QUIET, Number
from nmtkit.corpus.checking import DataReport
from nmtkit.metrics import LengthBucket
from nmtkit.pictures.curves import save_by_length
from nmtkit.pictures.drawing import Look

if TYPE_CHECKING:  # torch, which scoring does without, comes with it
    from nmtkit.presets.forgetting import TestChange

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


def show_changes(changes: Sequence["TestChange"], mixed: bool) -> None:
    """The scores before and after fine-tuning, and loudly what was forgotten; `mixed` with general text or not."""
    if not changes:
        return
    rows = [[one.text, f"{one.before:.2f}", f"{one.after:.2f}", f"{one.after - one.before:+.2f}"] for one in changes]
    console.say("")
    console.table(f"{changes[0].metric} before and after fine-tuning", ["test set", "before", "after", "change"], rows)
    if not any(one.of_general_text for one in changes):
        tell(
            "what the model has forgotten was not measured: there is no test set of general text; name one with "
            "--general-test-source and --general-test-target (init_from.test in a recipe)"
        )
    for one in changes:
        if one.fell and one.of_general_text:
            more = "more general text (data.train.weights)" if mixed else "general text (--general-source FILE)"
            tell(
                f"warning: catastrophic forgetting: {one.metric} on {one.text} fell from {one.before:.2f} to "
                f"{one.after:.2f}. Mix in {more}, lower training.lr, or make fewer updates"
            )
        elif one.fell:
            tell(
                f"warning: fine-tuning made it worse: {one.metric} on {one.text} fell from {one.before:.2f} to "
                f"{one.after:.2f}. Lower training.lr, or bring more text"
            )


def _inches(ctx: click.Context, parameter: click.Parameter, given: str | None) -> tuple[float, float | None] | None:
    """The value of --size."""
    if given is None:
        return None
    try:
        width, *height = (float(part) for part in given.lower().split("x"))
    except ValueError:
        width, height = 0.0, []
    if len(height) > 1 or not all(LEAST_INCHES <= one <= MOST_INCHES for one in (width, *height)):
        raise click.BadParameter(
            f"{given!r}: give a width, or WIDTHxHEIGHT, from {LEAST_INCHES:g} to {MOST_INCHES:g} inches: 3.3, 6.5x4"
        )
    return width, height[0] if height else None


LEAST_INCHES, MOST_INCHES = 0.5, 100.0


def look_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of how a figure is to look; the command gets a `Look` called `look`."""

    @wraps(command)
    def with_look(*, title: str | None, no_title: bool, colours: str | None, **given: Any) -> Any:
        if no_title and title:
            raise click.UsageError("--title gives the figure a title and --no-title none: give one of them")
        drawn = {key: given.pop(key) for key in ("size", "font", "font_size")}
        split = tuple(part.strip() for part in (colours or "").split(",") if part.strip())
        look = Look("" if no_title else title, drawn["size"], drawn["font"] or "", drawn["font_size"], split)
        if look.font or look.colours:
            look.check()
        return command(look=look, **given)

    for option in reversed(
        (
            click.option("--title", metavar="TEXT", help="Title of the figure, instead of its own."),
            click.option("--no-title", is_flag=True, help="No title: the paper has a caption."),
            click.option("--size", metavar="INCHES", callback=_inches, help="Width, or WIDTHxHEIGHT: 3.3, 6.5x4."),
            click.option("--font", metavar="FAMILY", help="Font family, such as serif. Default: DejaVu Sans."),
            click.option("--font-size", type=Number(3, 72, whole=False), metavar="POINTS", help="Size of the words."),
            click.option(
                "--colours",
                metavar="NAMES",
                help="Separated by commas: shades from none to most, or a colour of each curve; or one colour map of "
                "matplotlib, such as Greys.",
            ),
        )
    ):
        with_look = option(with_look)
    return with_look


def save_pictures(outputs: Sequence[Path], save: Callable[[Path], object], look: Look) -> None:
    """Saves a picture in each format, and says what of the look a page has no use for."""
    for output in outputs:
        save_picture(output, save)
        if look.size is not None and output.suffix.lower() == ".html":
            tell(f"{output}: --size is for .png, .svg and .pdf; a page is as wide as its window")


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
