"""Sampling against the probabilities it should follow."""

import math
from collections import Counter

import pytest
import torch
from reference_search import hashed as plain_hash
from table_model import TableModel, random_tables, sources

from nmtkit.data.vocabulary import BOS, EOS
from nmtkit.search.engine import Engine, beam_search
from nmtkit.search.hypotheses import Hypothesis
from nmtkit.search.rules import SearchConfig
from nmtkit.search.sampling import draw, keep_epsilon, keep_top_k, keep_top_p, splitmix64

A, B, C, D = 4, 5, 6, 7


def sampled(model: TableModel, *lengths: int, **settings: object) -> list[list[Hypothesis]]:
    config = SearchConfig.model_validate({"length_penalty": "none", **settings})
    return beam_search(model, sources(*lengths), config, config.samples, need_attention=True)


def one_word(**probabilities: float) -> TableModel:
    """One word of the given probabilities, then the end."""
    table = torch.full((1, 2, 8, 8), -math.inf, dtype=torch.float64)
    for name, probability in probabilities.items():
        table[0, 0, BOS, {"a": A, "b": B, "c": C, "d": D, "end": EOS}[name]] = math.log(probability)
    table[0, 1, :, EOS] = 0.0
    return TableModel(table)


def unlikely(found: Counter[int], expected: dict[int, float]) -> float:
    """How probable it is that counts differ so much from what is expected of them: Pearson's chi-square test."""
    assert set(found) <= set(expected)
    total = found.total()
    statistic = sum((found[key] - share * total) ** 2 / (share * total) for key, share in expected.items())
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
def test_frequencies_follow_the_probabilities(config: dict[str, float], expected: dict[int, float]) -> None:
    (drawn,) = sampled(one_word(a=0.4, b=0.3, c=0.2, end=0.1), 3, samples=1000, **config)
    assert len(drawn) == 1000
    counts = Counter((*one.ids, EOS)[0] for one in drawn)
    if len(expected) == 1:
        assert set(counts) == set(expected)
    else:
        assert unlikely(counts, expected) > 1e-3


def test_draws_of_many_words_follow_their_probabilities() -> None:
    """Words of several blocks, one of which has none that can be drawn; draws of two rows are independent."""
    log_probs = torch.randn(2, 200, generator=torch.Generator().manual_seed(1), dtype=torch.float64).log_softmax(1)
    log_probs[:, 64:128] = -math.inf
    keys = splitmix64(torch.tensor([[1], [2]]), torch.arange(40_000))
    drawn = draw(log_probs, keys)
    for row, found in zip(log_probs.softmax(1), drawn, strict=True):
        expected = {word: share for word, share in enumerate(row.tolist()) if share > 0}
        assert unlikely(Counter(found.tolist()), expected) > 1e-3
    pairs = Counter(zip((drawn[0] % 3).tolist(), (drawn[1] % 3).tolist(), strict=True))
    sides = [[float((one % 3 == rest).double().mean()) for rest in range(3)] for one in drawn]
    both = {3 * one + other: sides[0][one] * sides[1][other] for one in range(3) for other in range(3)}
    assert unlikely(Counter({3 * one + other: count for (one, other), count in pairs.items()}), both) > 1e-3


def test_the_hash_is_that_of_splitmix64() -> None:
    # The first numbers of the generator as its authors published it, from the state 1234567.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    found = splitmix64(torch.tensor(1234567), torch.arange(4)).tolist()
    assert [number % 2**64 for number in found] == published == [plain_hash(1234567, count) for count in range(4)]


def test_scores_are_the_model_s_own_log_probabilities() -> None:
    (drawn,) = sampled(one_word(a=0.4, b=0.3, c=0.2, end=0.1), 3, samples=20, temperature=2.0, top_k=3)
    own = {(A,): 0.4, (B,): 0.3, (C,): 0.2}
    for hypothesis in drawn:
        assert hypothesis.log_prob == hypothesis.score == pytest.approx(math.log(own[tuple(hypothesis.ids)]))
    assert [h.score for h in drawn] == sorted((h.score for h in drawn), reverse=True)


def test_each_sample_follows_its_own_path() -> None:
    tables = random_tables(3, 4, 10)
    found = sampled(TableModel(tables), 3, 4, 5, samples=7)
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


def test_a_sample_that_ends_at_the_limit_is_there_once() -> None:
    (drawn,) = sampled(one_word(a=0.4, b=0.3, c=0.2, end=0.1), 3, samples=50, max_length=2)
    assert len(drawn) == 50
    assert all(one.finished and EOS not in one.ids for one in drawn)


def test_seed_and_line_decide_what_is_drawn() -> None:
    tables = random_tables(1, 4, 10)
    model = TableModel(tables.expand(3, -1, -1, -1))  # three lines of one text
    config = SearchConfig(samples=5)

    def drawn(numbers: list[int], seed: int = 1) -> dict[int, list[list[int]]]:
        waiting = [(numbers, sources(3, 3, 3).select(torch.tensor(numbers) % 3))]
        engine = Engine(model, config.changed({"seed": seed}), 5)
        found = engine.run(lambda *_: waiting.pop() if waiting else None)
        return {number: [one.ids for one in best] for number, best in found}

    first = drawn([0, 1, 2])
    assert drawn([2, 0]) == {0: first[0], 2: first[2]}
    assert len({str(best) for best in first.values()}) == 3
    assert drawn([3])[3] not in first.values()
    assert drawn([0, 1, 2], seed=2)[0] != first[0]


def test_more_samples_leave_the_first_as_they_are() -> None:
    model = TableModel(random_tables(1, 4, 10))
    (few,), (many,) = (sampled(model, 3, samples=count) for count in (4, 9))
    assert not Counter(str(one.ids) for one in few) - Counter(str(one.ids) for one in many)


def test_top_k_one_is_greedy() -> None:
    model = TableModel(random_tables(1, 4, 10))
    (drawn,) = sampled(model, 3, samples=3, top_k=1)
    (best,) = sampled(model, 3, samples=1, temperature=0.01)
    assert {tuple(h.ids) for h in drawn} == {tuple(best[0].ids)}


def test_a_prefix_is_kept() -> None:
    model, prefix = TableModel(random_tables(1, 4, 10)), torch.tensor([[9, 8]])
    (drawn,) = beam_search(model, sources(3), SearchConfig(samples=4), 4, prefix=prefix)
    assert all(h.ids[:2] == [9, 8] for h in drawn)


def test_truncation_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    log_probs = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25]], dtype=torch.float64).log()
    assert (keep_top_k(log_probs, 2) > -math.inf).tolist() == [[False, True, False, True], [True] * 4]
    assert (keep_top_k(log_probs, 0) > -math.inf).all()
    assert (keep_epsilon(log_probs, 0.24) > -math.inf).tolist() == [[False, True, False, True], [True] * 4]
    assert (keep_epsilon(log_probs, 0.5) > -math.inf).tolist() == [[False, True, False, False], [True] * 4]
    for best_first in (512, 1):  # with so few looked at first, all are sorted
        monkeypatch.setattr("nmtkit.search.sampling.BEST_FIRST", best_first)
        assert (keep_top_p(log_probs, 0.8) > -math.inf).tolist() == [[False, True, True, True], [True] * 4]
        assert (keep_top_p(log_probs, 0.65) > -math.inf).tolist() == [[False, True, False, True], [True] * 4]
        assert (keep_top_p(log_probs, 0.3) > -math.inf).tolist() == [[False, True, False, False], [True] * 4]
        assert (keep_top_p(log_probs, 1.0) > -math.inf).all()
