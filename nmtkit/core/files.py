"""Files that are written whole or not at all, and checksums by which a file shows that it is as it was written."""

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
"""The key of the checksum, beside the values that it covers."""


def bundled_path(folder: str, name: str = "") -> Path:
    """A file or folder that comes with nmtkit: inside the package once installed, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / folder / name
    return inside if os.path.exists(inside) else package.parent / folder / name  # false where no name is so long


def user_cache() -> Path:
    """`nmtkit` in $XDG_CACHE_HOME, else in ~/.cache; without a home directory, among the temporary files."""
    bases = os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")
    base = next(filter(os.path.isabs, bases), f"{tempfile.gettempdir()}/cache-{os.getuid()}")
    return Path(base, "nmtkit")


@contextmanager
def write_errors(path: str | Path) -> Iterator[None]:
    """Turns an `OSError` in this block into an NmtkitError that names the path; that of a full disk names none."""
    try:
        yield
    except OSError as fault:
        raise NmtkitError(f"{path}: cannot write it: {fault.strerror or fault}") from fault


def lock_alone(file: int, place: Path) -> None:
    """Keeps other processes, whose bytes would be mixed in, from a place until its open file or folder is closed."""
    with suppress(OSError, ImportError):  # not every file system has locks
        import fcntl  # there is none on Windows

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"{place}: another process writes there; wait for its end, or stop it") from None


@contextmanager
def atomic_path(path: Path, suffix: str = ".new", durable: bool = False) -> Iterator[Path]:
    """A path beside a file; what the block writes there replaces the file at its end, at once or not at all.

    The folder is made. `suffix` ends its name till then: one for each process where several may write the file at once.
    If it is `durable`, it has reached the disk at the end, so that not even a power cut takes it back.

    Raises:
        NmtkitError: a folder, a device or a pipe is there, which would be lost.
        OSError: it cannot be written; see `write_errors`.
    """
    if path.exists() and not path.is_file():
        what = "a folder" if path.is_dir() else "a device or a pipe"
        raise NmtkitError(f"{path}: cannot write it: it is {what}; name a file")
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
    """`atomic_path` for a file that a user names, who may have another file of that name and ".new" beside it."""
    return atomic_path(path, f".{os.getpid()}.new")


@contextmanager
def new_folder(path: Path, remedy: str) -> Iterator[Path]:
    """A folder beside a path; the end of the block moves it there, whole or not at all.

    At the path there may be only an empty folder; `remedy` says how the user names another one.
    """
    if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
        raise NmtkitError(f"{path}: it exists already; {remedy}")
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
    """The SHA-256 checksum of a file in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def bytes_checksum(data: bytes) -> str:
    """The checksum of a small file; it detects damage, not forgery."""
    return hashlib.sha256(data).hexdigest()[:32]


def with_checksum(facts: Mapping[str, Any]) -> dict[str, Any]:
    """JSON values together with their checksum."""
    return {**facts, CHECKSUM_KEY: bytes_checksum(json.dumps(facts, sort_keys=True).encode())}


def verify_checksum(facts: Any) -> dict[str, Any]:
    """The values without their checksum; a ValueError if it is missing or another."""
    if not isinstance(facts, dict) or CHECKSUM_KEY not in facts:
        raise ValueError("it has no checksum")
    plain = {key: value for key, value in facts.items() if key != CHECKSUM_KEY}
    if facts != with_checksum(plain):
        raise ValueError("it is not as it was written: its checksum is another")
    return plain
