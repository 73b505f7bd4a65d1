"""Loops that note what arrives: states and gradients are those of the layers that they stand for, in float64."""

from typing import Any, cast

import pytest
import torch
from torch import Tensor

from nmtkit.data.batches.batch import collate
from nmtkit.models.base import MODELS, Model, ModelConfig, VocabularySizes
from nmtkit.models.output import log_probabilities, log_probabilities_of
from nmtkit.models.rnn import luong, rnnsearch
from nmtkit.models.rnn.luong import LuongConfig
from nmtkit.models.rnn.rnnsearch import RnnSearchConfig

BATCH = collate([[5, 6, 7], [8, 9]], [[6, 5], [7, 8, 9, 5]])
SIZES: dict[str, Any] = {"embedding_size": 5, "hidden_size": 6, "attention_size": 7, "dropout": 0.0}


def unrolled(model: Model) -> list[Tensor]:
    """Features, where each word looks, and the gradients of all parameters through both."""
    output, _ = model.read(BATCH, need_attention=True)
    assert output.attention is not None
    told = [output.features, output.attention]
    factors = [torch.linspace(-1, 1, one.numel(), dtype=one.dtype).view_as(one).square() for one in told]
    used = [one for name, one in model.named_parameters() if not name.startswith(("readout", "output"))]
    total = sum((one * factor).sum() for one, factor in zip(told, factors, strict=True))
    return [*told, *torch.autograd.grad(cast(Tensor, total), used)]


@pytest.mark.parametrize(
    "config",
    [
        RnnSearchConfig(**SIZES),
        RnnSearchConfig(**SIZES, order="look_generate_update", layers=2, cell="lstm"),
        RnnSearchConfig(**SIZES, score="general"),
        LuongConfig(**SIZES, layers=2),
        LuongConfig(**SIZES, window="local_p", cell="gru"),
    ],
)
def test_a_loop_has_the_gradients_of_its_layers(config: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    model = MODELS.get(config.kind)(config, VocabularySizes({"src": 12, "tgt": 12})).double()
    quick = unrolled(model)
    for module in (rnnsearch, luong):
        monkeypatch.setattr(module, "gains", lambda tensor: False)
    for one, other in zip(quick, unrolled(model), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_losses_of_a_training_are_those_of_its_layers(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to rounding: twenty updates of the likelihood."""
    torch.set_float32_matmul_precision("highest")  # products of other shapes round alike only if they are exact

    def losses() -> list[float]:
        torch.manual_seed(1)
        model = MODELS.get("rnnsearch")(RnnSearchConfig(**SIZES), VocabularySizes({"src": 12, "tgt": 12})).to(dtype)
        optimizer, found = torch.optim.SGD(model.parameters(), lr=0.5), []
        wanted = BATCH.targets.ids[BATCH.loss_mask]
        for _ in range(20):
            output, memory = model.read(BATCH)
            if rnnsearch.gains(output.features):
                each, _ = model.log_likelihood(output.gather(BATCH.loss_mask), memory, wanted, summed=False)
            else:
                each = model(BATCH, keep=BATCH.loss_mask).gather(-1, wanted[:, None])
            optimizer.zero_grad()
            (-each.mean()).backward()  # type: ignore[no-untyped-call]  # torch does not type it
            optimizer.step()
            found.append(-each.mean().item())
        return found

    quick = losses()
    monkeypatch.setattr(rnnsearch, "gains", lambda tensor: False)
    assert quick == pytest.approx(losses(), rel=1e-5 if dtype == torch.float32 else 1e-12)
    assert quick[-1] < 0.5 * quick[0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_wanted_words_have_the_probability_and_the_gradient_of_the_softmax(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    logits = torch.randn(4, 9).to(dtype)
    logits[1, 0] = 200.0  # so that the probability of the wanted word is zero in 32 bits
    logits.requires_grad_()
    wanted, weights = torch.tensor([0, 8, 3, 3]), torch.tensor([1.0, -0.5, 0.0, 2.0])
    whole = log_probabilities(logits)
    ways = [log_probabilities_of(wanted, logits, summed=True), (whole.gather(1, wanted[:, None])[:, 0], whole.sum(1))]
    found = []
    for each, sums in ways:
        total = (each * weights).sum() + (sums * weights.square()).sum() / 9
        found.append([each, sums, *torch.autograd.grad(total, logits)])
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-6}.get(dtype, 0.01)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance / 10)
