"""An HTML page to walk through all layers and heads of a Transformer; it needs nothing but a browser."""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from nmtkit.errors import NmtkitError
from nmtkit.pictures.attention import LayeredPicture
from nmtkit.pictures.files import check_path, printable, write
from nmtkit.pictures.markup import HEAD, asset, pack

START = "<s>"

PAGE = (
    HEAD
    + """<body>
<header>
<h1 dir="auto" id="heading">{title}</h1>
<p class="faint">Each word on the left looks at words on the right. The stronger a line or a shade, the larger the
weight (its square root is drawn, so that small ones show). All weights here are rounded to 0.001.</p>
<noscript><p>This page needs JavaScript; it loads nothing from any network.</p></noscript>
</header>
<form class="controls" aria-label="What to show">
<label id="sentences">Sentence <select id="sentence"></select></label>
<fieldset id="views"><legend>Attention</legend></fieldset>
<fieldset id="layers"><legend>Layer</legend></fieldset>
<fieldset id="heads"><legend>Head</legend></fieldset>
</form>
<main>
<section id="detail" aria-label="Words">
<p id="hint" class="faint" aria-live="polite"></p>
<div id="pairs">
<h2 id="left-name"></h2><span></span><h2 id="right-name"></h2>
<ul id="left" role="listbox" aria-labelledby="left-name"></ul>
<svg id="lines" aria-hidden="true" preserveAspectRatio="none"></svg>
<ul id="right" role="listbox" aria-labelledby="right-name"></ul>
</div>
</section>
<section id="overview" aria-label="All heads">
<h2>All heads</h2>
<p class="faint">Rows of a square look, columns are looked at. Choose one by mouse or by arrow keys.</p>
<div id="squares" role="group" aria-label="All layers and heads"></div>
</section>
</main>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""
)


def save_layered(pictures: LayeredPicture | Sequence[LayeredPicture], path: str | Path) -> None:
    """Writes the attention of every layer and head as one .html file.

    The page shows encoder self-attention, decoder self-attention and cross-attention: all heads as small squares, and
    one of them, or the mean of a layer's heads, word by word. It works by mouse and by keyboard.

    Raises:
        NmtkitError: The name does not end in .html, there is nothing to draw, a weight is not between 0 and 1, or the
            file cannot be written.
    """
    if check_path(path) != ".html":
        raise NmtkitError(f"{path}: all layers and heads are shown by a page with buttons; let the name end in .html")
    pictures = [pictures] if isinstance(pictures, LayeredPicture) else list(pictures)
    if not pictures:
        raise NmtkitError(f"{path}: no sentences were given, so there is nothing to draw")
    sentences = []
    for number, picture in enumerate(pictures, start=1):
        if not picture.src_tokens or not picture.tgt_tokens:
            raise NmtkitError(f"{path}: sentence {number} has no words on one side; leave the empty line out")
        if not all(_are_weights(weights) for weights in (picture.encoder, picture.decoder, picture.cross)):
            raise NmtkitError(
                f"{path}: sentence {number} has attention weights that are not between 0 and 1; "
                "the model is broken, use an earlier checkpoint"
            )
        sentences.append(_sentence(picture, printable(picture.heading) or f"Sentence {number}"))
    data = json.dumps(sentences, ensure_ascii=False, separators=(",", ":"))
    title = sentences[0]["heading"] if len(sentences) == 1 else f"Attention: {len(sentences)} sentences"
    content = PAGE.format(
        title=escape(title),
        style=asset("base.css") + asset("explorer.css"),
        data=data.replace("<", "\\u003c"),  # lest a word end the script
        script=asset("explorer.js"),
    )
    write(content.encode(), path)


def _are_weights(weights: NDArray[Any]) -> bool:
    return bool(((weights > -1e-3) & (weights < 1 + 1e-3)).all())  # a weight that is not a number is neither


def _sentence(picture: LayeredPicture, heading: str) -> dict[str, Any]:
    src, tgt = ([printable(token) for token in tokens] for tokens in (picture.src_tokens, picture.tgt_tokens))
    return {
        "heading": heading,
        "src": src,
        "tgt": tgt,
        "inputs": [START, *tgt[:-1]],
        "layers": {kind: getattr(picture, kind).shape[0] for kind in ("encoder", "decoder", "cross")},
        "heads": {kind: getattr(picture, kind).shape[1] for kind in ("encoder", "decoder", "cross")},
        "encoder": pack(picture.encoder),
        "decoder": pack(picture.decoder),
        "cross": pack(picture.cross),
    }
