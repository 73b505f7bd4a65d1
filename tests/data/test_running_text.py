"""Running text in blocks: every token once an epoch, no padding, and where the blocks go on after a stop."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nmtkit.core.errors import CheckpointError
from nmtkit.data.batches.batch import Batch
from nmtkit.data.batches.batch_stream import BatchConfig, BatchStream
from nmtkit.data.batches.running_text import BlockStream, RunningText, blocks_in_order
from nmtkit.data.batches.shards import RaggedArray
from nmtkit.data.batches.store import Store, StoreMetadata, StoreWriter
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD

BLOCK = 7
FILES = (30, 20, 10)
"""Documents of each file."""
Documents = list[list[int]]


@pytest.fixture(scope="module")
def documents() -> Documents:
    """Sixty documents: an empty one, short ones, some of many blocks; of every token one can tell the document."""
    draw = np.random.default_rng(4)
    lengths = [
        0,
        1,
        BLOCK - 1,
        BLOCK,
        2 * BLOCK - 1,
        40,
        *draw.integers(1, 30, sum(FILES) - 6).tolist(),
    ]
    return [[10 + number] * length for number, length in enumerate(lengths)]


def stored(documents: Documents, folder: Path) -> Store:
    """In three shards, as from three files."""
    with StoreWriter(folder, "train", "<u2", StoreMetadata(tgt_size=100)) as writer:
        start = 0
        for file, count in enumerate(FILES):
            rows = RaggedArray.from_rows(documents[start : start + count], "<u2")
            writer.add({"tgt": rows}, [count if other == file else 0 for other in range(3)])
            writer.end_shard()
            start += count
    return Store.open(folder, "train")


@pytest.fixture(scope="module")
def store(documents: Documents, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return stored(documents, tmp_path_factory.mktemp("store"))


def config(across: bool = True, **settings: Any) -> BatchConfig:
    return BatchConfig(
        **{"batch_tokens": 30, "block_tokens": BLOCK, "across_documents": across, **settings}
    )


def epoch_of(stream: BlockStream) -> Iterator[Batch]:
    epoch = stream.epoch
    while stream.epoch == epoch:
        yield next(stream)


def pieces(batch: Batch) -> list[list[tuple[int, int]]]:
    """What each block predicts, and from what."""
    targets = batch.targets
    return [
        [*zip(before[mask].tolist(), after[mask].tolist(), strict=True)]
        for before, after, mask in zip(targets.shifted, targets.ids, targets.mask, strict=True)
    ]


def pairs_of(documents: Documents) -> Counter[tuple[int, int]]:
    """All predictions of some documents, each from the token before it."""
    return Counter(pair for one in documents for pair in pairwise([BOS, *one, EOS]))


def same(one: Batch, other: Batch) -> bool:
    return all(map(torch.equal, one.targets.tensors(), other.targets.tensors()))


def slowly(documents: Documents, across: bool) -> list[list[tuple[int, int]]]:
    """The blocks of documents in this order."""
    texts = [[*pairwise([BOS, *one, EOS])] for one in documents]
    texts = [[pair for text in texts for pair in text]] if across else texts
    return [text[at : at + BLOCK] for text in texts for at in range(0, len(text), BLOCK)]


@pytest.mark.parametrize("across", [True, False])
def test_blocks_are_those_of_a_slow_version(
    store: Store, documents: Documents, across: bool
) -> None:
    order = np.random.default_rng(1).permutation(len(documents))
    text = RunningText(
        store.lengths("tgt")[order],
        lambda place: store.ids("tgt", int(order[place])),
        config(across),
    )
    expected = slowly([documents[number] for number in order], across)
    assert len(text) == len(expected)
    assert [pieces(text.load(np.array([number])))[0] for number in range(len(text))] == expected
    some = np.array([3, 0, len(text) - 1, 3])
    assert pieces(text.load(some)) == [expected[number] for number in some]


@pytest.mark.parametrize("across", [True, False])
def test_an_epoch_has_every_token_of_every_document_once(
    store: Store, documents: Documents, across: bool
) -> None:
    stream = BlockStream(store, config(across, sort_window=20), seed=1)
    orders = []
    for _ in range(3):
        blocks = [block for batch in epoch_of(stream) for block in pieces(batch)]
        assert sum(map(Counter, blocks), Counter()) == pairs_of(documents)
        orders.append(blocks)
    assert orders[0] != orders[1] != orders[2]
    assert [
        pieces(batch)
        for batch in epoch_of(BlockStream(store, config(across, sort_window=20), seed=2))
    ] != orders[0]


def test_across_documents_nothing_is_padded_and_one_block_is_shorter(
    store: Store, documents: Documents
) -> None:
    total = sum(len(one) + 1 for one in documents)
    assert total % BLOCK, "the last block is to be shorter"
    batches = [*epoch_of(BlockStream(store, config(batch_tokens=5 * BLOCK + 1), seed=1))]
    assert all(batch.targets.mask.all() for batch in batches)
    widths = Counter(tuple(batch.targets.ids.shape) for batch in batches)
    assert widths == {
        (5, BLOCK): total // BLOCK // 5,
        (total // BLOCK % 5, BLOCK): 1,
        (1, total % BLOCK): 1,
    }
    assert all((batch.targets.shifted != PAD).all() for batch in batches)


def test_within_documents_blocks_are_of_one_document_and_only_ends_are_padded(store: Store) -> None:
    batches = [*epoch_of(BlockStream(store, config(across=False), seed=1))]
    blocks = [block for batch in batches for block in pieces(batch)]
    assert all(
        len({token for pair in block for token in pair} - {BOS, EOS}) <= 1 for block in blocks
    )
    assert all(after == EOS for block in blocks if len(block) < BLOCK for _, after in block[-1:])
    for batch in batches:
        assert batch.targets.ids.numel() <= 30
        lengths = batch.targets.mask.sum(1)
        assert len(set(lengths.tolist())) == 1 or int(lengths.max()) < BLOCK
    assert max(batch.size for batch in batches) > 4, "short ends share a batch"


def test_a_block_wider_than_the_budget_is_a_batch_of_its_own(store: Store) -> None:
    widths = {
        tuple(batch.targets.ids.shape)
        for batch in epoch_of(BlockStream(store, config(batch_tokens=5), seed=1))
    }
    assert len(widths) == 2
    assert (1, BLOCK) in widths
    sized = [batch.size for batch in epoch_of(BlockStream(store, config(batch_size=2), seed=1))]
    assert max(sized) == 2


def test_a_long_document_is_cut_into_other_batches_each_epoch(tmp_path: Path) -> None:
    store = stored([[*range(10, 10 + 50 * BLOCK - 1)], *([] for _ in range(59))], tmp_path)
    stream = BlockStream(store, config(), seed=1)
    epochs = [
        [{block[0][1] for block in pieces(batch)} for batch in epoch_of(stream)] for _ in range(2)
    ]
    assert sum(batch in epochs[1] for batch in epochs[0]) < 3


@pytest.mark.parametrize("across", [True, False])
def test_validation_has_all_blocks_in_one_order(
    store: Store, documents: Documents, across: bool
) -> None:
    one, again = ([*blocks_in_order(store, config(across))] for _ in range(2))
    assert all(map(same, one, again))
    blocks = [block for batch in one for block in pieces(batch)]
    assert sorted(blocks) == sorted(slowly(documents, across))


@pytest.mark.parametrize("across", [True, False])
def test_a_restored_stream_goes_on_with_the_next_batch(store: Store, across: bool) -> None:
    def stream() -> BlockStream:
        settings = config(across, sort_window=25)
        return BlockStream(store, settings, 5, weights=[1.5, 0.5, 1])

    straight = stream()
    states, batches = [], []
    while straight.epoch < 2:
        states.append(straight.state())
        batches.append(next(straight))
    batches += islice(straight, 3)
    resumed = stream()
    for number, state in enumerate(states):
        resumed.restore(state)
        assert resumed.state() == state
        assert all(map(same, batches[number : number + 3], islice(resumed, 3)))


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"batch_tokens": 15}, 14),
        ({"block_tokens": 2 * BLOCK}, 28),
        ({"block_tokens": 3}, 30),
        ({"across": False}, 30),
    ],
)
def test_with_other_sizes_the_epoch_goes_on_after_as_many_tokens(
    store: Store, settings: dict[str, Any], most: int
) -> None:
    stream = BlockStream(store, config(), seed=1)
    tokens = sum(next(stream).n_tokens for _ in range(6))
    assert stream.state()["examples"] == tokens
    other = BlockStream(store, config(**settings), seed=1)
    other.restore(stream.state())
    assert tokens <= other.state()["examples"] < tokens + most
    assert other.epoch == 0


def test_the_text_in_blocks_is_not_that_in_sentences(store: Store) -> None:
    stream, sentences = (
        BlockStream(store, config(), seed=1),
        BatchStream(store, BatchConfig(batch_tokens=30), seed=1),
    )
    next(stream)
    sentences.restore(stream.state())
    assert sentences.state()["examples"] == 0


def test_other_data_begin_the_epoch_anew_and_fewer_of_them_are_refused(
    store: Store, documents: Documents, tmp_path: Path
) -> None:
    stream = BlockStream(store, config(), seed=1)
    while not stream.epoch:
        state = stream.state()
        next(stream)
    changed = BlockStream(stored([[99], *documents[1:]], tmp_path), config(), seed=1)
    changed.restore(state)
    assert changed.state()["examples"] == 0
    with pytest.raises(CheckpointError, match="an epoch now has fewer examples"):
        BlockStream(store, config(), 1, weights=[0.1, 0.1, 0.1]).restore(state)


def test_processes_share_the_blocks_of_one_sequence(store: Store) -> None:
    alone = BlockStream(store, config(), seed=1)
    second = BlockStream(store, config(), seed=1)
    while alone.epoch < 3:
        alone.skip()
        second.skip()
        assert same(next(second), next(alone))
        assert second.state() == alone.state()


def test_epochs_of_a_batch_that_are_all_skipped(store: Store) -> None:
    few = config(batch_tokens=10_000)
    alone, last = (BlockStream(store, few, seed=1) for _ in range(2))
    for _ in range(6):
        next(alone)
        last.skip()
    assert same(next(alone), next(last))


@pytest.mark.parametrize("across", [True, False])
def test_weights_repeat_whole_files_and_draw_documents_of_a_fraction(
    store: Store, documents: Documents, across: bool
) -> None:
    stream = BlockStream(store, config(across), seed=1, weights=[2, 0.5, 1])
    seen = sum((Counter(block) for batch in epoch_of(stream) for block in pieces(batch)), Counter())
    drawn = [number for number in range(30, 50) if seen[BOS, 10 + number]]
    assert 3 <= len(drawn) <= 17
    expected = [
        *documents[:30],
        *documents[:30],
        *(documents[number] for number in drawn),
        *documents[50:],
    ]
    assert seen == pairs_of(expected)
