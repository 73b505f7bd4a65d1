"""Accuracy, macro F1 and confusion counts of labels."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from nmtkit.core.errors import DataError
from nmtkit.metrics.metric import METRICS, Comparison, Options, Resampling, Texts
from nmtkit.metrics.significance import ExampleMetric


def label_pairs(texts: Texts) -> list[list[tuple[str, str]]]:
    """Returns predicted and true labels per example; DataError if their numbers differ.

    With several references, a reference with the predicted label counts, or else the first reference.
    """
    pairs = []
    for number, (hyp, refs) in enumerate(zip(texts.hyps, texts.references, strict=True), start=1):
        given, *wanted = map(str.split, (hyp, *refs))
        if others := [len(ref) for ref in wanted if len(ref) != len(given)]:
            raise DataError(
                f"line {number}: the hypothesis has {len(given)} labels, but the reference has "
                f"{others[0]}; labels are separated by white space and compared one by one, so "
                "write a label of several words as one word"
            )
        choices = zip(given, *wanted, strict=True)
        pairs.append(
            [(label, label if label in allowed else allowed[0]) for label, *allowed in choices]
        )
    return pairs


@dataclass(frozen=True)
class Confusion:
    """Confusion counts of labels."""

    labels: Sequence[str]
    """Labels in alphabetical order."""
    counts: npt.NDArray[np.int64]
    """Counts by true and predicted label, `(true, predicted)`."""

    @property
    def rows(self) -> list[list[str | int]]:
        """Returns the counts of each true label by predicted label."""
        return [[label, *row] for label, row in zip(self.labels, self.counts.tolist(), strict=True)]

    @classmethod
    def of(cls, hyps: Sequence[str], refs: Sequence[Sequence[str]]) -> "Confusion":
        """Counts a system's labels against references in the format that metrics use."""
        counted = Counter(pair for own in label_pairs(Texts(hyps, refs)) for pair in own)
        labels = sorted({label for pair in counted for label in pair})
        counts = [[counted[given, wanted] for given in labels] for wanted in labels]
        return cls(labels, np.array(counts, dtype=np.int64).reshape(len(labels), len(labels)))


@dataclass(frozen=True)
class MacroF1(ExampleMetric):
    """Mean over labels of F1 = 2 correct / (predicted + true), from precision and recall (van Rijsbergen 1979).

    As in scikit-learn (`f1_score(average="macro")`), the mean includes every label that occurs among
    the predicted or true labels.
    """

    labels: tuple[str, ...] = ()

    @classmethod
    @override
    def measure(
        cls,
        metrics: Sequence[Self],
        systems: Sequence[Texts],
        options: Options,
        resampling: Resampling | None,
    ) -> list[list[Comparison]]:
        found = {
            label
            for texts in systems
            for own in label_pairs(texts)
            for pair in own
            for label in pair
        }
        if not found:
            raise DataError("F1 is undefined, because no line has a label")
        metrics = [replace(metric, labels=tuple(sorted(found))) for metric in metrics]
        return super().measure(metrics, systems, options, resampling)

    @override
    def statistics(self, texts: Texts, options: Options) -> npt.NDArray[np.float64]:
        """Returns how often each label is correct, and how often it is predicted or true: `(examples, 2 labels)`."""
        numbers, size = (
            {label: number for number, label in enumerate(self.labels)},
            len(self.labels),
        )
        figures = np.zeros((len(texts.hyps), 2 * size))
        for row, pairs in zip(figures, label_pairs(texts), strict=True):
            for given, wanted in pairs:
                row[numbers[given]] += given == wanted
                row[size + numbers[given]] += 1
                row[size + numbers[wanted]] += 1
        return figures

    @override
    def value(self, means: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        right, all_of_it = np.split(means, 2, axis=-1)
        f1 = 2 * right / np.where(all_of_it > 0, all_of_it, 1.0)
        return np.asarray(100 * f1.sum(-1) / np.maximum((all_of_it > 0).sum(-1), 1))


METRICS.register("f1")(MacroF1("f1", "F1"))


@dataclass(frozen=True)
class Accuracy(ExampleMetric):
    """Share of labels that match a reference over the whole corpus; a line has one or more labels."""

    @override
    def statistics(self, texts: Texts, options: Options) -> npt.NDArray[np.float64]:
        """Returns the number of correct labels and of all labels per example, `(examples, 2)`; see `label_pairs`."""
        counts = [[sum(one == other for one, other in own), len(own)] for own in label_pairs(texts)]
        if not any(count for _, count in counts):
            raise DataError("accuracy is undefined, because no line has a label")
        return np.array(counts, dtype=np.float64)

    @override
    def value(self, means: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return 100 * means[..., 0] / np.maximum(means[..., 1], 1e-9)


METRICS.register("accuracy")(Accuracy("accuracy", "Accuracy"))
