"""Resumable HTTP downloads with retries and checksums; the only module that uses requests.

An incomplete download is NAME.part; NAME.part.version identifies its version. The code detects a
server that sends the rest of another version, the whole file again, or more or fewer bytes than
announced.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import requests
from urllib3 import Retry
from urllib3.exceptions import HTTPError, InvalidHeader, NewConnectionError

from nmtkit.core.errors import DataError
from nmtkit.core.files import file_sha256, lock_alone, write_errors
from nmtkit.core.version import __version__

TIMEOUT = (20.0, 60.0)
MAX_REDIRECTS = 10
RETRY_STATUSES = (408, 425, 429, 500, 502, 503, 504)
MAX_ATTEMPTS = 6
"""Number of consecutive failed attempts without progress after which the download is given up."""
MAX_WAIT = 120.0
"""Maximum pause in seconds between attempts; if a server asks for a longer one, the download is given up."""
CHUNK_BYTES = 1 << 18


class PartialFile:
    """The bytes downloaded so far and their version."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.path = target.with_name(target.name + ".part")
        self._version = target.with_name(target.name + ".part.version")
        if not self._version.is_file():
            self.delete()

    @property
    def size(self) -> int:
        """Number of bytes on disk."""
        return self.path.stat().st_size if self.path.exists() else 0

    @property
    def version(self) -> str:
        """The server's version identifier; empty if it sends none."""
        return self._version.read_text("ascii", "ignore").strip() if self._version.exists() else ""

    def start(self, version: str) -> None:
        """Restarts at the first byte of a version."""
        self.delete()
        self._version.write_text(version, encoding="utf-8")

    def delete(self) -> None:
        """Deletes the file and its version."""
        self.path.unlink(missing_ok=True)
        self._version.unlink(missing_ok=True)

    def finish(self) -> None:
        """Moves the complete file to its target."""
        os.replace(self.path, self.target)
        self._version.unlink()


class RetryableError(Exception):
    """A failure after which another attempt may succeed.

    `wait` is the delay in seconds that the server asks for. If `connected` is False, another
    attempt is made only if the download has already received data.
    """

    def __init__(self, why: str, wait: float | None = None, connected: bool = True) -> None:
        super().__init__(why)
        self.wait = wait
        self.connected = connected


@dataclass(frozen=True)
class FetchContext:
    """The download cache, callbacks and time limits of a fetch."""

    folder: Path
    """The download cache, shared by all corpora."""
    notify: Callable[[str], None]
    """Receives messages for the user."""
    progress: Callable[[int, int | None], None]
    """Receives the number of bytes of the current file so far, and its size if known."""
    count: Callable[[int], None] = lambda pairs: None
    """Receives the number of pairs written so far."""
    sleep: Callable[[float], None] = time.sleep
    timeout: tuple[float, float] = TIMEOUT
    """Timeouts in seconds for the connection and the next bytes."""


def download(
    url: str, target: Path, context: FetchContext, sha256: str = "", size: int | None = None
) -> str:
    """Downloads a file into an existing folder, resuming if possible; returns its SHA-256 checksum.

    `sha256` and `size` (in bytes) are the expected values; an empty checksum accepts any file.
    """
    with requests.Session() as session, write_errors(target), ExitStack() as stack:
        with suppress(OSError):  # Windows cannot open folders
            folder = os.open(target.parent, os.O_RDONLY)
            stack.callback(os.close, folder)
            lock_alone(folder, target.parent)
        part = PartialFile(target)
        failures, initial, furthest = 0, part.size, part.size
        while True:
            try:
                digest = _download_rest(session, url, part, context, sha256, size)
                break
            except RetryableError as fault:
                if not fault.connected and furthest == initial:
                    raise DataError(str(fault)) from fault
                failures = 0 if part.size > furthest else failures + 1
                furthest = max(furthest, part.size)
                wait = 2.0**failures if fault.wait is None else fault.wait
                if failures >= MAX_ATTEMPTS or wait > MAX_WAIT:
                    resumable = (
                        f"; the download will resume after the {part.size:,} bytes received so far"
                        if part.size
                        else ""
                    )
                    too_long = (
                        f", and the server asks for a pause of {wait:.0f} seconds"
                        if wait > MAX_WAIT
                        else ""
                    )
                    raise DataError(
                        f"{url}: {fault}{too_long}; try again later{resumable}"
                    ) from fault
                context.notify(
                    f"{url}: {fault}; next attempt in {wait:.0f} s, from byte {part.size:,}"
                )
                context.sleep(wait)
        if sha256 and digest != sha256:
            part.delete()
            raise DataError(
                f"{url}: the downloaded file has the SHA-256 checksum {digest} instead of {sha256} "
                "and was deleted. Either the download was damaged (try again), or the publisher "
                "has replaced the file"
            )
        part.finish()
    return digest


def _download_rest(
    session: requests.Session,
    url: str,
    part: PartialFile,
    context: FetchContext,
    sha256: str,
    size: int | None,
) -> str:
    """Downloads and appends the missing bytes; returns the checksum of the whole file."""
    # A checksum protects the whole file even if the server does not identify versions.
    start = part.size if part.version or sha256 else 0
    with _request(session, url, start, part, context) as response:
        # "bytes FIRST-LAST/TOTAL", or "bytes */TOTAL"
        content_range = response.headers.get("Content-Range", "")
        # no bytes after `start`: the part is complete, or belongs to a different file
        if response.status_code == 416:
            if content_range.rpartition("/")[2] != str(part.size):
                part.delete()
                raise RetryableError(
                    "the partial download belongs to a different file; starting again"
                )
            return file_sha256(part.path)
        version = _version(response)
        if response.status_code != 206:
            start = 0
            part.start(version)
        elif not content_range.startswith(f"bytes {start}-") or part.version not in (
            "",
            version or part.version,
        ):
            part.delete()
            raise RetryableError("the file has changed; starting again")
        length = content_range.rpartition("/")[2] or response.headers.get("Content-Length", "")
        expected = int(length) if length.isdecimal() else size
        if size is not None and expected != size:
            raise _wrong_size(url, f"{expected:,}", size, part)
        context.progress(start, expected)
        with open(part.path, "a+b") as file:
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256")
            done = start
            for block in _body(response):
                file.write(block)
                digest.update(block)
                done += len(block)
                if size is not None and done > size:
                    raise _wrong_size(url, "more", size, part)
                context.progress(done, expected)
    if expected is not None and done < expected:
        raise RetryableError(f"the connection was closed after {done:,} of {expected:,} bytes")
    return digest.hexdigest()


def _request(
    session: requests.Session, url: str, start: int, part: PartialFile, context: FetchContext
) -> requests.Response:
    """Requests everything from byte `start` on."""
    # Some publishers refuse clients that do not identify themselves.
    headers = {"Accept-Encoding": "identity", "User-Agent": f"nmtkit/{__version__}"}
    if start:
        headers["Range"] = f"bytes={start}-"
        headers |= {"If-Range": part.version} if part.version else {}
    origin = url
    # followed here, because requests would ignore NO_PROXY and accept redirects from https to http
    for _ in range(MAX_REDIRECTS + 1):
        try:
            response = session.get(
                url, headers=headers, stream=True, timeout=context.timeout, allow_redirects=False
            )
        except requests.RequestException as fault:
            raise _request_error(fault, url, origin, part.target) from fault
        if not response.is_redirect:
            break
        response.close()
        before, url = url, urljoin(url, response.headers["Location"])
        scheme = urlsplit(url).scheme
        if scheme not in ("http", "https") or (scheme == "http" and before.startswith("https:")):
            raise DataError(
                f"{before} redirects to {url}, which is less secure; the redirect was rejected"
            )
    else:
        raise DataError(
            f"{origin}: too many redirects (more than {MAX_REDIRECTS}); the download was aborted"
        )
    if response.status_code == 200 or (start and response.status_code in (206, 416)):
        return response
    response.close()
    status = f"the server answered {response.status_code} {response.reason or ''}".rstrip()
    if response.status_code in RETRY_STATUSES:
        wait = None
        with suppress(InvalidHeader):  # seconds or a date
            wait = Retry().parse_retry_after(response.headers.get("Retry-After", ""))
        raise RetryableError(status, wait)
    raise DataError(
        f"{url}: {status}; the address may have changed; look for the new one on the corpus's "
        "homepage, and put it into your own catalogue (--catalogue)"
    )


def _body(response: requests.Response) -> Iterator[bytes]:
    try:
        yield from response.raw.stream(CHUNK_BYTES, decode_content=False)
    except (HTTPError, OSError) as fault:
        raise RetryableError(f"the connection was lost ({_root_cause(fault)})") from fault


def _version(response: requests.Response) -> str:
    """Returns the ETag, or the modification date if the ETag is weak and does not guarantee equal bytes."""
    etag = response.headers.get("ETag", "W/")
    return response.headers.get("Last-Modified", "") if etag.startswith("W/") else etag


def _wrong_size(url: str, actual: str, size: int, part: PartialFile) -> DataError:
    part.delete()
    return DataError(
        f"{url}: expected {size:,} bytes, but the file has {actual}; the download was deleted"
    )


def _request_error(
    fault: requests.RequestException, url: str, origin: str, target: Path
) -> Exception:
    host, why = urlsplit(url).hostname, _root_cause(fault)
    if isinstance(fault, (requests.exceptions.ProxyError, requests.exceptions.SSLError)):
        return DataError(
            f"{url}: cannot download the file ({why}); check the proxy in HTTPS_PROXY and "
            "HTTP_PROXY"
        )
    if any(isinstance(cause, NewConnectionError) for cause in _causes(fault)):
        return RetryableError(
            f"cannot reach {host} ({why}); check the network, and set HTTPS_PROXY if there is a "
            f"proxy, or download {origin} elsewhere and save it as {target}",
            connected=False,
        )
    if isinstance(fault, (requests.exceptions.Timeout, requests.exceptions.ConnectionError)):
        return RetryableError(f"the connection was lost ({why})")
    return DataError(f"{url}: cannot download the file ({fault})")


def _causes(fault: BaseException) -> Iterator[BaseException]:
    """Yields the error and its causes."""
    cause: BaseException | None = fault
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _root_cause(fault: BaseException) -> str:
    """Returns the operating system's description of an error, if any."""
    causes = list(_causes(fault))
    words = (cause.strerror for cause in causes if isinstance(cause, OSError) and cause.strerror)
    return next(words, str(causes[-1]) or type(causes[-1]).__name__)
