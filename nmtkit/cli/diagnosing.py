"""Findings about a corpus, in the terminal."""

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from nmtkit import console
from nmtkit.console import Stream
from nmtkit.core.files import write_errors
from nmtkit.corpus.faults import LINE_COUNTS, SHIFT
from nmtkit.diagnosis import report
from nmtkit.diagnosis.findings import Diagnosis, SplitDiagnosis
from nmtkit.diagnosis.report import ReportTable

WIDTH = 80
"""Columns of running text and plots."""


def show_diagnosis(diagnosis: Diagnosis, stream: Stream = "stderr") -> None:
    """The findings as a table, the worst first, and the verdict; the verdict alone if there are none."""
    rows = report.rows(diagnosis)
    if rows:
        columns = ["severity", "split", "fault", "count", "share", "first place"]
        console.table("findings", columns, rows, stream=stream)
    console.say(report.verdict(diagnosis), stderr=stream == "stderr")


def show_examination(diagnosis: Diagnosis, tables: Sequence[ReportTable] = ()) -> None:
    """The whole report: plots, tables, findings with examples and remedies, and the verdict last."""
    for number, split in enumerate(diagnosis.splits.values()):
        _show_lengths(split, plots=number == 0)
    for sheet in tables:
        console.table(sheet.title, sheet.columns, sheet.rows)
        _say_wrapped(sheet.note)
        console.say("")
    _show_places(diagnosis)
    show_diagnosis(diagnosis, "stdout")


def _show_lengths(split: SplitDiagnosis, plots: bool) -> None:
    """Lengths and scripts of a split; plots of the first split only, since splits are alike."""
    for histogram in report.histograms(split):
        if plots:
            console.histogram(f"{split.name}: {histogram.title}", histogram.labels, histogram.series, WIDTH)
        else:
            console.say(f"{split.name}: {histogram.title}")
        for note in histogram.notes:
            _say_wrapped(note)
        if plots:
            console.say("")
    for name, side in (("source", split.src), ("target", split.tgt)):
        if side.scripts:
            console.say(f"{split.name}: letters of the {name}")
            _say_wrapped(", ".join(f"{script} {part}" for script, part in report.scripts(side)))
    if split.src.words:
        console.say("")


def _show_places(diagnosis: Diagnosis) -> None:
    """Every finding with its remedy and its first places."""
    names = report.names_of(diagnosis)
    for split, finding in reversed(diagnosis.findings()):  # the worst is nearest to the end
        kind = finding.kind
        console.say(f"{kind.severity}: {kind.title} ({split}, {finding.count:,})")
        note = report.remedy_note(finding, split)
        _say_wrapped(kind.remedy + (f" ({note})" if note else ""))
        places = [report.place_name(place, names) for place in finding.places]
        margin = max(map(len, places), default=0)
        for name, place in zip(places, finding.places, strict=True):
            if kind in (LINE_COUNTS, SHIFT):  # not an example but sentences, which are told whole
                console.say(f"    {name}")
                for line in textwrap.wrap(report.visible(place.text, len(place.text) * 9), WIDTH - 6):
                    console.say(f"      {line}")
                continue
            console.say(f"    {name.ljust(margin)}  {report.visible(place.text, max(24, WIDTH - margin - 6))}".rstrip())
        more = finding.count - len(finding.places)
        if more > 0:
            console.say(f"    and {more:,} more")
        console.say("")


def _say_wrapped(text: str) -> None:
    for line in textwrap.wrap(text, WIDTH - 2):
        console.say(f"  {line}")


def write_report(path: str, text: str) -> None:
    """Writes a report to a file, or to standard output if that is "-"."""
    if path == "-":
        sys.stdout.write(text)
        return
    with write_errors(path):
        Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")
