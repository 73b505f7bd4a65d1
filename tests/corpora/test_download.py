"""Downloads over a bad network, from bad servers."""

import errno
import hashlib
import json
import os
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from nmtkit.core.errors import NmtkitError
from nmtkit.corpora import download as module
from nmtkit.corpora.download import DownloadPolicy, download, sha256_of

CONTENT = random.Random(5).randbytes(150_000)
SUM = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Heard:
    """What a download told, and how long it would have waited."""

    said: list[str] = field(default_factory=list)
    bytes_there: list[tuple[int, int | None]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    @property
    def policy(self) -> DownloadPolicy:
        return DownloadPolicy(
            self.said.append,
            lambda there, total: self.bytes_there.append((there, total)),
            self.waits.append,
            (2.0, 2.0),
        )


@dataclass
class Free:
    """What `shutil.disk_usage` says of a disk that is nearly full."""

    free: int


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "downloads").mkdir()
    return tmp_path / "downloads" / "file.bin"


def left(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir())


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(NmtkitError) as fault:
        call()
    return str(fault.value)


def test_a_file_comes_whole_with_its_progress(site, target):
    heard = Heard()
    assert download(site.put("a.bin", CONTENT), target, heard.policy, SUM, len(CONTENT)) == SUM
    assert target.read_bytes() == CONTENT
    assert left(target) == ["file.bin"]
    assert heard.bytes_there[0] == (0, len(CONTENT))
    assert heard.bytes_there[-1] == (len(CONTENT), len(CONTENT))
    assert [there for there, _ in heard.bytes_there] == sorted(there for there, _ in heard.bytes_there)
    assert not heard.said
    assert sha256_of(target) == SUM


def test_an_empty_file_is_a_file(site, target):
    assert download(site.put("empty", b""), target, Heard().policy) == hashlib.sha256(b"").hexdigest()
    assert target.read_bytes() == b""


@pytest.mark.parametrize("seed", range(8))
def test_cut_at_random_places_it_is_resumed_to_the_same_bytes(site, target, seed):
    """Every attempt begins where the one before was cut, and asks only for the version it has a part of."""
    draw = random.Random(seed)
    site.etags, site.dates = draw.choice([(True, True), (True, False), (False, True)])
    heard, cuts, rest = Heard(), [], len(CONTENT)
    for _ in range(draw.randint(1, 12)):
        cuts.append(draw.randint(0, rest // 2))
        rest -= cuts[-1]
    site.cuts = list(cuts)
    assert download(site.put("a.bin", CONTENT), target, heard.policy) == SUM  # no sum to mend what went wrong
    assert target.read_bytes() == CONTENT
    assert left(target) == ["file.bin"]
    starts = [int(one.range.removeprefix("bytes=").rstrip("-") or 0) for one in site.asked]
    assert starts == [sum(cuts[:n]) for n in range(len(cuts) + 1)]
    assert all(one.if_range for one, start in zip(site.asked, starts, strict=True) if start)
    assert len(heard.waits) == len(cuts)


def test_stopped_and_started_again_it_goes_on(site, target):
    """The part of a program that has ended is used by the next."""
    url = site.put("a.bin", CONTENT)

    class Stop(Exception):
        pass

    def stop(seconds: float) -> None:
        raise Stop

    site.cuts = [70_000]
    with pytest.raises(Stop):
        download(url, target, DownloadPolicy(print, lambda there, total: None, stop))
    assert left(target) == ["file.bin.part", "file.bin.part.json"]
    heard = Heard()
    assert download(url, target, heard.policy, SUM) == SUM
    assert site.asked[-1].range == "bytes=70000-"
    assert heard.bytes_there[0] == (70_000, len(CONTENT))
    assert target.read_bytes() == CONTENT


def test_a_server_that_knows_no_ranges_begins_again(site, target):
    site.ranges = False
    site.cuts = [100_000, 120_000]
    assert download(site.put("a.bin", CONTENT), target, Heard().policy) == SUM
    assert [one.status for one in site.asked] == [200, 200, 200]
    assert target.read_bytes() == CONTENT


def test_without_a_mark_of_the_version_only_a_sum_allows_to_go_on(site, target):
    site.etags = site.dates = False
    url = site.put("a.bin", CONTENT)
    site.cuts = [100_000]
    assert download(url, target, Heard().policy) == SUM
    assert site.asked[-1].range == ""
    target.unlink()
    site.cuts = [100_000]
    assert download(url, target, Heard().policy, SUM) == SUM
    assert site.asked[-1].range == "bytes=100000-"


@pytest.mark.parametrize("honest", [True, False], ids=["server-notices", "server-does-not-notice"])
def test_a_file_that_changes_in_between_is_not_mixed(site, target, honest):
    other = random.Random(6).randbytes(len(CONTENT))
    site.honours_if_range = honest
    site.cuts = [100_000]
    url = site.put("a.bin", CONTENT)

    def change(seconds: float) -> None:
        site.put("a.bin", other)

    policy = DownloadPolicy(lambda text: None, lambda there, total: None, change)
    assert download(url, target, policy) == hashlib.sha256(other).hexdigest()
    assert target.read_bytes() == other


def test_a_part_that_is_already_whole_is_taken(site, target):
    """The connection breaks after the last byte: the server has nothing more, and says so with 416."""
    site.claimed_length = len(CONTENT) + 10
    url = site.put("a.bin", CONTENT)
    heard = Heard()

    def mend(seconds: float) -> None:
        site.claimed_length = None
        heard.waits.append(seconds)

    policy = DownloadPolicy(heard.said.append, lambda there, total: None, mend)
    assert download(url, target, policy, SUM) == SUM
    assert [one.status for one in site.asked] == [200, 416]


def test_a_part_that_is_longer_than_the_file_is_thrown_away(site, target):
    url = site.put("a.bin", CONTENT)
    target.with_name("file.bin.part").write_bytes(CONTENT + b"more")
    facts = {"url": url, "etag": '"old"', "modified": "", "total": None}
    target.with_name("file.bin.part.json").write_text(json.dumps(facts))
    site.honours_if_range = False
    assert download(url, target, Heard().policy, SUM) == SUM
    assert [one.status for one in site.asked] == [416, 200]


@pytest.mark.parametrize("facts", ["", "[]", "{}", '{"url": "http://elsewhere/a.bin"}', '{"url": 3, "x": 1}'])
def test_a_part_of_unknown_origin_is_not_used(site, target, facts):
    target.with_name("file.bin.part").write_bytes(b"something else")
    target.with_name("file.bin.part.json").write_text(facts)
    assert download(site.put("a.bin", CONTENT), target, Heard().policy) == SUM
    assert target.read_bytes() == CONTENT


def test_a_wrong_sum_is_refused_with_both_and_nothing_stays(site, target):
    url = site.put("a.bin", CONTENT[:-1] + b"?")
    found = hashlib.sha256(CONTENT[:-1] + b"?").hexdigest()
    said = refused(lambda: download(url, target, Heard().policy, SUM))
    assert SUM in said
    assert found in said
    assert left(target) == []
    site.put("a.bin", CONTENT)
    assert download(url, target, Heard().policy, SUM) == SUM
    assert site.asked[-1].range == ""


def test_a_bad_part_does_not_spoil_the_next_download(site, target):
    """Bytes that were damaged on disk are found by the sum, and the next attempt begins afresh."""
    url = site.put("a.bin", CONTENT)
    site.cuts, site.failures = [100_000], []
    with pytest.raises(ZeroDivisionError):
        download(url, target, DownloadPolicy(print, lambda there, total: None, lambda seconds: 1 / 0), SUM)
    part = target.with_name("file.bin.part")
    part.write_bytes(b"x" + part.read_bytes()[1:])
    assert SUM in refused(lambda: download(url, target, Heard().policy, SUM))
    assert download(url, target, Heard().policy, SUM) == SUM


def test_another_size_than_expected_is_refused_before_it_comes(site, target):
    said = refused(lambda: download(site.put("a.bin", CONTENT), target, Heard().policy, size=1000))
    assert "it has 150,000 bytes, not 1,000" in said
    assert left(target) == []


def test_a_server_that_does_not_stop_is_not_listened_to(site, target):
    site.lengths = False
    said = refused(lambda: download(site.put("a.bin", CONTENT), target, Heard().policy, size=1000))
    assert "more bytes, not 1,000" in said
    assert left(target) == []


def test_without_a_length_the_size_of_the_catalogue_tells_the_end(site, target):
    site.lengths = False
    site.cuts = [50_000]
    assert download(site.put("a.bin", CONTENT), target, Heard().policy, size=len(CONTENT)) == SUM
    assert site.asked[-1].range == "bytes=50000-"


def test_a_busy_server_is_asked_again_after_ever_longer_waits(site, target):
    site.failures = [(503, {}), (500, {}), (429, {}), (504, {})]
    heard = Heard()
    assert download(site.put("a.bin", CONTENT), target, heard.policy) == SUM
    assert heard.waits == [2.0, 4.0, 8.0, 16.0]
    assert "503" in heard.said[0]
    assert "next attempt in 2 s" in heard.said[0]


def test_the_server_says_how_long_to_wait(site, target):
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    site.failures = [(503, {"Retry-After": "7"}), (429, {"Retry-After": soon}), (503, {"Retry-After": "rain"})]
    heard = Heard()
    download(site.put("a.bin", CONTENT), target, heard.policy)
    assert heard.waits[0] == 7.0
    assert 25.0 < heard.waits[1] <= 30.0
    assert heard.waits[2] == 8.0


def test_a_server_that_asks_for_an_hour_is_not_waited_for(site, target):
    site.failures = [(503, {"Retry-After": "3600"})]
    heard = Heard()
    said = refused(lambda: download(site.put("a.bin", CONTENT), target, heard.policy))
    assert "asks to wait 3600 seconds" in said
    assert not heard.waits


def test_it_ends_after_so_many_attempts_in_a_row(site, target):
    site.failures = [(503, {})] * 100
    heard = Heard()
    said = refused(lambda: download(site.put("a.bin", CONTENT), target, heard.policy))
    assert "503" in said
    assert "try again later" in said
    assert len(site.asked) == module.ATTEMPTS


def test_a_server_that_always_cuts_at_the_same_place_is_given_up(site, target):
    """It knows no ranges, so nothing is ever won; without the count of attempts this would go on for ever."""
    site.ranges = False
    site.cuts = [1000] * 100
    said = refused(lambda: download(site.put("a.bin", CONTENT), target, Heard().policy))
    assert "the connection" in said
    assert len(site.asked) == module.ATTEMPTS + 1  # the first one brought something


def test_a_server_that_stops_in_the_middle_is_left_after_the_timeout(site, target):
    site.pause = 0.3
    url = site.put("a.bin", CONTENT)
    heard = Heard()

    def mend(seconds: float) -> None:
        site.pause = 0.0

    policy = DownloadPolicy(heard.said.append, lambda there, total: None, mend, (2.0, 0.1))
    assert download(url, target, policy) == SUM
    assert heard.said
    assert "the connection broke" in heard.said[0] or "no answer in time" in heard.said[0]


def test_redirections_are_followed(site, target):
    site.put("a.bin", CONTENT)
    site.redirects = {"/old": "/older", "/older": site.url("a.bin")}
    site.cuts = [1000]
    assert download(site.url("old"), target, Heard().policy) == SUM
    assert [one.path for one in site.asked] == ["/old", "/older", "/a.bin"] * 2
    assert site.asked[-1].range == "bytes=1000-"


def test_redirections_in_a_circle_are_refused(site, target):
    site.redirects = {"/a": "/b", "/b": "/a"}
    said = refused(lambda: download(site.url("a"), target, Heard().policy))
    assert f"more than {module.REDIRECTS} times" in said
    assert len(site.asked) == module.REDIRECTS + 1


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://127.0.0.1/a.bin", "gopher://127.0.0.1/"])
def test_redirections_lead_only_to_the_web(site, target, place):
    site.redirects = {"/a": place}
    assert "refused" in refused(lambda: download(site.url("a"), target, Heard().policy))
    assert left(target) == []


def test_no_redirection_from_https_to_http(site, target, monkeypatch):
    """The certificate is not what is tested here: the first answer is given as if it came over https."""
    real = module.requests.Session.get

    def pretend(session, url, **options):
        return real(session, url.replace("https:", "http:"), **options)

    monkeypatch.setattr(module.requests.Session, "get", pretend)
    site.put("a.bin", CONTENT)
    site.redirects = {"/a": site.url("a.bin")}
    secure = site.url("a").replace("http:", "https:")
    assert "not as safe" in refused(lambda: download(secure, target, Heard().policy))
    assert download(site.url("a"), target, Heard().policy) == SUM


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 451])
def test_what_is_not_there_is_not_asked_for_again(site, target, status):
    site.failures = [(status, {})]
    heard = Heard()
    said = refused(lambda: download(site.put("a.bin", CONTENT), target, heard.policy))
    assert str(status) in said
    assert "--catalogue" in said
    assert not heard.waits
    assert left(target) == []


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def test_offline_is_one_sentence_with_host_and_remedy(site, target):
    heard = Heard()
    url = f"http://127.0.0.1:{free_port()}/corpora/a.zip"
    said = refused(lambda: download(url, target, heard.policy))
    assert said.startswith("cannot reach 127.0.0.1 (Connection refused): is this machine online?")
    assert str(target) in said  # where a copy from elsewhere may be put
    assert "\n" not in said
    assert not heard.waits


def test_a_server_that_is_away_for_a_moment_is_waited_for(site, target):
    """Unlike one that was never there: a part has come already."""
    url = site.put("a.bin", CONTENT)
    site.cuts = [100_000]
    heard = Heard()

    def away(seconds: float) -> None:
        heard.waits.append(seconds)
        site.redirects = {"/a.bin": f"http://127.0.0.1:{free_port()}/"} if len(heard.waits) < 3 else {}

    assert download(url, target, DownloadPolicy(heard.said.append, lambda there, total: None, away)) == SUM
    assert len(heard.waits) == 3
    assert "cannot reach" in heard.said[1]


def test_a_name_that_nobody_knows(site, target):
    said = refused(lambda: download("http://no-such-host.invalid/a.zip", target, Heard().policy))
    assert said.startswith("cannot reach no-such-host.invalid (")
    assert "online" in said


def test_the_proxy_of_the_environment_is_asked(site, target, monkeypatch):
    """The site is its own proxy: it is asked for the whole address of a host that does not exist."""
    site.put("http:/no-such-host.invalid/a.bin", CONTENT)
    site.redirects = {"http://no-such-host.invalid/a.bin": site.url("http:/no-such-host.invalid/a.bin")}
    monkeypatch.setenv("http_proxy", site.base)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert download("http://no-such-host.invalid/a.bin", target, Heard().policy) == SUM
    assert site.asked[0].path == "http://no-such-host.invalid/a.bin"


def test_a_dead_proxy_is_named(site, target, monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    said = refused(lambda: download("http://no-such-host.invalid/a.bin", target, Heard().policy))
    assert "proxy" in said
    assert "HTTP_PROXY" in said


def test_too_little_room_is_said_before_the_download(site, target, monkeypatch):
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: Free(1000))
    said = refused(lambda: download(site.put("a.bin", CONTENT), target, Heard().policy))
    assert "150,000 bytes are needed, and 1,000 are free" in said


def test_a_full_disk_is_said_in_words(site, target, monkeypatch):
    def full(seconds: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    policy = DownloadPolicy(lambda text: None, lambda there, total: full(there))
    said = refused(lambda: download(site.put("a.bin", CONTENT), target, policy))
    assert "No space left on device" in said
    assert str(target) in said


def test_a_folder_that_may_not_be_written_is_named(site, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    said = refused(lambda: download(site.put("a.bin", CONTENT), tmp_path / "file" / "a.bin", Heard().policy))
    assert "cannot write it" in said
    assert str(tmp_path / "file") in said
