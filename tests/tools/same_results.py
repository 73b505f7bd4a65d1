"""Compares the results of CTranslate2 with those of nmtkit: `python -m tests.tools.same_results RUN --source FILE`.

Prints for how many lines texts, n-best lists and scores differ, and whether the differing hypotheses are ties: if
nmtkit gives both first hypotheses the same score, rounding decided between them.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from nmtkit.core.formats import parse_value
from nmtkit.data.text.files.lines import read_lines
from nmtkit.inference.inputs import ModelOnDemand
from nmtkit.inference.result import Translation
from nmtkit.inference.translator import Translator

TOLERANCE = 1e-4
"""The largest relative difference of equal scores."""


@dataclass(frozen=True)
class Differences:
    """What differs between the results of two engines for some lines."""

    lines: int
    texts: list[int]
    """Lines whose best translations differ, from 0."""
    lists: list[int]
    """Lines whose n-best lists differ."""
    ties: list[int]
    """Lines among `lists` whose lists have the same scores within `TOLERANCE`, hypothesis for hypothesis."""
    largest: float
    """The largest relative difference between the scores of equal hypotheses of the same rank."""
    beyond: list[int]
    """Lines with such a difference beyond `TOLERANCE`."""

    def __str__(self) -> str:
        return (
            f"{self.lines:,} lines: {len(self.texts)} texts differ, {len(self.lists)} n-best lists "
            f"({len(self.ties)} of them have equal scores), {len(self.beyond)} lines have scores that differ by more "
            f"than {TOLERANCE:g}; the largest relative difference is {self.largest:.1e}"
        )


def relative_difference(first: float, second: float) -> float:
    largest = max(abs(first), abs(second))
    return abs(first - second) / largest if largest else 0.0


def differences(
    first: Sequence[Sequence[Translation]], second: Sequence[Sequence[Translation]]
) -> Differences:
    """Compares two results of `Translator.search`."""
    texts, lists, ties, beyond = [], [], [], []
    largest = 0.0
    for line, (some, others) in enumerate(zip(first, second, strict=True)):
        if some[0].text != others[0].text:
            texts.append(line)
        same_tokens = [one.tokens for one in some] == [one.tokens for one in others]
        distances = [
            relative_difference(one.score, other.score)
            for one, other in zip(some, others, strict=False)
        ]
        if not same_tokens or len(some) != len(others):
            lists.append(line)
            if len(some) == len(others) and max(distances) <= TOLERANCE:
                ties.append(line)
            continue
        largest = max(largest, *distances)
        if max(distances) > TOLERANCE:
            beyond.append(line)
    return Differences(len(first), texts, lists, ties, largest, beyond)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--lines", type=int)
    parser.add_argument("--n-best", type=int, default=5)
    parser.add_argument("--show", type=int, default=3, help="differing lines to show")
    parser.add_argument("--search", nargs="*", default=[], help="KEY=VALUE")
    parser.add_argument("--to")
    parser.add_argument("--from", dest="source_language")
    given = parser.parse_args()
    lines = list(islice(read_lines(given.source), given.lines))
    settings = {}
    for assignment in given.search:
        key, _, value = assignment.partition("=")
        settings[key] = parse_value(value)
    options = {
        "search_settings": settings,
        "to": given.to,
        "source_language": given.source_language,
    }
    own = Translator.load(
        given.run, engine="nmtkit", precision="fp32", n_best=given.n_best, **options
    )
    other = Translator.load(given.run, engine="auto", n_best=given.n_best, **options)
    assert other.external_engine is not None, "CTranslate2 does not search here"
    first, second = (translator.search(lines, given.n_best) for translator in (own, other))
    found = differences(first, second)
    print(found)
    if isinstance(other.opened, ModelOnDemand) and other.opened.is_read:
        print("nmtkit searched some of the lines itself")
    for line in islice(found.lists, given.show):
        print(f"line {line + 1}: {lines[line]}")
        for name, ranked in (("nmtkit", first[line]), ("ctranslate2", second[line])):
            for one in ranked:
                print(f"  {name:12} {one.score:.7f} {'' if one.finished else '(cut) '}{one.text}")
    assert not any(math.isnan(one.score) for ranked in second for one in ranked)


if __name__ == "__main__":
    main()
