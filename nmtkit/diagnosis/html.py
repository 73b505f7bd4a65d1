"""A diagnosis as one HTML page that needs nothing but a browser, and no script."""

import re
from collections.abc import Sequence
from pathlib import Path

from nmtkit.diagnosis import report
from nmtkit.diagnosis.findings import Diagnosis, Finding, Severity, SplitDiagnosis
from nmtkit.diagnosis.report import Histogram, Sheet
from nmtkit.pictures.markup import HEAD, asset, direction, text

COLOURS: dict[Severity, str] = {"error": "bad", "warning": "warn", "note": "note"}
WIDTH, HEIGHT = 470, 200
"""Of a histogram, in its own units; it grows and shrinks with the page."""
LEFT, BOTTOM, TOP = 38, 24, 8
"""Room for the shares, for the labels, and above the tallest bar."""
EXAMPLE_WIDTH = 240
"""Characters of an example that are shown."""

PAGE = (
    HEAD
    + """<body>
<h1>{title}</h1>
<p class="faint">{subtitle}</p>
<p class="verdict {colour}">{verdict}</p>
{facts}
{findings}
{sheets}
{plots}
<footer class="faint">Written by nmtkit check. Lines and bytes are counted from 1.</footer>
</body>
</html>
"""
)


def page(diagnosis: Diagnosis, title: str = "Data check", subtitle: str = "", sheets: Sequence[Sheet] = ()) -> str:
    """The page as text.

    Args:
        diagnosis: what was found.
        title: what was looked at.
        subtitle: a line below it.
        sheets: further tables.
    """
    found = diagnosis.findings()
    worst = found[0][1].kind.severity if found else "note"
    colour = {"error": "bad", "warning": "warn", "note": "good"}[worst]
    return PAGE.format(
        title=text(title),
        style=asset("base.css") + Path(__file__).with_name("page.css").read_text(encoding="utf-8"),
        subtitle=text(subtitle),
        colour=colour,
        verdict=text(report.verdict(diagnosis)),
        facts=_facts(diagnosis),
        findings=_findings(diagnosis, found),
        sheets="\n".join(_sheet(sheet) for sheet in sheets),
        plots="\n".join(_split(split) for split in diagnosis.splits.values() if split.src.words),
    )


def _facts(diagnosis: Diagnosis) -> str:
    facts = [(name, f"{split.pairs:,}", "pairs") for name, split in diagnosis.splits.items()]
    for severity in ("error", "warning", "note"):
        facts.append((f"{severity}s", f"{report.count_of(severity, diagnosis):,}", "places"))
    if diagnosis.seconds:
        facts.append(("time", f"{diagnosis.seconds:.1f}", "seconds"))
    items = "".join(f"<div><dt>{text(a)}</dt><dd>{b} <small>{c}</small></dd></div>" for a, b, c in facts)
    return f'<dl class="facts">{items}</dl>'


def _findings(diagnosis: Diagnosis, found: Sequence[tuple[str, Finding]]) -> str:
    if not found:
        return ""
    lines = []
    for number, (severity, split, what, count, part, where) in enumerate(report.rows(diagnosis), start=1):
        lines.append(
            f'<tr><td><span class="badge {COLOURS[severity]}">{severity}</span></td><td>{text(split)}</td>'
            f'<td><a href="#f{number}">{text(what)}</a></td><td class="number">{count}</td>'
            f'<td class="number">{text(part)}</td><td class="where">{text(where)}</td></tr>'
        )
    names = report.short_names(report.files_of(diagnosis))
    details = "\n".join(_finding(number, *one, names) for number, one in enumerate(found, start=1))
    return f"""<section aria-label="Findings"><h2 style="margin-top:0">What was found</h2><div class="scroll"><table>
<thead><tr><th>how bad</th><th>split</th><th>what</th><th class="number">how many</th><th class="number">share</th>
<th>first place</th></tr></thead>
<tbody>
{chr(10).join(lines)}
</tbody></table></div></section>
<h2>Where, and what to do</h2>
{details}"""


def _finding(number: int, split: str, finding: Finding, names: dict[str, str]) -> str:
    kind = finding.kind
    places = "\n".join(
        f'<li><span class="where">{text(report.place_name(place, names))}</span>{_example(place.text)}</li>'
        for place in finding.places
    )
    more = finding.count - len(finding.places)
    rest = f'<li><span class="faint">and {more:,} more</span></li>' if more > 0 else ""
    note = report.remedy_note(finding, split)
    remedy = re.sub("`([^`]*)`", r"<code>\1</code>", text(kind.remedy))
    return f"""<section class="finding" id="f{number}"><header>
<span class="badge {COLOURS[kind.severity]}">{kind.severity}</span><h3>{text(kind.title)}</h3>
<span class="faint">{text(split)} · {finding.count:,}</span></header>
<p>{remedy}{f' <span class="faint">({text(note)})</span>' if note else ""}</p>
<ol>{places}{rest}</ol></section>"""


def _example(given: str) -> str:
    """The text of a place, what cannot be seen marked; it runs in its own direction."""
    shown = text(report.visible(given, EXAMPLE_WIDTH))
    return (
        f'<bdi dir="{direction([given])}">{re.sub("⟨[^⟩]*⟩", lambda hidden: f"<mark>{hidden[0]}</mark>", shown)}</bdi>'
    )


def _sheet(sheet: Sheet) -> str:
    numeric = [all(re.fullmatch(r"[\d.,%<>–-]*", row[i]) for row in sheet.rows) for i in range(len(sheet.columns))]
    kinds = [' class="number"' if right else "" for right in numeric]
    head = "".join(f"<th{kind}>{text(name)}</th>" for kind, name in zip(kinds, sheet.columns, strict=True))
    body = "\n".join(
        "<tr>" + "".join(f"<td{kind}>{text(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in sheet.rows
    )
    note = f'<p class="faint">{text(sheet.note)}</p>' if sheet.note else ""
    return f"""<h2>{text(sheet.title)}</h2>
<section aria-label="{text(sheet.title)}">{note}<div class="scroll"><table>
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody></table></div></section>"""


# ------------------------------------------------------------------------------------------------------------ pictures


def _split(split: SplitDiagnosis) -> str:
    plots = "\n".join(_histogram(one) for one in report.histograms(split))
    return f"""<h2>{text(split.name)}: lengths and scripts</h2>
<div class="plots">
{plots}
{_scripts(split)}
</div>"""


def _histogram(histogram: Histogram) -> str:
    names = [name for name, _ in histogram.series]
    legend = "".join(f'<span><i class="s{n}"></i>{text(name)}</span>' for n, name in enumerate(names))
    notes = "".join(f'<p class="faint">{text(note)}</p>' for note in histogram.notes)
    return f"""<section aria-label="{text(histogram.title)}"><h3>{text(histogram.title)}</h3>
{f'<p class="legend">{legend}</p>' if len(names) > 1 else ""}
{_bars(histogram)}
{notes}</section>"""


def _bars(histogram: Histogram) -> str:
    """Bars that stand, those of one label beside each other, over an axis of shares."""
    shares = [[count / (sum(counts) or 1) for count in counts] for _, counts in histogram.series]
    top = max((max(row) for row in shares), default=0.0) or 1.0
    step = next((step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.25) if top <= 5 * step), 0.5)
    high = step * -(-top // step)
    floor, room = HEIGHT - BOTTOM, HEIGHT - BOTTOM - TOP
    parts = []
    for line in range(round(high / step) + 1):
        y = floor - room * line * step / high
        kind = "axis" if line == 0 else "grid"
        parts.append(f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{line * step:.0%}</text>')
    slot = (WIDTH - LEFT) / len(histogram.labels)
    bar = min(slot * 0.8 / len(shares), 48)
    labels = [label.replace(" and more", "+") for label in histogram.labels]
    stride = 1 if slot >= 6.2 * max(map(len, labels)) + 2 else 2
    for place, label in enumerate(labels):
        middle = LEFT + slot * (place + 0.5)
        if place % stride == 0:
            parts.append(f'<text x="{middle:.1f}" y="{floor + 16}" text-anchor="middle">{text(label)}</text>')
        for number, row in enumerate(shares):
            tall = room * row[place] / high
            if not tall:
                continue
            tall = max(tall, 1.0)
            left = middle + bar * (number - len(shares) / 2)
            name, counts = histogram.series[number]
            said = f"{name}, {histogram.labels[place]}: {counts[place]:,} ({report.share(counts[place], sum(counts))})"
            parts.append(
                f'<rect class="s{number}" x="{left:.1f}" y="{floor - tall:.1f}" width="{max(bar - 1, 1):.1f}" '
                f'height="{tall:.1f}" rx="1.5"><title>{text(said)}</title></rect>'
            )
    said = f"Histogram of {histogram.title}"
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(said)}">{"".join(parts)}</svg>'


def _scripts(split: SplitDiagnosis) -> str:
    sides = [("source", split.src), ("target", split.tgt)]
    blocks = []
    for number, (name, side) in enumerate(sides):
        lines = "".join(
            f'<div class="script"><span>{text(script)}</span><i class="s{number}" style="width:{part}"></i>'
            f'<span class="number">{part}</span></div>'
            for script, part in report.scripts(side)
        )
        if lines:
            blocks.append(f'<p class="faint">{name}</p>{lines}')
    return f'<section aria-label="scripts"><h3>letters by script</h3>{"".join(blocks)}</section>' if blocks else ""
