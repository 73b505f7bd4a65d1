"""A sparsely gated mixture of experts: Shazeer et al. 2017, "Outrageously Large Neural Networks".

A layer has n feed-forward networks, called experts, instead of a single one. A gate chooses the k experts that process
a state x (equations 1, 3, 4 and 5):

    y = sum_i G(x)_i E_i(x)             G(x) = softmax over the k largest of H(x), zero elsewhere
    H(x)_i = (x W_g)_i + N softplus((x W_noise)_i)

In training, each N is drawn from a standard normal distribution; otherwise it is 0.

Two sums over states measure how much an expert is used: the importance sum_x G(x)_i (equation 6) and, in training, the
load sum_x P(x,i) (appendix A, equations 8 to 10). P(x,i) is the probability that expert i would be chosen if only its
own noise were drawn again. If F is the standard normal distribution function,

    P(x,i) = F(((x W_g)_i - the k-th largest of the other H(x)_j) / softplus((x W_noise)_i))

Notation: H hidden size, n experts, k experts per state, M states, B sentences, T positions.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmtkit.core.settings import Field, Settings
from nmtkit.layers.elementary import at_least_float32
from nmtkit.layers.linear import UnpackedLinear
from nmtkit.layers.transformer import FeedForward, LayerConfig


class ExpertsConfig(Settings):
    """Settings of a mixture of experts: several feed-forward networks per layer, each for some of the words."""

    count: int = Field(default=4, ge=1, le=1024)
    """Number of experts per layer (n)."""
    used: int = Field(default=2, ge=2)
    """Number of experts that process each word (k), at least 2: with a single expert, the gate would always be 1. If
    this exceeds count, all experts process each word."""
    every: int = Field(default=2, ge=1)
    """Interval between layers with experts, in the encoder and in the decoder. 1: all layers have experts. 2: every
    other layer, beginning with the second, as in GShard (Lepikhin et al. 2021). 3: every third layer."""


class Experts(nn.Module):
    """The experts of a layer and their gate; see the module docstring."""

    _routed: Tensor | None = None
    """G and, if it is defined, P of the last forward pass with gradients: `(B, T, 1 or 2, n)`."""

    def __init__(self, config: LayerConfig, settings: ExpertsConfig) -> None:
        super().__init__()
        width = config.hidden_size
        count = settings.count
        self.used = min(settings.used, count)
        self.experts = nn.ModuleList(FeedForward(config) for _ in range(count))
        self.gate = UnpackedLinear(width, count, bias=False)
        # Only used in training, where noise of a learned size occasionally makes the gate choose other experts.
        self.noise = UnpackedLinear(width, count, bias=False)
        self.initialize()

    def initialize(self) -> None:
        """Sets the gate and noise weights to zero, so that the choice is initially random: appendix A."""
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.noise.weight)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state["_routed"] = None  # part of the autograd graph of one pass, which cannot be copied
        return state

    def forward(self, states: Tensor) -> Tensor:
        """Maps `(..., H)` to `(..., H)`.

        On a CPU, each expert processes only the states for which it was chosen. On other devices, each expert processes
        all states, because finding the chosen ones would make the CPU wait for the device.
        """
        flat = states.flatten(0, -2)  # (M, H)
        gates = self._gates(states).flatten(0, -2)  # (M, n)
        all_rows = torch.arange(len(flat), device=flat.device)  # (M,)
        result = torch.zeros_like(flat)  # (M, H)
        for expert, gate in zip(self.experts, gates.unbind(1), strict=True):
            rows = all_rows
            if flat.device.type == "cpu":
                rows = gate.nonzero()[:, 0]  # (m,)
            # In training, an expert runs even if it has no rows, so that all weights get a gradient.
            if len(rows) or torch.is_grad_enabled():
                outputs = expert(flat[rows]) * gate[rows, None]  # (m, H)
                result = result.index_add(0, rows, outputs.to(result.dtype))  # (M, H)
        return result.view_as(states)

    def _gates(self, states: Tensor) -> Tensor:
        """Returns G, `(..., n)`, for states `(..., H)`, and stores G and P in `_routed`."""
        means = self.gate(states)  # (..., n), x W_g
        means = means.to(at_least_float32(means))  # (..., n)
        energies = means  # (..., n), H(x)
        if self.training:
            spread = F.softplus(self.noise(states).to(means.dtype))  # (..., n)
            energies = means + torch.randn_like(means) * spread  # (..., n)
        # The load depends on the energy of the best unused expert, if any expert is unused.
        n_best = min(self.used + 1, energies.shape[-1])
        best_energies, best_experts = energies.topk(n_best, -1)  # (..., k + 1) each
        used_energies = best_energies[..., : self.used]  # (..., k)
        used_experts = best_experts[..., : self.used]  # (..., k)
        gates = torch.zeros_like(means).scatter(
            -1, used_experts, used_energies.softmax(-1)
        )  # (..., n)
        routed = [gates]
        if self.training and n_best > self.used:
            # For each expert i, the k-th largest energy among the other experts. If i is one of the k chosen experts,
            # the best unused expert moves up.
            last_used = used_energies[..., -1:]  # (..., 1)
            first_unused = best_energies[..., self.used :]  # (..., 1)
            is_chosen = energies >= last_used  # (..., n)
            threshold = torch.where(is_chosen, first_unused, last_used)  # (..., n)
            routed.append(torch.special.ndtr((means - threshold) / spread))  # (..., n), P
        self._routed = None
        if torch.is_grad_enabled():
            self._routed = torch.stack(routed, -2)  # (..., 1 or 2, n)
        return gates

    def use(self, mask: Tensor) -> Tensor:
        """Returns the importance and, in training if not all experts are used, the load: `(1 or 2, n)`.

        Both are sums over the states of the last forward pass at which `mask` `(B, T)` is True. The method may be
        called only once per forward pass.
        """
        assert self._routed is not None, (
            "there was no forward pass with gradients, or `use` was already called for it"
        )
        routed = self._routed
        self._routed = None
        masked = routed * mask[..., None, None]  # (B, T, 1 or 2, n)
        by_state = masked.flatten(0, -3)  # (B * T, 1 or 2, n)
        return by_state.sum(0)


def place_experts(
    config: LayerConfig, settings: ExpertsConfig | None, sides: Sequence[nn.ModuleList]
) -> None:
    """Replaces the feed-forward networks with experts in every `settings.every`-th layer of each side.

    Without settings (None), no layer has experts.
    """
    if settings is None:
        return
    for side in sides:
        for layer in side[settings.every - 1 :: settings.every]:
            layer.feed_forward = Experts(config, settings)


def use_of_experts(*sides: tuple[nn.ModuleList, Tensor]) -> Tensor:
    """Concatenates the results of `Experts.use` for all layers with experts: `(*, n)`.

    Each side is a pair: its layers, and the mask `(B, T)` of its real positions.
    """
    rows = []
    for layers, mask in sides:
        for module in layers.modules():
            if isinstance(module, Experts):
                rows.append(module.use(mask))
    return torch.cat(rows)
