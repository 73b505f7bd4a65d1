"""`nmtkit translate`."""

from pathlib import Path

import click

from nmtkit.cli import inference
from nmtkit.cli.inference import Printer, write_found
from nmtkit.cli.options import FILE
from nmtkit.cli.reading import text_windows
from nmtkit.cli.reporting import tell
from nmtkit.data.records import WRITE_OUT
from nmtkit.data.text import read_lines
from nmtkit.experiment.opening import Opening
from nmtkit.translation.unknowns import parse_dictionary


@click.command()
@inference.which_run_where
@inference.precision("auto")
@inference.engine
@inference.search_options()
@inference.shortlist
@inference.n_best
@click.option("--scores", is_flag=True, help="Put score and log-probability before each translation, tab-separated.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each line, with scores and tokens.")
@click.option(
    "--replace-unknown",
    is_flag=True,
    help="Replace an unknown word by the source word that the attention points to.",
)
@click.option(
    "--dictionary",
    type=FILE,
    metavar="FILE",
    help="Translations for --replace-unknown: SOURCE TAB TARGET on each line. Other words are copied.",
)
@inference.workers
@inference.batches
def command(
    how: Opening, form: str, scores: bool, as_json: bool, replace_unknown: bool, dictionary: Path | None
) -> None:
    """Translate standard input: one line out for each line in, in order.

    An empty line gives an empty line. --n-best K prints up to K lines for each line: "NUMBER TAB SCORE TAB
    LOG-PROBABILITY TAB TRANSLATION". NUMBER counts input lines from 1. The beam is at least K wide. The score is the
    log-probability (natural log) after the length penalty.

    A word that the target vocabulary lacks is printed as <unk>. --replace-unknown prints the source word with the most
    attention instead, or its translation by the dictionary. It passes over punctuation and the end of the sentence,
    and prefers source words that the model does not know. --json then lists what was "replaced" and from which source
    token; tokens, score and log-probability stay those of <unk>.

    If the model copies, --json gives for each token the probability that the model generated it ("p_gen") and the
    source token that it was copied from ("copied"). "copied_spans" are tokens that were copied in one piece.

    \b
    Examples:
      nmtkit translate < input.txt > output.txt
      nmtkit translate -m runs/mine --beam-size 10 --length-penalty gnmt:0.6 < input.txt
      nmtkit translate --n-best 3 < input.txt
      nmtkit translate --json < input.txt | jq .best.score
      nmtkit translate --replace-unknown --dictionary names.tsv < input.txt
    """
    if dictionary is not None and not replace_unknown:
        raise click.UsageError("--dictionary is for --replace-unknown; give both")
    entries = None if dictionary is None else parse_dictionary(read_lines(dictionary), str(dictionary))
    translator = inference.open_asked(how, "translation")
    if replace_unknown:
        if translator.config.forbid_unknown:
            tell("the recipe's search.forbid_unknown is off, for --replace-unknown")
        translator = translator.replacing_unknown(entries)
    printer = Printer(translator.tokenizers.tgt, how.n_best, as_json, scores, form, replace_unknown)
    windows = text_windows(WRITE_OUT, translator.window)
    write_found(translator.stream(windows, how.n_best, need_copies=as_json), printer.write, "lines")
    printer.say_unfinished("translations", "--max-length-ratio or --max-length")
