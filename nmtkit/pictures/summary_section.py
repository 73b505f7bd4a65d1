"""A summary as part of an HTML page: two texts, coloured by where the model looked."""

from collections.abc import Sequence

import numpy as np

from nmtkit.pictures.attention import AttentionPicture
from nmtkit.pictures.markup import direction, pack, text

# From these shares of the strongest shade on, a word is written in black, then in white (in dark: the other way round).
LIT = 0.1
STRONG = 0.785


def legend(pictures: Sequence[AttentionPicture]) -> str:
    """What stands at the head of a page with these summaries."""
    copying = ""
    if any(picture.p_gen is not None for picture in pictures):
        copying = (
            ' <b class="copied">Bold</b> words were copied from the article. The bar under a word shows how it came '
            'about: <span class="generate"></span> p_gen, the probability of generating it; '
            '<span class="copy"></span> the rest, of copying it.'
        )
    return (
        '<p class="faint">The article is coloured by its final coverage: how much of the attention of all words of the '
        "summary each of its words got. Point at a word of the summary, or move to it with Tab and the arrow keys, to "
        f"see where the model looked while it wrote that word.{copying}"
        "<noscript> Pointing needs JavaScript; this page loads nothing from any network.</noscript></p>"
    )


def section(number: int, picture: AttentionPicture) -> str:
    """The section of one article and its summary. Without JavaScript it shows coverage, p_gen and copied words."""
    coverage = picture.coverage
    most = float(coverage.max()) or 1.0
    heading = text(picture.heading) or f"Article {number}"
    shades = (_article_word(word, share) for word, share in zip(picture.src_words, coverage / most, strict=True))
    words = (_summary_word(picture, row) for row in range(len(picture.tgt_words)))
    label = f'"summary-{number}"', f'"article-{number}"'
    return f"""<section class="summary" aria-label="Article {number}" data-lit="{LIT}" data-strong="{STRONG}"
  data-top="{picture.top:.6g}" data-coverage="{most:.6g}" data-weights="{pack(picture.weights / picture.top)}">
<h2 dir="auto">{heading}</h2>
<div class="pair">
<div class="written">
<h3 id={label[0]}>Summary</h3>
<p class="text target" role="listbox" aria-labelledby={label[0]} dir="{direction(picture.tgt_words)}">
{" ".join(words)}</p>
<p class="scale faint"><span class="key"></span> <span class="what">coverage, 0 to {most:.2f}</span></p>
<p class="hint" aria-live="polite"></p>
</div>
<div>
<h3 id={label[1]}>Article</h3>
<p class="text source" role="listbox" aria-labelledby={label[1]} dir="{direction(picture.src_words)}">
{" ".join(shades)}</p>
</div>
</div>
</section>"""


def _article_word(word: str, share: float) -> str:
    kind = "strong" if share > STRONG else "lit" if share > LIT else ""
    shown = f' class="{kind}"' if kind else ""
    style = f' style="--w:{share:.3f}"' if share >= 0.0005 else ""
    return f'<span role="option" tabindex="-1" dir="auto"{shown}{style}>{text(word)}</span>'


def _summary_word(picture: AttentionPicture, row: int) -> str:
    word = picture.tgt_words[row]
    copied = row in picture.copied
    known, attributes = [text(word)], ""
    if copied:
        known.append("copied")
        attributes += ' class="copied"'
    if picture.p_gen is not None:
        p_gen = float(np.clip(picture.p_gen[row], 0, 1))
        known.append(f"p_gen {p_gen:.2f}")
        attributes += f' style="--p:{p_gen:.3f}"'
    if len(known) > 1:
        attributes += f' aria-label="{", ".join(known)}"'
    first = "0" if row == 0 else "-1"
    return f'<span role="option" tabindex="{first}" dir="auto"{attributes}>{text(word)}</span>'
