"""Options that several commands share, so that they are spelled and explained alike."""

from collections.abc import Callable
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

model: Decorator = click.option(
    "-m",
    "--model",
    metavar="RUN",
    help="The run: its folder, or its name under runs/. Default: $NMTKIT_MODEL, else the newest finished run.",
)
weights: Decorator = click.option(
    "--weights",
    default="auto",
    metavar="WHICH",
    help="best, last, average, or a file. Default: the average if one was made, else the best.",
)
device: Decorator = click.option(
    "--device", default="auto", metavar="NAME", help="auto (first CUDA device, else the CPU), cpu, cuda, cuda:1, mps."
)
batch_tokens: Decorator = click.option(
    "--batch-tokens",
    type=click.IntRange(1),
    help="Padded source tokens in a batch. Default: what suits the device.",
)
threads: Decorator = click.option("--threads", type=click.IntRange(1), help="CPU threads. Default: one a core.")
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
beam_size: Decorator = click.option("--beam-size", type=click.IntRange(1), help="Default: the recipe's.")
length_penalty: Decorator = click.option(
    "--length-penalty",
    metavar="KIND[:ALPHA]",
    help="none, average or gnmt, with its strength, e.g. gnmt:0.6. Default: the recipe's.",
)
layer: Decorator = click.option(
    "--layer",
    type=click.IntRange(1),
    metavar="N",
    help="Of a Transformer, take what decoder layer N looks at, from 1. Default: the recipe's, else the last but one.",
)
head: Decorator = click.option(
    "--head",
    type=click.IntRange(1),
    metavar="N",
    help="Of a Transformer, take head N of the layer, from 1. Default: the recipe's, else the mean of all.",
)


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
