"""Accuracy of labels."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from nmtkit.core.errors import DataError
from nmtkit.metrics.f1 import label_pairs
from nmtkit.metrics.metric import METRICS, Options, Texts
from nmtkit.metrics.significance import ExampleMetric


@dataclass(frozen=True)
class Accuracy(ExampleMetric):
    """The share of labels that are those of a reference, over the whole corpus; a line has one or several labels."""

    @override
    def statistics(self, texts: Texts, options: Options) -> npt.NDArray[np.float64]:
        """The right labels of each example and all of them, `(examples, 2)`; DataError unless lines have as many."""
        counts = [[sum(one == other for one, other in own), len(own)] for own in label_pairs(texts)]
        if not any(count for _, count in counts):
            raise DataError("accuracy is not defined: no line has a label")
        return np.array(counts, dtype=np.float64)

    @override
    def value(self, means: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return 100 * means[..., 0] / np.maximum(means[..., 1], 1e-9)


METRICS.register("accuracy")(Accuracy("accuracy", "Accuracy"))
