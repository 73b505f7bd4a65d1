"""The mixture of experts against the formulas of Shazeer et al. 2017, written out with numpy in float64."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nmtkit.layers.experts import Experts, ExpertsConfig
from nmtkit.layers.transformer import FeedForward
from nmtkit.models.transformer import TransformerConfig
from tests.support.formulas import Array, linear, softmax

SIZES = TransformerConfig(hidden_size=4, feed_forward_size=6)
STATES = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
MASK = torch.tensor([[True, True, True], [True, False, False]])


def experts(**settings: Any) -> Experts:
    torch.manual_seed(2)
    layer = Experts(SIZES, ExpertsConfig.model_validate(settings)).double()
    for weights in (layer.gate, layer.noise):
        if weights is not None:
            torch.nn.init.normal_(weights.weight)
    return layer


def drawn(monkeypatch: pytest.MonkeyPatch) -> Array:
    """The noise N that the next pass over `STATES` draws."""
    noise = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    monkeypatch.setattr(torch, "randn_like", lambda like: noise.clone())
    return noise.numpy()


def gates_of(energies: Array, used: int) -> Array:
    """Equations 3 and 5, for one state."""
    return softmax(np.where(energies >= np.sort(energies)[-used], energies, -np.inf))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("used", [2, 3])
def test_gates_and_what_the_experts_say(
    used: int, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equations 1 and 3 to 6, and the load of appendix A: expert i alone draws its noise anew."""
    layer, noise = experts(used=used).train(training), drawn(monkeypatch)
    result = layer(STATES).detach().numpy()
    means, widths = (
        STATES.numpy() @ weights.weight.detach().numpy().T for weights in (layer.gate, layer.noise)
    )
    spread = np.log1p(np.exp(widths))
    energies = means + noise * spread * training
    use, load = np.zeros(4), np.zeros(4)
    for place in np.ndindex(2, 3):
        gates, state = gates_of(energies[place], used), STATES.numpy()[place]
        said = [linear(one.out, np.maximum(0.0, linear(one.inner, state))) for one in layer.experts]
        np.testing.assert_allclose(
            result[place], sum(g * s for g, s in zip(gates, said, strict=True)), atol=1e-12
        )
        use += gates * MASK[place].item()
        for number in range(4):
            least = np.sort(np.delete(energies[place], number))[-used]
            z = (means[place][number] - least) / spread[place][number]
            load[number] += 0.5 * math.erfc(-z / math.sqrt(2)) * MASK[place].item()
    np.testing.assert_allclose(
        layer.use(MASK).detach().numpy(), np.stack([use, load] if training else [use])
    )


def test_one_expert_is_a_dense_layer() -> None:
    layer, dense = experts(count=1).train(), FeedForward(SIZES).double()
    dense.load_state_dict(layer.experts[0].state_dict())
    torch.testing.assert_close(layer(STATES), dense(STATES), rtol=0, atol=1e-12)
    assert layer.use(MASK).tolist() == [[4.0]]


def test_a_word_is_read_by_its_experts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    whole: Callable[[FeedForward, Tensor], Tensor] = FeedForward.forward
    monkeypatch.setattr(
        FeedForward, "forward", lambda self, rows: read.append(len(rows)) or whole(self, rows)
    )
    experts(count=8)(STATES)
    assert sum(read) == 2 * 6
