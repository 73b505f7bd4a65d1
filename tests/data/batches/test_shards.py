"""Large stores: shards, the same bytes from any number of processes, and going on after a sudden end."""

import json
import multiprocessing
import os
import pickle
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmtkit.core.errors import DataError
from nmtkit.core.files import verify_checksum, with_checksum
from nmtkit.data.batches import encoding, store
from nmtkit.data.batches.batch_stream import BatchConfig, BatchStream
from nmtkit.data.batches.progress import PreprocessingProgress
from nmtkit.data.batches.shards import RaggedArray
from nmtkit.data.batches.store import Store, StoreMetadata, StoreWriter
from nmtkit.data.text.blocks import Example
from nmtkit.data.text.checking import SplitReport
from nmtkit.data.tokenizers.tokenizer import TokenizerConfig
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from tests.data.preprocessing_program import preprocess
from tests.data.stored import checker, write_store
from tests.support.cases import daily
from tests.support.learned_tokenizers import learn_tokenizers

SETTINGS = {"max_length": 150, "drop_duplicates": True}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards and what is done alone as small as the corpora of these tests."""
    monkeypatch.setattr(store, "SHARD_EXAMPLES", 150)
    monkeypatch.setattr(encoding, "SERIAL_CHARACTERS", 1)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def faulty(pairs: list[Example]) -> list[Example]:
    """The corpus with faults of all kinds in it."""
    changed = list(pairs)
    for at in range(0, len(pairs), 40):
        pair = pairs[at]
        changed[at] = Example("", pair.tgt, pair.line)
        changed[at + 5] = Example(pairs[at // 2].src, pairs[at // 2].tgt, pairs[at + 5].line)
        changed[at + 9] = Example(f"{pair.src * 30} 犬", pair.tgt, pairs[at + 9].line)
    return changed


def written(
    folder: Path,
    pairs: Iterable[Example],
    tokenizers: Tokenizers,
    processes: int = 1,
    copying: bool = False,
) -> SplitReport:
    check = checker(**SETTINGS)
    write_store(
        folder, "train", pairs, tokenizers, check, True, copying, "mark", processes, size=60
    )
    return check.report.splits["train"]


# Reading and writing.


def test_several_shards_are_one_store(
    pairs: list[Example], tokenizers: Tokenizers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = faulty(pairs)
    one = written(tmp_path / "one", pairs, tokenizers)
    monkeypatch.setattr(store, "SHARD_EXAMPLES", 150)
    assert written(tmp_path / "many", pairs, tokenizers) == one
    whole, parts = Store.open(tmp_path / "one", "train"), Store.open(tmp_path / "many", "train")
    names = {path.name for path in (tmp_path / "many").glob("*.json")}
    assert names == {
        "train.json",
        "train-0000.json",
        "train-0001.json",
        "train-0002.json",
        "train-0003.json",
    }
    assert json.loads((tmp_path / "many" / "train.json").read_text())["shards"] == 4
    parts.check()
    assert len(whole) == len(parts) == one.kept > 400
    assert whole.tgt_size == parts.tgt_size
    for side in ("src", "tgt"):
        assert whole.lengths(side).tolist() == parts.lengths(side).tolist()
        assert all(whole.text(side, n) == parts.text(side, n) for n in range(len(whole)))
        assert all((whole.ids(side, n) == parts.ids(side, n)).all() for n in range(len(whole)))
        assert whole.count_longer(side, 9) == parts.count_longer(side, 9) > 0
    assert Store.is_current(tmp_path / "many", "train", "mark")
    config = BatchConfig(batch_tokens=300)
    streams = [BatchStream(opened, config, seed=1) for opened in (whole, parts)]
    for _ in range(40):
        one_batch, other = next(streams[0]), next(streams[1])
        assert one_batch.inputs.ids.equal(other.inputs.ids)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", ["bpe", "word"])
def test_the_bytes_do_not_depend_on_the_number_of_processes(
    kind: str, pairs: list[Example], tmp_path: Path
) -> None:
    tokenizers = learn_tokenizers(
        TokenizerConfig.model_validate({"kind": kind, "vocab_size": 100}), pairs
    )
    one, two = (
        written(tmp_path / str(processes), faulty(pairs), tokenizers, processes, copying=True)
        for processes in (1, 2)
    )
    assert one == two
    assert one.findings.keys() == {"empty side", "duplicate", "over-long"}
    assert files_of(tmp_path / "1") == files_of(tmp_path / "2")
    assert len(files_of(tmp_path / "1")) > 20


@pytest.mark.usefixtures("small")
def test_what_an_earlier_store_left_is_removed(
    pairs: list[Example], tokenizers: Tokenizers, tmp_path: Path
) -> None:
    written(tmp_path / "new", pairs[:100], tokenizers)
    for name in ("train-0007.src.ids", "train.src.ids.new", "train-0001.json"):
        (tmp_path / "new" / name).write_bytes(b"left over")
    for name in ("valid.src.ids", "train-notes.txt", "training.txt"):
        (tmp_path / "new" / name).write_bytes(b"not ours")
    written(tmp_path / "new", pairs, tokenizers)  # several shards over one
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert not names & {"train-0007.src.ids", "train.src.ids.new", "train.src.ids"}
    assert {"valid.src.ids", "train-notes.txt", "training.txt", "train-0003.src.ids"} <= names
    written(tmp_path / "new", pairs[:100], tokenizers)  # and one over several
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert {name for name in names if name.startswith("train-")} == {"train-notes.txt"}
    assert len(Store.open(tmp_path / "new", "train")) == 100
    named = (("train", "mark"), ("train", "old"), ("valid", "mark"))
    assert [Store.is_current(tmp_path / "new", *one) for one in named] == [True, False, False]


@pytest.mark.usefixtures("small")
def test_a_damaged_shard_is_named(
    pairs: list[Example], tokenizers: Tokenizers, tmp_path: Path
) -> None:
    written(tmp_path, pairs, tokenizers)
    path = tmp_path / "train-0001.tgt.ids"
    content = bytearray(path.read_bytes())
    content[10] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"train-0001\.tgt\.ids: damaged \(checksum mismatch\)"):
        Store.open(tmp_path, "train").check()
    assert not Store.is_current(tmp_path, "train", "mark")
    (tmp_path / "train-0002.json").unlink()
    assert not Store.is_current(tmp_path, "train", "mark")
    assert Store.has_shards(tmp_path, "train", "mark", 1)
    assert not Store.has_shards(tmp_path, "train", "mark", 2)
    assert not Store.has_shards(tmp_path, "train", "other", 1)


@pytest.mark.usefixtures("small")
def test_shards_of_different_stores_do_not_mix(
    pairs: list[Example], tokenizers: Tokenizers, tmp_path: Path
) -> None:
    written(tmp_path, pairs, tokenizers)
    path = tmp_path / "train-0001.json"
    manifest = {**verify_checksum(json.loads(path.read_text())), "fingerprint": "another"}
    for content, fault in (
        (with_checksum(manifest), "does not belong to"),
        (manifest, "the checksum is missing"),
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(DataError, match=rf"train-0001\.json: .*{fault}"):
            Store.open(tmp_path, "train")


def test_a_shard_is_full_by_its_size_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SHARD_SIZE", 10)
    with StoreWriter(tmp_path, "train", "<u2", StoreMetadata(tgt_size=9)) as writer:
        writer.add({"src": RaggedArray.from_rows([[4] * 9], "<u2")})
        assert not writer.full
        writer.add({"src": RaggedArray.from_rows([[4]], "<u2")})
        assert writer.full


def test_ragged_rows_by_hand() -> None:
    rows = RaggedArray.from_rows([[1, 2], [], [3], [4, 5, 6]], "<u2")
    assert rows.where(np.array([True, True, False, True])).flat.tolist() == [1, 2, 4, 5, 6]
    assert rows.where(np.array([False, True, True, False])).counts.tolist() == [0, 1]
    assert rows.where(np.zeros(4, dtype=bool)).flat.tolist() == []
    assert RaggedArray.from_texts(["ä", "", "b"]).counts.tolist() == [2, 0, 1]


# Going on after a sudden end.


def run(folder: Path, place: str, processes: int = 1) -> int | None:
    """Runs the program as a process of its own, which begins with everything loaded; gives its exit code."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(
        [
            "nmtkit.data.batches.encoding",
            "nmtkit.data.batches.store",
            "nmtkit.data.tokenizers.tokenizer",
        ]
    )
    process = forks.Process(target=preprocess, args=(folder, place, processes))
    process.start()
    process.join(120)
    return process.exitcode


def told(folder: Path) -> tuple[int, dict[str, Any]]:
    """How many pairs the program found done, and its report; it came to its end."""
    assert run(folder, "nowhere") == 0
    going_on, report = json.loads((folder / "told").read_text())
    return going_on, report


@pytest.fixture(scope="module")
def given(pairs: list[Example], tokenizers: Tokenizers) -> bytes:
    return pickle.dumps((SETTINGS, faulty(pairs), tokenizers))


@pytest.fixture(scope="module")
def straight(
    given: bytes, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, bytes], object]:
    """The files and the report of a program that nobody stopped."""
    folder = tmp_path_factory.mktemp("straight")
    (folder / "given").write_bytes(given)
    going_on, report = told(folder)
    assert going_on == 0
    assert report["splits"]["valid"]["findings"]["pair also in train"]["count"] >= 2
    assert report["splits"]["train"]["findings"]["duplicate"]["count"] >= 5
    return files_of(folder / "data"), report


PLACES = [
    ("line 100", 1, 0, False),
    ("line 550", 2, 180, False),  # it was read ahead
    ("shard 1 is noted", 1, 180, False),
    ("shard 1 is there", 1, 0, False),
    ("line 500", 1, 360, False),
    ("all is there", 1, 540, False),
]


@pytest.mark.parametrize(
    ("place", "processes", "read", "is_damaged"), [*daily(PLACES, 2), ("line 500", 1, 360, True)]
)
def test_a_killed_program_goes_on(
    place: str,
    processes: int,
    read: int,
    is_damaged: bool,
    given: bytes,
    straight: object,
    tmp_path: Path,
) -> None:
    """A shard that was damaged meanwhile is made again."""
    (tmp_path / "given").write_bytes(given)
    assert run(tmp_path, place, processes) == -signal.SIGKILL
    assert not Store.is_current(tmp_path / "data", "valid", "mark")
    if is_damaged:
        path = tmp_path / "data" / "train-0001.src.ids"
        path.write_bytes(bytes(path.stat().st_size))
    going_on, report = told(tmp_path)
    assert going_on == read
    assert (files_of(tmp_path / "data"), report) == straight


def test_progress_that_makes_no_sense_or_has_other_settings_is_none(tmp_path: Path) -> None:
    progress = PreprocessingProgress(tmp_path / "progress.json", "mark", {"kind": "word"})
    assert PreprocessingProgress.load(progress.path, "mark") is None
    for content in (
        "",
        "{}",
        "[1]",
        '{"fingerprint": "mark", "tokenizer": {}, "report": {"x": 1}}',
    ):
        progress.path.write_text(content)
        assert PreprocessingProgress.load(progress.path, "mark") is None
    progress.complete_shard(2, SplitReport(read=500, kept=480))
    assert PreprocessingProgress.load(progress.path, "mark") == progress
    assert PreprocessingProgress.load(progress.path, "other") is None
    assert os.listdir(tmp_path) == ["progress.json"]
