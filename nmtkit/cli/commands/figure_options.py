"""Options of the style of figures."""

import click
import cloup

from nmtkit.cli.options import Decorator, Number

MIN_INCHES, MAX_INCHES = 0.5, 100.0


def _inches(ctx: click.Context, parameter: click.Parameter, given: str | None) -> tuple[float, float | None] | None:
    if given is None:
        return None
    try:
        width, *height = (float(part) for part in given.lower().split("x"))
    except ValueError:
        width, height = 0.0, []
    if len(height) > 1 or not all(MIN_INCHES <= one <= MAX_INCHES for one in (width, *height)):
        raise click.BadParameter(
            f"{given!r}: give a width, or WIDTHxHEIGHT, from {MIN_INCHES:g} to {MAX_INCHES:g} inches: 3.3, 6.5x4"
        )
    return width, height[0] if height else None


figure_style: Decorator = cloup.option_group(
    "Figure",
    click.option("--title", metavar="TEXT", help='Title of the figure, instead of its own; "" for none.'),
    click.option("--size", metavar="INCHES", callback=_inches, help="Width, or WIDTHxHEIGHT; ignored for .html."),
    click.option("--font", metavar="FAMILY", default="", help="Font family, such as serif. Default: DejaVu Sans."),
    click.option("--font-size", type=Number(3, 72, whole=False), metavar="POINTS", help="Size of the words."),
    click.option(
        "--colours",
        metavar="NAMES",
        default="",
        callback=lambda ctx, parameter, given: tuple(part.strip() for part in given.split(",") if part.strip()),
        help="Colours from lowest to highest weight, or of each curve, separated by commas; or a colour map of "
        "matplotlib, such as Greys.",
    ),
)
"""The look of a figure: the fields of a `FigureStyle`."""
