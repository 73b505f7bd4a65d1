"""A translation model beside a language model: Gulcehre et al. 2015, equation 7, and what a search finds."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from torch import Tensor

from nmtkit.core.errors import RecipeError
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, UNK
from nmtkit.decoding.search_batch import search_batch
from nmtkit.decoding.settings import BeamConfig
from nmtkit.models.base import Decoder, Seq2Seq
from nmtkit.models.ensemble import Ensemble
from nmtkit.models.language.shallow_fusion import ShallowFusion
from tests.contracts import test_models as contract
from tests.contracts import test_shortlists as shortlists
from tests.contracts.test_models import SOURCES, TARGETS, batch_of, close
from tests.contracts.variants import VOCABULARY, enlarged, in_turns
from tests.support.cases import daily
from tests.support.hypotheses import agree, for_model
from tests.support.prompted_decoders import RecurrentModel
from tests.support.reference_search import Sentence
from tests.support.step_by_step import Told

BETA = 0.7


PAIRS: dict[str, Callable[[], tuple[Seq2Seq, Decoder]]] = {
    "transformer": lambda: (enlarged("transformer"), enlarged("transformer-lm", 3)),
    "rnnsearch": lambda: (enlarged("rnnsearch"), enlarged("rnn-lm", 3)),
    "copying": lambda: (enlarged("pointer-generator-coverage"), enlarged("pointer-sentinel", 3)),
    "ensemble": lambda: (
        Ensemble([enlarged("rnn-encdec"), enlarged("transformer-copying-head", 2)]),
        enlarged("transformer-lm-post-norm", 3),
    ),
}


@cache
def shared(name: str) -> ShallowFusion:
    return ShallowFusion(*PAIRS[name](), BETA)


@pytest.fixture(params=PAIRS)
def fusion(request: pytest.FixtureRequest) -> Iterator[ShallowFusion]:
    """Each of them; tests share it."""
    yield from contract.unchanged(shared(request.param))


def sums(fusion: ShallowFusion, source: list[int], target: list[int]) -> Tensor:
    """Equation 7 for every position of a target, by each model's own pass over it `(T,X)`."""
    translation_model, language_model = fusion.members
    translated = translation_model(batch_of(fusion, [source], [target]))[0]
    spoken = language_model(batch_of(language_model, [source], [target]))[0]
    whole = torch.empty_like(translated)
    for k in range(translated.shape[1]):
        whole[:, k] = translated[:, k] + BETA * spoken[:, k if k < VOCABULARY else UNK]
    return whole


@torch.no_grad()
def test_the_equation(fusion: ShallowFusion) -> None:
    for source, target in zip(SOURCES, TARGETS, strict=True):
        close(fusion(batch_of(fusion, [source], [target]))[0], sums(fusion, source, target))


@torch.no_grad()
def test_a_beam_of_one_is_the_best_sum_in_every_step(fusion: ShallowFusion) -> None:
    found = search_batch(
        fusion,
        batch_of(fusion, SOURCES),
        BeamConfig(beam_size=1, max_length=6, length_penalty="none"),
    )
    for source, (best,) in zip(SOURCES, found, strict=True):
        words, total = [], 0.0
        while len(words) < 6 and EOS not in words:
            step = sums(fusion, source, words)[-1]
            step[[PAD, BOS]] = -torch.inf
            total += float(step.max())
            words.append(int(step.argmax()))
        assert [*best.ids, EOS][: len(words)] == words
        assert best.score == best.log_prob == pytest.approx(total, abs=1e-9)


CHECKS: list[Callable[[Seq2Seq], None]] = [
    contract.test_kept_positions_are_those_of_the_whole_pass,
    contract.test_padding_changes_nothing,
    contract.test_hypotheses_of_a_sentence_equal_sentences_of_their_own,
    contract.test_permuted_rows_give_permuted_outputs,
    contract.test_scoring_a_translation_gives_the_score_of_the_search,
    partial(contract.alone_and_together, config=BeamConfig(beam_size=3, max_length=8)),
    partial(shortlists.test_neighbours_and_slots_change_nothing, searches=shortlists.BESIDE[1:]),
]


@pytest.mark.parametrize(
    "check", daily(CHECKS, 2), ids=lambda one: getattr(one, "func", one).__name__
)
def test_a_fusion_is_a_model(fusion: ShallowFusion, check: Callable[[Seq2Seq], None]) -> None:
    check(fusion)


class FusedSentence(Sentence):
    """What the reference search reads."""

    def __init__(self, fusion: ShallowFusion, source: list[int]) -> None:
        super().__init__(fusion, lambda rows: batch_of(fusion, [source] * len(rows), rows))
        self.sums = cache(lambda tokens: sums(fusion, source, list(tokens))[None])

    def after(self, tokens: tuple[int, ...]) -> Told:
        return replace(super().after(tokens), log_probs=self.sums(tokens))


@cache
def fused(fusion: ShallowFusion, line: int) -> FusedSentence:
    """One of `SOURCES`; searches share it."""
    return FusedSentence(fusion, SOURCES[line])


RULES: list[dict[str, object]] = [
    {"beam_size": 4, "coverage_penalty": 0.2, "no_repeat_ngram": 2},
    {"beam_size": 10, "diversity_groups": 2, "stop": "exact"},
    {"beam_size": 3, "repetition_penalty": 1.2, "length_penalty": "gnmt", "min_length": 2},
    {"samples": 4, "top_p": 0.95},
]


@torch.no_grad()
@pytest.mark.parametrize(("fusion", "searches"), in_turns(RULES, 2, PAIRS), indirect=["fusion"])
def test_the_search_finds_what_the_reference_finds(
    fusion: ShallowFusion, searches: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # its sums are no logits of a distribution
    monkeypatch.setattr("nmtkit.decoding.beam_search.MANY_LOGITS", 1)
    for settings in searches:
        config = for_model({**settings, "max_length": 5}, fusion)
        for line, hypotheses in enumerate(
            search_batch(fusion, batch_of(fusion, SOURCES[:3]), config, config.n_hypotheses)
        ):
            agree(hypotheses, fused(fusion, line), config, line)


@torch.no_grad()
def test_without_weight_the_search_is_that_of_the_translation_model(fusion: ShallowFusion) -> None:
    alone, spoken = PAIRS["copying"]()
    none = ShallowFusion(alone, spoken, 0.0)
    for shortlist in (None, shortlists.SHORTLIST):
        both = [shortlists.searched(model, SOURCES, shortlist=shortlist) for model in (none, alone)]
        assert [[one.ids for one in row] for row in both[0]] == [
            [one.ids for one in row] for row in both[1]
        ]
        assert [row[0].score for row in both[0]] == pytest.approx(
            [row[0].score for row in both[1]], abs=1e-9
        )


def test_another_vocabulary_is_refused() -> None:
    with pytest.raises(RecipeError, match="13 tokens, but the language model has one of 12"):
        ShallowFusion(enlarged("rnnsearch"), RecurrentModel(VOCABULARY - 1), BETA)
