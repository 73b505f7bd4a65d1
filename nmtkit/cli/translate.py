"""`nmtkit translate`."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from nmtkit import console
from nmtkit.cli import options
from nmtkit.cli.opening import open_translator
from nmtkit.cli.reading import stdin_lines
from nmtkit.data.corpus import read_lines
from nmtkit.translator import Translation, windows
from nmtkit.unknowns import parse_dictionary


@click.command()
@options.model
@options.weights
@options.device
@options.beam_size
@options.length_penalty
@click.option("--n-best", type=click.IntRange(1), default=1, help="How many translations of each line, best first.")
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
def command(
    model: str | None,
    weights: str,
    device: str,
    beam_size: int | None,
    length_penalty: str | None,
    n_best: int,
    scores: bool,
    as_json: bool,
    replace_unknown: bool,
    dictionary: Path | None,
    batch_tokens: int | None,
    threads: int | None,
) -> None:
    """Translate standard input: one line out for each line in, in order.

    An empty line gives an empty line. With --n-best K every line gives up to K lines, each "NUMBER TAB SCORE TAB
    LOG-PROBABILITY TAB TRANSLATION", NUMBER counting input lines from 1, from a beam of at least K. The score is the
    log-probability (natural log) after the length penalty.

    A word that the target vocabulary lacks reads <unk>. With --replace-unknown the source word that the model looked at
    stands there, or its translation by the dictionary. Punctuation and the end of the sentence are passed over, and a
    source word that is unknown to the model is preferred to one that it knows. --json then lists what was "replaced"
    and from which source token; tokens, score and log-probability stay those of <unk>.

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
    settings = options.search_settings(beam_size, length_penalty)
    translator = open_translator(model, device, weights, batch_tokens, settings, threads)
    if beam_size is None and n_best > translator.config.beam_size:
        console.say(f"beam size {n_best} instead of {translator.config.beam_size}, for --n-best {n_best}", stderr=True)
        translator.config = translator.config.changed({"beam_size": n_best})
    if replace_unknown:
        if translator.config.forbid_unknown:
            console.say("the recipe's search.forbid_unknown is off, for --replace-unknown", stderr=True)
        translator.replace_unknown(entries)
    unfinished = 0
    number = 0
    with console.LineProgress("lines") as progress:
        for window in windows(stdin_lines()):
            for found in translator.search(window, n_best):
                number += 1
                unfinished += not found[0].finished
                if as_json:
                    lines = [json.dumps(_json(number, found, replace_unknown), ensure_ascii=False)]
                elif n_best > 1:
                    lines = [f"{number}\t{one.score:.6f}\t{one.log_prob:.6f}\t{one.text}" for one in found]
                elif scores:
                    lines = [f"{found[0].score:.6f}\t{found[0].log_prob:.6f}\t{found[0].text}"]
                else:
                    lines = [found[0].text]
                sys.stdout.write("".join(line + "\n" for line in lines))
            sys.stdout.flush()
            progress.advance(len(window))
    if unfinished:
        console.say(
            f"{unfinished} of the translations reached the length limit before their end; "
            "raise search.max_length_ratio or search.max_length_offset if they look cut",
            stderr=True,
        )


def _json(number: int, found: list[Translation], replace_unknown: bool) -> dict[str, Any]:
    def one(translation: Translation) -> dict[str, Any]:
        fields = asdict(translation)
        del fields["attention"], fields["src_tokens"]
        if not replace_unknown:
            del fields["replaced"]
        return fields

    return {
        "line": number,
        "source_tokens": found[0].src_tokens,
        "best": one(found[0]),
        "others": [one(translation) for translation in found[1:]],
    }
