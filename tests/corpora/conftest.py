"""A site on the web, and the real archive of Debian."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from debian_archive import fetch_context
from web_server import QuietServer, Site, handler_of

from nmtkit.core.errors import DataError
from nmtkit.corpora.debian import DebianIndexes
from nmtkit.corpora.sources import FetchContext


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A folder on a web server of this machine; no proxy is asked, and downloads are kept in a folder of the test."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "site"
    folder.mkdir()
    served = Site(folder)
    server = QuietServer(("127.0.0.1", 0), handler_of(served))
    served.base = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield served
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="session")
def debian(tmp_path_factory: pytest.TempPathFactory) -> FetchContext:
    """A cache for what is downloaded from Debian's mirrors, where they can be reached."""
    context = fetch_context(tmp_path_factory.mktemp("debian"))[0]
    try:
        DebianIndexes(languages=["en", "de"]).obtain(context)
    except DataError as fault:
        pytest.skip(f"no mirror of Debian can be reached: {fault}")
    return context


@pytest.fixture
def debian_indexes(debian: FetchContext) -> list[Path]:
    """The package index, and descriptions in English and German."""
    return [one.path for one in DebianIndexes(languages=["en", "de"]).obtain(debian)]
