"""Atomic writes, and checksums that detect damaged files."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from nmtkit.core.errors import DataError, NmtkitError

CHECKSUM_KEY = "sum"
"""Key of the checksum, which is stored next to the values that it covers."""


def bundled_path(folder: str, name: str = "") -> Path:
    """Returns the path of a file or folder in the installed package, or next to the package in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / folder / name
    return (
        inside if os.path.exists(inside) else package.parent / folder / name
    )  # `exists` is False if the name is too long for a file name


def user_cache() -> Path:
    """Returns the folder `nmtkit` in $XDG_CACHE_HOME or ~/.cache; without a home folder, in the temporary folder."""
    bases = os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")
    base = next(filter(os.path.isabs, bases), f"{tempfile.gettempdir()}/cache-{os.getuid()}")
    return Path(base, "nmtkit")


@contextmanager
def write_errors(path: str | Path) -> Iterator[None]:
    """Turns an `OSError` into an NmtkitError that names the path; for a full disk, the `OSError` does not name it."""
    try:
        yield
    except OSError as fault:
        raise NmtkitError(f"{path}: cannot be written: {fault.strerror or fault}") from fault


def lock_alone(file: int, place: Path) -> None:
    """Locks a file or folder against other processes until it is closed."""
    with suppress(OSError, ImportError):  # not every file system has locks
        import fcntl  # does not exist on Windows

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(
                f"{place}: another process is writing here; wait until it ends, or stop it"
            ) from None


@contextmanager
def atomic_path(path: Path, suffix: str = ".new", durable: bool = False) -> Iterator[Path]:
    """Yields a temporary path whose file atomically replaces `path` when the block ends.

    The folder is created if needed. The temporary name ends in `suffix`; processes that may write
    the same file at once need different suffixes. With `durable`, the file is flushed to disk, so
    that it survives a power failure.

    Raises:
        NmtkitError: the path is a folder, a device or a pipe, which would be replaced.
        OSError: the file cannot be written; see `write_errors`.
    """
    if path.exists() and not path.is_file():
        what = "a folder" if path.is_dir() else "a device or a pipe"
        raise NmtkitError(f"{path}: cannot be written, because it is {what}; use a file name")
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + suffix)
    try:
        beside.unlink(missing_ok=True)
        yield beside
        if durable:
            _force_to_disk(beside)
        os.replace(beside, path)
        if durable:
            _force_to_disk(path.parent)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise


def atomic_user_path(path: Path) -> AbstractContextManager[Path]:
    """Works like `atomic_path`, but leaves an existing NAME.new alone; for files that the user has specified."""
    return atomic_path(path, f".{os.getpid()}.new")


@contextmanager
def new_folder(path: Path, remedy: str) -> Iterator[Path]:
    """Yields a temporary folder, which is moved to `path` when the block ends without an error.

    The path must either not exist or be an empty folder; `remedy` explains how to specify a different path.
    """
    if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
        raise NmtkitError(f"{path} already exists; {remedy}")
    beside = path.with_name(f".{path.name[:100]}.{os.getpid()}.new")
    with write_errors(path):
        beside.mkdir(parents=True)
    try:
        yield beside
        with write_errors(path):
            beside.replace(path)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def atomic_write_text(path: Path, text: str, durable: bool = False) -> None:
    """Writes a text file through `atomic_path`."""
    with write_errors(path), atomic_path(path, durable=durable) as beside:
        beside.write_text(text, encoding="utf-8")


def write_json(path: Path, data: Any, durable: bool = False) -> None:
    """Writes JSON through `atomic_write_text`."""
    atomic_write_text(path, json.dumps(data, ensure_ascii=False, indent=1) + "\n", durable)


def _force_to_disk(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 checksum of a file in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def bytes_checksum(data: bytes) -> str:
    """Returns the checksum of a small file's content; it detects damage but not forgery."""
    return hashlib.sha256(data).hexdigest()[:32]


def with_checksum(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the JSON values with their checksum."""
    return {**facts, CHECKSUM_KEY: bytes_checksum(json.dumps(facts, sort_keys=True).encode())}


def verify_checksum(facts: Any) -> dict[str, Any]:
    """Returns the values without their checksum; raises ValueError if it is missing or wrong."""
    if not isinstance(facts, dict) or CHECKSUM_KEY not in facts:
        raise ValueError("the checksum is missing")
    plain = {key: value for key, value in facts.items() if key != CHECKSUM_KEY}
    if facts != with_checksum(plain):
        raise ValueError("checksum mismatch: the content has changed since it was written")
    return plain
