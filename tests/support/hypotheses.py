"""Hypotheses of the engine beside those of another search, and beside those of the reference."""

from collections.abc import Sequence

import pytest

from nmtkit.data.tokenizers.vocabulary import EOS
from nmtkit.decoding.hypotheses import Hypothesis
from nmtkit.decoding.settings import BeamConfig, SamplingConfig, SearchConfig, change_search
from nmtkit.models.base import Decoder, as_seq2seq
from nmtkit.models.ensemble import Ensemble
from tests.support import reference_search
from tests.support.reference_search import NO_REQUEST, EnsembleSentence, Request, Sentence


def same(
    hypotheses: Sequence[Sequence[Hypothesis]],
    expected: Sequence[Sequence[Hypothesis]],
    within: float = 1e-9,
) -> None:
    """Asserts that two searches of the same sentences found the same hypotheses."""
    assert [[(one.ids, one.finished) for one in row] for row in hypotheses] == [
        [(one.ids, one.finished) for one in row] for row in expected
    ]
    for row, others in zip(hypotheses, expected, strict=True):
        for one, other in zip(row, others, strict=True):
            assert one.score == pytest.approx(other.score, abs=within)
            assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=within)
            assert one.p_gen == (
                None if other.p_gen is None else pytest.approx(other.p_gen, abs=within)
            )
            assert (one.attention is None) == (other.attention is None)
            assert one.attention is None or one.attention == pytest.approx(
                other.attention, abs=max(within, 1e-6)
            )


def agree(
    hypotheses: Sequence[Hypothesis],
    sentence: Sentence | EnsembleSentence,
    config: SearchConfig,
    line: int,
    request: Request = NO_REQUEST,
    n_best: int | None = None,
) -> None:
    """Asserts that the engine found for a line what the reference finds; by default all hypotheses of the beam."""
    wanted = n_best or config.n_hypotheses
    if isinstance(config, SamplingConfig):
        plain = reference_search.sampled(sentence, config, line, request)[:wanted]
    else:
        assert isinstance(config, BeamConfig)
        plain = reference_search.search(sentence, config, wanted, request)
    what = f"line {line}: {config}"
    assert [one.ids + [EOS] * one.finished for one in hypotheses] == [
        list(one.tokens) for one in plain
    ], what
    for one, other in zip(hypotheses, plain, strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-9), what
        assert one.token_log_probs == pytest.approx(other.log_probs, abs=1e-9), what


def for_model(settings: dict[str, object], model: Decoder) -> SearchConfig:
    """The settings of a search; where there is no attention no coverage is penalized, and no source sets a limit."""
    config = change_search(BeamConfig(), settings)
    if as_seq2seq(model) is None:
        config = config.changed({"max_length_ratio": 0.0, "min_length_ratio": 0.0})
    return config if model.has_attention else config.changed({"coverage_penalty": 0.0})


def together(ensemble: Ensemble, sentences: Sequence[Sentence]) -> EnsembleSentence:
    """One sentence as each member reads it, for the reference."""
    return EnsembleSentence(sentences, ensemble.shares, ensemble.averages_log_probs)
