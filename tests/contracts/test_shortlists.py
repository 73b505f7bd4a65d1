"""A search among the words of a shortlist, asked of every registered model in all its variants."""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from nmtkit.core.errors import RecipeError
from nmtkit.data.tokenizers.vocabulary import PAD, SPECIALS, UNK
from nmtkit.decoding.beam_search import BeamSearch
from nmtkit.decoding.engine import Engine
from nmtkit.decoding.hypotheses import Hypothesis
from nmtkit.decoding.search_batch import search_batch
from nmtkit.decoding.settings import BeamConfig, SearchConfig
from nmtkit.decoding.shortlist import Shortlist
from nmtkit.layers.linear import Precision, prepare_for_inference, supported_precisions
from nmtkit.models.base import Seq2Seq
from tests.contracts.test_models import SOURCES, batch_of, model
from tests.contracts.variants import (
    EVERY,
    ONE_OF_EACH_THAT_COPIES,
    VOCABULARY,
    build,
    by_turns,
    few,
    in_turns,
)
from tests.support.hypotheses import same
from tests.support.step_by_step import source_of

__all__ = ["model"]  # a fixture

CONFIG = BeamConfig(beam_size=3, max_length_ratio=1.0, max_length_offset=3)
LISTED = {UNK: [12], 4: [6, 9], 5: [7, 12], 6: [4], 7: [5, 8], 9: [11, 12], 11: [4, 5, 6], 12: [7]}
SHORTLIST = Shortlist.from_candidates(
    [LISTED.get(word, []) for word in range(VOCABULARY)], [10], VOCABULARY
)
"""No source of `SOURCES` has all words."""
WHOLE = Shortlist.from_candidates([[]] * VOCABULARY, range(VOCABULARY), VOCABULARY)


def searched(
    model: Seq2Seq,
    sources: Sequence[Sequence[int]],
    config: SearchConfig = CONFIG,
    shortlist: Shortlist | None = SHORTLIST,
    slots: int = 99,
    prefix: Tensor | None = None,
) -> list[list[Hypothesis]]:
    engine = Engine(
        BeamSearch(
            model,
            config,
            config.n_hypotheses,
            need_attention=model.has_attention,
            shortlist=shortlist,
        )
    )
    hypotheses = dict(
        engine.run(source_of(replace(batch_of(model, sources), prefix=prefix), slots))
    )
    return [hypotheses[number] for number in range(len(sources))]


def allowed(model: Seq2Seq, source: Sequence[int]) -> set[int]:
    """The words that may stand in a translation."""
    listed = {
        word for token in source for word in LISTED.get(token if token < VOCABULARY else UNK, [])
    }
    return listed | {*range(len(SPECIALS)), 10} | (set(source) if model.config.copies else set())


BESIDE: list[dict[str, object]] = [{"no_repeat_ngram": 1}, {"stop": "exact", "min_length": 2}]


@pytest.mark.parametrize(
    ("model", "searches"), in_turns(BESIDE, 1, ONE_OF_EACH_THAT_COPIES), indirect=["model"]
)
def test_neighbours_and_slots_change_nothing(
    model: Seq2Seq, searches: list[dict[str, object]]
) -> None:
    """Sentences with other candidates stand beside a sentence, and take slots of one that is done."""
    sources = [*SOURCES, [11, 4], [6, 6, 6], [9, 12, 8], [7]]
    for rules in searches:
        config = CONFIG.changed(rules)
        alone = [searched(model, [source], config)[0] for source in sources]
        same(searched(model, sources, config), alone)
        same(searched(model, sources, config, slots=2), alone)


@pytest.mark.parametrize("model", by_turns(Seq2Seq, 0, 2), indirect=True)
def test_a_shortlist_of_all_words_is_none(model: Seq2Seq) -> None:
    same(searched(model, SOURCES, shortlist=WHOLE), searched(model, SOURCES, shortlist=None))
    in_float32 = copy.deepcopy(model).float()
    one, other = (
        searched(in_float32, SOURCES[:3], shortlist=shortlist) for shortlist in (WHOLE, None)
    )
    assert [[each.ids for each in row] for row in one] == [
        [each.ids for each in row] for row in other
    ]


LAID_OUT = in_turns(supported_precisions(torch.device("cpu")), 1, ONE_OF_EACH_THAT_COPIES)


@pytest.mark.parametrize(("model", "kinds"), LAID_OUT, indirect=["model"])
def test_weights_that_are_laid_out_otherwise(model: Seq2Seq, kinds: list[Precision]) -> None:
    """What is computed of the output layer is the same as without a shortlist, but for its own rounding."""
    for precision in kinds:
        packed = copy.deepcopy(model).float()
        prepare_for_inference(packed, precision, [getattr(packed, "output", None) or packed])
        results, expected = (
            searched(packed, SOURCES, shortlist=shortlist) for shortlist in (WHOLE, None)
        )
        near = 1e-4 if precision == "fp32" else 0.1
        for row, other in zip(results, expected, strict=True):
            assert row[0].score == pytest.approx(other[0].score, abs=near)
        for source, row in zip(SOURCES, searched(packed, SOURCES), strict=True):
            assert all(set(one.ids) <= allowed(packed, source) for one in row)


@pytest.mark.parametrize("model", few(Seq2Seq), indirect=True)
def test_forced_words_are_candidates(model: Seq2Seq) -> None:
    """Whatever the list says; copied ones keep their extended ids."""
    own = [13, 13] if model.config.copies else [8, 8]
    sources = [[13, 5], [13, 9, 4]]
    prefix = torch.tensor([[8, own[0], PAD], [own[1], 6, 11]])
    assert 8 not in allowed(model, sources[0])
    config = CONFIG.changed({"no_repeat_ngram": 2})
    results = searched(model, sources, config, prefix=prefix)
    whole = searched(model, sources, config, WHOLE, prefix=prefix)
    for several, others, row in zip(results, whole, prefix.tolist(), strict=True):
        wanted = [word for word in row if word != PAD]
        assert all(one.ids[: len(wanted)] == wanted for one in [*several, *others])
    same(
        whole,
        search_batch(
            model,
            batch_of(model, sources),
            config,
            config.n_hypotheses,
            model.has_attention,
            prefix,
        ),
    )


def test_a_model_without_an_output_layer() -> None:
    kind, settings = EVERY["luong-local-p-2-layers"]
    luong = build(kind, settings).eval()
    luong.output = torch.nn.Sequential(luong.output)
    with pytest.raises(
        RecipeError, match="luong has no output matrix from which a shortlist could select rows"
    ):
        searched(luong, SOURCES)
    assert math.isfinite(searched(luong, SOURCES, shortlist=None)[0][0].score)


def test_steps_with_a_shortlist_are_not_captured() -> None:
    with pytest.raises(RecipeError, match="steps with a shortlist cannot be captured"):
        Engine(
            BeamSearch(build(*EVERY["transformer"]).eval(), CONFIG, shortlist=SHORTLIST),
            steps="graph",
        )
