"""One process at a time writes in a run's folder, and an earlier run is kept until there is something better."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import RECIPE, Command, refused, sentence_pairs, sets, succeeded, write_lines, write_pairs
from daily import daily
from processes import Begun, Server

from nmtkit.core.errors import NmtkitError
from nmtkit.runs.folder import RunFolder, ignore, lock_run
from nmtkit.runs.saved import find_run

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


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a run but its lock, by their path."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "run.lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def holder(run: Path, server: Server) -> Iterator[Begun]:
    """Another process that works in the run's folder."""
    with server.begin(run, first=HOLDER) as process:
        assert process.stdout.readline() == b"held\n"
        yield process


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of a finished run."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A recipe with little text, which is a test's own to change."""
    for name, count, seed in (("train", 400, 1), ("valid", 10, 2), ("test", 10, 3)):
        write_pairs(tmp_path, name, sentence_pairs(count, seed))
    (tmp_path / "tiny.yaml").write_text(RECIPE, encoding="utf-8")
    return tmp_path


def test_only_one_process_writes(run: Path, corpus: Path, nmtkit: Command, holder: Begun) -> None:
    before = contents(run)
    recipe = [corpus / "tiny.yaml", "--run", run]
    text = ["--source", corpus / "train.src", "--target", corpus / "train.tgt", "--run", run, "--overwrite"]
    for command in (
        ["train", *recipe, "--resume"],
        ["train", *recipe, "--overwrite"],
        ["train", *text, "--minutes", "0.01"],
        ["preprocess", *recipe],
        ["tune", *recipe],
    ):
        refused(nmtkit(*command), f"{run}: another process works in this folder (process {holder.pid} on ")
        assert contents(run) == before
    # Reading is free.
    succeeded(nmtkit("translate", "-m", run, stdin="ba ce\n"))


def test_a_killed_process_holds_nothing(run: Path, holder: Begun) -> None:
    with pytest.raises(NmtkitError, match=f"process {holder.pid} "):
        lock_run(RunFolder(run), ignore)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    first = lock_run(RunFolder(run), ignore)
    assert lock_run(RunFolder(run.parent / "run" / ".." / "run"), ignore) is first
    first.close()
    with lock_run(RunFolder(run), ignore) as again:
        assert again is not first


def test_a_file_system_without_locks_is_told(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def fail(file: int, how: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    said: list[str] = []
    with lock_run(RunFolder(run), said.append):
        assert len(said) == 1
        assert "No locks available" in said[0]
        assert "no other process" in said[0]


@pytest.mark.parametrize(
    "change",
    [
        "tokenizer={kind: bpe, vocab_size: 5000}",  # cannot be learned from so little text
        "data.train.src=bad.src",  # not UTF-8
        "model={kind: transformer, d_model: 32, heads: 3}",
    ],
)
def test_overwrite_loses_nothing_when_it_fails(
    run: Path, corpus: Path, nmtkit: Command, change: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.src").write_bytes(b"\xff\n" + (corpus / "train.src").read_bytes().split(b"\n", 1)[1])
    before = contents(run)
    refused(nmtkit("train", corpus / "tiny.yaml", "--run", run, "--overwrite", "--set", change, cwd=tmp_path))
    assert contents(run) == before


def test_overwrite_without_a_recipe_loses_nothing(nmtkit: Command, texts: Path) -> None:
    given = ["--source", texts / "train.src", "--target", texts / "train.tgt", "--run", texts / "run"]
    few = ["--minutes", "0.01", *FEW[:2], *sets("training.max_updates=2", "search.max_length=4")]
    succeeded(nmtkit("train", *given, *few))
    before = contents(texts / "run")
    refused(nmtkit("train", *given, *few, *sets(f"pretrained_embeddings.src={texts / 'none.txt'}"), "--overwrite"))
    assert contents(texts / "run") == before


def test_overwrite_replaces_when_the_first_state_is_saved(run: Path, corpus: Path, nmtkit: Command) -> None:
    few = sets("training.max_updates=3", "training.validate_every=3", "model.hidden_size=40")
    succeeded(nmtkit("train", corpus / "tiny.yaml", "--run", run, "--overwrite", *few))
    names = {path.name for path in (run / "checkpoints").iterdir()}
    assert names == {"last.safetensors", "kept.json", "weights-00000003.safetensors"}
    assert not (run / "replaced").exists()
    succeeded(nmtkit("translate", "-m", run, stdin="ba ce\n"))


def test_what_a_killed_overwrite_leaves(run: Path, corpus: Path, nmtkit: Command) -> None:
    """Between the two runs the earlier one translates, and the next command that writes brings it back."""
    before = contents(run)
    answer = nmtkit("translate", "-m", run, stdin="ba ce\n").out
    first = lock_run(RunFolder(run), ignore)
    first.set_aside()
    first._release()  # as the end of the process would
    assert not RunFolder(run).has_training()
    found, why = find_run(str(run))
    assert found.folder.path == run / "replaced"
    assert "earlier run" in why
    assert nmtkit("translate", "-m", run, stdin="ba ce\n").out == answer

    refused(nmtkit("train", corpus / "tiny.yaml", "--run", run), "restored the earlier run")
    assert contents(run) == before


def test_a_kept_run_goes_when_the_new_one_has_a_state(run: Path) -> None:
    with lock_run(RunFolder(run), ignore) as held:
        held.set_aside()
        (run / "checkpoints").mkdir()
        (run / "checkpoints/last.safetensors").write_bytes(b"the new state")
    assert not (run / "replaced").exists()
    assert contents(run / "checkpoints") == {"last.safetensors": b"the new state"}


@pytest.mark.parametrize("how", daily(["turned", "cut", "valid"]))
def test_resume_with_other_text_is_refused(nmtkit: Command, texts: Path, how: str) -> None:
    command = ["train", texts / "tiny.yaml", "--run", texts / "run"]
    succeeded(nmtkit(*command, *FEW))
    name = "valid.src" if how == "valid" else "train.src"
    if how == "cut":
        write_pairs(texts, "train", sentence_pairs(400, 1)[:100])
    else:
        write_lines(texts / name, (texts / name).read_text().splitlines()[::-1])
    before = contents(texts / "run")
    refused(nmtkit(*command, *FEW_MORE), f"{texts / name}", "--allow-new-data")
    assert contents(texts / "run") == before

    done = succeeded(nmtkit(*command, *FEW_MORE, "--allow-new-data"))
    assert ("the epoch begins anew" in done.err) == (how != "valid")
    # From here on this text is the run's own.
    done = succeeded(nmtkit(*command, *FEW[:-1], "training.max_updates=8", "--resume"))
    assert "the epoch begins anew" not in done.err


def test_resume_goes_by_what_the_files_hold(nmtkit: Command, texts: Path) -> None:
    """Not by their times, which a copy of them does not keep."""
    command = ["train", texts / "tiny.yaml", "--run", texts / "run"]
    succeeded(nmtkit(*command, *FEW))
    for name in ("train.src", "valid.tgt"):
        os.utime(texts / name, (1, 1))
    (texts / "test.src").write_text((texts / "test.src").read_text().upper())  # nothing is trained with it
    succeeded(nmtkit(*command, *FEW_MORE))
    refused(nmtkit("train", texts / "tiny.yaml", "--run", texts / "new", "--allow-new-data"), "--resume")
    assert not (texts / "new").exists()


def test_a_signal_before_training_is_answered(corpus: Path, server: Server, tmp_path: Path) -> None:
    """SIGTERM, as a batch system or a service sends it, is told as Ctrl-C is, wherever it comes."""
    with server.begin("preprocess", corpus / "tiny.yaml", "--run", tmp_path / "run") as process:
        while not (tmp_path / "run/run.lock").exists():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        err, code = process.stderr.read(), process.wait()
    assert code == 130, err
    assert b"stopped" in err


def test_a_training_without_a_state_can_begin_again(run: Path, corpus: Path, nmtkit: Command) -> None:
    """A first save that fails, on a full disk for one, leaves a folder for states that has none."""
    for path in (*(run / "checkpoints").iterdir(), run / "result.json"):
        path.unlink()
    (run / "metrics.jsonl").write_text('{"update": 1, "event": "step"}\n')
    done = succeeded(nmtkit("train", corpus / "tiny.yaml", "--run", run, "--resume", "auto", *FEW))
    assert "nothing to resume" in done.err
    assert '{"update": 1, "event": "step"}\n' not in (run / "metrics.jsonl").read_text()
