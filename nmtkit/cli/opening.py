"""What commands that use a trained run share: the options of the search and of what is shown, and the opening."""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, get_args

import click

from nmtkit import console
from nmtkit.cli.options import Decorator, Number, grouped
from nmtkit.experiment.opening import Opening, open_run
from nmtkit.search.beam import SearchConfig
from nmtkit.translation.translator import Translator

SEARCH: dict[str, str | None] = {
    "beam_size": None,
    "length_penalty": "KIND[:ALPHA]",
    "min_length": "TOKENS",
    "max_length": "TOKENS",
    "min_length_ratio": "R",
    "max_length_ratio": "R",
    "no_repeat_ngram": "N",
    "coverage_penalty": "BETA",
    "coverage_kind": None,
}
"""The keys of the recipe's `search` group that have options, and what stands for their values if not their type."""


class _Penalty(click.ParamType):  # type: ignore[type-arg]  # newer versions of click have one
    """A length penalty with its strength: the values of two keys."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, object]:
        """The keys that it sets."""
        kind, _, alpha = value.partition(":")
        try:
            return {"length_penalty": kind, **({"alpha": float(alpha)} if alpha else {})}
        except ValueError:
            self.fail(f"{alpha!r} is not a number", param, ctx)


def search_type(key: str) -> click.ParamType:  # type: ignore[type-arg]
    """What an option takes for a key of the search: one of its values, or a number within its bounds."""
    if key == "length_penalty":
        return _Penalty()
    setting = SearchConfig.model_fields[key]
    if values := get_args(setting.annotation):
        return click.Choice(values)
    bounds = {end: getattr(one, end) for one in setting.metadata for end in ("ge", "le") if hasattr(one, end)}
    return Number(bounds["ge"], bounds.get("le"), whole=setting.annotation is int)


def search_options(*keys: str) -> Decorator:
    """Gives a command options of the search, those named or all; it takes what they set as `search_settings`."""
    names = keys or tuple(SEARCH)

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_settings(**given: Any) -> Any:
            settings: dict[str, object] = {}
            for key in names:
                value = given.pop(key)
                settings |= value if isinstance(value, dict) else {} if value is None else {key: value}
            return command(search_settings=settings, **given)

        decorated: Callable[..., Any] = with_settings
        for key in reversed(names):
            strength = " ALPHA is its strength, e.g. gnmt:0.6." if key == "length_penalty" else ""
            meaning = f"{SearchConfig.model_fields[key].description}{strength} Default: the recipe's."
            option = f"--{key.replace('_', '-')}"
            decorated = click.option(option, key, type=search_type(key), metavar=SEARCH[key], help=meaning)(decorated)
        return decorated

    return decorate


n_best: Decorator = click.option(
    "--n-best", type=search_type("beam_size"), default=1, help="How many results for each line, best first."
)
layer: Decorator = click.option(
    "--layer",
    type=Number(1),
    metavar="N",
    help="Of a Transformer, take what decoder layer N looks at, from 1. Default: the recipe's, else the last but one.",
)
head: Decorator = click.option(
    "--head",
    type=Number(1),
    metavar="N",
    help="Of a Transformer, take head N of the layer, from 1. Default: the recipe's, else the mean of all.",
)
how: Decorator = grouped(Opening, "how")
"""Hands a command the options of opening a run as one `Opening`."""


def open_asked(how: Opening, task: str | None = None) -> Translator:
    """Opens the run that was asked for, and says on stderr which run, which weights and which device it is."""
    return open_run(how, task, partial(console.say, stderr=True))
