"""What all HTML pages share: their head, their files, and text that cannot break out of its place."""

import unicodedata
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmtkit.pictures.files import printable

# A weight is rounded to thousandths and written as two of these signs: its number of thousandths to the base of 64.
DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

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


def asset(name: str) -> str:
    """The text of a file that lies beside this one."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def text(word: str) -> str:
    """A word that holds no markup and no control characters."""
    return escape(printable(word))


def direction(words: Sequence[str]) -> str:
    """Which way the line runs, told by its first letter that has a direction."""
    kinds = (unicodedata.bidirectional(letter) for word in words for letter in word)
    first = next((kind for kind in kinds if kind in ("L", "R", "AL")), "L")
    return "ltr" if first == "L" else "rtl"


def pack(weights: NDArray[np.floating]) -> str:
    """Two signs a weight, rounded to thousandths: `DIGITS[thousandths // 64]`, `DIGITS[thousandths % 64]`."""
    thousandths = np.rint(np.clip(weights, 0, 1) * 1000).astype(np.int64).ravel()
    signs = np.frombuffer(DIGITS.encode("ascii"), dtype=np.uint8)
    packed: bytes = signs[np.stack([thousandths // 64, thousandths % 64], axis=1)].tobytes()
    return packed.decode("ascii")
