"""Opening a trained run: what is asked comes in at the door."""

from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from nmtkit import Translator
from nmtkit.errors import RecipeError
from nmtkit.experiment.opening import Opening, open_run


def test_the_beam_is_as_wide_as_results_are_wanted(trained: Path) -> None:
    """The recipe's is 3 wide; a width that is asked for stays."""
    for n_best, settings, expected in ((2, {}, 3), (5, {}, 5), (5, {"beam_size": 4}, 4)):
        said: list[str] = []
        how = Opening(str(trained), "cpu", n_best=n_best, search_settings=settings)
        assert open_run(how, "translation", said.append).config.beam_size == expected
        assert ("beam size 5 instead of 3, for --n-best 5" in said) == (expected == 5)
        assert str(trained) in said[-1]


def test_one_attention_has_no_heads_to_choose_from(trained: Path) -> None:
    with pytest.raises(RecipeError, match="rnnsearch has one attention"):
        open_run(Opening(str(trained), "cpu", head=1))


def test_a_translator_stays_as_it_is(trained: Path) -> None:
    translator = Translator.load(str(trained), "cpu")
    with pytest.raises(FrozenInstanceError):
        translator.max_source_tokens = 1  # type: ignore[misc]  # what is asked
    short = replace(translator, max_source_tokens=1)
    assert [one.search(["ba ce"])[0][0].src_left_out for one in (translator, short)] == [0, 1]
