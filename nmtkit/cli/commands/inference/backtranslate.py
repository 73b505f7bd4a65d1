"""`nmtkit backtranslate`: synthetic parallel text from monolingual text."""

from typing import Any

import click
import cloup

from nmtkit.cli import options
from nmtkit.cli.commands.options import search_options
from nmtkit.cli.options import FILE, Number


@cloup.command("backtranslate")
@options.files
@cloup.option_group(
    "Common",
    options.models,
    search_options.checkpoint,
    search_options.language,
    click.option(
        "-o",
        "--output",
        "folder",
        required=True,
        type=FILE,
        metavar="DIR",
        help="Folder for the new corpus.",
    ),
    search_options.search_flags("beam_size"),
    click.option(
        "--forward",
        is_flag=True,
        help="FILEs are in the source language; their translations become the targets.",
    ),
    options.devices,
)
@cloup.option_group(
    "Filters",
    click.option(
        "--max-ratio",
        type=Number(1, whole=False),
        default=3.0,
        show_default=True,
        metavar="R",
        help="Keep pairs whose longer side has at most R times as many tokens as the shorter side.",
    ),
    click.option(
        "--min-log-prob",
        type=float,
        metavar="X",
        help="Keep translations with a log-probability of at least X nats per token, e.g. -2. Default: all.",
    ),
)
@search_options.search_groups(search_options.workers)
@options.encoding
@options.quiet
def backtranslate_command(**values: Any) -> None:
    """Translate FILEs, or standard input, and write the pairs as a corpus to train on.

    Back-translation: FILEs are in the target language, and the model translates them into the source language. DIR then
    contains src.txt (translations) and tgt.txt (lines of FILEs). Pairs with an empty side, an unfinished translation or
    very different lengths are left out. To continue a stopped command, run it again. In a recipe, give the corpus the
    tag <BT>, which marks its sources as synthetic.

    With --forward, FILEs are in the source language, and the translations become the targets. Use this to distil a
    large model, or for self-training.

    \b
    Examples:
      nmtkit backtranslate -m runs/de-en mono.de -o back
      nmtkit backtranslate -m runs/de-en mono.de.gz -o back --samples 1 --top-k 10
      nmtkit backtranslate -m runs/large train.en -o distilled --forward --beam-size 5
    """
    from nmtkit.cli.inference.backtranslate import run_backtranslate

    run_backtranslate(**values)
