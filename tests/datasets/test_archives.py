"""Archives: the honest ones are read whole, the hostile ones are refused with their reason."""

import bz2
import gzip
import lzma
import random
import stat
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmtkit.datasets import archives
from nmtkit.datasets.archives import members
from tests.datasets.corpus_files import refused, tarred

TEXTS = {
    "corpus/train.en": b"one\ntwo\n" * 5000,
    "corpus/train.de": "eins\nzwölf\n".encode() * 5000,
    "README": b"",
}
NOISE = {f"{number}.txt": random.Random(number).randbytes(30_000) for number in range(10)}
BUILDERS = ["zip", "tar", "tar.gz", "tar.bz2", "tar.xz"]


def build(path: Path, texts: dict[str, bytes], kind: str) -> Path:
    """An archive of plain files, with folders as members of their own."""
    return pack(path, kind, ("corpus", b"", tarfile.DIRTYPE, ""), *texts.items())


def pack(path: Path, kind: str, *members: tuple[Any, ...], **options: Any) -> Path:
    """An archive of members by their name, content and, in a tar, type and link."""
    if kind != "zip":
        path.write_bytes(tarred(members, kind.partition(".")[2], **options))
        return path
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content, *folder in members:
            archive.writestr(f"{name}/" if folder else name, content)
    return path


def read_all(path: Path) -> dict[str, bytes]:
    return {member.name: member.open().read() for member in members(path)}


@pytest.mark.parametrize("kind", BUILDERS)
def test_members_come_with_names_and_bytes(tmp_path: Path, kind: str) -> None:
    path = build(tmp_path / "a", TEXTS, kind)  # no ending: the kind is told by the bytes
    assert read_all(path) == TEXTS


@pytest.mark.parametrize(
    ("pack", "name"),
    [
        (gzip.compress, "a.txt.gz"),
        (bz2.compress, "a.txt.bz2"),
        (lzma.compress, "a.txt.xz"),
        (bytes, "a.txt"),
    ],
    ids=["gzip", "bzip2", "xz", "plain"],
)
def test_a_single_file_is_its_own_member(
    tmp_path: Path, pack: Callable[[bytes], bytes], name: str
) -> None:
    (tmp_path / name).write_bytes(pack(b"text\n" * 1000))
    (member,) = members(tmp_path / name)
    assert member.name == "a.txt"
    assert member.open().readlines() == [b"text\n"] * 1000
    assert member.open().read(4) == b"text"  # it can be read again


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "corpus/../../evil",
        "/etc/evil",
        "..",
        "C:/evil",
        "c:evil",
        "..\\evil",
        "a\\b",
        "a/..",
        "a\nb",
    ],
)
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_names_that_lead_out_are_refused(tmp_path: Path, kind: str, name: str) -> None:
    path = pack(tmp_path / "a", kind, (name, b"evil"))
    assert f"has a member with the unsafe name {name!r}; the archive was rejected" in refused(
        read_all, path
    )


@pytest.mark.parametrize("name", ["./a/./b", "a//b", "./a//b"])
def test_names_are_settled(tmp_path: Path, name: str) -> None:
    assert read_all(pack(tmp_path / "a", "tar", (name, b"x"))) == {"a/b": b"x"}


@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b"9"],
    ids=["symbolic-link", "hard-link", "character-device", "block-device", "fifo", "unheard-of"],
)
def test_a_tar_has_plain_files_only(tmp_path: Path, kind: bytes) -> None:
    """So nothing can be written through a link, either."""
    path = pack(
        tmp_path / "a",
        "tar",
        ("good", b"good"),
        ("evil", b"", kind, "/etc/passwd"),
        ("evil/below", b"evil"),
    )
    assert "'evil' is a link or a device, not a regular file" in refused(read_all, path)


@pytest.mark.parametrize(
    "mode", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR], ids=["link", "fifo", "device"]
)
def test_a_zip_has_plain_files_only(tmp_path: Path, mode: int) -> None:
    info = zipfile.ZipInfo("evil")
    info.create_system, info.external_attr = 3, (mode | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr(info, b"/etc/passwd")
    assert "not a regular file" in refused(read_all, tmp_path / "a.zip")


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize("second", ["a/b", "./a/b", "a//b"])
def test_two_members_of_one_name_are_refused(tmp_path: Path, kind: str, second: str) -> None:
    assert "two members" in refused(
        read_all, pack(tmp_path / "a", kind, ("a/b", b"1"), (second, b"2"))
    )


@pytest.mark.parametrize("kind", BUILDERS)
def test_bombs_are_noticed_while_they_are_read(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hundred times its size, beyond the first bytes, is what no text packs to."""
    monkeypatch.setattr(archives, "RATIO_FREE_BYTES", 2 << 20)
    path = build(tmp_path / "a", {"zeros": bytes(12 << 20)}, kind)
    if kind == "tar":  # not packed, so no bomb
        assert len(read_all(path)["zeros"]) == 12 << 20
        return
    tracemalloc.start()
    said = refused(drain, path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "200 bytes per compressed byte" in said
    assert peak < 11 << 20  # xz itself takes 8


def drain(path: Path) -> None:
    for member in members(path):
        stream = member.open()
        while stream.read(1 << 16):
            pass


def test_the_headers_of_a_zip_are_not_believed(tmp_path: Path) -> None:
    """A bomb that claims to be small gives its few bytes and is found out by its checksum."""
    path = build(tmp_path / "a.zip", {"zeros": bytes(3 << 20)}, "zip")
    data = bytearray(path.read_bytes())
    true = struct.pack("<I", 3 << 20)
    assert data.count(true) == 2
    path.write_bytes(bytes(data).replace(true, struct.pack("<I", 10)))
    assert "damaged archive" in refused(read_all, path)


@pytest.mark.parametrize("kind", BUILDERS)
def test_the_limits_are_kept(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build(tmp_path / kind, {f"{number:03}": b"x" * 100 for number in range(50)}, kind)
    monkeypatch.setattr(archives, "MAX_MEMBERS", 51)
    assert len(read_all(path)) == 50
    monkeypatch.setattr(archives, "MAX_MEMBERS", 40)
    assert "more than 40 members" in refused(read_all, path)
    monkeypatch.setattr(archives, "MAX_BYTES", 3000)
    assert "more than 3,000 bytes" in refused(read_all, path)


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT], ids=["gnu", "pax"])
def test_names_may_be_long_but_not_of_many_megabytes(tmp_path: Path, form: int) -> None:
    name = "/".join(["folder" * 5] * 12) + "/file"
    assert read_all(pack(tmp_path / "long", "tar", (name, b"x"), format=form)) == {name: b"x"}
    endless = pack(tmp_path / "endless", "tar", ("n" * (8 << 20), b"x"), format=form)
    tracemalloc.start()
    said = refused(read_all, endless)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "damaged archive" in said
    assert peak < 2 << 20


@pytest.mark.parametrize(
    ("local", "central", "value", "why"),
    [(6, 8, 1, "encrypted"), (8, 10, 77, "method")],
    ids=["encrypted", "method"],
)
def test_an_encrypted_zip_and_an_unknown_method_are_refused(
    tmp_path: Path, local: int, central: int, value: int, why: str
) -> None:
    path = build(tmp_path / "a.zip", {"a": b"x" * 100}, "zip")
    data = bytearray(path.read_bytes())
    for magic, place in ((b"PK\x03\x04", local), (b"PK\x01\x02", central)):
        data[data.rindex(magic) + place] = value
    path.write_bytes(data)
    said = refused(read_all, path)
    assert "damaged archive" in said
    assert why in said


@pytest.mark.parametrize("kind", BUILDERS)
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.99])
def test_a_cut_archive_is_damaged(tmp_path: Path, kind: str, share: float) -> None:
    data = build(tmp_path / "whole", NOISE, kind).read_bytes()
    # A tar ends with blocks of zeros, which may be missing.
    length = 300_000 if kind == "tar" else len(data)
    (tmp_path / "cut").write_bytes(data[: int(length * share)])
    assert "damaged archive" in refused(read_all, tmp_path / "cut")


@pytest.mark.parametrize(
    "rest", [b"x" * 100, b"x" * 512, bytes(1024) + b"x" * 20_480], ids=["cut", "changed", "more"]
)
def test_a_tar_that_is_cut_or_changed_at_a_header_is_damaged(tmp_path: Path, rest: bytes) -> None:
    data = build(tmp_path / "whole", {"a": b"x" * 512, "b": b"y"}, "tar").read_bytes()
    (tmp_path / "damaged").write_bytes(data[: 3 * 512] + rest)
    assert "damaged archive" in refused(read_all, tmp_path / "damaged")


# a tar has no checksums of contents
@pytest.mark.parametrize("kind", [kind for kind in BUILDERS if kind != "tar"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_changed_bytes_are_noticed(tmp_path: Path, kind: str, share: float) -> None:
    data = bytearray(build(tmp_path / "a", NOISE, kind).read_bytes())
    data[int(share * len(data))] ^= 0x55
    (tmp_path / "a").write_bytes(data)
    assert "damaged archive" in refused(read_all, tmp_path / "a")


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    assert "No such file" in refused(read_all, tmp_path / "none.zip")
