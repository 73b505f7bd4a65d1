"""`nmtkit align` and `nmtkit rescore`: what a model says of given translations."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path

import click
import cloup

from nmtkit.cli import inference, options, results
from nmtkit.cli.options import FILE, NEW_FILE, Decorator, Number
from nmtkit.cli.reading import pair_windows
from nmtkit.cli.reporting import tell
from nmtkit.core.errors import DataError
from nmtkit.core.formats import parse_json
from nmtkit.corpus import alignments
from nmtkit.corpus.json_records import JSON_ENDS
from nmtkit.corpus.text import read_lines
from nmtkit.experiment.loading import DecodingOptions
from nmtkit.metrics import perplexity
from nmtkit.search.shortlist import LinkCounts, shortlist_writer
from nmtkit.translation.result import Translation
from nmtkit.translation.translator import Translator

BEST, FREQUENT = 50, 2000
"""How many target tokens a shortlist has for each source token, and for every sentence. Mi et al. 2016, "Vocabulary
Manipulation for Neural Machine Translation", take 10 to 50, and 2,000."""


def _common(target: str, *more: Decorator, source: str = "") -> Decorator:
    """The group Common; `target` is the help of `--target`, `source` more help of a `--source` that may be left out."""
    return cloup.option_group(
        "Common",
        options.models,
        inference.checkpoint,
        inference.language,
        click.option("--source", required=not source, type=FILE, help=f"Source lines, plain or .gz.{source}"),
        click.option("--target", required=True, type=FILE, help=target),
        results.output,
        *more,
        options.device,
    )


@cloup.command("align")
@_common(
    "Their translations, line by line.",
    click.option(
        "--threshold",
        type=Number(0, 1, whole=False, above=True),
        help="Link all pairs of words with at least this weight. "
        "Default: each target word to the source word with the most weight.",
    ),
    click.option("--soft", type=NEW_FILE, metavar="FILE", help="Also write the weights: FILE.json or FILE.npz."),
    click.option(
        "--shortlist", "likely", type=NEW_FILE, metavar="FILE", help="Also write a list for `translate --shortlist`."
    ),
)
@cloup.option_group(
    "Words",
    click.option(
        "--source-words",
        type=FILE,
        metavar="FILE",
        help="Source with spaces between words (l' homme). Default: --source.",
    ),
    click.option("--target-words", type=FILE, metavar="FILE", help="The same for the target."),
)
@cloup.option_group(
    "Two directions",
    options.run_option("--reverse-model", help="A run of the other direction (target to source), to symmetrize."),
    click.option(
        "--symmetrize",
        "method",
        type=click.Choice(alignments.SYMMETRIZATIONS),
        metavar="METHOD",
        help=f"{', '.join(alignments.SYMMETRIZATIONS)}. Default with --reverse-model: grow-diag.",
    ),
)
@cloup.option_group(
    "Attention, search and speed",
    inference.layer,
    inference.head,
    inference.search,
    inference.precision("fp32"),
    inference.batch_tokens,
    options.threads,
)
@options.quiet
@results.into_output
@inference.opens_model
def align_command(
    how: DecodingOptions,
    source: Path,
    target: Path,
    source_words: Path | None,
    target_words: Path | None,
    threshold: float | None,
    method: alignments.Symmetrization | None,
    reverse_model: str | None,
    soft: Path | None,
    likely: Path | None,
) -> None:
    """Align the words of given translations by a model's attention.

    Prints a line for each pair in the Pharaoh format: "i-j" links source word i and target word j, counted from 0. A
    pair with an empty side has an empty line. Words are what white space separates, whatever the tokenizer makes of
    them. The attention of subwords is merged to words: columns of a source word are added, rows of a target word
    averaged. Each target word is linked to the source word with the largest weight.

    --symmetrize combines two directions: two models, or, without --reverse-model, the two ways to read one attention:
    the second links each source word to the target word that attends to it most. grow-diag grows from the common links
    along their neighbours; -final adds links of words that have none yet, -final-and and -strict only where both words
    have none.

    --soft FILE.json is a list with an object for each pair: source and target words, and "weights" with a row for each
    target word; FILE.npz has an array "1", "2", ... for each pair. --reverse-model adds "reverse_weights", or arrays
    "1.reverse", ..., with a row for each source word.

    \b
    Examples:
      nmtkit align --source test.en --target test.fr -o test.align
      nmtkit align -m runs/en-fr --reverse-model runs/fr-en --source test.en --target test.fr -o test.align
      nmtkit align --source test.en --target test.fr --source-words test.tok.en --target-words test.tok.fr
      nmtkit align --source test.en --target test.fr --soft test.npz --threshold 0.3 -o test.align
      nmtkit align --source train.en --target train.fr --shortlist en-fr.shortlist -o train.align
    """
    if threshold is not None and (method is not None or reverse_model is not None):
        raise click.UsageError("--threshold keeps several links a word; it does not go with --symmetrize")
    read = source, target, source_words, target_words
    results.require_other(soft, read, "--soft")
    results.require_other(likely, (*read, soft), "--shortlist")
    if how.search_settings:
        raise click.UsageError(f"--search {next(iter(how.search_settings))} is for a search, and align makes none")
    file = nullcontext() if soft is None else alignments.soft_alignment_writer(soft)
    translator = inference.open_model(how)
    backward = None
    if reverse_model is not None:
        other = replace(how, to=None, source_language=None)  # languages are those of the first direction
        other = replace(other, model=reverse_model, ensemble="probabilities", ensemble_weights=None)
        backward = inference.open_model(other)
        method = method or "grow-diag"
    counting: AbstractContextManager[LinkCounts | None] = nullcontext()
    if likely is not None:
        counting = shortlist_writer(likely, translator.tokenizers, BEST, FREQUENT)
    half_empty = 0
    with results.progress("pairs") as display, file as write, counting as counts:
        for one, reverse in _aligned(translator, backward, (source, target), (source_words, target_words)):
            half_empty += bool(one.src_words) != bool(one.tgt_words)
            links = one.links(threshold) if method is None else one.symmetrized(method, reverse)
            results.write_line(alignments.format_pharaoh(links))
            if write is not None:
                write(one, reverse)
            if counts is not None:
                counts.add(links, one.src_ids, one.tgt_ids)
            display.advance(1)
    if half_empty:
        tell(f"{half_empty} pairs have one empty side: their lines are empty")


def _aligned(
    translator: Translator,
    backward: Translator | None,
    files: tuple[Path, Path],
    word_files: tuple[Path | None, Path | None],
) -> Iterator[tuple[alignments.SoftAlignment, alignments.SoftAlignment | None]]:
    word_lines = [None if path is None else read_lines(path) for path in word_files]
    count = 0
    for window in pair_windows(*files):
        src, tgt = [pair.src for pair in window], [pair.tgt or "" for pair in window]
        src_words, tgt_words = (None if lines is None else list(islice(lines, len(window))) for lines in word_lines)
        for path, words in zip(word_files, (src_words, tgt_words), strict=True):
            if words is not None and len(words) < len(window):
                raise DataError(f"{path} ends after line {count + len(words)}, but {files[0]} goes on")
        try:
            aligned = translator.align(src, tgt, src_words, tgt_words, count + 1)
            others = backward.align(tgt, src, tgt_words, src_words, count + 1) if backward else [None] * len(src)
        except DataError as fault:
            raise DataError(f"{files[0]} and {files[1]}: {fault}") from fault
        yield from zip(aligned, others, strict=True)
        count += len(window)
    for path, lines in zip(word_files, word_lines, strict=True):
        if lines is not None and next(lines, None) is not None:
            raise DataError(f"{path} has more than the {count} lines of {files[0]}: they must be pairs")


@cloup.command("rescore")
@_common(
    "Their translations, line by line; or .jsonl, printed by `translate` or `summarize --json`.",
    options.as_json("Print a JSON object for each pair, with scores of its tokens."),
    inference.search_flags("length_penalty"),
    *inference.language_model,
    inference.search,
    source=" A language model needs none.",
)
@cloup.option_group("Speed", inference.precision("fp32"), inference.batch_tokens, options.threads)
@options.quiet
@results.into_output
@inference.opens_model
def rescore_command(how: DecodingOptions, source: Path | None, target: Path, as_json: bool) -> None:
    """Print the log-probabilities of given translations or summaries under a model, or of texts by a language model.

    Prints "SCORE TAB LOG-PROBABILITY" for each pair, as `translate --scores` does for the same pair. The score is the
    log-probability after the length penalty; both are in nats. The sum and the perplexity go to stderr. If the model
    copies, a source word that the vocabulary lacks has the probability of copying it.

    Plain text is tokenized again. The search may have produced the same text from other subwords, with another score.
    The output of `translate --json` has the tokens, so it is rescored exactly.

    \b
    Examples:
      nmtkit rescore --source test.en --target test.de -o scores.tsv
      nmtkit translate --json test.en -o found.jsonl && nmtkit rescore --source test.en --target found.jsonl
      nmtkit rescore -m runs/language-model --target test.en
    """
    translator = inference.open_model(how)
    if source is None:
        translator.require_language_model()
    log_prob, n_tokens, n_pairs, n_cut = 0.0, 0, 0, 0
    with results.progress("pairs") as display:
        for scored in _rescored(translator, source, target):
            for one in scored:
                n_pairs += 1
                n_cut += one.src_left_out > 0
                log_prob, n_tokens = log_prob + one.log_prob, n_tokens + len(one.token_log_probs)
                if as_json:
                    numbers = {"line": n_pairs, "score": one.score, "log_prob": one.log_prob}
                    results.write_json_line(numbers | {"tokens": one.tokens, "token_log_probs": one.token_log_probs})
                else:
                    results.write_line(f"{one.score:.6f}\t{one.log_prob:.6f}")
            display.advance(len(scored))
    results.tell_cut(n_cut, n_pairs, "sources", translator)
    if n_tokens:
        level, unit = perplexity(log_prob, n_tokens).value, "lines" if source is None else "pairs"
        tell(f"{n_pairs} {unit}, {n_tokens} tokens: {log_prob:.2f} nats, perplexity {level:.3f}")


def _rescored(translator: Translator, source: Path | None, target: Path) -> Iterator[list[Translation]]:
    in_json = target.name.endswith(JSON_ENDS)
    for window in pair_windows(source, target, in_json):
        targets: list[str | Translation] = [
            _read_translation(pair.tgt or "", f"{target}, line {pair.line}") if in_json else pair.tgt or ""
            for pair in window
        ]
        try:
            yield translator.rescore([pair.src for pair in window], targets, first=window[0].line)
        except DataError as fault:
            raise DataError(f"{f'{source} and ' if source else ''}{target}: {fault}") from fault


def _read_translation(line: str, where: str) -> Translation:
    """The best translation of a line that `nmtkit translate --json` printed."""
    record = parse_json(line, where)
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
        raise DataError(
            f"{where}: not what `nmtkit translate --json` prints without --window and --split-sentences ({fault!r})"
        ) from fault
