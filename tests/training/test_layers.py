"""Transformer layers that are computed twice, or compiled, give the gradients of those as they are."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nmtkit.config import Recipe
from nmtkit.core.errors import RecipeError, TrainingError
from nmtkit.experiment.checks import require_fitting_stages
from nmtkit.layers.kv_cache import KVCache
from nmtkit.models.abilities import transformer_layers
from nmtkit.models.base import as_decoder
from nmtkit.training import layers
from tests.support.tiny_training import CPU, settings
from tests.training.test_parts import BATCH, LABELLED, SMALL, backward, build, gradients

KINDS = ("transformer", "t5", "transformer_lm", "bert", "electra")
HELD = {"dropout": 0.3}


def learned(
    name: str, prepared: Mapping[str, Any], model_settings: dict[str, object] = HELD
) -> tuple[Any, int, nn.Module]:
    """The gradients of a model in training mode, and how many bytes its graph kept for backward."""
    torch.manual_seed(2)
    model = build(name, model_settings)
    if prepared:
        layers.prepare_layers(model, settings(**prepared), CPU)
    kept = {}
    torch.manual_seed(3)

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        backward(
            model, LABELLED if as_decoder(model) is None else BATCH, 10, 1000, label_smoothing=0.1
        )
    return gradients(model), sum(kept.values()), model


@pytest.mark.parametrize("name", KINDS)
def test_checkpointing_spares_memory_and_changes_no_bit(name: str) -> None:
    assert transformer_layers(build(name))
    expected, before, plain = learned(name, {})
    found, after, model = learned(name, {"activation_checkpointing": True})
    assert after < before
    assert found.keys() == expected.keys()
    for weight, gradient in expected.items():
        assert torch.equal(found[weight], gradient), weight
    assert [*model.state_dict()] == [*plain.state_dict()]


def test_a_mixture_of_experts_is_still_kept_in_use() -> None:
    of = {"experts": {"count": 3, "used": 2, "every": 1}, **HELD}
    for (weight, one), other in zip(
        learned("transformer", {}, of)[0].items(),
        learned("transformer", {"activation_checkpointing": True}, of)[0].values(),
        strict=True,
    ):
        assert torch.equal(one, other), weight


def test_only_what_is_learned_from_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def compiled(own: Callable[..., Any], dynamic: bool = False) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            calls.append(dynamic)
            return own(*given, **named)

        return run

    monkeypatch.setattr(torch, "compile", compiled)
    expected = learned("transformer", {})[0]
    found, _, model = learned("transformer", {"compile": True, "activation_checkpointing": True})
    assert all(torch.equal(found[name], one) for name, one in expected.items())
    made = len(calls)
    assert made >= 2 * len(transformer_layers(model))
    with torch.no_grad():
        model(BATCH)
    memory = model.encode(BATCH)
    made = len(calls)
    model.advance(torch.tensor([2, 2, 2]), model.start(memory), memory, KVCache(3, 1, CPU))
    assert len(calls) == made


def test_without_a_compiler_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(own: Callable[..., Any], **_: object) -> Callable[..., Any]:
        def run(*_: object) -> None:
            raise RuntimeError("No working C++ compiler found\nwhere it was looked for")

        return run

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(
        TrainingError,
        match=r"^training.compile: .*No working C.. compiler found\); install what it needs \(on a CPU: g",
    ):
        learned("transformer", {"compile": True})


@pytest.mark.parametrize("key", layers.LAYER_KEYS)
def test_models_without_such_layers_are_refused(key: str) -> None:
    recipe = partial(
        Recipe,
        name="one",
        data={"train": {"src": "a", "tgt": "b"}, "valid": {"src": "a", "tgt": "b"}},
    )
    for kind in ("rnnsearch", "transformer"):
        one = recipe(model={"kind": kind, **SMALL[kind]}, training={"max_updates": 1, key: True})
        if kind == "transformer":
            require_fitting_stages(one)
        else:
            with pytest.raises(
                RecipeError, match=f"training.{key} requires Transformer layers, which rnnsearch"
            ):
                require_fitting_stages(one)


@pytest.mark.slow
@pytest.mark.skipif(" " in torch.__file__, reason="torch cannot link where its path has a blank")
@pytest.mark.parametrize("name", ["transformer", "bert"])
def test_compiled_layers_learn_the_same(name: str) -> None:
    of = {"dropout": 0.0}
    expected, _, plain = learned(name, {}, of)
    found, _, model = learned(name, {"compile": True}, of)
    for weight, gradient in expected.items():
        torch.testing.assert_close(found[weight], gradient, rtol=1e-9, atol=1e-12)
    assert [*model.state_dict()] == [*plain.state_dict()]
