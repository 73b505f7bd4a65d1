"""Epochs of a large corpus: shuffled in parts, in memory that does not grow with it."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nmtkit.data.batches import shuffling
from nmtkit.data.batches import store as stores
from nmtkit.data.batches.batch import Batch
from nmtkit.data.batches.batch_stream import BatchConfig, BatchStream
from nmtkit.data.batches.running_text import BlockStream
from nmtkit.data.batches.shards import RaggedArray
from nmtkit.data.batches.shuffling import EpochOrder
from nmtkit.data.batches.store import Store, StoreMetadata, StoreWriter

SIZES = (500, 70, 30)
WINDOW = 150
COUNT = 170


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Examples of one token, repeated, in several shards; to be shuffled in small blocks."""
    monkeypatch.setattr(stores, "SHARD_EXAMPLES", 90)
    monkeypatch.setattr(shuffling, "BLOCK", 16)
    with StoreWriter(tmp_path, "train", "<u2", StoreMetadata(tgt_size=2000)) as writer:
        for begin in range(0, sum(SIZES), 10):
            texts = [[10 + number] * (1 + number % 7) for number in range(begin, begin + 10)]
            rows = RaggedArray.from_rows(texts, "<u2")
            file = int(np.searchsorted(np.cumsum(SIZES), begin, side="right"))
            writer.add({"src": rows, "tgt": rows}, [0] * file + [10])
            if writer.full:
                writer.end_shard()
    return Store.open(tmp_path, "train")


def config(**settings: Any) -> BatchConfig:
    return BatchConfig(batch_tokens=40, sort_window=60, shuffle_window=WINDOW, **settings)


def epoch_of(stream: BatchStream) -> list[Batch]:
    epoch, batches = stream.epoch, []
    while stream.epoch == epoch:
        batches.append(next(stream))
    return batches


def examples(batches: list[Batch]) -> list[int]:
    return [number - 10 for batch in batches for number in batch.targets.ids[:, 0].tolist()]


def test_an_epoch_in_parts_has_every_pair_once_and_a_part_is_of_the_whole_corpus(
    store: Store,
) -> None:
    stream = BatchStream(store, config(), seed=1)
    first, second = examples(epoch_of(stream)), examples(epoch_of(stream))
    assert sorted(first) == sorted(second) == list(range(600))
    assert first != second
    assert not np.array_equal(np.sort(first[:WINDOW]), np.sort(second[:WINDOW]))
    part = np.histogram(first[:WINDOW], 3, (0, 600))[0]
    assert part.min() >= 1
    neighbours = np.abs(np.diff(first)) == 1
    assert neighbours.mean() < 0.1


@pytest.mark.parametrize("kind", [BatchStream, BlockStream])
@pytest.mark.parametrize("weights", [(), (0.5, 1.5, 3.0)])
def test_it_goes_on_exactly_and_does_not_depend_on_the_number_of_processes(
    store: Store, kind: type[BatchStream], weights: tuple[float, ...]
) -> None:
    drawn: list[int] = []

    def mark(batch: Batch, generator: torch.Generator) -> Batch:
        drawn.append(generator.initial_seed())
        return batch

    def stream() -> BatchStream:
        cut = config(block_tokens=20 if kind is BlockStream else None)
        return kind(store, cut, seed=3, weights=weights, corrupt=mark)

    running = stream()
    states, batches = [], []
    for _ in range(COUNT):
        states.append(json.loads(json.dumps(running.state())))
        batches.append(next(running))
    seeds = list(drawn)
    assert running.epoch >= 1, running.state()
    assert len(set(seeds)) == COUNT, "no two batches have one number"
    for number in range(0, COUNT, 19):
        resumed = stream()
        resumed.restore(states[number])
        assert resumed.state() == states[number]
        assert resumed.state()["data"] == states[0]["data"]
        assert next(resumed).targets.ids.equal(batches[number].targets.ids)
        assert drawn[-1] == seeds[number]
    other = stream()  # of two processes the second
    for number in range(0, COUNT, 2):
        other.skip()
        assert next(other).targets.ids.equal(batches[number + 1].targets.ids)


def test_weights_count_in_parts_as_they_do_in_one(store: Store) -> None:
    epochs = []
    for epoch in range(40):
        order = EpochOrder(store.examples_per_file, (0.5, 1.0, 3.25), WINDOW, seed=1, epoch=epoch)
        assert len(order) == 3
        numbers = np.concatenate([order.part(number)[0] for number in range(3)])
        epochs.append(np.histogram(numbers, [0, 500, 570, 600])[0])
    shares = np.array(epochs)
    assert shares.mean(0) == pytest.approx([250, 70, 97.5], rel=0.03)
    assert (shares[:, 1] == 70).all()
    assert len({*shares[:, 0].tolist()}) > 5


def test_another_window_begins_the_epoch_anew(store: Store) -> None:
    stream, other = (
        BatchStream(store, config().changed({"shuffle_window": most}), seed=1)
        for most in (150, 200)
    )
    next(stream)
    other.restore(stream.state())
    assert other.state()["examples"] == 0
    wide = [config().changed({"shuffle_window": most}) for most in (600, 9000)]
    assert {BatchStream(store, cut, 1).identity for cut in wide} == {store.identity}


@pytest.mark.parametrize("kind", [BatchStream, BlockStream])
def test_a_window_of_less_than_a_block_is_a_block(store: Store, kind: type[BatchStream]) -> None:
    cut = config(block_tokens=20 if kind is BlockStream else None).changed({"shuffle_window": 3})
    batches = epoch_of(kind(store, cut, seed=1))
    assert sum(batch.n_tokens for batch in batches) == int((store.lengths("tgt") + 1).sum())
    # 600 examples, 16 in a block
    assert len(EpochOrder(store.examples_per_file, (), 3, seed=1, epoch=0)) == 38


def test_memory_is_that_of_a_part_and_a_little_for_each_block() -> None:
    peaks = []
    for count in (20_000_000, 200_000_000):
        tracemalloc.start()
        order = EpochOrder([count], [], 1_000_000, seed=1, epoch=0)
        first, _ = order.part(0)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(order) == count // 1_000_000
        assert first.dtype == np.int32
        assert 990_000 < len(first) < 1_010_000
        assert 0.4 * count < first.mean() < 0.6 * count
    assert peaks[1] < 30 << 20
    assert peaks[1] - peaks[0] < 0.08 * 180_000_000


def test_a_bent_offset_of_a_shard_is_found_when_it_is_read(store: Store) -> None:
    path = store.folder / "train-0002.tgt.offsets"
    numbers = np.fromfile(path, dtype="<i8")
    numbers[[4, 5]] = numbers[[5, 4]]
    numbers.tofile(path)
    with pytest.raises(stores.DataError, match=r"train-0002\.tgt\.offsets: damaged"):
        epoch_of(BatchStream(Store.open(store.folder, "train"), config(), seed=1))


def test_groups_of_batches_have_like_lengths_and_are_full(store: Store) -> None:
    stream = BatchStream(store, BatchConfig(batch_tokens=50, group=4), seed=1)
    assert len(epoch_of(BatchStream(store, BatchConfig(batch_tokens=50), seed=1))) % 4
    for _ in range(2):
        epoch = epoch_of(stream)
        assert sorted(examples(epoch)) == list(range(600))
        assert len(epoch) % 4 == 0
        lengths = np.array([batch.targets.mask.shape[1] for batch in epoch]).reshape(-1, 4)
        assert (np.ptp(lengths, axis=1) <= 1).all()
        assert (np.diff(lengths[:, 0]) < 0).any()
