"""A sparsely gated mixture of experts: Shazeer et al. 2017, "Outrageously Large Neural Networks".

In place of one feed-forward part a layer has n of them, and a gate chooses the k that read a state x (equations 1, 3, 4
and 5; in training N is drawn anew for every number from a standard normal distribution, else it is 0):

    y = sum_i G(x)_i E_i(x)             G(x) = softmax over the k largest of H(x), zero elsewhere
    H(x)_i = (x W_g)_i + N softplus((x W_noise)_i)

Two sums over states say how much an expert is used: the importance sum_x G(x)_i (equation 6), and where noise is drawn
the load sum_x P(x,i) (appendix A, equations 8 to 10). P is the probability that new noise of expert i alone would
choose it; F is the normal distribution's function:

    P(x,i) = F(((x W_g)_i - the k-th largest of the other H(x)_j) / softplus((x W_noise)_i))
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmtkit.core.settings import Field, Settings
from nmtkit.layers.elementary import at_least_float32
from nmtkit.layers.linear import UnpackedLinear
from nmtkit.layers.transformer import FeedForward, LayerConfig


class ExpertsConfig(Settings):
    """Several feed-forward parts in a layer, of which each word is read by a few."""

    count: int = Field(default=4, ge=1, le=1024)
    """Experts of a layer (n)."""
    used: int = Field(default=2, ge=2)
    """How many of them read a word (k); all, where there are fewer. Of one alone the gate is 1, and learns nothing."""
    every: int = Field(default=2, ge=1)
    """Every second layer of each side has experts, from the second on; 1: all have; 3: every third; and so on."""


class Experts(nn.Module):
    """The experts of a layer, and their gate; see the head of this file."""

    _routed: Tensor | None = None
    """Of the last pass with gradients G, and P where there is noise: `(...,1 or 2,n)`."""

    def __init__(self, config: LayerConfig, settings: ExpertsConfig) -> None:
        super().__init__()
        width, count, self.used = config.hidden_size, settings.count, min(settings.used, settings.count)
        self.experts = nn.ModuleList(FeedForward(config) for _ in range(count))
        self.gate = UnpackedLinear(width, count, bias=False)
        # Noise of a learned size, in training alone, lets other experts be chosen now and then.
        self.noise = UnpackedLinear(width, count, bias=False)
        self.initialize()

    def initialize(self) -> None:
        """Noise alone chooses at first: appendix A."""
        for weights in (self.gate, self.noise):
            nn.init.zeros_(weights.weight)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_routed": None}  # a copy of the model is none of its gradients

    def forward(self, states: Tensor) -> Tensor:
        """`(...,H)` to `(...,H)`. On a CPU an expert reads only what it is chosen for.

        Elsewhere each reads all, since to find what is chosen would make the CPU wait for the device.
        """
        flat, gates = states.flatten(0, -2), self._gates(states).flatten(0, -2)  # (M,H), (M,n)
        result, every = torch.zeros_like(flat), torch.arange(len(flat), device=flat.device)
        for expert, gate in zip(self.experts, gates.unbind(1), strict=True):
            rows = gate.nonzero()[:, 0] if flat.device.type == "cpu" else every
            if len(rows) or torch.is_grad_enabled():  # every weight has a gradient
                found = expert(flat[rows]) * gate[rows, None]
                result = result.index_add(0, rows, found.to(result.dtype))
        return result.view_as(states)

    def _gates(self, states: Tensor) -> Tensor:
        """G of states `(...,H)`: `(...,n)`."""
        means = self.gate(states)
        means = noisy = means.to(at_least_float32(means))  # x W_g
        if self.training:
            spread = F.softplus(self.noise(states).to(means.dtype))
            noisy = means + torch.randn_like(means) * spread  # H
        best, chosen = noisy.topk(min(self.used + 1, noisy.shape[-1]), -1)
        gates = torch.zeros_like(means).scatter(-1, chosen[..., : self.used], best[..., : self.used].softmax(-1))
        routed = [gates]
        if self.training and best.shape[-1] > self.used:
            last = best[..., self.used - 1 : self.used]
            others = torch.where(noisy >= last, best[..., self.used :], last)
            routed.append(torch.special.ndtr((means - others) / spread))
        self._routed = torch.stack(routed, -2) if torch.is_grad_enabled() else None
        return gates

    def use(self, mask: Tensor) -> Tensor:
        """Importance, and load where noise is drawn, over the states of the last pass where `mask` is True: `(*,n)`."""
        assert self._routed is not None, "gradients are off, or it was asked before"
        routed, self._routed = self._routed, None
        return (routed * mask[..., None, None]).flatten(0, -3).sum(0)


def place_experts(config: LayerConfig, settings: ExpertsConfig | None, *sides: nn.ModuleList) -> None:
    """Puts experts into some layers of each side; none without settings."""
    if settings is not None:
        for layer in (layer for side in sides for layer in side[settings.every - 1 :: settings.every]):
            layer.feed_forward = Experts(config, settings)


def use_of_experts(*sides: tuple[nn.ModuleList, Tensor]) -> Tensor:
    """`Experts.use` of all layers that have experts, one below the other, `(R,n)`; layers of a side with its mask."""
    return torch.cat([part.use(mask) for side, mask in sides for part in side.modules() if isinstance(part, Experts)])
