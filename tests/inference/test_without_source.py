"""Texts of models that read no text: they go on with prompts, or describe rows of numbers."""

from collections.abc import Callable
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest

from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.data.text.features import Rows
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.decoding.search_batch import search_batch
from nmtkit.decoding.settings import BeamConfig, change_search
from nmtkit.inference.constraints.glossary import Glossary
from nmtkit.inference.constraints.requests import Request
from nmtkit.inference.result import Translation
from nmtkit.inference.streaming.workers import Workers
from nmtkit.inference.translator import Translator
from nmtkit.models.base import Decoder
from nmtkit.models.ensemble import Ensemble
from tests.inference.untrained import WORDS, untrained
from tests.support.prompted_decoders import (
    MODELS_WITHOUT_SOURCE,
    AttendingModel,
    Captioner,
    prompts,
)

VOCABULARY = WORDS.tgt.vocabulary
OWN = Tokenizers(WORDS.config, {"tgt": WORDS.tgt}, features=3)
LINES = ["the old man", "", "a dog , who is old , sleeps in the house", "the", "  ", "the dog sees"]
DRAW = np.random.default_rng(3)
FEATURES: list[Rows] = [DRAW.standard_normal((count, 3)) * 4 for count in (4, 1, 9, 3, 4)]


def translator(model: Decoder, **settings: object) -> Translator:
    config = change_search(BeamConfig(), {"beam_size": 3, "max_length": 8, **settings})
    return Translator(model, OWN, config, name="mine", batch_tokens=16)


def same(found: list[list[Translation]], expected: list[list[Translation]]) -> None:
    assert [[one.text for one in row] for row in found] == [
        [one.text for one in row] for row in expected
    ]
    for one, other in zip(chain(*found), chain(*expected), strict=True):
        assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=1e-6)
        assert (one.score, one.finished) == (pytest.approx(other.score, abs=1e-6), other.finished)


@pytest.fixture(params=MODELS_WITHOUT_SOURCE)
def writer(request: pytest.FixtureRequest) -> Translator:
    return translator(MODELS_WITHOUT_SOURCE[request.param](len(VOCABULARY)), no_repeat_ngram=2)


def test_a_text_is_its_prompt_and_what_follows(writer: Translator) -> None:
    for line, found in zip(LINES, writer.search(LINES, n_best=2), strict=True):
        ids = WORDS.tgt.encode(line)
        (expected,) = search_batch(writer.model, prompts(ids), writer.config, 2)
        assert [one.tokens for one in found] == [WORDS.tgt.pieces(one.ids) for one in expected]
        assert found[0].src_tokens == WORDS.tgt.tokens(line)
        assert found[0].text == WORDS.tgt.decode([*ids, *expected[0].ids])
        assert found[0].text.startswith(WORDS.tgt.decode(ids))
        assert found[0].score == pytest.approx(expected[0].score)
        assert len(found[0].token_log_probs) > 0  # also behind nothing


@pytest.mark.parametrize("threads", [1, 2])
def test_batches_windows_and_processes_change_nothing(writer: Translator, threads: int) -> None:
    lines = [*LINES, *LINES[2:4]]
    alone = [writer.search([line])[0] for line in lines]
    others = replace(
        writer, batch_tokens=400, workers=Workers(["cpu"] * 2) if threads == 2 else None
    )
    same(others.search(lines), alone)
    same([found for group in writer.stream([lines[:3], lines[3:]]) for found in group], alone)
    nothing = [""] * 40
    same(others.search(nothing), [alone[1]] * 40)


@pytest.mark.parametrize("repetition_penalty", [1.0, 1.5])
def test_what_was_written_is_scored_behind_its_prompt(
    writer: Translator, repetition_penalty: float
) -> None:
    changed = {"repetition_penalty": repetition_penalty, "no_repeat_ngram": 0}
    writer = replace(writer, config=writer.config.changed(changed))
    found = [best[0] for best in writer.search(LINES)]
    rescored = writer.rescore(LINES, found)
    same([[one] for one in rescored], [[one] for one in found])
    assert [one.src_tokens for one in rescored] == [one.src_tokens for one in found]
    whole, behind = writer.rescore(["", "the old"], ["the old man", "man"])
    assert whole.token_log_probs[2:] == pytest.approx(behind.token_log_probs)
    (ended,) = writer.rescore([""], [""])
    assert len(ended.token_log_probs) == 1


def test_prompts_of_long_texts_are_cut_where_that_is_asked(writer: Translator) -> None:
    cut = replace(writer, max_source_tokens=2).search([LINES[0]])[0][0]
    assert (cut.src_tokens, cut.src_left_out) == (WORDS.tgt.tokens("the old"), 1)
    same([[replace(cut, src_left_out=0)]], writer.search(["the old"]))


def test_a_request_forces_and_demands_what_follows(writer: Translator) -> None:
    wanted = [
        Request("the old", prefix="man sees"),
        Request("", must=("dog",)),
        Request("a dog", must_not=("sees",)),
    ]
    forced, demanded, refused = (best[0] for best in writer.search(wanted))
    assert forced.tokens[:2] == WORDS.tgt.tokens("man sees")
    assert "dog" in demanded.text.split()
    assert "sees" not in refused.text.split()
    assert not demanded.unmet_constraints


@pytest.mark.parametrize("model", [AttendingModel, Captioner])
def test_what_needs_a_source_in_text_is_refused(model: Callable[[int], Decoder]) -> None:
    system, line = translator(model(len(VOCABULARY))), ["the dog"]
    refusals: dict[str, Callable[[], object]] = {
        "show attention": lambda: system.pictures(line),
        "align words": lambda: system.align(line, line),
        "replace unknown words": system.replacing_unknown,
    }
    for purpose, refused in refusals.items():
        with pytest.raises(
            NmtkitError, match=f"the model 'mine' .* cannot {purpose}, because it has no attention"
        ):
            refused()
    with pytest.raises(NmtkitError, match="does not read text, so it cannot use a glossary"):
        replace(system, glossary=Glossary({"dog": "cat"})).search(line)


def test_rows_of_numbers_are_described() -> None:
    system = translator(Captioner(len(VOCABULARY)), max_length_ratio=0.5, max_length_offset=0)
    found = system.search(FEATURES, n_best=2, need_attention=True)
    same(found, [system.search([rows], n_best=2)[0] for rows in FEATURES])
    same(
        replace(system, batch_tokens=400, workers=Workers(["cpu"] * 2)).search(FEATURES, n_best=2),
        found,
    )
    for rows, (best, _) in zip(FEATURES, found, strict=True):
        assert best.attention is not None
        assert best.attention.shape == (len(best.token_log_probs), len(rows))
        assert best.attention.sum(1) == pytest.approx(1.0, abs=1e-5)
    assert len({best[0].text for best in found}) > 2
    assert max(len(best[0].tokens) for best in found) > 5  # rows are no tokens, and limit nothing


def test_what_a_model_cannot_read_is_named() -> None:
    system = translator(Captioner(len(VOCABULARY)))
    rows_of_three = "has the wrong form: the model 'mine' reads one or more rows of 3 numbers"
    with pytest.raises(DataError, match=f"example 2 {rows_of_three}"):
        system.search([FEATURES[0], "the dog"])
    with pytest.raises(DataError, match=f"example 1 {rows_of_three}"):
        system.search([FEATURES[0][:0]])
    with pytest.raises(DataError, match=f"example 1 {rows_of_three}"):
        system.search([FEATURES[0][:, :2]])
    for text_reader in (translator(AttendingModel(len(VOCABULARY))), untrained("rnnsearch", WORDS)):
        with pytest.raises(
            DataError, match=r"example 1 has the wrong form: the model '\w*' reads text"
        ):
            text_reader.search([FEATURES[0]])


@pytest.mark.parametrize("kind", ["gnmt", "summary"])
def test_several_captioners_cover_the_last_region_too(kind: str) -> None:
    settings = {"coverage_penalty": 2.0, "coverage_kind": kind, "beam_size": 6}
    one = Captioner(len(VOCABULARY))
    same(
        *(
            translator(model, **settings).search(FEATURES, 6)
            for model in (Ensemble([one, one]), one)
        )
    )
