"""The options of `nmtkit train` that stand in for a recipe."""

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any

import click

from nmtkit.cli import options
from nmtkit.cli.numbers import Number
from nmtkit.data.corpus import Files
from nmtkit.experiment import presets


@dataclass(frozen=True)
class Asked:
    """What was asked for in place of a recipe; one field an option, files by their whole paths."""

    source: tuple[str, ...]
    """Source files, one for each corpus."""
    target: tuple[str, ...]
    """Their targets."""
    valid_source: tuple[str, ...]
    """Source files of the validation set; without them some pairs are held out."""
    valid_target: tuple[str, ...]
    """Their targets."""
    test_source: tuple[str, ...]
    """Source files of the test set."""
    test_target: tuple[str, ...]
    """Their targets, or none if it is only to be translated."""
    task: str | None
    """What the model is for; None is translation."""
    preset: str | None
    """The preset; None chooses one."""
    minutes: float | None
    """Stop training after so many."""

    def given(self) -> dict[str, Any]:
        """The options that were given, as a user writes them, and their values."""
        values = {f"--{one.name.replace('_', '-')}": getattr(self, one.name) for one in fields(self)}
        return {option: value for option, value in values.items() if value}

    def require_usable(self) -> None:
        """Makes sure that the options fit each other.

        Raises:
            click.UsageError: they do not.
        """
        for split, src, tgt in (
            ("", self.source, self.target),
            ("valid-", self.valid_source, self.valid_target),
            ("test-", self.test_source, self.test_target),
        ):
            if len(src) != len(tgt) and (tgt or split != "test-"):
                raise click.UsageError(
                    f"--{split}source names {len(src)} files and --{split}target {len(tgt)}: they must be paired"
                )
        if not self.source:
            raise click.UsageError(f"{', '.join(self.given())}: name the text to train on: --source FILE --target FILE")

    def splits(self) -> dict[str, Files]:
        """The files of train, and of valid and test if they were given."""
        given = {
            "train": (self.source, self.target),
            "valid": (self.valid_source, self.valid_target),
            "test": (self.test_source, self.test_target),
        }
        return {name: Files(src=list(src), tgt=list(tgt)) for name, (src, tgt) in given.items() if src}


def _files(option: str, meaning: str) -> options.Decorator:
    return click.option(option, metavar="FILE", multiple=True, help=meaning)


MOST_MINUTES = 10_000_000
"""The longest training without a recipe: twenty years."""

_OPTIONS = (
    _files("--source", "Without a recipe: text to train on, a sentence a line. May be repeated."),
    _files("--target", "Its translation (or summary), line by line."),
    _files("--valid-source", "Text to validate by. Default: 5 % of the pairs are held out."),
    _files("--valid-target", "Its translation."),
    _files("--test-source", "Text to translate and score when training is over."),
    _files("--test-target", "Its translation."),
    click.option("--task", type=click.Choice(presets.TASKS), help="Without a recipe. Default: translation."),
    click.option(
        "--preset",
        type=click.Choice(presets.NAMES),
        help="Without a recipe: "
        + "; ".join(f"{name} {meaning}" for name, meaning in presets.MEANING.items())
        + ". Default: by the size of the corpus and the device.",
    ),
    click.option(
        "--minutes",
        type=Number(0, MOST_MINUTES, whole=False, above=True),
        help="Without a recipe: train no longer than this.",
    ),
)


def stand_in(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the options that stand in for a recipe; it takes them as `asked`."""

    @wraps(command)
    def with_asked(**given: Any) -> Any:
        values = {one.name: given.pop(one.name) for one in fields(Asked)}
        whole = {name: tuple(map(os.path.abspath, value)) for name, value in values.items() if isinstance(value, tuple)}
        return command(asked=Asked(**{**values, **whole}), **given)

    decorated: Callable[..., Any] = with_asked
    for decorate in reversed(_OPTIONS):
        decorated = decorate(decorated)
    return decorated
