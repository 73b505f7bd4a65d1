"""`nmtkit translate`."""

import sys
from pathlib import Path

import click

from nmtkit import console
from nmtkit.cli import opening, options
from nmtkit.cli.reading import text_windows
from nmtkit.cli.results import Printer
from nmtkit.data.records import WRITE_OUT
from nmtkit.data.text import read_lines
from nmtkit.experiment.opening import Opening
from nmtkit.translation.unknowns import parse_dictionary


@click.command()
@options.model
@options.weights
@options.device
@opening.search_options()
@opening.n_best
@click.option("--scores", is_flag=True, help="Put score and log-probability before each translation, tab-separated.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each line, with scores and tokens.")
@click.option(
    "--replace-unknown",
    is_flag=True,
    help="Write the source word that the attention points to in place of an unknown word.",
)
@click.option(
    "--dictionary",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Translations for --replace-unknown: SOURCE TAB TARGET on each line. Words that are not there are copied.",
)
@options.batch_tokens
@options.threads
@opening.how
def command(how: Opening, scores: bool, as_json: bool, replace_unknown: bool, dictionary: Path | None) -> None:
    """Translate standard input: one line out for each line in, in order.

    An empty line gives an empty line. With --n-best K every line gives up to K lines, each "NUMBER TAB SCORE TAB
    LOG-PROBABILITY TAB TRANSLATION", NUMBER counting input lines from 1, from a beam of at least K. The score is the
    log-probability (natural log) after the length penalty.

    A word that the target vocabulary lacks reads <unk>. With --replace-unknown the source word that the model looked at
    stands there, or its translation by the dictionary. Punctuation and the end of the sentence are passed over, and a
    source word that is unknown to the model is preferred to one that it knows. --json then lists what was "replaced"
    and from which source token; tokens, score and log-probability stay those of <unk>.

    Of a model that copies, --json says for each token how likely the model was to generate it and not to copy ("p_gen")
    and which source token it was copied from ("copied"), and lists what was copied in one piece ("copied_spans").

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
    translator = opening.open_asked(how, "translation")
    if replace_unknown:
        if translator.config.forbid_unknown:
            console.say("the recipe's search.forbid_unknown is off, for --replace-unknown", stderr=True)
        translator = translator.replacing_unknown(entries)
    printer = Printer(translator.tokenizers.tgt, how.n_best, scores, as_json, replace_unknown)
    with console.LineProgress("lines") as progress:
        for window in text_windows(WRITE_OUT):
            for found in translator.search(window, how.n_best, need_copies=as_json):
                printer.write(found)
            sys.stdout.flush()
            progress.advance(len(window))
    printer.say_unfinished("translations", "--max-length-ratio or --max-length")
