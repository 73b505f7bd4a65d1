"""A disk that is full while a file is written: the message names that file, and nothing half written stays."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import Command, refused

from nmtkit.core.errors import NmtkitError
from nmtkit.core.files import atomic_write_text
from nmtkit.corpus.config import SplitFiles
from nmtkit.corpus.reading import read_pairs
from nmtkit.corpus.splitting import choose_hold_out, write_splits
from nmtkit.data.shards import RaggedArray
from nmtkit.data.store import StoreWriter
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.metrics_log import MetricsLog
from nmtkit.training.events import Evaluated


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file can grow beyond this: what a full disk does, without a disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [0, 1000, 4000])
@pytest.mark.parametrize("ending", ["json", "npz"])
def test_soft_alignments(corpus: Path, trained: Path, console: Command, tmp_path: Path, ending: str, size: int) -> None:
    given = ["--source", corpus / "test.src", "--target", corpus / "test.tgt"]
    with largest_file(size):
        done = console("align", "-m", trained, *given, "--soft", f"soft.{ending}")
    assert done.code == 2
    assert f"nmtkit: error: soft.{ending}: cannot write it: " in done.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("rows", [1, 1000, 100_000])
def test_arrays(tmp_path: Path, rows: int) -> None:
    """The fault of bytes that are held back until the files are closed is told like any other."""
    columns = {side: RaggedArray.of([[4, 5, 6]] * rows, "<u2") for side in ("src", "tgt")}
    with (
        largest_file(10),
        pytest.raises(NmtkitError, match="data: cannot write it: "),
        StoreWriter(tmp_path / "data", "train", "<u2", 10) as writer,
    ):
        writer.add(columns)
    assert not list((tmp_path / "data").iterdir())


def test_held_out_pairs(corpus: Path, tmp_path: Path) -> None:
    files = SplitFiles(src=[str(corpus / "train.src")], tgt=[str(corpus / "train.tgt")])
    held = choose_hold_out(read_pairs(files), with_test=False, train=lambda pair: None)
    with largest_file(1000), pytest.raises(NmtkitError, match="text: cannot write it: "):
        write_splits(files, held, tmp_path / "text", ["train"], ("src", "tgt"))


def test_small_files(tmp_path: Path) -> None:
    with largest_file(3):
        with pytest.raises(NmtkitError, match=r"metrics\.jsonl: cannot write it: "):
            MetricsLog(RunFolder(tmp_path)).add(Evaluated(1, {}, False, 0.0))
        with pytest.raises(NmtkitError, match=r"b\.txt: cannot write it: "):
            atomic_write_text(tmp_path / "b.txt", "some text")
    with pytest.raises(NmtkitError, match="cannot write it: it is a folder"):
        atomic_write_text(tmp_path, "some text")


def test_where_nothing_is_known_it_is_a_file(console: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nmtkit.recipe.recipe_schema", full)
    done = refused(console("recipe", "schema"), "nmtkit: error: a file: ")
    assert "standard output" not in done.err


@pytest.mark.parametrize("ending", ["txt", "txt.gz"])
def test_results(corpus: Path, trained: Path, console: Command, tmp_path: Path, ending: str) -> None:
    with largest_file(10):
        done = console("translate", "-m", trained, "-o", f"out.{ending}", corpus / "test.src")
    assert done.code == 2
    assert f"nmtkit: error: out.{ending}: cannot write it: " in done.err
    assert not list(tmp_path.iterdir())
