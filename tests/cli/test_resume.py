"""A run that was stopped or killed goes on bit for bit as if it never had been."""

import shlex
import signal
from pathlib import Path

import pytest
import torch

from nmtkit import config
from nmtkit.cli.training import train
from nmtkit.core.errors import DataError, RecipeError
from nmtkit.experiment import execute as running
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.run import Run
from nmtkit.training.parallel import processes
from tests.support.begun_runs import begin_run
from tests.support.cases import daily
from tests.support.commands import (
    Command,
    logged,
    refused,
    sentence_pairs,
    sets,
    succeeded,
    write_pairs,
)
from tests.support.compare_runs import differences, wait_for_update
from tests.support.processes import Server

SETTINGS = [
    *sets("training.max_updates=26", "training.validate_every=13", "training.save_every=7"),
    *sets("training.log_every=1", "data.test=null", "evaluation.max_sentences=5"),
]


@pytest.fixture(scope="module")
def straight(corpus: Path, nmtkit: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same training without a stop."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    succeeded(nmtkit("train", corpus / "tiny.yaml", "--run", folder, *SETTINGS))
    return folder


@pytest.mark.parametrize("number", daily([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
def test_resume_is_bit_for_bit(
    corpus: Path,
    nmtkit: Command,
    server: Server,
    straight: Path,
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    folder = tmp_path / "run"
    with server.begin("train", corpus / "tiny.yaml", "--run", folder, *SETTINGS) as process:
        wait_for_update(folder, 15, lambda: process.poll() is None)  # validated at 13, saved at 14
        process.send_signal(number)
        err, code = process.stderr.read(), process.wait()
    if number == signal.SIGKILL:
        assert code == -signal.SIGKILL
    else:  # the state was saved, and the user is told how to go on
        assert code == 130, err
        words = ["train", str(corpus / "tiny.yaml"), "--run", str(folder), *SETTINGS, "--resume"]
        assert f"Resume with:\n  nmtkit {shlex.join(words)}\n" in err.decode()
    assert not (folder / "result.json").exists()

    succeeded(nmtkit("train", corpus / "tiny.yaml", "--run", folder, *SETTINGS, "--resume"))
    assert len([*(straight / "checkpoints").glob("weights-*")]) == 2
    assert differences(straight, folder) == []


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("/usr/bin/nmtkit train mine.yaml", "nmtkit train mine.yaml --resume"),
        ("nmtkit train mine.yaml --resume", "nmtkit train mine.yaml --resume"),
        (
            "nmtkit train mine.yaml --resume auto --run a",
            "nmtkit train mine.yaml --resume auto --run a",
        ),
        ("nmtkit train mine.yaml --overwrite --run a", "nmtkit train mine.yaml --run a --resume"),
        (
            "nmtkit/__main__.py train --set 'data.train={src: a}' demo",
            "nmtkit train --set 'data.train={src: a}' demo --resume",
        ),
        ("own.py train mine.yaml", "python own.py train mine.yaml --resume"),
        ("nmtkit compare a b", "nmtkit compare a b"),
    ],
)
def test_the_whole_command_to_go_on_is_printed(words: str, command: str) -> None:
    assert train.resume_command(shlex.split(words)) == command


def test_limits_that_a_resumed_training_no_longer_has_are_told(
    corpus: Path, tmp_path: Path
) -> None:
    notes: list[str] = []
    for resume, limits in ((False, ["training.max_updates=7"]), (True, [])):
        loaded = config.load(str(corpus / "tiny.yaml"), limits)
        begin_run(loaded, str(tmp_path / "run"), resume=resume, notify=notes.append).close()
    now = config.load(str(corpus / "tiny.yaml")).training.max_updates
    (said,) = [note for note in notes if "max_updates" in note]
    assert f"`training.max_updates` was 7 and is now {now:,}" in said


def test_another_recipe_and_another_run_are_refused(
    corpus: Path, nmtkit: Command, straight: Path
) -> None:
    before = (straight / "metrics.jsonl").read_bytes()
    command = ["train", corpus / "tiny.yaml", "--run", straight, *SETTINGS]
    other = nmtkit(*command, *sets("model.hidden_size=50", "training.lr=0.1"), "--resume")
    refused(other, "`model.hidden_size` was 48 and is 50", "`training.lr` was 0.005 and is 0.1")
    refused(nmtkit(*command), "--resume", "--overwrite")
    assert (straight / "metrics.jsonl").read_bytes() == before


def test_a_run_with_an_older_default_keeps_it(corpus: Path, tmp_path: Path) -> None:
    """The recipe says nothing of normalization, and the run was begun when the default was nfkc."""
    older = config.load(str(corpus / "tiny.yaml"), ["tokenizer.normalization=nfkc"])
    begin_run(older, str(tmp_path / "run")).close()
    run = begin_run(config.load(str(corpus / "tiny.yaml")), str(tmp_path / "run"), resume=True)
    assert run.recipe.tokenizer.normalization == "nfkc"
    assert config.load(tmp_path / "run" / "recipe.yaml").tokenizer.normalization == "nfkc"
    run.close()
    named = config.load(str(corpus / "tiny.yaml"), ["tokenizer.normalization=nfkc_numbers"])
    with pytest.raises(
        RecipeError, match=r"`tokenizer.normalization` was 'nfkc' and is 'nfkc_numbers'"
    ):
        begin_run(named, str(tmp_path / "run"), resume=True)


def test_where_no_text_was_read_to_its_end_it_is_not_said_to_be_another(
    corpus: Path, tmp_path: Path
) -> None:
    """As after a kill in the midst of preprocessing."""
    loaded = config.load(str(corpus / "tiny.yaml"))
    Run.create(loaded, str(tmp_path / "run")).close()
    said = (
        "data-report.json is missing, this may not be the text of the run; omit --resume, or "
        "continue with the new text"
    )
    with pytest.raises(DataError, match=said):
        begin_run(loaded, str(tmp_path / "run"), resume=True)
    begin_run(loaded, str(tmp_path / "run")).close()


def test_what_other_batches_mean_for_an_epoch_is_said(corpus: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    for resume, tokens in ((False, 512), (True, 256)):
        loaded = config.load(str(corpus / "tiny.yaml"), [f"batch.batch_tokens={tokens}"])
        begin_run(loaded, str(tmp_path / "run"), resume=resume, notify=notes.append).close()
    said = "was 512 and is 256: training continues the epoch with different batches, so some "
    assert f"{said}examples may be repeated or skipped" in "".join(notes)


@pytest.mark.slow
def test_out_of_memory_advice_works(corpus: Path, nmtkit: Command, tmp_path: Path) -> None:
    write_pairs(tmp_path, "less", sentence_pairs(600, 1))
    small = [f"model.{key}_size=8" for key in ("embedding", "hidden", "attention", "maxout")]
    few = [
        "training.log_every=1",
        "training.validate_every=36",
        "evaluation.max_sentences=2",
        "data.test=null",
    ]
    few += [f"data.train={{src: {tmp_path}/less.src, tgt: {tmp_path}/less.tgt}}"]
    command = ["train", corpus / "tiny.yaml", "--run", tmp_path / "run"]
    command += sets(*small, *few)
    succeeded(nmtkit(*command, "--set", "training.max_updates=12"))
    smaller = sets("batch.batch_tokens=256", "training.accumulate=2", "training.max_updates=36")
    done = succeeded(nmtkit(*command, *smaller, "--resume", "auto"))
    assert "resuming the run in this folder" in done.err
    said = "`batch.batch_tokens` was 512 and is 256, `training.accumulate` was 1 and is 2"
    assert said in " ".join(done.err.split())
    steps = logged(tmp_path / "run", "step")
    assert [line["update"] for line in steps] == list(range(1, 37))
    # An update is about as large as before. A batch that goes over the end of the epoch may be counted in either one.
    sizes = [int(str(line["tokens"])) for line in steps]
    assert abs(sum(sizes[12:24]) / sum(sizes[:12]) - 1) < 0.2
    epochs = [
        sum(size for size, line in zip(sizes, steps, strict=True) if line["epoch"] == n)
        for n in range(2)
    ]
    assert steps[-1]["epoch"] >= 2
    assert epochs[0] == pytest.approx(epochs[1], abs=2 * max(sizes))
    # And it goes on so without being told again.
    again = succeeded(
        nmtkit("train", tmp_path / "run/recipe.yaml", "--run", tmp_path / "run", "--resume")
    )
    assert "with different batches" not in again.err


def test_resume_auto_begins_where_there_is_nothing(
    corpus: Path, nmtkit: Command, tmp_path: Path
) -> None:
    # `--resume` before the recipe's name stands alone.
    command = ["train", "--resume", corpus / "tiny.yaml", "--run", tmp_path / "run"]
    command += sets("data.test=null", "training.max_updates=2")
    refused(nmtkit(*command))
    assert not (tmp_path / "run").exists()
    done = succeeded(nmtkit(*command[:1], *command[2:], "--resume", "auto"))
    assert "there is nothing to resume, so a new run is started" in done.err
    end = "update 2 (max_updates), learning rate 0.005 (peak: 0.005)"
    assert f"finished after {end}" in done.err
    assert "training took 0." in done.err
    done = succeeded(nmtkit(*command[:-1], "training.max_updates=3"))
    assert "finished after update 3" in done.err


@pytest.mark.parametrize(
    ("schedule", "advice"),
    daily(
        [
            (
                "{kind: linear, over: budget}",
                "continue with --resume and a larger training.max_updates",
            ),
            ("{kind: linear, updates: 6}", "restart with a larger training.schedule.updates"),
        ]
    ),
)
def test_a_training_cut_short_says_how_to_go_on(
    corpus: Path, nmtkit: Command, tmp_path: Path, schedule: str, advice: str
) -> None:
    by_loss = sets("training.best_metric=loss", "data.test=null")
    limits = sets(
        "training.max_updates=6", "training.validate_every=2", f"training.schedule={schedule}"
    )
    done = succeeded(
        nmtkit("train", corpus / "tiny.yaml", "--run", tmp_path / "run", *by_loss, *limits)
    )
    assert "finished after update 6 (max_updates), learning rate 0 (peak: 0.0042)" in done.err
    assert done.err.splitlines()[-1].endswith(advice)


@pytest.mark.slow
def test_an_end_before_the_schedules_is_warned_of(
    corpus: Path, nmtkit: Command, tmp_path: Path
) -> None:
    command = ["train", corpus / "tiny.yaml", "--run", tmp_path / "run"]
    command += sets(
        "data.test=null", "training.schedule={kind: linear, updates: 12}", "training.log_every=50"
    )
    done = succeeded(nmtkit(*command, "--set", "training.max_updates=3"))
    assert "finished after update 3 (max_updates)" in done.err
    warning = "warning: max_updates ended training at 25% of the learning rate's schedule; the rate was still 0.003"
    assert warning in done.err
    shown = [line for line in done.err.splitlines() if line.startswith("update ")]
    # the first update is shown at once, and how long the others will take
    assert shown[0].startswith("update 1 (33%)")
    assert shown[0].endswith(" left")
    assert "? left" not in done.err
    validation = next(
        line for line in done.err.splitlines() if line.startswith("validation at update 3: bleu ")
    )
    assert " ppl " in validation
    assert "loss" not in validation
    refused(
        nmtkit("average", "-m", tmp_path / "run"),
        "at least 2 checkpoints are required, but 1 was kept",
    )
    # The state is shown before the first update that follows it.
    again = succeeded(
        nmtkit(*command, "--resume", *sets("training.max_updates=6", "training.keep_recent=2"))
    )
    assert "update 3 (50%)  0:0" in again.err
    averaged = succeeded(nmtkit("average", "-m", tmp_path / "run"))
    assert "averaged 2 checkpoints" in averaged.err


def test_auto_leaves_a_gpu_that_several_processes_share_to_a_deterministic_recipe(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only the driver is stood in for: torch begins to use it where processes join."""
    used: list[torch.device] = []

    def join(device: torch.device) -> torch.device:
        used.append(device)
        return device

    monkeypatch.setattr(processes, "join", join)
    monkeypatch.setattr(running.processes, "join", join)
    monkeypatch.setattr(running, "prepare_device", print)
    monkeypatch.setattr(running.devices, "choose", torch.device)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: bool(used))
    monkeypatch.setattr(running.randomness.os, "environ", {})
    loaded = config.load("demo", ["training.deterministic=true"])
    assert not train._resume("auto", RunFolder(tmp_path), "cuda", loaded)
    assert running.choose_device("cuda", loaded) == torch.device("cuda")
