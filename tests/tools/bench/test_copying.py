"""A neural Turing machine learns to copy, not copies; and the copy task is what it says."""

from collections.abc import Callable

import pytest
import torch

from nmtkit.data.tokenizers.vocabulary import BOS, EOS
from tests.support.seeds import moved

from .copying import DELIMITER, FIRST, LONGEST, build, copies, log_probs_of_copies, right, train


def test_a_text_stands_on_both_sides_of_the_delimiter() -> None:
    batch = copies(3, 5, torch.Generator().manual_seed(1))
    assert batch.targets.shifted.shape == (5, 8)
    for read, text in zip(batch.targets.shifted.tolist(), batch.targets.ids.tolist(), strict=True):
        assert text == [*read[1:4], DELIMITER, *read[1:4], EOS]
        assert read == [BOS, *text[:-1]]
        assert all(FIRST <= symbol < DELIMITER for symbol in text[:3])
    log_probs, wanted = log_probs_of_copies(build("ntm"), batch, 3)
    assert log_probs.shape == (5, 4, DELIMITER + 1)
    assert torch.equal(wanted, batch.targets.ids[:, 4:])


@pytest.mark.slow
def test_it_copies_texts_longer_than_those_it_was_trained_on(
    record_property: Callable[[str, object], None],
) -> None:
    torch.manual_seed(moved(2))
    model = build("ntm")
    train(model, 1000, moved(2))
    shares = {length: right(model, length)[0] for length in (LONGEST, 2 * LONGEST)}
    record_property("share of right symbols by length", shares)
    print(shares)
    assert shares[LONGEST] > 0.95
    assert shares[2 * LONGEST] > 0.8
