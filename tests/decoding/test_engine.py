"""A decoding batch of few slots for many sentences gives what a batch of all of them gives, whatever the order."""

import numpy as np
import pytest
import torch

from nmtkit.data.batches.batch import Batch
from nmtkit.data.tokenizers.vocabulary import EOS
from nmtkit.decoding import engine as engine_module
from nmtkit.decoding.beam_search import BeamSearch
from nmtkit.decoding.engine import Engine, order_live_slots
from nmtkit.decoding.hypotheses import Hypothesis
from nmtkit.decoding.search_batch import search_batch
from nmtkit.decoding.settings import SearchConfig
from nmtkit.models.base import Seq2Seq
from tests.decoding.table_model import START, TableModel, many, random_tables, sources, unlimited
from tests.support.cases import daily
from tests.support.hypotheses import same
from tests.support.step_by_step import source_of


def refilled(
    model: Seq2Seq, whole: Batch, slots: int, config: SearchConfig, n_best: int, seed: int = 0
) -> list[list[Hypothesis]]:
    order = torch.randperm(whole.size, generator=torch.Generator().manual_seed(seed)).tolist()
    engine = Engine(BeamSearch(model, config, n_best, need_attention=True))
    results = dict(engine.run(source_of(whole, slots, order)))
    assert sorted(results) == list(range(whole.size))
    return [results[number] for number in range(whole.size)]


ASKED: list[dict[str, object]] = [
    {},
    {"no_repeat_ngram": 2},
    {"min_length": 3, "max_length_ratio": 1.0, "max_length_offset": 4},
    {"min_length_ratio": 1.5},
    {"stop": "exact", "length_penalty": "none"},
    {"length_penalty": "gnmt", "alpha": 0.7, "max_length_ratio": 2.0, "max_length_offset": 1},
    {"samples": 3, "temperature": 2.0},
    {"beam_size": 6, "diversity_groups": 3},
]
IN_TURNS = [(4 if n % 2 else 1, one) for n, one in enumerate(ASKED)] + [
    (1 if n % 2 else 4, one) for n, one in enumerate(ASKED)
]
"""Beams of one and of four: `make test` asks each setting of one of them."""


@pytest.mark.parametrize(("beam_size", "settings"), daily(IN_TURNS, len(ASKED)), ids=str)
@pytest.mark.parametrize("slots", daily([3, 20, 1, 7]))
@pytest.mark.parametrize("orders", [[0, 1], pytest.param([2], marks=pytest.mark.slow)], ids=str)
def test_slots_that_are_filled_again(
    orders: list[int], slots: int, beam_size: int, settings: dict[str, object]
) -> None:
    model, batch = many()
    width = {} if "samples" in settings else {"beam_size": beam_size}
    config = unlimited(**{**width, **settings})
    together = search_batch(model, batch, config, config.n_hypotheses, need_attention=True)
    assert len({len(best[0].ids) for best in together}) > 3
    for seed in orders:
        same(refilled(model, batch, slots, config, config.n_hypotheses, seed), together)


@pytest.mark.parametrize("free_share", [0.01, 0.5, 1.0])
def test_the_share_of_free_slots_that_a_refill_waits_for_changes_nothing(
    free_share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = many()
    config = unlimited(beam_size=3)
    together = search_batch(model, batch, config, 3, need_attention=True)
    monkeypatch.setattr(engine_module, "MIN_FREE_SHARE", free_share)
    same(refilled(model, batch, 4, config, 3), together)


def test_slots_stay_filled() -> None:
    """Of the rows that are computed few are of sentences that are done."""
    model, batch = many()
    config = unlimited(beam_size=1)
    needed = sum(len(best[0].token_log_probs) for best in search_batch(model, batch, config))
    model.rows_seen.clear()
    refilled(model, batch, 4, config, 1)
    assert needed <= sum(model.rows_seen) <= 1.15 * needed
    assert max(model.rows_seen) == 4


def test_what_takes_a_slot_leaves_the_attention_of_who_had_it() -> None:
    """Some sentences end with their first step: their slot is taken before it was read where they looked."""
    tables = random_tables(9, 3, 8, spread=2.0)
    tables[::2, 0, :, EOS] += 20.0
    model = TableModel(
        tables.log_softmax(-1), attend=lambda log_probs, _: log_probs[:, 4:7].softmax(1)
    )
    batch = sources(*[2] * 9)
    config = unlimited(beam_size=1, coverage_penalty=0.3, coverage_kind="summary")
    together = search_batch(model, batch, config, need_attention=True)
    assert {len(best[0].ids) for best in together} > {0}
    for seed in range(2):
        same(refilled(model, batch, 3, config, 1, seed), together)


def test_few_are_moved_where_sentences_are_done() -> None:
    for live in ([0, 1, 2], [4], [1, 3, 4], [0, 2, 5, 6], []):
        order = order_live_slots(np.array(live, dtype=np.int64))
        assert sorted(order.tolist()) == live
        stay = [number for number in live if number < len(live)]
        assert [number for place, number in enumerate(order.tolist()) if place == number] == stay


def test_the_batch_that_is_searched_stays_as_it_is() -> None:
    model, batch = many()
    prefix = torch.arange(2 * batch.size).view(-1, 2) % 3 + START
    before, forced = batch.mapped(torch.clone), prefix.clone()
    search_batch(model, batch, unlimited(beam_size=3), prefix=prefix)
    assert all(
        torch.equal(one, other)
        for one, other in zip(batch.tensors(), before.tensors(), strict=True)
    )
    assert torch.equal(prefix, forced)


def test_a_cpu_gives_memory_back_after_large_batches_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[None] = []
    monkeypatch.setattr(engine_module, "trim_malloc", lambda: trims.append(None))
    model, batch = many()
    search_batch(model, batch, unlimited(beam_size=2))
    assert len(trims) == 1
    search_batch(model, batch.select(slice(engine_module.MANY_SENTENCES)), unlimited(beam_size=2))
    assert len(trims) == 1
