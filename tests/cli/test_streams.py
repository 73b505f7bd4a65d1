"""Standard streams that are closed or full: the command says so where anybody can read it, and loses no work."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Command, Finished, environment, succeeded

LINES = "ba ce\nce ba\n"
Shell = Callable[[str], Finished]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Runs `nmtkit ARGUMENTS` by a shell, which can close streams, in a folder with `lines.txt`."""
    (tmp_path / "lines.txt").write_text(LINES, encoding="utf-8")

    def run(command: str) -> Finished:
        line = f"exec '{sys.executable}' -m nmtkit {command}"
        done = subprocess.run(
            ["sh", "-c", line],
            capture_output=True,
            input=b"",
            cwd=tmp_path,
            env=environment(),
            check=False,
            timeout=120,
        )
        return Finished(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.mark.parametrize(
    ("command", "place"),
    [
        ("score lines.txt --ref lines.txt --metrics bleu >&-", "standard output"),
        ("score lines.txt --ref lines.txt --metrics bleu --json >/dev/full", "standard output"),
        ("--help >&-", "standard output"),
        ("--version >/dev/full", "standard output"),
        ("score - --ref lines.txt --metrics bleu <&-", "standard input"),
        ("score - --ref lines.txt --metrics bleu <&- >&-", "standard input"),
        ("fetch libreoffice-help-en-de <&-", "nothing was downloaded"),
    ],
)
def test_a_closed_or_full_stream_is_named(shell: Shell, command: str, place: str) -> None:
    done = shell(command)
    assert done.code == 2, done
    assert done.err.count("nmtkit: error: ") == 1, done
    assert f"nmtkit: error: {place}: " in done.err, done
    assert "Traceback" not in done.err, done
    assert "Exception ignored" not in done.err, done


@pytest.mark.parametrize("closing", ["2>&- <&-", "2>/dev/full"])
def test_nobody_reads_the_messages(shell: Shell, closing: str, tmp_path: Path) -> None:
    """Results are what they are; a fault is told by the exit code alone."""
    (tmp_path / "lines.txt").write_text("żółw ce\n", encoding="utf-8")  # of which a note tells that ROUGE drops letters
    noted = shell(f"score lines.txt --ref lines.txt --metrics rouge1 {closing}")
    assert noted.code == 0
    assert "ROUGE-1" in noted.out
    refused = shell(f"score lines.txt --ref nothing.txt {closing}")
    assert refused.code == 2
    assert refused.out == ""


def test_a_full_disk_under_the_log_ends_no_training(corpus: Path, nmtkit: Command, tmp_path: Path) -> None:
    full = "import os\nos.dup2(os.open('/dev/full', os.O_WRONLY), 2)"
    few = ["--set", "training.max_updates=4"]
    done = succeeded(nmtkit("train", corpus / "tiny.yaml", "--run", tmp_path / "run", *few, first=full))
    assert (tmp_path / "run" / "result.json").is_file()
    assert "test set" in done.out


def test_no_file_takes_the_place_of_a_closed_stream(shell: Shell, tmp_path: Path) -> None:
    """The first file that is opened would get the number of a closed stream, and what is written there."""
    done = shell("check lines.txt lines.txt --html page.html >&- 2>&- <&-")
    assert done.code == 2
    assert "<html" in (tmp_path / "page.html").read_text(encoding="utf-8")[:200]
