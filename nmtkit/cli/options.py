"""Options that several commands share, so that they are spelled and explained alike; loaded without torch."""

import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any

import click

from nmtkit.core.errors import DataError
from nmtkit.core.settings import LARGEST, MOST_THREADS
from nmtkit.core.wording import shortened

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

FILE = click.Path(path_type=Path)
NEW_FILE = click.Path(dir_okay=False, path_type=Path)
QUIET = "nmtkit.quiet"
"""Where the context of a command keeps whether notes are unwanted."""


class Number(click.ParamType):  # type: ignore[type-arg]  # newer versions of click have one
    """A number within bounds.

    Args:
        least: the smallest.
        most: the largest; None: what every setting may be at most.
        whole: whether it has no fraction.
        above: whether it is larger than `least`.
        remedy: what else may be meant by a number that is not within them.
    """

    def __init__(
        self, least: float, most: float | None = None, whole: bool = True, above: bool = False, remedy: str = ""
    ) -> None:
        self.name = "integer" if whole else "float"
        self._least = least
        self._most = most if most is not None else LARGEST if whole else sys.float_info.max
        self._whole = whole
        self._above = above
        self._remedy = remedy

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number that was given."""
        number: float = (click.INT if self._whole else click.FLOAT).convert(value, param, ctx)
        least, most = self._least, self._most
        if not least <= number <= most or (self._above and number == least):  # what is not a number is in no bounds
            ends = f"{least:,} to {most:,}" if self._whole else f"{least:g} to {most:g}"
            begun = "above" if self._above else "from"
            self.fail(f"{value} is not in the range {begun} {ends}{self._remedy}", param, ctx)
        return number


class Numbers(click.ParamType):  # type: ignore[type-arg]  # newer versions of click have one
    """Numbers above zero, with commas between them."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[float]:
        """The numbers that were given."""
        one = Number(0.0, whole=False, above=True)
        return [one.convert(part, param, ctx) for part in value.split(",")]


def together(*decorators: Decorator) -> Decorator:
    """Several decorators as one, the outermost first: `--help` lists their options in this order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def grouped(kind: type[Any], name: str) -> Decorator:
    """Hands a command those of its options that a dataclass has fields for as one object, called `name`."""
    names = {field.name for field in fields(kind)}

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_object(**given: Any) -> Any:
            values = {key: given.pop(key) for key in names & given.keys()}
            return command(**{name: kind(**values)}, **given)

        return with_object

    return decorate


def one_run(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> str | None:
    """The one run that an option names; the callback of options that are given once at most.

    Raises:
        click.BadParameter: it names several.
    """
    if len(given) > 1:
        raise click.BadParameter(f"{' and '.join(given)}: one run is taken here; name one")
    return given[0] if given else None


def one_device(ctx: click.Context, parameter: click.Parameter, given: str) -> str:
    """The device of an option that takes one.

    Raises:
        click.BadParameter: it names several.
    """
    if "," in given:
        raise click.BadParameter(f"{given}: one device is taken here; only translate and summarize share lines out")
    return given


def input_files(ctx: click.Context, parameter: click.Parameter, given: tuple[Path, ...]) -> tuple[Path, ...]:
    """The files of an argument, none for standard input; all are there, so that none is missed after hours of others.

    Raises:
        DataError: one is not there, or is a folder.
        click.BadParameter: "-", which is standard input, stands among others.
    """
    if given == (Path("-"),):
        return ()
    for path in given:
        if path == Path("-"):
            raise click.BadParameter("standard input (-) cannot stand among files; put it into one of them")
        if os.path.isdir(path):
            raise DataError(f"{path}: cannot read it: it is a folder")
        if not os.path.exists(path):  # nor where a text is longer than any file's name
            raise DataError(f"{shortened(str(path))}: cannot read it: there is no such file{_as_text(path, ctx)}")
    return given


def _as_text(path: Path, ctx: click.Context) -> str:
    """How a text is given that stands where a file is wanted; empty where a name looks like a file's."""
    if path.suffix and " " not in str(path):
        return ""
    text = shlex.quote(shortened(str(path)))
    return f"; text is read from standard input: echo {text} | {ctx.command_path}"


def with_threads(overrides: tuple[str, ...], threads: int | None) -> tuple[str, ...]:
    """The overrides of a recipe, among them what `training_threads` says."""
    return (*overrides, f"training.threads={threads}") if threads else overrides


files: Decorator = click.argument("files", metavar="[FILE]...", nargs=-1, type=FILE, callback=input_files)
"""Gives a command the files to read, none for standard input."""
quiet: Decorator = click.option(
    "-q",
    "--quiet",
    is_flag=True,
    expose_value=False,
    callback=lambda ctx, parameter, given: ctx.meta.update({QUIET: given}),
    help="Print results, warnings and errors only: no model line, no notes, no progress.",
)


def _named_runs(callback: Callable[..., Any], several: str) -> Decorator:
    return click.option(
        "-m",
        "--model",
        metavar="RUN",
        multiple=True,
        callback=callback,
        help=f"The run: its folder, or its name under runs/. {several}Default: $NMTKIT_MODEL, else the newest finished "
        "run.",
    )


model: Decorator = _named_runs(one_run, "")
models: Decorator = together(
    _named_runs(lambda ctx, parameter, given: given or None, "Several -m search together, as an ensemble. "),
    click.option(
        "--ensemble",
        type=click.Choice(["probabilities", "log-probabilities"]),
        default="probabilities",
        show_default=True,
        help="With several -m: average their probabilities, where one sure model can carry a word, or their "
        "log-probabilities, where it can veto one.",
    ),
    click.option(
        "--ensemble-weights",
        type=Numbers(),
        metavar="W,W",
        help="With several -m: the weight of each, e.g. 2,1. Default: equal weights.",
    ),
)
"""The same for commands that take several runs as one model, and how."""
device: Decorator = click.option(
    "--device",
    default="auto",
    metavar="NAME",
    callback=one_device,
    help="auto (first CUDA device, else the CPU), cpu, cuda, cuda:1, mps.",
)
devices: Decorator = click.option(
    "--device",
    default="auto",
    metavar="NAMES",
    help="auto (first CUDA device, else the CPU), cpu, cuda, cuda:1, mps; cuda:0,cuda:1 are used by a process each.",
)
threads: Decorator = click.option("--threads", type=Number(1, MOST_THREADS), help="CPU threads. Default: one a core.")
training_threads: Decorator = click.option(
    "--threads",
    type=Number(1, MOST_THREADS),
    help="CPU threads. Default: training.threads (auto: measured); for the test set one a core.",
)
overrides: Decorator = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of the recipe, e.g. --set training.lr=0.001. May be repeated.",
)
run_folder: Decorator = click.option(
    "--run",
    "run_path",
    metavar="DIR",
    help="The run's folder. Default: runs/NAME, NAME being the recipe's.",
)


def picture_file(*names: str, meaning: str, several: bool = False) -> Decorator:
    """An option for the file of a picture, or for `several` of one, whose suffixes say their formats."""
    told = f"{meaning}: FILE.png, .svg, .pdf or .html." + (" May be repeated." if several else "")
    return click.option(*names, type=NEW_FILE, metavar="FILE", multiple=several, help=told)
