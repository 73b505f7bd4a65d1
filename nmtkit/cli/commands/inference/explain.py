"""`nmtkit explain`, and the prompt of `nmtkit translate --interactive`, which also explains searches."""

from typing import Any

import click
import cloup

from nmtkit.cli import options
from nmtkit.cli.commands.options import search_options
from nmtkit.cli.options import NEW_FILE, Number


@cloup.command()
@click.argument("sentence", required=False)
@cloup.option_group(
    "Common",
    options.models,
    search_options.checkpoint,
    search_options.language,
    search_options.search_flags("beam_size"),
    click.option(
        "--steps",
        type=Number(0),
        metavar="N",
        help="Number of steps to show; 0 shows all. Default: as many as fit on the screen.",
    ),
    click.option(
        "-o",
        "--output",
        type=NEW_FILE,
        metavar="FILE",
        help="Write an HTML page, FILE.html, instead of printing text.",
    ),
    options.as_json("Print a JSON object for each sentence."),
    options.device,
)
@search_options.search_groups()
@options.encoding
@options.quiet
def explain_command(**values: Any) -> None:
    """Explain a beam search: show, step by step, which hypotheses it kept, finished, pruned and blocked.

    The input is SENTENCE, or the lines of standard input. The search is the one that `translate` runs with
    the same options.

    Each row is a step. It shows the hypotheses that the step kept, side by side, each with its last token and its total
    log-probability in nats. The mark before a token points to the hypothesis in the previous row that the token
    continues. Next to or below the hypotheses, a step lists:

    \b
      ■ ended     the hypothesis is finished; the results are ranked by the score shown
      × pruned    the hypothesis did not fit into the beam
      ⊘ blocked   the named rule forbade the token

    The number right after such a mark is the number of the hypothesis that the token continues. The brackets after a
    pruned token's log-probability show how far it is below that of the last hypothesis kept. A step with K hypotheses
    considers the 2K likeliest continuations; a hypothesis ends only if its EOS is among the first K.

    \b
    Examples:
      nmtkit explain --beam-size 2 "The old woman sleeps."
      nmtkit explain --no-repeat-ngram 3 --steps 0 "The old woman sleeps." -o search.html
      sed -n 7p test.en | nmtkit explain --length-penalty none --json
    """
    from nmtkit.cli.inference.explain import run_explain

    run_explain(**values)
