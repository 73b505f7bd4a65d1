"""The set of hashes: as Python's own set, but small."""

import tracemalloc

import numpy as np
import pytest

from nmtkit.data.text.hashes import HashSet


@pytest.mark.parametrize("step", [1, 7, 500, 100_000])
def test_as_a_set(step: int) -> None:
    rng = np.random.default_rng(step)
    ours, theirs = HashSet(), set[int]()
    for _ in range(6 if step > 1000 else 40):
        hashes = rng.integers(0, 4 * step, step, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        wanted = []
        for number in hashes.tolist():
            wanted.append(number in theirs)
            theirs.add(number)
        assert ours.add(hashes).tolist() == wanted
        assert len(ours) == len(theirs)
        assert ours.add(hashes).all()


def test_nothing_and_the_ends_of_the_range() -> None:
    ours = HashSet()
    nothing = np.empty(0, dtype=np.uint64)
    assert ours.add(nothing).shape == (0,)
    ends = np.array([2**64 - 1, 0], dtype=np.uint64)
    assert ours.add(ends).tolist() == [False, False]
    assert ours.add(ends).tolist() == [True, True]


def test_few_bytes_a_member() -> None:
    """Also at the worst moment of its growth."""
    rng = np.random.default_rng(1)
    parts = [rng.integers(0, 2**64, 8192, dtype=np.uint64) for _ in range(125)]
    ours = HashSet()
    worst = 0.0
    tracemalloc.start()
    try:
        for part in parts:
            tracemalloc.reset_peak()
            ours.add(part)
            if len(ours) > 500_000:
                worst = max(worst, tracemalloc.get_traced_memory()[1] / len(ours))
    finally:
        tracemalloc.stop()
    assert len(ours) > 1_000_000
    assert 8 < worst < 17  # and what sorting needs


@pytest.mark.parametrize("often", [1, 3])
def test_a_set_that_may_not_grow_estimates_how_many_come_again(often: int) -> None:
    draw = np.random.default_rng(often)
    ours, seen, estimate = HashSet(2000), set[int](), 0
    hashes = draw.integers(0, 2**64, 40_000 // often, dtype=np.uint64).repeat(often)
    for part in np.array_split(draw.permutation(hashes), 97):
        one_in, again = ours.one_in, ours.add(part)
        estimate += one_in * int(again.sum())
        seen.update(part.tolist())
    assert 1000 < len(ours) <= 2000
    assert ours.one_in == {1: 32, 3: 8}[often]
    assert estimate == pytest.approx(40_000 - len(seen), rel=0.08)
