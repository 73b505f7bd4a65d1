"""A prompt in the cache: what is read in one pass, and where sentences with prompts of several lengths go on."""

import pytest
import torch
from torch import Tensor

from nmtkit.layers.kv_cache import KVCache

PROMPTS, LENGTHS = torch.arange(1.0, 9.0).view(2, 4, 1), torch.tensor([4, 2])


def after_prompts(at_once: bool, beam: int) -> KVCache:
    """Two sentences with prompts of 4 and 2 tokens, whose entries are 1 to 4, and 5, 6 and padding."""
    cache = KVCache(2, 1, torch.device("cpu"))
    if at_once:
        cache.begin_prompts(4)
        cache.append(0, PROMPTS.flatten(0, 1))
        assert cache.positions().tolist() == [[0, 1, 2, 3]]
        visible = cache.bias()
        assert visible is not None
        assert (visible == 0).squeeze().tolist() == torch.ones(4, 4).tril().bool().tolist()
        cache.next_step()
    else:
        for entries in PROMPTS.unbind(1):
            cache.append(0, entries)
            cache.next_step()
    cache.end_prompts(LENGTHS, beam)
    return cache


def seen(cache: KVCache) -> list[list[list[float]]]:
    """The entries that each hypothesis of each sentence sees."""
    bias = cache.bias()
    assert bias is not None
    entries: Tensor = cache.read(0)[:, :, 0]
    return [
        [own[row == 0].tolist() for row in rows]
        for own, rows in zip(entries, bias[:, 0], strict=True)
    ]


@pytest.mark.parametrize("beam", [1, 2])
@pytest.mark.parametrize("at_once", [True, False])
def test_sentences_go_on_behind_their_own_prompts(at_once: bool, beam: int) -> None:
    cache = after_prompts(at_once, beam)
    assert cache.positions().tolist() == [[4], [2]]
    cache.append(0, torch.tensor([[10.0], [20.0]]))
    assert (cache.reach, seen(cache)) == (5, [[[1, 2, 3, 4, 10]], [[5, 6, 20]]])
    cache.next_step(torch.arange(2).repeat_interleave(beam), beam)
    cache.append(0, torch.arange(30.0, 30.0 + 2 * beam)[:, None])
    of_both = [[[1, 2, 3, 4, 10], [5, 6, 20]][row // beam] + [30 + row] for row in range(2 * beam)]
    assert seen(cache) == [of_both[:beam], of_both[beam:]]
    assert cache.positions().tolist() == [[5], [3]]
    # One slot a position of the prompts, and K for each behind them.
    assert cache.read(0).shape[1] == 4 + 2 * beam


@pytest.mark.parametrize("at_once", [True, False])
def test_sentences_with_prompts_can_be_left_out(at_once: bool) -> None:
    cache = after_prompts(at_once, 2)
    cache.append(0, torch.tensor([[10.0], [20.0]]))
    cache.next_step(torch.tensor([0, 0, 1, 1]), 2)
    cache.compact_batch(torch.tensor([0]), torch.tensor([1]), 1)
    cache.append(0, torch.tensor([[30.0], [31.0]]))
    assert (cache.positions().tolist(), cache.reach) == ([[3]], 4)
    assert seen(cache) == [[[5, 6, 20, 30], [5, 6, 20, 31]]]
    with pytest.raises(AssertionError, match="a batch with prompts cannot be refilled"):
        cache.insert(torch.tensor([0]), after_prompts(at_once, 2))


@pytest.mark.parametrize("beam", [1, 3, 5])
def test_rows_of_the_bias_stand_where_attention_on_cuda_reads_them_without_a_copy(
    beam: int,
) -> None:
    for fixed in (0, 21):
        cache = KVCache(2, beam, torch.device("cpu"), width=1, capacity=17)
        for place in range(fixed or 24):
            if place == 2 and fixed:
                cache.fix_length(fixed)
            cache.append(0, torch.full((2 * cache.width, 1), float(place)))
            bias = cache._bias[:, None, :, : cache._read_slots()]
            assert all(stride % 8 == 0 for stride in bias.stride()[:-1])
            cache.next_step(torch.arange(2 * beam) // beam if place == 0 else None, beam)
