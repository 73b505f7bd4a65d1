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
from nmtkit.data.corpus import Files
from nmtkit.data.reading import read_pairs
from nmtkit.errors import DataError
from nmtkit.metrics import perplexity
from nmtkit.settings import parse_json
from nmtkit.translation.translator import Translation

WINDOW = 2048
_PLAIN = "for translations in plain text take another suffix, such as .txt"


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
    translator = open_translator(
        model, device, weights, batch_tokens, options.search_settings(None, length_penalty), threads
    )
    in_json = bool({".json", ".jsonl"} & set(target.suffixes[-2:]))  # the last may be .gz
    pairs = read_pairs(Files(src=[str(source)], tgt=[str(target)]), json_target=in_json)
    log_prob, n_tokens, n_pairs, n_cut = 0.0, 0, 0, 0
    with console.LineProgress("pairs") as progress:
        while window := list(islice(pairs, WINDOW)):
            targets: list[str | Translation] = [
                _translation(pair.tgt or "", f"{target}, line {pair.line}") if in_json else pair.tgt or ""
                for pair in window
            ]
            try:
                found = translator.rescore([pair.src for pair in window], targets, first=n_pairs + 1)
            except DataError as fault:
                raise DataError(f"{source} and {target}: {fault}") from fault
            for one in found:
                n_pairs += 1
                n_cut += one.src_left_out > 0
                log_prob, n_tokens = log_prob + one.log_prob, n_tokens + len(one.token_log_probs)
                if as_json:
                    record: dict[str, Any] = {"line": n_pairs, "score": one.score, "log_prob": one.log_prob}
                    record |= {"tokens": one.tokens, "token_log_probs": one.token_log_probs}
                    sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")
                else:
                    sys.stdout.write(f"{one.score:.6f}\t{one.log_prob:.6f}\n")
            progress.advance(len(found))
    if n_cut:
        limit = translator.max_source_tokens
        console.say(f"{n_cut} of {n_pairs} sources were longer than {limit} tokens and were cut", stderr=True)
    if n_tokens:
        level = perplexity(log_prob, n_tokens).value
        console.say(f"{n_pairs} pairs, {n_tokens} tokens: {log_prob:.2f} nats, perplexity {level:.3f}", stderr=True)


def _translation(line: str, where: str) -> Translation:
    """The best translation of a line that `nmtkit translate --json` printed."""
    try:
        record = parse_json(line, where)
    except DataError as fault:
        raise DataError(f"{fault}, so it is not what `nmtkit translate --json` prints; {_PLAIN}") from fault
    if isinstance(record, dict) and "windows" in record:
        raise DataError(
            f"{where}: a summary of several windows, each of an article of its own, cannot be rescored as one; "
            "leave --window out, or write the summaries as plain text"
        )
    try:
        best = record["best"]
        return Translation(
            text=str(best["text"]),
            score=float(best["score"]),
            log_prob=float(best["log_prob"]),
            tokens=[str(token) for token in best["tokens"]],
            token_log_probs=[],
            src_tokens=[],
            finished=bool(best["finished"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError) as fault:
        raise DataError(f"{where}: not what `nmtkit translate --json` prints ({fault!r}); {_PLAIN}") from fault
