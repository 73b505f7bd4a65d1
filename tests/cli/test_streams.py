"""Streams that are closed and disks that are full: the command names what it cannot write, and loses no work."""

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nmtkit.core.errors import NmtkitError
from nmtkit.core.files import atomic_write_text
from nmtkit.data.batches.shards import RaggedArray
from nmtkit.data.batches.store import StoreMetadata, StoreWriter
from nmtkit.data.text.config import SplitFiles
from nmtkit.data.text.reading import read_pairs
from nmtkit.data.text.splitting import choose_hold_out, write_splits
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.metrics_log import MetricsLog
from nmtkit.training.events import Evaluated
from tests.support.cases import daily
from tests.support.commands import IN_LOCALE_C, Command, Finished, environment, refused, succeeded

LINES = "ba ce\nce ba\n"
Shell = Callable[[str], Finished]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Runs `nmtkit ARGUMENTS` by a shell, which can close streams, in a folder with `lines.txt`."""
    (tmp_path / "lines.txt").write_text(LINES, encoding="utf-8")

    def run(command: str) -> Finished:
        line = f"exec '{sys.executable}' -m nmtkit {command}"
        words = ["sh", "-c", line]
        done = subprocess.run(
            words, capture_output=True, input=b"", cwd=tmp_path, env=environment(), check=False
        )
        return Finished(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.mark.parametrize(
    ("command", "place"),
    daily(
        [
            ("--help >&-", "standard output"),
            ("--version >/dev/full", "standard output"),
            ("score - --ref lines.txt --metrics bleu <&-", "standard input"),
            ("score lines.txt --ref lines.txt --metrics bleu >&-", "standard output"),
            ("score lines.txt --ref lines.txt --metrics bleu --json >/dev/full", "standard output"),
            ("score - --ref lines.txt --metrics bleu <&- >&-", "standard input"),
            ("fetch libreoffice-help-en-de <&-", "nothing was done, because the question"),
        ],
        3,
    ),
)
def test_a_closed_or_full_stream_is_named(shell: Shell, command: str, place: str) -> None:
    done = refused(shell(command), f"nmtkit: error: {place}", after_results=True)
    assert "Exception ignored" not in done.err, done


@pytest.mark.parametrize("closing", daily(["2>/dev/full", "2>&- <&-"]))
def test_results_are_printed_though_nobody_reads_the_messages(
    shell: Shell, closing: str, tmp_path: Path
) -> None:
    """Results are what they are; a fault is told by the exit code alone."""
    (tmp_path / "lines.txt").write_text(
        "żółw ce\n", encoding="utf-8"
    )  # of which a note tells that ROUGE drops letters
    assert (
        "ROUGE-1"
        in succeeded(shell(f"score lines.txt --ref lines.txt --metrics rouge1 {closing}")).out
    )
    wrong = shell(f"score lines.txt --ref nothing.txt {closing}")
    assert (wrong.code, wrong.out) == (2, "")


def test_results_are_utf_8_whatever_the_encoding_of_the_machine() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_LOCALE_C, "summarize", "--lead", "1"],
        input="żółw śpi.\n".encode(),
        env=environment(LC_ALL="C.UTF-8", PYTHONUTF8="0"),
        capture_output=True,
        check=True,
    )
    assert done.stdout.decode() == "żółw śpi.\n"


def test_a_full_disk_for_messages_does_not_end_a_training(
    corpus: Path, nmtkit: Command, tmp_path: Path
) -> None:
    full = "import os\nos.dup2(os.open('/dev/full', os.O_WRONLY), 2)"
    few = ["--set", "training.max_updates=4"]
    done = succeeded(
        nmtkit("train", corpus / "tiny.yaml", "--run", tmp_path / "run", *few, first=full)
    )
    assert (tmp_path / "run" / "result.json").is_file()
    assert "test set" in done.out


def test_a_file_does_not_take_the_number_of_a_closed_stream(shell: Shell, tmp_path: Path) -> None:
    """The first file that is opened would get the number of a closed stream, and what is written there."""
    done = shell("check lines.txt lines.txt --html page.html >&- 2>&- <&-")
    assert done.code == 2
    assert "<html" in (tmp_path / "page.html").read_text(encoding="utf-8")[:200]


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
@pytest.mark.parametrize(
    "option", ["-o out.txt", "-o out.txt.gz", "--soft soft.json", "--soft soft.npz"]
)
def test_a_full_disk_leaves_no_incomplete_result(
    corpus: Path, trained: Path, console: Command, tmp_path: Path, option: str, size: int
) -> None:
    pairs = ["--source", corpus / "test.src", "--target", corpus / "test.tgt"]
    with largest_file(min(size, 10) if "-o" in option else size):
        done = console("align", "-m", trained, *pairs, *option.split())
    refused(done, f"nmtkit: error: {option.split()[1]}: cannot be written: ", after_results=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("rows", [1, 1000, 100_000])
def test_a_full_disk_leaves_no_incomplete_arrays(tmp_path: Path, rows: int) -> None:
    """The fault of bytes that are held back until the files are closed is told like any other."""
    columns = {side: RaggedArray.from_rows([[4, 5, 6]] * rows, "<u2") for side in ("src", "tgt")}
    with (
        largest_file(10),
        pytest.raises(NmtkitError, match="data: cannot be written: "),
        StoreWriter(tmp_path / "data", "train", "<u2", StoreMetadata(tgt_size=10)) as writer,
    ):
        writer.add(columns)
    assert not list((tmp_path / "data").iterdir())


def test_a_full_disk_for_held_out_pairs_is_named(corpus: Path, tmp_path: Path) -> None:
    files = SplitFiles(src=[str(corpus / "train.src")], tgt=[str(corpus / "train.tgt")])
    held = choose_hold_out(read_pairs(files), with_test=False, train=lambda pair: None)
    with largest_file(1000), pytest.raises(NmtkitError, match="text: cannot be written: "):
        write_splits(files, held, tmp_path / "text", ["train"], ("src", "tgt"))


def test_a_full_disk_for_small_files_is_named(tmp_path: Path) -> None:
    with largest_file(3):
        with pytest.raises(NmtkitError, match=r"metrics\.jsonl: cannot be written: "):
            MetricsLog(RunFolder(tmp_path)).add(Evaluated(1, {}, False, 0.0))
        with pytest.raises(NmtkitError, match=r"b\.txt: cannot be written: "):
            atomic_write_text(tmp_path / "b.txt", "some text")
    with pytest.raises(NmtkitError, match="because it is a folder"):
        atomic_write_text(tmp_path, "some text")


def test_a_full_disk_without_a_name_is_reported_as_a_file(
    console: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nmtkit.config.Recipe.model_json_schema", full)
    done = refused(console("recipe", "schema"), "nmtkit: error: a file: ")
    assert "standard output" not in done.err
