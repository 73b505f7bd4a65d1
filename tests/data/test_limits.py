"""Text cut to a stage's limits when batches are drawn; unknown words that a cut takes away; empty references."""

from pathlib import Path

import pytest
import torch

from nmtkit.core.errors import DataError
from nmtkit.data.batches.batch_stream import BatchConfig, BatchStream, sorted_batches
from nmtkit.data.batches.store import Store
from nmtkit.data.text.blocks import Block, Example
from nmtkit.data.text.checking import DataReport, PairChecker
from nmtkit.data.tokenizers.tokenizer import TokenizerConfig, WordTokenizer
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import EOS, SPECIALS, UNK, Vocabulary
from tests.data.stored import checker, write_store

# Known words are a to d, with ids 4 to 7; V is 8.
KNOWN = WordTokenizer(TokenizerConfig(kind="word"), Vocabulary([*SPECIALS, "▁a", "▁b", "▁c", "▁d"]))
PAIR = Tokenizers(KNOWN.config, {"src": KNOWN, "tgt": KNOWN})
V = 8
PAIRS = [("a x b y z", "y x z a"), ("b c", "c"), ("d d d d d d d", "a b c d a b")]


def store(folder: Path, max_length: int = 20, pairs: list[tuple[str, str]] = PAIRS) -> Store:
    check = checker(max_length=max_length, over_long="truncate")
    examples = [Example(src, tgt, line) for line, (src, tgt) in enumerate(pairs, start=1)]
    write_store(folder, "train", examples, PAIR, check, copying=True, size=1)
    return Store.open(folder, "train")


def rows(tensor: torch.Tensor | None) -> set[tuple[int, ...]]:
    """Rows as real ids, padding and EOS left out."""
    return {tuple(number for number in row if number not in (0, EOS)) for row in tensor.tolist()}


def test_words_of_a_part_that_was_cut_off_become_unknown(tmp_path: Path) -> None:
    (batch,) = sorted_batches(store(tmp_path), 1000, (3, 4))
    # Of "a x b y z" the first three tokens stay, of which x has the first extended id; y and z are gone.
    assert rows(batch.inputs.ids) == {(4, UNK, 5), (5, 6), (7, 7, 7)}
    assert rows(batch.inputs.copy.extended) == {(4, V, 5), (5, 6), (7, 7, 7)}
    assert rows(batch.targets.extended) == {(UNK, V, UNK, 4), (6,), (4, 5, 6, 7)}
    assert rows(batch.targets.ids) == {(UNK, UNK, UNK, 4), (6,), (4, 5, 6, 7)}
    assert batch.n_oov == 1
    assert batch.inputs.ids.shape[1] == 4  # EOS ends what was cut as well
    assert all(EOS in row for row in batch.inputs.ids.tolist())


def test_without_limits_all_is_there(tmp_path: Path) -> None:
    (batch,) = sorted_batches(store(tmp_path), 1000)
    assert (4, V, 5, V + 1, V + 2) in rows(batch.inputs.copy.extended)
    assert (V + 1, V, V + 2, 4) in rows(batch.targets.extended)
    assert batch.n_oov == 3


def test_the_stream_cuts_and_counts_what_is_cut(tmp_path: Path) -> None:
    stored = store(tmp_path)
    stream = BatchStream(stored, BatchConfig(batch_tokens=8), 1, limits=(3, 2))
    seen = [next(stream) for _ in range(6)]
    assert stream.epoch == 3  # two rows of four columns fill a batch: two batches an epoch
    assert {row for batch in seen for row in rows(batch.targets.extended)} == {
        (UNK, V),
        (6,),
        (4, 5),
    }
    assert max(batch.inputs.ids.shape[1] for batch in seen) == 4
    assert (
        stored.count_longer("src", 3),
        stored.count_longer("tgt", 2),
        stored.count_longer("src", 20),
    ) == (2, 2, 0)


def test_what_was_cut_to_be_stored_is_counted_too(tmp_path: Path) -> None:
    stored = store(tmp_path, max_length=4)
    assert stored.lengths("src").tolist() == [4, 2, 4]
    assert (stored.count_longer("src", 4), stored.count_longer("tgt", 4)) == (2, 1)
    assert (stored.count_longer("src", 3), stored.count_longer("tgt", 3)) == (2, 2)


def test_links_of_cut_tokens_are_left_out(tmp_path: Path) -> None:
    examples = [Example("a b c", "a b c", 1, frozenset({(0, 0), (2, 1), (1, 2)}))]
    write_store(tmp_path, "train", examples, PAIR, checker())
    (batch,) = sorted_batches(Store.open(tmp_path, "train"), 100, (2, 2))
    assert batch.alignment.nonzero().tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("split", ["valid", "test"])
def test_an_empty_reference_is_refused_with_its_line(split: str) -> None:
    strict = PairChecker(checker().config, DataReport(), need_references=True)
    sides = ["a", "a", "a"], ["b", " ", ""]
    assert strict.judge(Block("train", "src", "tgt", 1, *sides)).keep.tolist() == [
        True,
        False,
        False,
    ]
    with pytest.raises(DataError, match=f"{split}, line 2: the reference is empty"):
        strict.judge(Block(split, "src", "tgt", 1, *sides))
    assert strict.judge(Block(split, "src", "tgt", 1, [""], ["b"])).keep.all()
    assert strict.judge(Block(split, "src", "", 1, ["a", ""], None)).keep.all()
