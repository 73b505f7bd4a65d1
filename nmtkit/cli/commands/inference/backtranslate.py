"""`nmtkit backtranslate`: synthetic parallel text from text of one language."""

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
    click.option("-o", "--output", "folder", required=True, type=FILE, metavar="DIR", help="Folder of the new corpus."),
    search_options.search_flags("beam_size"),
    click.option("--forward", is_flag=True, help="The text is of the source language: translations are targets."),
    options.devices,
)
@cloup.option_group(
    "Pairs that are kept",
    click.option(
        "--max-ratio",
        type=Number(1, whole=False),
        default=3.0,
        show_default=True,
        metavar="R",
        help="The longer side has at most R times the tokens of the shorter.",
    ),
    click.option(
        "--min-log-prob",
        type=float,
        metavar="X",
        help="Keep translations of at least X nats per token under the model, e.g. -2. Default: all.",
    ),
)
@search_options.search_groups(search_options.workers)
@options.encoding
@options.quiet
def backtranslate_command(**values: Any) -> None:
    """Translate FILEs, or standard input, and write the pairs as a corpus to train on.

    Back-translation: FILEs are text of the target language, and the model translates into the source language. DIR gets
    src.txt (translations) and tgt.txt (FILEs), without pairs that are empty, cut, or too unlike in length. A stopped
    command continues where it was if you run it again. Recipes name the corpus with the tag <BT>, which tells the model
    that its sources are synthetic.

    --forward: FILEs are of the source language, and translations are the targets: distillation of a large model, or
    self-training.

    \b
    Examples:
      nmtkit backtranslate -m runs/de-en mono.de -o back
      nmtkit backtranslate -m runs/de-en mono.de.gz -o back --samples 1 --top-k 10
      nmtkit backtranslate -m runs/large train.en -o distilled --forward --beam-size 5
    """
    from nmtkit.cli.inference.backtranslate import run_backtranslate

    run_backtranslate(**values)
