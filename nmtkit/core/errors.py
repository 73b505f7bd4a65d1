"""Every mistake a user can make ends in one of these: one message, with the place and the remedy, and exit code 2."""


class NmtkitError(Exception):
    """A fault that the user can mend. Its text names the place and the remedy; it is shown without a traceback."""

    exit_code = 2


class RecipeError(NmtkitError):
    """A recipe, or an override of one, is not valid.

    Args:
        faults: each in a line of its own.
        more: how many there are beside them.
    """

    MAX_FAULTS = 20
    """How many faults a message shows in full."""

    def __init__(self, *faults: str, more: int = 0) -> None:
        self.faults = faults[: self.MAX_FAULTS]
        self.more = more + len(faults) - len(self.faults)
        rest = [f"and {self.more:,} more"] if self.more else []
        super().__init__("\n".join([*self.faults, *rest]))


class DataError(NmtkitError):
    """An input file is missing, damaged or does not fit the others."""


class CheckpointError(NmtkitError):
    """A run folder or a checkpoint is missing, incomplete or of another shape."""


class TrainingError(NmtkitError):
    """Training cannot go on: the loss is not finite, or nothing is left to train on."""


def shorten(text: str, most: int = 100) -> str:
    """The text, or its beginning where it is long: a message quotes what was given, and that may be anything."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
