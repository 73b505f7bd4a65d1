"""Every model in every precision that it can be read in: near to itself in float64, whatever is searched together."""

import copy

import pytest
import torch

from nmtkit.layers import linear
from nmtkit.layers.linear import PackedLinear, cast_to_16_bits, prepare_for_inference
from nmtkit.models.base import Decoder
from tests.contracts.test_models import SOURCES, batch_of, walked
from tests.contracts.variants import EVERY, build, in_turns, with_contract

NEAR = {torch.float32: 1e-4, torch.bfloat16: 0.2, torch.float16: 0.03}
"""By how much a log-probability of these small models differs at most."""


def steps(model: Decoder, rows: list[int]) -> torch.Tensor:
    """Log-probabilities `(N,T,V)` of some words after some of the sources, read together."""
    words = torch.tensor([[1, 4, 9, 6], [1, 5, 5, 12], [1, 11, 3, 4], [1, 8, 7, 6], [1, 6, 6, 6]])
    log_probs, _ = walked(
        model, model.encode(batch_of(model, [SOURCES[row] for row in rows])), words[rows]
    )
    return log_probs[:, :, : model.sizes["tgt"]]


@pytest.mark.skipif(not linear._has_onednn(), reason="this torch has no oneDNN")
@pytest.mark.parametrize("variant", with_contract(Decoder, EVERY))
@torch.no_grad()
def test_packed_models_are_near_and_do_not_depend_on_the_batch(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "MIN_OUTPUTS", 2)  # the maps of these models are small
    monkeypatch.setattr(linear, "ALWAYS_PACKED_WEIGHTS", 0)
    model = build(*EVERY[variant]).eval()
    expected = steps(copy.deepcopy(model).double(), [0, 1, 2, 3, 4])
    prepare_for_inference(model, "fp32")
    assert any(isinstance(part, PackedLinear) for part in model.modules())
    log_probs = steps(model, [0, 1, 2, 3, 4])
    assert log_probs.dtype == torch.float32
    real = expected > -30
    assert (log_probs - expected)[real].abs().max() < NEAR[torch.float32]
    for rows in ([0], [3, 1]):
        few = steps(model, rows)
        assert (few - log_probs[rows])[real[rows]].abs().max() < NEAR[torch.float32]


@pytest.mark.parametrize(
    ("variant", "dtypes"), in_turns([torch.bfloat16, torch.float16], only_first=True)
)
@torch.no_grad()
def test_cast_models_are_near(
    variant: str, dtypes: list[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All weights in 16 bits, what is added up wide."""
    monkeypatch.setattr(linear.PaddedLinear, "ROWS", 8)
    for dtype in dtypes:
        model = build(*EVERY[variant]).eval()
        expected = steps(copy.deepcopy(model).double(), [0, 1, 2, 3, 4])
        cast_to_16_bits(model, dtype)
        log_probs = steps(model, [0, 1, 2, 3, 4])
        assert log_probs.dtype == torch.float32
        real = expected > -30
        assert (log_probs - expected)[real].abs().max() < NEAR[dtype]
