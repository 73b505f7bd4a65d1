"""`--user-module`: a model from outside in every command, and its copy in the run, in processes of their own."""

import hashlib
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import Command, environment, lines_in, refused, succeeded, write_lines
from tests.support.ranks import GIVEN

PAGE = Path(__file__).resolve().parents[2] / "nmtkit" / "guide" / "extending.md"
CLASSIFIER = Path(__file__).resolve().parents[1] / "strangers" / "classifier.py"
QUICK = (
    "--device",
    "cpu",
    "--threads",
    "1",
    "--set",
    "training.max_updates=2",
    "--set",
    "data.test=null",
)
BAG = ("--set", "model={kind: bag, hidden_size: 8}")


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the guide that registers the model `bag`."""
    page = PAGE.read_text(encoding="utf-8")
    block = re.search(
        r"^## Adding a model$.*?^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE
    )
    assert block is not None
    path = tmp_path_factory.mktemp("outside") / "bag.py"
    path.write_text(block[1], encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(bag: Path, corpus: Path, nmtkit: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained with the file, which is gone since."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    mine = folder.with_name("mine.py")
    mine.write_bytes(bag.read_bytes())
    succeeded(
        nmtkit("train", corpus / "tiny.yaml", "--run", folder, *BAG, *QUICK, "--user-module", mine)
    )
    mine.unlink()
    return folder


def forget() -> None:
    """The cache as it is for another user."""
    Path(os.environ["XDG_CACHE_HOME"], "nmtkit", "user-modules").unlink(missing_ok=True)


def test_a_run_keeps_a_copy_that_later_commands_load(
    bag: Path, run: Path, corpus: Path, nmtkit: Command
) -> None:
    assert (run / "user_module.py").read_bytes() == bag.read_bytes()
    checksum = hashlib.sha256(bag.read_bytes()).hexdigest()
    assert (
        json.loads((run / "inference.json").read_text(encoding="utf-8"))["user_module"] == checksum
    )
    assert f"user_module.py: SHA-256 {checksum}" in (run / "train.log").read_text(encoding="utf-8")
    done = succeeded(nmtkit("translate", "-m", run, "--device", "cpu", corpus / "test.src"))
    assert len(done.out.splitlines()) == 40


def test_a_copy_of_another_user_is_executed_only_if_it_is_named(
    run: Path, corpus: Path, nmtkit: Command
) -> None:
    forget()
    translate = ("translate", "-m", run, "--device", "cpu", corpus / "test.src")
    path = f"{run}/user_module.py"
    done = refused(
        nmtkit(*translate),
        path,
        "needs to execute this Python file",
        f"add `--user-module {path}` to the command",
    )
    assert len(done.err.splitlines()) == 1
    named = succeeded(nmtkit(f"--user-module={path}", *translate))
    assert succeeded(nmtkit(*translate)).out == named.out


def test_resuming_and_fine_tuning_load_the_copy_of_the_run(
    bag: Path, run: Path, corpus: Path, nmtkit: Command, tmp_path: Path
) -> None:
    succeeded(nmtkit("recipe", "ls", "--user-module", bag))
    train = ("train", corpus / "tiny.yaml", *QUICK)
    succeeded(nmtkit(*train, "--run", run, *BAG, "--set", "training.max_updates=3", "--resume"))
    succeeded(nmtkit(*train, "--run", tmp_path / "tuned", *BAG, "--set", f"init_from={run}"))
    assert (tmp_path / "tuned" / "user_module.py").read_bytes() == bag.read_bytes()


@pytest.mark.slow
def test_worker_processes_and_stages_know_the_model(
    bag: Path, corpus: Path, nmtkit: Command, tmp_path: Path
) -> None:
    stages = "stages=[{name: a, training: {max_updates: 1}}, {name: b, training: {max_updates: 1}}]"
    train = (
        "train",
        corpus / "tiny.yaml",
        "--run",
        tmp_path / "run",
        *BAG,
        *QUICK,
        "--set",
        stages,
    )
    succeeded(nmtkit("--user-module", bag, *train))
    translate = ("translate", "-m", tmp_path / "run", "--device", "cpu", corpus / "test.src")
    alone = succeeded(nmtkit(*translate))
    assert succeeded(nmtkit(*translate, "--workers", 2)).out == alone.out
    bench = (
        "bench",
        "decode",
        "-m",
        tmp_path / "run",
        "--source",
        corpus / "test.src",
        "--lines",
        8,
    )
    succeeded(nmtkit(*bench, "--device", "cpu"))
    succeeded(nmtkit("export", tmp_path / "run", tmp_path / "exported", "--to", "safetensors"))
    facts = json.loads((tmp_path / "exported" / "inference.json").read_text(encoding="utf-8"))
    assert facts["user_module"] == hashlib.sha256(bag.read_bytes()).hexdigest()
    translate = ("translate", "-m", tmp_path / "exported", "--device", "cpu", corpus / "test.src")
    assert succeeded(nmtkit(*translate)).out == alone.out


@pytest.mark.slow
def test_several_processes_train_and_resume_the_model(
    bag: Path, corpus: Path, tmp_path: Path
) -> None:
    train = ("train", corpus / "tiny.yaml", "--run", tmp_path / "run", *BAG, *QUICK)
    for more in (("--user-module", bag), ("--resume", "--set", "training.max_updates=3")):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        command = [sys.executable, "-m", "nmtkit", *map(str, (*train, *more))]
        begun = []
        for rank in ("0", "1"):
            values = ("2", rank, rank, "127.0.0.1", port)
            env = environment(**dict(zip(GIVEN, values, strict=True)))
            begun.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True))
        messages = [process.communicate(timeout=300)[1] for process in begun]
        assert [process.returncode for process in begun] == [0, 0], messages


@pytest.mark.slow
def test_the_command_of_a_task_is_found_by_its_run(nmtkit: Command, tmp_path: Path) -> None:
    texts = ["ba be", "be bi", "bi ba", "bo be"] * 5
    for split in ("train", "valid"):
        write_lines(tmp_path / f"{split}.txt", texts)
        write_lines(
            tmp_path / f"{split}.labels", ["with" if "ba" in text else "without" for text in texts]
        )
    splits = "".join(
        f"  {name}: {{src: {name}.txt, labels: {name}.labels}}\n" for name in ("train", "valid")
    )
    recipe = f"task: sorting\ndata:\n{splits}tokenizer: {{kind: word, vocab_size: 60}}\nmodel: {{kind: bag-of-words}}\n"
    recipe += "training: {max_updates: 2, validate_every: 2, best_metric: accuracy, threads: 1}\n"
    (tmp_path / "sorting.yaml").write_text(recipe, encoding="utf-8")
    succeeded(
        nmtkit(
            "train", "sorting.yaml", "--device", "cpu", "--user-module", CLASSIFIER, cwd=tmp_path
        )
    )
    succeeded(nmtkit("sort-texts", "-m", "sorting", "valid.txt", "-o", "answers", cwd=tmp_path))
    assert set(lines_in(tmp_path / "answers")) <= {"with", "without"}
    unknown = nmtkit("sort-texts", "valid.txt", cwd=tmp_path)
    refused(unknown, "if it belongs to a task in a file of your own, add `--user-module FILE.py`")


def test_help_shows_the_command_of_a_task_in_the_file(console: Command) -> None:
    shown = console("--help")
    assert "--user-module FILE" in shown.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("recipe", "ls", "--user-module"), "Option '--user-module' requires an argument"),
        (
            ("--user-module", "missing.py", "recipe", "ls"),
            "missing.py: cannot be read or written: No such file",
        ),
        (
            ("recipe", "ls", "--user-module", "bad.py"),
            "bad.py, line 2: NameError: name 'nothing' is not defined",
        ),
    ],
)
def test_a_wrong_file_is_one_message(
    arguments: tuple[str, ...], message: str, tmp_path: Path, console: Command
) -> None:
    write_lines(tmp_path / "bad.py", ["x = 1", "y = nothing"])
    done = refused(console(*arguments), message)
    assert len(done.err.splitlines()) == 1


def test_a_file_that_calls_main_is_the_command_line(tmp_path: Path) -> None:
    code = "from nmtkit.cli import main\n\nif __name__ == '__main__':\n    main()\n"
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "mine.py", "recipe", "ls"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "demo" in done.stdout
