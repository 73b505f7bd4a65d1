"""Linear maps for inference: packed ones against float64, what is packed, and what is cast."""

import pytest
import torch
from torch import Tensor, nn

from nmtkit.core.errors import RecipeError
from nmtkit.layers import linear
from nmtkit.layers.linear import (
    PackedLinear,
    PaddedLinear,
    Precision,
    UnpackedLinear,
    cast_to_16_bits,
    pack_weights,
    prepare_for_inference,
    supported_precisions,
)

CPU = torch.device("cpu")
needs_onednn = pytest.mark.skipif(not linear._has_onednn(), reason="this torch has no oneDNN")


def random_linear(outputs: int = 40, inputs: int = 24, bias: bool = True) -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(inputs, outputs, bias=bias).eval().requires_grad_(False)


def exact(plain: nn.Linear, inputs: Tensor) -> Tensor:
    bias = 0 if plain.bias is None else plain.bias.double()
    return inputs.double() @ plain.weight.double().T + bias


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1,), (3,), (70,), (2, 5), (4, 1)])
@pytest.mark.parametrize("packs", [True, False])
def test_a_packed_map_is_the_map(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], bias: bool, packs: bool
) -> None:
    # where it is lower some processors round products to bfloat16
    torch.set_float32_matmul_precision("highest")
    monkeypatch.setattr(linear, "ALWAYS_PACKED_WEIGHTS", 0 if packs else 1 << 40)
    plain = random_linear(bias=bias)
    inputs = torch.randn(*shape, 24)
    packed = PackedLinear(plain)
    torch.testing.assert_close(packed(inputs).double(), exact(plain, inputs), rtol=1e-5, atol=1e-5)
    assert ("packed" in vars(packed)) == packs


@needs_onednn
def test_a_row_does_not_depend_on_the_others() -> None:
    packed = PackedLinear(random_linear(1200, 128))
    inputs = torch.randn(130, 128)
    whole = packed(inputs)
    for rows in (slice(0, 1), slice(3, 5), slice(7, 90)):
        torch.testing.assert_close(packed(inputs[rows]), whole[rows], rtol=1e-5, atol=1e-5)


@needs_onednn
def test_weights_are_packed_when_a_product_gains_by_it() -> None:
    """A translator of single lines does without most of it, and forked processes get it from the first."""
    small, other, large = (PackedLinear(random_linear(256, inputs)) for inputs in (128, 128, 4096))
    small(torch.randn(2, 128))
    large(torch.randn(2, 4096))
    assert "packed" not in vars(small)
    assert "packed" in vars(large)
    small(torch.randn(600, 128))
    assert "packed" in vars(small)
    pack_weights(nn.Sequential(other))
    assert "packed" in vars(other)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.map, self.gate = nn.Linear(24, 40), nn.Linear(24, 1)
        self.read, self.output = UnpackedLinear(24, 40), nn.Linear(24, 40)


@needs_onednn
@torch.no_grad()
def test_what_is_packed_and_what_is_left() -> None:
    model = Small().eval()
    inputs = torch.randn(3, 24)
    given = {name: (part.weight, part(inputs)) for name, part in model.named_children()}
    prepare_for_inference(model, "fp32", [model.output])
    assert [name for name, part in model.named_children() if isinstance(part, PackedLinear)] == [
        "map"
    ]
    for name, part in model.named_children():
        weight, expected = given[name]
        assert part.weight.data_ptr() == weight.data_ptr(), "nothing is copied before it is packed"
        torch.testing.assert_close(part(inputs), expected)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_precision_without_instructions_is_refused(
    precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "_has_onednn", lambda: False)
    assert supported_precisions(CPU) == ["fp32"]
    with pytest.raises(
        RecipeError, match=f"^precision {precision} is not .* cpu device; use fp32, or auto$"
    ):
        prepare_for_inference(Small().eval(), precision)


def test_without_onednn_nothing_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_has_onednn", lambda: False)
    model = Small().eval()
    prepare_for_inference(model, "fp32")
    assert type(model.map) is nn.Linear


def test_a_matrix_of_many_rows_is_padded_for_16_bits_and_nobody_sees_it() -> None:
    model = nn.ModuleDict(
        {"odd": nn.Linear(8, 101), "even": nn.Linear(8, 104), "small": nn.Linear(8, 5)}
    ).eval()
    inputs = torch.randn(3, 2, 8)
    expected = model["odd"](inputs)
    cast_to_16_bits(model, torch.bfloat16)
    assert [type(one) for one in model.values()] == [PaddedLinear, nn.Linear, nn.Linear]
    assert model["odd"].weight.shape == (128, 8)
    result = model["odd"](inputs.bfloat16())
    assert (result.shape, result.dtype) == ((3, 2, 101), torch.bfloat16)
    torch.testing.assert_close(result.float(), expected, rtol=0.02, atol=0.02)
