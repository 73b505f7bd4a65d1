"""Loops that note what arrives: states and gradients are those of the layers that they stand for, in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor

from nmtkit.data.batch import collate
from nmtkit.models.base import MODELS, Model, ModelConfig, VocabularySizes
from nmtkit.models.output import log_probabilities, log_probabilities_of
from nmtkit.recurrent_models import luong, rnnsearch
from nmtkit.recurrent_models.luong import LuongConfig
from nmtkit.recurrent_models.rnnsearch import RnnSearchConfig

BATCH = collate([[5, 6, 7], [8, 9]], [[6, 5], [7, 8, 9, 5]])
SIZES: dict[str, Any] = {"embedding_size": 5, "hidden_size": 6, "attention_size": 7, "dropout": 0.0}


def unrolled(model: Model) -> list[Tensor]:
    """Features, and the gradients of all parameters."""
    output, _ = model.read(BATCH)
    weights = torch.linspace(-1, 1, output.features.numel(), dtype=torch.float64).view_as(output.features)
    used = [one for name, one in model.named_parameters() if not name.startswith(("readout", "output"))]
    return [output.features, *torch.autograd.grad((output.features * weights).sum(), used)]


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_wanted_words_have_the_probability_and_the_gradient_of_the_softmax(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    logits = torch.randn(4, 9).to(dtype).requires_grad_()
    wanted, weights = torch.tensor([0, 8, 3, 3]), torch.tensor([1.0, -0.5, 0.0, 2.0])
    found = []
    for each in (log_probabilities_of(wanted, logits), log_probabilities(logits).gather(1, wanted[:, None])[:, 0]):
        found.append([each, *torch.autograd.grad((each * weights).sum(), logits)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10 if dtype == torch.float64 else 0.01, atol=1e-10)
