"""Text in blocks: nothing is lost, lines are numbered as `read_lines` does, every fault has its place."""

import gzip
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from nmtkit.core.errors import DataError
from nmtkit.data.text.blocks import Block
from nmtkit.data.text.config import SplitFiles
from nmtkit.data.text.files import lines as line_files
from nmtkit.data.text.files import text_file
from nmtkit.data.text.files.encoding_messages import bad_byte_excerpt, first_bad_byte
from nmtkit.data.text.files.lines import read_lines
from nmtkit.data.text.files.text_file import TextFile
from nmtkit.data.text.reading import SplitReader, read_pairs


def read(
    path: Path,
) -> tuple[list[str], dict[int, tuple[int, str]], list[tuple[str, int, str, int]]]:
    """All lines of a file, its lines that are not UTF-8 by number, and what is wrong with the whole."""
    file = TextFile(str(path))
    text: list[str] = []
    faulty = {}
    found = []
    while count := file.fill():
        before = len(text)
        taken, rows = file.take(min(count, 999))
        text += taken
        for row in rows:
            mark = file.bom_length if before + row == 0 else 0
            faulty[before + row + 1] = (
                mark + first_bad_byte(taken[row]) + 1,
                bad_byte_excerpt(taken[row], file.guess),
            )
    for fault in file.take_faults():
        assert fault.location.file == str(path)
        assert (fault.message == "") == (fault.kind.name == "line-ends")
        found.append((fault.kind.name, fault.location.line, fault.location.text, fault.n_lines))
    return text, faulty, found


@pytest.mark.parametrize("size", [1, 2, 3, 10, 1 << 19])
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_the_same_lines_as_read_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, end: str, packed: bool
) -> None:
    """Whatever the size of the blocks, and wherever they cut a character or the end of a line."""
    monkeypatch.setattr(text_file, "BLOCK_BYTES", size)
    monkeypatch.setattr(line_files, "LINE_BYTES", size + 1)
    rng = random.Random(size)
    pieces = ["", "a", "äö", "日本語", "\u2028", "x\ry", "\x0b", "\x85", "\U0001f600", "\ufeff"]
    for last in ("", end, "\r", "z"):
        text = (
            "\ufeff"
            + end.join("".join(rng.choices(pieces, k=rng.randint(0, 4))) for _ in range(60))
            + last
        )
        path = tmp_path / "text"
        path.write_bytes(gzip.compress(text.encode("utf-8")) if packed else text.encode("utf-8"))
        assert read(path) == (list(read_lines(path)), {}, [])


@pytest.mark.parametrize(
    ("line", "byte", "told"),
    [
        ("5 € für".encode("cp1252"), 3, "as Windows-1252: 5 € für"),
        (b"\x81 \x8d", 1, "as Windows-1252: \ufffd \ufffd"),
        ("日本".encode()[:5], 4, "as Windows-1252: æ—¥æœ"),
        (b"a/\xc0\xaf..", 3, "as Windows-1252: a/À¯.."),
    ],
    ids=["cp1252", "undefined", "cut", "overlong"],
)
def test_lines_that_are_not_utf8(tmp_path: Path, line: bytes, byte: int, told: str) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"first\n" + line + "\nthird ä\n".encode() + line)
    text, faulty, found = read(path)
    assert faulty == {2: (byte, told), 4: (byte, told)}
    assert text == [
        "first",
        line.decode(errors="surrogateescape"),
        "third ä",
        line.decode(errors="surrogateescape"),
    ]
    assert not found


def test_bytes_are_counted_with_the_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbfab\xff\nab\xff\n")
    assert {line: byte for line, (byte, _) in read(path)[1].items()} == {1: 6, 2: 3}


def test_mixed_line_ends_are_told_by_those_that_are_to_be_mended(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"a\nb\nc\r\nd\ne\r\nf")
    assert read(path) == (["a", "b", "c", "d", "e", "f"], {}, [("line-ends", 3, "", 2)])
    path.write_bytes(b"a\r\n" * 5000 + b"x\n" + b"a\r\n" * 9)
    assert read(path)[2] == [("line-ends", 1, "", 5009)]
    path.write_bytes(b"a\n" * 300_000 + b"x\r\n" + b"a\n")
    assert read(path)[2] == [("line-ends", 300_001, "", 1)]


def test_files_that_are_no_utf8_text(tmp_path: Path) -> None:
    path = tmp_path / "text"
    for encoding in ("utf-16-le", "utf-16-be"):
        path.write_bytes("\ufeffein Satz\n".encode(encoding))
        assert read(path) == ([], {}, [("utf-16", 1, "UTF-16", 1)])
    path.write_bytes(b"")
    assert read(path) == ([], {}, [])
    assert read(tmp_path / "nothing") == ([], {}, [("missing", 1, "No such file or directory", 1)])
    assert read(tmp_path) == ([], {}, [("missing", 1, "not a regular file", 1)])


def test_broken_gzip_files(tmp_path: Path) -> None:
    """What lies before the fault is read."""
    path = tmp_path / "text"
    rng = random.Random(0)
    whole = [f"line {number} {rng.random()}" for number in range(40_000)]
    packed = gzip.compress("".join(f"{line}\n" for line in whole).encode())
    path.write_bytes(packed[: len(packed) * 2 // 3])
    text, _, found = read(path)
    assert 20_000 < len(text) < 30_000
    assert text == whole[: len(text)]
    assert [(kind, line) for kind, line, _, _ in found] == [("compression", len(text) + 1)]
    path.write_bytes(packed[:-8] + bytes(8))
    assert [kind for kind, _, _, _ in read(path)[2]] == ["compression"]


def test_a_file_that_cannot_be_read_any_further(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"some words\n" * 200_000)
    pieces: list[bytes] = []

    def fail(data: bytes) -> None:
        pieces.append(data)
        if len(pieces) == 3:
            raise OSError("the disk fails")

    file = TextFile(str(path), lambda _: fail)
    file.skip_rest()
    (fault,) = file.take_faults()
    assert fault.kind.name == "missing"
    assert fault.location.line == file.n_lines + 1 > 1


def test_who_watches_is_told_the_bytes_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "text"
    for content in (
        b"some words\n" * 200_000,
        gzip.compress(random.Random(0).randbytes(3_000_000)),
    ):
        path.write_bytes(content)
        told: list[bytes] = []

        def watch(opened: str, told: list[bytes] = told) -> Callable[[bytes], None]:
            assert opened == str(path)
            return told.append

        TextFile(str(path), watch).skip_rest()
        assert b"".join(told) == content
        assert len(told) > 3


def blocks_of(files: SplitFiles) -> tuple[list[Block], list[str]]:
    items = list(SplitReader("train", files))
    blocks = [item for item in items if isinstance(item, Block)]
    return blocks, [item.kind.name for item in items if not isinstance(item, Block)]


def test_pairs_of_files_in_blocks(tmp_path: Path) -> None:
    """Lines of different lengths stay paired; several files follow each other with line numbers of their own."""
    rng = random.Random(0)
    names = []
    for part, count in (("a", 30_000), ("b", 11)):
        src = [f"{part}{number} " + "x" * rng.choice([0, 5, 300]) for number in range(1, count + 1)]
        tgt = [f"{part}{number} " + "y" * rng.choice([0, 2, 20]) for number in range(1, count + 1)]
        for side, lines in (("src", src), ("tgt", tgt)):
            names.append(str(tmp_path / f"{part}.{side}"))
            Path(names[-1]).write_text("\n".join(lines), encoding="utf-8")
    blocks, found = blocks_of(SplitFiles(src=names[0::2], tgt=names[1::2]))
    assert not found
    seen = []
    for block in blocks:
        assert [line.split()[0] for line in block.src] == [line.split()[0] for line in block.tgt]
        assert block.src[0].split()[0][1:] == str(block.first)
        seen += [line.split()[0] for line in block.src]
    assert seen == [f"a{number}" for number in range(1, 30_001)] + [
        f"b{number}" for number in range(1, 12)
    ]


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(
        b'{"src": "a\\nb", "tgt": ["c", "d"]}\n'
        b"not json\n"
        b'{"src": "a"}\n'
        b'["a", "b"]\n'
        b'{"src": "a", "tgt": 3}\n'
        b"\n"
        b'{"src": "\xff", "tgt": "b"}\n'
        b'{"src": "\\ud800", "tgt": "b"}\n'
    )
    ((block,), found) = blocks_of(SplitFiles(jsonl=str(path)))
    assert not found
    assert block.src[0] == "a b"
    assert block.tgt[0] == "c d"
    assert len(block) == 8
    by_kind = {fault.kind.name: fault for fault in block.faults}
    assert (by_kind["json"].rows + 1).tolist() == [2, 3, 4, 5, 6, 8]
    assert (by_kind["encoding"].rows + 1).tolist() == [7]
    texts = [by_kind["json"].locate(row) for row in by_kind["json"].rows.tolist()]
    assert [place.line for place in texts] == [2, 3, 4, 5, 6, 8]
    wanted = [
        "not valid JSON",
        "no field 'tgt'",
        "expected a JSON object, but found a value of type list",
        "field 'tgt' is neither",
    ]
    wanted += ["not valid JSON", "surrogates not allowed"]
    assert all(words in place.text for place, words in zip(texts, wanted, strict=True))
    with pytest.raises(DataError, match=r"data\.jsonl, line 2: not valid JSON"):
        list(read_pairs(SplitFiles(jsonl=str(path))))


def test_stories(tmp_path: Path) -> None:
    (tmp_path / "a.story").write_text("An article.\n\n@highlight\n\nA summary\n", encoding="utf-8")
    (tmp_path / "b.story").write_text("An article without a summary.\n", encoding="utf-8")
    ((block,), found) = blocks_of(SplitFiles(stories=str(tmp_path)))
    assert not found
    assert (block.src[0], block.tgt) == ("An article.", ["A summary.", ""])
    assert [(fault.kind.name, fault.rows.tolist()) for fault in block.faults] == [("story", [1])]
    assert block.faults[0].locate(1).file == str(tmp_path / "b.story")
    blocks, found = blocks_of(SplitFiles(stories=str(tmp_path / "nothing")))
    assert (blocks, found) == ([], ["missing"])


def test_the_beginning_of_each_file_can_be_read_ahead(tmp_path: Path) -> None:
    names = [str(tmp_path / f"{part}") for part in range(3)]
    for part, name in enumerate(names):
        Path(name).write_text(
            "".join(f"{part} {number}\n" for number in range(9)), encoding="utf-8"
        )
    reader = SplitReader("train", SplitFiles(src=names), lambda path: opened.append(path) or len)
    opened: list[str] = []
    assert [next(reader.peek(part)).src[0] for part in range(reader.parts)] == ["0 0", "1 0", "2 0"]
    blocks = [item for item in reader if isinstance(item, Block)]
    assert [(block.src[0], block.offset) for block in blocks] == [
        ("0 0", 0),
        ("1 0", 9),
        ("2 0", 18),
    ]
    assert opened == names


def test_a_single_file_is_opened_once_though_its_beginning_was_looked_at(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes(b"a b\n\xff\n" + b"".join(b"%d\n" % number for number in range(20_000)))
    files = SplitFiles(src=[str(file)])
    straight = [
        (block.offset, block.src)
        for block in SplitReader("train", files)
        if isinstance(block, Block)
    ]
    opened: list[str] = []
    reader = SplitReader("train", files, lambda path: opened.append(path) or len)
    assert next(reader.peek(0)).src[0] == "a b"
    for _ in range(2):  # a second reading begins anew
        assert straight == [
            (block.offset, block.src) for block in reader if isinstance(block, Block)
        ]
    assert opened == [str(file)] * 2
