import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.data.batches.progress import input_fingerprint
from nmtkit.data.batches.shards import RaggedArray
from nmtkit.data.batches.store import Store, StoreMetadata, StoreWriter
from nmtkit.data.text.blocks import Example
from nmtkit.data.tokenizers.tokenizer import TokenizerConfig
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import UNK
from tests.data.stored import checker, write_store
from tests.support.learned_tokenizers import learn_tokenizers

Build = Callable[..., Store]


@pytest.fixture
def store(pairs: list[Example], tokenizers: Tokenizers, build: Build) -> Store:
    return build(pairs, tokenizers, keep_text=True)


def test_what_is_written_is_read(
    pairs: list[Example], tokenizers: Tokenizers, store: Store
) -> None:
    store.check()
    assert len(store) == len(pairs)
    for number, pair in enumerate(pairs):
        assert store.ids("src", number).tolist() == tokenizers.src.encode(pair.src)
        assert store.ids("tgt", number).tolist() == tokenizers.tgt.encode(pair.tgt)
    assert store.lengths("tgt").tolist() == [
        len(store.ids("tgt", number)) for number in range(len(store))
    ]
    assert [store.text("src", number) for number in range(len(pairs))] == [
        pair.src for pair in pairs
    ]
    assert store.text("tgt", 7) == pairs[7].tgt
    assert store.tgt_size == len(tokenizers.tgt.vocabulary)
    assert store.ids("src", 0).dtype == np.uint16


def test_dropped_pairs_are_not_stored_and_kept_ones_are_counted(
    tokenizers: Tokenizers, tmp_path: Path
) -> None:
    check = checker(max_length=8)
    texts = [("Otto", "Anna"), ("", "Anna"), ("Otto " * 50, "Anna"), ("犬", "a")]
    examples = [Example(src, tgt, line) for line, (src, tgt) in enumerate(texts, start=1)]
    assert write_store(tmp_path, "train", examples, tokenizers, check, keep_text=True) == 2
    assert [Store.open(tmp_path, "train").text("src", number) for number in (0, 1)] == [
        "Otto",
        "犬",
    ]
    split = check.report.splits["train"]
    assert (split.read, split.kept, split.src_unknown) == (4, 2, 1)
    assert split.src_tokens == len(tokenizers.src.encode("Otto")) + len(tokenizers.src.encode("犬"))


@pytest.mark.parametrize("name", ["train", "test"])
def test_truncation_cuts_ids_but_not_text(
    name: str, tokenizers: Tokenizers, tmp_path: Path
) -> None:
    text = "Otto sees the dog and Anna"
    check = checker(max_length=4, max_tgt_length=2, over_long="truncate")
    write_store(tmp_path, name, [Example(text, text, 1)], tokenizers, check, keep_text=True)
    store = Store.open(tmp_path, name)
    assert store.ids("src", 0).tolist() == tokenizers.src.encode(text)[:4]
    assert store.ids("tgt", 0).tolist() == tokenizers.tgt.encode(text)[:2]
    assert store.text("src", 0) == text


def test_a_test_set_without_targets(tokenizers: Tokenizers, tmp_path: Path) -> None:
    lines = [Example("Otto", None, 1), Example("", None, 2)]
    assert write_store(tmp_path, "test", lines, tokenizers, checker(), copying=True) == 2
    store = Store.open(tmp_path, "test")
    assert not store.has("tgt")
    assert store.lengths("src").tolist() == [len(tokenizers.src.encode("Otto")), 0]


def test_extended_ids(pairs: list[Example], build: Build) -> None:
    words = learn_tokenizers(TokenizerConfig(kind="word"), pairs)
    v = len(words.tgt.vocabulary)
    store = build(
        [Example("Otto sees Quine and Kripke", "Kripke and Lewis", 1)], words, copying=True
    )
    otto, sees, conj = words.src.encode("Otto sees and")
    assert store.ids("src", 0).tolist() == [otto, sees, UNK, conj, UNK]
    assert store.ids("src_extended", 0).tolist() == [otto, sees, v, conj, v + 1]
    assert store.ids("tgt", 0).tolist() == [UNK, conj, UNK]
    assert store.ids("tgt_extended", 0).tolist() == [v + 1, conj, UNK]


def test_nothing_left_is_a_fault_and_writes_nothing(tokenizers: Tokenizers, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train: no pair passed the checks \(1 read\)"):
        write_store(tmp_path, "train", [Example("a", "", 1)], tokenizers, checker())
    with pytest.raises(DataError, match=r"train: no pair passed the checks \(0 read\)"):
        write_store(tmp_path, "train", [], tokenizers, checker())
    assert list(tmp_path.iterdir()) == []


def test_a_fault_while_writing_leaves_the_old_store(tokenizers: Tokenizers, tmp_path: Path) -> None:
    write_store(
        tmp_path, "train", [Example("Otto", "Anna", 1)], tokenizers, checker(), fingerprint="old"
    )
    names = sorted(os.listdir(tmp_path))

    def broken() -> Iterator[Example]:
        for number in range(5000):
            yield Example("dog", "dog", number)
        raise DataError("line 5001")

    with pytest.raises(DataError, match="line 5001"):
        write_store(tmp_path, "train", broken(), tokenizers, checker(), fingerprint="new")
    store = Store.open(tmp_path, "train")
    store.check()
    assert store.fingerprint == "old"
    assert sorted(os.listdir(tmp_path)) == names


def test_wide_ids_need_wide_numbers(tmp_path: Path) -> None:
    for dtype, largest in (("<u2", 65535), ("<i4", 70000)):
        with StoreWriter(tmp_path, "train", dtype, StoreMetadata(tgt_size=70001)) as writer:
            writer.add({"src": RaggedArray.from_rows([[4, largest], []], dtype)})
        assert Store.open(tmp_path, "train").ids("src", 0).tolist() == [4, largest]


@pytest.mark.parametrize(
    "column", ["src.ids", "src.offsets", "tgt.ids", "src.text", "tgt.text.offsets"]
)
def test_cut_files_are_found_on_opening(column: str, store: Store) -> None:
    path = store.folder / f"train.{column}"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(DataError, match=rf"train\.{column}: has \d+ bytes instead of \d+"):
        Store.open(store.folder, "train")
    path.unlink()
    with pytest.raises(DataError, match=rf"train\.{column}: missing"):
        Store.open(store.folder, "train")


def test_bent_files_are_found(store: Store) -> None:
    ids, offsets = store.folder / "train.src.ids", store.folder / "train.src.offsets"
    content = bytearray(ids.read_bytes())
    content[100] ^= 1
    ids.write_bytes(content)
    with pytest.raises(DataError, match="checksum"):
        Store.open(store.folder, "train").check()
    numbers = np.fromfile(offsets, dtype="<i8")
    numbers[[4, 5]] = numbers[[5, 4]]
    numbers.tofile(offsets)
    with pytest.raises(DataError, match=r"src\.offsets: damaged"):
        Store.open(store.folder, "train")


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"version": 0}'])
def test_a_bad_manifest_is_refused(content: str, store: Store) -> None:
    (store.folder / "train.json").write_text(content)
    with pytest.raises(DataError, match=r"train\.json"):
        Store.open(store.folder, "train")


def test_a_folder_without_a_store_and_one_that_cannot_be_written(
    tokenizers: Tokenizers, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="run `nmtkit preprocess`"):
        Store.open(tmp_path, "train")
    (tmp_path / "file").write_text("")
    with pytest.raises(NmtkitError, match="cannot be written"):
        write_store(tmp_path / "file", "train", [Example("a", "b", 1)], tokenizers, checker())


def test_the_fingerprint_changes_with_settings_and_files(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("one")
    first = input_fingerprint({"x": 1}, [str(path)])
    assert input_fingerprint({"x": 1}, [str(path)]) == first
    assert input_fingerprint({"x": 2}, [str(path)]) != first
    path.write_text("three")
    assert input_fingerprint({"x": 1}, [str(path)]) != first
    with pytest.raises(DataError, match="No such file"):
        input_fingerprint({}, [str(tmp_path / "b")])
