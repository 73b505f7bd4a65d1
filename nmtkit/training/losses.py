"""Losses: pure functions of what a model said (`Output`) and what it should have said (`Batch`)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from nmtkit.data.batch import Batch
from nmtkit.models.base import Output


@dataclass(frozen=True)
class Loss:
    """Sums over the M target tokens of a batch, in nats; divide by a token count to get a mean."""

    total: Tensor
    """What training minimises, a scalar."""
    nll: Tensor
    """Negative log-likelihood without smoothing, a scalar outside the graph."""
    tokens: int
    """M."""


def likelihood(output: Output, batch: Batch, vocabulary_size: int, smoothing: float = 0.0) -> Loss:
    """Negative log-likelihood of the targets with label smoothing (Szegedy et al. 2016, section 7).

    Each target word y becomes the distribution q(x) = (1 - smoothing) [x = y] + smoothing / V over the V words of the
    vocabulary, y included; the loss is the cross-entropy -sum_x q(x) log p(x). It equals
    `torch.nn.functional.cross_entropy(..., label_smoothing=smoothing, reduction="sum")`. Copied words beyond the
    vocabulary (X > V) can be targets but get no share of the smoothing: most of them are impossible in most sentences
    of a batch, and their log-probability is minus infinity there.

    Args:
        output: log-probabilities `(M,X)` of the positions in `batch.tgt_mask`, in row-major order.
        batch: the targets; may stay on the CPU while `output` is on another device, which spares the device a wait.
        vocabulary_size: V. If X is larger, the targets are the extended ids.
        smoothing: share of the probability that is spread evenly, in [0, 1).
    """
    log_probs = output.log_probs
    copies = log_probs.shape[-1] > vocabulary_size
    ids = batch.tgt_extended if copies else batch.tgt_out
    assert ids is not None, "the batch has no targets"
    assert batch.tgt_mask is not None, "the batch has no targets"
    targets = ids[batch.tgt_mask].to(log_probs.device, non_blocking=True)  # (M,)
    assert log_probs.shape[:-1] == targets.shape, f"{log_probs.shape[:-1]} predictions for {targets.shape} targets"
    nll = -log_probs.gather(-1, targets.unsqueeze(-1)).sum(dtype=_wide(log_probs))
    total = nll
    if smoothing:
        words = log_probs[:, :vocabulary_size] if copies else log_probs
        total = (1 - smoothing) * nll - (smoothing / vocabulary_size) * words.sum(dtype=_wide(log_probs))
    return Loss(total, nll.detach(), targets.numel())


def _wide(log_probs: Tensor) -> torch.dtype:
    """The type to add up in: millions of half-precision numbers would lose most digits."""
    return torch.float64 if log_probs.dtype == torch.float64 else torch.float32
