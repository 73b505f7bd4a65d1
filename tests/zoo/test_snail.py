"""SNAIL: its blocks position by position in numpy, and that it learns from a text while it reads it."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from nmtkit.data.batches.batch import Batch, Targets
from nmtkit.data.tokenizers.vocabulary import BOS
from nmtkit.models.base import VocabularySizes
from nmtkit.zoo.snail import Snail, SnailConfig
from tests.support.formulas import linear, sigmoid, softmax
from tests.support.seeds import moved

TEXT = [7, 4, 7, 9, 4, 10]


@torch.no_grad()
def test_snail_is_its_blocks() -> None:
    """With a reach of 3 there are dilations of 1 and 2."""
    torch.manual_seed(1)
    config = SnailConfig(embedding_size=3, filters=2, reach=3, blocks=2, attention_size=5)
    model = Snail(config, VocabularySizes({"tgt": 11})).double().eval()
    maps = iter(model.decoder)
    found = [model.tgt_embedding.weight.numpy()[word] for word in [BOS, *TEXT]]
    for _ in range(2):
        for dilation in (1, 2):
            before = [np.zeros_like(found[0])] * dilation + found[:-dilation]
            of_both = next(maps)
            halves = [
                np.split(linear(of_both, np.concatenate(pair)), 2)
                for pair in zip(before, found, strict=True)
            ]
            new = [np.tanh(of_filter) * sigmoid(of_gate) for of_filter, of_gate in halves]
            found = [np.concatenate(pair) for pair in zip(found, new, strict=True)]
        of_states = next(maps)
        queries, keys, values = zip(
            *(np.split(linear(of_states, state), 3) for state in found), strict=True
        )
        reads = []
        for place, query in enumerate(queries):
            shares = softmax(np.array([query @ key for key in keys[: place + 1]]) / math.sqrt(5))
            reads.append(sum(share * value for share, value in zip(shares, values, strict=False)))
        found = [np.concatenate(pair) for pair in zip(found, reads, strict=True)]
    expected = [np.log(softmax(linear(model.output, linear(model.last, state)))) for state in found]
    np.testing.assert_allclose(
        model(Batch(targets=Targets.of_texts([TEXT])))[0], expected, atol=1e-12
    )


KEYS, VALUES, PAIRS = 6, 6, 16


def pairs(count: int, seed: int) -> torch.Tensor:
    """Texts of keys and their values in turns, `(B,2*PAIRS)`; what belongs to what is drawn anew for each text."""
    draw = torch.Generator().manual_seed(seed)
    keys = torch.randint(KEYS, (count, PAIRS), generator=draw)
    values = torch.randint(VALUES, (count, KEYS), generator=draw).gather(1, keys)
    return torch.stack([4 + keys, 4 + KEYS + values], 2).flatten(1)


@pytest.mark.slow
def test_it_learns_within_a_text(record_property: Callable[[str, object], None]) -> None:
    """A value that its text has told before is right, a new one by chance: so mistakes become fewer in a text."""
    torch.manual_seed(moved(1))
    config = SnailConfig(embedding_size=32, filters=16, reach=4, attention_size=32, dropout=0.0)
    model = Snail(config, VocabularySizes({"tgt": 4 + KEYS + VALUES}))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for update in range(500):
        batch = Batch(targets=Targets.of_texts(pairs(32, moved(update)).tolist()))
        loss = -model(batch).gather(2, batch.targets.ids[:, :, None])[:, 1::2].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    unseen = pairs(500, moved(-1))
    with torch.no_grad():
        said = model.eval()(Batch(targets=Targets.of_texts(unseen.tolist())))[:, 1:-1:2].argmax(-1)
    right, keys = (said == unseen[:, 1::2]).double(), unseen[:, ::2]
    told = (
        (keys[:, :, None] == keys[:, None]).tril(-1).any(2)
    )  # (B,PAIRS): whether the key stood before
    shares = {
        "first pair": right[:, 0],
        "last pair": right[:, -1],
        "new": right[~told],
        "told": right[told],
    }
    means = {name: round(float(share.mean()), 3) for name, share in shares.items()}
    record_property("share of right values", means)
    print(means)
    assert means["told"] > 0.95
    assert means["first pair"] < 0.3 < 0.85 < means["last pair"]
