"""Linear maps for inference: weights converted and laid out once, for the products of one precision.

On a CPU the linear maps of a model are replaced by the ones of this file; all else stays in float32. On CUDA the whole
model is cast to 16 bits. Letters: M rows, I input size, O output size.

    fp32  y = x W^T + b
    bf16  x and W are rounded to bfloat16, products are summed up in float32, y is rounded to bfloat16
    int8  x_m ~ s_m q_m and W_o ~ t_o p_o with whole numbers q, p from -127 to 127 and s_m, t_o the largest of |x_m| and
          |W_o| over 127, so that y_mo = s_m t_o (q_m . p_o) + b_o: dynamic quantization with one scale for each row of
          x and of W (Jacob et al. 2018, "Quantization and Training of Neural Networks", section 2.2). A row's result
          depends on no other row. `ACTIVATION_FORMATS` says how q is stored for a processor.

For few rows, or on a processor without instructions for it, a lower precision takes longer than float32: `lower_pays`
measures for which rows it is quicker, map by map. For all others the map stays in float32.
"""

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from functools import cache, cached_property, partial
from itertools import product
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmtkit.core.device import one_thread
from nmtkit.core.errors import RecipeError

Precision = Literal["fp32", "fp16", "bf16", "int8"]
"""The precision of the products of a model at inference."""
PrecisionChoice = Literal["auto", "fp32", "fp16", "bf16", "int8"]
"""The precision as an option: `auto` measures the fastest."""

MIN_ONEDNN_PRODUCTS = 1 << 24
"""Multiplications from which oneDNN's float32 product is worth its longer call, with AVX-512."""
LARGE, FEW_ROWS = 1 << 18, range(3, 65)
"""Without AVX-512: weights and rows for which oneDNN's float32 product is faster than MKL's."""
HUGE = 900_000
"""With AVX-512: weights from which oneDNN's product may be faster for few rows too, which it reads once from memory."""
MIN_OUTPUTS = 16
"""Maps to fewer numbers, such as gates, are left alone."""
INT8_MAX = 127
"""The largest whole number of weights."""
EMULATED_RATIO = 10.0
"""A product that takes so many times as long as the fastest is emulated, not computed by instructions of its own."""
TIMED_ROWS = (1, 5, 40, 160)
"""Rows of the products that are timed: greedy search and a beam alone, some sentences, and a batch."""
LAST_ROWS = (2, 16, 80)
"""Up to so many rows a map is as for the first, second, ... of `TIMED_ROWS`."""
MOST_TIMED = 1 << 20
"""Numbers of weights: of a larger map a part is timed."""
WORTH = 0.9
"""A lower precision is used for some rows only where it takes at most this part of float32's time."""
TRYING, CALLS = 0.002, 5
"""A timing ends after so many seconds, or so many calls."""
OUTPUT_LAYER = "output"
"""The name of a model's output layer."""
STEPPED_LAYERS = "decoder"
"""The name of the layers that a model steps through cell by cell; others read whole sequences in one call."""


class ActivationFormat(NamedTuple):
    """How whole numbers of inputs are stored in 8 bits."""

    largest: int
    """The numbers are from minus this to this."""
    zero: int
    """The zero point added to store them unsigned; 0: they are signed."""


ACTIVATION_FORMATS: tuple[ActivationFormat, ...] = (
    ActivationFormat(127, 128),
    ActivationFormat(127, 0),
    ActivationFormat(63, 64),
)
"""Preferred formats first. For signed numbers oneDNN often has reference code alone, even with AMX where rows are few.
AVX2 adds two products in 16 bits, which overflow with more than the seven bits of the last format."""


class UnquantizedLinear(nn.Linear):
    """A linear map whose matrix others read as well, so that it is never converted."""


class InferenceLinear(nn.Module):
    """A linear map for inference only; `(...,I)` to `(...,O)`."""

    keeps_16_bits = False
    """Whether a 16-bit result stays so: logits, which are many."""
    # What oneDNN has packed is called `packed`: other operators read it as if it were a matrix, and write beyond it.

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bias = None if bias is None else bias.detach()

    def forward_relu(self, inputs: Tensor) -> Tensor:
        """max(0, map), in any type that another map of the same precision reads."""
        return F.relu(self(inputs), inplace=True)


class Fp32Linear(InferenceLinear):
    """A float32 map. Few rows read the weights by columns, many in oneDNN's own layout where torch has it."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        self.weight = weight.detach().t().contiguous().t()
        self.has_many = is_supported("fp32")
        self.alike: list[int] = []  # few rows of large maps, for which oneDNN is faster and here has the same sums
        if self.has_many and weight.numel() >= HUGE and self.in_features <= 256:
            for rows in (weight.detach()[:count] for count in range(3, 8)):
                if torch.equal(_onednn(rows, self.many, self.bias, "none"), F.linear(rows, self.weight, self.bias)):
                    self.alike.append(len(rows))
            if not self.alike:
                del self.many

    @cached_property
    def many(self) -> Tensor:
        """The weights in oneDNN's own layout, made when they are first needed: a sentence alone needs few of them."""
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(self.weight.contiguous())
        return packed

    def forward(self, inputs: Tensor, relu: bool = False) -> Tensor:
        """The map, and a ReLU behind it where asked for."""
        inputs = inputs.float() if inputs.dtype == torch.bfloat16 else inputs  # of a map in lower precision
        if self.has_many and inputs.dtype == torch.float32 and self._pays(inputs.numel() // self.in_features):
            return _onednn(inputs, self.many, self.bias, "relu" if relu else "none")
        result = F.linear(inputs, self.weight, self.bias)
        return F.relu(result, inplace=True) if relu else result

    def forward_relu(self, inputs: Tensor) -> Tensor:
        """In float32."""
        return self.forward(inputs, relu=True)

    def _pays(self, rows: int) -> bool:
        size = self.in_features * self.out_features
        if torch.backends.cpu.get_cpu_capability() == "AVX2":
            return size >= LARGE and rows in FEW_ROWS
        return rows in self.alike or rows * size >= MIN_ONEDNN_PRODUCTS


class Bf16Linear(InferenceLinear):
    """A bfloat16 map."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, None if bias is None else bias.bfloat16())
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().bfloat16())

    def forward(self, inputs: Tensor) -> Tensor:
        """The map, rounded to bfloat16; in float32 unless `keeps_16_bits`."""
        result = _onednn(inputs.bfloat16(), self.packed, self.bias, "none")
        return result if self.keeps_16_bits else result.float()

    def forward_relu(self, inputs: Tensor) -> Tensor:
        """In bfloat16."""
        return _onednn(inputs.bfloat16(), self.packed, self.bias, "relu")


class Int8Linear(InferenceLinear):
    """A map with dynamic int8 quantization; see the head of this file."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        whole, scales = quantize_rows(weight.detach().float(), ActivationFormat(INT8_MAX, 0))
        self.scales = scales.squeeze(1)
        self.packed = torch.ops.onednn.qlinear_prepack(whole, None)
        self.zeros = torch.zeros(self.out_features, dtype=torch.int32)

    def forward(self, inputs: Tensor) -> Tensor:
        """The map, in float32."""
        rows = inputs.reshape(-1, self.in_features)
        single = len(rows) == 1  # for one row oneDNN may have a far slower product than for two
        form = activation_format()
        whole, scales = quantize_rows(rows.expand(2, -1) if single else rows, form)
        result = _of_whole_numbers(whole, form.zero, self.packed, self.scales, self.zeros)
        result = result.mul_(scales) if self.bias is None else torch.addcmul(self.bias, result, scales, out=result)
        return result[: len(rows)].view(*inputs.shape[:-1], self.out_features)


class MixedLinear(InferenceLinear):
    """A map in a lower precision for as many rows as this pays for, and else in float32: see `lower_pays`."""

    def __init__(self, lower: InferenceLinear, exact: Fp32Linear, pays: Sequence[bool]) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features, self.bias = lower.out_features, lower.in_features, exact.bias
        self.lower, self.exact, self.pays = lower, exact, tuple(pays)

    def _kind(self, inputs: Tensor) -> InferenceLinear:
        pays = self.pays[bisect_left(LAST_ROWS, inputs.numel() // self.in_features)]
        return self.lower if pays else self.exact

    def forward(self, inputs: Tensor) -> Tensor:
        """The map."""
        result: Tensor = self._kind(inputs)(inputs)
        return result

    def forward_relu(self, inputs: Tensor) -> Tensor:
        """In the type of either."""
        return self._kind(inputs).forward_relu(inputs)


def quantize_rows(rows: Tensor, form: ActivationFormat) -> tuple[Tensor, Tensor]:
    """Rows `(M,I)` as whole numbers of 8 bits, and their scales `(M,1)`."""
    scales = rows.abs().amax(1, keepdim=True).div_(form.largest).clamp_(min=torch.finfo(torch.float32).tiny)
    return _written((rows / scales).round_().to(torch.int8), form), scales


def _written(whole: Tensor, form: ActivationFormat) -> Tensor:
    # In unsigned 8 bits -1 is 255, and sums wrap around at 256.
    return whole.view(torch.uint8).add_(form.zero) if form.zero else whole


@cache
def activation_format() -> ActivationFormat:
    """The first of `ACTIVATION_FORMATS` with exact sums, computed by instructions of this processor."""
    # The largest numbers of either sign, and of both in turn: no sums are larger.
    signs = torch.tensor([[1, 1], [-1, -1], [1, -1]], dtype=torch.int8)
    weight, rows = INT8_MAX * signs.repeat(128, 64), signs.repeat(54, 64)  # (384,128), (162,128)
    layout = torch.ops.onednn.qlinear_prepack(weight, None), torch.ones(384), torch.zeros(384, dtype=torch.int32)
    left = ACTIVATION_FORMATS
    with one_thread():
        for count in TIMED_ROWS:
            seconds = dict.fromkeys(left, math.inf)
            for form in left:
                whole = form.largest * rows[:count]
                sums = partial(_of_whole_numbers, _written(whole.clone(), form), form.zero, *layout)
                if torch.equal(sums().double(), whole.double() @ weight.double().T):
                    seconds[form] = _seconds(sums)
            left = tuple(form for form in left if seconds[form] < min(math.inf, EMULATED_RATIO * min(seconds.values())))
            if not left:
                raise RuntimeError("sums of products of 8 bits are not right on this processor")
    return left[0]


MEASURED: dict[str, list[bool]] = {}
"""What `lower_pays` has found, by precision and size. Who puts in what an earlier process has found gets the same."""


def lower_pays(precision: Precision, inputs: int, outputs: int) -> list[bool]:
    """Whether a map of this size is quicker in a precision than in float32, for each of `TIMED_ROWS`; by one thread."""
    if (pays := MEASURED.get(name := f"{precision} {inputs} {outputs}")) is None:
        outputs = min(outputs, max(MIN_OUTPUTS, MOST_TIMED // inputs))
        weight = torch.linspace(0.0, 9.0, outputs * inputs).cos_().view(outputs, inputs)
        lower, exact = _KINDS[precision](weight, None), Fp32Linear(weight, None)
        every = [torch.linspace(-2.0, 3.0, count * inputs).sin_().view(count, inputs) for count in TIMED_ROWS]
        with one_thread():
            for rows, one in product(every, (lower, exact)):
                one(rows)  # which makes the kernel
            seconds = [[_seconds(partial(one, rows)) for one in (lower, exact)] for rows in every]
        pays = MEASURED[name] = [low <= WORTH * high for low, high in seconds]
    return pays


def _seconds(work: Callable[[], object]) -> float:
    """Thread time of the fastest of some calls, which other programs on the processor do not change."""
    begun = now = time.thread_time()
    least = math.inf
    for _ in range(CALLS):
        work()
        before, now = now, time.thread_time()
        least = min(least, now - before)
        if now - begun > TRYING:
            break
    return least


def _of_whole_numbers(whole: Tensor, zero: int, weight: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    result: Tensor = torch.ops.onednn.qlinear_pointwise(
        whole, 1.0, zero, weight, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return result


def _onednn(inputs: Tensor, weight: Tensor, bias: Tensor | None, after: str) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, after, [], "")
    return result


class InferenceCell(nn.Module):
    """One step of a GRU or an LSTM, like torch's cells, with products of one precision."""

    def __init__(self, kind: Callable[[Tensor, Tensor | None], InferenceLinear], *weights: Tensor) -> None:
        super().__init__()
        of_inputs, of_hidden, *biases = weights
        first, second = biases or (None, None)
        self.inputs, self.hidden = kind(of_inputs, first), kind(of_hidden, second)

    def forward(
        self, inputs: Tensor, state: Tensor | tuple[Tensor, Tensor], *_: Tensor
    ) -> Tensor | tuple[Tensor, Tensor]:
        """From `(N,I)` and the hidden state `(N,H)` to the new one; for an LSTM both are pairs with its memory cells.

        The weights that torch's cells take are ignored.
        """
        if isinstance(state, tuple):
            hidden, cell = state
            enter, forget, new, leave = self.inputs(inputs).add_(self.hidden(hidden)).chunk(4, 1)
            cell = torch.addcmul(forget.sigmoid() * cell, enter.sigmoid(), new.tanh())
            return leave.sigmoid() * cell.tanh(), cell
        size = state.shape[1]
        given, before = self.inputs(inputs), self.hidden(state)
        reset, keep = (given[:, : 2 * size] + before[:, : 2 * size]).sigmoid_().chunk(2, 1)
        new = torch.addcmul(given[:, 2 * size :], reset, before[:, 2 * size :]).tanh_()
        return torch.lerp(new, state, keep)


_KINDS: dict[str, type[InferenceLinear]] = {"fp32": Fp32Linear, "bf16": Bf16Linear, "int8": Int8Linear}


@cache
def is_supported(precision: Precision) -> bool:
    """Whether torch has correct products of a precision on this processor; tries a small one."""
    rows = torch.linspace(-2.0, 3.0, 7 * 32).sin_().view(7, 32)
    weight, bias = torch.linspace(0.0, 9.0, 48 * 32).cos_().view(48, 32), torch.linspace(-1.0, 1.0, 48)
    expected = F.linear(rows.double(), weight.double(), bias.double())
    try:
        if precision == "fp32":
            result = _onednn(rows, torch.ops.mkldnn._reorder_linear_weight(weight), bias, "none")
        else:
            result = _KINDS[precision](weight, bias)(rows)
    except (RuntimeError, AttributeError, KeyError):  # it is not there, or not for this processor
        return False
    return bool((result - expected).abs().max() < 0.02 * expected.abs().max())


def supported_precisions(device: torch.device) -> list[Precision]:
    """The precisions that a device supports here, float32 first."""
    if device.type == "cuda":
        return ["fp32", "fp16", "bf16"]
    return ["fp32", *(one for one in ("bf16", "int8") if device.type == "cpu" and is_supported(one))]


def lay_out(model: nn.Module) -> None:
    """Makes all layouts of the weights now, as where several processes are to share them."""
    for module in model.modules():
        if isinstance(module, Fp32Linear) and module.has_many:
            _ = module.many


@torch.no_grad()
def quantize_for_inference(model: nn.Module, precision: Precision, read_by_rows: Collection[nn.Module] = ()) -> None:
    """Converts a model in evaluation mode, on its final device, to a precision, in place: it can no longer be trained.

    Maps `read_by_rows` (by a shortlist) stay in float32 on a CPU. A model without such a map stands for its own.
    """
    device = next(model.parameters()).device
    # float32 needs no trial.
    if precision != "fp32" and precision not in (there := supported_precisions(device)):
        raise RecipeError(
            f"precision {precision}: not supported here on {device.type}; take {' or '.join(there)}, or auto"
        )
    for module in list(model.modules()):
        if (finalize := getattr(module, "finalize", None)) is not None:
            finalize("fp32" if read_by_rows else precision)
    if device.type != "cpu":
        if precision != "fp32":
            cast_to_16_bits(model, torch.float16 if precision == "fp16" else torch.bfloat16)
        return
    _replace_maps(model, partial(laid_out, precision), read_by_rows)


def _replace_maps(
    model: nn.Module, kind: Callable[[Tensor, Tensor | None], InferenceLinear], read_by_rows: Collection[nn.Module]
) -> None:
    # Without the maps themselves, each of which is freed as soon as it is replaced.
    for place, module in [(place, one) for place, one in model.named_modules() if one._modules]:
        for name, child in module._modules.items():
            if type(child) is nn.Linear and child not in read_by_rows and child.out_features >= MIN_OUTPUTS:
                setattr(module, name, kind(child.weight, child.bias))
                for part in getattr(module, name).modules():
                    part.keeps_16_bits = name == OUTPUT_LAYER
            elif isinstance(child, nn.Linear):
                child.weight = nn.Parameter(child.weight.t().contiguous().t(), requires_grad=False)
            elif isinstance(child, nn.RNNCellBase):
                setattr(module, name, InferenceCell(kind, *child.parameters()))
            elif isinstance(child, nn.RNNBase) and STEPPED_LAYERS in (name, place):
                child.cells = [InferenceCell(kind, *weights) for weights in child.all_weights]


def laid_out(precision: Precision, weight: Tensor, bias: Tensor | None) -> InferenceLinear:
    """A map in the types that are quickest here for one precision: `(O,I)`, `(O,)`."""
    pays = [False] if precision == "fp32" else lower_pays(precision, *reversed(weight.shape))
    if not any(pays):
        return Fp32Linear(weight, bias)
    lower = _KINDS[precision](weight, bias)
    return lower if all(pays) else MixedLinear(lower, Fp32Linear(weight, bias), pays)


class PaddedLinear(nn.Module):
    """A linear map with rows of zeros behind its matrix, to a multiple of `ROWS`, as tensor cores are fastest with."""

    ROWS = 64

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.out_features, self.in_features = linear.out_features, linear.in_features
        missing = -linear.out_features % self.ROWS
        self.weight = F.pad(linear.weight.detach(), (0, 0, 0, missing))
        self.bias = None if linear.bias is None else F.pad(linear.bias.detach(), (0, missing))

    def forward(self, inputs: Tensor) -> Tensor:
        """`(...,I)` to `(...,O)`, a view."""
        return F.linear(inputs, self.weight, self.bias)[..., : self.out_features]


@torch.no_grad()
def cast_to_16_bits(model: nn.Module, dtype: torch.dtype) -> None:
    """Casts a model to 16 bits, and pads its large matrices; see `PaddedLinear`."""
    model.to(dtype)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and child.out_features > PaddedLinear.ROWS and child.out_features % 8:
                setattr(module, name, PaddedLinear(child))
