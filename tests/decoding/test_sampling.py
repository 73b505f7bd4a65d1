"""Sampling against the probabilities it should follow."""

import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nmtkit.data.tokenizers.vocabulary import BOS, EOS
from nmtkit.decoding.beam_search import BeamSearch
from nmtkit.decoding.engine import Engine, OneBatch
from nmtkit.decoding.hypotheses import Hypothesis
from nmtkit.decoding.sampling import draw, keep_epsilon, keep_top_k, keep_top_p, splitmix64
from nmtkit.decoding.settings import SamplingConfig
from tests.decoding.table_model import A, B, C, TableModel, by_hand, random_tables, search, sources
from tests.support.reference_search import hashed as plain_hash

ONE_WORD = by_hand({BOS: {A: 0.4, B: 0.3, C: 0.2, EOS: 0.1}}, end_at=1)


def sampled(model: TableModel, samples: int, **settings: object) -> list[Hypothesis]:
    return search(model, samples, samples=samples, length_penalty="none", **settings)


def unlikely(counts: Counter[int], expected: dict[int, float]) -> float:
    """How probable it is that counts differ so much from what is expected of them: Pearson's chi-square test."""
    assert set(counts) <= set(expected)
    total = counts.total()
    statistic = sum(
        (counts[key] - share * total) ** 2 / (share * total) for key, share in expected.items()
    )
    freedom = torch.tensor((len(expected) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, torch.tensor(statistic / 2, dtype=torch.float64)))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {A: 0.4, B: 0.3, C: 0.2, EOS: 0.1}),
        ({"temperature": 0.5}, {A: 16 / 30, B: 9 / 30, C: 4 / 30, EOS: 1 / 30}),
        ({"top_k": 2}, {A: 4 / 7, B: 3 / 7}),
        ({"top_p": 0.65}, {A: 4 / 7, B: 3 / 7}),
        ({"top_p": 0.1}, {A: 1.0}),
        ({"epsilon": 0.15}, {A: 4 / 9, B: 3 / 9, C: 2 / 9}),
        ({"epsilon": 0.9}, {A: 1.0}),
        ({"temperature": 0.5, "top_k": 3, "epsilon": 0.2}, {A: 16 / 25, B: 9 / 25}),
        ({"min_length": 1}, {A: 4 / 9, B: 3 / 9, C: 2 / 9}),
    ],
    ids=str,
)
def test_frequencies_follow_the_probabilities(
    config: dict[str, float], expected: dict[int, float]
) -> None:
    drawn = sampled(ONE_WORD, 1000, **config)
    assert len(drawn) == 1000
    counts = Counter((*one.ids, EOS)[0] for one in drawn)
    if len(expected) == 1:
        assert set(counts) == set(expected)
    else:
        assert unlikely(counts, expected) > 1e-3


def test_draws_of_many_words_follow_their_probabilities() -> None:
    """Words of several blocks, one of which has none that can be drawn; draws of two rows are independent."""
    log_probs = torch.randn(
        2, 200, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    ).log_softmax(1)
    log_probs[:, 64:128] = -math.inf
    keys = splitmix64(torch.tensor([[1], [2]]), torch.arange(40_000))
    drawn = draw(log_probs, keys)
    for row, words in zip(log_probs.softmax(1), drawn, strict=True):
        expected = {word: share for word, share in enumerate(row.tolist()) if share > 0}
        assert unlikely(Counter(words.tolist()), expected) > 1e-3
    pairs = Counter(zip((drawn[0] % 3).tolist(), (drawn[1] % 3).tolist(), strict=True))
    sides = [[float((one % 3 == rest).double().mean()) for rest in range(3)] for one in drawn]
    both = {
        3 * one + other: sides[0][one] * sides[1][other] for one in range(3) for other in range(3)
    }
    assert (
        unlikely(Counter({3 * one + other: count for (one, other), count in pairs.items()}), both)
        > 1e-3
    )


def test_the_hash_is_that_of_splitmix64() -> None:
    # The first numbers of the generator as its authors published it, from the state 1234567.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    numbers = splitmix64(torch.tensor(1234567), torch.arange(4)).tolist()
    assert (
        [number % 2**64 for number in numbers]
        == published
        == [plain_hash(1234567, count) for count in range(4)]
    )


def test_a_sample_that_ends_at_the_limit_is_there_once() -> None:
    drawn = sampled(ONE_WORD, 50, max_length=2)
    assert len(drawn) == 50
    assert all(one.finished and EOS not in one.ids for one in drawn)


def test_seed_and_line_decide_what_is_drawn() -> None:
    tables = random_tables(1, 4, 10)
    model = TableModel(tables.expand(3, -1, -1, -1))  # three lines of one text
    config = SamplingConfig(samples=5)

    def drawn(numbers: list[int], seed: int = 1) -> dict[int, list[list[int]]]:
        batch = sources(3, 3, 3).select(torch.tensor(numbers) % 3)
        engine = Engine(BeamSearch(model, config.changed({"seed": seed}), 5))
        results = engine.run(OneBatch(batch, numbers))
        return {number: [one.ids for one in best] for number, best in results}

    first = drawn([0, 1, 2])
    assert drawn([2, 0]) == {0: first[0], 2: first[2]}
    assert len({str(best) for best in first.values()}) == 3
    assert drawn([3])[3] not in first.values()
    assert drawn([0, 1, 2], seed=2)[0] != first[0]


@pytest.mark.parametrize(
    ("keep", "limit", "kept"),
    [
        (keep_top_k, 2, {1, 3}),
        (keep_top_k, 0, {0, 1, 2, 3}),
        (keep_epsilon, 0.24, {1, 3}),
        (keep_epsilon, 0.5, {1}),
        (keep_top_p, 0.8, {1, 2, 3}),
        (keep_top_p, 0.65, {1, 3}),
        (keep_top_p, 0.3, {1}),
        (keep_top_p, 1.0, {0, 1, 2, 3}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
@pytest.mark.parametrize("best_first", [512, 1])  # with so few looked at first, top-p sorts all
def test_truncation_by_hand(
    best_first: int,
    keep: Callable[..., Tensor],
    limit: float,
    kept: set[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Words that are as probable as the last one that is kept are kept too."""
    monkeypatch.setattr("nmtkit.decoding.sampling.TOP_P_FIRST_WORDS", best_first)
    unequal, equal = keep(
        torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.25] * 4], dtype=torch.float64).log(), limit
    )
    assert {word for word, value in enumerate(unequal.tolist()) if value > -math.inf} == kept
    assert bool((equal > -math.inf).all())
