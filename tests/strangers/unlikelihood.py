"""Token unlikelihood (Welleck et al. 2020, equation 4): earlier words of the target should not come again."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from nmtkit.training.losses.objective import OBJECTIVES, Objective, ObjectiveInput


@OBJECTIVES.register("unlikelihood")
@dataclass(frozen=True)
class Unlikelihood(Objective):
    normalizers: ClassVar[dict[str, str]] = {"unlikelihood": "tokens"}

    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        rows, steps = (
            places[inputs.part] for places in inputs.batch.loss_mask.nonzero(as_tuple=True)
        )  # (M,), (M,)
        targets = inputs.batch.targets.ids[rows]  # (M,T)
        wanted = targets.gather(1, steps[:, None])  # (M,1)
        is_earlier = torch.arange(targets.shape[1]) < steps[:, None]  # (M,T)
        again = torch.zeros(len(rows), inputs.vocabulary_size, dtype=torch.bool)  # (M,V)
        again.scatter_(1, torch.where(is_earlier, targets, wanted), True).scatter_(1, wanted, False)
        others = 1 - inputs.log_probs[:, : inputs.vocabulary_size].exp()  # (M,V)
        losses = -others.clamp(min=1e-6).log()  # (M,V)
        return {"unlikelihood": losses.masked_fill(~again.to(losses.device), 0.0).sum()}
