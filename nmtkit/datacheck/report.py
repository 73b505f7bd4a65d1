"""The content of diagnosis reports: rows, places, histograms and verdict."""

import math
import os
import unicodedata
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from nmtkit.data.text.faults import (
    EMPTY,
    ENCODING,
    IN_TRAIN,
    UTF16,
    FaultKind,
    FaultLocation,
    Severity,
)
from nmtkit.datacheck.findings import SEVERITIES, Diagnosis, Finding, Side, SplitDiagnosis

CONTROL_NAMES = {
    "\0": "NUL",
    "\t": "TAB",
    "\n": "LF",
    "\v": "VT",
    "\f": "FF",
    "\r": "CR",
    "\x1b": "ESC",
    "\x7f": "DEL",
}
HIDDEN_CATEGORIES = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")
"""Categories of invisible characters and of characters that would break a report line."""
HELD_OUT_SPLITS = ("valid", "test")
MAX_BARS = 14
"""Maximum number of bars in a length histogram."""
BAR_WIDTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Preferred widths of a bar in words or tokens."""
RATIO_EDGES = (0, 1, 2, 3, 5, 7, 9, 11, 13, 16, 20, 30, 50)
"""Lower edges of the length-ratio bars in tenths."""
MIN_SCRIPT_SHARE = 0.001
"""Scripts with a smaller share of letters are grouped."""


def visible(text: str, width: int = 60) -> str:
    """Writes out invisible characters, and truncates the text to `width` characters with "…".

    A non-UTF-8 byte (a lone surrogate in Python) is written as ⟨byte E9⟩.
    """
    shown = "".join(map(_visible, text[: width + 1]))
    return shown if len(shown) <= width else shown[: width - 1] + "…"


def _visible(letter: str) -> str:
    if "\udc80" <= letter <= "\udcff":
        return f"⟨byte {ord(letter) - 0xDC00:02X}⟩"
    if unicodedata.category(letter) in HIDDEN_CATEGORIES:
        return f"⟨{CONTROL_NAMES.get(letter, f'U+{ord(letter):04X}')}⟩"
    return letter


def storable(text: str) -> str:
    r"""Returns the text in a form that a file can store: lone surrogates, which are non-UTF-8 bytes, become \xe9."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # a surrogate that does not represent a byte
        return text.encode("utf-8", "backslashreplace").decode("utf-8")


def short_names(files: Iterable[str]) -> dict[str, str]:
    """Returns short file names: without common folders, or without any folder if the names remain unique."""
    paths = list(dict.fromkeys(files))
    bases = [os.path.basename(path) for path in paths]
    if len(set(bases)) == len(paths):
        return dict(zip(paths, bases, strict=True))
    whole = [os.path.abspath(path) for path in paths]
    shared = os.path.commonpath([os.path.dirname(path) for path in whole])
    return {path: os.path.relpath(full, shared) for path, full in zip(paths, whole, strict=True)}


def place_name(place: FaultLocation, names: dict[str, str]) -> str:
    """Returns FILE:LINE or FILE:LINE:BYTE, the compiler format that editors can jump to."""
    name = names.get(place.file, place.file)
    return f"{name}:{place.line}" if place.byte is None else f"{name}:{place.line}:{place.byte}"


def names_of(diagnosis: Diagnosis) -> dict[str, str]:
    """Returns short names for all files in findings."""
    return short_names(
        place.file for _, finding in diagnosis.findings() for place in finding.places
    )


def share(count: int, total: int) -> str:
    """Returns a percentage that never rounds a part to 0% or 100%; empty for a total of 0."""
    if not total:
        return ""
    percent = 100 * count / total
    if 0 < percent < 0.1:
        return f"{percent:.1g}%" if percent >= 1e-4 else "0.0001%"
    return f"{min(percent, 99.9) if count < total else percent:.1f}%"


def count_of(severity: Severity, diagnosis: Diagnosis) -> int:
    """Returns the number of faults with this severity."""
    return sum(
        finding.count for _, finding in diagnosis.findings() if finding.kind.severity == severity
    )


def has_problems(diagnosis: Diagnosis, strict: bool = False, fixed: bool = False) -> bool:
    """Returns whether to fail: `strict` includes warnings, `fixed` excludes what `--fix` handles."""
    bad = ("error", "warning") if strict else ("error",)
    return any(
        finding.kind.severity in bad and not (fixed and remedy_note(finding, split))
        for split, finding in diagnosis.findings()
    )


def rows(diagnosis: Diagnosis) -> list[tuple[Severity, str, str, str, str, str]]:
    """Returns the findings as table rows, worst first: severity, split, title, count, share, first place."""
    names = names_of(diagnosis)
    table: list[tuple[Severity, str, str, str, str, str]] = []
    for split, finding in diagnosis.findings():
        first = place_name(finding.places[0], names) if finding.places else ""
        pairs = diagnosis.splits[split].pairs
        # some faults are counted in lines of files
        of_all = share(finding.count, pairs) if finding.count <= pairs else ""
        table.append(
            (finding.kind.severity, split, finding.kind.title, f"{finding.count:,}", of_all, first)
        )
    return table


def verdict(diagnosis: Diagnosis) -> str:
    """Returns the result in one sentence."""
    pairs = sum(split.pairs for split in diagnosis.splits.values())
    unit = "pair" if any(split.tgt.words for split in diagnosis.splits.values()) else "line"
    read = f"{pairs:,} {unit if pairs == 1 else unit + 's'}"
    errors, warnings = _counted("error", diagnosis), _counted("warning", diagnosis)
    if errors:
        return (
            f"Not ready for training: {errors} in {read}{f', and {warnings}' if warnings else ''}."
        )
    if warnings:
        return f"No errors in {read}, but check {warnings} before training."
    if diagnosis.findings():
        return f"No errors and no warnings in {read}."
    return f"No problems found in {read}."


def _counted(severity: Severity, diagnosis: Diagnosis) -> str:
    """Returns the number of faults and of their kinds as text; empty if there are none."""
    if not (count := count_of(severity, diagnosis)):
        return ""
    kinds = len(
        {
            finding.kind.name
            for _, finding in diagnosis.findings()
            if finding.kind.severity == severity
        }
    )
    return f"{count:,} {severity}{'s' if count != 1 else ''}" + (
        f" of {kinds} kinds" if kinds > 1 else ""
    )


def drops_pairs(kind: FaultKind, split: str) -> bool:
    """Returns whether `--fix` drops pairs with this fault.

    Valid and test lose only unreadable pairs and pairs with an empty side, so that results stay
    comparable.
    """
    return kind.fix_drops and (
        split not in HELD_OUT_SPLITS or kind.severity == "error" or kind.name == EMPTY.name
    )


def remedy_note(finding: Finding, split: str) -> str:
    """Returns what `--fix` does about a finding; empty if it does nothing."""
    if finding.kind.name == UTF16.name:
        return "--fix converts it"
    if finding.kind.name == ENCODING.name:
        return "--fix converts the file or drops the line"
    if finding.kind.fix_repairs:
        return "--fix repairs it"
    if finding.kind.name == IN_TRAIN.name:
        return "--fix removes it from train"
    return "--fix drops it" if drops_pairs(finding.kind, split) else ""


@dataclass(frozen=True)
class ReportTable:
    """A table of results other than faults."""

    title: str
    columns: tuple[str, ...]
    """Column headings."""
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    """A sentence that explains how to read it."""


@dataclass(frozen=True)
class Histogram:
    """Number of lines by length for one or two sides."""

    title: str
    """The counted quantity, such as "words per line"."""
    labels: tuple[str, ...]
    """Labels of the bars, such as "5–9"."""
    series: tuple[tuple[str, tuple[int, ...]], ...]
    """Name of each side, and its number of lines per bar."""
    notes: tuple[str, ...] = ()
    """A sentence about each side."""


def histograms(split: SplitDiagnosis) -> list[Histogram]:
    """Returns a split's histograms: words, tokens if any, and length ratios; none if it is empty."""
    sides = split.sides()
    words = [(name, side.words) for name, side in sides]
    tokens = [(name, side.tokens) for name, side in sides if side.tokens]
    lengths = [
        _lengths(f"{unit} per line", counts)
        for unit, counts in (("words", words), ("tokens", tokens))
        if counts
    ]
    return lengths + ([_ratios(split.ratios)] if split.ratios else [])


def percentile(counts: Counter[int], part: float) -> int:
    """Returns the smallest key that at most `1 - part` of all lines exceed."""
    keys = sorted(counts)
    sums = accumulate(counts[key] for key in keys)
    return next(
        (key for key, below in zip(keys, sums, strict=True) if below >= part * counts.total()), 0
    )


def _lengths(title: str, sides: Sequence[tuple[str, Counter[int]]]) -> Histogram:
    top = max(percentile(counts, 0.99) for _, counts in sides)
    width = next(
        (width for width in BAR_WIDTHS if top < width * (MAX_BARS - 1)),
        math.ceil((top + 1) / (MAX_BARS - 1)),
    )
    end = max(max(counts) for _, counts in sides)
    bars = min(top // width + 2, end // width + 1)
    edges = range(0, bars * width, width)
    labels = [f"{low}" if width == 1 else f"{low}–{low + width - 1}" for low in edges]
    if end >= bars * width:
        labels[-1] = f"{edges[-1]} and more"
    series, notes = [], []
    for name, counts in sides:
        series.append((name, _heights(counts, edges)))
        mean = sum(length * lines for length, lines in counts.items()) / max(1, counts.total())
        notes.append(
            f"{name}: mean {mean:.1f}, median {percentile(counts, 0.5)}, 99% at most "
            f"{percentile(counts, 0.99)}, maximum {max(counts)}"
        )
    return Histogram(title, tuple(labels), tuple(series), tuple(notes))


def _heights(counts: Counter[int], edges: Sequence[int]) -> tuple[int, ...]:
    """Returns the number of lines per bar; bars begin at the edges, and the last bar is open-ended."""
    heights = [0] * len(edges)
    for key, lines in counts.items():
        heights[bisect(edges, key) - 1] += lines
    return tuple(heights)


def _ratios(ratios: Counter[int]) -> Histogram:
    heights = _heights(ratios, RATIO_EDGES)
    labels = [f"{low / 10:g}–{high / 10:g}" for low, high in pairwise(RATIO_EDGES)]
    labels.append(f"{RATIO_EDGES[-1] / 10:g} and more")
    bars = np.flatnonzero(heights)
    shown, middle = slice(bars[0], bars[-1] + 1), percentile(ratios, 0.5) / 10
    return Histogram(
        "target words per source word",
        tuple(labels[shown]),
        (("pairs", heights[shown]),),
        (f"half of the pairs have a ratio below {middle + 0.1:.1f}",),
    )


def scripts(side: Side) -> list[tuple[str, str]]:
    """Returns a side's scripts with their shares, most frequent first, rare ones grouped."""
    total = side.scripts.total()
    counts = {
        name: count
        for name, count in side.scripts.most_common()
        if count >= MIN_SCRIPT_SHARE * total
    }
    if rest := total - sum(counts.values()):
        counts["others"] = rest
    return [(name, share(count, total)) for name, count in counts.items()]


def as_json(diagnosis: Diagnosis, strict: bool = False) -> dict[str, Any]:
    """Returns the whole diagnosis as plain values for JSON."""
    return {
        "wrong": has_problems(diagnosis, strict),
        "verdict": verdict(diagnosis),
        **{f"{severity}s": count_of(severity, diagnosis) for severity in SEVERITIES},
        "splits": {name: _split_values(split) for name, split in diagnosis.splits.items()},
    }


def _split_values(split: SplitDiagnosis) -> dict[str, Any]:
    findings = []
    for finding in split.findings.values():
        kind = finding.kind
        places = [vars(place) | {"text": storable(place.text)} for place in finding.places]
        findings.append(
            {
                "kind": kind.name,
                "severity": kind.severity,
                "title": kind.title,
                "remedy": kind.remedy,
                "drops": kind.fix_drops,
                "mends": kind.fix_repairs,
                "count": finding.count,
                "places": places,
            }
        )
    sides = {"src": _side_values(split.src), "tgt": _side_values(split.tgt)}
    return {"pairs": split.pairs, **sides, "ratios": _by_key(split.ratios), "findings": findings}


def _side_values(side: Side) -> dict[str, Any]:
    histograms = {name: _by_key(getattr(side, name)) for name in ("words", "tokens")}
    return vars(side) | histograms | {"scripts": dict(side.scripts.most_common())}


def _by_key(counts: Counter[int]) -> dict[str, int]:
    return {str(key): counts[key] for key in sorted(counts)}
