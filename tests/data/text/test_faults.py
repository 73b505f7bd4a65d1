"""Excerpts of lines with faults."""

import string

import pytest

from nmtkit.data.text.faults import EXCERPT_CHARACTERS, excerpt


@pytest.mark.parametrize("length", range(95, 135))
def test_an_excerpt_contains_the_fault_wherever_it_is(length: int) -> None:
    for position in range(length):
        text = "a" * position + "X" + "a" * (length - position - 1)
        shown = excerpt(text, position)
        assert "X" in shown
        assert len(shown.strip("…")) <= EXCERPT_CHARACTERS + 2


def test_an_ellipsis_replaces_at_least_three_characters() -> None:
    text = 2 * string.printable[:90]
    for length in range(95, 135):
        for position in range(length):
            shown = excerpt(text[:length], position)
            kept = shown.strip("…")
            start = text[:length].index(kept)
            n_before = start
            n_after = length - start - len(kept)
            assert n_before == 0 if not shown.startswith("…") else n_before >= 3
            assert n_after == 0 if not shown.endswith("…") else n_after >= 3
