"""One file over HTTP, whole and checked: resumed where it was cut, tried again where that helps. The door of requests.

What has come so far lies in NAME.part, and in NAME.part.json which file it is a part of. A server that sends the rest
of another version of the file, or all of it again, is noticed; so is one that sends less or more than it said.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import requests
from urllib3 import Retry
from urllib3.exceptions import HTTPError, InvalidHeader, NewConnectionError

from nmtkit.core.errors import DataError
from nmtkit.core.settings import parse_json
from nmtkit.core.version import __version__

TIMEOUT = (20.0, 60.0)
"""Seconds to wait for a connection, and for the next bytes."""
REDIRECTS = 10
"""The most addresses that lead from one to the next."""
REDIRECTING = (301, 302, 303, 307, 308)
WORTH_ANOTHER_TRY = (408, 425, 429, 500, 502, 503, 504)
ATTEMPTS = 6
"""How often in a row it is tried without one byte more."""
LONGEST_WAIT = 120.0
"""The most seconds between two attempts; a server that asks for more is not waited for."""
CHUNK = 1 << 18


@dataclass(frozen=True)
class RemoteVersion:
    """What a server says of a file, by which a part is known to belong to it."""

    url: str
    etag: str = ""
    """The server's mark of this version; one that promises only likeness does not count."""
    modified: str = ""
    """When it was changed, in the server's words."""
    total: int | None = None
    """Its bytes, if the server says."""

    @property
    def condition(self) -> str:
        """What `If-Range` may say of it; empty if nothing."""
        return self.etag or self.modified


class PartialFile:
    """What has come of a file so far, on disk, and which version of which file it is a part of."""

    def __init__(self, target: Path, url: str) -> None:
        self.target = target
        self.path = target.with_name(target.name + ".part")
        self._facts = target.with_name(target.name + ".part.json")
        self.version = RemoteVersion(url)
        with suppress(OSError, DataError, TypeError):
            known = RemoteVersion(**parse_json(self._facts.read_bytes(), str(self._facts)))
            if known.url == url:
                self.version = known
                return
        self.forget()

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.path.stat().st_size if self.path.exists() else 0

    def begin(self, version: RemoteVersion) -> None:
        """Starts afresh with a version of the file."""
        self.forget()
        self.version = version
        self._facts.write_text(json.dumps(asdict(version)), encoding="utf-8")

    def forget(self) -> None:
        """Deletes what is there."""
        self.path.unlink(missing_ok=True)
        self._facts.unlink(missing_ok=True)
        self.version = RemoteVersion(self.version.url)

    def finish(self) -> None:
        """Gives the whole file its name."""
        os.replace(self.path, self.target)
        self._facts.unlink(missing_ok=True)


def sha256_of(path: Path) -> str:
    """The SHA-256 sum of a file, as hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class RetryableError(Exception):
    """An attempt failed in a way that another may not; `wait`: the seconds that the server asks for, if it does."""

    def __init__(self, why: str, wait: float | None = None) -> None:
        super().__init__(why)
        self.wait = wait


class UnreachableError(RetryableError):
    """The server cannot be reached at all: only worth another attempt if it could be a moment ago."""


@dataclass(frozen=True)
class DownloadPolicy:
    """Whom a download tells how it goes, and how patient it is."""

    notify: Callable[[str], None]
    """Takes a sentence for the user."""
    progress: Callable[[int, int | None], None]
    """Takes how many bytes are there, and how many there will be where that is known."""
    sleep: Callable[[float], None] = time.sleep
    timeout: tuple[float, float] = TIMEOUT
    """Seconds to wait for a connection, and for the next bytes."""


def download(url: str, target: Path, habits: DownloadPolicy, sha256: str = "", size: int | None = None) -> str:
    """Downloads a file; what an earlier attempt left of it is made use of.

    Args:
        url: http or https; it may not lead from https to http.
        target: where to; its folder exists.
        habits: how patient to be, and whom to tell.
        sha256: the sum it must have; empty: any.
        size: its bytes, if known; a server that sends more is not listened to.

    Returns:
        Its SHA-256 sum.

    Raises:
        DataError: it cannot be had, is another file than was expected, or cannot be written.
    """
    with requests.Session() as session, _clear_messages(url, target):
        part = PartialFile(target, url)
        failures, found, furthest = 0, part.size, part.size
        while True:
            try:
                digest = _attempt(session, url, part, habits, sha256, size)
                break
            except RetryableError as fault:
                if isinstance(fault, UnreachableError) and furthest == found:
                    raise DataError(str(fault)) from fault
                failures = 0 if part.size > furthest else failures + 1
                furthest = max(furthest, part.size)
                wait = 2.0**failures if fault.wait is None else fault.wait
                if failures >= ATTEMPTS or wait > LONGEST_WAIT:
                    kept = f"; {part.size:,} bytes are kept, to go on from" if part.size else ""
                    asked = f", and asks to wait {wait:.0f} seconds" if wait > LONGEST_WAIT else ""
                    raise DataError(f"{url}: {fault}{asked}; try again later{kept}") from fault
                habits.notify(f"{url}: {fault}; next attempt in {wait:.0f} s, from byte {part.size:,}")
                habits.sleep(wait)
        if sha256 and digest != sha256:
            part.forget()
            raise DataError(
                f"{url}: this is not the file that was expected: its SHA-256 sum is {digest}, not {sha256}. It was "
                "deleted. Either it was damaged on the way (try again), or the publisher has replaced it"
            )
        part.finish()
    return digest


def _attempt(
    session: requests.Session, url: str, part: PartialFile, habits: DownloadPolicy, sha256: str, size: int | None
) -> str:
    """Requests the missing bytes and appends them; returns the checksum of the whole file."""
    # A sum vouches for the whole, even where the server has no mark of its version.
    start = part.size if part.version.condition or sha256 else 0
    with _answer(session, url, start, part, habits) as response:
        come = response.headers.get("Content-Range", "")  # "bytes FIRST-LAST/TOTAL", or "bytes */TOTAL"
        if response.status_code == 416:  # nothing behind what is there: it is whole, or of another file
            if come.rpartition("/")[2] != str(part.size):
                part.forget()
                raise RetryableError("what was there is no part of the file; all over again")
            return sha256_of(part.path)
        version = _version(response, url)
        if response.status_code != 206:
            start = 0
            part.begin(version)
        elif not come.startswith(f"bytes {start}-") or not _is_same(part.version, version):
            part.forget()
            raise RetryableError("the file has changed; all over again")
        if size is not None and version.total not in (None, size):
            raise _of_other_size(url, f"{version.total:,}", size, part)
        expected = version.total or size
        missing, free = (expected or start) - start, shutil.disk_usage(part.path.parent).free
        if missing > free:
            raise DataError(
                f"{part.path.parent}: {missing:,} bytes are to be downloaded, and {free:,} are free; make room"
            )
        habits.progress(start, expected)
        with open(part.path, "a+b") as file:
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256")  # of what is there; what comes is added
            there = start
            for block in _blocks(response):
                file.write(block)
                digest.update(block)
                there += len(block)
                if size is not None and there > size:
                    raise _of_other_size(url, "more", size, part)
                habits.progress(there, expected)
    if expected is not None and there < expected:
        raise RetryableError(f"the connection ended after {there:,} of {expected:,} bytes")
    return digest.hexdigest()


def _answer(
    session: requests.Session, url: str, start: int, part: PartialFile, habits: DownloadPolicy
) -> requests.Response:
    """The answer to the request for everything from byte `start` on, behind all redirections."""
    # Some publishers refuse programs that do not say who they are.
    headers = {"Accept-Encoding": "identity", "User-Agent": f"nmtkit/{__version__}"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if part.version.condition:
            headers["If-Range"] = part.version.condition
    here = url
    for _ in range(REDIRECTS + 1):
        try:
            response = session.get(here, headers=headers, stream=True, timeout=habits.timeout, allow_redirects=False)
        except requests.RequestException as fault:
            raise _meaning(fault, here, part) from fault
        if response.status_code in REDIRECTING and "Location" in response.headers:
            there = urljoin(here, response.headers["Location"])
            response.close()
            scheme = urlsplit(there).scheme
            if scheme not in ("http", "https") or (scheme == "http" and here.startswith("https:")):
                raise DataError(f"{here} leads to {there}, which is not as safe; refused")
            here = there
            continue
        if response.status_code in WORTH_ANOTHER_TRY:
            response.close()
            raise RetryableError(_status(response), _asked_to_wait(response))
        if response.status_code not in (200, 206, 416) or (response.status_code != 200 and not start):
            response.close()
            raise DataError(
                f"{here}: {_status(response)}; the address may have moved: see the corpus's homepage, and name the new "
                "one in a catalogue of your own (--catalogue)"
            )
        return response
    raise DataError(f"{url}: leads from one address to the next more than {REDIRECTS} times; refused")


def _blocks(response: requests.Response) -> Iterator[bytes]:
    """The bytes as they come, not unpacked."""
    try:
        yield from response.raw.stream(CHUNK, decode_content=False)
    except (HTTPError, OSError) as fault:
        raise RetryableError(f"the connection broke ({_innermost(fault)})") from fault


def _version(response: requests.Response, url: str) -> RemoteVersion:
    headers = response.headers
    etag = headers.get("ETag", "")
    given = headers.get("Content-Range", "").rpartition("/")[2] if response.status_code == 206 else ""
    length = given or headers.get("Content-Length", "")
    return RemoteVersion(
        url,
        "" if etag.startswith("W/") else etag,
        headers.get("Last-Modified", ""),
        int(length) if length.isdecimal() else None,
    )


def _of_other_size(url: str, found: str, size: int, part: PartialFile) -> DataError:
    part.forget()
    return DataError(
        f"{url}: this is not the file that was expected: it has {found} bytes, not {size:,}; what came was deleted"
    )


def _is_same(one: RemoteVersion, other: RemoteVersion) -> bool:
    """Whether nothing speaks against two answers being of the same version; servers may leave out what they said."""
    return all(not a or not b or a == b for a, b in zip(astuple(one), astuple(other), strict=True))


def _status(response: requests.Response) -> str:
    return f"the server answers {response.status_code} {response.reason or ''}".rstrip()


def _asked_to_wait(response: requests.Response) -> float | None:
    """The seconds of `Retry-After`, which may also be a date."""
    with suppress(InvalidHeader):
        return Retry().parse_retry_after(response.headers.get("Retry-After", ""))
    return None


def _meaning(fault: requests.RequestException, url: str, part: PartialFile) -> Exception:
    """What to do about a request that got no answer."""
    host, why = urlsplit(url).hostname, _innermost(fault)
    if isinstance(fault, requests.exceptions.ProxyError):
        return DataError(f"the proxy on the way to {host} does not answer ({why}); see HTTPS_PROXY and HTTP_PROXY")
    if isinstance(fault, requests.exceptions.SSLError):
        return DataError(f"{host} cannot prove that it is {host} ({why}); refused")
    if isinstance(fault, requests.exceptions.Timeout):
        return RetryableError("no answer in time")
    if isinstance(fault, requests.exceptions.ConnectionError):
        if any(isinstance(one, NewConnectionError) for one in _causes(fault)):
            return UnreachableError(
                f"cannot reach {host} ({why}): is this machine online? Behind a proxy, set HTTPS_PROXY; or download "
                f"{part.version.url} elsewhere and put it at {part.target}"
            )
        return RetryableError(f"the connection broke ({why})")
    return DataError(f"{url}: cannot be downloaded: {fault}")


def _causes(fault: BaseException) -> Iterator[BaseException]:
    """The error and all that it was made from; urllib3 keeps them in several places."""
    waiting, seen = [fault], set[int]()
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        inner = [one.__cause__, one.__context__, getattr(one, "reason", None), *one.args]
        waiting += [other for other in inner if isinstance(other, BaseException)]


def _innermost(fault: BaseException) -> str:
    """The plainest words for an error: those of the operating system if there are any."""
    causes = list(_causes(fault))
    for one in causes:
        if isinstance(one, OSError) and one.strerror:
            return one.strerror
    return str(causes[-1]) or type(causes[-1]).__name__


@contextmanager
def _clear_messages(url: str, target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as fault:
        if isinstance(fault, requests.RequestException):
            raise DataError(f"{url}: cannot be downloaded: {_innermost(fault)}") from fault
        raise DataError(f"{fault.filename or target}: cannot write it: {fault.strerror or fault}") from fault
