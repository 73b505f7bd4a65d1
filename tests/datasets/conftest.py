"""A site on the web."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.datasets.web_server import QuietServer, Site, handler_of


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A folder on a web server of this machine; no proxy is asked, and downloads are kept in a folder of the test."""
    for name in (
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "site"
    folder.mkdir()
    served = Site(folder)
    server = QuietServer(("127.0.0.1", 0), handler_of(served))
    served.base = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    yield served
    server.shutdown()
    server.server_close()
    thread.join()
