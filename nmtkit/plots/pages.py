"""Figure files, and self-contained HTML pages built from the templates in `templates/`.

Templates show values with `{{ value }}`: markup is escaped, and control characters become visible.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nmtkit.core.errors import NmtkitError
from nmtkit.plots.attention import AttentionPicture, HeadsPicture
from nmtkit.plots.fonts import printable

if TYPE_CHECKING:
    from jinja2 import Environment

FORMATS = (".png", ".svg", ".pdf", ".html")
PACKAGE = Path(__file__).parent.parent
DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
"""A weight is written as two of these digits: its thousandths in base 64."""
START = "<s>"


def picture_format(path: str | Path) -> str:
    """Returns the suffix of a figure file; rejects unknown formats and missing folders in advance."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        given = f"the suffix '{path.suffix}'" if path.suffix else "a name without a suffix"
        raise NmtkitError(
            f"{path}: {given} does not select a supported image format; use one of {', '.join(FORMATS)}"
        )
    if not path.parent.is_dir():
        raise NmtkitError(
            f"{path}: the folder {path.parent} does not exist; create it first, or choose another "
            "one"
        )
    return suffix


def require_html(path: str | Path) -> None:
    """Rejects, in advance, a file whose name does not end in .html."""
    if picture_format(path) != ".html":
        raise NmtkitError(f"{path}: this figure is an HTML page; use a name that ends in .html")


def check_sentences(
    sentences: Sequence[tuple[Sequence[str], Sequence[str], Sequence[NDArray[Any]]]],
    path: str | Path,
) -> None:
    """Raises an error unless there are sentences with source and target words and finite weights."""
    if not sentences:
        raise NmtkitError(f"{path}: there are no sentences to draw")
    for number, (src, tgt, weights) in enumerate(sentences, start=1):
        if not src or not tgt:
            raise NmtkitError(
                f"{path}: sentence {number} has no words on one side; remove the empty line"
            )
        if not all(np.isfinite(numbers).all() for numbers in weights):
            fault = (
                "has non-finite attention weights, so the model is unusable; use an earlier "
                "checkpoint"
            )
            raise NmtkitError(f"{path}: sentence {number} {fault}")


def write_picture(content: bytes, path: str | Path) -> None:
    """Writes a finished figure."""
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        raise NmtkitError(
            f"{path}: cannot be written ({error.strerror}); choose a folder with write permission"
        ) from error


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def asset(name: str) -> Markup:
        return Markup((PACKAGE / name).read_text(encoding="utf-8"))

    def visible(value: object) -> object:
        return value if isinstance(value, Markup) else printable(str(value))

    environment = Environment(
        loader=FileSystemLoader(PACKAGE),
        autoescape=True,
        finalize=visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["asset"] = (
        asset  # style sheets and scripts are our own and are inserted unescaped
    )
    environment.filters |= {"direction": direction, "is_upright": is_upright, "pack": pack}
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    return environment


def render(template: str, facts: Mapping[str, object]) -> str:
    """Renders a page from a template, given by its path in the package."""
    return _environment().get_template(template).render(facts) + "\n"


def framed(page: str, height: int) -> str:
    """Embeds a page in another page, such as notebook output.

    Neither page affects the style of the other. The frame is `height` pixels high, at most 900, and
    resizable.
    """
    from markupsafe import escape

    style = f"width:100%;height:{min(height, 900)}px;border:0;resize:vertical"
    return f'<iframe srcdoc="{escape(page)}" style="{style}"></iframe>'


def direction(words: Sequence[str]) -> str:
    """Returns the text direction of a line: that of the first letter with a direction."""
    kinds = (unicodedata.bidirectional(letter) for word in words for letter in word)
    first = next((kind for kind in kinds if kind in ("L", "R", "AL")), "L")
    return "ltr" if first == "L" else "rtl"


def is_upright(word: str) -> bool:
    """Returns whether to write a word upright from top to bottom, as in East Asian text, instead of rotating it."""
    return any(unicodedata.east_asian_width(c) in "WF" for c in word)


def pack(weights: NDArray[np.floating]) -> str:
    """Encodes weights in thousandths as `DIGITS[thousandths // 64]`, `DIGITS[thousandths % 64]`."""
    thousandths = np.rint(np.clip(weights, 0, 1) * 1000).astype(np.int64).ravel()
    signs = np.frombuffer(DIGITS.encode("ascii"), dtype=np.uint8)
    packed: bytes = signs[np.stack([thousandths // 64, thousandths % 64], axis=1)].tobytes()
    return packed.decode("ascii")


def attention_page(pictures: Sequence[AttentionPicture], grid: bool, css: str = "") -> str:
    """Returns the page with a section per figure (side by side in a `grid`); `css` is the user's style sheet."""
    kinds = {
        "translation": not all(p.is_summary for p in pictures),
        "summary": any(p.is_summary for p in pictures),
    }
    unit = "sentences" if kinds["translation"] else "articles"
    facts = {
        "title": f"Attention: {len(pictures)} {unit}" if len(pictures) > 1 else "Attention",
        "kinds": [kind for kind, shown in kinds.items() if shown],
        "windows": any(picture.windows for picture in pictures),
        "copying": any(picture.p_gen is not None for picture in pictures),
        "pictures": pictures,
        "grid": grid,
        "own": _as_style(css),
    }
    return render("plots/templates/attention.html", facts)


def _as_style(text: str) -> object:
    """Returns CSS that cannot end the style element that contains it."""
    from markupsafe import Markup

    return Markup(text.replace("<", ""))


def save_heads(pictures: Sequence[HeadsPicture], path: str | Path, css: str = "") -> None:
    """Writes the attention of every layer and head as one .html file.

    The page shows encoder self-attention, decoder self-attention and cross-attention: all heads as small squares, and a
    selected head, or the mean of a layer's heads, word by word. `css` is the user's style sheet.
    """
    require_html(path)
    check_sentences(
        [
            (one.src_tokens, one.tgt_tokens, (one.encoder, one.decoder, one.cross))
            for one in pictures
        ],
        path,
    )
    write_picture(heads_page(pictures, css).encode(), path)


def heads_page(pictures: Sequence[HeadsPicture], css: str = "") -> str:
    """Returns the page of `save_heads` as text."""
    sentences = [
        _sentence(picture, printable(picture.heading) or f"Sentence {number}")
        for number, picture in enumerate(pictures, start=1)
    ]
    title = (
        sentences[0]["heading"] if len(sentences) == 1 else f"Attention: {len(sentences)} sentences"
    )
    facts = {"title": title, "sentences": sentences, "own": _as_style(css)}
    return render("plots/templates/explorer.html", facts)


def _sentence(picture: HeadsPicture, heading: str) -> dict[str, Any]:
    src, tgt = (
        [printable(token) for token in tokens]
        for tokens in (picture.src_tokens, picture.tgt_tokens)
    )
    kinds = {"encoder": picture.encoder, "decoder": picture.decoder, "cross": picture.cross}
    return {
        "heading": heading,
        "src": src,
        "tgt": tgt,
        "inputs": [START, *tgt[:-1]],
        "layers": {kind: weights.shape[0] for kind, weights in kinds.items()},
        "heads": {kind: weights.shape[1] for kind, weights in kinds.items()},
        **{kind: pack(weights) for kind, weights in kinds.items()},
    }
