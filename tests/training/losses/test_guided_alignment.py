"""Guided alignment in the training loop, and that it teaches what it should."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nmtkit.data.batches.batch import Batch, collate
from nmtkit.models.base import Seq2Seq, VocabularySizes
from nmtkit.models.transformer import Transformer, TransformerConfig
from nmtkit.training.events import Event
from nmtkit.training.losses.attention import alignment_loss
from tests.support.seeds import moved
from tests.support.step_by_step import told
from tests.support.tiny_training import FromList, TinyStream, same_weights, settings, start, steps

WORDS = 16
SIZES = VocabularySizes({"src": WORDS, "tgt": WORDS}, shared=True)


class Reversing(TinyStream):
    """Batches of sentences and the same backwards; each target word is linked to the source word that it repeats."""

    def __init__(self, rows: int = 16, links: bool = True, seed: int = 0) -> None:
        super().__init__(per_epoch=10_000)
        self.rows, self.links, self.seed = rows, links, seed

    def __next__(self) -> Batch:
        draw = np.random.default_rng((moved(self.seed), self.drawn))
        self.drawn += 1
        # No word occurs twice, so that there is one right link.
        src = [
            draw.permutation(np.arange(4, WORDS))[: draw.integers(3, 9)].tolist()
            for _ in range(self.rows)
        ]
        links = [[at for i in range(len(row)) for at in (len(row) - 1 - i, i)] for row in src]
        return collate(src, [row[::-1] for row in src], alignment=links if self.links else None)


def transformer(**given: Any) -> Transformer:
    torch.manual_seed(moved(1))
    small = {
        "hidden_size": 32,
        "feed_forward_size": 64,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "dropout": 0.0,
    }
    return Transformer(TransformerConfig.model_validate(small | given), SIZES)


def fit(folder: Path, model: Seq2Seq, stream: TinyStream, **given: Any) -> list[Event]:
    return list(start(folder, settings(**{"lr": 0.003, "log_every": 10, **given}), model, stream))


@torch.no_grad()
def error_rate(model: Seq2Seq) -> float:
    """AER of the best source token of every linked target token of unseen sentences: 1 - the share of right links."""
    batch = next(Reversing(rows=64, seed=9))
    attention = told(model.eval(), batch).attention
    right = batch.alignment.gather(-1, attention.argmax(-1, keepdim=True))[..., 0]
    return 1 - float(right[batch.alignment.any(-1)].float().mean())


@pytest.mark.slow
def test_the_chosen_head_learns_the_links(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """A head that nobody teaches is wrong about 0.8 of the time, as by chance."""
    rates = []
    for name, guided in (("untaught", None), ("taught", {"weight": 12.0})):
        model = transformer(alignment_layer=1, alignment_heads=3)
        fit(
            tmp_path / name,
            model,
            Reversing(rows=32),
            max_updates=90,
            lr=0.01,
            guided_alignment=guided,
        )
        rates.append(error_rate(model))
    untaught, taught = rates
    record_property("error rate, less than 0.4", taught)
    record_property("its share of that of an untaught head, less than 0.7", taught / untaught)
    assert taught < 0.4
    assert taught < 0.7 * untaught


def test_only_the_chosen_head_is_taught() -> None:
    """Head 3 of 4 in the first layer: of the matrices that make its weights, the rows of no other have a gradient."""
    batch = next(Reversing())
    model = transformer(alignment_layer=1, alignment_heads=3)
    torch.autograd.backward(alignment_loss(told(model, batch).attention, batch.alignment))
    cross = model.decoder[0].cross_attention
    # of the keys, then the values
    for gradient in (cross.query.weight.grad, cross.keys_values.weight.grad[:32]):
        by_head = gradient.view(4, -1)
        assert by_head[2].abs().max() > 0
        assert by_head[[0, 1, 3]].abs().max() == 0
    assert all(parameter.grad is None for parameter in model.decoder[1].parameters())


def test_what_is_reported(tmp_path: Path) -> None:
    model, stream = transformer(alignment_heads=1), Reversing()
    events = fit(
        tmp_path,
        model,
        stream,
        max_updates=1,
        label_smoothing=0.1,
        guided_alignment={"weight": 0.4},
    )
    (step,) = steps(events)
    again, batch = transformer(alignment_heads=1), next(Reversing())
    output = told(again, batch)
    expected = -output.attention[batch.alignment].log().mean()
    assert step.terms["alignment_loss"] == pytest.approx(expected.item(), rel=1e-5)
    log_probs = output.log_probs[batch.targets.mask]
    nll = -log_probs.gather(-1, batch.targets.ids[batch.targets.mask][:, None]).mean()
    smoothed = 0.9 * nll - 0.1 * log_probs.mean()
    total = (smoothed + 0.4 * expected).item()
    assert step.terms["nll"] == pytest.approx(nll.item(), rel=1e-5)
    assert step.loss == pytest.approx(total, rel=1e-5)


def test_without_a_guide_nothing_is_reported_and_links_change_nothing(tmp_path: Path) -> None:
    models = []
    for name, links in (("with", True), ("without", False)):
        model = transformer()
        events = fit(tmp_path / name, model, Reversing(links=links), max_updates=5)
        assert all("alignment_loss" not in step.terms for step in steps(events))
        models.append(model)
    assert same_weights(*models)


def test_how_an_update_is_cut_does_not_change_it(tmp_path: Path) -> None:
    """The alignment's loss is a mean over the linked tokens of all micro-batches, not a mean of means."""
    stream = Reversing()
    wholes = [next(stream) for _ in range(3)]
    parts = [
        whole.select(rows) for whole in wholes for rows in (torch.arange(5), torch.arange(5, 16))
    ]
    one, other = transformer().double(), transformer().double()
    given: dict[str, Any] = {
        "max_updates": 3,
        "guided_alignment": {"weight": 0.5},
        "optimizer": "sgd",
    }
    fit(tmp_path / "whole", one, FromList(wholes), **given)
    fit(tmp_path / "parts", other, FromList(parts), accumulate=2, **given)
    for parameter, its_twin in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(parameter, its_twin, rtol=1e-9, atol=1e-12)
