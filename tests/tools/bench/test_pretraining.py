"""The floors of training are the networks that nmtkit trains."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.support.cases import daily

from . import models, pretraining
from .pretraining import DROPOUT, WORK, Work, bare_blocks, our_blocks

WORKS: dict[str, Work] = {**WORK, **models.WORK}
DRAWS_WORDS = {"replaced_tokens": 0.1}
"""Each draws words of its own: how far the losses may be apart."""


def losses(blocks: Iterator[float]) -> list[float]:
    """Of four updates, before each of which the same is drawn."""
    found = []
    for _ in range(4):
        torch.manual_seed(1)
        found.append(next(blocks))
    return found


@pytest.mark.parametrize("name", daily([*WORKS][::2] + [*WORKS][1::2], (len(WORKS) + 1) // 2))
def test_the_floor_learns_the_same_from_the_same_texts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without dropout. All weights are random, so that none is without effect. Each loss is a step later."""
    monkeypatch.setattr(pretraining, "TEXTS", 3)
    monkeypatch.setattr(models, "TOGETHER", 3)
    torch.manual_seed(1)
    work, (std, rate) = WORKS[name], (0.2, 0.01) if name in models.WORK else (0.5, 0.1)
    model, floor = work.build("toy", dict.fromkeys(DROPOUT, 0.0))
    for weights in model.parameters():
        nn.init.normal_(weights, std=std)
    floor.take_weights(model.state_dict())
    training = work.training(updates=1).changed({"lr": rate})
    ours = losses(our_blocks(model, work.stream(training), training, 1, tmp_path))
    theirs = losses(bare_blocks(floor, work.stream(training), training, 1))
    assert theirs == pytest.approx(ours, rel=DRAWS_WORDS.get(name, 2e-6))
