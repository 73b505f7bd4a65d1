"""Options of the commands that use a trained run: which run, how it searches, and how fast."""

import math
from collections.abc import Iterable
from dataclasses import fields
from typing import Annotated, Any, get_args, get_type_hints

import click
import cloup

from nmtkit.cli import completing, options
from nmtkit.cli.options import Decorator, Number, pass_as, together
from nmtkit.cli.reporting import note
from nmtkit.core.errors import RecipeError
from nmtkit.core.formats import parse_value
from nmtkit.core.settings import MAX_THREADS, Field, Settings, parse
from nmtkit.experiment.loading import DecodingOptions, EngineChoice, as_translator, load_from_options
from nmtkit.layers.inference import PrecisionChoice
from nmtkit.models.ensemble import Mean
from nmtkit.search.engine import StepMode
from nmtkit.search.rules import SearchConfig
from nmtkit.translation.inputs import TextModel
from nmtkit.translation.translator import Translator

SEARCH: dict[str, tuple[str | None, str]] = {
    "beam_size": ("N", "Beam size; 1 is greedy search. Default: the recipe's."),
    "length_penalty": ("KIND[:A]", "none, average or gnmt, and its strength: gnmt:0.6. Without A: the recipe's."),
    "min_length": ("TOKENS", "Minimum number of tokens in an output."),
    "max_length": ("TOKENS", "Maximum number of tokens, EOS included."),
    "no_repeat_ngram": ("N", "Never repeat an n-gram of N tokens; 0 is off."),
    "repetition_penalty": ("R", "Above 1, discourage tokens already written; 1 is off."),
    "coverage_penalty": ("BETA", "Strength of the coverage penalty; 0 is off."),
    "mbr": ("METRIC", "Choose the output by minimum Bayes risk: chrf, bleu, none."),
    "samples": ("N", "Sample N outputs instead of running beam search."),
    "temperature": ("T", "Divide log-probabilities by T; above 1 is more random."),
    "top_k": ("K", "Sample from the K most probable tokens only; 0 is all."),
    "top_p": ("P", "Sample from the smallest set of tokens whose probabilities reach P; 1 is all."),
    "seed": ("N", "Random seed for sampling. Default: the recipe's, else 1."),
}
"""Keys of the recipe's `search` group that have flags: metavar and help. `--search` sets all keys."""
SAMPLING = ("samples", "temperature", "top_k", "top_p", "seed")


class CombinationSettings(Settings):
    """Keys of `--search` that no recipe has: how several models are combined, and how decoding steps are run."""

    ensemble: Mean = "probabilities"
    ensemble_weights: list[Annotated[float, Field(gt=0)]] | None = None
    engine: StepMode = "auto"


def search_type(key: str) -> click.ParamType:  # type: ignore[type-arg]  # newer versions of click have one
    """The click type of a key of the search: a choice, or a number within the bounds of the setting."""
    if key == "length_penalty":
        return click.STRING
    setting = SearchConfig.model_fields[key]
    if values := get_args(setting.annotation):
        return click.Choice(values)
    bounds = {end: getattr(one, end) for one in setting.metadata for end in ("ge", "le") if hasattr(one, end)}
    return Number(bounds["ge"], bounds.get("le", math.inf), whole=setting.annotation is int)


def search_flags(*keys: str) -> Decorator:
    """Flags of some keys of the search; `opens_model` gathers their values."""
    named = [(key, *SEARCH[key]) for key in keys]
    return together(
        *(
            click.option(f"--{key.replace('_', '-')}", type=search_type(key), metavar=metavar, help=meaning)
            for key, metavar, meaning in named
        )
    )


def parse_search(assignments: Iterable[str]) -> tuple[dict[str, object], CombinationSettings]:
    """Reads the values of `--search`: settings of the recipe's search, and the others."""
    settings: dict[str, object] = {}
    for text in assignments:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise RecipeError(f"--search {text!r}: expected KEY=VALUE, e.g. --search stop=exact")
        settings[key.strip().removeprefix("search.")] = parse_value(value)
    combination = {key: settings.pop(key) for key in CombinationSettings.model_fields.keys() & settings.keys()}
    return settings, parse(CombinationSettings, combination, "--search")


_OTHER_FORMS = ("as_json", "scores", "window", "split_sentences", "lead")
"""Parameters that say how results are written or joined."""


def _model_options(given: dict[str, Any]) -> DecodingOptions:
    settings, combination = parse_search(given.pop("search", ()))
    flags = {key: value for key in SEARCH if (value := given.pop(key, None)) is not None}
    of_flags = [*flags, *(["alpha"] if ":" in str(flags.get("length_penalty")) else [])]
    if twice := [key for key in of_flags if key in settings]:
        raise click.UsageError(f"--search {twice[0]} stands beside an option that sets it too: give one of them")
    settings |= flags
    kind, _, alpha = str(settings.get("length_penalty")).partition(":")
    if alpha:
        try:
            settings |= {"length_penalty": kind, "alpha": float(alpha)}
        except ValueError:
            raise click.BadParameter(f"{alpha!r} is not a number", param_hint="--length-penalty") from None
    if "n_best" in given and given["n_best"] is None:  # all samples, unless one of them is chosen by its risk
        drawn = settings.get("samples") if settings.get("mbr", "none") == "none" else None
        given["n_best"] = drawn if drawn and isinstance(drawn, int) else 1
    if "prefix_bias" in settings and not (given.get("prefix") or given.get("jsonl")):
        raise click.UsageError("prefix_bias weighs prefixes: it needs `translate` with --prefix or --jsonl")
    other = [name for name in _OTHER_FORMS if given.get(name)]
    if given.get("form") == "moses" and other:
        option = "json" if other[0] == "as_json" else other[0].replace("_", "-")
        raise click.UsageError(f"--format moses writes n-best lists: leave --{option} out")
    if given.get("engine") is None:  # --search may name how steps are run
        given.pop("engine", None)
    values = {key: given.pop(key) for key in {field.name for field in fields(DecodingOptions)} & given.keys()}
    return DecodingOptions(**(combination.model_dump() | values), search_settings=settings)


opens_model: Decorator = pass_as("how", _model_options)
"""Passes the options of a run and its search to a command as one `DecodingOptions`, called `how`."""


def window_lines(system: TextModel) -> int:
    """How many lines of input are read together."""
    return max(1, system.window // (4 if system.articles else 1))  # articles are longer


def open_model(how: DecodingOptions, task: str | None = None) -> Translator:
    """Opens a run that writes text, and says on stderr which run, weights and device it is."""
    return as_translator(load_from_options(how, task, note))


checkpoint: Decorator = click.option(
    "--checkpoint",
    "weights",
    default="auto",
    metavar="WHICH",
    help="best, last, average, a stage of the recipe, or a file. Default: average if there is one, else best.",
)


language: Decorator = together(
    click.option(
        "--from", "source_language", metavar="LANG", help="Language to read, of an imported multilingual model."
    ),
    click.option(
        "--to", metavar="LANG", help="Language to write, of a multilingual model: the tgt_lang of a training corpus."
    ),
)


def precision(default: str) -> Decorator:
    """The option of how exactly the model computes."""
    values, ours = get_args(get_type_hints(DecodingOptions)["precision"]), ", ".join(get_args(PrecisionChoice))
    return click.option(
        "--precision",
        type=click.Choice(values),
        metavar="TYPE",
        default=default,
        help=f"Default: {default}. Choices: {ours}; fp16 needs CUDA, int8 a CPU. auto: fp32 on a CPU, "
        "unless a faster type was measured to give the same text; fp16 or bf16 on CUDA.",
    )


search: Decorator = click.option(
    "--search",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=completing.search_assignments,
    help="Set any key that `nmtkit recipe explain search` lists, e.g. stop=exact. "
    "Several -m: ensemble=log-probabilities, ensemble_weights=[2,1].",
)
n_best: Decorator = click.option(
    "--n-best",
    type=search_type("beam_size"),
    metavar="N",
    help="N best outputs; widens the beam, unless --beam-size is given. Default: 1, or all samples.",
)
format_option: Decorator = click.option(
    "--format",
    "form",
    type=click.Choice(("text", "moses")),
    default="text",
    show_default=True,
    help="moses: NUMBER ||| TEXT ||| FEATURES ||| SCORE, lines counted from 0.",
)


def _attention_of(name: str, part: str, default: str) -> Decorator:
    about = f"Transformer: attention of {part}, from 1. Default: the recipe's, else {default}."
    return click.option(name, type=Number(1), metavar="N", help=about)


layer: Decorator = _attention_of("--layer", "decoder layer N", "the last but one")
head: Decorator = _attention_of("--head", "head N of the layer", "the mean of all")
shortlist: Decorator = click.option(
    "--shortlist", type=options.FILE, metavar="FILE", help="Score only target tokens in a file of `align --shortlist`."
)
language_model: tuple[Decorator, ...] = (
    options.run_option("--lm", help="A language model beside the model."),
    click.option("--lm-weight", type=Number(0, whole=False), metavar="W", help="Its weight. Default: 0.2."),
)
engine: Decorator = click.option(
    "--engine",
    type=click.Choice(get_args(EngineChoice)),
    metavar="NAME",
    help="auto, eager, graph or ctranslate2 (a library).",
)
workers: Decorator = click.option(
    "--workers",
    type=Number(1, MAX_THREADS),
    metavar="N",
    help="Processes on the CPU, one core each. Default: measured.",
)
batch_tokens: Decorator = click.option(
    "--batch-tokens",
    type=Number(1),
    metavar="N",
    help="At most N padded source tokens in a batch. Default: measured, else 4,096 (CUDA: 16,384).",
)


def search_groups(*speed: Decorator) -> Decorator:
    """The groups Search, Sampling and Speed; `speed` are further options of the last."""
    return together(
        cloup.option_group(
            "Search (default: the recipe's settings)",
            search_flags(*(key for key in SEARCH if key not in ("beam_size", *SAMPLING))),
            *language_model,
            search,
        ),
        cloup.option_group("Sampling", search_flags(*SAMPLING)),
        cloup.option_group("Speed", precision("auto"), shortlist, *speed, batch_tokens, options.threads),
    )
