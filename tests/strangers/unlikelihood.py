"""Token unlikelihood (Welleck et al. 2020, equation 4): penalizes repeating earlier target words."""

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
        rows, steps = inputs.batch.loss_mask.nonzero(as_tuple=True)
        rows = rows[inputs.part]  # (M,)
        steps = steps[inputs.part]  # (M,)
        targets = inputs.batch.targets.ids[rows]  # (M,T)
        wanted = targets.gather(1, steps[:, None])  # (M,1)
        is_earlier = torch.arange(targets.shape[1]) < steps[:, None]  # (M,T)
        is_repeated = torch.zeros(len(rows), inputs.vocabulary_size, dtype=torch.bool)  # (M,V)
        is_repeated.scatter_(1, torch.where(is_earlier, targets, wanted), True)
        is_repeated.scatter_(1, wanted, False)
        others = 1 - inputs.log_probs[:, : inputs.vocabulary_size].exp()  # (M,V)
        losses = -others.clamp(min=1e-6).log()  # (M,V)
        return {"unlikelihood": losses.masked_fill(~is_repeated.to(losses.device), 0.0).sum()}
