"""Sampling against the probabilities it should follow."""

import math
from collections import Counter

import pytest
import torch
from table_model import TableModel, random_tables, sources

from nmtkit.data.vocabulary import BOS, EOS
from nmtkit.search.sampling import SamplingConfig, draw_from, keep_top_k, keep_top_p, sample_translations

A, B, C, D = 4, 5, 6, 7


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def one_word(**probabilities: float) -> TableModel:
    """One word of the given probabilities, then the end."""
    table = torch.full((1, 2, 8, 8), -math.inf, dtype=torch.float64)
    for name, probability in probabilities.items():
        table[0, 0, BOS, {"a": A, "b": B, "c": C, "d": D, "end": EOS}[name]] = math.log(probability)
    table[0, 1, :, EOS] = 0.0
    return TableModel(table)


def frequencies(model: TableModel, config: SamplingConfig) -> dict[tuple[int, ...], float]:
    (drawn,) = sample_translations(model, sources(3), config, generator())
    assert len(drawn) == config.samples
    counts = Counter(tuple(hypothesis.ids) for hypothesis in drawn)
    return {ids: count / config.samples for ids, count in counts.items()}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {(A,): 0.4, (B,): 0.3, (C,): 0.2, (): 0.1}),
        ({"temperature": 0.5}, {(A,): 16 / 30, (B,): 9 / 30, (C,): 4 / 30, (): 1 / 30}),
        ({"top_k": 2}, {(A,): 4 / 7, (B,): 3 / 7}),
        ({"top_p": 0.65}, {(A,): 4 / 7, (B,): 3 / 7}),
        ({"top_p": 0.1}, {(A,): 1.0}),
        ({"min_length": 1}, {(A,): 4 / 9, (B,): 3 / 9, (C,): 2 / 9}),
    ],
)
def test_frequencies_follow_the_probabilities(config: dict[str, float], expected: dict[tuple[int, ...], float]) -> None:
    samples = 4000
    model = one_word(a=0.4, b=0.3, c=0.2, end=0.1)
    found = frequencies(model, SamplingConfig.model_validate({**config, "samples": samples}))
    assert set(found) == set(expected)
    for ids, probability in expected.items():
        assert abs(found[ids] - probability) <= 4 * math.sqrt(probability * (1 - probability) / samples)


def test_scores_are_the_model_s_own_log_probabilities() -> None:
    config = SamplingConfig(samples=20, temperature=2.0, top_k=3)
    (drawn,) = sample_translations(one_word(a=0.4, b=0.3, c=0.2, end=0.1), sources(3), config, generator())
    own = {(A,): 0.4, (B,): 0.3, (C,): 0.2}
    for hypothesis in drawn:
        assert hypothesis.log_prob == hypothesis.score == pytest.approx(math.log(own[tuple(hypothesis.ids)]))
    assert [h.score for h in drawn] == sorted((h.score for h in drawn), reverse=True)


def test_each_sample_follows_its_own_path() -> None:
    tables = random_tables(3, 4, 10)
    found = sample_translations(
        TableModel(tables), sources(3, 4, 5), SamplingConfig(samples=7), generator(), need_attention=True
    )
    for table, drawn in zip(tables, found, strict=True):
        assert len({tuple(h.ids) for h in drawn}) > 1
        for hypothesis in drawn:
            last, expected = BOS, []
            for depth, token in enumerate([*hypothesis.ids, *[EOS] * hypothesis.finished]):
                expected.append(float(table[min(depth, 3), last, token]))
                last = token
            assert hypothesis.token_log_probs == pytest.approx(expected)
            assert hypothesis.attention is not None
            assert hypothesis.attention[:, 1].tolist() == [BOS, *hypothesis.ids][: len(hypothesis.token_log_probs)]


def test_the_same_seed_draws_the_same() -> None:
    model = TableModel(random_tables(2, 4, 10))
    config = SamplingConfig(samples=5)
    first, again, other = (sample_translations(model, sources(3, 3), config, generator(seed)) for seed in (1, 1, 2))
    assert [[h.ids for h in drawn] for drawn in first] == [[h.ids for h in drawn] for drawn in again]
    assert [[h.ids for h in drawn] for drawn in first] != [[h.ids for h in drawn] for drawn in other]


def test_top_k_one_is_greedy() -> None:
    model = TableModel(random_tables(1, 4, 10))
    (drawn,) = sample_translations(model, sources(3), SamplingConfig(samples=3, top_k=1), generator())
    assert len({tuple(h.ids) for h in drawn}) == 1


def test_a_prefix_is_kept() -> None:
    found = sample_translations(
        TableModel(random_tables(1, 4, 10)),
        sources(3),
        SamplingConfig(samples=4),
        generator(),
        prefix=torch.tensor([[9, 8]]),
    )
    assert all(h.ids[:2] == [9, 8] for h in found[0])


def test_top_k_and_top_p_by_hand() -> None:
    log_probs = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25]], dtype=torch.float64).log()
    assert (keep_top_k(log_probs, 2) > -math.inf).tolist() == [[False, True, False, True], [True] * 4]
    assert (keep_top_k(log_probs, 0) > -math.inf).all()
    assert (keep_top_p(log_probs, 0.8) > -math.inf).tolist() == [[False, True, True, True], [True] * 4]
    assert (keep_top_p(log_probs, 0.5) > -math.inf).tolist() == [[False, True, False, True], [True, True, False, False]]
    assert (keep_top_p(log_probs, 1.0) > -math.inf).all()


def test_draws_are_looked_up_in_the_running_sums() -> None:
    weights = torch.tensor([[0.0, 0.5, 0.0, 0.25, 0.25, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0, 3.0]])
    drawn = draw_from(weights, 1000, generator(1))
    uniform = torch.rand(2, 1000, dtype=torch.float64, generator=generator(1))[0]
    assert drawn[0].tolist() == [1 if number < 0.5 else 3 if number < 0.75 else 4 for number in uniform.tolist()]
    assert drawn[1].tolist() == [5] * 1000
