"""Reports on data and training that several commands show."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nmtkit.cli import terminal
from nmtkit.cli.terminal.reporting import tell
from nmtkit.data.text.checking import DataReport
from nmtkit.datacheck import report as diagnosis_report
from nmtkit.datacheck.findings import Diagnosis

if TYPE_CHECKING:  # this module imports torch, which `nmtkit check` does not need for text files
    from nmtkit.experiment.presets.fine_tuning import TestChange


def show_diagnosis(diagnosis: Diagnosis, stderr: bool = True) -> None:
    """Prints a table of the findings, worst first, and the verdict; if there are no findings, only the verdict."""
    if rows := diagnosis_report.rows(diagnosis):
        columns = ["severity", "split", "fault", "count", "share", "first place"]
        terminal.table("findings", columns, rows, stderr)
    terminal.say(diagnosis_report.verdict(diagnosis), stderr)


def show_report(report: DataReport) -> None:
    """Prints the preprocessing report on stderr."""
    tell(report.one_line_summary())
    faults = [
        (name, kind, fault) for name, kind, fault in report.faults() if fault.action != "kept"
    ]
    rows = [
        [name, kind, f"{fault.count:,}", str(fault.first_line), fault.action]
        for name, kind, fault in faults
    ]
    if rows:
        terminal.table(
            "dropped or truncated",
            ["split", "fault", "pairs", "first line", "action"],
            rows,
            stderr=True,
        )


def show_changes(changes: Sequence["TestChange"], mixed: bool) -> None:
    """Prints the scores before and after fine-tuning, and warns about forgetting.

    `mixed` says whether general text was mixed into the training text.
    """
    if not changes:
        return
    rows = [
        [one.text, f"{one.before:.2f}", f"{one.after:.2f}", f"{one.after - one.before:+.2f}"]
        for one in changes
    ]
    terminal.say("")
    terminal.table(
        f"{changes[0].metric} before and after fine-tuning",
        ["test set", "before", "after", "change"],
        rows,
    )
    if not any(one.of_general_text for one in changes):
        tell(
            "forgetting was not measured, because there is no general test set; give one with "
            "--general-test SRC TGT (init_from.test in a recipe)"
        )
    for one in changes:
        if one.before - one.after <= 1:  # small enough to be due to chance or a different style
            continue
        fault, remedy = "fine-tuning made the model worse", "Lower training.lr, or add more text"
        if one.of_general_text:
            more = (
                "more general text (data.train.weights)"
                if mixed
                else "general text (--general SRC TGT)"
            )
            fault, remedy = (
                "catastrophic forgetting",
                f"Mix in {more}, lower training.lr, or train for fewer updates",
            )
        tell(
            f"warning: {fault}: {one.metric} on {one.text} fell from {one.before:.2f} to {one.after:.2f}. {remedy}"
        )
