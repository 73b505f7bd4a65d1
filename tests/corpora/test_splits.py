"""Splits: by the group's name alone, whole groups, and no more than asked for."""

import random

import pytest

from nmtkit.corpora.readers import Pair
from nmtkit.corpora.splits import Divider, place_of, split_of

GROUPS = [f"page-{number}" for number in range(4000)]


def divide(pairs: list[Pair], valid: float, test: float, at_most: int | None = None) -> dict[str, list[Pair]]:
    train: list[Pair] = []
    divider = Divider(valid, test, at_most, train.append)
    for pair in pairs:
        divider.add(pair)
    return {"train": train, "valid": divider.held("valid"), "test": divider.held("test")}


def test_the_shares_are_kept_about_right():
    found = [split_of(group, 0.1, 0.2) for group in GROUPS]
    assert abs(found.count("test") / len(GROUPS) - 0.2) < 0.02
    assert abs(found.count("valid") / len(GROUPS) - 0.1) < 0.02
    assert {split_of(group, 0.0, 0.0) for group in GROUPS} == {"train"}


def test_what_was_for_testing_stays_when_a_share_grows():
    few = {group for group in GROUPS if split_of(group, 0.05, 0.05) == "test"}
    many = {group for group in GROUPS if split_of(group, 0.05, 0.1) == "test"}
    assert few < many


def test_the_places_do_not_depend_on_the_machine():
    """Worked out by hand from the first eight bytes of the SHA-256 sum of "abc", ba7816bf 8f01cfea."""
    assert place_of("abc") == 0xBA7816BF8F01CFEA / 2**64


def test_the_divider_agrees_with_split_of_and_keeps_the_order():
    pairs = [Pair(f"s{number}", f"t{number}", group=GROUPS[number // 3]) for number in range(3000)]
    found = divide(pairs, 0.1, 0.1)
    for name, held in found.items():
        assert held == [pair for pair in pairs if split_of(pair.group, 0.1, 0.1) == name]


def test_without_a_group_the_source_is_the_group():
    pairs = [Pair(f"s{number % 50}", f"t{number}") for number in range(500)]
    found = divide(pairs, 0.2, 0.2)
    sources = {name: {pair.src for pair in held} for name, held in found.items()}
    assert all(sources.values())
    assert not sources["train"] & sources["valid"]
    assert not sources["train"] & sources["test"]
    assert not sources["valid"] & sources["test"]


@pytest.mark.parametrize("per_group", [1, 7])
def test_no_more_than_asked_for_and_from_everywhere(per_group):
    pairs = [Pair(f"s{number}", "t", group=f"g{number // per_group}") for number in range(20_000)]
    found = divide(pairs, 0.3, 0.3, at_most=210)
    for name in ("valid", "test"):
        assert 210 - per_group < len(found[name]) <= 210
        numbers = [int(pair.src[1:]) for pair in found[name]]
        assert numbers == sorted(numbers)
        assert sum(number < 10_000 for number in numbers) > 60  # not all from one end
        assert sum(number >= 10_000 for number in numbers) > 60
    assert sum(map(len, found.values())) == len(pairs)
    groups = [{pair.group for pair in held} for held in found.values()]
    assert not groups[0] & groups[1] | groups[0] & groups[2] | groups[1] & groups[2]


def test_with_a_limit_the_order_of_the_corpus_does_not_matter():
    pairs = [Pair(f"s{number}", "t", group=f"g{number // 4}") for number in range(5000)]
    shuffled = random.Random(1).sample(pairs, len(pairs))
    one, other = divide(pairs, 0.2, 0.2, 100), divide(shuffled, 0.2, 0.2, 100)
    for name in ("valid", "test"):
        assert {pair.src for pair in one[name]} == {pair.src for pair in other[name]}


def test_a_group_that_is_too_large_for_the_limit_goes_to_train():
    pairs = [Pair(f"s{number}", "t", group="one") for number in range(10)]
    found = divide(pairs, 0.0, 0.999999, at_most=9)
    assert len(found["train"]) == 10
