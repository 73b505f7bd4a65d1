"""Beam search over a table of log-probabilities, against plain loops and exhaustive search."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from nmtkit.core.errors import CheckpointError, RecipeError
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD
from nmtkit.decoding import candidates as step_candidates
from nmtkit.decoding import engine as engine_module
from nmtkit.decoding.candidates import stable_topk, top_continuations
from nmtkit.decoding.hypotheses import ranking_score
from nmtkit.decoding.search_batch import search_batch
from nmtkit.decoding.settings import BeamConfig
from nmtkit.layers.kv_cache import KVCache
from nmtkit.models.base import DecoderState, Memory, ModelOutput, Seq2Seq
from tests.decoding.table_model import (
    A,
    B,
    C,
    D,
    TableModel,
    by_hand,
    many,
    random_tables,
    search,
    sources,
    unlimited,
)
from tests.support.hypotheses import same


class Sequence(NamedTuple):
    ids: list[int]
    finished: bool
    log_prob: float
    score: float


def every_sequence(table: Tensor, limit: int, kind: str, alpha: float) -> list[Sequence]:
    """All there is, best first: what ended within `limit` tokens, EOS counted, then what is `limit` tokens long."""

    def score(log_prob: float, length: int) -> float:
        return (
            log_prob
            / {"none": 1.0, "average": length**alpha, "gnmt": ((5 + length) / 6) ** alpha}[kind]
        )

    def grow(ids: list[int], total: float) -> Iterator[Sequence]:
        depth = len(ids)
        if depth == limit:
            yield Sequence(ids, False, total, score(total, depth))
            return
        row = table[min(depth, len(table) - 1), ids[-1] if ids else BOS].tolist()
        yield Sequence(ids, True, total + row[EOS], score(total + row[EOS], depth + 1))
        for token in range(len(row)):
            if token not in (PAD, BOS, EOS):
                yield from grow([*ids, token], total + row[token])

    return sorted(grow([], 0.0), key=lambda one: (not one.finished, -one.score))


def test_beam_one_is_a_plain_argmax_loop() -> None:
    tables = random_tables(6, 5, 12)
    results = search_batch(TableModel(tables), sources(*[4] * 6), unlimited(beam_size=1))
    for table, (hypothesis,) in zip(tables, results, strict=True):
        ids: list[int] = []
        total = 0.0
        while len(ids) < 12 and (not ids or ids[-1] != EOS):
            row = table[min(len(ids), 4), ids[-1] if ids else BOS].clone()
            row[[PAD, BOS]] = -math.inf
            ids.append(int(row.argmax()))
            total += float(row.max())
        finished = ids[-1] == EOS
        assert hypothesis.ids == (ids[:-1] if finished else ids)
        assert hypothesis.finished == finished
        assert hypothesis.log_prob == pytest.approx(total)
        assert hypothesis.score == pytest.approx(total / len(ids))
    assert {h.finished for (h,) in results} == {True, False}


@pytest.mark.parametrize("stop", ["first_k", "exact"])
@pytest.mark.parametrize(
    ("kind", "alpha"), [("none", 1.0), ("average", 1.0), ("average", 0.5), ("gnmt", 0.8)]
)
@pytest.mark.parametrize("limit", [1, 2, 4])
def test_a_beam_as_wide_as_the_tree_is_exhaustive_search(
    kind: str, alpha: float, limit: int, stop: str
) -> None:
    tables = random_tables(4, 3, 7, seed=limit)
    width = 4**limit  # three words and UNK
    config = BeamConfig(
        length_penalty=kind, alpha=alpha, max_length=limit, max_length_offset=9, stop=stop
    )
    # a wider one than a recipe may ask for
    config = config.model_copy(update={"beam_size": 4 * width})
    results = search_batch(TableModel(tables), sources(3, 4, 3, 2), config, n_best=width)
    for table, hypotheses in zip(tables, results, strict=True):
        expected = every_sequence(table, limit, kind, alpha)[:width]
        assert [(h.ids, h.finished) for h in hypotheses] == [
            (one.ids, one.finished) for one in expected
        ]
        assert [h.log_prob for h in hypotheses] == pytest.approx([one.log_prob for one in expected])
        assert [h.score for h in hypotheses] == pytest.approx([one.score for one in expected])


def test_what_is_in_the_tree_is_all_that_is_returned() -> None:
    hypotheses = search(
        TableModel(random_tables(1, 2, 6)), 50, beam_size=50, max_length=2, max_length_offset=9
    )
    # the empty one, three words and EOS, nine pairs that were cut
    assert len(hypotheses) == 1 + 3 + 9


# Tables written by hand.


GREEDY_MISSES = {
    BOS: {A: 0.6, B: 0.4},
    A: {C: 0.51, D: 0.49},
    B: {C: 1.0},
    C: {EOS: 1.0},
    D: {EOS: 1.0},
}
EARLY_END = {BOS: {EOS: 0.4, A: 0.6}, A: {B: 0.9, D: 0.1}, B: {EOS: 1.0}, D: {EOS: 1.0}}
LATE_WINNER = {
    BOS: {EOS: 0.4, A: 0.6},
    A: {EOS: 0.5, B: 0.5},
    B: {C: 1.0},
    C: {D: 1.0},
    D: {EOS: 1.0},
}
LOW_END = {BOS: {A: 0.5, B: 0.3, EOS: 0.2}, A: {EOS: 1.0}, B: {EOS: 1.0}}
ENDLESS = {BOS: {A: 0.99, EOS: 0.01}, A: {A: 1.0}}
COIN = {BOS: {A: 0.7, EOS: 0.3}, A: {A: 0.5, EOS: 0.5}}
NONE = {"length_penalty": "none", "max_length": 4}


BY_HAND = {
    "greedy": (GREEDY_MISSES, {"beam_size": 1}, {"AC": math.log(0.306) / 3}),
    "wider": (
        GREEDY_MISSES,
        {"beam_size": 2},
        {"BC": math.log(0.4) / 3, "AC": math.log(0.306) / 3},
    ),
    # The empty translation ends first and is among the best two; `first_k` goes on until two are finished.
    "first_k": (EARLY_END, {"beam_size": 2}, {"AB": math.log(0.54) / 3, "": math.log(0.4)}),
    "no length penalty": (
        EARLY_END,
        {"beam_size": 2, **NONE},
        {"AB": math.log(0.54), "": math.log(0.4)},
    ),
    # Two have ended after the second step; only `exact` waits for the one that wins by its mean.
    "first_k gives up": (LATE_WINNER, {"beam_size": 2}, {"A": math.log(0.3) / 2}),
    "exact waits": (LATE_WINNER, {"beam_size": 2, "stop": "exact"}, {"ABCD": math.log(0.3) / 5}),
    "an end below the beam": (
        LOW_END,
        {"beam_size": 2},
        {"A": math.log(0.5) / 2, "B": math.log(0.3) / 2},
    ),
    "unfinished": (
        ENDLESS,
        {"beam_size": 3, "max_length": 4},
        {"": math.log(0.01), "AAAA": math.log(0.99) / 4},
    ),
    "beam 1": (COIN, {"beam_size": 1, **NONE}, {"A": math.log(0.35)}),
    "beam 2": (COIN, {"beam_size": 2, **NONE}, {"A": math.log(0.35), "": math.log(0.3)}),
}


@pytest.mark.parametrize(("rows", "settings", "expected"), BY_HAND.values(), ids=BY_HAND)
def test_scores_and_order_by_hand(
    rows: dict[int, dict[int, float]], settings: dict[str, object], expected: dict[str, float]
) -> None:
    hypotheses = search(by_hand(rows), len(expected), **settings)
    assert ["".join("ABCD"[token - A] for token in h.ids) for h in hypotheses] == list(expected)
    assert [h.score for h in hypotheses] == pytest.approx(list(expected.values()))
    for hypothesis in hypotheses:
        assert hypothesis.log_prob == pytest.approx(sum(hypothesis.token_log_probs))
        assert len(hypothesis.token_log_probs) == len(hypothesis.ids) + hypothesis.finished


def test_exact_stops_as_soon_as_the_rest_cannot_win() -> None:
    first = {A: 0.36, B: 0.34, C: 0.3}
    model = by_hand(
        {
            BOS: first,
            A: {EOS: 0.52, D: 0.48},
            B: {EOS: 0.9, D: 0.1},
            C: {EOS: 1.0},
            D: {D: 0.999, EOS: 0.001},
        }
    )
    assert search(model, beam_size=2, length_penalty="none")[0].ids == [B]
    steps = []
    for settings in ({"length_penalty": "none"}, {"max_length": 20}):
        model.rows_seen.clear()
        search(model, beam_size=2, stop="exact", **settings)
        steps.append(len(model.rows_seen))
    # 0.36 * 0.48 can never become 0.306; its mean over 20 tokens might have
    assert steps == [2, 20]


def test_a_repetition_is_ranked_lower_and_keeps_its_log_probability() -> None:
    model = by_hand({BOS: {A: 1.0}, A: {A: 0.6, B: 0.4}, B: {EOS: 1.0}}, end_at=2)
    settings = {"beam_size": 2, "length_penalty": "none", "repetition_penalty": 2.0}
    first, second = search(model, 2, **settings)
    assert [first.ids, second.ids] == [[A, B], [A, A]]
    assert second.log_prob == pytest.approx(math.log(0.6))
    assert second.score == pytest.approx(2 * math.log(0.6))
    scored = ranking_score(
        BeamConfig(**settings), second.ids, torch.tensor(second.token_log_probs), None
    )
    assert scored == pytest.approx(second.score)


# Coverage.


def look(_: Tensor, tokens: Tensor) -> Tensor:
    """At source word 0 after BOS and A, at word 1 after B, half and half after anything else."""
    first = torch.where(
        (tokens == A) | (tokens == BOS), 1.0, torch.where(tokens == B, 0.0, 0.5)
    ).double()
    return torch.stack([first, 1 - first, torch.zeros_like(first)], 1)


NEVER = math.log(2**-24)


@pytest.mark.parametrize(
    ("kind", "penalty", "costs"),
    [
        ("gnmt", 0.1, [0.0, 0.1 * NEVER, 0.1 * NEVER]),  # "A A" and "A" never look at word 1
        # "A A" looks at word 0 three times; "A B" and "A" do twice
        ("summary", 0.75, [-0.75, -1.5, -0.75]),
    ],
)
def test_coverage_penalty_by_hand(kind: str, penalty: float, costs: list[float]) -> None:
    model = by_hand(
        {BOS: {A: 1.0}, A: {A: 0.5, B: 0.3, EOS: 0.2}, B: {EOS: 1.0}}, end_at=2, attend=look
    )
    settings = {"beam_size": 3, "length_penalty": "none", "coverage_kind": kind}
    assert [h.ids for h in search(model, 3, **settings)] == [[A, A], [A, B], [A]]
    hypotheses = search(model, 3, **settings, coverage_penalty=penalty)
    assert [h.ids for h in hypotheses] == [[A, B], [A, A], [A]]
    log_probs = [math.log(0.3), math.log(0.5), math.log(0.2)]
    assert [h.log_prob for h in hypotheses] == pytest.approx(log_probs)
    assert [h.score for h in hypotheses] == pytest.approx(
        [one + cost for one, cost in zip(log_probs, costs, strict=True)]
    )


# Lengths and prefixes.


def test_the_length_limit_is_each_sentence_s_own() -> None:
    tables = random_tables(3, 2, 8)
    tables[..., EOS] = -math.inf
    config = BeamConfig(beam_size=2, max_length=9, max_length_ratio=1.0, max_length_offset=1)
    results = search_batch(TableModel(tables), sources(3, 6, 11), config, n_best=2)
    assert [[len(h.ids) for h in hypotheses] for hypotheses in results] == [[4, 4], [7, 7], [9, 9]]


def test_a_prefix_that_ends_is_only_scored() -> None:
    tables = random_tables(2, 4, 9)
    prefix = torch.tensor([[7, 8, EOS], [5, EOS, PAD]])
    model = TableModel(tables)
    results = search_batch(model, sources(4, 4), unlimited(), 5, prefix=prefix)
    assert [[h.ids for h in hypotheses] for hypotheses in results] == [[[7, 8]], [[5]]]
    expected = tables[0, 0, BOS, 7] + tables[0, 1, 7, 8] + tables[0, 2, 8, EOS]
    assert results[0][0].log_prob == pytest.approx(float(expected))
    assert len(model.rows_seen) == 3


class Logits(TableModel):
    """Its tables are logits."""

    predict = Seq2Seq.predict


def test_low_logits_of_a_prefix_are_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is added to all of them changes no probability."""
    monkeypatch.setattr("nmtkit.decoding.beam_search.MANY_LOGITS", 1)
    tables, prefix = random_tables(1, 6, 12), torch.tensor([[A, B, C]])
    config = unlimited(beam_size=3, max_length=6)
    expected, found = (
        search_batch(Logits(tables + more), sources(3), config, 3, prefix=prefix)[0]
        for more in (0.0, -1000.0)
    )
    assert [one.ids for one in found] == [one.ids for one in expected]
    assert [one.log_prob for one in found] == pytest.approx([one.log_prob for one in expected])


def test_a_prefix_longer_than_the_limit_is_not_cut() -> None:
    model, prefix = TableModel(random_tables(1, 2, 8)), torch.tensor([[4, 5, 6, 7]])
    ((best,),) = search_batch(
        model, sources(3), BeamConfig(max_length=2, beam_size=2), prefix=prefix
    )
    assert best.ids[:4] == [4, 5, 6, 7]


# Batches.


@pytest.mark.parametrize("stop", ["first_k", "exact"])
@pytest.mark.parametrize("beam_size", [1, 4])
def test_dropping_finished_sentences_changes_nothing(
    beam_size: int, stop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By the mean a long hypothesis may always win, so that `exact` would stop at the limit only.
    kind = "none" if stop == "exact" else "average"
    config = unlimited(beam_size=beam_size, stop=stop, no_repeat_ngram=2, length_penalty=kind)
    model, batch = many()
    dropped = search_batch(model, batch, config, beam_size, need_attention=True)
    assert len(set(model.rows_seen)) > 3  # rows did go
    monkeypatch.setattr(engine_module, "CPU_POLL_INTERVAL", 5)
    same(dropped, search_batch(model, batch, config, beam_size, need_attention=True))


class CopyingTable(TableModel):
    """Its gate tells the path, as its attention does."""

    def advance(
        self,
        tokens: Tensor,
        state: DecoderState,
        memory: Memory,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, DecoderState]:
        readout, state = super().advance(tokens, state, memory, cache, True)
        return replace(readout, copy_gate=readout.attention[:, 2:] / 1_000_003), state


def test_attention_and_p_gen_follow_the_back_pointers() -> None:
    model, batch = many()
    copying = CopyingTable(model.tables)
    results = search_batch(copying, batch, unlimited(), 5, need_attention=True)
    assert any(not h.finished for hypotheses in results for h in hypotheses)
    for hypotheses in results:
        for hypothesis in hypotheses:
            path, expected = 0, []
            for depth, token in enumerate(
                [BOS, *hypothesis.ids][: len(hypothesis.token_log_probs)]
            ):
                path = (path * 31 + token) % 1_000_003
                expected.append([depth, token, path])
            assert hypothesis.attention.tolist() == expected
            assert hypothesis.p_gen == pytest.approx([path / 1_000_003 for *_, path in expected])
    quiet = search_batch(copying, batch, unlimited(), 5)
    assert all(h.p_gen is None and h.attention is None for hypotheses in quiet for h in hypotheses)


# The best candidates.


@pytest.mark.parametrize("size", [5, 63, 64, 65, 128, 1000, 1024])
@pytest.mark.parametrize(("width", "count"), [(1, 2), (1, 10), (5, 10), (20, 40)])
def test_best_candidates_is_top_k_over_everything(size: int, width: int, count: int) -> None:
    generator = torch.Generator().manual_seed(size)
    log_probs = (torch.randn(3 * width, size, generator=generator) * 4).log_softmax(1)
    log_probs[:, 1] = -math.inf
    scores = -torch.rand(3, width, generator=generator) * 6
    scores[1, 1:] = -math.inf
    values, flat = top_continuations(log_probs, scores, count)
    full = (log_probs.view(3, width, size) + scores[:, :, None]).view(3, -1)
    expected = full.sort(1, descending=True)[0][:, :count]
    assert values.shape == flat.shape == (3, count)
    there = expected.shape[1]
    torch.testing.assert_close(values[:, :there], expected, rtol=0, atol=0)
    assert bool((values[:, there:] == -math.inf).all())
    alive = values > -math.inf
    torch.testing.assert_close(full.gather(1, flat)[alive], values[alive], rtol=0, atol=0)
    for row, real in zip(flat, alive, strict=True):
        assert len(set(row[real].tolist())) == int(real.sum())


@pytest.mark.parametrize("few", [0, step_candidates.SORTED_DIRECTLY])  # both ways to find them
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_of_equal_values_the_first_come_first(
    dtype: torch.dtype, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_candidates, "SORTED_DIRECTLY", few)
    values = torch.tensor(
        [[0.5, -1.0, 2.0, 2.0, -math.inf, 0.5, 0.5], [-3.0, -3.0, -2.5, -3.0, -3.0, -3.0, -2.5]]
    )
    values = values.to(dtype)
    best, places = stable_topk(values, 4)
    assert places.tolist() == [[2, 3, 0, 5], [2, 6, 0, 1]]
    assert torch.equal(best, values.gather(1, places))
    assert stable_topk(values, 7)[1][0].tolist() == [2, 3, 0, 5, 6, 1, 4]
    damaged = torch.tensor([[1.0, math.nan, math.inf]]).to(dtype)
    assert 1 in stable_topk(-damaged, 2)[1].tolist()[0]


@pytest.mark.parametrize(("better", "equal"), [(0, 1), (0, 4), (2, 3), (4, 2)])
def test_of_many_rows_the_best_five_come_in_order_even_among_equals(
    better: int, equal: int
) -> None:
    generator = torch.Generator().manual_seed(equal)
    values = torch.rand(40, 200, generator=generator)
    columns = torch.rand(40, 200, generator=generator).topk(better + equal, 1)[1]
    values.scatter_(
        1, columns, torch.arange(better + equal).clamp(min=equal - 1).float().expand_as(columns) + 1
    )
    ordered, places = values.sort(dim=1, descending=True, stable=True)
    best, found = stable_topk(values, 5)
    assert torch.equal(best, ordered[:, :5])
    assert torch.equal(found, places[:, :5])


@pytest.mark.parametrize("extra", [0, 1, 63, 200])
def test_wider_distributions_change_nothing_even_among_equals(extra: int) -> None:
    """Unknown words of other sentences add columns that are impossible here."""
    generator = torch.Generator().manual_seed(2)
    # equal values everywhere
    log_probs = -torch.randint(1, 4, (6, 150), generator=generator).float()
    scores = -torch.randint(0, 2, (2, 3), generator=generator).float()
    values, flat = top_continuations(log_probs, scores, 6)
    wide = torch.cat([log_probs, torch.full((6, extra), -math.inf)], 1)
    other_values, other = top_continuations(wide, scores, 6)
    assert torch.equal(values, other_values)
    assert torch.equal(flat // 150, other // (150 + extra))
    assert torch.equal(flat % 150, other % (150 + extra))
    full = (log_probs.view(2, 3, 150) + scores[:, :, None]).view(2, -1)
    assert torch.equal(flat, full.sort(dim=1, descending=True, stable=True)[1][:, :6])


# What is refused, and precision.


@pytest.mark.parametrize(
    ("n_best", "settings", "message"),
    [
        (3, {"beam_size": 2}, "n_best is 3, but beam_size is only 2"),
        (1, {"coverage_penalty": 0.2}, "coverage_penalty"),
    ],
    ids=["n-best", "coverage"],
)
def test_what_a_search_cannot_give_is_refused(
    n_best: int, settings: dict[str, float], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        search(TableModel(random_tables(1, 1, 8), has_attention=False), n_best, **settings)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_damaged_model_is_refused(beam_size: int) -> None:
    tables = random_tables(2, 2, 8)
    tables[1, 1] = math.nan
    with pytest.raises(CheckpointError, match="NaN"):
        search_batch(TableModel(tables), sources(3, 3), BeamConfig(beam_size=beam_size))


def test_half_precision_is_summed_in_single() -> None:
    tables = random_tables(1, 4, 40).bfloat16()
    ((best,),) = search_batch(TableModel(tables), sources(3), unlimited(min_length=10))
    last, total = BOS, 0.0
    for depth, token in enumerate([*best.ids, *[EOS] * best.finished]):
        total += float(tables[0, min(depth, 3), last, token])
        last = token
    assert best.log_prob == pytest.approx(total, rel=1e-6)
