"""`nmtkit check`."""

import importlib
import json
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from nmtkit.cli import terminal
from nmtkit.cli.terminal.reporting import tell
from nmtkit.cli.terminal.reports import show_diagnosis
from nmtkit.config.tasks.task import TASKS
from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.core.files import write_errors
from nmtkit.data.text.blocks import Block
from nmtkit.data.text.config import SplitFiles
from nmtkit.data.text.faults import (
    BINARY,
    COLUMN,
    ENCODING,
    FORMAT,
    LINE_COUNTS,
    SHIFT,
    UNCLEAR_LANGUAGE,
    UTF16,
)
from nmtkit.data.text.files.encodings import EncodingGuess
from nmtkit.data.text.files.json_records import JSON_ENDS
from nmtkit.data.text.files.names import has_option_encoding, split_reference, text_path
from nmtkit.data.text.reading import require_plain_text
from nmtkit.datacheck import report
from nmtkit.datacheck.examine import examine
from nmtkit.datacheck.findings import Diagnosis, SplitDiagnosis
from nmtkit.datacheck.html import diagnosis_page
from nmtkit.datacheck.repair import (
    LOG_NAME,
    RepairedSplit,
    recognize_encodings,
    repair,
    require_new,
)
from nmtkit.datacheck.report import ReportTable

WIDTH = 80
"""Width of running text and plots, in columns."""
AS_JSON_LINES = (
    "to check JSON lines, use a file whose name ends in .jsonl, or specify each side as FILE.jsonl#FIELD (in a recipe: "
    "`jsonl`, src_field and tgt_field)"
)


@dataclass
class CheckedCorpus:
    """The corpus to check."""

    title: str
    """The recipe's name, or the files."""
    splits: dict[str, SplitFiles]
    monolingual: bool
    """Whether both sides are in the same language, as in summarization."""
    recipe: Any = None
    """A `RecipeDataCheck` if the corpus belongs to a recipe; its module, which loads torch, is imported only then."""


def run_check(
    names: tuple[str, ...],
    valid: tuple[str, ...],
    test: tuple[str, ...],
    task: str | None,
    html_path: str | None,
    json_path: str | None,
    fix_path: str | None,
    strict: bool,
    with_tokens: bool,
    run_path: str | None,
    overrides: tuple[str, ...],
) -> int:
    """Carries out `nmtkit check`."""
    corpus = _find_corpus(names, {"valid": valid, "test": test}, task, overrides, run_path)
    fixed = Path(fix_path or "")
    if fix_path:
        require_new(fixed)
    if "" in (fix_path, html_path, json_path):
        raise click.UsageError(
            "--fix, --html and --json do not accept an empty name; specify a folder or a file"
        )
    if html_path and json_path and Path(html_path).resolve() == Path(json_path).resolve():
        raise click.UsageError(
            f"--html and --json would both write to {html_path}; use two different files"
        )
    _require_report_path(html_path, b"<!")
    _require_report_path(json_path, b"{\n")

    def see(block: Block) -> None:
        require_plain_text(block, corpus.splits[block.split], AS_JSON_LINES)
        if with_tokens and corpus.recipe is not None:
            corpus.recipe.see(block)

    with terminal.LineProgress("MB", size=1_000_000) as display:
        diagnosis = examine(corpus.splits, corpus.monolingual, progress=display.advance, see=see)
    encodings = _recognize_encodings(corpus, diagnosis)
    tables, tokens, failed = _count_tokens(corpus, diagnosis) if with_tokens else ([], None, False)
    # repairs before any output is printed, because the reader of the output may stop early
    repaired = _repair(corpus, fixed, encodings) if fix_path else None
    if html_path:
        files = ", ".join(path for split in corpus.splits.values() for path in split.texts())
        _write_report(
            html_path, diagnosis_page(diagnosis, f"Data check: {corpus.title}", files, tables)
        )
        tell(f"wrote {html_path}")
    if json_path:
        values = report.as_json(diagnosis, strict) | {"tokens": tokens}
        values["encodings"] = {path: asdict(guess) for path, guess in encodings.items()}
        _write_report(json_path, json.dumps(values, ensure_ascii=False, indent=1) + "\n")
    if json_path != "-":
        _show_examination(diagnosis, tables, encodings, corrected=bool(fix_path))
    refused = repaired is not None and _show_repair(fixed, *repaired, stderr=json_path == "-")
    wrong = refused or report.has_problems(diagnosis, strict, fixed=bool(fix_path))
    return 1 if wrong else 2 if failed else 0


def _find_corpus(
    names: Sequence[str],
    others: Mapping[str, Sequence[str]],
    task: str | None,
    overrides: Sequence[str],
    run_path: str | None,
) -> CheckedCorpus:
    name = names[0]
    if len(names) == 1 and (name.endswith((".yaml", ".yml")) or not Path(text_path(name)).exists()):
        if any(others.values()) or task:
            raise click.UsageError(
                "--valid, --test and --task apply only to text files; for a recipe, set its keys: "
                "--set data.valid.src=FILE"
            )
        if has_option_encoding():
            raise click.UsageError(
                "--encoding applies only to text files; for a recipe, set the encoding of its text: "
                "--set data.train.encoding=NAME"
            )
        checked = importlib.import_module("nmtkit.experiment.checks").open_data_check(
            name, overrides, run_path
        )
        paths = dict.fromkeys(
            path for one in checked.recipe.texts().values() for path in one.data.paths()
        )
        if unseen := [path for path in paths if path not in checked.recipe.data.paths()]:
            tell(
                "files used only by individual stages were not checked; to check them, pass them as arguments: "
                f"{', '.join(unseen)}"
            )
        return CheckedCorpus(
            checked.recipe.name, checked.splits, TASKS.get(checked.recipe.task).monolingual, checked
        )
    if overrides or run_path:
        raise click.UsageError("--set and --run apply only to a recipe, not to files; remove them")
    given = {"train" if any(others.values()) else "data": names, **others}
    splits = {split: _files(split, paths) for split, paths in given.items() if paths}
    missing = [
        path for files in splits.values() for path in files.paths() if not Path(path).exists()
    ]
    if missing:
        raise DataError(f"file not found: {', '.join(missing)}; check the name")
    summaries = any(
        files.stories or (files.jsonl and files.tgt_field == "summary") for files in splits.values()
    )
    return CheckedCorpus(
        " and ".join(names), splits, TASKS.get(task).monolingual if task else summaries
    )


def _files(split: str, names: Sequence[str]) -> SplitFiles:
    """Returns the files of one split: a source and an optional target, JSON lines, or a folder of stories."""
    if len(names) > 2:
        raise click.UsageError(
            f"{split} has {len(names)} files, but a split consists of a source and a target, or of one JSON lines "
            "file; for more files, use a recipe (--valid and --test must follow the training files)"
        )
    if len(names) == 1 and Path(names[0]).is_dir():
        return SplitFiles(stories=list(names))
    if len(names) == 1 and names[0].endswith(JSON_ENDS):
        return SplitFiles(jsonl=list(names))
    (src_file, src_field), (tgt_file, tgt_field) = (
        split_reference(names[0]),
        split_reference(names[-1]),
    )
    # --fix then writes a single file
    if src_file == tgt_file and src_file.endswith(JSON_ENDS) and len(names) == 2:
        return SplitFiles(jsonl=[src_file], src_field=src_field, tgt_field=tgt_field)
    return SplitFiles(src=list(names[:1]), tgt=list(names[1:]))


def _count_tokens(
    corpus: CheckedCorpus, diagnosis: Diagnosis
) -> tuple[list[ReportTable], dict[str, Any] | None, bool]:
    """Returns token statistics for a recipe, as tables and as JSON values, and whether only the tokenizer failed."""
    if corpus.recipe is None:
        return [], None, False
    try:
        with terminal.LineProgress("pairs") as display:
            counts = corpus.recipe.count_tokens(diagnosis, tell, display.advance)
        return counts.tables(diagnosis), vars(counts) | {"data": asdict(counts.data)}, False
    except NmtkitError as fault:
        tell(f"the text was not tokenized: {fault}")
        return [], None, not report.has_problems(diagnosis)


def _recognize_encodings(corpus: CheckedCorpus, diagnosis: Diagnosis) -> dict[str, EncodingGuess]:
    """Returns the encodings of files that are not UTF-8; reads files again only if the check found invalid UTF-8."""
    found = {finding.kind for _, finding in diagnosis.findings()}
    if not found & {ENCODING, UTF16}:
        return {}
    return recognize_encodings(corpus.splits)


def _show_encodings(encodings: Mapping[str, EncodingGuess], corrected: bool) -> None:
    for path, guess in encodings.items():
        if guess.certain:
            remedy = (
                ""
                if corrected
                else f"; convert it with --fix, or read it as it is with --encoding {guess.names[0]}"
            )
            terminal.say(f"{path}: {guess.title} ({guess.evidence}){remedy}")
            continue
        candidates = f"perhaps {guess.title}" if guess.names else "in an unrecognized encoding"
        name = guess.names[0] if guess.names else "NAME"
        reason = f" ({guess.evidence})" if guess.evidence else ""
        terminal.say(
            f"{path}: not UTF-8, {candidates}{reason}; to convert it, specify its encoding: --encoding {name} --fix"
        )
    if encodings:
        terminal.say("")


def _repair(
    corpus: CheckedCorpus, out: Path, encodings: Mapping[str, EncodingGuess]
) -> tuple[dict[str, RepairedSplit], Path | None]:
    """Writes cleaned files and, if the corpus belongs to a recipe, a recipe that uses them."""
    with terminal.LineProgress("MB", size=1_000_000) as display:
        done = repair(corpus.splits, out, corpus.monolingual, display.advance, encodings)
    if corpus.recipe is None or all(split.refused for split in done.values()):
        return done, None
    return done, corpus.recipe.write(out, {name: split.files for name, split in done.items()})


def _show_repair(
    out: Path, done: Mapping[str, RepairedSplit], recipe: Path | None, stderr: bool
) -> bool:
    """Prints a table of the cleaned files; returns whether a split could not be written."""
    rows = []
    for name, split in done.items():
        if split.refused:
            continue
        rows.append([name, "kept", f"{split.kept:,}", ", ".join(split.files.texts())])
        for path, guess in split.converted.items():
            rows.append([name, "converted", "", f"{path}, from {guess.title}"])
        for what, counts in (("left out", split.dropped), ("repaired", split.mended)):
            rows += [[name, what, f"{count:,}", kind] for kind, count in counts.most_common()]
    terminal.say("", stderr)
    if rows:
        terminal.table(
            f"written to {out}", ["split", "action", "pairs", "files or problem"], rows, stderr
        )
    refused = {name: split.refused for name, split in done.items() if split.refused}
    for name, why in refused.items():
        terminal.say(f"{name}: not written: {why}", stderr)
    if not rows:
        terminal.say(f"{out}: not created, because nothing could be written", stderr)
        return True
    if any(split.dropped or split.mended or split.converted for split in done.values()):
        terminal.say(
            f"every removed or repaired pair, and every converted file, is listed in {out / LOG_NAME}",
            stderr,
        )
    if recipe is not None:
        terminal.say(
            f"the recipe for the cleaned files is {recipe}; next: nmtkit train {shlex.quote(str(recipe))}",
            stderr,
        )
    return bool(refused)


def _show_examination(
    diagnosis: Diagnosis,
    tables: Sequence[ReportTable],
    encodings: Mapping[str, EncodingGuess],
    corrected: bool,
) -> None:
    for number, split in enumerate(diagnosis.splits.values()):
        _show_lengths(split, plots=number == 0)
    for table in tables:
        terminal.table(table.title, table.columns, table.rows)
        _say_wrapped(table.note)
        terminal.say("")
    _show_places(diagnosis)
    _show_encodings(encodings, corrected)
    show_diagnosis(diagnosis, stderr=False)


def _show_lengths(split: SplitDiagnosis, plots: bool) -> None:
    """Prints lengths and scripts of a split. The caller plots only the first split, because splits are similar."""
    for histogram in report.histograms(split):
        if plots:
            terminal.histogram(
                f"{split.name}: {histogram.title}", histogram.labels, histogram.series, WIDTH
            )
        else:
            terminal.say(f"{split.name}: {histogram.title}")
        for note in histogram.notes:
            _say_wrapped(note)
        if plots:
            terminal.say("")
    for name, side in split.sides():
        if side.language:
            terminal.say(f"{split.name}: language of the {name}: {side.language}")
        if side.scripts:
            terminal.say(f"{split.name}: letters of the {name}")
            _say_wrapped(", ".join(f"{script} {part}" for script, part in report.scripts(side)))
    if split.src.words:
        terminal.say("")


def _show_places(diagnosis: Diagnosis) -> None:
    names = report.names_of(diagnosis)
    for split, finding in reversed(diagnosis.findings()):  # so that the worst is printed last
        kind = finding.kind
        terminal.say(f"{kind.severity}: {kind.title} ({split}, {finding.count:,})")
        note = report.remedy_note(finding, split)
        _say_wrapped(kind.remedy + (f" ({note})" if note else ""))
        places = [report.place_name(place, names) for place in finding.places]
        margin = max(map(len, places), default=0)
        for name, place in zip(places, finding.places, strict=True):
            # the text is an explanation instead of an example, and is shown in full
            if kind in (LINE_COUNTS, SHIFT, FORMAT, COLUMN, BINARY, UNCLEAR_LANGUAGE):
                terminal.say(f"    {name}")
                for line in textwrap.wrap(
                    report.visible(place.text, len(place.text) * 9), WIDTH - 6
                ):
                    terminal.say(f"      {line}")
                continue
            terminal.say(
                f"    {name.ljust(margin)}  {report.visible(place.text, max(24, WIDTH - margin - 6))}".rstrip()
            )
        more = finding.count - len(finding.places)
        if more > 0:
            terminal.say(f"    and {more:,} more")
        terminal.say("")


def _say_wrapped(text: str) -> None:
    for line in textwrap.wrap(text, WIDTH - 2):
        terminal.say(f"  {line}")


def _require_report_path(path: str | None, begin: bytes) -> None:
    """Rejects an existing file that is not a report, and a missing folder, before the text is read."""
    if path and not Path(path).parent.is_dir():
        raise NmtkitError(
            f"{path}: the folder {Path(path).parent} does not exist; create it, or choose another"
        )
    if path and Path(path).is_file():
        with write_errors(path), open(path, "rb") as file:
            if file.read(len(begin)) not in (b"", begin):
                raise NmtkitError(
                    f"{path}: this file already exists and is not a report; use a different file"
                )


def _write_report(path: str, text: str) -> None:
    if path == "-":
        sys.stdout.write(text)
        return
    with write_errors(path):
        Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")
