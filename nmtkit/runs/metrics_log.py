"""The logs of a run: `metrics.jsonl`, in which updates are counted across stages, and `train.log`."""

import errno
import json
import math
import os
import platform
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, TextIO

import torch

from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.core.files import atomic_write_text, write_errors
from nmtkit.core.formats import parse_json
from nmtkit.core.version import __version__
from nmtkit.metrics.metric import text_metric
from nmtkit.plots.curves import Points, Training
from nmtkit.runs.folder import Notify, RunFolder
from nmtkit.runs.run import Run
from nmtkit.training.events import LOG_KEYS, Evaluated, Event, Step

_VALID_PREFIX = "valid_"
_TEXT_KEYS = ("event", "stage", "samples")
_NO_SCORES = ("loss", "perplexity", "seconds")


class MetricsLog:
    """Writes and reads `metrics.jsonl`, which has one event per line; also writes to TensorBoard if it is installed."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.path = folder.metrics
        self._tensorboard: Any = None

    def begin(self, after: int | None = None, unvalidated: str | None = None) -> None:
        """Opens the TensorBoard log; for a resumed run, drops the events that were logged after update `after`.

        `unvalidated` is the stage whose state was saved before the validation of that update, which is then repeated.
        """
        if after is not None and os.path.lexists(self.path):
            self.truncate_after(after, unvalidated)
        with suppress(ImportError):
            from torch.utils.tensorboard import SummaryWriter

            purge_step = None if after is None else after + 1
            self._tensorboard = SummaryWriter(str(self.folder.tensorboard), purge_step=purge_step)

    def add(self, event: Event, stage: str = "", samples: Sequence[Sequence[str]] = ()) -> None:
        """Writes a `Step`, or an `Evaluated` with `Validation.samples`; ignores other events.

        The event's updates must be counted from the beginning of the first stage.
        """
        if isinstance(event, Step):
            group, values = "train", event.figures()
        elif isinstance(event, Evaluated):
            measured = {f"{_VALID_PREFIX}{key}": value for key, value in event.metrics.items()}
            group, values = "valid", {**measured, "best": event.best}
        else:
            return
        record = {
            "update": event.update,
            "event": _kind(type(event)),
            **({"stage": stage} if stage else {}),
            **values,
        }
        for key, value in record.items():
            if isinstance(value, float) and not math.isfinite(value):
                record[key] = None  # JSON has no NaN or infinity
        if group == "valid" and samples:
            record["samples"] = samples
        with write_errors(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
        if self._tensorboard is not None:
            for key, value in values.items():
                self._tensorboard.add_scalar(
                    f"{group}/{key.removeprefix(_VALID_PREFIX)}", float(value), event.update
                )

    def close(self) -> None:
        """Closes the TensorBoard file."""
        if self._tensorboard is not None:
            self._tensorboard.close()

    def truncate_after(self, after: int, unvalidated: str | None = None) -> None:
        """Drops events after an update, which a resumed run logs again, and an incomplete last line; see `begin`."""
        again = after, _kind(Evaluated), unvalidated
        kept = []
        try:
            lines = self._text(errors="replace").split(
                "\n"
            )  # samples may contain other line separators
        except OSError as fault:
            raise NmtkitError(
                f"{self.path} cannot be read ({fault}); to continue, move the file elsewhere"
            ) from fault
        for line in lines:
            with suppress(DataError, TypeError, KeyError):
                record = parse_json(line, "")
                if record["update"] <= after and again != (
                    record["update"],
                    record["event"],
                    record.get("stage", ""),
                ):
                    kept.append(line)
        atomic_write_text(self.path, "".join(line + "\n" for line in kept))

    def read(self) -> Iterator[tuple[str, Step | Evaluated]]:
        """Yields all events in order, each with its stage, or "" without stages.

        Updates are counted from the beginning of the first stage. Infinite or missing values become NaN. If the run is
        still training, an incomplete last line is skipped.
        """
        try:
            lines = self._text().split("\n")
        except (OSError, UnicodeDecodeError) as fault:
            raise DataError(
                f"{self.path} cannot be read ({fault}); use the folder of a run whose training has "
                "started"
            ) from fault
        made, reached = self._updates_made(), 0
        for number, line in enumerate(lines if made else lines[:-1], start=1):
            if not line:
                continue
            try:
                record = parse_json(line, "")
                stage, event = str(record.get("stage") or ""), _event(record)
            except (
                DataError,
                ValueError,
                KeyError,
                TypeError,
                AttributeError,
                OverflowError,
            ) as fault:
                raise DataError(
                    f"{self.path}, line {number}: this is not a log entry (an object with `update` "
                    "and `event`), so the file is damaged; delete the line, or restore the file "
                    "from a copy of the run"
                ) from fault
            reached = max(reached, event.update)
            yield stage, event
        if reached < made:
            raise DataError(
                f"{self.path} ends at update {reached:,}, but training ran for {made:,} updates, so "
                "the file is truncated; restore it from a copy of the run, or, to plot what is left, delete "
                f"{self.folder.result}"
            )

    def samples(self) -> list[tuple[int, list[list[str]]]]:
        """Returns the update and the samples (source, reference, answer) of each validation that logged samples."""
        records = [
            parse_json(line, self.path.name)
            for line in self._text().split("\n")[:-1]
            if '"samples"' in line
        ]
        return [(int(one["update"]), one["samples"]) for one in records]

    def _text(self, errors: str = "strict") -> str:
        if self.path.exists() and not self.path.is_file():  # reading a pipe would block
            raise OSError(errno.EINVAL, "not a file")
        return self.path.read_text(encoding="utf-8", errors=errors)

    def _updates_made(self) -> int:
        """Returns the number of updates of a finished run; 0 if the run is unfinished or the number is unknown."""
        try:
            result = self.folder.result
            return (
                int(parse_json(result.read_bytes(), result.name)["updates"])
                if result.is_file()
                else 0
            )
        except (OSError, DataError, ValueError, KeyError, TypeError, OverflowError):
            return 0


def _kind(event: type[Step] | type[Evaluated]) -> str:
    return event.__name__.lower()


def _event(record: Mapping[str, Any]) -> Step | Evaluated:
    numbers = {
        key: math.nan if value is None else float(value)
        for key, value in record.items()
        if key not in _TEXT_KEYS
    }
    update = int(record["update"])
    if record["event"] == _kind(Step):
        values: dict[str, Any] = {
            field.name: math.nan for field in fields(Step) if field.default is MISSING
        }
        names = {LOG_KEYS.get(field.name, field.name): field.name for field in fields(Step)}
        values |= {names[key]: number for key, number in numbers.items() if key in names}
        terms = {key: number for key, number in numbers.items() if key not in names}
        return Step(**{**values, "update": update, "terms": terms})
    if record["event"] != _kind(Evaluated):
        raise ValueError("not a logged event")
    metrics = {
        key.removeprefix(_VALID_PREFIX): value
        for key, value in numbers.items()
        if key.startswith(_VALID_PREFIX)
    }
    return Evaluated(update, metrics, best=numbers.get("best", 0.0) == 1.0, seconds=math.nan)


def training_curves(run: Run, name: str) -> Training:
    """Returns the learning curves of a run, which may still be training.

    The score is the recipe's `training.best_metric` or, if it was not logged, BLEU, ROUGE-L or another logged metric.
    """
    events = [*MetricsLog(run.folder).read()]
    steps = [event for _, event in events if isinstance(event, Step)]
    validations = [event for _, event in events if isinstance(event, Evaluated)]
    stages = {stage: event.update for stage, event in events if stage}
    # The metric of the newest stage. Without a recipe, the logged values are still shown.
    chosen = [run.newest_stage().recipe.training.best_metric] if run.folder.exists() else []
    measured = dict.fromkeys(
        name for one in validations for name in one.metrics if name not in _NO_SCORES
    )
    metric = next(
        (one for one in (*chosen, "bleu", "rougeL", *measured) if one in measured), "bleu"
    )
    known = text_metric(metric)

    def training(term: str) -> Points:
        return [(step.update, step.terms.get(term, math.nan)) for step in steps]

    def validation(key: str) -> Points:
        return [(one.update, one.metrics.get(key, math.nan)) for one in validations]

    return Training(
        name,
        loss=training("nll"),
        perplexity=training("ppl"),
        lr=[(step.update, step.lr) for step in steps],
        grad_norm=[(step.update, step.grad_norm) for step in steps],
        valid_loss=validation("loss"),
        valid_perplexity=validation("perplexity"),
        valid_score=[
            (one.update, one.metrics[metric]) for one in validations if metric in one.metrics
        ],
        metric=known.title if known else metric,
        stages=[*stages.items()],
    )


_PACKAGE = Path(__file__).parent.parent
_GIT_SECONDS = 10


class TrainLog:
    """Writes the messages of a run to `train.log`; messages before `open` are buffered.

    If the file cannot be written, `notify` receives a message, and training continues.
    """

    def __init__(self, command: Sequence[str], notify: Notify) -> None:
        self._notify = notify
        self._waiting: list[str] = []
        self._file: TextIO | None = None
        self.write(f"$ {shlex.join(command)}")
        versions = (
            f"nmtkit {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
        )
        self.write(f"{versions}, {platform.platform()}\ncode: {code_state()}")

    def open(self, folder: RunFolder) -> None:
        """Opens the file in the run's folder for appending, and writes the buffered messages."""
        waiting, self._waiting = self._waiting, []
        try:
            self._file = folder.train_log.open("a", encoding="utf-8", buffering=1)
            self._file.writelines(waiting)
        except OSError as fault:
            self._give_up(folder.train_log, fault)

    def write(self, text: str) -> None:
        """Adds a message of one or more lines."""
        lines = [
            f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n" for line in text.splitlines() if line
        ]
        if self._file is None:
            self._waiting += lines
            return
        try:
            self._file.writelines(lines)
        except OSError as fault:
            self._give_up(Path(self._file.name), fault)

    def _give_up(self, path: Path, fault: OSError) -> None:
        self.close()
        self._notify(
            f"cannot write {path} ({fault.strerror or fault}); training continues without this log"
        )

    def close(self) -> None:
        """Closes the file; later messages are dropped."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # write errors have already been reported
                file.close()


@cache
def code_state() -> str:
    """Returns the package's git commit and whether files were changed, or a note that there is no checkout."""
    with suppress(OSError, subprocess.SubprocessError):
        # the package may be installed within the checkout of another project
        if _git("ls-files", "--error-unmatch", "__init__.py"):
            return f"git commit {_git('describe', '--always', '--abbrev=40', '--exclude=*', '--dirty=, changed')}"
    return "not in a git checkout"


def _git(*words: str) -> str:
    """Returns the output of git in the package's folder; empty if git fails."""
    command = ["git", "--no-optional-locks", "-C", str(_PACKAGE), *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=False
    ).stdout.strip()
