"""Downloads over a bad network, from bad servers."""

import hashlib
import random
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
import requests

from nmtkit.core.files import file_sha256
from nmtkit.datasets import download as module
from nmtkit.datasets.download import FetchContext, download
from tests.datasets.corpus_files import refused
from tests.datasets.web_server import Site

CONTENT = random.Random(5).randbytes(150_000)
SUM = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Client:
    """Downloads to a target, hears what is told of it, and does something in place of each wait."""

    target: Path
    meanwhile: Callable[[], object] = lambda: None
    timeout: float = 2.0
    said: list[str] = field(default_factory=list)
    sizes: list[tuple[int, int | None]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def get(self, url: str, sha256: str = "", size: int | None = None) -> str:
        def wait(seconds: float) -> None:
            self.waits.append(seconds)
            self.meanwhile()

        def progress(there: int, total: int | None) -> None:
            self.sizes.append((there, total))

        folder, timeout = self.target.parent, (2.0, self.timeout)
        context = FetchContext(folder, self.said.append, progress, sleep=wait, timeout=timeout)
        return download(url, self.target, context, sha256, size)

    def refused(self, url: str, sha256: str = "", size: int | None = None) -> str:
        return refused(self.get, url, sha256, size)

    def left(self) -> list[str]:
        return sorted(path.name for path in self.target.parent.iterdir())


@pytest.fixture
def client(tmp_path: Path) -> Client:
    (tmp_path / "downloads").mkdir()
    return Client(tmp_path / "downloads" / "file.bin")


def test_a_file_comes_whole_with_its_progress(site: Site, client: Client) -> None:
    assert (
        client.get(site.put("a.bin", CONTENT), SUM, len(CONTENT))
        == SUM
        == file_sha256(client.target)
    )
    assert client.target.read_bytes() == CONTENT
    assert client.left() == ["file.bin"]
    assert client.sizes == sorted(client.sizes)
    assert (client.sizes[0], client.sizes[-1]) == ((0, len(CONTENT)), (len(CONTENT), len(CONTENT)))
    assert not client.said


# ---- resuming


@pytest.mark.parametrize("seed", range(8))
def test_cut_at_random_places_it_is_resumed_to_the_same_bytes(
    site: Site, client: Client, seed: int
) -> None:
    """Every attempt begins where the one before was cut, and asks only for the version it has a part of."""
    draw = random.Random(seed)
    site.etags, site.dates = draw.choice([(True, True), (True, False), (False, True)])
    cuts, rest = [], len(CONTENT)
    for _ in range(draw.randint(1, 12)):
        cuts.append(draw.randint(0, rest // 2))
        rest -= cuts[-1]
    site.cuts = list(cuts)
    assert client.get(site.put("a.bin", CONTENT)) == SUM  # no sum to mend what went wrong
    assert client.target.read_bytes() == CONTENT
    assert client.left() == ["file.bin"]
    starts = [int(one.range.removeprefix("bytes=").rstrip("-") or 0) for one in site.asked]
    assert starts == [sum(cuts[:n]) for n in range(len(cuts) + 1)]
    assert all(one.if_range for one, start in zip(site.asked, starts, strict=True) if start)
    assert len(client.waits) == len(cuts)


@pytest.mark.parametrize("damaged", [False, True])
def test_stopped_and_started_again_it_goes_on(site: Site, client: Client, damaged: bool) -> None:
    """The part of a program that has ended is used by the next; damage on disk is found by the sum."""
    url = site.put("a.bin", CONTENT)
    site.cuts = [70_000]
    client.meanwhile = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        client.get(url)
    assert client.left() == ["file.bin.part", "file.bin.part.version"]
    later = Client(client.target)
    if damaged:
        part = client.target.with_name("file.bin.part")
        part.write_bytes(b"x" + part.read_bytes()[1:])
        assert SUM in later.refused(url, SUM)
    assert later.get(url, SUM) == SUM
    assert site.asked[1].range == "bytes=70000-"
    assert later.sizes[0] == (70_000, len(CONTENT))
    assert client.target.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("habits", "expected", "statuses"),
    [
        ({"ranges": False, "cuts": [100_000, 120_000]}, {}, [200, 200, 200]),
        ({"etags": False, "dates": False, "cuts": [100_000]}, {}, [200, 200]),
        ({"etags": False, "dates": False, "cuts": [100_000]}, {"sha256": SUM}, [200, 206]),
        ({"lengths": False, "cuts": [50_000]}, {"size": len(CONTENT)}, [200, 206]),
    ],
    ids=["no-ranges", "no-mark-of-the-version", "no-mark-but-a-sum", "no-length-but-a-size"],
)
def test_a_part_is_used_where_it_is_safe(
    site: Site,
    client: Client,
    habits: dict[str, bool | list[int]],
    expected: Mapping[str, Any],
    statuses: list[int],
) -> None:
    """Otherwise the download begins again."""
    vars(site).update(habits)
    assert client.get(site.put("a.bin", CONTENT), **expected) == SUM
    assert [one.status for one in site.asked] == statuses
    assert client.target.read_bytes() == CONTENT


def test_one_process_at_a_time_downloads_a_file(site: Site, client: Client) -> None:
    url, other, said = site.put("a.bin", CONTENT), Client(client.target), []
    context = FetchContext(
        client.target.parent, print, lambda *_: said.append(other.refused(url, SUM))
    )
    assert download(url, client.target, context, SUM) == file_sha256(client.target) == SUM
    assert "another process is writing here; wait until it ends" in said[0]
    assert len(site.asked) == 1


@pytest.mark.parametrize("honest", [True, False], ids=["server-notices", "server-does-not-notice"])
def test_a_file_that_changes_in_between_is_not_mixed(
    site: Site, client: Client, honest: bool
) -> None:
    other = random.Random(6).randbytes(len(CONTENT))
    site.honours_if_range = honest
    site.cuts = [100_000]
    client.meanwhile = lambda: site.put("a.bin", other)
    assert client.get(site.put("a.bin", CONTENT)) == hashlib.sha256(other).hexdigest()
    assert client.target.read_bytes() == other


def test_a_part_that_is_already_whole_is_taken(site: Site, client: Client) -> None:
    """The connection breaks after the last byte: the server has nothing more, and says so with 416."""
    site.claimed_length = len(CONTENT) + 10
    client.meanwhile = lambda: setattr(site, "claimed_length", None)
    assert client.get(site.put("a.bin", CONTENT), SUM) == SUM
    assert [one.status for one in site.asked] == [200, 416]


def test_a_part_that_is_longer_than_the_file_is_thrown_away(site: Site, client: Client) -> None:
    url = site.put("a.bin", CONTENT)
    client.target.with_name("file.bin.part").write_bytes(CONTENT + b"more")
    client.target.with_name("file.bin.part.version").write_text('"old"')
    site.honours_if_range = False
    assert client.get(url, SUM) == SUM
    assert [one.status for one in site.asked] == [416, 200]


@pytest.mark.parametrize("version", ["", "no version of it", '"\xe4"', None])
@pytest.mark.parametrize("sha256", ["", SUM])
def test_a_part_of_unknown_origin_is_not_used(
    site: Site, client: Client, version: str | None, sha256: str
) -> None:
    client.target.with_name("file.bin.part").write_bytes(b"something else")
    if version is not None:
        client.target.with_name("file.bin.part.version").write_text(version)
    assert client.get(site.put("a.bin", CONTENT), "" if version == "" else sha256) == SUM
    assert client.target.read_bytes() == CONTENT


# ---- another file than expected


def test_a_wrong_sum_is_refused_with_both_and_nothing_stays(site: Site, client: Client) -> None:
    said = client.refused(site.put("a.bin", CONTENT[:-1] + b"?"), SUM)
    assert SUM in said
    assert hashlib.sha256(CONTENT[:-1] + b"?").hexdigest() in said
    assert client.left() == []
    assert client.get(site.put("a.bin", CONTENT), SUM) == SUM
    assert site.asked[-1].range == ""


@pytest.mark.parametrize(
    ("lengths", "size"), [(True, "150,000"), (False, "more")], ids=["told", "endless"]
)
def test_another_size_than_expected_is_refused(
    site: Site, client: Client, lengths: bool, size: str
) -> None:
    site.lengths = lengths
    assert f"expected 1,000 bytes, but the file has {size};" in client.refused(
        site.put("a.bin", CONTENT), size=1000
    )
    assert client.left() == []
    assert sum(there for there, _ in client.sizes) < len(CONTENT)


# ---- busy and slow servers


def test_a_busy_server_is_asked_again_after_ever_longer_waits(site: Site, client: Client) -> None:
    site.failures = [(503, {}), (500, {}), (429, {}), (504, {})]
    assert client.get(site.put("a.bin", CONTENT)) == SUM
    assert client.waits == [2.0, 4.0, 8.0, 16.0]
    assert "503" in client.said[0]
    assert "next attempt in 2 s" in client.said[0]


def test_the_server_says_how_long_to_wait(site: Site, client: Client) -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    site.failures = [
        (503, {"Retry-After": "7"}),
        (429, {"Retry-After": soon}),
        (503, {"Retry-After": "rain"}),
    ]
    client.get(site.put("a.bin", CONTENT))
    assert (client.waits[0], client.waits[2]) == (7.0, 8.0)
    assert 25.0 < client.waits[1] <= 30.0
    site.failures = [(503, {"Retry-After": "3600"})]
    impatient = Client(client.target)
    assert "asks for a pause of 3600 seconds" in impatient.refused(site.url("a.bin"))
    assert not impatient.waits


@pytest.mark.parametrize(
    ("habits", "said", "requests"),
    [
        (
            {"failures": [(503, {})] * 100},
            "503 Service Unavailable; try again later",
            module.MAX_ATTEMPTS,
        ),
        # It knows no ranges, so nothing is ever won; only the first request brings something.
        ({"ranges": False, "cuts": [1000] * 100}, "the connection", module.MAX_ATTEMPTS + 1),
    ],
    ids=["always-busy", "always-cut-at-the-same-place"],
)
def test_it_ends_after_so_many_attempts_in_a_row(
    site: Site, client: Client, habits: dict[str, Any], said: str, requests: int
) -> None:
    vars(site).update(habits)
    assert said in client.refused(site.put("a.bin", CONTENT))
    assert len(site.asked) == requests


def test_a_server_that_stops_in_the_middle_is_left_after_the_timeout(
    site: Site, client: Client
) -> None:
    site.pause = 0.3
    client.timeout = 0.1
    client.meanwhile = lambda: setattr(site, "pause", 0.0)
    assert client.get(site.put("a.bin", CONTENT), SUM) == SUM
    assert "the connection was lost" in client.said[0] or "no answer in time" in client.said[0]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 451])
def test_what_is_not_there_is_not_asked_for_again(site: Site, client: Client, status: int) -> None:
    site.failures = [(status, {})]
    said = client.refused(site.put("a.bin", CONTENT))
    assert str(status) in said
    assert "--catalogue" in said
    assert not client.waits
    assert client.left() == []


# ---- redirects


def test_redirections_are_followed(site: Site, client: Client) -> None:
    site.put("a.bin", CONTENT)
    site.redirects = {"/old": "/older", "/older": site.url("a.bin")}
    site.cuts = [1000]
    assert client.get(site.url("old")) == SUM
    assert [one.path for one in site.asked] == ["/old", "/older", "/a.bin"] * 2
    assert site.asked[-1].range == "bytes=1000-"


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ({"/a": "/b", "/b": "/a"}, f"too many redirects (more than {module.MAX_REDIRECTS})"),
        ({"/a": "file:///etc/passwd"}, "rejected"),
        ({"/a": "ftp://127.0.0.1/a.bin"}, "rejected"),
        ({"/a": "gopher://127.0.0.1/"}, "rejected"),
    ],
    ids=["circle", "file", "ftp", "gopher"],
)
def test_redirections_lead_only_to_the_web_and_to_an_end(
    site: Site, client: Client, places: dict[str, str], said: str
) -> None:
    site.redirects = places
    assert said in client.refused(site.url("a"))
    assert client.left() == []


def test_no_redirection_from_https_to_http(
    site: Site, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificate is not what is tested here: the first answer is given as if it came over https."""
    real = module.requests.Session.get

    def pretend(session: requests.Session, url: str, **options: Any) -> object:
        return real(session, url.replace("https:", "http:"), **options)

    monkeypatch.setattr(module.requests.Session, "get", pretend)
    site.put("a.bin", CONTENT)
    site.redirects = {"/a": site.url("a.bin")}
    assert "less secure" in client.refused(site.url("a").replace("http:", "https:"))
    assert client.get(site.url("a")) == SUM


# ---- no connection


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def test_offline_is_one_sentence_with_host_and_remedy(site: Site, client: Client) -> None:
    said = client.refused(f"http://127.0.0.1:{free_port()}/corpora/a.zip")
    assert said.startswith("cannot reach 127.0.0.1 (Connection refused); check the network")
    assert str(client.target) in said  # where a copy from elsewhere may be put
    assert "\n" not in said
    assert not client.waits
    said = client.refused("http://no-such-host.invalid/a.zip")
    assert said.startswith("cannot reach no-such-host.invalid (")


def test_a_server_that_is_away_for_a_moment_is_waited_for(site: Site, client: Client) -> None:
    """Unlike one that was never there: a part has come already."""

    def away() -> None:
        site.redirects = (
            {"/a.bin": f"http://127.0.0.1:{free_port()}/"} if len(client.waits) < 3 else {}
        )

    site.cuts = [100_000]
    client.meanwhile = away
    assert client.get(site.put("a.bin", CONTENT)) == SUM
    assert len(client.waits) == 3
    assert "cannot reach" in client.said[1]


def test_the_proxy_of_the_environment_is_asked(
    site: Site, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The site is its own proxy: it is asked for the whole address of a host that does not exist."""
    site.put("http:/no-such-host.invalid/a.bin", CONTENT)
    site.redirects = {
        "http://no-such-host.invalid/a.bin": site.url("http:/no-such-host.invalid/a.bin")
    }
    monkeypatch.setenv("http_proxy", site.base)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert client.get("http://no-such-host.invalid/a.bin") == SUM
    assert site.asked[0].path == "http://no-such-host.invalid/a.bin"
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    said = client.refused("http://no-such-host.invalid/a.bin")
    assert "proxy" in said
    assert "HTTP_PROXY" in said


# ---- the disk


def test_a_disk_that_cannot_be_written_is_said_in_words(site: Site, client: Client) -> None:
    url = site.put("a.bin", CONTENT)
    nowhere = Client(client.target / "a.bin")
    client.target.write_text("not a folder")
    assert f"{nowhere.target}: cannot be written: Not a directory" in nowhere.refused(url)
