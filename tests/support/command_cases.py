"""Tables of commands: each row is a line that somebody types, and what must come of it."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.commands import Command, Finished

Parts = list[str] | tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """A line, and what its command prints.

    Attributes:
        line: the arguments, quoted as in a shell; a name of `places` in `run_case` stands for a path.
        code: the exit code.
        out: parts of standard output, which may be wrapped there.
        err: parts of standard error.
        not_out: what standard output has nowhere.
        not_err: what standard error has nowhere.
    """

    line: str
    stdin: str | bytes = ""
    code: int = 0
    out: Parts = ()
    err: Parts = ()
    not_out: Parts = ()
    not_err: Parts = ()


def by_name(cases: Mapping[str, Any]) -> list[Any]:
    """For `parametrize`: each value, with its key as the id of the test."""
    return [pytest.param(case, id=name) for name, case in cases.items()]


def refusals(table: Mapping[str, Mapping[str, str]]) -> list[Any]:
    """For `parametrize` with a line and a message: a table of messages by command and further arguments."""
    rows = []
    for command, messages in table.items():
        for arguments, message in messages.items():
            line = f"{command} {arguments}".strip()
            rows.append(pytest.param(line, message, id=line))
    return rows


def words_of(line: str, places: Mapping[str, object] | None = None) -> list[object]:
    """The words of a line, as a shell divides it; names of places become the places."""
    places = places or {}
    return [places.get(word, word) for word in shlex.split(line)]


def run_case(command: Command, case: Case, places: Mapping[str, object] | None = None) -> Finished:
    """Runs the line of a case and compares what it printed."""
    done = command(*words_of(case.line, places), stdin=case.stdin)
    assert done.code == case.code, done
    for text, parts, absent in (
        (done.out, case.out, case.not_out),
        (done.err, case.err, case.not_err),
    ):
        unwrapped = " ".join(text.split())
        missing = [part for part in parts if part not in text and part not in unwrapped]
        unexpected = [part for part in absent if part in text or part in unwrapped]
        assert (missing, unexpected) == ([], []), done
    return done
