"""Renders a diagnosis as one self-contained HTML page without scripts."""

import re
from collections.abc import Sequence

from nmtkit.data.text.faults import Severity
from nmtkit.datacheck import report
from nmtkit.datacheck.findings import Diagnosis, SplitDiagnosis
from nmtkit.datacheck.report import Histogram, ReportTable
from nmtkit.plots.pages import render

COLOURS: dict[Severity, str] = {"error": "bad", "warning": "warn", "note": "note"}
WIDTH, HEIGHT = 470, 200
"""Size of a histogram in SVG units; histograms are scaled to the page."""
LEFT, BOTTOM, TOP = 38, 24, 8
"""Margins of a histogram: for the shares, for the labels, and above the tallest bar."""
WIDEST = 240
"""Maximum number of characters of an example to show."""


def diagnosis_page(
    diagnosis: Diagnosis,
    title: str = "Data check",
    subtitle: str = "",
    tables: Sequence[ReportTable] = (),
) -> str:
    """Returns the page as text; `tables` are additional tables."""
    findings = diagnosis.findings()
    worst = findings[0][1].kind.severity if findings else "note"
    facts = {
        "title": title,
        "subtitle": subtitle,
        "colour": "good" if worst == "note" else COLOURS[worst],
        "verdict": report.verdict(diagnosis),
        "facts": [
            *((name, f"{split.pairs:,}", "pairs") for name, split in diagnosis.splits.items()),
            *(
                (f"{severity}s", f"{report.count_of(severity, diagnosis):,}", "places")
                for severity in COLOURS
            ),
        ],
        "findings": _findings(diagnosis),
        "tables": [(table, _kinds(table)) for table in tables],
        "splits": [_split(split) for split in diagnosis.splits.values() if split.src.words],
    }
    return render("datacheck/page.html", facts)


def _findings(diagnosis: Diagnosis) -> list[dict[str, object]]:
    names = report.names_of(diagnosis)
    columns = ("severity", "split", "what", "count", "share", "first")
    details: list[dict[str, object]] = []
    for row, (split, finding) in zip(report.rows(diagnosis), diagnosis.findings(), strict=True):
        more = finding.count - len(finding.places)
        details.append(
            {
                **dict(zip(columns, row, strict=True)),
                "colour": COLOURS[finding.kind.severity],
                "remedy": finding.kind.remedy,
                "note": report.remedy_note(finding, split),
                "places": [
                    # Splits the example into pieces; every other piece represents an invisible character.
                    (
                        report.place_name(one, names),
                        one.text,
                        re.split("(⟨[^⟩]*⟩)", report.visible(one.text, WIDEST)),
                    )
                    for one in finding.places
                ],
                "more": f"{more:,}" if more > 0 else "",
            }
        )
    return details


def _kinds(table: ReportTable) -> list[str]:
    """Returns the CSS class of each column; numeric columns are right-aligned."""
    columns = ([row[i] for row in table.rows] for i in range(len(table.columns)))
    return [
        "number" if all(re.fullmatch(r"[\d.,%<>–-]*", cell) for cell in column) else ""
        for column in columns
    ]


def _split(split: SplitDiagnosis) -> dict[str, object]:
    scripts = [(name, report.scripts(side)) for name, side in split.sides()]
    return {
        "name": split.name,
        "charts": [_chart(histogram) for histogram in report.histograms(split)],
        "languages": [(name, side.language) for name, side in split.sides() if side.language],
        "scripts": [(name, shares) for name, shares in scripts if shares],
        "has_mixed_scripts": any(len(shares) > 1 for _, shares in scripts),
    }


def _chart(histogram: Histogram) -> dict[str, object]:
    """Returns the positions of a histogram's lines, labels and bars for the template."""
    shares = [[count / (sum(counts) or 1) for count in counts] for _, counts in histogram.series]
    top = max((max(row) for row in shares), default=0.0) or 1.0
    step = next((step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.25) if top <= 5 * step), 0.5)
    high = step * -(-top // step)
    floor, tallest = HEIGHT - BOTTOM, HEIGHT - BOTTOM - TOP
    slot = (WIDTH - LEFT) / len(histogram.labels)
    middles = [LEFT + slot * (place + 0.5) for place in range(len(histogram.labels))]
    labels = [label.replace(" and more", "+") for label in histogram.labels]
    stride = 1 if slot >= 6.2 * max(map(len, labels)) + 2 else 2
    bar = min(slot * 0.8 / len(shares), 48)
    bars = []
    for place, (middle, label) in enumerate(zip(middles, histogram.labels, strict=True)):
        for number, (name, counts) in enumerate(histogram.series):
            if counts[place]:
                tall = max(tallest * shares[number][place] / high, 1.0)
                left = middle + bar * (number - len(shares) / 2)
                title = f"{name}, {label}: {counts[place]:,} ({report.share(counts[place], sum(counts))})"
                bars.append((number, left, floor - tall, max(bar - 1, 1), tall, title))
    return {
        "histogram": histogram,
        "lines": [
            (floor - tallest * n * step / high, f"{n * step:.0%}")
            for n in range(round(high / step) + 1)
        ],
        "labels": list(zip(middles, labels, strict=True))[::stride],
        "bars": bars,
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "floor": floor,
    }
