"""Turns the options of commands that use a trained run into one `DecodingOptions`, and opens the run."""

import math
from collections.abc import Iterable
from dataclasses import fields, replace
from importlib.util import find_spec
from typing import Annotated, Any, get_args

import click

from nmtkit.cli.commands.options.search_options import SEARCH
from nmtkit.cli.options import Decorator, Number, pass_as
from nmtkit.cli.terminal.reporting import note
from nmtkit.core.errors import RecipeError
from nmtkit.core.formats import parse_value
from nmtkit.core.settings import Field, Settings, parse
from nmtkit.decoding.settings import SEARCH_FIELDS
from nmtkit.inference.inputs import TextModel
from nmtkit.inference.loading.opening import as_translator, load_from_options
from nmtkit.inference.loading.options import DecodingOptions
from nmtkit.inference.translator import Translator
from nmtkit.models.ensemble import Mean


class CombinationSettings(Settings):
    """Keys of `--search` that are not recipe keys; they determine how several models are combined.

    `lm_weight` is the weight of the language model given with `--lm`.
    """

    ensemble: Mean = "probabilities"
    ensemble_weights: list[Annotated[float, Field(gt=0)]] | None = None
    lm_weight: Annotated[float, Field(ge=0)] | None = None


def search_type(key: str) -> click.ParamType:  # type: ignore[type-arg]  # generic only in newer versions of click
    """Returns the click type of a search setting: a choice, or a number within the bounds of the setting."""
    if key == "length_penalty":
        return click.STRING
    setting = SEARCH_FIELDS[key]
    if values := get_args(setting.annotation):
        return click.Choice(values)
    bounds = {
        end: getattr(one, end)
        for one in setting.metadata
        for end in ("ge", "le")
        if hasattr(one, end)
    }
    return Number(bounds["ge"], bounds.get("le", math.inf), whole=setting.annotation is int)


def parse_search(assignments: Iterable[str]) -> tuple[dict[str, object], CombinationSettings]:
    """Parses the values of `--search` into keys of the recipe's `search` group and `CombinationSettings`."""
    settings: dict[str, object] = {}
    for text in assignments:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise RecipeError(
                f"--search {text!r} is invalid; expected KEY=VALUE, for example --search stop=exact"
            )
        settings[key.strip().removeprefix("search.")] = parse_value(value)
    combination = {
        key: settings.pop(key) for key in CombinationSettings.model_fields.keys() & settings.keys()
    }
    return settings, parse(CombinationSettings, combination, "--search")


_OTHER_FORMS = ("as_json", "scores", "lead")
"""Parameters that conflict with `--format moses`."""


def _model_options(given: dict[str, Any]) -> DecodingOptions:
    settings, combination = parse_search(given.pop("search", ()))
    flags = {key: value for key in SEARCH if (value := given.pop(key, None)) is not None}
    of_flags = [*flags, *(["alpha"] if ":" in str(flags.get("length_penalty")) else [])]
    if twice := [key for key in of_flags if key in settings]:
        raise click.UsageError(
            f"--search {twice[0]} conflicts with an option that sets the same value; use only one of them"
        )
    settings |= flags
    kind, _, alpha = str(settings.get("length_penalty")).partition(":")
    if alpha:
        try:
            settings |= {"length_penalty": kind, "alpha": float(alpha)}
        except ValueError:
            raise click.BadParameter(
                f"{alpha!r} is not a number", param_hint="--length-penalty"
            ) from None
    # prints all samples, unless minimum Bayes risk chooses one of them
    if "n_best" in given and given["n_best"] is None:
        drawn = settings.get("samples") if settings.get("mbr", "none") == "none" else None
        given["n_best"] = drawn if drawn and isinstance(drawn, int) else 1
    other = [name for name in _OTHER_FORMS if given.get(name)]
    if given.get("form") == "moses" and other:
        option = "json" if other[0] == "as_json" else other[0].replace("_", "-")
        raise click.UsageError(
            f"--format moses determines the whole output format; remove --{option}"
        )
    values = {
        key: given.pop(key)
        for key in {field.name for field in fields(DecodingOptions)} & given.keys()
    }
    return DecodingOptions(**(combination.model_dump() | values), search_settings=settings)


opens_model: Decorator = pass_as("how", _model_options)
"""Passes the options for the run and the search to a command as one `DecodingOptions`, called `how`."""


def window_lines(system: TextModel) -> int:
    """Returns the number of input lines to read at a time."""
    return max(1, system.window // (4 if system.reads_articles else 1))  # articles are longer


def open_model(how: DecodingOptions, task: str | None = None) -> Translator:
    """Opens a run that generates text; prints run, weights, device and engine on stderr."""
    return as_translator(load_from_options(how, task, note))


def without_ctranslate2(how: DecodingOptions, lacking: str) -> DecodingOptions:
    """Returns the options for a feature that CTranslate2 lacks: replaces the engine `auto` with nmtkit, and says so."""
    if how.engine != "auto":
        return how
    if find_spec("ctranslate2") is not None:
        note(f"engine nmtkit: ctranslate2 does not support {lacking}")
    return replace(how, engine="nmtkit")


def open_scorer(how: DecodingOptions, task: str | None = None) -> Translator:
    """Opens a run like `open_model`, but with nmtkit's own engine, which scoring and inspecting a model require."""
    return open_model(replace(how, engine="nmtkit"), task)
