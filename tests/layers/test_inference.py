"""Packed maps: each precision against its formula in float64, and what happens where a product is missing."""

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nmtkit.core.errors import RecipeError
from nmtkit.layers import inference
from nmtkit.layers.inference import (
    ACTIVATION_FORMATS,
    ActivationFormat,
    Bf16Linear,
    Fp32Linear,
    InferenceCell,
    InferenceLinear,
    Int8Linear,
    PaddedLinear,
    UnquantizedLinear,
    cast_to_16_bits,
    is_supported,
    laid_out,
    quantize_for_inference,
    supported_precisions,
)

CPU = torch.device("cpu")
HERE = supported_precisions(CPU)
needs_bf16 = pytest.mark.skipif("bf16" not in HERE, reason="this processor has no products of bfloat16")
needs_int8 = pytest.mark.skipif("int8" not in HERE, reason="this torch has no products of int8 here")


@pytest.fixture(autouse=True)
def forget_what_was_tried() -> Iterator[None]:
    tried = (is_supported, inference.activation_format)
    for one in tried:
        one.cache_clear()
    yield
    for one in tried:
        one.cache_clear()


def random_linear(outputs: int = 40, inputs: int = 24, bias: bool = True) -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(inputs, outputs, bias=bias).eval().requires_grad_(False)


def exact(linear: nn.Linear, inputs: Tensor) -> Tensor:
    bias = 0 if linear.bias is None else linear.bias.double()
    return inputs.double() @ linear.weight.double().T + bias


def rounded(values: Tensor) -> Tensor:
    """To bfloat16, and back."""
    return values.float().bfloat16().double()


def quantized_by_loop(values: Tensor, largest: int = 127) -> Tensor:
    """Each row as whole numbers up to the largest times such a part of its largest value, by a loop."""
    rows = []
    for row in values.double().tolist():
        scale = max(map(abs, row)) / largest
        rows.append([round(value / scale) * scale if scale else 0.0 for value in row])
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1,), (3,), (70,), (2, 5), (4, 1)])
def test_float32_is_exact_for_few_rows_and_many(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], bias: bool
) -> None:
    torch.set_float32_matmul_precision("highest")  # where it is lower some processors round products to bfloat16
    linear = random_linear(bias=bias)
    inputs = torch.randn(*shape, 24)
    expected = exact(linear, inputs)
    for pays in (True, False):
        monkeypatch.setattr(Fp32Linear, "_pays", lambda *_, pays=pays: pays)
        packed = Fp32Linear(linear.weight, linear.bias)
        both = packed(inputs).double(), packed.forward_relu(inputs).double()
        torch.testing.assert_close(both, (expected, expected.relu()), rtol=1e-5, atol=1e-5)


@needs_bf16
@pytest.mark.parametrize("shape", [(1,), (3,), (70,), (2, 5)])
def test_bfloat16_rounds_what_goes_in_and_what_comes_out(shape: tuple[int, ...]) -> None:
    linear = random_linear()
    inputs = torch.randn(*shape, 24)
    wanted = rounded(inputs) @ rounded(linear.weight).T + rounded(linear.bias)
    packed = Bf16Linear(linear.weight, linear.bias)
    assert packed(inputs).dtype == torch.float32
    torch.testing.assert_close(packed(inputs).double(), wanted, rtol=2**-8, atol=1e-5)
    assert torch.equal(packed.forward_relu(inputs).float(), packed(inputs).relu())


class Processor:
    """Products of whole numbers in float64; each form has a cost, and may be wrong. Stands in for the module `time`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, costs: dict[int, float], wrong: Collection[int] = ()) -> None:
        self.costs, self.wrong, self.now = costs, wrong, 0.0
        self.calls: Counter[int] = Counter()
        monkeypatch.setattr(torch.ops.onednn, "qlinear_prepack", lambda weight, _: weight.T)
        monkeypatch.setattr(inference, "_of_whole_numbers", self.product)
        monkeypatch.setattr(inference, "time", self)

    def thread_time(self) -> float:
        return self.now

    def product(self, whole: Tensor, zero: int, weight: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
        self.now += self.costs[zero] * 1e-5
        self.calls[zero] += 1
        result = (whole.double() - zero) @ weight.double() * scales - zeros
        return result + (zero in self.wrong)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1,), (2,), (70,), (2, 5)])
@pytest.mark.parametrize("form", ACTIVATION_FORMATS)
def test_int8_is_what_the_formula_says(
    shape: tuple[int, ...], bias: bool, form: ActivationFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "int8" not in HERE or form != inference.activation_format():
        Processor(monkeypatch, {form.zero: 1.0})
    monkeypatch.setattr(inference, "activation_format", lambda: form)
    largest = form.largest
    linear = random_linear(bias=bias)
    inputs = torch.randn(*shape, 24)
    inputs.view(-1, 24)[0] *= 50  # the other rows are as fine as before
    whole = nn.Linear(24, 40, bias=bias).requires_grad_(False)
    whole.weight.copy_(quantized_by_loop(linear.weight))
    if bias:
        whole.bias.copy_(linear.bias)
    wanted = exact(whole, quantized_by_loop(inputs.view(-1, 24), largest)).view(*shape, 40)
    packed = Int8Linear(linear.weight, linear.bias)
    # A number that lies between two whole ones may be rounded to either.
    step = inputs.abs().amax(-1, keepdim=True) / largest * linear.weight.abs().max() * 1.01
    assert ((packed(inputs) - wanted).abs() <= step).all()
    assert (packed(inputs) - wanted).abs().median() < 1e-4
    roughly = 0.03 * float(inputs.abs().max())
    torch.testing.assert_close(packed(inputs).double(), exact(linear, inputs), rtol=0.02, atol=roughly)


@pytest.mark.parametrize("form", ACTIVATION_FORMATS)
def test_whole_numbers_are_written_without_loss(form: ActivationFormat) -> None:
    rows = torch.tensor([[-5.0, 5.0, 0.0, 2.5], [0.0, 0.0, 0.0, 0.0], [1e30, -1e29, 0.0, 1.0]])
    whole, scales = inference.quantize_rows(rows, form)
    assert whole.dtype == (torch.uint8 if form.zero else torch.int8)
    wanted = (rows.double() / scales.double()).round()
    assert torch.equal(whole.double() - form.zero, wanted)
    assert wanted.abs().amax(1).tolist() == [form.largest, 0, form.largest]


@needs_int8
@pytest.mark.parametrize("rows", [2, 5, 16, 80, 400])
@pytest.mark.parametrize(("inputs", "outputs"), [(24, 40), (128, 384), (512, 100), (1024, 17)])
def test_sums_of_whole_numbers_are_exact_on_this_processor(rows: int, inputs: int, outputs: int) -> None:
    torch.manual_seed(rows)
    form = inference.activation_format()
    given = torch.randint(-form.largest, form.largest + 1, (rows, inputs))
    weight = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8)
    given[0], weight[0], weight[1] = form.largest, 127, -127
    layout = torch.ops.onednn.qlinear_prepack(weight, None)
    whole = (given + form.zero).to(torch.uint8 if form.zero else torch.int8)
    products = inference._of_whole_numbers(
        whole, form.zero, layout, torch.ones(outputs), torch.zeros(outputs, dtype=torch.int32)
    )
    largest = inputs * 127 * (form.largest + form.zero)
    near = 0 if largest < 1 << 24 else 2  # float32 rounds larger whole numbers
    torch.testing.assert_close(products, (given.double() @ weight.double().T).float(), rtol=0, atol=near)


BY_128, SIGNED, BY_64 = (form.zero for form in ACTIVATION_FORMATS)


@pytest.mark.parametrize(
    ("costs", "wrong", "taken"),
    [
        ((1, 1, 1), (), BY_128),
        ((3, 1, 1), (), BY_128),  # as much as other programs may change it
        ((300, 1, 1), (), SIGNED),
        ((300, 3, 1), (), SIGNED),
        ((3, 1, 1), (SIGNED, BY_128), BY_64),  # AVX2
        ((300, 300, 300), (), BY_128),
        ((1, 1, 300), (SIGNED, BY_128), BY_64),
    ],
)
def test_inputs_have_the_first_form_that_is_right_and_has_a_kernel(
    costs: Sequence[float], wrong: Collection[int], taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = Processor(monkeypatch, dict(zip((BY_128, SIGNED, BY_64), costs, strict=True)), wrong)
    assert inference.activation_format().zero == taken
    threads = torch.get_num_threads()
    slow = [form.zero for form in ACTIVATION_FORMATS if processor.costs[form.zero] == 300]
    if 0 < len(slow) < len(ACTIVATION_FORMATS) and taken not in slow:
        assert all(processor.calls[zero] <= 1 + inference.CALLS for zero in slow), "not tried with many rows"
    calls = processor.calls.total()
    assert inference.activation_format().zero == taken
    assert (processor.calls.total(), torch.get_num_threads()) == (calls, threads), "tried once"


def test_where_no_form_is_right_there_is_no_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = [form.zero for form in ACTIVATION_FORMATS]
    Processor(monkeypatch, dict.fromkeys(zeros, 1.0), zeros)
    assert not is_supported("int8")
    assert "int8" not in supported_precisions(CPU)


def test_a_map_is_in_the_type_that_is_quickest_for_so_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of int8 takes eight times as long as float32's, and each row a quarter."""
    processor = Processor(monkeypatch, {form.zero: 1e-6 for form in ACTIVATION_FORMATS})

    def work(cost: float, a_row: float, real: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def forward(part: InferenceLinear, inputs: Tensor, **more: bool) -> Tensor:
            processor.now += 1e-5 * (cost + a_row * inputs.numel() / part.in_features)
            called.append(type(part))
            return real(part, inputs, **more)

        return forward

    called: list[type] = []
    monkeypatch.setattr(Int8Linear, "forward", work(8, 0.25, Int8Linear.forward))
    monkeypatch.setattr(Fp32Linear, "forward", work(1, 1, Fp32Linear.forward))
    monkeypatch.setattr(inference, "MEASURED", measured := {})
    linear = random_linear()
    mixed = inference.laid_out("int8", linear.weight, linear.bias)
    assert measured == {"int8 24 40": [False, False, True, True]}
    for rows, kind in ((1, Fp32Linear), (2, Fp32Linear), (16, Fp32Linear), (17, Int8Linear), (400, Int8Linear)):
        inputs = torch.randn(rows, 24)
        called.clear()
        results = mixed(inputs), mixed.forward_relu(inputs)
        assert called == [kind, kind]
        torch.testing.assert_close(results[0].double(), exact(linear, inputs), rtol=0.02, atol=0.2)
        assert torch.equal(results[1], results[0].relu())
    called.clear()
    inference.laid_out("int8", linear.weight, None)
    assert called == [], "timed once"
    for pays, kind in ((True, Int8Linear), (False, Fp32Linear)):
        measured["int8 24 40"] = [pays] * 4
        assert type(inference.laid_out("int8", linear.weight, None)) is kind


@needs_bf16
@pytest.mark.parametrize("pays", [(True, False), (False, True)])
def test_maps_of_two_types_read_what_the_other_gives(pays: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = random_linear(), random_linear(24, 40)
    found = {"bf16 24 40": [pays[0]] * 4, "bf16 40 24": [pays[1]] * 4}
    monkeypatch.setattr(inference, "MEASURED", found)
    inner, out = (inference.laid_out("bf16", one.weight, one.bias) for one in (first, second))
    inputs = torch.randn(3, 24)
    result = out(inner.forward_relu(inputs))
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, second(first(inputs).relu()), rtol=0.02, atol=0.02)


@needs_int8
def test_int8_of_zeros_is_the_bias_and_a_nan_stays_one() -> None:
    linear = random_linear()
    packed = Int8Linear(linear.weight, linear.bias)
    inputs = torch.stack([torch.zeros(24), torch.full((24,), torch.nan), torch.randn(24)])
    result = packed(inputs)
    assert torch.equal(result[0], linear.bias)
    assert result[1].isnan().all()
    assert torch.equal(result[2:], packed(inputs[2:]))


@pytest.mark.parametrize("precision", HERE)
def test_a_row_does_not_depend_on_the_others(precision: inference.Precision) -> None:
    linear = random_linear(300, 64)
    inputs = torch.randn(130, 64)
    packed = inference._KINDS[precision](linear.weight, linear.bias)
    near = 2**-7 if precision == "bf16" else 1e-5
    whole = packed(inputs)
    for rows in (slice(0, 1), slice(3, 5), slice(7, 90)):
        torch.testing.assert_close(packed(inputs[rows]), whole[rows], rtol=near, atol=1e-5)


@pytest.mark.parametrize("precision", HERE)
@pytest.mark.parametrize("kind", [nn.GRUCell, nn.LSTMCell])
def test_a_packed_cell_is_the_cell(kind: type[nn.GRUCell] | type[nn.LSTMCell], precision: inference.Precision) -> None:
    torch.manual_seed(1)
    cell = kind(32, 24).requires_grad_(False)
    packed = InferenceCell(inference._KINDS[precision], *cell.parameters())
    inputs, hidden, kept = torch.randn(6, 32), torch.randn(6, 24).tanh(), torch.randn(6, 24)
    state = (hidden, kept) if kind is nn.LSTMCell else hidden
    near = {"fp32": 1e-5, "bf16": 0.02, "int8": 0.04}[precision]
    torch.testing.assert_close(packed(inputs, state), cell(inputs, state), rtol=0, atol=near)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.map, self.gate, self.read = nn.Linear(24, 40), nn.Linear(24, 1), UnquantizedLinear(24, 40)


@pytest.mark.parametrize("precision", HERE)
def test_what_is_packed_and_what_is_left(precision: inference.Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "lower_pays", lambda *_: [True] * 4)
    model = Small().eval()
    inputs = torch.randn(3, 24)
    gate, read = model.gate(inputs), model.read(inputs)
    quantize_for_inference(model, precision)
    assert type(model.map) is inference._KINDS[precision]
    torch.testing.assert_close((model.gate(inputs), model.read(inputs)), (gate, read))


def test_weights_are_freed_one_by_one_as_they_are_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a model is in memory three times while it is opened."""
    model = nn.Sequential(*(random_linear() for _ in range(3)))
    given, alive = [weakref.ref(one.weight) for one in model], []

    def noting(*arguments: Any) -> InferenceLinear:
        alive.append(sum(one() is not None for one in given))
        return laid_out(*arguments)

    monkeypatch.setattr(inference, "laid_out", noting)
    quantize_for_inference(model, "fp32")
    assert alive == [3, 2, 1]


def broken(*_: object, **__: object) -> Tensor:
    raise RuntimeError("not built with it")


def test_without_onednn_float32_is_torchs_own_and_others_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "_onednn", broken)
    monkeypatch.setattr(inference, "MIN_ONEDNN_PRODUCTS", 0)
    monkeypatch.setattr(inference, "quantize_rows", broken)
    assert supported_precisions(CPU) == ["fp32"]
    model = Small().eval()
    inputs = torch.randn(3, 24)
    expected = exact(model.map, inputs)
    for precision in ("bf16", "int8", "fp16"):
        with pytest.raises(RecipeError, match=f"^precision {precision}: .* on cpu; take fp32, or auto$"):
            quantize_for_inference(model, precision)
    quantize_for_inference(model, "fp32")
    assert isinstance(model.map, InferenceLinear)
    torch.testing.assert_close(model.map(inputs).double(), expected.detach(), rtol=1e-5, atol=1e-5)


def test_products_that_are_wrong_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "_onednn", lambda inputs, weight, *_: inputs.new_zeros(len(inputs), len(weight)))
    assert not is_supported("fp32")
    assert not is_supported("bf16")


def test_a_matrix_of_many_rows_is_padded_for_16_bits_and_nobody_sees_it() -> None:
    model = nn.ModuleDict({"odd": nn.Linear(8, 101), "even": nn.Linear(8, 104), "small": nn.Linear(8, 5)}).eval()
    inputs = torch.randn(3, 2, 8)
    expected = model["odd"](inputs)
    cast_to_16_bits(model, torch.bfloat16)
    assert [type(one) for one in model.values()] == [PaddedLinear, nn.Linear, nn.Linear]
    assert model["odd"].weight.shape == (128, 8)
    result = model["odd"](inputs.bfloat16())
    assert (result.shape, result.dtype) == ((3, 2, 101), torch.bfloat16)
    torch.testing.assert_close(result.float(), expected, rtol=0.02, atol=0.02)


def test_few_rows_of_a_large_map_have_the_same_sums_in_both_layouts() -> None:
    torch.manual_seed(0)
    large = Fp32Linear(torch.randn(3600, 256), torch.randn(3600))
    for count in large.alike:
        rows = torch.randn(count, 256)
        assert torch.equal(large(rows), torch.nn.functional.linear(rows, large.weight, large.bias))
    assert Fp32Linear(torch.randn(3600, 300), None).alike == Fp32Linear(torch.randn(3500, 256), None).alike == []


@pytest.mark.skipif(not inference.is_supported("fp32"), reason="no oneDNN")
def test_the_layout_for_many_rows_is_made_when_it_is_needed() -> None:
    """A translator of single lines does without it, and processes that share the weights get it from the first."""
    maps = [inference.Fp32Linear(torch.randn(256, 128), None) for _ in range(2)]
    for rows in (1, 600):
        maps[0](torch.randn(rows, 128))
        assert ("many" in vars(maps[0])) == (rows == 600 and maps[0]._pays(600))
    inference.lay_out(nn.Sequential(*maps))
    assert all("many" in vars(one) for one in maps)
