"""The whole examination: every kind of fault at its place, nothing in clean files, several files, JSONL, stories."""

import gc
import gzip
import json
import os
import unicodedata
import weakref
from pathlib import Path

import pytest

from nmtkit.data.text.blocks import Block
from nmtkit.data.text.config import SplitFiles
from nmtkit.datacheck.characters import fix_mojibake
from nmtkit.datacheck.examine import examine
from nmtkit.datacheck.findings import Finding, SplitDiagnosis
from tests.datacheck import real_looking
from tests.datacheck.real_looking import lines_by_kind

PUBLIC = Path(os.environ.get("NMTKIT_DATA", Path(__file__).parents[3] / "shared" / "data"))
SRC, TGT = real_looking.pairs(1000)
VALID = real_looking.pairs(200, "valid")


def lines_of(finding: Finding) -> list[tuple[str, int, int | None]]:
    return [(place.file.rpartition(".")[2], place.line, place.byte) for place in finding.places]


def examined(folder: Path, src: list[str], tgt: list[str]) -> SplitDiagnosis:
    """What is found in the files of one split."""
    return examine({"train": real_looking.write(folder, "train", src, tgt)}).splits["train"]


def test_clean_files_are_read_once_and_nothing_is_found(tmp_path: Path) -> None:
    train, test = real_looking.pairs(5000), real_looking.pairs(500, "test")
    splits = real_looking.write_splits(tmp_path, train=train, valid=VALID, test=test)
    sizes: list[int] = []
    lines: list[tuple[str, int]] = []
    diagnosis = examine(
        splits,
        progress=sizes.append,
        take=lambda block: lines.extend(
            (block.split, block.line(row)) for row in range(len(block))
        ),
    )
    assert [split.pairs for split in diagnosis.splits.values()] == [5000, 200, 500]
    assert sum(sizes) == sum(
        Path(path).stat().st_size for files in splits.values() for path in files.paths()
    )
    # Train comes last: it is compared with the others.
    assert lines == [
        (name, n)
        for name in ("valid", "test", "train")
        for n in range(1, diagnosis.splits[name].pairs + 1)
    ]
    assert not diagnosis.findings()


def test_what_only_looks_like_a_fault(tmp_path: Path) -> None:
    """Mojibake, markup, pieces; and names and numbers may be the same on both sides."""
    sides = list(SRC), list(TGT)
    for row, text in enumerate(["OK.", "12 + 12 = 24", "Anna Schmidt"]):
        sides[0][row] = sides[1][row] = text
    harmless = [
        "«NÃO»",
        "„EUROPÄ“ ist",
        "l’été», dit",
        "«IRMÃ»",
        "ß“ und Ö“",
        "Å”",
        "R&D; 3 < 5 > 2",
        "a @ b",
    ]
    for row, text in enumerate([*harmless, "<<Anhang.doc>>", "x@@y"]):
        sides[1][50 + row] += f" {text}"
    assert not examined(tmp_path, *sides).findings


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
@pytest.mark.parametrize(
    "text",
    [
        "Müller straße „Gänse“ – it’s 5° à Łódź",
        "Привет мир",
        "日本語テキスト",
        "Việt Nam ngày",
        "© 2020 §5 für 3 €",
    ],
    ids=["european", "russian", "japanese", "vietnamese", "signs"],
)
def test_mojibake_is_read_again(text: str, encoding: str) -> None:
    broken = "".join(
        bytes([byte]).decode(encoding, "ignore") or chr(byte) for byte in text.encode("utf-8")
    )
    assert broken != text
    assert fix_mojibake(broken) == text
    assert fix_mojibake(text) == text


def test_blocks_with_faults_are_freed_at_once(tmp_path: Path) -> None:
    """Also before the garbage collector runs: a corpus may be larger than memory."""
    src, tgt = real_looking.pairs(20_000)
    for row in range(0, 20_000, 100):
        src[row] = f"<b>{src[row]}</b>"
    blocks: list[weakref.ref[Block]] = []
    gc.collect()
    gc.disable()
    try:
        files = {"train": real_looking.write(tmp_path, "train", src, tgt)}
        diagnosis = examine(files, quick=True, take=lambda block: blocks.append(weakref.ref(block)))
        alive = [block for block in blocks if block() is not None]
    finally:
        gc.enable()
    assert diagnosis.splits["train"].findings["markup"].count == 200
    assert len(blocks) > 3
    assert alive == []


def test_overlap_of_the_splits(tmp_path: Path) -> None:
    """Found in valid and test, where it flatters; in train, whose lines are to be taken out, the blocks tell it."""
    src, tgt = list(VALID[0]), list(VALID[1])
    src[4], tgt[4] = SRC[700], TGT[700]
    src[9], tgt[9] = SRC[10], "Une autre traduction, qui est nouvelle."
    src[14], tgt[14] = "Another source, which is new.", TGT[20]
    src[19], tgt[19] = src[4], tgt[4]
    test = [*src[30:34], SRC[3]], [""] * 5
    splits = real_looking.write_splits(tmp_path, train=(SRC, TGT), valid=(src, tgt), test=test)
    splits["test"] = SplitFiles(src=splits["test"].src)
    held_out: list[tuple[str, int]] = []

    def take(block: Block) -> None:
        for fault in block.faults:
            if fault.kind.name == "held-out":
                held_out.extend((block.split, block.line(row)) for row in fault.rows.tolist())

    diagnosis = examine(splits, take=take)
    assert held_out == [("train", 701)]
    lines = {name: lines_by_kind(split) for name, split in diagnosis.splits.items()}
    assert lines == {
        "train": {},
        "valid": {"duplicate": [20], "in-train": [5, 20], "src-in-train": [10]},
        "test": {"src-in-train": [5]},
    }
    assert diagnosis.splits["test"].tgt.words == {}
    without = examine(splits, quick=True)
    assert not {finding.kind.name for _, finding in without.findings()} & {
        "duplicate",
        "in-train",
        "src-in-train",
    }


def test_overlap_is_found_in_another_form_of_the_text(tmp_path: Path) -> None:
    """Also where a space is another one, and where letters are decomposed or full-width."""
    src, tgt = list(VALID[0]), list(VALID[1])
    src[4], tgt[4] = SRC[700].replace(" ", "\u00a0"), unicodedata.normalize("NFD", TGT[700])
    wide = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}
    src[9] = SRC[10].translate(wide)
    src[19], tgt[19] = src[3].translate(wide), tgt[3]
    diagnosis = examine(real_looking.write_splits(tmp_path, train=(SRC, TGT), valid=(src, tgt)))
    lines = lines_by_kind(diagnosis.splits["valid"])
    assert {kind: lines[kind] for kind in ("duplicate", "in-train", "src-in-train")} == {
        "duplicate": [20],
        "in-train": [5],
        "src-in-train": [10],
    }


def test_overlap_of_valid_and_test(tmp_path: Path) -> None:
    """Test is told of pairs that stand in valid, also where train holds neither or cannot be read."""
    src, tgt = real_looking.pairs(100, "test")
    src[6], tgt[6] = VALID[0][150], VALID[1][150]
    src[9] = VALID[0][151]
    src[12], tgt[12] = SRC[7], TGT[7]
    src[20], tgt[20] = "", ""  # as an empty pair of valid: that is no overlap
    valid = [*VALID[0], ""], [*VALID[1], ""]
    splits = real_looking.write_splits(tmp_path, train=(SRC, TGT), valid=valid, test=(src, tgt))
    diagnosis = examine(splits)
    here = {
        name: (finding.count, [place.line for place in finding.places])
        for name, finding in diagnosis.splits["test"].findings.items()
    }
    assert here == {"empty": (1, [21]), "in-train": (1, [13]), "in-valid": (1, [7])}
    assert diagnosis.splits["test"].findings["in-valid"].places[0].file == splits["test"].src[0]
    assert set(diagnosis.splits["valid"].findings) == {"empty"}
    splits["train"] = SplitFiles(src=str(tmp_path / "no.src"), tgt=str(tmp_path / "no.tgt"))
    alone = examine(splits).splits["test"].findings
    assert alone["in-valid"].count == 1


def test_a_pair_counts_once_and_the_places_follow_the_lines(tmp_path: Path) -> None:
    """Though both of its sides have a fault, or the target has one at an earlier line than the source."""
    sides = list(SRC), list(TGT)
    for side, rows in ((0, (9, 2, 30)), (1, (9, 0, 20, 40))):
        for row in rows:
            sides[side][row] = f"<b> {sides[side][row]}"
    sides[1][4] = "Gr\udcf6\udcdfe"
    sides[0][5] = "Gr\udcf6\udcdfe"
    findings = examined(tmp_path, *sides).findings
    places = [("tgt", 1, 1), ("src", 3, 1), ("src", 10, 1), ("tgt", 21, 1), ("src", 31, 1)]
    assert lines_of(findings["markup"]) == places
    assert findings["markup"].count == 6
    assert lines_of(findings["encoding"]) == [("tgt", 5, 3), ("src", 6, 3)]


def test_faulty_bytes_say_nothing_else(tmp_path: Path) -> None:
    """A line that cannot be read is counted, and every one of them; its pair is in no other finding."""
    src, tgt = list(SRC), list(TGT)
    for row in range(0, 1000, 10):
        tgt[row] = "\udce9 <br>"
        src[row] = ""
    split = examined(tmp_path, src, tgt)
    assert list(split.findings) == ["encoding"]
    assert split.findings["encoding"].count == 100
    assert lines_of(split.findings["encoding"])[:2] == [("tgt", 1, 1), ("tgt", 11, 1)]
    assert split.pairs == 1000


def test_lines_are_numbered_in_each_of_several_files(tmp_path: Path) -> None:
    one = real_looking.write(tmp_path, "one", SRC[:300], TGT[:300])
    src, tgt = SRC[300:], [*TGT[300:303], "", *TGT[304:]]
    two = real_looking.write(tmp_path, "two", src, tgt)
    Path(two.tgt[0]).write_bytes(gzip.compress(Path(two.tgt[0]).read_bytes()))
    split = examine({"train": SplitFiles(src=one.src + two.src, tgt=one.tgt + two.tgt)}).splits[
        "train"
    ]
    assert split.pairs == 1000
    assert list(split.findings) == ["empty"]
    assert [(place.file, place.line) for place in split.findings["empty"].places] == [
        (two.src[0], 4)
    ]


def test_a_missing_file_does_not_keep_the_others_from_being_examined(tmp_path: Path) -> None:
    missing = [str(tmp_path / f"no.{side}") for side in ("src", "tgt")]
    valid = real_looking.write(tmp_path, "valid", [*VALID[0][:10], ""], [*VALID[1][:10], "x"])
    splits = examine({"train": SplitFiles(src=missing[0], tgt=missing[1]), "valid": valid}).splits
    assert [list(split.findings) for split in splits.values()] == [["missing"], ["empty"]]
    assert [place.file for place in splits["train"].findings["missing"].places] == missing


def test_json_lines_with_faults(tmp_path: Path) -> None:
    rows = [
        json.dumps({"article": f"{a} {b}", "summary": a})
        for a, b in zip(SRC[:400], SRC[400:800], strict=True)
    ]
    rows[10] = "{"
    rows[20] = json.dumps({"article": "only this"})
    rows[30] = json.dumps({"article": SRC[0] + SRC[1], "summary": "."})
    rows[40] = rows[39]
    rows[50] = json.dumps(
        {"article": "two\nlines and \u2028 a separator", "summary": "fine as it is read"}
    )
    rows[60] = r'{"article": "half a \ud83d character", "summary": "x"}'
    rows[70] = "[]"
    path = tmp_path / "train.jsonl.gz"
    path.write_bytes(gzip.compress("".join(f"{row}\n" for row in rows).encode()))
    files = SplitFiles(jsonl=str(path), src_field="article", tgt_field="summary")
    split = examine({"train": files}, monolingual=True).splits["train"]
    assert split.pairs == 400
    assert lines_by_kind(split) == {
        "json": [11, 21, 61, 71],
        "short-target": [31],
        "duplicate": [41],
    }


def test_a_fault_in_a_huge_line(tmp_path: Path) -> None:
    sides = list(SRC), list(TGT)
    sides[0][5] = "word " * 400_000 + "\x07 end"
    findings = examined(tmp_path, *sides).findings
    assert set(findings) == {"control", "ratio", "length"}
    place = findings["control"].places[0]
    assert (place.line, place.byte) == (6, 2_000_001)
    assert len(place.text) < 120


def test_bytes_are_counted_with_the_byte_order_mark(tmp_path: Path) -> None:
    split = examined(
        tmp_path, [f"\ufeff<br>{SRC[0]}", *SRC[1:]], [f"\ufeff{TGT[0]}", "<br>", *TGT[2:]]
    )
    assert lines_of(split.findings["markup"]) == [("src", 1, 4), ("tgt", 2, 1)]


def test_an_alignment_file_of_another_length(tmp_path: Path) -> None:
    files = real_looking.write(tmp_path, "train", SRC, TGT)
    links = tmp_path / "train.align"
    links.write_text("0-0\n" * 999, encoding="utf-8")
    given = SplitFiles(src=files.src, tgt=files.tgt, alignment=str(links))
    (finding,) = examine({"train": given}).splits["train"].findings.values()
    assert (finding.kind.name, finding.count) == ("line-counts", 1)
    assert lines_of(finding) == [("align", 1000, None)]
    links.write_text("0-0\n" * 1000, encoding="utf-8")
    assert not examine({"train": given}).splits["train"].findings


def test_a_file_of_labels_that_ends_too_early(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("one\ntwo\nthree\n", encoding="utf-8")
    (tmp_path / "labels").write_text("a\nb\n", encoding="utf-8")
    given = SplitFiles(src=[str(tmp_path / "text")], labels=[str(tmp_path / "labels")])
    (finding,) = examine({"train": given}).splits["train"].findings.values()
    assert (finding.kind.name, finding.count) == ("line-counts", 1)


@pytest.mark.skipif(not PUBLIC.is_dir(), reason="the public corpora are not on this computer")
@pytest.mark.parametrize(
    ("name", "sides", "known"),
    [
        ("multi30k/raw/val", "de en", set()),
        ("tatoeba-deen/test", "de en", set()),
        ("tanaka-enja/test", "en ja", set()),
        # What is usual in a whole corpus comes from a sample of its beginning, even where it is sorted by length.
        pytest.param("tatoeba-deen/train", "de en", set(), marks=pytest.mark.slow),
        pytest.param("tanaka-enja/train", "en ja", {"duplicate"}, marks=pytest.mark.slow),
        pytest.param(
            "multi30k/raw/train", "de en", {"duplicate", "ratio", "markup"}, marks=pytest.mark.slow
        ),
        ("iwslt15-envi/tst2012", "en vi", {"markup", "duplicate", "identical"}),
        # The German and the English lines of some talks are shifted, so that lines of unlike length meet.
        ("iwslt14-deen/test", "de en", {"markup", "duplicate", "identical", "shift", "ratio"}),
    ],
)
def test_public_corpora(name: str, sides: str, known: set[str]) -> None:
    src, tgt = (str(PUBLIC / f"{name}.{side}.gz") for side in sides.split())
    split = examine({"data": SplitFiles(src=src, tgt=tgt)}).splits["data"]
    assert split.pairs > 400
    assert set(split.findings) - {"foreign", "language"} == known
    # Some of these lines are in another language indeed; a few others are names or have foreign ones.
    doubted = [
        finding.count for kind, finding in split.findings.items() if kind in ("foreign", "language")
    ]
    assert sum(doubted) <= max(1, split.pairs / 2000)
