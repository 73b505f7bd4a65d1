"""A few cases of every family, the same ones each time; two processes in one folder; disks that are too small.

`make test-hostile` draws ten thousand others.
"""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.support.cases import daily
from tests.support.compare_runs import differences, wait_for_update
from tests.support.processes import Server

from .kills import fault_of
from .material import copy_material
from .oracle import SHARES, Room
from .runner import Done, Runner

EXAMPLES = 30
"""In all; the same ones each time."""
MORE_EXAMPLES = 170
LONG = (
    "--set",
    "training.max_updates=60",
    "--set",
    "training.validate_every=30",
    "--set",
    "training.save_every=20",
)


@pytest.fixture(scope="session")
def runner(server: Server) -> Iterator[Runner]:
    with Runner(server) as runner:
        yield runner


@pytest.fixture(scope="session")
def room(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Room:
    return Room(runner, tmp_path_factory.mktemp("hostile"))


@pytest.fixture
def place(room: Room, tmp_path: Path) -> Path:
    """A folder with the corpus."""
    copy_material(room.material, tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "examples", [EXAMPLES, pytest.param(MORE_EXAMPLES, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("family", daily(SHARES, 2))
def test_a_family_is_answered(room: Room, family: str, examples: int) -> None:
    assert room.families.keys() == SHARES.keys()
    wanted = examples * SHARES[family] // 100
    found = room.hunt(family, wanted, 1)
    assert found.cases > wanted // 2
    assert not found.faults, str(found)


# ----------------------------------------------------------------------------------------------- two in one folder


@pytest.fixture(scope="session")
def straight(room: Room, runner: Runner) -> Path:
    """The long training, undisturbed."""
    done = runner.run("train", "tiny.yaml", "--run", "straight", *LONG, cwd=room.material)
    assert done.code == 0, done
    return room.material / "straight"


def is_refused(done: Done, holder: int) -> bool:
    """Whether it ended with one message that names the process which holds the folder."""
    return (
        done.code == 2
        and done.err.count("nmtkit: error: ") == 1
        and f"process {holder} on" in done.err
    )


LATE = (
    "train --resume",
    "train --resume auto",
    "train --overwrite",
    "train",
    "train --set seed=8",
    "preprocess",
)


@pytest.mark.slow
def test_others_leave_a_training_alone(runner: Runner, straight: Path, place: Path) -> None:
    first = runner.start("train", "tiny.yaml", "--run", "run", *LONG, cwd=place)
    wait_for_update(place / "run", 21, first.runs)  # a state is there to go on with
    first.signal(signal.SIGSTOP)  # it is at work, however long the others take
    late = {
        words: runner.run(*words.split(), "tiny.yaml", "--run", "run", *LONG, cwd=place)
        for words in LATE
    }
    first.signal(signal.SIGCONT)
    done = first.wait()
    assert done.code == 0, done
    assert differences(straight, place / "run") == []
    assert not {words: done for words, done in late.items() if not is_refused(done, first.pid)}


@pytest.mark.parametrize(
    "commands", daily([(("train", "train"),), (("preprocess", "train"),)]), ids="-".join
)
def test_of_two_that_begin_at_once_one_works(
    runner: Runner, straight: Path, place: Path, commands: tuple[str, str]
) -> None:
    two = [
        runner.start(command, "tiny.yaml", "--run", "run", *LONG, cwd=place) for command in commands
    ]
    ends = [process.wait() for process in two]
    codes = sorted(done.code for done in ends)
    # it may have been over before
    assert codes == [0, 2] or (codes == [0, 0] and "preprocess" in commands), ends
    for done, other in zip(ends, reversed(two), strict=True):
        assert done.code == 0 or is_refused(done, other.pid), ends
    if not (place / "run/result.json").exists():  # only the preprocessing was done
        done = runner.run(
            "train", "tiny.yaml", "--run", "run", *LONG, "--resume", "auto", cwd=place
        )
        assert done.code == 0, done
    assert differences(straight, place / "run") == []


# ------------------------------------------------------------------------------------------------- an end at the start


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_the_very_start_is_no_fault(
    runner: Runner, place: Path, number: signal.Signals
) -> None:
    """It meets what makes a copy of a process into a command, and the first lines of the command."""
    for moment in range(20):
        process = runner.start("preprocess", "tiny.yaml", "--run", f"run-{moment}", cwd=place)
        time.sleep(0.0004 * moment)
        process.signal(number)
        done = process.wait()
        assert done.code in (-number, 130)
        assert fault_of(number, done) is None


# ------------------------------------------------------------------------------------------------------- small disks


@pytest.mark.parametrize("most", daily([3_000, 30_000, 90_000]))
def test_files_that_cannot_grow(runner: Runner, room: Room, place: Path, most: int) -> None:
    run = place / "run"
    done = runner.run("train", "tiny.yaml", "--run", run, cwd=place, file_size=most)
    assert done.code == 2, done
    assert done.err.count("nmtkit: error: ") == 1, done
    assert str(run) in done.err.split("nmtkit: error: ")[1], done
    assert not [
        path
        for path in run.rglob("*")
        if path.suffix in (".partial", ".new", ".tmp") or path.name[0] == "."
    ]
    for path in run.rglob("*.safetensors"):
        assert load_file(path)
    done = runner.run("train", "tiny.yaml", "--run", run, "--resume", "auto", cwd=place)
    assert done.code == 0, done
    assert differences(room.material / "runs/tiny", run) == []
