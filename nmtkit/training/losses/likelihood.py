"""The likelihood of targets or labels, with label smoothing."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from nmtkit.core.device import send
from nmtkit.data.batches.batch import Batch
from nmtkit.layers.elementary import at_least_float32
from nmtkit.training.losses.objective import LOSS, OBJECTIVES, Objective, ObjectiveInput

_LARGEST = 700.0
"""The exponential of more is no float."""


def likelihood(log_probs: Tensor, batch: Batch, vocabulary_size: int, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """Negative log-likelihood of the targets with label smoothing, and without; see `smoothed`.

    Args:
        log_probs: `(M,X)` of the positions in `batch.loss_mask`, in row-major order.
        batch: the targets; may stay on the CPU while `log_probs` is on another device, which spares the device a wait.
        vocabulary_size: V. If X is larger, the targets are the extended ids.
        smoothing: share of each target's probability that is spread over the vocabulary.
    """
    ids = batch.wanted(extended=log_probs.shape[-1] > vocabulary_size)
    targets = send(ids[batch.loss_mask], log_probs.device)  # (M,)
    assert log_probs.shape[:-1] == targets.shape, f"{log_probs.shape[:-1]} predictions for {targets.shape} targets"
    each = -log_probs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)  # (M,)
    words = log_probs[:, :vocabulary_size]  # (M,V)
    return smoothed(each, words, vocabulary_size, smoothing)


def smoothed(each: Tensor, words: Tensor | None, vocabulary_size: int, smoothing: float) -> tuple[Tensor, Tensor]:
    """Negative log-likelihood of the targets with label smoothing (Szegedy et al. 2016, section 7), and without.

    Both are sums over the M positions, in nats; the one without smoothing is outside the graph.

    Each target word y becomes the distribution q(x) = (1 - smoothing) [x = y] + smoothing / V over the V words of the
    vocabulary, y included; the loss is the cross-entropy -sum_x q(x) log p(x), as of
    `torch.nn.functional.cross_entropy(..., label_smoothing=smoothing, reduction="sum")`. Copied words beyond the
    vocabulary (X > V) can be targets but get no share of the smoothing: in most sentences of a batch they are
    impossible, with a log-probability of minus infinity.

    Args:
        each: negative log-probabilities of the targets, `(M,)`.
        words: log-probabilities of all words of the vocabulary, `(M,V)`, or sums of them; not needed without smoothing.
        vocabulary_size: V.
        smoothing: as above.
    """
    nll = each.sum(dtype=at_least_float32(each))
    if not smoothing:
        return nll, nll.detach()
    assert words is not None
    all_words = words.sum(dtype=at_least_float32(words))
    total = (1 - smoothing) * nll - (smoothing / vocabulary_size) * all_words
    return total, nll.detach()


@dataclass(frozen=True)
class Likelihood(Objective):
    """The mean negative log-likelihood of a target token, in nats; see `likelihood`."""

    normalizers: ClassVar = {LOSS: "tokens", "nll": "tokens"}

    smoothing: float = 0.0
    """Share of each target's probability that is spread over the vocabulary."""

    @property
    def reads_words(self) -> Literal["sum", "wanted"]:
        """Smoothing reads the sum."""
        return "sum" if self.smoothing > 0 else "wanted"

    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        """The loss with smoothing and without."""
        assert inputs.nll is not None
        words = inputs.sums if inputs.log_probs is None else inputs.log_probs[:, : inputs.vocabulary_size]
        total, nll = smoothed(inputs.nll, words, inputs.vocabulary_size, self.smoothing)
        return {LOSS: total, "nll": nll}

    def metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """Adds the perplexity."""
        return {**means, "ppl": math.exp(min(means["nll"], _LARGEST))}


@OBJECTIVES.register("label_smoothing")
@dataclass(frozen=True)
class PlainLikelihood(Likelihood):
    """The likelihood of a batch as it is stored."""

    @classmethod
    def from_setting(cls, setting: float | None) -> "PlainLikelihood | None":
        """Always on in a training config, whose default is 0."""
        return None if setting is None else cls(smoothing=setting)
