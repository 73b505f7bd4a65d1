"""Hard attention: the mean of drawn gradients is that of all places together; what is kept, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nmtkit.config.schema import Recipe
from nmtkit.core.errors import RecipeError
from nmtkit.core.settings import parse
from nmtkit.data.batches.batch import Batch, collate
from nmtkit.layers.attention import Draws
from nmtkit.models.base import MODELS, Model, VocabularySizes
from nmtkit.training.losses import attention
from nmtkit.training.losses.attention import HardAttention, HardAttentionConfig
from tests.support.gradients import backward, gradients
from tests.support.seeds import moved
from tests.support.step_by_step import told
from tests.support.tiny_training import run, same_states, settings, steps, tiny_batch

KINDS: dict[str, dict[str, int]] = {
    "luong": {},
    "rnnsearch": {"attention_size": 3, "maxout_size": 3},
    "show_attend_tell": {"attention_size": 3},
}
"""Kinds, and sizes that only they have."""


def build(kind: str, hard: bool = True, **given: Any) -> Any:
    """In training mode, in float64 and with opinions; of 12 words."""
    torch.manual_seed(moved(3))
    small = {"embedding_size": 3, "hidden_size": 3, "dropout": 0.0, "hard_attention": hard}
    model = MODELS.get(kind)(
        parse(MODELS.get(kind).Config, {"kind": kind, **small, **KINDS[kind], **given}, "test"),
        VocabularySizes({"src": 12, "tgt": 12, "features": 3}),
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0).add_(0.3 * torch.randn_like(parameter))
    return model


def seen(batch: Batch) -> Batch:
    """With regions for a captioner as well: three numbers for each word of the source."""
    vectors = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
    return replace(batch, inputs=replace(batch.inputs, features=vectors[batch.inputs.ids]))


def same_pairs(number: int) -> Batch:
    """A source of three places, and a target of two words; their ends count."""
    return seen(collate([[4, 5]] * number, [[6]] * number))


REWARD, ENTROPY = 0.7, 0.3


def expected(model: Model, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """The gradient that drawing gives on average, from all nine paths of places, each with its probability."""
    batch, paths = same_pairs(9), torch.cartesian_prod(torch.arange(3), torch.arange(3))  # (9,2)
    at = iter(paths.unbind(1))
    monkeypatch.setattr(Draws, "sample", lambda self, weights: next(at)[:, None, None])
    output, memory = model.read(batch)
    monkeypatch.undo()
    log_probs = (
        model.predict(output, memory).gather(-1, batch.targets.ids[..., None]).sum((1, 2))
    )  # (9,)
    weights = output.attention
    path = weights.gather(-1, paths[..., None]).prod(1)[:, 0]  # p(s), (9,)
    entropy = -(weights * weights.log()).sum((1, 2))
    assert float(path.detach().sum()) == pytest.approx(1.0)
    gain = path.detach() @ (log_probs + ENTROPY * entropy) + REWARD * (path @ log_probs.detach())
    (-gain / 2).backward()  # a mean of two words
    return gradients(model)


@pytest.mark.parametrize(
    "kind", ["luong", pytest.param("rnnsearch", marks=pytest.mark.slow), "show_attend_tell"]
)
def test_drawn_gradients_are_right_on_average(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The errors of 100,000 draws are standard errors: none is over five, few are over three. Any baseline will do."""
    model, batch, groups = build(kind), same_pairs(2500), 40
    model.attention.baseline.fill_(-1.5)
    exact = expected(model, monkeypatch)
    monkeypatch.setattr(attention, "_ENTROPY_WEIGHT", ENTROPY)
    monkeypatch.setattr(attention, "_SOFT_SHARE", 0.0)
    how = {"hard_attention": {"reward_weight": REWARD}}
    found: list[dict[str, Tensor]] = []
    torch.manual_seed(1)
    for _ in range(groups):
        backward(model, batch, batch.n_tokens, **how)
        found.append(gradients(model))
    assert found[0].keys() == exact.keys()
    drawn = torch.stack(
        [torch.cat([one[name].flatten() for name in exact]) for one in found]
    )  # (groups,W)
    off = drawn.mean(0) - torch.cat([gradient.flatten() for gradient in exact.values()])
    errors = off.abs() / (drawn.std(0) / groups**0.5 + 1e-12)
    assert float(errors.max()) < 5
    assert float((errors > 3).double().mean()) < 0.05


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_one_place_counts_or_all_of_them(kind: str) -> None:
    """A soft sentence is as in a model with soft attention; in evaluation the most probable place is looked at."""
    batch, hard, soft = seen(tiny_batch(1)), build(kind), build(kind, hard=False)
    half = torch.arange(batch.size) % 2 == 0
    drawn, read = told(hard, replace(batch, soft=half)), told(soft, batch)
    torch.testing.assert_close(drawn.log_probs[half], read.log_probs[half])
    assert not torch.allclose(drawn.log_probs[~half], read.log_probs[~half])
    output, _ = hard.read(replace(batch, soft=half))
    assert bool((output.path[half] == 0).all())
    assert bool((output.path[~half].diff() < 0).all())
    again, _ = hard.read(batch)
    assert not torch.equal(output.path, again.path)
    hard.eval()
    assert torch.equal(told(hard, batch).log_probs, told(hard, batch).log_probs)
    width = 6 if kind == "rnnsearch" else 3  # read in both directions, or in one
    queries, values, mask = (
        torch.randn(2, 4, 3).double(),
        torch.randn(2, 5, width).double(),
        torch.ones(2, 5).bool(),
    )
    mask[1, 3:] = False
    contexts, weights = hard.attention(queries, hard.attention.score.project(values), values, mask)
    assert torch.equal(
        contexts,
        torch.stack([one[best] for one, best in zip(values, weights.argmax(-1), strict=True)]),
    )
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4).double())


def tiny(seed: int = 1) -> Any:
    return build("luong", embedding_size=8, hidden_size=8).float()


def test_a_resumed_training_is_the_same_and_the_baseline_follows_the_likelihood(
    tmp_path: Path,
) -> None:
    config = settings(max_updates=6, hard_attention={}, log_every=1)
    model, events = run(tmp_path / "whole", config, tiny())
    baseline = 0.0
    for step in steps(events):
        baseline = 0.9 * baseline - 0.1 * step.terms["nll"]
    assert float(model.attention.baseline) == pytest.approx(baseline, rel=1e-5)
    asked = iter(range(9))
    run(tmp_path / "parts", config, tiny(), stop=lambda: next(asked) == 3)
    other = tiny()
    torch.rand(17)
    run(tmp_path / "parts", config, other, resume=True)
    assert same_states(
        tmp_path / "whole", tmp_path / "parts", but=["seconds", "used", "validating"]
    )


def test_a_bad_update_leaves_the_baseline() -> None:
    model, one = tiny(), HardAttention(settings=HardAttentionConfig())
    for nll, after in ((20.0, -0.2), (float("nan"), -0.2), (20.0, -0.38)):
        one.after_update(model, {"nll": torch.tensor(nll)}, {"tokens": 10})
        assert float(model.attention.baseline) == pytest.approx(after)


def test_the_share_of_soft_sentences() -> None:
    one = HardAttention(settings=HardAttentionConfig())
    soft = one.corrupt(same_pairs(4000), torch.Generator().manual_seed(1), {}).soft
    assert float(soft.float().mean()) == pytest.approx(0.5, abs=0.03)
    assert torch.equal(
        soft, one.corrupt(same_pairs(4000), torch.Generator().manual_seed(1), {}).soft
    )


RECIPE = {
    "name": "hard",
    "data": {"train": {"src": "a", "tgt": "b"}, "valid": {"src": "a", "tgt": "b"}},
    "training": {"max_updates": 1},
}


@pytest.mark.parametrize(
    ("model", "training", "message"),
    [
        ({"hard_attention": True}, {}, "set both"),
        ({}, {"hard_attention": {}}, "set both"),
        (
            {"hard_attention": True, "window": "local_p"},
            {"hard_attention": {}},
            "window to global or local_m",
        ),
        ({"hard_attention": True, "copying": "own"}, {"hard_attention": {}}, "copying to none"),
        (
            {"hard_attention": True},
            {"hard_attention": {}, "reinforce": {}},
            "cannot be combined with hard_attention",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(
    model: dict[str, Any], training: dict[str, Any], message: str
) -> None:
    given = {
        **RECIPE,
        "model": {"kind": "luong", **model},
        "training": {"max_updates": 1, "objectives": training},
    }
    with pytest.raises(RecipeError, match=message):
        parse(Recipe, given, "test")
    together = {**RECIPE, "model": {"kind": "luong", "hard_attention": True, "window": "local_m"}}
    training = {
        "max_updates": 1,
        "objectives": {"hard_attention": {}, "guided_alignment": None, "coverage_weight": 0.5},
    }
    parse(Recipe, {**together, "training": training}, "test")
