"""The balance of experts: its loss by hand, and that it keeps all of them in use."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gradients import backward
from test_guided_alignment import Reversing, fit, transformer
from torch import Tensor

from nmtkit.layers.experts import Experts
from nmtkit.models.transformer import Transformer


def uses(model: Transformer) -> Tensor:
    """Importance and load of every layer with experts, over 256 sentences."""
    batch = next(Reversing(rows=256, links=False, seed=9))
    output, _ = model.train().read(batch)
    return model.further_logits(batch, output).detach()


def test_the_loss_is_the_squared_variation() -> None:
    """Of the second decoder layer alone; a layer of the encoder has none."""
    model, batch = transformer(experts={"noise": False}).double().train(), next(Reversing(links=False))
    assert [name for name, part in model.named_modules() if isinstance(part, Experts)] == ["decoder.1.feed_forward"]
    output, _ = model.read(batch)
    ((first, second, third, fourth),) = model.further_logits(batch, output).tolist()
    mean = batch.targets.mask.sum().item() / 4
    variance = sum((one - mean) ** 2 for one in (first, second, third, fourth)) / 4
    sums = backward(model, batch, 10, expert_balance=0.5)
    assert sums["expert_balance_loss"].item() == pytest.approx(variance / mean**2, rel=1e-12)
    assert model.decoder[1].feed_forward.gate.weight.grad.abs().max() > 0


@pytest.mark.slow
def test_experts_are_used_alike_after_some_hundred_updates(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Importance and load are within a tenth of their means; without the loss an expert has half as much, or less."""
    farthest = {}
    for weight in (0.0, 0.3):
        torch.manual_seed(1)
        model = transformer(experts={"every": 1}, decoder_layers=1)
        fit(tmp_path / str(weight), model, Reversing(rows=32, links=False), max_updates=300, expert_balance=weight)
        use = uses(model)
        farthest[weight] = float((use / use.mean(1, keepdim=True) - 1).abs().max())
    record_property("largest distance of a use from the mean, without and with the loss", farthest)
    assert farthest[0.3] < 0.1
    assert farthest[0.0] > 0.3
