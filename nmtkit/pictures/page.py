"""Heat-maps as one HTML page that needs nothing but a browser."""

import unicodedata
from collections.abc import Sequence

from nmtkit.pictures import summary_section
from nmtkit.pictures.attention import AttentionPicture
from nmtkit.pictures.markup import HEAD, asset, direction, text

PAGE = (
    HEAD
    + """<body>
<h1>{title}</h1>
{legends}
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
    translations = [picture for picture in pictures if not picture.is_summary]
    summaries = [picture for picture in pictures if picture.is_summary]
    unit = "articles" if not translations else "sentences"
    count = f": {len(pictures)} {unit}" if len(pictures) > 1 else ""
    legends, style, script = [], asset("base.css") + asset("layout.css"), ""
    if translations:
        legends.append(_legend(translations))
        style += asset("page.css")
        script += asset("page.js")
    if summaries:
        legends.append(summary_section.legend(summaries))
        style += asset("summary.css")
        script += asset("summary.js")
    sections = "\n".join(
        summary_section.section(number, picture) if picture.is_summary else _section(number, picture)
        for number, picture in enumerate(pictures, start=1)
    )
    return PAGE.format(
        title=f"Attention{count}",
        style=style,
        legends="\n".join(legends),
        layout=' class="grid"' if grid else "",
        sections=sections,
        script=script,
    )


def _legend(pictures: Sequence[AttentionPicture]) -> str:
    legend = '<span class="key"></span> from 0 to the largest weight of the sentence.'
    if any(picture.gold for picture in pictures):
        legend += ' <span class="box"></span> known alignment.'
    if any(picture.windows for picture in pictures):
        legend += ' <span class="ring"></span> centre of the window of local attention; hatched: outside the window.'
    return f'<p class="faint">Each row shows where the model looked while it wrote that target word. {legend}</p>'


def _section(number: int, picture: AttentionPicture) -> str:
    gold = set(picture.gold)
    heads = "".join(_column_head(word) for word in picture.src_words)
    body = []
    for t, (word, row) in enumerate(zip(picture.tgt_words, picture.weights.tolist(), strict=True)):
        cells = "".join(_cell(picture, weight, t, s, (s, t) in gold) for s, weight in enumerate(row))
        body.append(f'<tr><th scope="row" dir="auto"><span>{text(word)}</span></th>{cells}</tr>')
    heading = text(picture.heading) or f"Sentence {number}"
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
    spans = " ".join(f'<span tabindex="0" dir="auto">{text(word)}</span>' for word in words)
    return f'<p class="words {side}"><b>{name}</b><bdi dir="{direction(words)}">{spans}</bdi></p>'


def _column_head(word: str) -> str:
    # East Asian letters read upright from top to bottom; all others are turned to read from bottom to top.
    upright = ' class="upright"' if any(unicodedata.east_asian_width(c) in "WF" for c in word) else ""
    return f'<th scope="col"{upright}><span>{text(word)}</span></th>'


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
