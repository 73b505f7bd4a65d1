"""One process at a time writes in a run's folder, and an earlier run is kept until there is something better."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from nmtkit.core.errors import NmtkitError
from nmtkit.runs.folder import RunFolder, ignore, lock_run
from nmtkit.runs.run import find_run
from tests.support.cases import daily
from tests.support.commands import (
    Command,
    contents,
    refused,
    sentence_pairs,
    sets,
    succeeded,
    write_lines,
    write_pairs,
)
from tests.support.processes import Begun, Server

HOLDER = """\
import sys
from pathlib import Path
from nmtkit.runs.folder import RunFolder, lock_run
held = lock_run(RunFolder(Path(sys.argv[1])), print)
print("held", flush=True)
sys.stdin.read()
sys.exit()
"""
"""Holds a folder and says so, until its standard input is closed."""


FEW = sets("training.validate_every=2", "training.save_every=2", "training.max_updates=4")
FEW_MORE = [*FEW[:-1], "training.max_updates=6", "--resume"]


@pytest.fixture
def holder(copied: Path, server: Server) -> Iterator[Begun]:
    """Another process that works in the run's folder."""
    with server.begin(copied, first=HOLDER) as process:
        assert process.stdout.readline() == b"held\n"
        yield process


def test_only_one_process_writes(
    copied: Path, corpus: Path, nmtkit: Command, holder: Begun
) -> None:
    before = contents(copied)
    recipe = [corpus / "tiny.yaml", "--run", copied]
    text = [
        "--source",
        corpus / "train.src",
        "--target",
        corpus / "train.tgt",
        "--run",
        copied,
        "--overwrite",
    ]
    for command in (
        ["train", *recipe, "--resume"],
        ["train", *recipe, "--overwrite"],
        ["train", *text, "--minutes", "0.01"],
        ["preprocess", *recipe],
        ["tune", *recipe],
    ):
        refused(
            nmtkit(*command),
            f"{copied}: another process is using this folder (process {holder.pid} on ",
        )
        assert contents(copied) == before
    # Reading is free.
    succeeded(nmtkit("translate", "-m", copied, stdin="ba ce\n"))


def test_a_killed_process_holds_nothing(copied: Path, holder: Begun) -> None:
    with pytest.raises(NmtkitError, match=f"process {holder.pid} "):
        lock_run(RunFolder(copied), ignore)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    first = lock_run(RunFolder(copied), ignore)
    assert lock_run(RunFolder(copied / ".." / copied.name), ignore) is first
    first.close()
    assert first.is_open
    first.close()
    with lock_run(RunFolder(copied), ignore) as again:
        assert again is not first


def test_a_file_system_without_locks_is_told(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def fail(file: int, how: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    said: list[str] = []
    with lock_run(RunFolder(copied), said.append):
        assert len(said) == 1
        assert "No locks available" in said[0]
        assert "no other process" in said[0]


@pytest.mark.parametrize(
    "change",
    [
        "tokenizer={kind: bpe, vocab_size: 10}",  # fewer than the letters of the text
        "data.train.src=bad.src",  # not UTF-8
        "model={kind: transformer, d_model: 32, heads: 3}",
    ],
)
def test_overwrite_loses_nothing_when_it_fails(
    copied: Path, corpus: Path, nmtkit: Command, change: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.src").write_bytes(
        b"\xff\n" + (corpus / "train.src").read_bytes().split(b"\n", 1)[1]
    )
    before = contents(copied)
    refused(
        nmtkit(
            "train",
            corpus / "tiny.yaml",
            "--run",
            copied,
            "--overwrite",
            "--set",
            change,
            cwd=tmp_path,
        )
    )
    assert contents(copied) == before


@pytest.mark.slow
def test_overwrite_without_a_recipe_loses_nothing(nmtkit: Command, own_corpus: Path) -> None:
    given = [
        "--source",
        own_corpus / "train.src",
        "--target",
        own_corpus / "train.tgt",
        "--run",
        own_corpus / "run",
    ]
    few = ["--minutes", "0.01", *FEW[:2], *sets("training.max_updates=2", "search.max_length=4")]
    succeeded(nmtkit("train", *given, *few))
    before = contents(own_corpus / "run")
    refused(
        nmtkit(
            "train",
            *given,
            *few,
            *sets(f"pretrained_embeddings.src={own_corpus / 'none.txt'}"),
            "--overwrite",
        )
    )
    assert contents(own_corpus / "run") == before


def test_overwrite_replaces_when_the_first_state_is_saved(
    copied: Path, corpus: Path, nmtkit: Command
) -> None:
    few = sets("training.max_updates=3", "training.validate_every=3", "model.hidden_size=40")
    succeeded(nmtkit("train", corpus / "tiny.yaml", "--run", copied, "--overwrite", *few))
    names = {path.name for path in (copied / "checkpoints").iterdir()}
    assert names == {"last.safetensors", "kept.json", "weights-00000003.safetensors"}
    assert not (copied / "replaced").exists()
    succeeded(nmtkit("translate", "-m", copied, stdin="ba ce\n"))


def test_what_a_killed_overwrite_leaves(copied: Path, corpus: Path, nmtkit: Command) -> None:
    """Between the two runs the earlier one translates, and the next command that writes brings it back."""
    before = contents(copied)
    answer = nmtkit("translate", "-m", copied, stdin="ba ce\n").out
    first = lock_run(RunFolder(copied), ignore)
    first.set_aside()
    first._release()  # as the end of the process would
    assert not RunFolder(copied).has_training()
    saved, why = find_run(str(copied))
    assert saved.folder.path == copied / "replaced"
    assert "earlier run" in why
    assert nmtkit("translate", "-m", copied, stdin="ba ce\n").out == answer

    refused(nmtkit("train", corpus / "tiny.yaml", "--run", copied), "restored the earlier run")
    assert contents(copied) == before


@pytest.mark.parametrize("how", daily(["turned", "cut", "valid"]))
def test_resume_with_other_text_is_refused(nmtkit: Command, own_corpus: Path, how: str) -> None:
    command = ["train", own_corpus / "tiny.yaml", "--run", own_corpus / "run"]
    succeeded(nmtkit(*command, *FEW))
    name = "valid.src" if how == "valid" else "train.src"
    if how == "cut":
        write_pairs(own_corpus, "train", sentence_pairs(100, 1))
    else:
        write_lines(own_corpus / name, (own_corpus / name).read_text().splitlines()[::-1])
    before = contents(own_corpus / "run")
    refused(nmtkit(*command, *FEW_MORE), f"{own_corpus / name}", "--allow-new-data")
    assert contents(own_corpus / "run") == before

    done = succeeded(nmtkit(*command, *FEW_MORE, "--allow-new-data"))
    assert ("the epoch restarts" in done.err) == (how != "valid")
    # From here on this text is the run's own.
    done = succeeded(nmtkit(*command, *FEW[:-1], "training.max_updates=8", "--resume"))
    assert "the epoch restarts" not in done.err


def test_resume_goes_by_what_the_files_hold(nmtkit: Command, own_corpus: Path) -> None:
    """Not by their times, which a copy of them does not keep."""
    command = ["train", own_corpus / "tiny.yaml", "--run", own_corpus / "run"]
    succeeded(nmtkit(*command, *FEW))
    for name in ("train.src", "valid.tgt"):
        os.utime(own_corpus / name, (1, 1))
    # nothing is trained with it
    (own_corpus / "test.src").write_text((own_corpus / "test.src").read_text().upper())
    succeeded(nmtkit(*command, *FEW_MORE))
    refused(
        nmtkit("train", own_corpus / "tiny.yaml", "--run", own_corpus / "new", "--allow-new-data"),
        "--resume",
    )
    assert not (own_corpus / "new").exists()


def test_a_signal_before_training_is_answered(corpus: Path, server: Server, tmp_path: Path) -> None:
    """SIGTERM, as a batch system or a service sends it, is told as Ctrl-C is, wherever it comes."""
    with server.begin("preprocess", corpus / "tiny.yaml", "--run", tmp_path / "run") as process:
        while not (tmp_path / "run/run.lock").exists():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        err, code = process.stderr.read(), process.wait()
    assert code == 130, err
    assert b"stopped" in err


def test_a_training_without_a_state_can_begin_again(
    copied: Path, corpus: Path, nmtkit: Command
) -> None:
    """A first save that fails, on a full disk for one, leaves a folder for states that has none."""
    for path in (*(copied / "checkpoints").iterdir(), copied / "result.json"):
        path.unlink()
    (copied / "metrics.jsonl").write_text('{"update": 1, "event": "step"}\n')
    done = succeeded(
        nmtkit("train", corpus / "tiny.yaml", "--run", copied, "--resume", "auto", *FEW)
    )
    assert "nothing to resume" in done.err
    assert '{"update": 1, "event": "step"}\n' not in (copied / "metrics.jsonl").read_text()
