"""Detects the script and the language of lines.

Languages are identified by py3langid, a fork of langid.py (Lui and Baldwin 2012, "langid.py: An
Off-the-shelf Language Identification Tool"): naive Bayes over byte n-grams for about 140 languages,
with log-probabilities in nats. The language of a side is learned from a sample. A line is
suspicious if another language scores better by a margin.
"""

import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nmtkit.data.text.hashes import Mask
from nmtkit.data.text.scripts import SCRIPTS
from nmtkit.datacheck.characters import TextArrays

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

# Scripts.
MIN_SCRIPT_SHARE = 0.02
"""A script with at least this share of a side's letters belongs to the side."""
MIN_FOREIGN_LETTERS, MIN_LATIN_LETTERS = 3, 25
"""Minimum number of letters in a foreign script, and in Latin script; fewer may be symbols, initials or Latin names."""

# Languages. The margins were tested on public corpora, and on the Declaration of Human Rights in 530 languages.
NO_LANGUAGE = "zxx"
"""Code for text without language, such as numbers."""
MIN_LINES = 50
"""Minimum number of lines for learning the language of a side."""
MIN_LETTERS = 10
"""Lines with fewer letters are not examined, because they are mostly names or single words."""
EXAMINED_CHARACTERS = 300
"""Number of characters examined at the beginning of a line; a whole article would take milliseconds."""
MARGIN, MARGIN_PER_CHARACTER = 15.0, 0.5
"""Margins in nats by which another language must beat the language of the side; the larger margin applies. The margin
per character excludes lines with foreign names and quotations, and most lines in unsupported languages.
"""
SWAPPED_MARGIN = 5.0
"""Margin in nats by which the other side's language must score better on both lines of a pair."""
MAX_DOUBTED = 0.05
"""If a larger share of a sample is suspicious, the side is mixed or in an unsupported language."""
MIN_SWAPPED = 10
"""Minimum number of swapped pairs that indicate swapped files."""


def main_scripts(letters: Mapping[int, int]) -> frozenset[int]:
    """Returns the scripts of a side from its letter counts per script."""
    total = sum(letters.values())
    scripts = {script for script, count in letters.items() if count >= MIN_SCRIPT_SHARE * total}
    japanese = {SCRIPTS.index(name) for name in ("Han", "Hiragana", "Katakana")}
    if len(scripts & japanese) > 1:
        scripts |= japanese
    return frozenset(scripts)


def in_foreign_script(text: TextArrays, scripts: frozenset[int]) -> Mask:
    """Marks lines, `(n,)`, whose letters are mostly outside the side's scripts; marks none if `scripts` is empty."""
    foreign = np.zeros(len(text.lines), dtype=bool)
    if not scripts:
        return foreign
    usual = np.zeros_like(text.lengths)
    for script, letters in text.letters.items():
        if script in scripts:
            usual += letters
    for script, letters in text.letters.items():
        if script in scripts:
            continue
        if SCRIPTS[script] == "Latin":  # texts of all scripts contain Latin names and terms
            foreign |= (letters >= MIN_LATIN_LETTERS) & (letters > 10 * usual)
        else:
            foreign |= (letters >= MIN_FOREIGN_LETTERS) & (letters > 3 * usual)
    return foreign


@dataclass(frozen=True)
class LanguageDoubts:
    """The suspicious lines of n pairs as disjoint masks `(n,)`."""

    swapped: Mask
    """Pairs in which both lines are in the other side's language."""
    other_side: dict[str, Mask]
    """Lines of "src" and "tgt" in the other side's language."""
    third: dict[str, Mask]
    """Lines of "src" and "tgt" in a third language."""


class Languages:
    """Learns the languages of a corpus's sides and finds lines in other languages."""

    def __init__(self, sample: Mapping[str, TextArrays]) -> None:
        """Learns the languages from a sample of "src" and, if there are targets, of "tgt"."""
        self.codes: dict[str, str] = {}
        """Language codes by side, such as "de"; sides that are not examined are missing."""
        self.unclear: dict[str, str] = {}
        """Sides that cannot be examined, with an explanation."""
        try:
            self._identifier = _load_identifier()
        except OSError as fault:
            reason = (
                f"py3langid cannot unpack its model in {tempfile.gettempdir()} ({fault.strerror}); "
                "free some space, or set TMPDIR to another folder"
            )
            self.unclear = dict.fromkeys(sample, reason)
            return
        for side, text in sample.items():
            self._learn(side, text)

    def _learn(self, side: str, text: TextArrays) -> None:
        rows = np.flatnonzero(text.letter_counts() >= MIN_LETTERS).tolist()
        if len(rows) < MIN_LINES:
            return
        scores = [self._scores(text.lines[row]) for row in rows]
        # Sums differences from the best language, because a line without known n-grams has only lowest-float scores.
        totals: dict[str, float] = defaultdict(float)
        for line_scores in scores:
            best_score = max(line_scores.values())
            for code, score in line_scores.items():
                totals[code] += score - best_score
        language = _best(totals)
        doubted: Counter[str] = Counter()
        for row, line_scores in zip(rows, scores, strict=True):
            best = _best(line_scores)
            if line_scores[best] - line_scores[language] > _required_margin(text.lines[row]):
                doubted[best] += 1
        if doubted.total() <= MAX_DOUBTED * len(rows):
            self.codes[side] = language
            return
        common = ", ".join(code for code, _ in doubted.most_common(3))
        self.unclear[side] = (
            f"{doubted.total() / len(rows):.0%} of a sample of {len(rows):,} lines do not seem to "
            f"be in the most common language, {language}, but in {common}"
        )

    def doubts(self, texts: Mapping[str, TextArrays], count: int) -> LanguageDoubts:
        """Examines the first `count` lines of "src" and, if there are targets, of "tgt"."""
        better: dict[str, Mask] = {}
        other_side: dict[str, Mask] = {}
        third: dict[str, Mask] = {}
        for side, text in texts.items():
            better[side], other_side[side], third[side] = self._doubts_of_side(side, text, count)
        swapped = np.zeros(len(texts["src"].lines), dtype=bool)
        if "tgt" in texts:
            swapped = better["src"] & better["tgt"]
        for side in texts:
            other_side[side] &= ~swapped
            third[side] &= ~swapped
        return LanguageDoubts(swapped, other_side, third)

    def are_swapped(self, texts: Mapping[str, TextArrays]) -> bool:
        """Returns whether most pairs of another split, or a sample of it, are swapped."""
        swapped = self.doubts(texts, len(texts["src"].lines)).swapped
        return bool(swapped.sum() >= MIN_SWAPPED and swapped.mean() > 0.5)

    def _doubts_of_side(self, side: str, text: TextArrays, count: int) -> tuple[Mask, Mask, Mask]:
        """Returns which lines may be swapped, are in the other side's language, or are in a third language."""
        may_be_swapped = np.zeros(len(text.lines), dtype=bool)
        other_side = np.zeros_like(may_be_swapped)
        third = np.zeros_like(may_be_swapped)
        language = self.codes.get(side)
        other = self.codes.get("tgt" if side == "src" else "src")
        if language is None:
            return may_be_swapped, other_side, third
        for row in np.flatnonzero(text.letter_counts()[:count] >= MIN_LETTERS).tolist():
            line = text.lines[row]
            best, _ = self._identifier.classify(line[:EXAMINED_CHARACTERS])
            if best in (language, NO_LANGUAGE):
                continue  # true for nearly all lines; ranking the languages takes longer
            scores = self._scores(line)
            required = _required_margin(line)
            is_doubted = scores[best] - scores[language] > required
            if other is not None:
                may_be_swapped[row] = scores[other] - scores[language] > SWAPPED_MARGIN
                other_side[row] = is_doubted and scores[best] - scores[other] < SWAPPED_MARGIN
            third[row] = is_doubted and not other_side[row]
        return may_be_swapped, other_side, third

    def _scores(self, line: str) -> dict[str, float]:
        scores = dict(self._identifier.rank(line[:EXAMINED_CHARACTERS]))
        del scores[NO_LANGUAGE]
        return scores


def _best(scores: Mapping[str, float]) -> str:
    return max(scores, key=lambda code: scores[code])


def _required_margin(line: str) -> float:
    return max(MARGIN, MARGIN_PER_CHARACTER * min(len(line), EXAMINED_CHARACTERS))


def _load_identifier() -> "LanguageIdentifier":
    """Loads the model, which takes half a second and 100 MiB of memory."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=False)
