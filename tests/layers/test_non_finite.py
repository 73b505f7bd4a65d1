"""The message of a training with numbers that are not finite names the first module that makes them."""

import math

import pytest
import torch

from nmtkit.data.batches.batch import collate
from nmtkit.layers.non_finite import locate_non_finite
from nmtkit.models.base import VocabularySizes
from nmtkit.models.transformer import Transformer, TransformerConfig

SIZES = VocabularySizes({"src": 12, "tgt": 12}, shared=True)
CONFIG = TransformerConfig(
    hidden_size=8, feed_forward_size=16, heads=2, encoder_layers=2, decoder_layers=2
)


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(1)
    return Transformer(CONFIG, SIZES)


def look(model: Transformer) -> str | None:
    batch = collate([[4, 5], [6]], [[7], [8, 9, 10]])
    return locate_non_finite(model, lambda: model(batch, keep=batch.loss_mask))


def names(model: Transformer, kind: type[torch.nn.Module]) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, kind)]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_names_the_first_module_and_its_weights(model: Transformer, value: float) -> None:
    norms = names(model, torch.nn.LayerNorm)
    for name in norms[2:]:
        with torch.no_grad():
            model.get_submodule(name).bias[0] = value
    assert look(model).endswith(
        f"module {norms[2]} (LayerNorm), whose weights already contain NaN or infinity"
    )


def test_what_a_module_makes_of_finite_weights(model: Transformer) -> None:
    last = names(model, torch.nn.LayerNorm)[-1]
    with torch.no_grad():
        model.get_submodule(last).weight.fill_(3e38)
        model.get_submodule(last).bias.fill_(3e38)
    assert look(model).endswith(f"module {last} (LayerNorm)")


def test_where_nothing_is_wrong_in_the_pass_it_is_the_gradient(model: Transformer) -> None:
    assert look(model).startswith("the outputs of all modules are finite; the loss or a gradient")
    assert not any(module._forward_hooks for module in model.modules())
