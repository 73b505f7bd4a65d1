"""The parts that are commands of others: `nmtkit doctor`, and the tests that need a CUDA device."""

import sys
from typing import Any

import pytest

from nmtkit.cli import main

from .results import Part

SHOWN = 10
"""Failed tests of a part that are listed one by one."""


def run_doctor(part: Part) -> None:
    sys.argv = ["nmtkit", "doctor"]
    main()


class Outcomes:
    """A plugin of pytest that adds a row for each of the first tests that fail, and one for all together."""

    def __init__(self, part: Part) -> None:
        self.part, self.shown = part, 0

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Named at once: the part may be stopped before its end."""
        if report.failed and self.shown < SHOWN:
            self.shown += 1
            faults = [
                line[1:].strip()
                for line in report.longreprtext.splitlines()
                if line.startswith("E ")
            ]
            self.part.add(report.nodeid.rpartition("::")[2], False, (faults or ["failed"])[0][:100])

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        reports = terminalreporter.stats
        passed, skipped = (len(reports.get(outcome, ())) for outcome in ("passed", "skipped"))
        failed = [*reports.get("failed", ()), *reports.get("error", ())]
        figure = f"{passed} passed, {len(failed)} failed, {skipped} skipped"
        reasons = {
            report.longrepr[2].removeprefix("Skipped: ") for report in reports.get("skipped", ())
        }
        figure += f" ({', '.join(sorted(reasons))})" if reasons else ""
        holds = not failed if passed or failed else None
        self.part.add("tests", holds, figure, passed=passed, failed=len(failed))


def run_tests(part: Part, arguments: list[str]) -> None:
    if code := pytest.main(
        ["-m", "cuda", "-p", "no:cacheprovider", *arguments], plugins=[Outcomes(part)]
    ):
        sys.exit(code)
