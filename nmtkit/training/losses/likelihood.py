"""The negative log-likelihood of targets or labels, with label smoothing.

Notation: M predicted positions, V words in the vocabulary, X = V plus the unknown words of the source.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from nmtkit.core.device import send
from nmtkit.data.batches.batch import Batch
from nmtkit.layers.elementary import at_least_float32
from nmtkit.training.losses.objective import LOSS, OBJECTIVES, Objective, ObjectiveInput

_MAX_EXPONENT = 700.0
"""Upper bound for exponents: `math.exp` overflows above about 709."""


def likelihood(
    log_probs: Tensor, batch: Batch, vocabulary_size: int, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Returns the negative log-likelihood of the targets, with and without label smoothing; see `smoothed`.

    Used for evaluation; training uses `Likelihood.terms`.

    Args:
        log_probs: log-probabilities `(M, X)` at the positions in `batch.loss_mask`, in row-major order.
        batch: batch with the targets. It may be on the CPU while `log_probs` is on another device, so that selecting
            the targets does not wait for that device.
        vocabulary_size: V. If X is larger, the model copies, and the targets are extended ids. If X = V, extended ids
            and plain ids are the same, whether the model copies or not.
        smoothing: share of each target's probability that is spread over the vocabulary.
    """
    copies = log_probs.shape[-1] > vocabulary_size
    targets = batch.loss_targets(extended=copies)  # (B, T), or the shape of the labels
    targets = targets[batch.loss_mask]  # (M,)
    targets = send(targets, log_probs.device)
    assert log_probs.shape[:-1] == targets.shape, (
        f"{log_probs.shape[:-1]} predictions for {targets.shape} targets"
    )
    target_log_probs = log_probs.gather(-1, targets.unsqueeze(-1))  # (M, 1)
    target_log_probs = target_log_probs.squeeze(-1)  # (M,)
    vocabulary_log_probs = log_probs[:, :vocabulary_size]  # (M, V)
    return smoothed(
        nll=-target_log_probs,
        vocabulary_log_probs=vocabulary_log_probs,
        vocabulary_size=vocabulary_size,
        smoothing=smoothing,
    )


def smoothed(
    nll: Tensor, vocabulary_log_probs: Tensor | None, vocabulary_size: int, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Returns the negative log-likelihood with and without label smoothing (Szegedy et al. 2016, section 7).

    Both values are sums over the M positions, in nats. The value without smoothing is detached from the graph.

    Each target word y becomes the distribution q(x) = (1 - smoothing) [x = y] + smoothing / V over the V words of the
    vocabulary, including y. The loss is the cross-entropy -sum_x q(x) log p(x), as in
    `torch.nn.functional.cross_entropy(..., label_smoothing=smoothing, reduction="sum")`. Copied words beyond the
    vocabulary (X > V) can be targets but get no share of the smoothing: most sentences of a batch cannot produce them,
    so their log-probability is minus infinity. With smoothing, the log-probabilities of all words in the vocabulary
    must be finite.

    Args:
        nll: negative log-probabilities of the targets, `(M,)`.
        vocabulary_log_probs: log-probabilities of all words of the vocabulary, `(M, V)`, or their sums over it, `(M,)`.
            May be None without smoothing.
        vocabulary_size: V.
        smoothing: share of each target's probability that is spread over the vocabulary.
    """
    nll_sum = nll.sum(dtype=at_least_float32(nll))  # ()
    if not smoothing:
        return nll_sum, nll_sum.detach()
    assert vocabulary_log_probs is not None
    log_prob_sum = vocabulary_log_probs.sum(dtype=at_least_float32(vocabulary_log_probs))  # ()
    smoothing_term = (smoothing / vocabulary_size) * log_prob_sum
    loss = (1 - smoothing) * nll_sum - smoothing_term
    return loss, nll_sum.detach()


@dataclass(frozen=True)
class Likelihood(Objective):
    """Mean negative log-likelihood per target token, in nats; see `smoothed`."""

    normalizers: ClassVar = {LOSS: "tokens", "nll": "tokens"}

    smoothing: float = 0.0
    """Share of each target's probability that is spread over the vocabulary."""

    @property
    def reads_words(self) -> Literal["sum", "wanted"]:
        """Words whose log-probabilities are needed; smoothing also needs the sum over the vocabulary."""
        return "sum" if self.smoothing > 0 else "wanted"

    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        """Returns the loss with smoothing, and the negative log-likelihood without it."""
        assert inputs.nll is not None
        if inputs.log_probs is None:
            vocabulary_log_probs = inputs.sums  # (M,), not used without smoothing
        else:
            vocabulary_log_probs = inputs.log_probs[:, : inputs.vocabulary_size]  # (M, V)
        loss, nll = smoothed(
            nll=inputs.nll,
            vocabulary_log_probs=vocabulary_log_probs,
            vocabulary_size=inputs.vocabulary_size,
            smoothing=self.smoothing,
        )
        return {LOSS: loss, "nll": nll}

    def metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """Adds the perplexity to the means."""
        exponent = min(means["nll"], _MAX_EXPONENT)
        return {**means, "ppl": math.exp(exponent)}


@OBJECTIVES.register("label_smoothing")
@dataclass(frozen=True)
class PlainLikelihood(Likelihood):
    """The ordinary likelihood of the targets; pretraining objectives use their own likelihood, without smoothing.

    Its key in the recipe is `training.label_smoothing`.
    """

    @classmethod
    def from_setting(cls, setting: float | None) -> "PlainLikelihood | None":
        """Builds the likelihood with the given label smoothing; returns None if it is None.

        Unlike with other objectives, `setting` is not the weight, and 0 does not switch the objective off.
        """
        if setting is None:
            return None
        return cls(smoothing=setting)
