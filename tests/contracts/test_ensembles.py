"""Several models as one, of every kind: what the contract asks of a model, and what the plain search finds."""

from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch

from nmtkit.core.errors import RecipeError
from nmtkit.decoding.search_batch import search_batch
from nmtkit.decoding.settings import BeamConfig
from nmtkit.models.base import MODELS, Decoder, VocabularySizes, members_of
from nmtkit.models.ensemble import Ensemble, Mean
from nmtkit.zoo.captioning.show_and_tell import Captioner
from tests.contracts import test_models as contract
from tests.contracts import test_shortlists as shortlists
from tests.contracts.test_models import SOURCES, batch_of, model
from tests.contracts.variants import VARIANTS, VOCABULARY, enlarged, in_turns
from tests.support.cases import daily
from tests.support.hypotheses import agree, for_model, same, together
from tests.support.step_by_step import Walk

__all__ = ["model"]  # a fixture

TOGETHER: dict[str, tuple[list[str], Mean, list[float] | None]] = {
    "attention-and-none": (
        ["rnnsearch", "rnn-encdec", "transformer", "convs2s", "gnmt", "lstmn-seq2seq"],
        "probabilities",
        [1.0, 2.0, 0.5, 1.0, 1.0, 1.0],
    ),
    "none": (["rnn-encdec", "rnn-encdec-lstm-2-layers"], "log-probabilities", None),
    "copying-and-not": (["transformer", "pointer-generator-coverage"], "probabilities", None),
    "several-pasts": (
        ["intra-attention", "t5", "luong-dot-local-m", "transformer-copying-head"],
        "probabilities",
        None,
    ),
    "copying-by-logs": (["pointer-generator", "intra-attention"], "log-probabilities", [3.0, 1.0]),
    "language-models": (
        ["transformer-lm", "rnn-lm", "pointer-sentinel", "lstmn", "snail", "ntm"],
        "probabilities",
        [1.0, 2.0, 2.0, 1.0, 1.0, 2.0],
    ),
    "forbidding-copies": (
        ["transformer-copying-learned", "rnnsearch-location-tied"],
        "log-probabilities",
        None,
    ),
}


@cache
def shared(name: str) -> Ensemble:
    names, mean, weights = TOGETHER[name]
    return Ensemble(
        [enlarged(name, seed) for seed, name in enumerate(names, start=1)], mean, weights
    )


@pytest.fixture(params=TOGETHER)
def ensemble(request: pytest.FixtureRequest) -> Iterator[Ensemble]:
    """Each of them; tests share it."""
    yield from contract.unchanged(shared(request.param))


def test_every_kind_of_model_is_among_them() -> None:
    """Captioners apart: a sentence of the tests is not what they read."""
    assert {VARIANTS[name][0] for names, _, _ in TOGETHER.values() for name in names} == {
        kind
        for kind in MODELS.names()
        if issubclass(MODELS.get(kind), Decoder) and not issubclass(MODELS.get(kind), Captioner)
    }


CHECKS: list[Callable[[Decoder], None]] = [
    contract.test_whole_pass_equals_the_walk,
    contract.test_kept_positions_are_those_of_the_whole_pass,
    contract.test_padding_changes_nothing,
    contract.test_hypotheses_of_a_sentence_equal_sentences_of_their_own,
    contract.test_permuted_rows_give_permuted_outputs,
    contract.test_distributions_sum_to_one,
    contract.test_scoring_a_translation_gives_the_score_of_the_search,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda one: one.__name__)
def test_an_ensemble_is_a_model(ensemble: Ensemble, check: Callable[[Decoder], None]) -> None:
    check(ensemble)


OF_TEXTS = ["copying-and-not", *sorted({*TOGETHER} - {"copying-and-not", "language-models"})]


@pytest.mark.parametrize("ensemble", daily(OF_TEXTS), indirect=True)
def test_neighbours_and_slots_change_nothing_with_a_shortlist(ensemble: Ensemble) -> None:
    shortlists.test_neighbours_and_slots_change_nothing(ensemble, searches=shortlists.BESIDE[1:])


RULES: list[dict[str, object]] = [
    {"beam_size": 1},
    {"beam_size": 4, "coverage_penalty": 0.2, "no_repeat_ngram": 2},
    {"beam_size": 10, "diversity_groups": 2, "stop": "exact"},
    {"samples": 4, "top_p": 0.95},
]


SEARCHES = in_turns(RULES, 2, TOGETHER)


@torch.no_grad()
@pytest.mark.parametrize(("ensemble", "searches"), SEARCHES, indirect=["ensemble"])
def test_the_search_finds_what_the_reference_finds(
    ensemble: Ensemble, searches: list[dict[str, object]]
) -> None:
    for settings in searches:
        config = for_model({**settings, "max_length": 5}, ensemble)
        for line, hypotheses in enumerate(
            search_batch(ensemble, batch_of(ensemble, SOURCES[:3]), config, config.n_hypotheses)
        ):
            own = [contract.sentences(one)[line] for one in members_of(ensemble)]
            agree(hypotheses, together(ensemble, own), config, line)


@torch.no_grad()
def test_large_vocabularies_are_searched_without_log_probabilities(
    ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BeamConfig(beam_size=4, max_length=6)
    expected = search_batch(ensemble, batch_of(ensemble, SOURCES), config, 4)
    monkeypatch.setattr("nmtkit.decoding.beam_search.MANY_LOGITS", 1)
    hypotheses = search_batch(ensemble, batch_of(ensemble, SOURCES), config, 4)
    same(hypotheses, expected)


def test_what_does_not_fit_together_is_refused() -> None:
    one, sizes = (
        enlarged("rnnsearch", 1),
        VocabularySizes({"src": VOCABULARY + 1, "tgt": VOCABULARY + 1}, shared=True),
    )
    other = type(one)(one.config, sizes)
    with pytest.raises(RecipeError, match="same vocabulary"):
        Ensemble([one, other])
    for weights in ([1.0], [1.0, 0.0], [1.0, float("nan")]):
        with pytest.raises(RecipeError, match="2 models needs 2 weights"):
            Ensemble([one, one], weights=weights)


@torch.no_grad()
def test_p_gen_of_a_member_that_does_not_copy_is_one() -> None:
    copying, plain = enlarged("pointer-generator", 1), enlarged("transformer", 2)
    tokens = torch.full((len(SOURCES),), 5)
    batch = batch_of(plain, SOURCES)
    gates = [
        Walk(one, one.encode(batch)).step(tokens)[1].copy_gate
        for one in (copying, Ensemble([copying, plain]))
    ]
    torch.testing.assert_close(gates[1], (gates[0] + 1) / 2)
