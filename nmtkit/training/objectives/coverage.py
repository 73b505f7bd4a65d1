"""The coverage loss of See et al. 2017, "Get To The Point": a summary should not look twice at the same place."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtkit.layers.elementary import wide
from nmtkit.training.objectives.objective import OBJECTIVES, Objective, Seen


def coverage_loss(attention: Tensor, mask: Tensor) -> Tensor:
    """How much a summary looks again at what it has looked at before, summed over the target tokens.

    See et al. 2017, equations 12 and 13, without the weight lambda: sum_s min(a, c), where the coverage c of a step is
    the sum of the attention of all steps before it (eq. 10), so that the first step costs nothing and every step at
    most 1.

    Args:
        attention: a, weights `(B,T,S)`.
        mask: `(B,T)`, True where a target token is real.

    Returns:
        A scalar.
    """
    weights = attention.to(wide(attention))
    before = pad(weights[:, :-1].cumsum(1), (0, 0, 1, 0))  # (B,T,S)
    return (torch.minimum(weights, before).sum(-1) * mask).sum()


@OBJECTIVES.register("coverage_weight")
@dataclass(frozen=True)
class Coverage(Objective):
    """The mean coverage loss of a target token, from 0 to 1; its weight is lambda of equation 13."""

    over: ClassVar = {"coverage_loss": "tokens"}
    reads = "attention"

    @classmethod
    def of(cls, setting: float | None) -> "Coverage | None":
        """There is one where it has a weight."""
        return cls(weight=setting) if setting else None

    def terms(self, seen: Seen) -> dict[str, Tensor]:
        """The loss without its weight."""
        assert seen.readout.attention is not None
        assert seen.moved.tgt_mask is not None
        return {"coverage_loss": coverage_loss(seen.readout.attention, seen.moved.tgt_mask)}
