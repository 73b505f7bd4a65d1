"""Heat-maps as one HTML page that needs nothing but a browser."""

import unicodedata
from collections.abc import Sequence
from html import escape
from pathlib import Path

from nmtkit.pictures.attention import AttentionPicture
from nmtkit.pictures.files import printable

# The policy forbids a page to load anything from anywhere, whatever a sentence holds.
HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
"""

PAGE = (
    HEAD
    + """<body>
<h1>{title}</h1>
<p class="faint">Each row shows where the model looked while it wrote that target word. {legend}</p>
<main{layout}>
{sections}
</main>
<script>{script}</script>
</body>
</html>
"""
)

HINT = "Point at a word, or move to it with the Tab key, to see its weights."


def page(pictures: Sequence[AttentionPicture], grid: bool) -> str:
    """The page as text: a section for each sentence pair, with its words and its table of weights.

    Args:
        pictures: What to show.
        grid: Whether sections stand side by side where the window is wide enough.
    """
    count = f": {len(pictures)} sentences" if len(pictures) > 1 else ""
    legend = '<span class="key"></span> from 0 to the largest weight of the sentence.'
    if any(picture.gold for picture in pictures):
        legend += ' <span class="box"></span> known alignment.'
    if any(picture.windows for picture in pictures):
        legend += ' <span class="ring"></span> centre of the window of local attention; hatched: outside the window.'
    sections = "\n".join(_section(number, picture) for number, picture in enumerate(pictures, start=1))
    return PAGE.format(
        title=f"Attention{count}",
        style=asset("base.css") + asset("page.css"),
        legend=legend,
        layout=' class="grid"' if grid else "",
        sections=sections,
        script=asset("page.js"),
    )


def asset(name: str) -> str:
    """The text of a file that lies beside this one."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _section(number: int, picture: AttentionPicture) -> str:
    gold = set(picture.gold)
    heads = "".join(_column_head(word) for word in picture.src_words)
    body = []
    for t, (word, row) in enumerate(zip(picture.tgt_words, picture.weights.tolist(), strict=True)):
        cells = "".join(_cell(picture, weight, t, s, (s, t) in gold) for s, weight in enumerate(row))
        body.append(f'<tr><th scope="row" dir="auto"><span>{_text(word)}</span></th>{cells}</tr>')
    heading = _text(picture.heading) or f"Sentence {number}"
    return f"""<section aria-label="Sentence {number}">
<h2 dir="auto">{heading}</h2>
{_line("source", "src", picture.src_words)}
{_line("target", "tgt", picture.tgt_words)}
<p class="hint" aria-live="polite">{HINT}</p>
<div class="scroll"><table>
<thead><tr><td></td>{heads}</tr></thead>
<tbody>
{"".join(row + chr(10) for row in body)}</tbody>
</table></div>
</section>"""


def _line(name: str, side: str, words: Sequence[str]) -> str:
    spans = " ".join(f'<span tabindex="0" dir="auto">{_text(word)}</span>' for word in words)
    return f'<p class="words {side}"><b>{name}</b><bdi dir="{_direction(words)}">{spans}</bdi></p>'


def _direction(words: Sequence[str]) -> str:
    """Which way the line runs, told by its first letter that has a direction."""
    kinds = (unicodedata.bidirectional(letter) for word in words for letter in word)
    first = next((kind for kind in kinds if kind in ("L", "R", "AL")), "L")
    return "ltr" if first == "L" else "rtl"


def _column_head(word: str) -> str:
    # East Asian letters read upright from top to bottom; all others are turned to read from bottom to top.
    upright = ' class="upright"' if any(unicodedata.east_asian_width(c) in "WF" for c in word) else ""
    return f'<th scope="col"{upright}><span>{_text(word)}</span></th>'


def _cell(picture: AttentionPicture, weight: float, row: int, column: int, gold: bool) -> str:
    shade = weight / picture.top
    classes = [name for name, on in (("strong", shade > 0.7), ("gold", gold)) if on]
    values = [("w", shade)] if shade >= 0.001 else []
    if picture.windows:
        window = picture.windows[row]
        if picture.outside(row, column):
            classes.append("outside")
        place = window.centre - column + 0.5  # in widths of this cell, from its left edge
        if 0 <= place < 1:
            classes.append("centre")
            values.append(("centre", place))
    style = ";".join(f"--{name}:{value:.3f}" for name, value in values)
    attributes = (f' class="{" ".join(classes)}"' if classes else "") + (f' style="{style}"' if style else "")
    number = f"{weight:.2f}" if weight >= 0.005 else ""
    return f"<td{attributes}>{number}</td>"


def _text(word: str) -> str:
    return escape(printable(word))
