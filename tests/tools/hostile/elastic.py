"""One training by 1, 2, 4 and again 1 processes, each time killed: `python -m tests.tools.hostile.elastic`.

Beside it runs a training that nobody disturbs. The same batches make the same updates, so the losses are equal up to
rounding. Two processes are started by torchrun, which starts them anew when one of them is killed, and gives up the
second time; four as srun starts them, where the others end by themselves and say which one is missing.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.commands import environment, logged, sets
from tests.support.compare_runs import wait_for_update
from tests.support.processes import children

from .material import write_corpus

SETTINGS = (
    "accumulate=4",
    "max_updates=40",
    "log_every=1",
    "save_every=4",
    "validate_every=10",
    "ema_decay=0.9",
)
TRAIN = [
    "nmtkit",
    "train",
    "tiny.yaml",
    "--resume",
    "auto",
    *sets("model.dropout=0", "data.test=null"),
]
TRAIN += sets(*(f"training.{setting}" for setting in SETTINGS))


class Elastic:
    """A training in a folder with the corpus, by any number of processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "elastic"
        self.said = ""
        """What all processes wrote."""
        write_corpus(folder)

    def start(
        self, words: list[str], run: str = "elastic", **variables: object
    ) -> subprocess.Popen[str]:
        given = environment(**{name: str(value) for name, value in variables.items()})
        return subprocess.Popen(
            [sys.executable, *words, "-m", *(["--"] if words else []), *TRAIN, "--run", run],
            **{
                "cwd": self.folder,
                "env": given,
                "stderr": subprocess.PIPE,
                "stdout": subprocess.DEVNULL,
                "text": True,
            },
        )

    def end(self, process: subprocess.Popen[str]) -> int:
        self.said += process.communicate(timeout=300)[1]
        return process.returncode

    def kill_at(
        self, update: int, process: subprocess.Popen[str], victim: Callable[[], int]
    ) -> None:
        try:
            wait_for_update(self.run, update, lambda: process.poll() is None)
        except AssertionError as fault:
            process.terminate()
            self.end(process)
            raise AssertionError(self.said) from fault
        os.kill(victim(), signal.SIGKILL)

    def alone_until(self, update: int) -> None:
        process = self.start([])
        self.kill_at(update, process, lambda: process.pid)
        assert self.end(process) == -signal.SIGKILL

    def two_of_torchrun_until(self, first: int, update: int) -> None:
        """The second process is killed twice; torchrun starts both anew once."""
        words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
        # to which --run would be one of its options
        process = self.start([*words, "--master-port", str(free_port())])
        for end in (first, update):
            self.kill_at(end, process, lambda: max(children(process.pid)))
            time.sleep(3)  # until they are gone
        assert self.end(process) != 0

    def four_of_srun_until(self, update: int) -> None:
        """The third process is killed; the others end by themselves."""
        port, step = (
            free_port(),
            {"SLURM_STEP_NUM_TASKS": 4, "SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": 1},
        )
        started = [
            self.start([], **step, MASTER_PORT=port, SLURM_PROCID=n, SLURM_LOCALID=n)
            for n in range(4)
        ]
        self.kill_at(update, started[0], lambda: started[2].pid)
        codes = [self.end(process) for process in started]
        assert codes == [2, 2, -signal.SIGKILL, 2], (codes, self.said)
        # One that comes to look when process 0 has ended, too, cannot know who was the first of those that it misses.
        ends = r"nmtkit: error: (?:update \d+: )?process(?:es)? ([\d, ]+) exited, so training cannot continue"
        named = re.findall(ends, self.said)[-3:]
        assert "2" in named, self.said
        assert all("2" in numbers.split(", ") for numbers in named), self.said

    def losses(self, run: str) -> dict[int, tuple[float, int]]:
        """Loss and tokens of each update."""
        return {
            step["update"]: (step["loss"], step["tokens"])
            for step in logged(self.folder / run, "step")
        }


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def compare(folder: Path) -> tuple[str, list[tuple[int, float, float]]]:
    """What the processes said, and of each update the losses of the undisturbed and of the disturbed training."""
    training = Elastic(folder)
    straight = training.start([], run="straight")
    assert training.end(straight) == 0, training.said
    training.said = ""
    training.alone_until(9)
    training.two_of_torchrun_until(15, 20)
    training.four_of_srun_until(29)
    assert training.end(training.start([])) == 0, training.said
    one, other = training.losses("straight"), training.losses("elastic")
    assert one.keys() == other.keys() == {*range(1, 41)}
    assert all(one[update][1] == other[update][1] for update in one), "the same batches"
    scores = [
        [[event["update"], event["valid_bleu"]] for event in logged(folder / run, "valid")]
        for run in RUNS
    ]
    assert scores[0] == scores[1]
    return training.said, [(update, one[update][0], other[update][0]) for update in sorted(one)]


RUNS = ("straight", "elastic")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="nmtkit-elastic-") as folder:
        begun = time.monotonic()
        said, rows = compare(Path(folder))
    print("update  undisturbed  1 -> 2 -> 4 -> 1 processes  difference")
    for update, one, other in rows:
        print(f"{update:6}  {one:11.7f}  {other:27.7f}  {abs(one - other):.1e}")
    for line in said.splitlines():
        if "goes on with" in line or " exited, and the others" in line:
            print(line)
    print(
        f"largest difference {max(abs(one - other) for _, one, other in rows):.1e}, {time.monotonic() - begun:.0f} s"
    )


if __name__ == "__main__":
    main()
