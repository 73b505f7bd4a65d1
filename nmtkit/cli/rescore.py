"""`nmtkit rescore`."""

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click

from nmtkit import console
from nmtkit.cli import opening, options
from nmtkit.cli.results import read_translation, write_json_line
from nmtkit.data.corpus import Files
from nmtkit.data.reading import read_pairs
from nmtkit.errors import DataError
from nmtkit.experiment.opening import Opening
from nmtkit.metrics import perplexity
from nmtkit.translation.result import Translation
from nmtkit.translation.translator import Translator

WINDOW = 2048


@click.command()
@options.model
@options.weights
@options.device
@click.option("--source", required=True, type=click.Path(path_type=Path), help="Source lines, plain or .gz.")
@click.option(
    "--target",
    required=True,
    type=click.Path(path_type=Path),
    help="Their translations, line by line; or FILE.json or .jsonl, what `nmtkit translate` or `summarize --json` "
    "printed.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each pair, with every token's share.")
@opening.search_options("length_penalty")
@options.batch_tokens
@options.threads
@opening.how
def command(how: Opening, source: Path, target: Path, as_json: bool) -> None:
    """Log-probabilities of given translations or summaries under a model.

    Prints "SCORE TAB LOG-PROBABILITY" for each pair: the numbers that `translate --scores` prints for the same pair
    (the score is the log-probability after the length penalty; both in nats). The sum and the perplexity go to stderr.
    A model that copies gives words of the source that its vocabulary lacks the probability of copying them.

    Plain text is cut by the tokenizer, and a search may have built the same text from other subwords. What `translate
    --json` printed names its tokens, and is rescored token for token.

    \b
    Examples:
      nmtkit rescore --source test.en --target test.de > scores.tsv
      nmtkit rescore -m runs/mine --source test.en.gz --target system.de --json
      nmtkit translate --json < test.en > found.jsonl && nmtkit rescore --source test.en --target found.jsonl
    """
    translator = opening.open_asked(how)
    log_prob, n_tokens, n_pairs, n_cut = 0.0, 0, 0, 0
    with console.LineProgress("pairs") as progress:
        for found in _rescored(translator, source, target):
            for one in found:
                n_pairs += 1
                n_cut += one.src_left_out > 0
                log_prob, n_tokens = log_prob + one.log_prob, n_tokens + len(one.token_log_probs)
                if as_json:
                    record: dict[str, Any] = {"line": n_pairs, "score": one.score, "log_prob": one.log_prob}
                    record |= {"tokens": one.tokens, "token_log_probs": one.token_log_probs}
                    write_json_line(record)
                else:
                    sys.stdout.write(f"{one.score:.6f}\t{one.log_prob:.6f}\n")
            progress.advance(len(found))
    if n_cut:
        limit = translator.max_source_tokens
        console.say(f"{n_cut} of {n_pairs} sources were longer than {limit} tokens and were cut", stderr=True)
    if n_tokens:
        level = perplexity(log_prob, n_tokens).value
        console.say(f"{n_pairs} pairs, {n_tokens} tokens: {log_prob:.2f} nats, perplexity {level:.3f}", stderr=True)


def _rescored(translator: Translator, source: Path, target: Path) -> Iterator[list[Translation]]:
    """What the model says of the pairs of two files, some at a time."""
    in_json = bool({".json", ".jsonl"} & set(target.suffixes[-2:]))  # the last may be .gz
    pairs = read_pairs(Files(src=[str(source)], tgt=[str(target)]), json_target=in_json)
    count = 0
    while window := list(islice(pairs, WINDOW)):
        targets: list[str | Translation] = [
            read_translation(pair.tgt or "", f"{target}, line {pair.line}") if in_json else pair.tgt or ""
            for pair in window
        ]
        try:
            yield translator.rescore([pair.src for pair in window], targets, first=count + 1)
        except DataError as fault:
            raise DataError(f"{source} and {target}: {fault}") from fault
        count += len(window)
