"""The task of `python -m tests.tools.bench.recall`."""

import torch

from nmtkit.data.tokenizers.vocabulary import EOS

from .recall import ASKED, FIRST_VALUE, PAIRS, questions


def test_the_value_of_a_key_stands_behind_it_in_the_source() -> None:
    batch = questions(50, torch.Generator().manual_seed(1))
    sources, targets = batch.inputs.ids, batch.targets.ids
    assert (sources.shape, targets.shape) == ((50, 2 * PAIRS + 1), (50, 2 * ASKED + 1))
    assert (targets[:, -1] == EOS).all()
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        table = dict(zip(source[:-1:2], source[1:-1:2], strict=True))
        assert len(table) == PAIRS
        assert max(table) < FIRST_VALUE <= min(table.values())
        assert all(
            table[key] == value for key, value in zip(target[:-1:2], target[1:-1:2], strict=True)
        )
