"""Labelled brackets of constituency trees: precision, recall, F1 and exact match, as EVALB computes them.

Black et al. 1991, "A Procedure for Quantitatively Comparing the Syntactic Coverage of English
Grammars" (PARSEVAL), with the usual parameters of EVALB (Sekine and Collins 1997):

* A bracket is a constituent with its label, first word and last word. Words with parts of speech
  are not brackets.
* The roots TOP and S1, and a root without a label, are not counted. Traces (-NONE-) and
  constituents that become empty are removed.
* Words whose part of speech in the reference is one of , : `` '' . ? ! are removed from both trees
  by position. A constituent without other words is not counted.
* Labels are truncated at the first - or =: NP-SBJ becomes NP. PRT counts as ADVP.
* Equal brackets of a tree are matched one to one. Precision and recall are computed from sums over all sentences; F1 is
  their harmonic mean. A match is exact if all brackets of both trees are matched.

EVALB skips sentences whose trees have different words. Here, an output that is not a tree or has
different words counts as having no brackets, which lowers recall. Trees may be in either form of
`nmtkit.zoo.parsing.trees`. With several references, the one with the best F1 counts.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from nmtkit.core.errors import DataError
from nmtkit.metrics import METRICS, ExampleMetric, Options, Texts
from nmtkit.zoo.parsing.trees import PUNCTUATION, ROOTS, Tree, read_tree

Bracket = tuple[str, int, int]
_EQUAL = {"PRT": "ADVP"}


def brackets(tree: Tree, deleted: frozenset[int] = frozenset()) -> Counter[Bracket]:
    """Returns the brackets of a tree as label, first word and end; words are numbered without the `deleted` ones."""
    found: Counter[Bracket] = Counter()

    def walk(one: Tree, place: int, shown: int) -> tuple[int, int]:
        """Records the brackets of a subtree that starts at word `place`, and returns where it ends.

        `shown` is the same position, not counting deleted words.
        """
        if one.word is not None:
            return place + 1, shown + (place not in deleted)
        begin = shown
        for child in one.children:
            place, shown = walk(child, place, shown)
        if shown > begin and one.label not in ROOTS:
            found[_EQUAL.get(one.label, one.label), begin, shown] += 1
        return place, shown

    walk(tree, 0, 0)
    return found


def count_brackets(output: str, reference: str, place: str) -> tuple[int, int, int, bool]:
    """Counts the matching brackets, the output's and the reference's, and tests for an exact match.

    Raises a DataError if the reference is not a tree.
    """
    gold = read_tree(reference, f"{place} of the references").plain()
    words = [] if gold is None else [*gold.leaves()]
    deleted = frozenset(number for number, leaf in enumerate(words) if leaf.label in PUNCTUATION)
    wanted = brackets(gold, deleted) if gold is not None else Counter()
    try:
        tree = read_tree(output, place).plain()
    except DataError:
        tree = None
    given = [] if tree is None else [*tree.leaves()]
    fits = len(given) == len(words) > 0 and all(
        # linear form has no words
        not (one.word and other.word) or one.word.casefold() == other.word.casefold()
        for one, other in zip(given, words, strict=True)
    )
    own = brackets(tree, deleted) if tree is not None and fits else Counter()
    return (own & wanted).total(), own.total(), wanted.total(), fits and own == wanted


@dataclass(frozen=True)
class BracketMetric(ExampleMetric):
    """An EVALB score over all sentences."""

    figure: str = "f1"
    """What the metric measures: f1, precision, recall or exact."""

    @override
    def statistics(self, texts: Texts, options: Options) -> npt.NDArray[np.float64]:
        """Returns the numbers of matching, output and reference brackets, and whether all match, `(examples, 4)`."""
        rows = []
        for number, (hyp, refs) in enumerate(
            zip(texts.hyps, texts.references, strict=True), start=1
        ):
            choices = (count_brackets(hyp, ref, f"line {number}") for ref in refs)
            rows.append(max(choices, key=lambda one: 2 * one[0] / max(one[1] + one[2], 1)))  # by F1
        return np.array(rows, dtype=np.float64)

    @override
    def value(self, means: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        equal, own, wanted, exact = np.moveaxis(means, -1, 0)
        all_of = {
            "f1": (own + wanted) / 2,
            "precision": own,
            "recall": wanted,
            "exact": np.ones_like(own),
        }[self.figure]
        part: npt.NDArray[np.float64] = (
            100 * (exact if self.figure == "exact" else equal) / np.maximum(all_of, 1e-9)
        )
        return part


for _figure, _title in (
    ("f1", "F1"),
    ("precision", "precision"),
    ("recall", "recall"),
    ("exact", "exact match"),
):
    METRICS.register(f"bracket-{_figure}")(
        BracketMetric(f"bracket-{_figure}", f"Bracket {_title}", family="brackets", figure=_figure)
    )
