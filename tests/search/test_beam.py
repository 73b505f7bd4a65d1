"""Beam search over a table of log-probabilities, against plain loops and exhaustive search."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from table_model import TableModel, random_tables, sources
from torch import Tensor

from nmtkit.core.errors import CheckpointError, RecipeError
from nmtkit.data.vocabulary import BOS, EOS, PAD
from nmtkit.layers.kv_cache import KVCache
from nmtkit.models.base import DecoderOutput, DecoderState, Memory
from nmtkit.search import beam, engine
from nmtkit.search.beam import stable_topk, top_continuations
from nmtkit.search.engine import beam_search
from nmtkit.search.hypotheses import Hypothesis
from nmtkit.search.rules import CoverageKind, LengthPenalty, SearchConfig, score_given


@dataclass
class SentenceResult:
    ids: list[int]
    finished: bool
    log_prob: float
    score: float


def divisor(kind: str, alpha: float, length: int) -> float:
    return {"none": 1.0, "average": length**alpha, "gnmt": ((5 + length) / 6) ** alpha}[kind]


def every_sequence(table: Tensor, limit: int, kind: str, alpha: float) -> list[SentenceResult]:
    """All there is, best first: what ended within `limit` tokens, EOS counted, then what is `limit` tokens long."""

    def grow(ids: list[int], total: float) -> Iterator[SentenceResult]:
        depth = len(ids)
        if depth == limit:
            yield SentenceResult(ids, False, total, total / divisor(kind, alpha, depth))
            return
        row = table[min(depth, len(table) - 1), ids[-1] if ids else BOS].tolist()
        ended = total + row[EOS]
        yield SentenceResult(ids, True, ended, ended / divisor(kind, alpha, depth + 1))
        for token in range(len(row)):
            if token not in (PAD, BOS, EOS):
                yield from grow([*ids, token], total + row[token])

    return sorted(grow([], 0.0), key=lambda found: (not found.finished, -found.score))


def agree(hypothesis: Hypothesis, found: SentenceResult) -> None:
    assert hypothesis.ids == found.ids
    assert hypothesis.finished == found.finished
    assert hypothesis.log_prob == pytest.approx(found.log_prob)
    assert hypothesis.score == pytest.approx(found.score)
    assert sum(hypothesis.token_log_probs) == pytest.approx(hypothesis.log_prob)
    assert len(hypothesis.token_log_probs) == len(hypothesis.ids) + hypothesis.finished


def same(one: list[list[Hypothesis]], other: list[list[Hypothesis]]) -> None:
    assert len(one) == len(other)
    for ours, theirs in zip(one, other, strict=True):
        assert [h.ids for h in ours] == [h.ids for h in theirs]
        assert [h.finished for h in ours] == [h.finished for h in theirs]
        for a, b in zip(ours, theirs, strict=True):
            assert a.score == pytest.approx(b.score, rel=1e-6)
            assert a.token_log_probs == pytest.approx(b.token_log_probs, rel=1e-6, abs=1e-9)
            assert (a.attention is None) == (b.attention is None)
            if a.attention is not None and b.attention is not None:
                np.testing.assert_array_equal(a.attention, b.attention)


def unlimited(max_length: int = 12) -> SearchConfig:
    """No limit by the source, so that `max_length` alone counts."""
    return SearchConfig(max_length=max_length, max_length_offset=100)


def test_beam_one_is_a_plain_argmax_loop() -> None:
    tables = random_tables(6, 5, 12)
    found = beam_search(TableModel(tables), sources(*[4] * 6), unlimited().model_copy(update={"beam_size": 1}))
    for table, (hypothesis,) in zip(tables, found, strict=True):
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
    assert {h.finished for (h,) in found} == {True, False}


@pytest.mark.parametrize("stop", ["first_k", "exact"])
@pytest.mark.parametrize(("kind", "alpha"), [("none", 1.0), ("average", 1.0), ("average", 0.5), ("gnmt", 0.8)])
@pytest.mark.parametrize("limit", [1, 2, 4])
def test_a_beam_as_wide_as_the_tree_is_exhaustive_search(
    kind: LengthPenalty, alpha: float, limit: int, stop: str
) -> None:
    tables = random_tables(4, 3, 7, seed=limit)
    width = 4**limit  # three words and UNK
    config = SearchConfig(length_penalty=kind, alpha=alpha, max_length=limit, max_length_offset=9, stop=stop)
    config = config.model_copy(update={"beam_size": 4 * width})  # a wider one than a recipe may ask for
    found = beam_search(TableModel(tables), sources(3, 4, 3, 2), config, n_best=width)
    for table, hypotheses in zip(tables, found, strict=True):
        expected = every_sequence(table, limit, kind, alpha)[:width]
        assert len(hypotheses) == len(expected)
        for hypothesis, one in zip(hypotheses, expected, strict=True):
            agree(hypothesis, one)


def test_what_is_in_the_tree_is_all_that_is_returned() -> None:
    config = SearchConfig(beam_size=50, max_length=2, max_length_offset=9)
    (found,) = beam_search(TableModel(random_tables(1, 2, 6)), sources(3), config, n_best=50)
    assert len(found) == 1 + 3 + 9  # the empty one, three words and EOS, nine pairs that were cut


def by_hand(rows: dict[int, dict[int, float]], steps: int = 0) -> Tensor:
    """Tables of one sentence: probabilities of the next token by last token, the same at every depth.

    With `steps` the sentence ends after so many tokens, if it has not before.
    """
    table = torch.full((1, steps + 1, 8, 8), -math.inf, dtype=torch.float64)
    for last, following in rows.items():
        for token, probability in following.items():
            table[0, :, last, token] = math.log(probability)
    if steps:
        table[0, steps] = -math.inf
        table[0, steps, :, EOS] = 0.0
    return table


A, B, C, D = 4, 5, 6, 7


def test_by_hand_a_wider_beam_finds_what_greedy_misses() -> None:
    model = TableModel(by_hand({BOS: {A: 0.6, B: 0.4}, A: {C: 0.5, D: 0.5}, B: {C: 1.0}, C: {EOS: 1.0}, D: {EOS: 1.0}}))
    model.tables[0, 0, A, C] += 1e-6
    ((greedy,),) = beam_search(model, sources(3), SearchConfig(beam_size=1))
    assert greedy.ids == [A, C]
    ((best, second),) = beam_search(model, sources(3), SearchConfig(beam_size=2), n_best=2)
    assert best.ids == [B, C]
    assert best.log_prob == pytest.approx(math.log(0.4))
    assert best.score == pytest.approx(math.log(0.4) / 3)
    assert best.token_log_probs == pytest.approx([math.log(0.4), 0.0, 0.0])
    assert second.ids == [A, C]
    assert second.log_prob == pytest.approx(math.log(0.3), abs=1e-5)


def test_by_hand_first_k_goes_on_until_k_are_finished() -> None:
    # The empty translation ends first and is among the best two; the good long one ends two steps later.
    model = TableModel(by_hand({BOS: {EOS: 0.4, A: 0.6}, A: {B: 0.9, D: 0.1}, B: {EOS: 1.0}, D: {EOS: 1.0}}))
    ((best, second),) = beam_search(model, sources(3), SearchConfig(beam_size=2), n_best=2)
    assert (best.ids, second.ids) == ([A, B], [])
    assert best.score == pytest.approx(math.log(0.54) / 3)
    assert second.score == pytest.approx(math.log(0.4))
    # With the log-probability itself the same two are found, in the same order here.
    ((best, second),) = beam_search(model, sources(3), SearchConfig(beam_size=2, length_penalty="none"), n_best=2)
    assert best.score == pytest.approx(math.log(0.54))


def test_by_hand_exact_stops_as_soon_as_the_rest_cannot_win() -> None:
    ends = {B: {EOS: 0.9, D: 0.1}, C: {EOS: 1.0}, D: {D: 1.0}}
    model = TableModel(by_hand({BOS: {A: 0.36, B: 0.34, C: 0.3}, A: {EOS: 0.52, D: 0.48}, **ends}))
    model.tables[0, 0, D, D] = math.log(0.999)
    model.tables[0, 0, D, EOS] = math.log(0.001)
    quick = SearchConfig(beam_size=2, length_penalty="none")
    ((first,),) = beam_search(model, sources(3), quick)
    assert first.ids == [B]
    model.rows_seen.clear()
    beam_search(model, sources(3), quick.model_copy(update={"stop": "exact"}))
    steps_without_penalty = len(model.rows_seen)
    model.rows_seen.clear()
    beam_search(model, sources(3), SearchConfig(beam_size=2, stop="exact", max_length=20))
    assert steps_without_penalty == 2  # 0.36 * 0.48 can never become 0.306
    assert len(model.rows_seen) == 20  # its mean over 20 tokens might have


def test_exact_finds_what_first_k_gives_up() -> None:
    # Two hypotheses have ended after the second step; a third one, long and sure, would have won by its mean.
    model = TableModel(
        by_hand({BOS: {EOS: 0.4, A: 0.6}, A: {EOS: 0.5, B: 0.5}, B: {C: 1.0}, C: {D: 1.0}, D: {EOS: 1.0}})
    )
    config = SearchConfig(beam_size=2)
    ((quick,),) = beam_search(model, sources(3), config)
    ((slow,),) = beam_search(model, sources(3), config.model_copy(update={"stop": "exact"}))
    assert quick.ids == [A]
    assert slow.ids == [A, B, C, D]
    assert quick.score == pytest.approx(math.log(0.3) / 2)
    assert slow.score == pytest.approx(math.log(0.3) / 5)


def test_unfinished_hypotheses_stand_behind_finished_ones() -> None:
    model = TableModel(by_hand({BOS: {A: 0.99, EOS: 0.01}, A: {A: 1.0}}))
    (found,) = beam_search(model, sources(3), SearchConfig(beam_size=3, max_length=4), n_best=3)
    assert [(h.ids, h.finished) for h in found] == [([], True), ([A] * 4, False)]
    assert found[1].score == pytest.approx(math.log(0.99) / 4)
    assert len(found[1].token_log_probs) == 4


def test_the_length_limit_is_each_sentence_s_own() -> None:
    tables = random_tables(3, 2, 8)
    tables[..., EOS] = -math.inf
    config = SearchConfig(beam_size=2, max_length=9, max_length_ratio=1.0, max_length_offset=1)
    found = beam_search(TableModel(tables), sources(3, 6, 11), config, n_best=2)
    assert [[len(h.ids) for h in hypotheses] for hypotheses in found] == [[4, 4], [7, 7], [9, 9]]


@pytest.mark.parametrize("settings", [{"min_length": 3}, {"min_length_ratio": 0.5, "min_length": 1}], ids=str)
def test_the_least_length_counts_words_of_each_sentence(settings: dict[str, object]) -> None:
    model, config = TableModel(random_tables(6, 3, 9, spread=2.0)), unlimited().changed(settings)
    least = [max(config.min_length, math.floor(config.min_length_ratio * words)) for words in (2, 4, 6, 8, 10, 12)]
    for chosen, enough in ((config, True), (unlimited(), False)):
        found = beam_search(model, sources(3, 5, 7, 9, 11, 13), chosen, 3)
        lengths = [min(len(h.ids) for h in hypotheses) for hypotheses in found]
        assert all(length >= fewest for length, fewest in zip(lengths, least, strict=True)) == enough


def many() -> tuple[TableModel, list[int]]:
    """Twenty sentences that end after 1 to 12 tokens."""
    tables = random_tables(20, 6, 40, spread=1.5)
    tables[..., EOS] += torch.linspace(-1.0, 4.0, 20, dtype=torch.float64)[:, None, None]
    return TableModel(tables.log_softmax(-1)), [3 + number % 4 for number in range(20)]


def test_looking_less_often_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, lengths = many()
    often = beam_search(model, sources(*lengths), unlimited(), 5, need_attention=True)
    monkeypatch.setattr(engine, "CPU_POLLS_EVERY", 5)
    same(often, beam_search(model, sources(*lengths), unlimited(), 5, need_attention=True))


@pytest.mark.parametrize("limits", [{}, {"max_length_ratio": 1.0, "max_length_offset": 1}])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_sentences_of_a_batch_do_not_influence_each_other(beam_size: int, limits: dict[str, float]) -> None:
    model, lengths = many()
    config = unlimited().model_copy(update={"beam_size": beam_size, **limits})
    together = beam_search(model, sources(*lengths), config, beam_size)
    assert len(set(model.rows_seen)) > 3  # sentences that were done left
    whole = sources(*lengths)
    alone = [beam_search(model, whole.select(torch.tensor([row])), config, beam_size)[0] for row in range(len(lengths))]
    same(together, alone)
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(1))
    same([together[row] for row in order.tolist()], beam_search(model, whole.select(order), config, beam_size))


def test_attention_has_a_column_for_each_source_token() -> None:
    model = TableModel(random_tables(2, 2, 8))
    for hypotheses, length in zip(
        beam_search(model, sources(2, 3), unlimited(), need_attention=True), (2, 3), strict=True
    ):
        (hypothesis,) = hypotheses
        assert hypothesis.attention is not None
        assert hypothesis.attention.shape == (len(hypothesis.token_log_probs), length)


def test_a_forced_prefix_begins_the_translation_and_counts() -> None:
    tables = random_tables(3, 4, 9)
    prefix = torch.tensor([[7, 8, 4], [5, PAD, PAD], [PAD, PAD, PAD]])
    model = TableModel(tables)
    found = beam_search(model, sources(4, 4, 4), unlimited(), 3, prefix=prefix)
    assert all(h.ids[:3] == [7, 8, 4] for h in found[0])
    assert all(h.ids[:1] == [5] for h in found[1])
    same(found[2:], beam_search(model, sources(4, 4, 4), unlimited(), 3)[2:])
    own = [float(tables[0, depth, last, token]) for depth, last, token in [(0, BOS, 7), (1, 7, 8), (2, 8, 4)]]
    assert found[0][0].token_log_probs[:3] == pytest.approx(own)


def test_a_prefix_that_ends_is_only_scored() -> None:
    tables = random_tables(2, 4, 9)
    prefix = torch.tensor([[7, 8, EOS], [5, EOS, PAD]])
    model = TableModel(tables)
    found = beam_search(model, sources(4, 4), unlimited(), 5, prefix=prefix)
    assert [[h.ids for h in hypotheses] for hypotheses in found] == [[[7, 8]], [[5]]]
    assert found[0][0].log_prob == pytest.approx(
        float(tables[0, 0, BOS, 7] + tables[0, 1, 7, 8] + tables[0, 2, 8, EOS])
    )
    assert len(model.rows_seen) == 3


def test_a_prefix_longer_than_the_limit_is_not_cut() -> None:
    config = SearchConfig(max_length=2, beam_size=2)
    ((found,),) = beam_search(
        TableModel(random_tables(1, 2, 8)), sources(3), config, prefix=torch.tensor([[4, 5, 6, 7]])
    )
    assert found.ids[:4] == [4, 5, 6, 7]


class LookingModel(TableModel):
    """Attends to source word 0 after BOS and A, to word 1 after B, half and half after anything else."""

    def advance(
        self, tokens: Tensor, state: DecoderState, memory: Memory, cache: KVCache, need_attention: bool = False
    ) -> tuple[DecoderOutput, DecoderState]:
        readout, state = super().advance(tokens, state, memory, cache)
        first = torch.where((tokens == A) | (tokens == BOS), 1.0, torch.where(tokens == B, 0.0, 0.5)).double()
        return replace(readout, attention=torch.stack([first, 1 - first, torch.zeros_like(first)], 1)), state


def test_coverage_penalty_by_hand() -> None:
    # Two ways of three tokens: "A A" looks at word 0 only; "A B" looks at both. The source has two words, and EOS.
    model = LookingModel(by_hand({BOS: {A: 1.0}, A: {A: 0.5, B: 0.3, EOS: 0.2}, B: {EOS: 1.0}}, 2))
    config = SearchConfig(beam_size=3, length_penalty="none")
    ((first, second, third),) = beam_search(model, sources(3), config, 3)
    assert [first.ids, second.ids, third.ids] == [[A, A], [A, B], [A]]
    ((first, second, third),) = beam_search(model, sources(3), config.model_copy(update={"coverage_penalty": 0.1}), 3)
    assert [first.ids, second.ids, third.ids] == [[A, B], [A, A], [A]]
    missed = 0.1 * math.log(2**-24)
    assert first.score == first.log_prob == pytest.approx(math.log(0.3))
    assert second.score == pytest.approx(math.log(0.5) + missed)
    assert second.log_prob == pytest.approx(math.log(0.5))
    assert third.score == pytest.approx(math.log(0.2) + missed)


def test_summary_coverage_penalty_by_hand() -> None:
    # "A A" looks at word 0 three times, "A B" twice (its EOS looks at word 1), "A" twice.
    tables = by_hand({BOS: {A: 1.0}, A: {A: 0.5, B: 0.3, EOS: 0.2}, B: {EOS: 1.0}}, 2)
    config = SearchConfig(beam_size=3, length_penalty="none", coverage_penalty=0.75, coverage_kind="summary")
    ((first, second, third),) = beam_search(LookingModel(tables), sources(3), config, 3)
    assert [first.ids, second.ids, third.ids] == [[A, B], [A, A], [A]]
    assert first.score == pytest.approx(math.log(0.3) - 0.75)
    assert second.score == pytest.approx(math.log(0.5) - 1.5)
    assert third.score == pytest.approx(math.log(0.2) - 0.75)


@pytest.mark.parametrize("kind", ["gnmt", "summary"])
def test_no_coverage_penalty_leaves_nothing(kind: CoverageKind) -> None:
    with pytest.raises(RecipeError, match="coverage_penalty"):
        unlimited().changed({"coverage_penalty": 1e308})
    config = unlimited().changed({"coverage_penalty": 1e6, "coverage_kind": kind})
    for hypotheses in beam_search(LookingModel(random_tables(12, 4, 9)), sources(*[3] * 12), config, 5):
        assert hypotheses
        assert all(math.isfinite(hypothesis.score) for hypothesis in hypotheses)


def test_summary_coverage_turns_a_search_away_from_a_repetition() -> None:
    """In every step: with a beam of one nothing could be chosen among at the end."""
    tables = by_hand({BOS: {A: 0.6, B: 0.4}, A: {A: 1.0}, B: {B: 0.9, EOS: 0.1}}, 3)
    config = SearchConfig(beam_size=2, length_penalty="none", coverage_kind="summary", max_length=4)
    (free,) = beam_search(LookingModel(tables), sources(3), config, 2)
    (kept,) = beam_search(LookingModel(tables), sources(3), config.changed({"coverage_penalty": 5.0}), 2)
    assert free[0].ids == [A, A, A]
    assert kept[0].ids[0] == B
    assert kept[0].log_prob == pytest.approx(sum(kept[0].token_log_probs))


def test_patience_and_word_reward_by_hand() -> None:
    config = SearchConfig(beam_size=1, length_penalty="none", max_length=4)
    model = TableModel(by_hand({BOS: {A: 0.7, EOS: 0.3}, A: {A: 0.5, EOS: 0.5}}))
    assert [one.ids for one in beam_search(model, sources(3), config)[0]] == [[A]]
    config = config.changed({"beam_size": 2})
    (found,) = beam_search(model, sources(3), config, 2)
    assert [one.ids for one in found] == [[A], []]
    (found,) = beam_search(model, sources(3), config.changed({"word_reward": 1.0, "patience": 2.0}), 2)
    assert [one.ids for one in found] == [[A, A, A], [A, A]]
    assert found[0].score == pytest.approx(math.log(0.7 * 0.5**3) + 4)
    assert found[0].log_prob == pytest.approx(math.log(0.7 * 0.5**3))


def test_a_repetition_is_ranked_lower_and_keeps_its_log_probability() -> None:
    tables = by_hand({BOS: {A: 1.0}, A: {A: 0.6, B: 0.4}, B: {EOS: 1.0}}, 2)
    config = SearchConfig(beam_size=2, length_penalty="none", repetition_penalty=2.0)
    ((first, second),) = beam_search(TableModel(tables), sources(3), config, 2)
    assert [first.ids, second.ids] == [[A, B], [A, A]]
    assert second.log_prob == pytest.approx(math.log(0.6))
    assert second.score == pytest.approx(2 * math.log(0.6))
    assert score_given(config, second.ids, torch.tensor(second.token_log_probs), None) == pytest.approx(second.score)


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


@pytest.mark.parametrize("few", [0, beam.FEW])  # both ways to find them
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_of_equal_values_the_first_come_first(dtype: torch.dtype, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam, "FEW", few)
    values = torch.tensor([[0.5, -1.0, 2.0, 2.0, -math.inf, 0.5, 0.5], [-3.0, -3.0, -2.5, -3.0, -3.0, -3.0, -2.5]])
    values = values.to(dtype)
    best, places = stable_topk(values, 4)
    assert places.tolist() == [[2, 3, 0, 5], [2, 6, 0, 1]]
    assert torch.equal(best, values.gather(1, places))
    assert stable_topk(values, 7)[1][0].tolist() == [2, 3, 0, 5, 6, 1, 4]
    damaged = torch.tensor([[1.0, math.nan, math.inf]]).to(dtype)
    assert 1 in stable_topk(-damaged, 2)[1].tolist()[0]


@pytest.mark.parametrize("extra", [0, 1, 63, 200])
def test_wider_distributions_change_nothing_even_among_equals(extra: int) -> None:
    """Unknown words of other sentences add columns that are impossible here."""
    generator = torch.Generator().manual_seed(2)
    log_probs = -torch.randint(1, 4, (6, 150), generator=generator).float()  # equal values everywhere
    scores = -torch.randint(0, 2, (2, 3), generator=generator).float()
    values, flat = top_continuations(log_probs, scores, 6)
    wide = torch.cat([log_probs, torch.full((6, extra), -math.inf)], 1)
    other_values, other = top_continuations(wide, scores, 6)
    assert torch.equal(values, other_values)
    assert torch.equal(flat // 150, other // (150 + extra))
    assert torch.equal(flat % 150, other % (150 + extra))
    full = (log_probs.view(2, 3, 150) + scores[:, :, None]).view(2, -1)
    assert torch.equal(flat, full.sort(dim=1, descending=True, stable=True)[1][:, :6])


class CopyingTable(TableModel):
    """Its gate tells the path, as its attention does."""

    def advance(
        self, tokens: Tensor, state: DecoderState, memory: Memory, cache: KVCache, need_attention: bool = False
    ) -> tuple[DecoderOutput, DecoderState]:
        readout, state = super().advance(tokens, state, memory, cache, True)
        assert readout.attention is not None
        return replace(readout, copy_gate=readout.attention[:, 2:] / 1_000_003), state


def test_attention_and_p_gen_follow_the_back_pointers() -> None:
    model, lengths = many()
    copying = CopyingTable(model.tables)
    found = beam_search(copying, sources(*lengths), unlimited(), 5, need_attention=True)
    assert any(not h.finished for hypotheses in found for h in hypotheses)
    for hypothesis in (h for hypotheses in found for h in hypotheses):
        path, expected = 0, []
        for depth, token in enumerate([BOS, *hypothesis.ids][: len(hypothesis.token_log_probs)]):
            path = (path * 31 + token) % 1_000_003
            expected.append([depth, token, path])
        assert hypothesis.attention is not None
        assert hypothesis.attention.tolist() == expected
        assert hypothesis.p_gen == pytest.approx([path / 1_000_003 for *_, path in expected])
    quiet = beam_search(copying, sources(*lengths), unlimited(), 5)
    assert all(h.p_gen is None and h.attention is None for hypotheses in quiet for h in hypotheses)


def test_n_best_must_fit_the_beam() -> None:
    with pytest.raises(RecipeError, match="n_best 3 is more than beam_size 2"):
        beam_search(TableModel(random_tables(1, 1, 8)), sources(3), SearchConfig(beam_size=2), n_best=3)


def test_coverage_needs_attention() -> None:
    model = TableModel(random_tables(1, 1, 8), has_attention=False)
    with pytest.raises(RecipeError, match="coverage_penalty"):
        beam_search(model, sources(3), SearchConfig(coverage_penalty=0.2))


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_damaged_model_is_refused(beam_size: int) -> None:
    tables = random_tables(2, 2, 8)
    tables[1, 1] = math.nan
    with pytest.raises(CheckpointError, match="NaN"):
        beam_search(TableModel(tables), sources(3, 3), SearchConfig(beam_size=beam_size))


def test_half_precision_is_summed_in_single() -> None:
    tables = random_tables(1, 4, 40).bfloat16()
    ((found,),) = beam_search(TableModel(tables), sources(3), unlimited().model_copy(update={"min_length": 10}))
    last, total = BOS, 0.0
    for depth, token in enumerate([*found.ids, *[EOS] * found.finished]):
        total += float(tables[0, min(depth, 3), last, token])
        last = token
    assert found.log_prob == pytest.approx(total, rel=1e-6)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("beam_size", [1, 4])
def test_cuda_finds_the_same(beam_size: int) -> None:
    model, lengths = many()
    config = unlimited().model_copy(update={"beam_size": beam_size, "no_repeat_ngram": 2, "min_length": 2})
    prefix = torch.full((len(lengths), 1), PAD)
    prefix[3] = 9
    here = beam_search(model, sources(*lengths), config, beam_size, True, prefix)
    model.tables = model.tables.cuda()
    same(here, beam_search(model, sources(*lengths).to("cuda"), config, beam_size, True, prefix.cuda()))
