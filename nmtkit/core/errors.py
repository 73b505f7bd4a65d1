"""Errors that the user can fix: each has a message with place and remedy, and exit code 2."""


class NmtkitError(Exception):
    """An error that the user can fix. Its message names the place and the remedy; no traceback is shown."""

    exit_code = 2


class RecipeError(NmtkitError):
    """A recipe or an override is not valid.

    Args:
        faults: the errors, one per line.
        more: number of further errors that are not listed.
    """

    MAX_FAULTS = 20
    """Number of errors that a message shows in full."""

    def __init__(self, *faults: str, more: int = 0) -> None:
        self.faults = faults[: self.MAX_FAULTS]
        self.more = more + len(faults) - len(self.faults)
        rest = [f"and {self.more:,} more"] if self.more else []
        super().__init__("\n".join([*self.faults, *rest]))


class DataError(NmtkitError):
    """An input file is missing, damaged or inconsistent with other files."""


class CheckpointError(NmtkitError):
    """A run folder or a checkpoint is missing or incomplete, or its weights have different shapes."""


class TrainingError(NmtkitError):
    """Training cannot continue: the loss is not finite, or no data is left to train on."""


def shorten(text: str, most: int = 100) -> str:
    """Truncates long text, because a message may quote arbitrary user input."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
