"""The balance of experts: its loss by hand, and that it keeps all of them in use."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nmtkit.data.batches.batch import Batch
from nmtkit.layers.experts import Experts
from nmtkit.models.base import Memory, ModelOutput
from nmtkit.models.transformer import Transformer
from nmtkit.training.gradients import UpdateGradients
from nmtkit.training.losses.objective import build_objectives
from tests.support.gradients import CPU, assert_same_gradients, backward, gradients
from tests.support.tiny_training import settings
from tests.training.losses.test_guided_alignment import Reversing, fit, transformer


def uses(model: Transformer) -> Tensor:
    """Importance and load of every layer with experts, over 256 sentences."""
    batch = next(Reversing(rows=256, links=False, seed=9))
    output, _ = model.train().read(batch)
    return model.auxiliary_logits(batch, output).detach()


@pytest.fixture
def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)


@pytest.mark.usefixtures("without_noise")
def test_the_loss_is_the_squared_variation() -> None:
    """Of the second decoder layer alone; a layer of the encoder has none."""
    model, batch = transformer(experts={}).double().train(), next(Reversing(links=False))
    assert [name for name, part in model.named_modules() if isinstance(part, Experts)] == [
        "decoder.1.feed_forward"
    ]
    output, _ = model.read(batch)
    importance, load = model.auxiliary_logits(batch, output).detach()
    assert importance.sum().item() == pytest.approx(batch.targets.mask.sum().item())
    expected = sum(float(one.var(unbiased=False) / one.mean() ** 2) for one in (importance, load))
    sums = backward(model, batch, 10, expert_balance=0.5)
    assert sums["expert_balance_loss"].item() == pytest.approx(batch.n_tokens * expected, rel=1e-9)
    assert model.decoder[1].feed_forward.gate.weight.grad.abs().max() > 0


@pytest.mark.usefixtures("without_noise")
def test_halves_of_a_batch_count_half_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here both have the same use of experts, which is that of the whole."""
    model, batch = transformer(experts={}).double().train(), next(Reversing(links=False))
    batch, found = batch.select(torch.arange(batch.size).repeat(2)), []
    objectives, read = build_objectives(settings(expert_balance=0.5)), model.read

    def read_half(part: Batch, need_attention: bool = False) -> tuple[ModelOutput, Memory]:
        if part.size == batch.size:
            raise torch.OutOfMemoryError
        return read(part, need_attention)

    for one in (read, read_half):
        monkeypatch.setattr(model, "read", one)
        update = UpdateGradients(model, objectives, [*model.parameters()], CPU)
        found.append((update.add_up([batch], update.count([batch])), gradients(model)))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-12, atol=0)
    assert_same_gradients(found[1][1], found[0][1])


@pytest.mark.slow
def test_experts_are_used_alike_after_some_hundred_updates(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Importance and load are within a tenth of their means; without the loss an expert has half as much, or less."""
    farthest = {}
    for weight in (0.0, 0.3):
        torch.manual_seed(1)
        model = transformer(experts={"every": 1}, decoder_layers=1)
        fit(
            tmp_path / str(weight),
            model,
            Reversing(rows=32, links=False),
            max_updates=300,
            expert_balance=weight,
        )
        use = uses(model)
        farthest[weight] = float((use / use.mean(1, keepdim=True) - 1).abs().max())
    record_property("largest distance of a use from the mean, without and with the loss", farthest)
    assert farthest[0.3] < 0.1
    assert farthest[0.0] > 0.3
