"""`nmtkit align` and `nmtkit rescore`: word alignments and scores of existing translations."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path

import click

from nmtkit.cli.inference import model_options
from nmtkit.cli.terminal.reporting import tell
from nmtkit.cli.text_io import results
from nmtkit.cli.text_io.reading import pair_windows
from nmtkit.core.errors import DataError
from nmtkit.core.formats import parse_json
from nmtkit.data.text import alignments
from nmtkit.data.text.files.json_records import JSON_ENDS
from nmtkit.data.text.files.lines import read_lines
from nmtkit.decoding.shortlist import LinkCounts, shortlist_writer
from nmtkit.inference.loading.options import DecodingOptions
from nmtkit.inference.result import Translation
from nmtkit.inference.translator import Translator
from nmtkit.metrics import perplexity

BEST, FREQUENT = 50, 2000
"""Numbers of target tokens in a shortlist: candidates for each source token, and frequent tokens for every sentence. Mi
et al. 2016, "Vocabulary Manipulation for Neural Machine Translation", use 10 to 50 and 2,000."""


@results.into_output
@model_options.opens_model
def run_align(
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
    """Carries out `nmtkit align`."""
    if threshold is not None and (method is not None or reverse_model is not None):
        raise click.UsageError(
            "--threshold cannot be combined with --symmetrize or --reverse-model; remove --threshold, or the others"
        )
    read = source, target, source_words, target_words
    results.require_other(soft, read, "--soft")
    results.require_other(likely, (*read, soft), "--shortlist")
    if how.search_settings:
        raise click.UsageError(
            f"align does not search; remove --search {next(iter(how.search_settings))}"
        )
    file = nullcontext() if soft is None else alignments.soft_alignment_writer(soft)
    translator = model_options.open_scorer(how)
    backward = None
    if reverse_model is not None:
        # --from and --to apply only to the first direction
        other = replace(how, to=None, source_language=None)
        other = replace(other, model=reverse_model, ensemble="probabilities", ensemble_weights=None)
        backward = model_options.open_scorer(other)
        method = method or "grow-diag"
    counting: AbstractContextManager[LinkCounts | None] = nullcontext()
    if likely is not None:
        counting = shortlist_writer(likely, translator.tokenizers, BEST, FREQUENT)
    half_empty = 0
    with results.progress("pairs") as display, file as write, counting as counts:
        for one, reverse in _aligned(
            translator, backward, (source, target), (source_words, target_words)
        ):
            half_empty += bool(one.src_words) != bool(one.tgt_words)
            links = one.links(threshold) if method is None else one.symmetrized(method, reverse)
            results.write_line(alignments.format_pharaoh(links))
            if write is not None:
                write(one, reverse)
            if counts is not None:
                counts.add(links, one.src_ids, one.tgt_ids)
            display.advance(1)
    if half_empty:
        tell(f"{half_empty} pairs have one empty side; their lines in the output are empty")


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
        src_words, tgt_words = (
            None if lines is None else list(islice(lines, len(window))) for lines in word_lines
        )
        for path, words in zip(word_files, (src_words, tgt_words), strict=True):
            if words is not None and len(words) < len(window):
                raise DataError(
                    f"{path} ends after line {count + len(words)}, but {files[0]} has more lines; add the missing lines"
                )
        try:
            aligned = translator.align(src, tgt, src_words, tgt_words, count + 1)
            others = (
                backward.align(tgt, src, tgt_words, src_words, count + 1)
                if backward
                else [None] * len(src)
            )
        except DataError as fault:
            raise DataError(f"{files[0]} and {files[1]}: {fault}") from fault
        yield from zip(aligned, others, strict=True)
        count += len(window)
    for path, lines in zip(word_files, word_lines, strict=True):
        if lines is not None and next(lines, None) is not None:
            raise DataError(
                f"{path} has more lines than {files[0]}, which has {count}; make the files parallel, line by line"
            )


@results.into_output
@model_options.opens_model
def run_rescore(how: DecodingOptions, source: Path | None, target: Path, as_json: bool) -> None:
    """Carries out `nmtkit rescore`."""
    translator = model_options.open_scorer(how)
    if source is None:
        translator.require_language_model()
    log_prob, n_tokens, n_pairs, n_cut = 0.0, 0, 0, 0
    sources = results.UnknownTokens("source")
    targets = results.UnknownTokens("target")
    with results.progress("pairs") as display:
        for scored in _rescored(translator, source, target):
            for one in scored:
                n_pairs += 1
                sources.add(one.src_tokens)
                targets.add(one.tokens)
                n_cut += one.src_left_out > 0
                log_prob, n_tokens = log_prob + one.log_prob, n_tokens + len(one.token_log_probs)
                if as_json:
                    numbers = {"line": n_pairs, "score": one.score, "log_prob": one.log_prob}
                    results.write_json_line(
                        numbers | {"tokens": one.tokens, "token_log_probs": one.token_log_probs}
                    )
                else:
                    results.write_line(f"{one.score:.6f}\t{one.log_prob:.6f}")
            display.advance(len(scored))
    results.tell_cut(n_cut, n_pairs, "sources", translator)
    sources.tell_if_many()
    targets.tell_if_many()
    if n_tokens:
        level, unit = perplexity(log_prob, n_tokens).value, "lines" if source is None else "pairs"
        tell(f"{n_pairs} {unit}, {n_tokens} tokens: {log_prob:.2f} nats, perplexity {level:.3f}")


def _rescored(
    translator: Translator, source: Path | None, target: Path
) -> Iterator[list[Translation]]:
    in_json = target.name.endswith(JSON_ENDS)
    for window in pair_windows(source, target, in_json):
        targets: list[str | Translation] = [
            _read_translation(pair.tgt or "", f"{target}, line {pair.line}")
            if in_json
            else pair.tgt or ""
            for pair in window
        ]
        try:
            yield translator.rescore([pair.src for pair in window], targets, first=window[0].line)
        except DataError as fault:
            raise DataError(f"{f'{source} and ' if source else ''}{target}: {fault}") from fault


def _read_translation(line: str, where: str) -> Translation:
    """Returns the best translation in a line of output from `nmtkit translate --json`."""
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
            f"{where}: this was not written by `nmtkit translate --json` ({fault!r}); create the file with that "
            "command, without --window or --split-sentences"
        ) from fault
