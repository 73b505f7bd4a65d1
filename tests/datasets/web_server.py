"""A web server of our own, with all the bad habits that servers and networks have."""

import hashlib
import time
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BLOCK = 4096


@dataclass
class Asked:
    """One request as it came, and the status it was answered with."""

    path: str
    range: str
    if_range: str
    status: int


@dataclass
class Site:
    """A folder on the web, and how its server behaves; tests change the fields as they need it."""

    folder: Path  # what it serves
    base: str = ""  # its address, without a slash at the end
    asked: list[Asked] = field(default_factory=list)  # all requests so far
    # the bytes after which the next answers break off
    cuts: list[int] = field(default_factory=list)
    # of the next requests, without a file
    failures: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    # from paths to paths of this site or addresses
    redirects: dict[str, str] = field(default_factory=dict)
    ranges: bool = True  # whether it sends parts of files
    etags: bool = True  # whether it marks versions of files
    dates: bool = True  # whether it says when a file was changed
    lengths: bool = True  # whether it says how long a file is
    claimed_length: int | None = None  # what it says of every file's length instead of the truth
    # whether it sends the whole file to whoever has a part of another version
    honours_if_range: bool = True
    pause: float = 0.0  # seconds before each block of bytes

    def url(self, name: str) -> str:
        return f"{self.base}/{name}"

    def put(self, name: str, content: bytes) -> str:
        """Writes a file of the folder, and gives its address."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return self.url(name)


def handler_of(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            if site.failures:
                status, headers = site.failures.pop(0)
                self._answer(status, {**headers, "Content-Length": "0"})
                return
            if path in site.redirects:
                self._answer(302, {"Location": site.redirects[path], "Content-Length": "0"})
                return
            file = site.folder / path.lstrip("/")
            if not file.is_file():
                self._answer(404, {"Content-Length": "0"})
                return
            self._send(file.read_bytes(), formatdate(file.stat().st_mtime, usegmt=True))

        def _send(self, content: bytes, changed: str) -> None:
            headers = {}
            tag = f'"{hashlib.md5(content).hexdigest()}"'
            if site.etags:
                headers["ETag"] = tag
            if site.dates:
                headers["Last-Modified"] = changed
            start, status = 0, 200
            wanted, condition = self.headers.get("Range", ""), self.headers.get("If-Range", "")
            known = not condition or condition in (tag, changed) or not site.honours_if_range
            if site.ranges and wanted.startswith("bytes=") and known:
                start = int(wanted.removeprefix("bytes=").rstrip("-"))
                if start >= len(content):
                    self._answer(
                        416, {"Content-Range": f"bytes */{len(content)}", "Content-Length": "0"}
                    )
                    return
                status = 206
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            body = content[start:]
            if site.lengths:
                headers["Content-Length"] = str(site.claimed_length or len(body))
            headers["Connection"] = "close"
            self._answer(status, headers)
            most = site.cuts.pop(0) if site.cuts else len(body)
            for place in range(0, most, BLOCK):
                time.sleep(site.pause)
                self.wfile.write(body[place : min(place + BLOCK, most)])
                self.wfile.flush()
            self.close_connection = True

        def _answer(self, status: int, headers: dict[str, str]) -> None:
            asked = Asked(
                self.path, self.headers.get("Range", ""), self.headers.get("If-Range", ""), status
            )
            site.asked.append(asked)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

    return Handler


class QuietServer(ThreadingHTTPServer):
    """A client that has gone away is no reason to print anything."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass
