"""`nmtkit rescore`."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import cloup

from nmtkit.cli import inference, options, results
from nmtkit.cli.options import FILE
from nmtkit.cli.reading import pair_windows
from nmtkit.cli.reporting import tell
from nmtkit.cli.results import write_json_line
from nmtkit.core.errors import DataError
from nmtkit.core.formats import parse_json
from nmtkit.experiment.loading import ModelOptions
from nmtkit.metrics import perplexity
from nmtkit.translation.result import Translation
from nmtkit.translation.translator import Translator


@cloup.command()
@cloup.option_group(
    "Common",
    options.models,
    inference.checkpoint,
    inference.source_file,
    click.option(
        "--target",
        required=True,
        type=FILE,
        help="Their translations, line by line; or .jsonl, printed by `translate` or `summarize --json`.",
    ),
    results.output,
    options.as_json("Print a JSON object for each pair, with scores of its tokens."),
    inference.search_flags("length_penalty"),
    inference.search,
    options.device,
)
@cloup.option_group("Speed", inference.precision("fp32"), inference.batch_tokens, options.threads)
@options.quiet
@results.into_output
@inference.opens_model
def command(how: ModelOptions, source: Path, target: Path, as_json: bool) -> None:
    """Print the log-probabilities of given translations or summaries under a model.

    Prints "SCORE TAB LOG-PROBABILITY" for each pair, as `translate --scores` does for the same pair. The score is the
    log-probability after the length penalty; both are in nats. The sum and the perplexity go to stderr. If the model
    copies, a source word that the vocabulary lacks has the probability of copying it.

    Plain text is cut by the tokenizer; a search may have built the same text from other subwords. What `translate
    --json` printed names its tokens, and is rescored token for token.

    \b
    Examples:
      nmtkit rescore --source test.en --target test.de -o scores.tsv
      nmtkit rescore -m runs/mine --source test.en.gz --target system.de --json
      nmtkit translate --json test.en -o found.jsonl && nmtkit rescore --source test.en --target found.jsonl
    """
    translator = inference.open_model(how)
    log_prob, n_tokens, n_pairs, n_cut = 0.0, 0, 0, 0
    with results.progress("pairs") as display:
        for scored in _rescored(translator, source, target):
            for one in scored:
                n_pairs += 1
                n_cut += one.src_left_out > 0
                log_prob, n_tokens = log_prob + one.log_prob, n_tokens + len(one.token_log_probs)
                if as_json:
                    numbers = {"line": n_pairs, "score": one.score, "log_prob": one.log_prob}
                    write_json_line(numbers | {"tokens": one.tokens, "token_log_probs": one.token_log_probs})
                else:
                    sys.stdout.write(f"{one.score:.6f}\t{one.log_prob:.6f}\n")
            display.advance(len(scored))
    if n_cut:
        tell(f"{n_cut} of {n_pairs} sources were longer than {translator.max_source_tokens} tokens and were cut")
    if n_tokens:
        level = perplexity(log_prob, n_tokens).value
        tell(f"{n_pairs} pairs, {n_tokens} tokens: {log_prob:.2f} nats, perplexity {level:.3f}")


def _rescored(translator: Translator, source: Path, target: Path) -> Iterator[list[Translation]]:
    """The pairs of two files with their scores, some at a time."""
    in_json = bool({".json", ".jsonl"} & set(target.suffixes[-2:]))  # the last may be .gz
    for window in pair_windows(source, target, in_json):
        targets: list[str | Translation] = [
            _read_translation(pair.tgt or "", f"{target}, line {pair.line}") if in_json else pair.tgt or ""
            for pair in window
        ]
        try:
            yield translator.rescore([pair.src for pair in window], targets, first=window[0].line)
        except DataError as fault:
            raise DataError(f"{source} and {target}: {fault}") from fault


def _read_translation(line: str, where: str) -> Translation:
    """The best translation of a line that `nmtkit translate --json` printed."""
    plain = "for translations in plain text take another suffix, such as .txt"
    try:
        record = parse_json(line, where)
    except DataError as fault:
        raise DataError(f"{fault}, so it is not what `nmtkit translate --json` prints; {plain}") from fault
    if isinstance(record, dict) and (pieces := {"windows", "sentences"} & record.keys()):
        what, option = ("summary", "--window") if "windows" in pieces else ("translation", "--split-sentences")
        raise DataError(
            f"{where}: a {what} of several {pieces.pop()}, each read by itself, cannot be rescored as one; "
            f"leave {option} out, or write plain text"
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
        raise DataError(f"{where}: not what `nmtkit translate --json` prints ({fault!r}); {plain}") from fault
