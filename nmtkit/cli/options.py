"""Options that several commands share, with their names and help texts. This file does not import torch."""

import math
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click
from typing_extensions import override

from nmtkit.cli import completing
from nmtkit.core.errors import DataError, shorten
from nmtkit.core.limits import MAX_INT, MAX_THREADS

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

FILE = click.Path(path_type=Path)
NEW_FILE = click.Path(dir_okay=False, path_type=Path)
QUIET = "nmtkit.quiet"
"""Key in the `meta` dictionary of click's context; its value is whether `--quiet` was given."""


@dataclass(eq=False)
class Number(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """A number from `least` to `most`; if `above` is set, it must be greater than `least`."""

    least: float
    most: float = math.inf
    whole: bool = True
    above: bool = False

    @property
    def name(self) -> str:  # type: ignore[override]  # a plain attribute in click
        """Name of the type in `--help`."""
        return "integer" if self.whole else "float"

    @override
    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        parser = click.INT if self.whole else click.FLOAT
        number: float = parser.convert(value, param, ctx)
        most = min(self.most, MAX_INT if self.whole else sys.float_info.max)
        in_range = self.least <= number <= most  # False for NaN
        if self.above and number == self.least:
            in_range = False
        if not in_range:
            form = "," if self.whole else "g"
            lower = "greater than" if self.above else "at least"
            bounds = f"{lower} {self.least:{form}} and at most {most:{form}}"
            self.fail(f"{value} is out of range; it must be {bounds}", param, ctx)
        return number


def together(*decorators: Decorator) -> Decorator:
    """Combines decorators into one. Pass the outermost first; `--help` lists the options in this order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def pass_as(name: str, make: Callable[[dict[str, Any]], Any]) -> Decorator:
    """Passes some options to a command as one object, called `name`.

    `make` removes these options from the dictionary of all options, and builds the object from them.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_object(**given: Any) -> Any:
            made = make(given)
            return command(**{name: made}, **given)

        return with_object

    return decorate


def collect(kind: type[Any], name: str) -> Decorator:
    """Passes the options that correspond to the fields of a dataclass as one object, called `name`."""
    names = {field.name for field in fields(kind)}
    return pass_as(
        name, lambda given: kind(**{key: given.pop(key) for key in names & given.keys()})
    )


def only_one(ctx: click.Context, parameter: click.Parameter, given: tuple[Any, ...]) -> Any:
    """Callback of an option that takes one value: rejects repetitions; click would silently use the last value."""
    if len(given) > 1:
        raise click.BadParameter(
            f"this option takes only one value, but was given {' and '.join(map(str, given))}; use only one of them"
        )
    return given[0] if given else None


def _one_device(ctx: click.Context, parameter: click.Parameter, given: str) -> str:
    if "," in given:
        raise click.BadParameter(
            f"this command uses a single device, but {given} lists several; give only one"
        )
    return given


def _input_files(
    ctx: click.Context, parameter: click.Parameter, given: tuple[Path, ...]
) -> tuple[Path, ...]:
    """Checks all files before the first is read, so that a missing file is not reported hours later."""
    if not given or given == (Path("-"),):
        return ()
    from nmtkit.data.text.files.names import text_path  # not needed for help and completion

    for path in given:
        if path == Path("-"):
            raise click.BadParameter(
                "standard input (-) cannot be combined with files; save it to a file, and pass that file instead"
            )
        file = text_path(str(path))
        if os.path.isdir(file):
            raise DataError(
                f"{path}: this is a folder; pass the files in it instead, for example {path / '*.txt'}"
            )
        # `exists` also returns False for a text that is too long for a file name
        if not os.path.exists(file):
            name = shorten(str(path))
            is_text = " " in name or not path.suffix
            remedy = (
                f"; to pass text, use standard input: echo {shlex.quote(name)} | {ctx.command_path}"
            )
            raise DataError(f"{name}: there is no such file{remedy if is_text else ''}")
    return given


def _set_encodings(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> None:
    if given:
        from nmtkit.data.text.files.names import parse_encodings, reading_as

        ctx.with_resource(reading_as(parse_encodings(given)))


def spread_files(args: Sequence[str], options: Sequence[str]) -> list[str]:
    """Replaces `--valid A B` with `--valid A --valid B`, because click options take a fixed number of values."""
    spread: list[str] = []
    option = ""
    for arg in args:
        if arg.startswith("-") and arg != "-":
            option = arg if arg in options else ""
        elif option and spread[-1] != option:
            spread.append(option)
        spread.append(arg)
    return spread


def with_threads(overrides: tuple[str, ...], threads: int | None) -> tuple[str, ...]:
    """Returns a recipe's overrides, including training.threads if `--threads` was given."""
    return (*overrides, f"training.threads={threads}") if threads else overrides


files: Decorator = click.argument(
    "files", metavar="[FILE]...", nargs=-1, type=FILE, callback=_input_files
)
"""The files to read; if there are none, standard input is read."""
recipe: Decorator = click.argument("name", metavar="RECIPE", shell_complete=completing.recipes)
quiet: Decorator = click.option(
    "-q",
    "--quiet",
    is_flag=True,
    expose_value=False,
    callback=lambda ctx, parameter, given: ctx.meta.update({QUIET: given}),
    help="Print only results, warnings and errors.",
)


output: Decorator = click.option(
    "-o",
    "--output",
    type=FILE,
    metavar="FILE",
    help="Write results to FILE, compressed if FILE is *.gz.",
)
output_dir: Decorator = click.option(
    "--output-dir", type=FILE, metavar="DIR", help="Write FILE's output to DIR, under its own name."
)
outputs: Decorator = together(output, output_dir)
ENCODING_FORM = "[FILE=]NAME"
encoding: Decorator = click.option(
    "--encoding",
    multiple=True,
    metavar=ENCODING_FORM,
    expose_value=False,
    callback=_set_encodings,
    help="Encoding of the input or of FILE. Default: utf-8.",
)
run_option = partial(
    click.option, metavar="RUN", multiple=True, callback=only_one, shell_complete=completing.runs
)
"""Creates an option for one run; to allow several runs, pass a different callback."""
_MODEL = "Folder of a run, or its name under runs/{}. Default: $NMTKIT_MODEL, else the newest finished run."
model: Decorator = run_option("-m", "--model", help=_MODEL.format(""))
models: Decorator = run_option(
    "-m",
    "--model",
    callback=lambda ctx, parameter, given: given or None,
    help=_MODEL.format("; repeat the option for an ensemble"),
)
device: Decorator = click.option(
    "--device",
    default="auto",
    metavar="NAME",
    callback=_one_device,
    help="Device: auto (CUDA if available), cpu, cuda, cuda:1 or mps.",
)
devices: Decorator = click.option(
    "--device",
    default="auto",
    metavar="NAMES",
    help="Device: auto (CUDA if available), cpu, cuda, cuda:1 or mps; or several, such as cuda:0,cuda:1.",
)
threads: Decorator = click.option(
    "--threads",
    type=Number(1, MAX_THREADS),
    help="CPU threads. Default: one for fewer than 16 lines, else $OMP_NUM_THREADS, else one per core.",
)
training_threads: Decorator = click.option(
    "--threads",
    type=Number(1, MAX_THREADS),
    help="Number of CPU threads. Default: the recipe's training.threads (auto: the fastest number).",
)
overrides: Decorator = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=completing.assignments,
    help="Override a key of the recipe, e.g. --set training.lr=0.001. May be repeated.",
)
run_folder: Decorator = click.option(
    "--run",
    "run_path",
    metavar="DIR",
    shell_complete=completing.runs,
    help="Folder of the run. Default: runs/ plus the name of the recipe.",
)


def as_json(meaning: str) -> Decorator:
    """Returns the flag `--json`, whose help is `meaning`."""
    return click.option("--json", "as_json", is_flag=True, help=meaning)


table_format: Decorator = click.option(
    "--format",
    "table_format",
    type=click.Choice(["text", "latex", "csv", "json"]),
    default=None,
    help="Output format of the scores: text tables (the default), a LaTeX table (package booktabs), comma-separated "
    "values, or JSON.",
)


def chosen_format(table_format: str | None, as_json: bool) -> str:
    """Returns the format selected by `--format` or its shorthand `--json`."""
    if as_json and table_format not in (None, "json"):
        raise click.UsageError(
            f"--json conflicts with --format {table_format}; use only one of them"
        )
    return "json" if as_json else table_format or "text"


def picture_file(*names: str, meaning: str, several: bool = False) -> Decorator:
    """Returns an option for a figure's file, or with `several` for any number of files; suffixes select the formats."""
    text = f"{meaning} (.png, .svg, .pdf or .html)."
    if several:
        text += " May be repeated."
    return click.option(*names, type=NEW_FILE, metavar="FILE", multiple=several, help=text)
