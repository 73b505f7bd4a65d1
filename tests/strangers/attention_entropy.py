"""Mean entropy of the attention, in nats. Minimizing it makes the attention sharper."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from nmtkit.training.losses.objective import OBJECTIVES, Objective, ObjectiveInput


@OBJECTIVES.register("entropy_attention")
@dataclass(frozen=True)
class EntropyOfAttention(Objective):
    normalizers: ClassVar[dict[str, str]] = {"attention_entropy": "tokens"}
    needs: ClassVar[str] = "attention"

    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        weights = inputs.output.attention  # (B,T,S)
        entropies = -(weights * weights.clamp(min=1e-9).log()).sum(-1)  # (B,T)
        return {"attention_entropy": (entropies * inputs.device_batch.targets.mask).sum()}
