"""Archives: the honest ones are read whole, the hostile ones are refused with their reason."""

import bz2
import gzip
import io
import lzma
import random
import shutil
import stat
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from nmtkit.core.errors import DataError
from nmtkit.corpora import archives
from nmtkit.corpora.archives import ArchiveLimits, members

TEXTS = {"corpus/train.en": b"one\ntwo\n" * 5000, "corpus/train.de": "eins\nzwölf\n".encode() * 5000, "README": b""}
BUILDERS = ["zip", "tar", "tar.gz", "tar.bz2", "tar.xz"]


def build(path: Path, texts: dict[str, bytes], kind: str) -> Path:
    """An archive of plain files, with folders as members of their own."""
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("corpus/", b"")
            for name, content in texts.items():
                packed.writestr(name, content)
        return path
    with tarfile.open(path, f"w:{kind.partition('.')[2]}") as tar:
        folder = tarfile.TarInfo("corpus")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, content in texts.items():
            add(tar, name, content)
    return path


def add(tar: tarfile.TarFile, name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, to: str = "") -> None:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(content), kind, to
    tar.addfile(info, io.BytesIO(content))


def read_all(path: Path, limits: ArchiveLimits = ArchiveLimits()) -> dict[str, bytes]:  # noqa: B008  # frozen
    return {member.name: member.open().read() for member in members(path, limits)}


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(DataError) as fault:
        call()
    return str(fault.value)


@pytest.mark.parametrize("kind", BUILDERS)
def test_members_come_with_names_and_bytes(tmp_path, kind):
    path = build(tmp_path / "a", TEXTS, kind)  # no ending: the kind is told by the bytes
    assert read_all(path) == TEXTS


def unpack(path: Path, folder: Path, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, Path]:
    """What a careless reader would do with the members: write each below a folder, by its name."""
    written = {}
    for member in members(path):
        if wanted(member.name):
            place = folder / member.name
            place.parent.mkdir(parents=True, exist_ok=True)
            with member.open() as source, open(place, "xb") as target:
                shutil.copyfileobj(source, target)
            written[member.name] = place
    return written


@pytest.mark.parametrize("kind", BUILDERS)
def test_unpacking_writes_what_is_wanted(tmp_path, kind):
    path = build(tmp_path / "a", TEXTS, kind)
    found = unpack(path, tmp_path / "out", wanted=lambda name: name.startswith("corpus/"))
    assert found == {name: tmp_path / "out" / name for name in TEXTS if name != "README"}
    assert {name: place.read_bytes() for name, place in found.items()} == {name: TEXTS[name] for name in found}
    assert sorted(p.name for p in (tmp_path / "out").rglob("*") if p.is_file()) == ["train.de", "train.en"]


@pytest.mark.parametrize(
    ("pack", "name"),
    [(gzip.compress, "a.txt.gz"), (bz2.compress, "a.txt.bz2"), (lzma.compress, "a.txt.xz"), (bytes, "a.txt")],
    ids=["gzip", "bzip2", "xz", "plain"],
)
def test_a_single_file_is_its_own_member(tmp_path, pack, name):
    (tmp_path / name).write_bytes(pack(b"text\n" * 1000))
    (member,) = members(tmp_path / name)
    assert member.name == "a.txt"
    assert member.open().readlines() == [b"text\n"] * 1000
    assert member.open().read(4) == b"text"  # it can be read again


def test_members_of_a_zip_can_be_read_side_by_side_and_later(tmp_path):
    found = {member.name: member for member in members(build(tmp_path / "a.zip", TEXTS, "zip"))}
    with found["corpus/train.en"].open() as src, found["corpus/train.de"].open() as tgt:
        assert [line.strip() for pair in zip(src, tgt, strict=True) for line in pair][:4] == [
            b"one", b"eins", b"two", "zwölf".encode(),
        ]  # fmt: skip


def test_members_of_a_tar_may_be_passed_over(tmp_path):
    path = build(tmp_path / "a.tar.gz", TEXTS, "tar.gz")
    assert [member.name for member in members(path)] == list(TEXTS)


OUTSIDE = {
    "up": "../evil",
    "up-from-below": "corpus/../../evil",
    "absolute": "/etc/evil",
    "dots": "..",
    "drive": "C:/evil",
    "drive-relative": "c:evil",
    "backslash-up": "..\\evil",
    "backslash": "a\\b",
    "end-up": "a/..",
    "line-end": "a\nb",
}


@pytest.mark.parametrize("name", OUTSIDE.values(), ids=OUTSIDE.keys())
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_names_that_lead_out_are_refused(tmp_path, kind, name):
    path = tmp_path / "out" / "a"
    path.parent.mkdir()
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as packed:
            packed.writestr(name, b"evil")
    else:
        with tarfile.open(path, "w") as tar:
            add(tar, name, b"evil")
    said = refused(lambda: unpack(path, tmp_path / "out" / "folder"))
    assert "refused" in said
    assert repr(name) in said
    assert [found for found in tmp_path.rglob("*") if found.is_file()] == [path]


@pytest.mark.parametrize("name", ["./a/./b", "a//b", "./a//b"])
def test_names_are_settled(tmp_path, name):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        add(tar, name, b"x")
    assert read_all(tmp_path / "a.tar") == {"a/b": b"x"}


@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b"9"],
    ids=["symbolic-link", "hard-link", "character-device", "block-device", "fifo", "unheard-of"],
)
def test_a_tar_has_plain_files_only(tmp_path, kind):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        add(tar, "good", b"good")
        add(tar, "evil", b"", kind, "/etc/passwd")
    assert "not a regular file" in refused(lambda: unpack(tmp_path / "a.tar", tmp_path / "out"))
    assert not (tmp_path / "out" / "evil").exists()


def test_writing_through_a_link_is_not_possible(tmp_path):
    """First a link, then a file "below" it: the link is refused, and nothing is written elsewhere."""
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        add(tar, "way", b"", tarfile.SYMTYPE, str(tmp_path / "elsewhere"))
        add(tar, "way/evil", b"evil")
    (tmp_path / "elsewhere").mkdir()
    assert "not a regular file" in refused(lambda: unpack(tmp_path / "a.tar", tmp_path / "out"))
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("mode", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR], ids=["link", "fifo", "device"])
def test_a_zip_has_plain_files_only(tmp_path, mode):
    info = zipfile.ZipInfo("evil")
    info.create_system, info.external_attr = 3, (mode | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr(info, b"/etc/passwd")
    assert "not a regular file" in refused(lambda: read_all(tmp_path / "a.zip"))


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize("second", ["a/b", "./a/b", "a//b"])
def test_two_members_of_one_name_are_refused(tmp_path, kind, second):
    path = tmp_path / "a"
    if kind == "zip":
        warned = pytest.warns(UserWarning, match="Duplicate name") if second == "a/b" else nullcontext()
        with warned, zipfile.ZipFile(path, "w") as packed:
            packed.writestr("a/b", b"1")
            packed.writestr(second, b"2")
    else:
        with tarfile.open(path, "w") as tar:
            add(tar, "a/b", b"1")
            add(tar, second, b"2")
    assert "two members" in refused(lambda: read_all(path))


@pytest.mark.parametrize("kind", BUILDERS)
def test_bombs_are_noticed_while_they_are_read(tmp_path, kind, monkeypatch):
    """Two hundred times its size, beyond the first bytes, is what no text packs to."""
    monkeypatch.setattr(archives, "FREE_BYTES", 2 << 20)
    path = build(tmp_path / "a", {"zeros": bytes(12 << 20)}, kind)
    if kind == "tar":  # not packed, so no bomb
        assert len(read_all(path)["zeros"]) == 12 << 20
        return
    tracemalloc.start()
    said = refused(lambda: [_drain(member.open()) for member in members(path)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "200 bytes for each byte" in said
    assert peak < 11 << 20  # xz itself takes 8


def _drain(stream: io.BufferedIOBase) -> None:
    while stream.read(1 << 16):
        pass


def test_a_bomb_is_not_written_to_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "FREE_BYTES", 2 << 20)
    path = build(tmp_path / "a.zip", {"zeros": bytes(12 << 20)}, "zip")
    refused(lambda: unpack(path, tmp_path / "out"))
    assert (tmp_path / "out" / "zeros").stat().st_size <= 3 << 20


def test_the_headers_of_a_zip_are_not_believed(tmp_path):
    """A bomb that claims to be small gives its few bytes and is found out by its checksum."""
    path = build(tmp_path / "a.zip", {"zeros": bytes(3 << 20)}, "zip")
    data = bytearray(path.read_bytes())
    true = struct.pack("<I", 3 << 20)
    assert data.count(true) == 2
    path.write_bytes(bytes(data).replace(true, struct.pack("<I", 10)))
    assert "damaged archive" in refused(lambda: read_all(path))


def test_members_that_share_their_bytes_count_each_time(tmp_path):
    """The bomb of overlapping members: each is small, together they are not."""
    kernel = random.Random(1).randbytes(1 << 20)
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as packed:
        packed.writestr("0", kernel)
        first = packed.infolist()[0]
        for number in range(1, 300):
            again = zipfile.ZipInfo(str(number))
            again.header_offset, again.CRC = first.header_offset, first.CRC
            again.file_size = again.compress_size = len(kernel)
            packed.filelist.append(again)
            packed.NameToInfo[again.filename] = again
    # Readers find the first name in the shared header; newer ones see the overlap itself.
    assert "a.zip" in refused(lambda: [_drain(member.open()) for member in members(path)])


def test_the_limits_are_kept(tmp_path):
    many = {f"{number:03}": b"x" * 100 for number in range(50)}
    for kind in BUILDERS:
        path = build(tmp_path / kind, many, kind)
        assert len(read_all(path, ArchiveLimits(members=51))) == 50
        assert "more than 40 members" in refused(lambda path=path: read_all(path, ArchiveLimits(members=40)))
        assert "more than 4,000 bytes" in refused(lambda path=path: read_all(path, ArchiveLimits(total_bytes=4000)))


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT], ids=["gnu", "pax"])
def test_a_name_of_many_megabytes_is_not_read(tmp_path, kind):
    with tarfile.open(tmp_path / "a.tar", "w", format=kind) as tar:
        add(tar, "n" * (8 << 20), b"x")
    tracemalloc.start()
    said = refused(lambda: read_all(tmp_path / "a.tar"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "damaged archive" in said
    assert peak < 2 << 20


def test_long_names_of_honest_tars_are_read(tmp_path):
    name = "/".join(["folder" * 5] * 12) + "/file"
    for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        with tarfile.open(tmp_path / "a.tar", "w", format=kind) as tar:
            add(tar, name, b"x")
        assert read_all(tmp_path / "a.tar") == {name: b"x"}


def test_an_encrypted_zip_is_refused(tmp_path):
    path = build(tmp_path / "a.zip", {"secret": b"x" * 100}, "zip")
    data = bytearray(path.read_bytes())
    for magic, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.rindex(magic)
        data[at + place] |= 1
    path.write_bytes(data)
    assert "encrypted" in refused(lambda: read_all(path))


def test_names_of_other_encodings_are_kept_readable(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr("größe", b"1")  # with the flag
    data = (tmp_path / "a.zip").read_bytes()
    unflagged = data.replace(struct.pack("<HHH", 20, 0x800, 0), struct.pack("<HHH", 20, 0, 0))
    (tmp_path / "b.zip").write_bytes(unflagged)
    latin = unflagged.replace("größe".encode(), b"gr\xf6\xdfe!!")
    (tmp_path / "c.zip").write_bytes(latin)
    assert [list(read_all(tmp_path / name)) for name in ("a.zip", "b.zip", "c.zip")] == [
        ["größe"],
        ["größe"],
        ["größe!!"],
    ]
    with tarfile.open(tmp_path / "a.tar", "w", encoding="latin-1", format=tarfile.GNU_FORMAT) as tar:
        add(tar, "größe", b"1")
    assert list(unpack(tmp_path / "a.tar", tmp_path / "out")) == ["größe"]


@pytest.mark.parametrize("kind", [one for one in BUILDERS if one != "tar"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.99])
def test_a_cut_archive_is_damaged(tmp_path, kind, share):
    noise = random.Random(3)
    texts = {f"{number}.txt": noise.randbytes(30_000) for number in range(10)}
    data = build(tmp_path / "whole", texts, kind).read_bytes()
    (tmp_path / "cut").write_bytes(data[: int(len(data) * share)])
    said = refused(lambda: read_all(tmp_path / "cut"))
    assert "damaged archive" in said
    assert "fetch again" in said


def test_a_cut_tar_is_damaged(tmp_path):
    data = build(tmp_path / "whole", {"a": b"x" * 30_000, "b": b"y" * 30_000}, "tar").read_bytes()
    (tmp_path / "cut").write_bytes(data[:20_000])
    assert "damaged archive" in refused(lambda: read_all(tmp_path / "cut"))


@pytest.mark.parametrize("kind", BUILDERS)
def test_changed_bytes_are_noticed_or_belong_to_one_plain_file(tmp_path, kind):
    """A tar has no checksum of what is in its files; all the others notice every change."""
    noise = random.Random(4)
    texts = {f"{number}.txt": noise.randbytes(20_000) for number in range(5)}
    data = bytearray(build(tmp_path / "whole", texts, kind).read_bytes())
    noticed = 0
    for place in noise.sample(range(len(data)), 12):
        changed = bytes(data[:place]) + bytes([data[place] ^ 0x55]) + bytes(data[place + 1 :])
        (tmp_path / "changed").write_bytes(changed)
        try:
            found = read_all(tmp_path / "changed")
        except DataError:
            noticed += 1
            continue
        if kind != "tar":  # where nothing is said, nothing of the text may be different
            assert found == texts or set(found) != set(texts)
    assert kind == "tar" or noticed >= 9


def test_what_is_missing_is_said(tmp_path):
    assert "No such file" in refused(lambda: list(members(tmp_path / "none.zip")))


def test_a_method_that_nobody_knows_is_said(tmp_path):
    path = build(tmp_path / "a.zip", {"a": b"x" * 100}, "zip")
    data = bytearray(path.read_bytes())
    for magic, place in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        at = data.rindex(magic)
        data[at + place : at + place + 2] = struct.pack("<H", 77)
    path.write_bytes(data)
    assert "damaged archive" in refused(lambda: read_all(path))


def test_a_wrong_checksum_is_said(tmp_path):
    path = build(tmp_path / "a.zip", {"a": b"x" * 100}, "zip")
    sum_of_it = struct.pack("<I", zlib.crc32(b"x" * 100))
    path.write_bytes(path.read_bytes().replace(sum_of_it, b"\0\1\2\3"))
    assert "damaged archive" in refused(lambda: read_all(path))
