"""Frozen weights, rates by layer and gradual unfreezing: one update of SGD by the formula, resumed bit for bit."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from nmtkit.core.errors import RecipeError
from nmtkit.models.transformer import Transformer, TransformerConfig
from nmtkit.training.events import Step
from nmtkit.training.losses.likelihood import likelihood
from nmtkit.training.optimizers import freeze, layers_below_top
from tests.support.tiny_training import (
    SIZES,
    TinyStream,
    run,
    same_states,
    settings,
    start,
    tiny_batch,
)

SMALL = TransformerConfig(
    hidden_size=8, feed_forward_size=12, heads=2, dropout=0.0, encoder_layers=2, decoder_layers=2
)


MODULES = [
    "tgt_embedding",
    "src_embedding",
    "encoder",
    "decoder",
    "encoder_norm",
    "decoder_norm",
    "output",
]


def model() -> Transformer:
    torch.manual_seed(3)
    return Transformer(SMALL, SIZES).double()


def change(before: Transformer, after: Transformer) -> dict[str, Tensor]:
    old = dict(before.named_parameters())
    return {name: old[name].detach() - new.detach() for name, new in after.named_parameters()}


def gradients() -> dict[str, Tensor]:
    """Of the mean loss of the first batch, with every weight in training."""
    one, batch = model(), tiny_batch(0)
    total, _ = likelihood(one(batch, keep=batch.targets.mask), batch, SIZES["tgt"])
    torch.autograd.backward(total / batch.n_tokens)
    return {
        name: parameter.grad
        for name, parameter in one.named_parameters()
        if parameter.grad is not None
    }


def test_the_rate_falls_with_every_layer_below_the_top(tmp_path: Path) -> None:
    """Clark et al. 2020: lr d^(L-l) for layer l of L; the embeddings count as layer 0."""
    config = settings(optimizer="sgd", lr=0.5, layer_decay=0.5, max_updates=1)
    trained, _ = run(tmp_path, config, model())
    moved, full = change(model(), trained), gradients()
    powers = {
        "encoder.0.": 1,
        "encoder.1.": 0,
        "decoder.0.": 1,
        "src_embedding": 2,
        "tgt_embedding": 2,
        "output.b": 0,
    }
    for name, gradient in full.items():
        power = next((power for start, power in powers.items() if name.startswith(start)), 0)
        torch.testing.assert_close(moved[name], 0.5 * 0.5**power * gradient, rtol=1e-9, atol=1e-13)


def test_layers_of_recurrent_models_are_counted_by_their_names() -> None:
    names = [
        "encoder.layers.0.weight_ih_l0",
        "decoder.weight_hh_l0",
        "decoder.weight_hh_l1",
        "attention.key",
        "tgt_x",
    ]
    assert [*layers_below_top(names).values()] == [0, 1, 0, 0, 2]


@pytest.mark.parametrize(
    ("names", "below"),
    [
        # ntm
        (["decoder.weight_ih_l0", "decoder_heads.0.weight", "decoder_heads.1.weight"], [0, 0, 0]),
        # gnmt
        ([f"encoder.{way}_layers.0.weight_ih_l0" for way in ("forward", "backward")], [1, 1]),
        # bert
        (["src_embedding.weight", "segment_embedding.weight", "src_positions.table"], [2, 2, 2]),
    ],
)
def test_heads_are_no_layers_and_what_stands_beside_the_lowest_layer_is_as_low(
    names: list[str], below: list[int]
) -> None:
    found = layers_below_top([*names, "encoder.forward_layers.1.weight_ih_l0"])
    assert [found[name] for name in names] == below


def test_frozen_weights_have_no_gradient_and_the_others_move_as_before(tmp_path: Path) -> None:
    config = settings(
        optimizer="sgd", lr=0.5, freeze=["encoder", "src_embedding", "decoder.0"], max_updates=1
    )
    one = model()
    trained, _ = run(tmp_path, config, one)
    moved, full = change(model(), trained), gradients()
    frozen = {name for name, parameter in one.named_parameters() if not parameter.requires_grad}
    assert {
        name for name in full if name.startswith(("encoder.", "src_embedding", "decoder.0."))
    } == frozen
    for name, gradient in full.items():
        expected = torch.zeros_like(gradient) if name in frozen else 0.5 * gradient
        torch.testing.assert_close(moved[name], expected, rtol=1e-9, atol=1e-13)


def test_all_but_the_output_can_be_frozen(tmp_path: Path) -> None:
    """Then nothing in front of the output layer is in the graph."""
    config = settings(optimizer="sgd", max_updates=1, freeze=MODULES[:-1])
    untied = Transformer(SMALL.changed({"tie": "none"}), SIZES)
    trained, events = run(tmp_path, config, untied)
    assert [name for name, p in trained.named_parameters() if p.requires_grad] == [
        "output.weight",
        "output.bias",
    ]
    assert [event.update for event in events if isinstance(event, Step)] == [1]


@pytest.mark.parametrize("optimizer", ["adam", "adagrad"])
def test_layers_join_from_the_top_and_a_resumed_training_is_the_same(
    tmp_path: Path, optimizer: str
) -> None:
    """Howard and Ruder 2018, section 3.3."""
    config = settings(
        optimizer=optimizer,
        unfreeze_every=2,
        layer_decay=0.5,
        max_updates=6,
        ema_decay=0.9,
        log_every=1,
    )
    one, before, first = model(), model(), {}
    for event in start(tmp_path / "whole", config, one, TinyStream()):
        if isinstance(event, Step):
            moved = change(before, one)
            for name in moved:
                if name not in first and moved[name].abs().max() > 0:
                    first[name] = event.update
    for name, update in first.items():
        below = 2 if "embedding" in name else 1 if ".0." in name else 0
        assert update == 1 + 2 * below, name
    assert first.keys() == dict(model().named_parameters()).keys()
    stops = iter([False, False, False, True])
    list(start(tmp_path / "parted", config, model(), TinyStream(), stop=lambda: next(stops)))
    run(tmp_path / "parted", config, model(), TinyStream(), resume=True)
    assert same_states(tmp_path / "parted", tmp_path / "whole", ("seconds", "used", "validating"))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["encodr"], "the model has no part 'encodr'; use tgt_embedding, src_embedding, encoder"),
        (["encoder.7"], "the model has no part 'encoder.7'"),
    ],
)
def test_unknown_names_are_refused_with_those_that_there_are(names: list[str], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        freeze(model(), names)
    with pytest.raises(RecipeError, match="nothing is left to train"):
        freeze(model(), MODULES)
