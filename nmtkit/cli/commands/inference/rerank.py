"""`nmtkit rerank`: choosing among the N best translations with a noisy channel model."""

from typing import Any

import click
import cloup

from nmtkit.cli import options
from nmtkit.cli.commands.options import search_options
from nmtkit.cli.options import FILE, Number


@cloup.command()
@options.files
@cloup.option_group(
    "Common",
    options.models,
    search_options.language,
    options.run_option(
        "--channel",
        required=True,
        help="Channel model: a run that translates from target to source.",
    ),
    options.run_option("--lm", "speaker", help="Language model for the target language."),
    click.option(
        "--n-best",
        type=Number(1),
        default=10,
        show_default=True,
        help="Number of candidates per line.",
    ),
    click.option(
        "--weights",
        "tuned",
        type=FILE,
        metavar="FILE",
        help="YAML file with the model weights, as written by --tune. Default: channel 1, lm 1.",
    ),
    click.option(
        "--tune",
        type=FILE,
        metavar="REF",
        help="Print the model weights that give the best score against REF, the references for FILEs.",
    ),
    click.option(
        "--metrics", "metric", metavar="NAME", help="Metric that --tune maximizes. Default: bleu."
    ),
    options.outputs,
    options.as_json(
        "Print a JSON object for each line: the candidates, with the log-probability per token from each model."
    ),
    options.device,
)
@cloup.option_group(
    "Search and speed",
    search_options.search_flags("beam_size"),
    search_options.search,
    search_options.precision("auto"),
    options.threads,
)
@options.encoding
@options.quiet
def rerank_command(**values: Any) -> None:
    """Translate FILEs, or standard input, and rerank the N best outputs with a noisy channel (Yee et al. 2019).

    The noisy channel combines the run with a channel model, which translates from target to source, and a language
    model. The three models may have different vocabularies.

    \b
    Examples:
      nmtkit rerank -m runs/mine --channel runs/back --lm runs/lm valid.en --tune valid.de -o weights.yaml
      nmtkit rerank -m runs/mine --channel runs/back --lm runs/lm --weights weights.yaml test.en -o new.de
    """
    from nmtkit.cli.inference.rerank import run_rerank

    run_rerank(**values)
