"""The floors of training on texts are the networks that nmtkit trains."""

from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import nn

from . import pretraining
from .pretraining import DROPOUT, WORK, bare_blocks, our_blocks

DRAWS_WORDS = {"replaced_tokens": 0.1}
"""Each draws words of its own: how far the losses may be apart."""


@pytest.mark.parametrize("name", WORK)
def test_the_floor_learns_the_same_from_the_same_texts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without dropout. All weights are random, so that none is without effect. Each loss is a step later."""
    monkeypatch.setattr(pretraining, "TEXTS", 3)
    torch.manual_seed(1)
    model, floor = WORK[name].build("toy", dict.fromkeys(DROPOUT, 0.0))
    for weights in model.parameters():
        nn.init.normal_(weights, std=0.5)
    floor.take_weights(model.state_dict())
    training = WORK[name].training(updates=1).changed({"lr": 0.1})
    ours = [*islice(our_blocks(model, training, 1, tmp_path), 4)]
    theirs = [*islice(bare_blocks(floor, training, 1), 4)]
    assert theirs == pytest.approx(ours, rel=DRAWS_WORDS.get(name, 2e-6))
