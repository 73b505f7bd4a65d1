"""Line-aligned corpora: in one archive or several files, and every way in which the sides do not belong together."""

import gzip
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from published import gzipped, tarred, zipped

from nmtkit.core.errors import DataError
from nmtkit.corpora.aligned import AlignedReader, ParallelFiles
from nmtkit.corpora.readers import Pair

EN = ["A dog runs.", "Two women sing.", "The bus is late."]
DE = ["Ein Hund rennt.", "Zwei Frauen singen.", "Der Bus hat Verspätung."]


def read(parts: list[ParallelFiles], *files: Path) -> list[Pair]:
    """All pairs."""
    return list(AlignedReader(parts=parts).pairs(files, Counter()))


def texts(pairs: list[Pair]) -> list[tuple[str, str]]:
    """Their two sides."""
    return [(pair.src, pair.tgt) for pair in pairs]


BOTH = list(zip(EN, DE, strict=True))


def test_moses_zip(tmp_path: Path) -> None:
    archive = zipped(
        tmp_path / "de-en.txt.zip",
        {
            "README": "A corpus.",
            "LICENSE": "Free.",
            "Books.de-en.de": DE,
            "Books.de-en.en": EN,
            "Books.de-en.xml": "<x/>",
        },
    )
    part = ParallelFiles(src="de-en.txt.zip:Books.de-en.en", tgt="de-en.txt.zip:Books.de-en.de")
    pairs = read([part], archive)
    assert texts(pairs) == BOTH
    assert {(pair.group, pair.split) for pair in pairs} == {("", "")}


@pytest.mark.parametrize("name", ["all.tgz", "all.tar"])
def test_tar_with_folders_whichever_side_comes_first(tmp_path: Path, name: str) -> None:
    archive = tarred(tmp_path / name, {"training/a.de": DE, "training/b.txt": "x", "training/a.en": EN})
    there = read([ParallelFiles(src=f"{name}:training/a.en", tgt=f"{name}:training/a.de", split="train")], archive)
    back = read([ParallelFiles(src=f"{name}:training/a.de", tgt=f"{name}:training/a.en", split="train")], archive)
    assert texts(there) == BOTH
    assert texts(back) == [(de, en) for en, de in BOTH]


def test_single_files_plain_and_packed_and_the_splits_of_the_corpus(tmp_path: Path) -> None:
    files = [gzipped(tmp_path / "train.en.gz", EN), gzipped(tmp_path / "train.de.gz", DE)]
    for name, lines in (("val.en", EN[:1]), ("val.de", DE[:1])):
        (tmp_path / name).write_text(f"{lines[0]}\n", encoding="utf-8")
        files.append(tmp_path / name)
    parts = [
        ParallelFiles(src="train.en.gz", tgt="train.de.gz", split="train"),
        ParallelFiles(src="val.en", tgt="val.de", split="valid"),
    ]
    pairs = read(parts, *files)
    assert texts(pairs) == [*BOTH, BOTH[0]]
    assert [pair.split for pair in pairs] == ["train"] * 3 + ["valid"]


def test_gzip_files_inside_of_a_tar(tmp_path: Path) -> None:
    members = {
        f"giga.{side}.gz": gzip.compress("".join(f"{line}\n" for line in lines).encode())
        for side, lines in (("en", EN), ("de", DE))
    }
    archive = tarred(tmp_path / "giga.tar", members)
    assert texts(read([ParallelFiles(src="giga.tar:giga.en.gz", tgt="giga.tar:giga.de.gz")], archive)) == BOTH


def test_a_packed_bomb_inside_of_a_tar_is_refused(tmp_path: Path) -> None:
    bomb = gzip.compress((b"x" * 9999 + b"\n") * 2000)
    archive = tarred(tmp_path / "giga.tar", {"a.gz": bomb, "b.gz": bomb})
    with pytest.raises(DataError, match=r"giga\.tar:a\.gz: unpacks to more than 200 bytes for each byte of it"):
        read([ParallelFiles(src="giga.tar:a.gz", tgt="giga.tar:b.gz")], archive)


def test_a_broken_gzip_file_inside_of_a_tar_is_named(tmp_path: Path) -> None:
    whole = gzip.compress("".join(f"{number} words\n" for number in range(2000)).encode())
    archive = tarred(tmp_path / "giga.tar", {"a.gz": whole[: len(whole) // 2], "b.gz": whole})
    with pytest.raises(DataError, match=r"giga\.tar:a\.gz: broken gzip file after line \d+"):
        read([ParallelFiles(src="giga.tar:a.gz", tgt="giga.tar:b.gz")], archive)


@pytest.mark.parametrize(("short", "counts"), [("src", (3, 5)), ("tgt", (5, 3))])
def test_unequal_sides_are_named_with_their_counts(tmp_path: Path, short: str, counts: tuple[int, int]) -> None:
    longer = [*EN, "One more.", "And one."]
    en, de = (EN, longer) if short == "src" else (longer, EN)
    archive = zipped(tmp_path / "a.zip", {"a.en": en, "a.de": de})
    said = rf"a\.zip:a\.en has {counts[0]} lines, but a\.zip:a\.de has {counts[1]}"
    with pytest.raises(DataError, match=said):
        read([ParallelFiles(src="a.zip:a.en", tgt="a.zip:a.de")], archive)


def test_only_line_feeds_end_a_line(tmp_path: Path) -> None:
    en = "one\u2028still one\r\ntwo\x85\vstill two\r\n"
    archive = zipped(tmp_path / "a.zip", {"a.en": en, "a.de": "eins\nzwei"})
    assert texts(read([ParallelFiles(src="a.zip:a.en", tgt="a.zip:a.de")], archive)) == [
        ("one\u2028still one", "eins"),
        ("two\x85\vstill two", "zwei"),
    ]


def test_empty_lines_keep_their_place(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", {"a.en": ["one", "", "three"], "a.de": ["eins", "zwei", ""]})
    pairs = read([ParallelFiles(src="a.zip:a.en", tgt="a.zip:a.de")], archive)
    assert texts(pairs) == [("one", "eins"), ("", "zwei"), ("three", "")]


def test_entities_stay_unless_they_are_unwanted(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", {"a.en": ["don &apos;t &amp; won &apos;t"], "a.vi": ["&quot; không &quot;"]})
    places = {"src": "a.zip:a.en", "tgt": "a.zip:a.vi"}
    assert texts(read([ParallelFiles(**places)], archive)) == [("don &apos;t &amp; won &apos;t", "&quot; không &quot;")]
    assert texts(read([ParallelFiles(**places, entities=True)], archive)) == [("don 't & won 't", '" không "')]


def test_bytes_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    archive = tarred(tmp_path / "a.tgz", {"a.en": EN, "a.de": b"gut\nauch gut\nsp\xe4t\n"})
    with pytest.raises(DataError, match=r"a\.tgz:a\.de, line 3: not UTF-8 \(byte 3 of the line\)"):
        read([ParallelFiles(src="a.tgz:a.en", tgt="a.tgz:a.de")], archive)


def test_empty_texts_are_no_corpus(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", {"a.en": "", "a.de": ""})
    with pytest.raises(DataError, match=r"a\.zip:a\.en: it has no lines"):
        read([ParallelFiles(src="a.zip:a.en", tgt="a.zip:a.de")], archive)


@pytest.mark.parametrize("pack", [zipped, tarred], ids=["zip", "tar"])
def test_memory_does_not_grow_with_the_archive(
    tmp_path: Path, pack: Callable[[Path, dict[str, list[str]]], Path]
) -> None:
    lines = [f"{number} bottles hang on the wall" + f" of house {number * 7919}" * 50 for number in range(6000)]
    archive = pack(tmp_path / "a.arc", {"a.en": lines, "a.de": lines})
    size = sum(map(len, lines))
    del lines
    tracemalloc.start()
    try:
        count = sum(
            1
            for _ in AlignedReader(parts=[ParallelFiles(src="a.arc:a.en", tgt="a.arc:a.de")]).pairs(
                [archive], Counter()
            )
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 6000
    assert size > 4 << 20
    assert peak < 3 << 20
