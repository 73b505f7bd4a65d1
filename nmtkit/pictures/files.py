"""The files that pictures are written to: which formats there are, and what may go wrong."""

import unicodedata
from pathlib import Path

from nmtkit.errors import NmtkitError

FORMATS = (".png", ".svg", ".pdf", ".html")


class PictureWarning(UserWarning):
    """A picture was written, but some of its letters cannot be shown as they should."""


def picture_format(path: str | Path) -> str:
    """Tells the format of a picture file from its suffix; to be called before the work whose result goes there.

    Raises:
        NmtkitError: The suffix names no known format, or the folder does not exist.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        given = f"'{path.suffix}'" if path.suffix else "no suffix"
        raise NmtkitError(f"{path}: {given} is not a picture format; let the name end in {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise NmtkitError(f"{path}: the folder {path.parent} does not exist; make it first or choose another")
    return suffix


def write_picture(content: bytes, path: str | Path) -> None:
    """Writes a finished picture.

    Raises:
        NmtkitError: The file cannot be written.
    """
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        raise NmtkitError(f"{path}: cannot be written ({error.strerror}); choose a place you may write to") from error


def printable(text: str) -> str:
    """Makes control characters and lone surrogates visible: neither XML, UTF-8 nor a terminal can carry them."""
    if text.isprintable():
        return text
    return "".join("�" if unicodedata.category(c) in ("Cc", "Cs") else c for c in text)
