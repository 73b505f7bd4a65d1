"""Every mistake a user can make ends in one of these: one message, with the place and the remedy, and exit code 2."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class NmtkitError(Exception):
    """A fault that the user can mend. Its text names the place and the remedy; it is shown without a traceback."""

    exit_code = 2


class RecipeError(NmtkitError):
    """A recipe, or an override of one, is not valid.

    Args:
        faults: each in a line of its own.
        more: how many there are beside them.
    """

    MOST = 20
    """How many faults are told in full."""

    def __init__(self, *faults: str, more: int = 0) -> None:
        self.faults = faults[: self.MOST]
        self.more = more + len(faults) - len(self.faults)
        rest = [f"and {self.more:,} more"] if self.more else []
        super().__init__("\n".join([*self.faults, *rest]))


class DataError(NmtkitError):
    """An input file is missing, damaged or does not fit the others."""


class CheckpointError(NmtkitError):
    """A run folder or a checkpoint is missing, incomplete or of another shape."""


class TrainingError(NmtkitError):
    """Training cannot go on: the loss is not finite, or nothing is left to train on."""


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Gives a fault of the system in this block the name of what is written in it: that of a full disk has none.

    Raises:
        NmtkitError: there was such a fault.
    """
    try:
        yield
    except OSError as fault:
        raise NmtkitError(f"{path}: cannot write it: {fault.strerror or fault}") from fault


def require_replaceable(path: Path, kind: type[NmtkitError] = NmtkitError) -> None:
    """Makes sure that a file that is made beside its place may be moved there: it is free, or holds a file.

    Args:
        path: the place.
        kind: of the error.

    Raises:
        NmtkitError: a folder, a device or a pipe is there, which would be lost.
    """
    if path.exists() and not path.is_file():
        what = "a folder" if path.is_dir() else "a device or a pipe"
        raise kind(f"{path}: cannot write it: it is {what}; name a file")
