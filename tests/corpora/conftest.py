"""A site on the web and archives of packages, as every test of this folder may have them."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from debian_archive import Archive, Debian, has_apt, workplace
from web_server import QuietServer, Site, handler_of

from nmtkit.core.errors import DataError
from nmtkit.corpora.apt import AptDescriptions


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


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    """An archive of Debian packages in a folder, which is apt's only source."""
    if not has_apt():
        pytest.skip("there is no apt on this machine")
    made = Archive(tmp_path / "archive")
    made.folder.mkdir()
    made.be_the_only_source(monkeypatch)
    return made


@pytest.fixture(scope="session")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Debian:
    """The sources of apt that this machine has, where they can be read; their index is read once for all tests."""
    if not has_apt():
        pytest.skip("there is no apt on this machine")
    work = workplace(tmp_path_factory.mktemp("debian"))[0]
    try:
        obtained = AptDescriptions(languages=["en", "de"]).obtain(work)
    except DataError as fault:
        pytest.skip(f"the sources of apt on this machine cannot be read: {fault}")
    (work.folder / "apt").symlink_to("apt-de-en")  # an index with descriptions does for packages too
    return Debian(work, [one.path for one in obtained])
