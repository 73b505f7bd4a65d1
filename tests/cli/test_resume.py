"""A run that was stopped or killed goes on bit for bit as if it never had been."""

import json
import signal
import time
from pathlib import Path

import pytest
from commands import Command, refused, sentence_pairs, succeeded, write_pairs
from daily import daily
from processes import Begun, Server

SETTINGS = [
    *("--set", "training.max_updates=26", "--set", "training.validate_every=13", "--set", "training.save_every=7"),
    *("--set", "training.log_every=1", "--set", "data.test=null", "--set", "evaluation.max_sentences=5"),
]


def wait_for_update(folder: Path, update: int, process: Begun) -> None:
    """Until `metrics.jsonl` tells of that update."""
    path = folder / "metrics.jsonl"
    for _ in range(12_000):
        if path.exists() and any(f'"update": {update},' in line for line in path.read_text().splitlines()):
            return
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    raise AssertionError("no update")


def records(folder: Path) -> list[dict[str, object]]:
    timing = {"seconds", "tokens_per_second", "valid_seconds"}
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in timing} for line in lines]


@pytest.fixture(scope="module")
def straight(corpus: Path, nmtkit: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same training without a stop."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    succeeded(nmtkit("train", corpus / "tiny.yaml", "--run", folder, *SETTINGS))
    return folder


@pytest.mark.parametrize("number", daily([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
def test_resume_is_bit_for_bit(
    corpus: Path, nmtkit: Command, server: Server, straight: Path, tmp_path: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "run"
    with server.begin("train", corpus / "tiny.yaml", "--run", folder, *SETTINGS) as process:
        wait_for_update(folder, 15, process)  # validated at 13, saved at 14
        process.send_signal(number)
        err, code = process.stderr.read(), process.wait()
    if number == signal.SIGKILL:
        assert code == -signal.SIGKILL
    else:  # the state was saved, and the user is told how to go on
        assert code == 130, err
        assert b"--resume" in err
    assert not (folder / "result.json").exists()

    succeeded(nmtkit("train", corpus / "tiny.yaml", "--run", folder, *SETTINGS, "--resume"))
    weights = sorted((straight / "checkpoints").glob("weights-*"))
    assert [path.name for path in weights] == sorted(path.name for path in (folder / "checkpoints").glob("weights-*"))
    assert len(weights) == 2
    for path in weights:
        assert path.read_bytes() == (folder / "checkpoints" / path.name).read_bytes()
    assert records(folder) == records(straight)


def test_resume_of_another_recipe_is_refused(corpus: Path, nmtkit: Command, straight: Path) -> None:
    command = ["train", corpus / "tiny.yaml", "--run", straight, *SETTINGS, "--resume"]
    refused(
        nmtkit(*command, "--set", "model.hidden_size=50", "--set", "training.lr=0.1"),
        "`model.hidden_size` was 48 and is 50",
        "`training.lr` was 0.005 and is 0.1",
    )


def test_a_run_is_not_trained_over(corpus: Path, nmtkit: Command, straight: Path) -> None:
    before = (straight / "metrics.jsonl").read_bytes()
    refused(nmtkit("train", corpus / "tiny.yaml", "--run", straight, *SETTINGS), "--resume", "--overwrite")
    assert (straight / "metrics.jsonl").read_bytes() == before


def test_out_of_memory_advice_works(corpus: Path, nmtkit: Command, tmp_path: Path) -> None:
    write_pairs(tmp_path, "less", sentence_pairs(600, 1))
    small = [f"model.{key}_size=8" for key in ("embedding", "hidden", "attention", "maxout")]
    few = ["training.log_every=1", "training.validate_every=36", "evaluation.max_sentences=2", "data.test=null"]
    few += [f"data.train={{src: {tmp_path}/less.src, tgt: {tmp_path}/less.tgt}}"]
    command = ["train", corpus / "tiny.yaml", "--run", tmp_path / "run"]
    command += [word for one in (*small, *few) for word in ("--set", one)]
    succeeded(nmtkit(*command, "--set", "training.max_updates=12"))
    smaller = ["--set", "batch.batch_tokens=256", "--set", "training.accumulate=2", "--set", "training.max_updates=36"]
    done = succeeded(nmtkit(*command, *smaller, "--resume", "auto"))
    assert "resuming the training in this folder" in done.err
    said = "`batch.batch_tokens` was 512 and is 256, `training.accumulate` was 1 and is 2: training goes on with what"
    assert said in " ".join(done.err.split())
    steps = [line for line in records(tmp_path / "run") if line["event"] == "step"]
    assert [line["update"] for line in steps] == list(range(1, 37))
    # An update is about as large as before. A batch that goes over the end of the epoch may be counted in either one.
    sizes = [int(str(line["tokens"])) for line in steps]
    assert abs(sum(sizes[12:24]) / sum(sizes[:12]) - 1) < 0.2
    epochs = [sum(size for size, line in zip(sizes, steps, strict=True) if line["epoch"] == n) for n in range(2)]
    assert steps[-1]["epoch"] >= 2
    assert epochs[0] == pytest.approx(epochs[1], abs=2 * max(sizes))
    # And it goes on so without being told again.
    again = succeeded(nmtkit("train", tmp_path / "run/recipe.yaml", "--run", tmp_path / "run", "--resume"))
    assert "cut into other batches" not in again.err


def test_resume_auto_begins_where_there_is_nothing(corpus: Path, nmtkit: Command, tmp_path: Path) -> None:
    # `--resume` before the recipe's name stands alone.
    command = ["train", "--resume", corpus / "tiny.yaml", "--run", tmp_path / "run", "--set", "data.test=null"]
    command += ["--set", "training.max_updates=2"]
    refused(nmtkit(*command))
    assert not (tmp_path / "run").exists()
    done = succeeded(nmtkit(*command[:1], *command[2:], "--resume", "auto"))
    assert "nothing to resume: beginning" in done.err
    assert (
        "finished after update 2: all its updates are made (max_updates), learning rate 0.005 of 0.005 at its peak"
        in done.err
    )
    assert "training took 0." in done.err
    done = succeeded(nmtkit(*command[:-1], "training.max_updates=3"))
    assert "finished after update 3" in done.err


@pytest.mark.parametrize("schedule", daily(["{kind: linear, over: budget}", "{kind: linear, updates: 6}"]))
def test_a_training_cut_short_says_how_to_go_on(corpus: Path, nmtkit: Command, tmp_path: Path, schedule: str) -> None:
    by_loss = ["--set", "training.best_metric=loss", "--set", "training.higher_is_better=false"]
    limits = ["--set", "training.max_updates=6", "--set", "training.validate_every=2"]
    command = ["train", corpus / "tiny.yaml", "--run", tmp_path / "run", *by_loss, *limits, "--set", "data.test=null"]
    done = succeeded(nmtkit(*command, "--set", f"training.schedule={schedule}"))
    assert (
        "finished after update 6: its schedule is complete (max_updates), learning rate 0 of 0.0042 at its peak"
        in done.err
    )
    advice = done.err.splitlines()[-1].split()
    assert advice[:2] == ["nmtkit", "train"]
    assert "training.max_updates=12" in advice
    assert ("--resume" in advice) == ("budget" in schedule)
    again = succeeded(nmtkit(*advice[1:]))
    assert "finished after update 12: its schedule is complete (max_updates), learning rate 0 of" in again.err


def test_an_end_before_the_schedules_is_warned_of(corpus: Path, nmtkit: Command, tmp_path: Path) -> None:
    command = ["train", corpus / "tiny.yaml", "--run", tmp_path / "run", "--set", "data.test=null"]
    command += ["--set", "training.max_updates=3"]
    done = succeeded(
        nmtkit(*command, "--set", "training.schedule={kind: linear, updates: 12}", "--set", "training.log_every=50")
    )
    assert "finished after update 3: all its updates are made (max_updates)" in done.err
    warning = "warning: max_updates ended training at 25% of the learning rate's schedule; the rate was still 0.003"
    assert warning in done.err
    shown = [line for line in done.err.splitlines() if line.startswith("update ")]
    assert shown[0].startswith("update 1 (33%)")  # the first update is shown at once, and how long the others will take
    assert shown[0].endswith(" left")
    assert "? left" not in done.err
    validation_metrics = next(
        line for line in done.err.splitlines() if line.startswith("validation at update 3: bleu ")
    )
    assert " ppl " in validation_metrics
    assert "loss" not in validation_metrics
    refused(nmtkit("average", "-m", tmp_path / "run"), "this needs at least 2 checkpoints, and 1 was kept")
    # The state is shown before the first update that follows it.
    again = nmtkit(*command[:-1], "training.max_updates=6", "--set", "training.schedule={kind: linear, updates: 12}",
                   "--set", "training.log_every=50", "--resume", "--set", "training.keep_recent=2")  # fmt: skip
    assert again.code == 0, again
    assert "update 3 (50%)  0:0" in again.err
    averaged = succeeded(nmtkit("average", "-m", tmp_path / "run"))
    assert "averaged 2 checkpoints" in averaged.err
