import gc
import json
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from nmtkit.core.errors import CheckpointError
from nmtkit.data.batches.batch import Batch, collate
from nmtkit.data.batches.batch_stream import (
    BatchConfig,
    BatchStream,
    bucket_by_length,
    sorted_batches,
)
from nmtkit.data.batches.sampled_text import SampledStream
from nmtkit.data.batches.store import Store
from nmtkit.data.text.blocks import Example
from nmtkit.data.tokenizers.tokenizer import TokenizerConfig
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD
from tests.support.learned_tokenizers import learn_tokenizers

Build = Callable[..., Store]
Ids = tuple[tuple[int, ...], tuple[int, ...]]


@pytest.fixture(scope="module")
def store(pairs: list[Example], tokenizers: Tokenizers, build: Build) -> Store:
    return build(pairs, tokenizers)


def rows(batch: Batch) -> list[Ids]:
    """The sentences of a batch without padding and EOS, in their order."""
    return [
        (tuple(src[mask].tolist()[:-1]), tuple(tgt[tgt_mask].tolist()[:-1]))
        for src, mask, tgt, tgt_mask in zip(
            batch.inputs.ids, batch.inputs.mask, batch.targets.ids, batch.targets.mask, strict=True
        )
    ]


def corpus(store: Store) -> Counter[Ids]:
    rows = ((store.ids("src", number), store.ids("tgt", number)) for number in range(len(store)))
    return Counter((tuple(src.tolist()), tuple(tgt.tolist())) for src, tgt in rows)


def epoch_of(stream: BatchStream) -> Iterator[Batch]:
    epoch = stream.epoch
    while stream.epoch == epoch:
        yield next(stream)


def same(one: Batch, other: Batch) -> bool:
    return torch.equal(one.inputs.ids, other.inputs.ids) and torch.equal(
        one.targets.ids, other.targets.ids
    )


# Rows.


def test_select_repeats_and_reorders_every_tensor() -> None:
    batch = collate([[5, 6], [7]], [[8], [9, 10]], n_oov=3).select(torch.tensor([1, 0, 1]))
    assert batch.inputs.ids.tolist() == [[7, EOS, PAD], [5, 6, EOS], [7, EOS, PAD]]
    assert batch.inputs.lengths.tolist() == [2, 3, 2]
    assert batch.targets.ids.tolist() == [[9, 10, EOS], [8, EOS, PAD], [9, 10, EOS]]
    assert batch.n_oov == 3
    assert batch.size == 3


def test_rows_are_gone_as_soon_as_nobody_has_them() -> None:
    """Else the states of an update would fill memory until Python looks for cycles."""
    batch = collate([[5, 6], [7]], [[8], [9, 10]])
    ids = weakref.ref(batch.inputs.ids)
    gc.disable()
    try:
        batch.select(torch.tensor([1])).tensors()
        batch.mapped(torch.clone)
        batch.tensors()
        del batch
        assert ids() is None
    finally:
        gc.enable()


# Collating.


def test_collate_by_hand() -> None:
    targets = [np.array(row, dtype=np.uint16) for row in ([9], [10, 11, 12], [])]
    batch = collate([[5, 6, 7], [], [8]], targets)
    assert batch.inputs.ids.tolist() == [[5, 6, 7, EOS], [EOS, PAD, PAD, PAD], [8, EOS, PAD, PAD]]
    assert batch.inputs.mask.tolist() == [
        [True] * 4,
        [True] + [False] * 3,
        [True] * 2 + [False] * 2,
    ]
    assert batch.inputs.lengths.tolist() == [4, 1, 2]
    assert batch.inputs.copy.extended is batch.inputs.ids
    assert batch.targets.shifted.tolist() == [
        [BOS, 9, PAD, PAD],
        [BOS, 10, 11, 12],
        [BOS, PAD, PAD, PAD],
    ]
    assert batch.targets.ids.tolist() == [
        [9, EOS, PAD, PAD],
        [10, 11, 12, EOS],
        [EOS, PAD, PAD, PAD],
    ]
    assert batch.targets.mask.tolist() == [
        [True] * 2 + [False] * 2,
        [True] * 4,
        [True] + [False] * 3,
    ]
    assert batch.targets.extended is batch.targets.ids
    for tensor in (
        batch.inputs.ids,
        batch.inputs.lengths,
        batch.targets.shifted,
        batch.targets.ids,
    ):
        assert tensor.dtype == torch.int64
    assert batch.inputs.mask.dtype == torch.bool


def test_collate_without_targets_and_with_extended_ids() -> None:
    batch = collate([[5, 1]], None, [[5, 40]], n_oov=1)
    assert batch.targets is None
    assert batch.labels is None
    assert batch.inputs.ids.tolist() == [[5, 1, EOS]]
    assert batch.inputs.copy.extended.tolist() == [[5, 40, EOS]]
    assert batch.n_oov == 1
    assert collate([[]]).inputs.ids.tolist() == [[EOS]]


# Streaming.


@pytest.mark.parametrize(
    ("tokens", "window"), [(600, 100_000), (600, 100), (600, 37), (30, 100_000)]
)
def test_an_epoch_has_every_pair_once_within_the_budget(
    store: Store, tokens: int, window: int
) -> None:
    """A sentence that is wider than the budget is alone."""
    stream = BatchStream(
        store, BatchConfig(batch_tokens=tokens, batch_size=20, sort_window=window), seed=1
    )
    counts: Counter[Ids] = Counter()
    for batch in epoch_of(stream):
        assert batch.size <= 20
        assert (
            batch.size == 1
            or batch.size * max(batch.inputs.ids.shape[1], batch.targets.shifted.shape[1]) <= tokens
        )
        counts.update(rows(batch))
        assert stream.state()["examples"] == counts.total() % len(store)
    assert counts == corpus(store)
    assert (stream.state()["epoch"], stream.state()["examples"]) == (1, 0)


def test_budgets_are_used(store: Store) -> None:
    """With everything sorted at once little is left to padding."""
    real = cells = 0
    for batch in epoch_of(BatchStream(store, BatchConfig(batch_tokens=1000), seed=1)):
        real += int(batch.targets.mask.sum())
        cells += batch.targets.mask.numel()
    assert real / cells > 0.95


def test_order_depends_on_seed_and_epoch_alone(store: Store) -> None:
    config = BatchConfig(batch_tokens=600)
    one, again, other = (BatchStream(store, config, seed) for seed in (1, 1, 2))
    first = list(epoch_of(one))
    assert all(same(a, b) for a, b in zip(first, epoch_of(again), strict=True))
    second = list(epoch_of(one))
    assert not all(same(a, b) for a, b in zip(first, second, strict=False))
    assert not all(same(a, b) for a, b in zip(first, epoch_of(other), strict=False))
    # Batches are not only in another order: they are other batches.
    assert {tuple(sorted(rows(batch))) for batch in first} != {
        tuple(sorted(rows(batch))) for batch in second
    }


def test_batches_of_an_epoch_come_in_no_order_of_length(store: Store) -> None:
    widths = [
        batch.inputs.ids.shape[1]
        for batch in epoch_of(BatchStream(store, BatchConfig(batch_tokens=600), seed=1))
    ]
    assert widths != sorted(widths)
    assert widths != sorted(widths, reverse=True)
    assert abs(np.corrcoef(widths, np.arange(len(widths)))[0, 1]) < 0.5


@pytest.mark.parametrize("consumed", [0, 1, 7, 40, 300])
@pytest.mark.parametrize("weights", [(), (1.7,)])
def test_restoring_goes_on_exactly(store: Store, consumed: int, weights: tuple[float, ...]) -> None:
    def stream() -> BatchStream:
        config = BatchConfig(batch_tokens=600, sort_window=150)
        return BatchStream(store, config, seed=3, weights=weights)

    running, resumed = stream(), stream()
    for _ in range(consumed):
        next(running)
    resumed.restore(running.state())
    assert resumed.epoch == running.epoch
    for _ in range(60):
        assert same(next(running), next(resumed))
    assert resumed.state() == running.state()


def test_with_other_batch_sizes_the_epoch_continues_after_as_many_examples(store: Store) -> None:
    """Twice within one epoch; only examples of the windows in which the size changed may come twice or not at all."""
    counts: Counter[Ids] = Counter()
    stream = BatchStream(store, BatchConfig(batch_tokens=600, sort_window=60), seed=3)
    for tokens, batches in ((600, 5), (300, 7), (150, 10_000)):
        state = json.loads(json.dumps(stream.state()))
        stream = BatchStream(store, BatchConfig(batch_tokens=tokens, sort_window=60), seed=3)
        stream.restore(state)
        assert state["examples"] <= stream.state()["examples"] <= state["examples"] + 600 // 2
        for batch in islice(epoch_of(stream), batches):
            counts.update(rows(batch))
    whole = corpus(store)
    assert (counts - whole).total() + (whole - counts).total() <= 2 * 2 * 60
    plain = BatchStream(store, BatchConfig(batch_tokens=150, sort_window=60), seed=3)
    plain.restore({"epoch": 1, "examples": 0})
    for _ in range(10):  # the next epoch is as if nothing had been
        assert same(next(plain), next(stream))


def test_what_is_less_than_one_of_the_new_batches_is_left_to_the_next_epoch(store: Store) -> None:
    stream = BatchStream(store, BatchConfig(batch_tokens=100_000, sort_window=60), seed=3)
    stream.restore({"epoch": 0, "examples": len(store) - 1})
    assert (stream.epoch, stream.state()["examples"]) == (1, 0)


def test_a_state_of_other_data_is_refused(store: Store) -> None:
    stream = BatchStream(store, BatchConfig(batch_tokens=600), seed=3)
    with pytest.raises(CheckpointError, match="fewer examples"):
        stream.restore({"epoch": 0, "examples": 10_000})


@pytest.mark.parametrize("weights", [(), (1.7,)])
def test_batches_that_are_skipped_are_those_that_others_make(
    store: Store, weights: tuple[float, ...]
) -> None:
    config = BatchConfig(batch_tokens=600)
    streams = [BatchStream(store, config, seed=1, weights=weights, corrupt=noise) for _ in range(2)]
    for number in range(150):
        before, made = streams[0].state(), next(streams[number % 2])
        streams[1 - number % 2].skip()
        assert str(streams[0].state()) == str(streams[1].state())
        if number == 100:
            again = BatchStream(store, config, seed=1, weights=weights, corrupt=noise)
            again.restore(before)
            assert torch.equal(next(again).labels, made.labels)
    assert streams[0].epoch >= 2


def test_sampling_cuts_anew_each_time_and_resumes_exactly(
    pairs: list[Example], build: Build
) -> None:
    sampling = learn_tokenizers(TokenizerConfig(kind="bpe", vocab_size=120, sampling=0.2), pairs)
    store = build(pairs[:60], sampling, keep_text=True)
    config = BatchConfig(batch_tokens=10_000)
    stream = SampledStream(store, config, seed=1, tokenizers=sampling)
    first, second = next(stream), next(stream)
    assert first.size == second.size == 60
    texts = Counter(pair.src for pair in pairs[:60])
    for batch in (first, second):
        assert Counter(sampling.src.decode(src) for src, _ in rows(batch)) == texts
    cuts = [{sampling.src.decode(src): src for src, _ in rows(batch)} for batch in (first, second)]
    assert sum(cuts[0][text] != cuts[1][text] for text in texts) > 50
    resumed = SampledStream(store, config, seed=1, tokenizers=sampling)
    resumed.restore({"epoch": 1, "examples": 0})
    assert same(next(resumed), second)


def test_texts_cut_anew_have_like_lengths_and_any_place_is_found_again(
    pairs: list[Example], build: Build
) -> None:
    sampling = learn_tokenizers(TokenizerConfig(kind="bpe", vocab_size=120, sampling=0.4), pairs)
    store = build(pairs, sampling, keep_text=True)

    def stream() -> SampledStream:
        config = BatchConfig(batch_tokens=200, sort_window=len(pairs) // 3)
        return SampledStream(store, config, seed=1, tokenizers=sampling, corrupt=noise)

    straight, other = stream(), stream()
    states, batches = [], []
    while straight.epoch < 1:
        states.append(straight.state())
        batches.append(next(straight))
        if len(batches) % 2:
            other.skip()
        else:
            assert same(next(other), batches[-1])
    assert all(max(one.inputs.ids.numel(), one.targets.ids.numel()) <= 200 for one in batches)
    assert sum(one.n_tokens for one in batches) > 0.85 * sum(
        one.targets.ids.numel() for one in batches
    )
    for state, batch in [*zip(states, batches, strict=True)][:: len(batches) // 8]:
        resumed = stream()
        resumed.restore(state)
        assert resumed.state() == state
        again = next(resumed)
        assert same(again, batch)
        assert torch.equal(again.labels, batch.labels)


def cuts_of_an_epoch(
    stream: SampledStream, tokenizers: Tokenizers
) -> dict[str, list[tuple[int, ...]]]:
    """How each source is cut in the first epoch, as often as it comes."""
    cuts: dict[str, list[tuple[int, ...]]] = {}
    for batch in epoch_of(stream):
        for src, _ in rows(batch):
            cuts.setdefault(tokenizers.src.decode(src), []).append(src)
    return {text: sorted(ids) for text, ids in cuts.items()}


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_cut_depends_on_seed_epoch_and_example_only(
    kind: str, pairs: list[Example], build: Build
) -> None:
    config = TokenizerConfig.model_validate({"kind": kind, "vocab_size": 60, "sampling": 0.3})
    sampling = learn_tokenizers(config, pairs)
    store = build(pairs[:60], sampling, keep_text=True)

    def cuts(seed: int, **settings: int) -> dict[str, list[tuple[int, ...]]]:
        return cuts_of_an_epoch(
            SampledStream(store, BatchConfig(**settings), seed, tokenizers=sampling), sampling
        )

    expected = cuts(1, batch_tokens=200)
    assert sum(map(len, expected.values())) == 60
    assert cuts(1, batch_tokens=1000, sort_window=7) == expected
    other = cuts(2, batch_tokens=200)
    assert sum(other[text] != expected[text] for text in expected) > 50


def test_each_repetition_of_an_example_is_cut_by_itself(
    pairs: list[Example], build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = learn_tokenizers(TokenizerConfig(kind="bpe", vocab_size=120, sampling=0.5), pairs)
    distinct = [*{pair.src: pair for pair in pairs}.values()][:60]
    store = build(distinct, sampling, keep_text=True)
    monkeypatch.setattr("nmtkit.data.batches.shuffling.BLOCK", 4)
    for shuffle_window in (1000, 50):  # the latter makes several parts of an epoch
        config = BatchConfig(batch_tokens=200, shuffle_window=shuffle_window)
        stream = SampledStream(store, config, seed=1, weights=[3.0], tokenizers=sampling)
        cuts = cuts_of_an_epoch(stream, sampling)
        assert len(cuts) == 60
        for ids in cuts.values():
            assert len(ids) == 3
        assert sum(len({*ids}) == 3 for ids in cuts.values()) > 50


# Corruption for denoising.


def noise(batch: Batch, generator: torch.Generator) -> Batch:
    """Random labels for what is read."""
    return replace(
        batch, labels=torch.randint(1 << 60, batch.inputs.ids.shape, generator=generator)
    )


def test_a_batch_is_corrupted_by_its_place_whatever_was_drawn_before(store: Store) -> None:
    def stream(seed: int = 3) -> BatchStream:
        return BatchStream(store, BatchConfig(batch_tokens=600), seed, corrupt=noise)

    straight, plain = stream(), BatchStream(store, BatchConfig(batch_tokens=600), 3)
    states, batches = [], []
    while straight.epoch < 2:
        states.append(straight.state())
        torch.rand(len(states))
        batches.append(next(straight))
        assert same(batches[-1], next(plain))
    drawn = {tuple(batch.labels[0].tolist()) for batch in batches}
    assert len(drawn) == len(batches), "no two batches are corrupted alike"
    resumed = stream()
    for state, batch in zip(states, batches, strict=True):
        resumed.restore(state)
        assert torch.equal(next(resumed).labels, batch.labels)
    assert not torch.equal(next(stream(seed=4)).labels[0, :5], batches[0].labels[0, :5])


def test_validation_is_corrupted_in_the_same_way_every_time(store: Store) -> None:
    one, again = (list(sorted_batches(store, 600, corrupt=noise)) for _ in range(2))
    assert all(torch.equal(a.labels, b.labels) for a, b in zip(one, again, strict=True))
    assert len({tuple(batch.labels[0].tolist()) for batch in one}) == len(one)


# In order.


def test_evaluation_batches_have_every_pair_once_and_never_change(store: Store) -> None:
    one, again = list(sorted_batches(store, 600)), list(sorted_batches(store, 600))
    assert all(same(a, b) for a, b in zip(one, again, strict=True))
    assert sum((Counter(rows(batch)) for batch in one), Counter()) == corpus(store)


def test_sentences_of_like_length_are_put_together_the_longest_first() -> None:
    assert bucket_by_length([3, 9, 4, 3, 2, 10], 12) == [[5], [1], [2, 0, 3], [4]]
    assert bucket_by_length([3, 9, 4, 3, 2, 10], 12, batch_size=2) == [[5], [1], [2, 0], [3, 4]]
    assert bucket_by_length([], 12) == []
    assert bucket_by_length(np.array([50]), 12) == [[0]]
