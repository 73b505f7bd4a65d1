"""Recall of given words: are the names and numbers that matter in the summary?"""

import re
from collections.abc import Sequence
from importlib.metadata import version

from nmtkit.errors import DataError
from nmtkit.metrics.metric import METRICS, Metric, Score

TERM_RECALL = METRICS.register("term-recall")(Metric("term-recall", "wanted words", needs="wanted words"))

_WORD = re.compile(r"\w+(?:(?<=\d)[.,:/-](?=\d)\w+)*")


def copied_right(summaries: Sequence[str], wanted: Sequence[Sequence[str]], lowercase: bool = False) -> Score:
    """The share of wanted words or phrases that stand in their summary, over the whole corpus: 0 to 100.

    A word is a run of letters and digits; between digits ".", ",", ":", "/" and "-" belong to it, so that 5 is not
    found in 3.5 nor in 2-5, but Smith is found in "Smith's". The words of a phrase must follow each other;
    punctuation between them is ignored. A word wanted twice is asked for once only.

    Args:
        summaries: one text per example.
        wanted: what each of them should hold; may be empty for an example.
        lowercase: whether case is ignored.

    Raises:
        DataError: different numbers of lines, a wanted phrase without a letter or digit, or nothing wanted at all.
    """
    if len(summaries) != len(wanted):
        raise DataError(f"there are {len(summaries)} summaries, but {len(wanted)} lists of wanted words")
    found = n_wanted = 0
    for number, (summary, phrases) in enumerate(zip(summaries, wanted, strict=True), start=1):
        text = _joined(summary, lowercase)
        for phrase in dict.fromkeys(phrases):
            words = _joined(phrase, lowercase)
            if not words.strip():
                raise DataError(f"example {number}: the wanted {phrase!r} holds no letter or digit")
            n_wanted += 1
            found += words in text
    if not n_wanted:
        raise DataError("no example has a wanted word; there is nothing to look for")
    case = "lc" if lowercase else "mixed"
    signature = f"wanted:{n_wanted}|examples:{sum(map(bool, wanted))}|case:{case}|version:nmtkit-{version('nmtkit')}"
    return Score(TERM_RECALL.title, 100 * found / n_wanted, signature)


def _joined(text: str, lowercase: bool) -> str:
    """The words with a space before and after each, so that a phrase of whole words is a substring."""
    return f" {' '.join(_WORD.findall(text.lower() if lowercase else text))} "
