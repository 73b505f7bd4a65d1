"""Every model in every precision that it can be read in: near to itself in float64, whatever is searched together."""

import copy

import pytest
import torch
from test_models import SOURCES, batch_of, walked
from variants import EVERY, build, in_turns

from nmtkit.layers import inference
from nmtkit.layers.inference import (
    InferenceCell,
    InferenceLinear,
    cast_to_16_bits,
    quantize_for_inference,
    supported_precisions,
)
from nmtkit.models.base import Decoder

NEAR = {"fp32": 1e-4, "bf16": 0.2, "int8": 0.3, "fp16": 0.03}
"""By how much a log-probability of these small models differs at most."""

ROUNDING = {"fp32": 1e-4, "bf16": 0.1, "int8": 0.02}
"""The same of one precision in batches of other sizes: a number that is rounded up in one and down in the other."""


def steps(model: Decoder, rows: list[int]) -> torch.Tensor:
    """Log-probabilities `(N,T,V)` of some words after some of the sources, read together."""
    words = torch.tensor([[1, 4, 9, 6], [1, 5, 5, 12], [1, 11, 3, 4], [1, 8, 7, 6], [1, 6, 6, 6]])
    log_probs, _ = walked(model, model.encode(batch_of(model, [SOURCES[row] for row in rows])), words[rows])
    return log_probs[:, :, : model.sizes["tgt"]]


@pytest.fixture(autouse=True)
def pack_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The maps of these models are small."""
    monkeypatch.setattr(inference, "MIN_OUTPUTS", 2)
    monkeypatch.setattr(inference.PaddedLinear, "ROWS", 8)
    monkeypatch.setattr(inference, "lower_pays", lambda *_: [True] * 4)


@pytest.mark.parametrize(
    ("variant", "kinds"), in_turns(supported_precisions(torch.device("cpu")), each=2, only_first=True)
)
@torch.no_grad()
def test_packed_models_are_near_and_do_not_depend_on_the_batch(variant: str, kinds: list[inference.Precision]) -> None:
    for precision in kinds:
        model = build(*EVERY[variant]).eval()
        expected = steps(copy.deepcopy(model).double(), [0, 1, 2, 3, 4])
        quantize_for_inference(model, precision)
        assert any(isinstance(part, InferenceLinear | InferenceCell) for part in model.modules())
        log_probs = steps(model, [0, 1, 2, 3, 4])
        assert log_probs.dtype == torch.float32
        real = expected > -30
        coarser = inference.INT8_MAX / inference.activation_format().largest if precision == "int8" else 1.0
        assert (log_probs - expected)[real].abs().max() < NEAR[precision] * coarser
        for rows in ([0], [3, 1]):
            few = steps(model, rows)
            assert (few - log_probs[rows])[real[rows]].abs().max() < ROUNDING[precision]


@pytest.mark.parametrize(("variant", "dtypes"), in_turns([torch.bfloat16, torch.float16], only_first=True))
@torch.no_grad()
def test_cast_models_are_near(variant: str, dtypes: list[torch.dtype]) -> None:
    """As on CUDA: all weights in 16 bits, what is added up wide."""
    for dtype in dtypes:
        model = build(*EVERY[variant]).eval()
        expected = steps(copy.deepcopy(model).double(), [0, 1, 2, 3, 4])
        cast_to_16_bits(model, dtype)
        log_probs = steps(model, [0, 1, 2, 3, 4])
        assert log_probs.dtype == torch.float32
        real = expected > -30
        assert (log_probs - expected)[real].abs().max() < NEAR["bf16" if dtype == torch.bfloat16 else "fp16"]
