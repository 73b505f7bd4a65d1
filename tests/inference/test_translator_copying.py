"""Every model that copies, from text to text: with unknown words in every batch; nothing here is trained."""

from typing import Any

import numpy as np
import pytest
from torch import Tensor

from tests.inference.untrained import COPYING, KNOWN, LINES, RNN, SMALL, copying, learned, untrained


@pytest.mark.parametrize("name", COPYING)
def test_many_together_are_each_alone(name: str) -> None:
    """Batches differ in padding and in the number of unknown words."""
    translator = copying(name)
    together = translator.search(LINES, 4, need_copies=True)
    assert any(
        token in ("▁Zyx", "▁Abc") for found in together for one in found for token in one.tokens
    )
    assert any(
        place is not None for found in together for one in found for place in one.copied or []
    )
    for line, found in zip(LINES, together, strict=True):
        (alone,) = translator.search([line], 4, need_copies=True)
        assert [one.tokens for one in found] == [one.tokens for one in alone]
        assert [one.copied for one in found] == [one.copied for one in alone]
        assert [one.score for one in found] == pytest.approx([one.score for one in alone], abs=1e-9)


@pytest.mark.parametrize("name", COPYING)
def test_rescoring_gives_what_the_search_gave(name: str) -> None:
    translator = copying(name, coverage_penalty=0.5, coverage_kind="summary")
    searched = [best[0] for best in translator.search(LINES, need_attention=True)]
    again = translator.rescore(LINES, searched, need_attention=True)
    for one, other in zip(searched, again, strict=True):
        assert other.tokens == one.tokens
        assert other.score == pytest.approx(one.score, abs=1e-5)
        assert other.token_log_probs == pytest.approx(one.token_log_probs, abs=1e-5)
        assert other.copied == one.copied
        if one.p_gen is not None:
            assert other.p_gen == pytest.approx(one.p_gen, abs=1e-5)
            np.testing.assert_allclose(other.attention, one.attention, atol=1e-5)


@pytest.mark.parametrize("name", COPYING)
def test_rescoring_in_parts_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output layer is asked for real target tokens alone, and for no more of them at a time than was said."""
    translator = copying(name, coverage_penalty=0.5, coverage_kind="summary")
    whole = translator.rescore(LINES, LINES, need_attention=True)
    sizes: list[int] = []
    predict = translator.model.predict

    def noted(*given: Any) -> Tensor:
        log_probs = predict(*given)
        sizes.append(4 * log_probs.numel())
        assert log_probs.dim() == 2
        return log_probs

    monkeypatch.setattr(translator.model, "predict", noted)
    for most in (1, 400, 1 << 20):
        sizes.clear()
        monkeypatch.setattr("nmtkit.inference.inputs.CHUNK_BYTES", {"cpu": most})
        for one, other in zip(
            whole, translator.rescore(LINES, LINES, need_attention=True), strict=True
        ):
            assert other.token_log_probs == pytest.approx(one.token_log_probs, abs=1e-5)
            assert other.score == pytest.approx(one.score, abs=1e-5)
            assert other.copied == one.copied
        assert max(sizes) <= max(most, 4 * (translator.model.sizes["tgt"] + 10))  # at least a row
        if most == 1:
            assert len(sizes) == sum(len(one.token_log_probs) for one in whole)


@pytest.mark.parametrize("name", COPYING)
def test_pictures_show_the_copied_words(name: str) -> None:
    line = LINES[0]
    ((found,),) = copying(name).search([line], need_attention=True)
    (picture,) = copying(name).pictures([line])
    assert picture.src_words[0] == "Zyx"
    assert picture.p_gen is not None
    assert len(picture.p_gen) == len(picture.tgt_words)
    assert found.copied is not None
    (given,) = copying(name).pictures([line], ["Abc sees Zyx"])
    assert list(given.tgt_words) == ["Abc", "sees", "Zyx", "</s>"]
    assert {0, 2} <= given.copied  # there is no other way to write them


@pytest.mark.parametrize("kind", ["gnmt", "summary"])
def test_rescoring_counts_coverage_as_the_search_does_without_an_end_of_the_source(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of such a model has no EOS, and the attention that is shown has a column for it."""
    monkeypatch.setitem(SMALL, "luong-without-end", ("luong", {**RNN, "source_end": False}))
    translator = untrained("luong-without-end", learned(), coverage_penalty=0.5, coverage_kind=kind)
    for line, (best,) in zip(KNOWN, translator.search(KNOWN), strict=True):
        (rescored,) = translator.rescore([line], [best])
        assert rescored.score == pytest.approx(best.score, abs=1e-4)
