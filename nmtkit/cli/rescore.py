"""`nmtkit rescore`."""

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import click

from nmtkit import console
from nmtkit.cli import options
from nmtkit.cli.opening import open_translator
from nmtkit.data.corpus import Files, read_pairs
from nmtkit.errors import DataError
from nmtkit.metrics import perplexity

WINDOW = 2048


@click.command()
@options.model
@options.weights
@options.device
@click.option("--source", required=True, type=click.Path(path_type=Path), help="Source lines, plain or .gz.")
@click.option("--target", required=True, type=click.Path(path_type=Path), help="Their translations, line by line.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each pair, with every token's share.")
@options.length_penalty
@options.batch_tokens
@options.threads
def command(
    model: str | None,
    weights: str,
    device: str,
    source: Path,
    target: Path,
    as_json: bool,
    length_penalty: str | None,
    batch_tokens: int | None,
    threads: int | None,
) -> None:
    """Log-probabilities of given translations under a model.

    Prints "SCORE TAB LOG-PROBABILITY" for each pair: the numbers that `translate --scores` prints for the same pair
    (the score is the log-probability after the length penalty; both in nats). A translation whose text the tokenizer
    would cut differently from how the search built it has the probability of the tokenizer's cut. The sum and the
    perplexity go to stderr.

    \b
    Examples:
      nmtkit rescore --source test.en --target test.de > scores.tsv
      nmtkit rescore -m runs/mine --source test.en.gz --target system.de --json
    """
    translator = open_translator(
        model, device, weights, batch_tokens, options.search_settings(None, length_penalty), threads
    )
    pairs = read_pairs(Files(src=[str(source)], tgt=[str(target)]))
    log_prob, n_tokens, n_pairs = 0.0, 0, 0
    with console.LineProgress("pairs") as progress:
        while window := list(islice(pairs, WINDOW)):
            targets = [pair.tgt for pair in window if pair.tgt is not None]
            try:
                found = translator.rescore([pair.src for pair in window], targets, first=n_pairs + 1)
            except DataError as fault:
                raise DataError(f"{source} and {target}: {fault}") from fault
            for one in found:
                n_pairs += 1
                log_prob, n_tokens = log_prob + one.log_prob, n_tokens + len(one.token_log_probs)
                if as_json:
                    record: dict[str, Any] = {"line": n_pairs, "score": one.score, "log_prob": one.log_prob}
                    record |= {"tokens": one.tokens, "token_log_probs": one.token_log_probs}
                    sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")
                else:
                    sys.stdout.write(f"{one.score:.6f}\t{one.log_prob:.6f}\n")
            progress.advance(len(found))
    if n_tokens:
        level = perplexity(log_prob, n_tokens).value
        console.say(f"{n_pairs} pairs, {n_tokens} tokens: {log_prob:.2f} nats, perplexity {level:.3f}", stderr=True)
