"""The contracts of a CUDA device once more, on the one that torch's own FakeTensor mode pretends.

It knows shape, type and device of what every operation of torch gives, as torch itself has registered them, but no
numbers. So what depends on numbers is left out: how many sentences are done, and reading the results. Gradients are
left out as well: torch's own engine looks for the driver. `test_cuda.py` has both, on a device pretended by ourselves.
"""

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from gradients import backward
from test_models import SOURCES, TARGETS, VARIANTS, batch_of, build
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves

from nmtkit.models.base import MODELS, Seq2Seq
from nmtkit.search.decoding_batch import DecodingBatch
from nmtkit.search.rules import SearchConfig
from nmtkit.training.objectives import objective

CUDA = torch.device("cuda:0")
KINDS = {kind: name for name, (kind, _) in VARIANTS.items()}
"""A variant of every kind of model: the last one, which has most of its parts."""
SEARCHES: list[dict[str, Any]] = [
    {"beam_size": 1},
    {"beam_size": 3, "no_repeat_ngram": 2, "min_length_ratio": 0.3, "forbid_unknown": True, "stop": "exact"},
    {"samples": 3, "beam_size": 3, "top_k": 5, "top_p": 0.9},
]


def why_not() -> str:
    """What keeps this torch from pretending a device; empty if nothing does."""
    try:
        with FakeTensorMode():
            torch.empty(2, device=CUDA)[:1]
    except RuntimeError as fault:  # a build for CPUs, or one (2.6) that asks the driver even then
        return str(fault).split("\n")[0]
    return ""


pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"no CUDA device in FakeTensor mode: {why_not()}")


class FakeCuda(FakeTensorMode):
    """What is on the device is fake; what is on the CPU alone has its numbers."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = tree_leaves((args, kwargs))
        if func is torch.ops.aten._thnn_fused_gru_cell.default:  # torch has not registered what it gives
            state = args[2]
            return state.clone(), state.new_empty(len(state), 5 * state.shape[1])
        if func is torch.ops.aten._pack_padded_sequence.default:  # nor this, but the CPU has the lengths
            states, lengths, _ = args
            each = [int((lengths > step).sum()) for step in range(int(lengths.max()))]
            return states.new_empty(sum(each), *states.shape[2:]), torch.tensor(each)
        if any(isinstance(one, FakeTensor) or one == CUDA for one in leaves):
            return super().__torch_dispatch__(func, types, args, kwargs)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def fake() -> Iterator[FakeCuda]:
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=False), FakeCuda(allow_non_fake_inputs=True) as mode:
        yield mode


def there(name: str, dtype: torch.dtype = torch.float32) -> Seq2Seq:
    """A variant on the fake device, in evaluation mode."""
    model = build(*VARIANTS[name]).to(dtype).eval()
    for module in model.modules():
        for key, one in module._parameters.items():
            module._parameters[key] = None if one is None else nn.Parameter(one.to(CUDA), requires_grad=False)
        for key, buffer in module._buffers.items():
            module._buffers[key] = None if buffer is None else buffer.to(CUDA)
        if isinstance(module, nn.RNNBase):
            module._flat_weights = [getattr(module, key) for key in module._flat_weights_names]
    return model


def require_there(found: Any) -> None:
    tensors = [one for one in tree_leaves(found) if isinstance(one, torch.Tensor)]
    assert tensors
    assert {one.device for one in tensors} == {CUDA}


def test_every_kind_of_model_is_asked() -> None:
    assert set(KINDS) == set(MODELS.names())


@pytest.mark.parametrize("name", KINDS.values())
def test_whole_pass_and_losses(fake: FakeCuda, name: str) -> None:
    model, batch = there(name), batch_of(SOURCES, TARGETS)
    output = model(batch.to(CUDA), need_attention=model.has_attention)
    require_there([output.log_probs, output.attention])
    attending: dict[str, Any] = {"coverage_weight": 0.5} if model.has_attention else {}
    with mock.patch.object(objective, "_backward"):
        told = backward(model.train(), batch, 10, 4 * 20 * 8, CUDA, label_smoothing=0.1, **attending)
    require_there(told)


@pytest.mark.parametrize("name", KINDS.values())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("settings", SEARCHES, ids=["greedy", "beam", "samples"])
def test_steps_of_a_search(fake: FakeCuda, name: str, dtype: torch.dtype, settings: dict[str, Any]) -> None:
    model = there(name, dtype)
    config = SearchConfig.model_validate({**settings, "max_length": 5})
    decoding = DecodingBatch.begin(model, batch_of(SOURCES).to(CUDA), config, 1)
    for _ in range(3):
        result = decoding.step(need_attention=model.has_attention)
        require_there([*result.tensors(), *decoding.changing()])


def test_a_tensor_of_the_cpu_is_found(fake: FakeCuda) -> None:
    with pytest.raises(RuntimeError, match="device"):
        torch.zeros(2, 3, device=CUDA) + torch.zeros(2, 3)
