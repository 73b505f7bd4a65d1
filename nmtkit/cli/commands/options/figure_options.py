"""Options for the style of figures."""

from typing import Any

import click
import cloup

from nmtkit.cli.options import Decorator

MIN_INCHES, MAX_INCHES = 0.5, 100.0
MIN_POINTS, MAX_POINTS = 3.0, 72.0
STYLE_KEYS = ("size", "font", "font_size", "colours")


def _size(text: str) -> tuple[float, float | None]:
    try:
        width, *height = (float(part) for part in text.lower().split("x"))
    except ValueError:
        width, height = 0.0, []
    if len(height) > 1 or not all(
        MIN_INCHES <= inches <= MAX_INCHES for inches in (width, *height)
    ):
        raise click.BadParameter(
            f"size={text} is invalid; give WIDTH or WIDTHxHEIGHT, each from {MIN_INCHES:g} to {MAX_INCHES:g} inches, "
            "for example size=6.5x4"
        )
    return width, height[0] if height else None


def _points(text: str) -> float:
    try:
        points = float(text)
    except ValueError:
        points = 0.0
    if not MIN_POINTS <= points <= MAX_POINTS:
        raise click.BadParameter(
            f"font_size={text} is invalid; give a size from {MIN_POINTS:g} to {MAX_POINTS:g} points, "
            "for example font_size=8"
        )
    return points


def _style(
    ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> dict[str, Any]:
    """Returns the values of `--style` as the fields of a `FigureStyle`."""
    style: dict[str, Any] = {}
    for text in given:
        key, _, value = text.partition("=")
        if key not in STYLE_KEYS or not value:
            raise click.BadParameter(
                f"{text!r} is invalid; expected KEY=VALUE, where KEY is one of {', '.join(STYLE_KEYS)}"
            )
        if key == "size":
            style[key] = _size(value)
        elif key == "font_size":
            style[key] = _points(value)
        elif key == "colours":
            style[key] = tuple(part.strip() for part in value.split(",") if part.strip())
        else:
            style[key] = value
    return style


figure_style: Decorator = cloup.option_group(
    "Figure",
    click.option(
        "--title",
        metavar="TEXT",
        help='Title of the figure, instead of the default; "" removes the title.',
    ),
    click.option(
        "--style",
        multiple=True,
        metavar="KEY=VALUE",
        callback=_style,
        help="Style of the figure: size=WIDTH or WIDTHxHEIGHT in inches (not for .html), font=FAMILY (such as serif), "
        "font_size=POINTS, or colours=NAMES. NAMES is the name of a matplotlib colour map, such as Greys, or a comma-"
        "separated list: one colour per curve, or colours from the lowest to the highest weight. May be repeated.",
    ),
)
"""Options that set the fields of a `FigureStyle`."""
