"""Options that several commands share, so that they are spelled and explained alike."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from nmtkit.cli.numbers import Number, SearchNumber
from nmtkit.settings import MOST_THREADS

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def one_run(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> str | None:
    """The one run that an option names; the callback of options that are given once at most.

    Raises:
        click.BadParameter: it names several, which other programs would search together.
    """
    if len(given) > 1:
        raise click.BadParameter(
            f"{' and '.join(given)}: one run is taken here, for several models do not search together; name one"
        )
    return given[0] if given else None


model: Decorator = click.option(
    "-m",
    "--model",
    metavar="RUN",
    multiple=True,
    callback=one_run,
    help="The run: its folder, or its name under runs/. Default: $NMTKIT_MODEL, else the newest finished run.",
)
weights: Decorator = click.option(
    "--weights",
    default="auto",
    metavar="WHICH",
    help="best, last, average, a stage of the recipe (its best), or a file. Default: the average if one was made, else "
    "the best.",
)
device: Decorator = click.option(
    "--device", default="auto", metavar="NAME", help="auto (first CUDA device, else the CPU), cpu, cuda, cuda:1, mps."
)
batch_tokens: Decorator = click.option(
    "--batch-tokens",
    type=Number(1),
    help="Padded source tokens in a batch. Default: what suits the device.",
)
threads: Decorator = click.option("--threads", type=Number(1, MOST_THREADS), help="CPU threads. Default: one a core.")
training_threads: Decorator = click.option(
    "--threads",
    type=Number(1, MOST_THREADS),
    help="CPU threads. Default: training.threads, of which `auto` is measured; for the test set one a core.",
)
overrides: Decorator = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of the recipe, e.g. --set training.lr=0.001. May be repeated.",
)
run_folder: Decorator = click.option(
    "--run", "run_path", metavar="DIR", help="The run's folder. Default: runs/NAME, NAME being the recipe's."
)
beam_size: Decorator = click.option("--beam-size", type=SearchNumber("beam_size"), help="Default: the recipe's.")
length_penalty: Decorator = click.option(
    "--length-penalty",
    metavar="KIND[:ALPHA]",
    help="none, average or gnmt, with its strength, e.g. gnmt:0.6. Default: the recipe's.",
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


n_best: Decorator = click.option(
    "--n-best", type=SearchNumber("beam_size"), default=1, help="How many results for each line, best first."
)
SEARCH: dict[str, Decorator] = {
    "min_length": click.option(
        "--min-length", type=SearchNumber("min_length"), metavar="TOKENS", help="The fewest tokens of a result."
    ),
    "max_length": click.option(
        "--max-length", type=SearchNumber("max_length"), metavar="TOKENS", help="The most tokens, the end mark counted."
    ),
    "min_length_ratio": click.option(
        "--min-length-ratio",
        type=SearchNumber("min_length_ratio", whole=False),
        metavar="R",
        help="At least R tokens for each source token.",
    ),
    "max_length_ratio": click.option(
        "--max-length-ratio",
        type=SearchNumber("max_length_ratio", whole=False),
        metavar="R",
        help="At most R tokens for each source token, and search.max_length_offset more.",
    ),
    "no_repeat_ngram": click.option(
        "--no-repeat-ngram",
        type=SearchNumber("no_repeat_ngram"),
        metavar="N",
        help="No N tokens in a row twice; 3 is trigram blocking, 0 allows all.",
    ),
    "coverage_penalty": click.option(
        "--coverage-penalty",
        type=SearchNumber("coverage_penalty", whole=False),
        metavar="BETA",
        help="Strength of the penalty for badly spread attention; 0 is none.",
    ),
    "coverage_kind": click.option(
        "--coverage-kind",
        type=click.Choice(["gnmt", "summary"]),
        help="It punishes source tokens that got too little attention (gnmt), or too much (summary).",
    ),
}
"""Options by the key of the recipe's `search` group that they set; the default of each is the recipe's."""


def search(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command all options of the search; it takes the settings that they make as `search`."""

    @wraps(command)
    def with_settings(**given: Any) -> Any:
        settings = search_settings(given.pop("beam_size"), given.pop("length_penalty"))
        changed = {key: given.pop(key) for key in SEARCH}
        settings |= {key: value for key, value in changed.items() if value is not None}
        return command(search=settings, **given)

    decorated: Callable[..., Any] = with_settings
    for decorate in reversed([beam_size, length_penalty, *SEARCH.values()]):
        decorated = decorate(decorated)
    return decorated


def search_settings(beam_size: int | None, length_penalty: str | None) -> dict[str, object]:
    """The keys of the recipe's `search` group that the options above change."""
    settings: dict[str, object] = {}
    if beam_size is not None:
        settings["beam_size"] = beam_size
    if length_penalty is not None:
        kind, _, alpha = length_penalty.partition(":")
        settings["length_penalty"] = kind
        if alpha:
            try:
                settings["alpha"] = float(alpha)
            except ValueError as fault:
                raise click.BadParameter(f"{alpha!r} is not a number", param_hint="--length-penalty") from fault
    return settings
