"""Sentences are read without much of their padding, and what is read of them does not change."""

import torch
from torch import Tensor

from nmtkit.layers.elementary import run_by_length

LENGTHS = torch.tensor([9, 8, 8, 5, 6, 2, 1])


def run_on_words(shapes: list[tuple[int, ...]]) -> list[Tensor]:
    """States of numbered words, and the same for three heads; `shapes` notes what was read at a time."""
    words = torch.arange(1.0, 71.0).view(7, 10)
    words[torch.arange(10) >= LENGTHS[:, None]] = 0.0
    masks = (words != 0)[:, None, None]

    def read(words: Tensor, masks: Tensor) -> list[Tensor]:
        shapes.append(tuple(words.shape))
        states = words[:, :, None] * torch.tensor([1.0, 2.0]) * masks[:, 0, 0, :, None]
        return [states, states[:, None].expand(-1, 3, -1, -1)]

    return list(run_by_length(read, LENGTHS, [words, masks]))


@torch.no_grad()
def test_parts_hold_little_padding_and_the_same_states() -> None:
    shapes: list[tuple[int, ...]] = []
    states, of_heads = run_on_words(shapes)
    assert shapes == [(3, 9), (2, 6), (1, 2), (1, 1)]
    with torch.enable_grad():
        whole: list[tuple[int, ...]] = []
        expected = run_on_words(whole)
    assert whole == [(7, 10)], "what is trained is read at once"
    assert torch.equal(states, expected[0])
    assert torch.equal(of_heads, expected[1])


@torch.no_grad()
def test_a_part_that_is_all_is_not_copied() -> None:
    words = torch.ones(2, 3)
    (states,) = run_by_length(lambda one: [one[:, :, None]], torch.tensor([3, 3]), [words])
    assert states.data_ptr() == words.data_ptr()
