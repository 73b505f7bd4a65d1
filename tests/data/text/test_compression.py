"""Compressed text: recognized by its first bytes, and damage is one clear error."""

import bz2
import gzip
import lzma
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nmtkit.core.errors import DataError
from nmtkit.data.text.files.lines import read_lines
from nmtkit.data.text.files.text_file import TextFile

LINES = [f"line {number} ä {random.Random(number).random()}" for number in range(30_000)]
TEXT = "".join(f"{line}\n" for line in LINES).encode()


def zstd(data: bytes) -> bytes:
    library = pytest.importorskip("zstandard", reason="the package zstandard is not installed")
    compressed: bytes = library.ZstdCompressor().compress(data)
    return compressed


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstd,
}


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_compressed_text_is_recognized_by_content(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "text"  # whatever its name
    compress = COMPRESSORS[kind]
    # several members are one text
    for content in (compress(TEXT), compress(TEXT[:1_000]) + compress(TEXT[1_000:])):
        path.write_bytes(content)
        assert list(read_lines(path)) == LINES
        file = TextFile(str(path))
        assert file.fill(len(LINES)) == len(LINES)
        assert file.take(len(LINES)) == (LINES, [])


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_damaged_files_are_one_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "text"
    whole = COMPRESSORS[kind](TEXT)
    damaged = {
        "cut in the middle": whole[: len(whole) // 2],
        "cut near its end": whole[:-5],
        "cut at its beginning": whole[:8],
        "changed": whole[: len(whole) // 2] + bytes(100) + whole[len(whole) // 2 + 100 :],
    }
    for content in damaged.values():
        path.write_bytes(content)
        with pytest.raises(
            DataError, match=f"text.*: broken {kind} file .*download or compress it again"
        ):
            list(read_lines(path))
        file = TextFile(str(path))
        file.skip_rest()
        assert [fault.kind.name for fault in file.take_faults()] == ["compression"]


def test_the_lines_before_the_damage_are_counted(tmp_path: Path) -> None:
    """A bad byte in a later line of a truncated archive is part of the damage."""
    path = tmp_path / "text"
    path.write_bytes(gzip.compress(b"good\n" * 100 + b"bad \xff\n")[:-8])
    with pytest.raises(DataError, match=r"broken gzip file .*; the first 100 lines could be read"):
        list(read_lines(path))


@pytest.mark.parametrize("name", ["a.tsv", "a.tmx"])
def test_a_damaged_table_is_a_damaged_archive(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.gz"
    units = "".join(f'<tu><tuv xml:lang="1"><seg>{line}</seg></tuv></tu>\n' for line in LINES[:700])
    texts = {
        "a.tsv": "".join(f"{line}\tx\n" for line in LINES[:700]),
        "a.tmx": f"<tmx><body>{units}</body></tmx>",
    }
    path.write_bytes(gzip.compress(texts[name].encode())[:-8])
    file = TextFile(f"{path}#1")
    assert file.fill(700) == 700  # also the last ones, which do not fill a block
    assert file.take(700)[0] == LINES[:700]
    file.skip_rest()
    (fault,) = file.take_faults()
    assert (fault.kind.name, fault.location.line) == ("compression", 701)
    assert "the first 700 lines could be read" in fault.message
    with pytest.raises(DataError, match=f"{name}.gz: broken gzip file"):
        list(read_lines(f"{path}#1"))


def test_zstd_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"\x28\xb5\x2f\xfd\x24\x02")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(DataError, match=r"text: compressed with zstd; .*pip install zstandard"):
        list(read_lines(path))


def test_compressed_text_in_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(bz2.compress("Où ?\nLà.\n".encode("utf-16")))
    assert list(read_lines(path, "utf-16")) == ["Où ?", "Là."]
    with pytest.raises(DataError, match="this is UTF-16"):
        list(read_lines(path))
