"""The whole examination: every kind of fault at its place, nothing in clean files, several files, JSONL, stories."""

import gzip
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import real_looking

from nmtkit.corpus.config import SplitFiles
from nmtkit.corpus.faults import KINDS
from nmtkit.diagnosis.characters import fix_mojibake
from nmtkit.diagnosis.examine import examine, examine_blocks
from nmtkit.diagnosis.findings import Diagnosis, Finding, SplitDiagnosis

PUBLIC = Path(os.environ.get("NMTKIT_DATA", Path(__file__).parents[3] / "shared" / "data"))
SRC, TGT = real_looking.pairs(2000)
VALID = real_looking.pairs(200, "valid")


def lines_of(finding: Finding) -> list[tuple[str, int, int | None]]:
    return [(place.file.rpartition(".")[2], place.line, place.byte) for place in finding.places]


def examined(folder: Path, src: Sequence[str], tgt: Sequence[str], task: str = "translation") -> SplitDiagnosis:
    """What is found in the files of one split."""
    files = real_looking.write(folder, "train", list(src), list(tgt))
    return examine({"train": files}, monolingual=task == "summarization").splits["train"]


def test_nothing_is_found_in_clean_files(tmp_path: Path) -> None:
    splits = {
        "train": real_looking.write(tmp_path, "train", *real_looking.pairs(20_000)),
        "valid": real_looking.write(tmp_path, "valid", *VALID),
        "test": real_looking.write(tmp_path, "test", *real_looking.pairs(1000, "test")),
    }
    diagnosis = examine(splits)
    assert [split.pairs for split in diagnosis.splits.values()] == [20_000, 200, 1000]
    found = [(name, finding.kind.name) for name, finding in diagnosis.findings()]
    assert set(found) <= {("valid", "tgt-in-train"), ("test", "tgt-in-train")}
    for _, finding in diagnosis.findings():  # "They sleep." and "You sleep." are the same in French for some verbs
        assert all(len(place.text) < 60 for place in finding.places)


ONE_SIDE = [
    ("nul", "Ein\0 Wort", 4),
    ("separator", "Ein\u2028Wort", 4),
    ("separator", "Größe\u2029", 8),
    ("separator", "Ein\x85Wort", 4),
    ("separator", "\vEin", 1),
    ("separator", "Ein\fWort", 4),
    ("separator", "Ein\x1cWort", 4),
    ("separator", "Ein\rWort", 4),
    ("bom", "Ein \ufeffWort", 5),
    ("control", "Ein\x07 Wort", 4),
    ("control", "é\x90", 3),
    ("replaced", "M\ufffdller", 2),
    ("mojibake", "für MÃ¼ller", 7),
    ("mojibake", "itâ€™s", 3),
    ("mojibake", "ÐŸÑ€Ð¸Ð²ÐµÑ‚", 1),
    ("markup", "Tom &amp;amp; Jerry", 5),
    ("markup", "one<br>two", 4),
    ("markup", "it&#39;s", 3),
    ("pieces", "ein Haus@@ tür", 8),
    ("pieces", "\u2581ein \u2581Haus", 1),
]


ODD = [
    pytest.param(kind, words, byte, id=f"{kind}-{n}", marks=[pytest.mark.slow] * (n > 0 and ONE_SIDE[n - 1][0] == kind))
    for n, (kind, words, byte) in enumerate(ONE_SIDE)
]
"""One of each kind in `make test`."""


@pytest.mark.parametrize(("kind", "words", "byte"), ODD)
def test_odd_characters(tmp_path: Path, kind: str, words: str, byte: int) -> None:
    for side in (0, 1):
        sides = [list(SRC), list(TGT)]
        for line in (7, 1234, 2000):
            sides[side][line - 1] = f"{words} {sides[side][line - 1]}"
        findings = examined(tmp_path, *sides).findings
        assert list(findings) == [kind]
        assert findings[kind].count == 3
        assert lines_of(findings[kind]) == [(("src", "tgt")[side], line, byte) for line in (7, 1234, 2000)]
        assert words.strip("\v\ufeff")[:3] in findings[kind].places[0].text


@pytest.mark.parametrize(
    "text",
    [
        "«NÃO»",
        "„EUROPÄ“ ist",
        "l’été», dit",
        "«IRMÃ»",
        "ß“ und Ö“",
        "Å”",
        "R&D; 3 < 5 > 2",
        "a @ b",
        "<<Anhang.doc>>",
        "x@@y",
    ],
    ids=range(10),
)
def test_what_only_looks_like_mojibake_or_markup(tmp_path: Path, text: str) -> None:
    sides = list(SRC), list(TGT)
    sides[1][50] += f" {text}"
    assert not examined(tmp_path, *sides).findings


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
@pytest.mark.parametrize(
    "text",
    ["Müller straße „Gänse“ – it’s 5° à Łódź", "Привет мир", "日本語テキスト", "Việt Nam ngày", "© 2020 §5 für 3 €"],
    ids=["european", "russian", "japanese", "vietnamese", "signs"],
)
def test_mojibake_is_read_again(text: str, encoding: str) -> None:
    broken = "".join(bytes([byte]).decode(encoding, "ignore") or chr(byte) for byte in text.encode("utf-8"))
    assert broken != text
    assert fix_mojibake(broken) == text
    assert fix_mojibake(text) == text


def test_pairs(tmp_path: Path) -> None:
    """Every fault that lies in a pair, each at lines of its own."""
    src, tgt = list(SRC), list(TGT)
    src[9], tgt[19] = "", " \u3000 "
    tgt[29] = src[29]
    src[39], tgt[39] = src[38], tgt[38]
    src[49] += " " + " ".join(SRC[60:75])
    src[59], tgt[59] = " ".join(SRC[100:300]), " ".join(TGT[100:300])
    tgt[69] = "Это совсем другой язык."
    src[79], tgt[79] = f"{TGT[79]} {TGT[80]}", f"{SRC[79]} {SRC[80]}"
    src[89], tgt[89] = f"{SRC[89]} {SRC[90]}", f"{SRC[500]} {SRC[501]}"
    src[99], tgt[99] = f"{SRC[99]} {SRC[100]}", "..."
    findings = examined(tmp_path, src, tgt).findings
    assert {name: [place.line for place in finding.places] for name, finding in findings.items()} == {
        "empty": [10, 20],
        "identical": [30],
        "duplicate": [40],
        "ratio": [50],
        "length": [60],
        "script": [70],
        "swapped": [80],
        "language": [90],
        "short-target": [100],
    }
    assert findings["empty"].places[0].text.startswith(f" ||| {TGT[9][:50]}")
    assert findings["script"].places[0].file.endswith(".tgt")


def test_names_and_numbers_may_be_the_same_on_both_sides(tmp_path: Path) -> None:
    sides = list(SRC), list(TGT)
    for row, text in enumerate(["OK.", "12 + 12 = 24", "Anna Schmidt"]):
        sides[0][row] = sides[1][row] = text
    assert not examined(tmp_path, *sides).findings


def test_overlap_of_the_splits(tmp_path: Path) -> None:
    """Found in valid and test, where it flatters; in train, whose lines are to be taken out, the blocks tell it."""
    src, tgt = list(VALID[0]), list(VALID[1])
    src[4], tgt[4] = SRC[1500], TGT[1500]
    src[9], tgt[9] = SRC[10], "Une autre traduction, qui est nouvelle."
    src[14], tgt[14] = "Another source, which is new.", TGT[20]
    src[19], tgt[19] = src[4], tgt[4]
    splits = {
        "train": real_looking.write(tmp_path, "train", SRC, TGT),
        "valid": real_looking.write(tmp_path, "valid", src, tgt),
        "test": SplitFiles(src=real_looking.write(tmp_path, "test", [*src[30:34], SRC[3]], [""] * 5).src),
    }
    diagnosis = Diagnosis()
    held_out = [
        (block.split, block.line(row))
        for block in examine_blocks(splits, diagnosis)
        for fault in block.faults
        if fault.kind.name == "held-out"
        for row in fault.rows.tolist()
    ]
    assert held_out == [("train", 1501)]
    found = {
        (split, finding.kind.name): [place.line for place in finding.places] for split, finding in diagnosis.findings()
    }
    known = found.pop(("valid", "tgt-in-train"))
    assert 15 in known
    assert found == {
        ("valid", "duplicate"): [20],
        ("valid", "in-train"): [5, 20],
        ("valid", "src-in-train"): [10],
        ("test", "src-in-train"): [5],
        ("test", "src-in-valid"): [1, 2, 3, 4],
    }
    assert diagnosis.splits["test"].tgt.words == {}
    without = examine(splits, duplicates=False)
    assert not {finding.kind.name for _, finding in without.findings()} & {"duplicate", "in-train", "src-in-train"}


def test_overlap_of_valid_and_test(tmp_path: Path) -> None:
    """Test is told of pairs that stand in valid, also where train holds neither or cannot be read."""
    src, tgt = real_looking.pairs(100, "test")
    src[6], tgt[6] = VALID[0][150], VALID[1][150]
    src[9] = VALID[0][151]
    src[12], tgt[12] = SRC[7], TGT[7]
    src[20], tgt[20] = "", ""  # as an empty pair of valid: that is no overlap
    valid = [*VALID[0], ""], [*VALID[1], ""]
    splits = {
        "train": real_looking.write(tmp_path, "train", SRC, TGT),
        "valid": real_looking.write(tmp_path, "valid", *valid),
        "test": real_looking.write(tmp_path, "test", src, tgt),
    }
    diagnosis = examine(splits)
    here = {
        name: (finding.count, [place.line for place in finding.places])
        for name, finding in diagnosis.splits["test"].findings.items()
        if name != "tgt-in-train"
    }
    assert here == {"empty": (1, [21]), "in-train": (1, [13]), "in-valid": (1, [7]), "src-in-valid": (1, [10])}
    assert diagnosis.splits["test"].findings["in-valid"].places[0].file == splits["test"].src[0]
    assert set(diagnosis.splits["valid"].findings) <= {"empty", "tgt-in-train"}
    splits["train"] = SplitFiles(src=str(tmp_path / "no.src"), tgt=str(tmp_path / "no.tgt"))
    alone = examine(splits).splits["test"].findings
    assert (alone["in-valid"].count, alone["src-in-valid"].count) == (1, 1)


def test_a_pair_counts_once_and_the_places_follow_the_lines(tmp_path: Path) -> None:
    """Though both of its sides have a fault, or the target has one at an earlier line than the source."""
    sides = list(SRC), list(TGT)
    for row in (9, 2, 30):
        sides[0][row] = f"<b> {sides[0][row]}"
    for row in (9, 0, 20, 40):
        sides[1][row] = f"<i> {sides[1][row]}"
    sides[1][4] = "Gr\udcf6\udcdfe"
    sides[0][5] = "Gr\udcf6\udcdfe"
    findings = examined(tmp_path, *sides).findings
    assert lines_of(findings["markup"]) == [
        ("tgt", 1, 1),
        ("src", 3, 1),
        ("src", 10, 1),
        ("tgt", 21, 1),
        ("src", 31, 1),
    ]
    assert findings["markup"].count == 6
    assert lines_of(findings["encoding"]) == [("tgt", 5, 3), ("src", 6, 3)]


def test_no_kind_has_more_than_all_pairs(tmp_path: Path) -> None:
    findings = examined(tmp_path, [f"<b> {line}" for line in SRC], [f"<i> {line}" for line in TGT]).findings
    assert findings["markup"].count == len(SRC)


def test_faulty_bytes_say_nothing_else(tmp_path: Path) -> None:
    """A line that cannot be read is counted, and every one of them; its pair is in no other finding."""
    src, tgt = list(SRC), list(TGT)
    for row in range(0, 2000, 10):
        tgt[row] = "\udce9 <br>"
        src[row] = ""
    split = examined(tmp_path, src, tgt)
    assert list(split.findings) == ["encoding"]
    assert split.findings["encoding"].count == 200
    assert lines_of(split.findings["encoding"])[:2] == [("tgt", 1, 1), ("tgt", 11, 1)]
    assert split.pairs == 2000


def test_lines_are_numbered_in_each_of_several_files(tmp_path: Path) -> None:
    one = real_looking.write(tmp_path, "one", SRC[:700], TGT[:700])
    src, tgt = SRC[700:], [*TGT[700:703], "", *TGT[704:]]
    two = real_looking.write(tmp_path, "two", src, tgt)
    Path(two.tgt[0]).write_bytes(gzip.compress(Path(two.tgt[0]).read_bytes()))
    split = examine({"train": SplitFiles(src=one.src + two.src, tgt=one.tgt + two.tgt)}).splits["train"]
    assert split.pairs == 2000
    assert list(split.findings) == ["empty"]
    assert [(place.file, place.line) for place in split.findings["empty"].places] == [(two.src[0], 4)]


def test_a_missing_file_does_not_keep_the_others_from_being_examined(tmp_path: Path) -> None:
    splits = {
        "train": SplitFiles(src=str(tmp_path / "no.src"), tgt=str(tmp_path / "no.tgt")),
        "valid": real_looking.write(tmp_path, "valid", [*VALID[0][:10], ""], [*VALID[1][:10], "x"]),
    }
    diagnosis = examine(splits)
    assert {name: list(split.findings) for name, split in diagnosis.splits.items()} == {
        "train": ["missing"],
        "valid": ["empty"],
    }
    assert [place.file for place in diagnosis.splits["train"].findings["missing"].places] == [
        str(tmp_path / "no.src"),
        str(tmp_path / "no.tgt"),
    ]


def test_json_lines_with_faults(tmp_path: Path) -> None:
    rows = [json.dumps({"article": f"{a} {b}", "summary": a}) for a, b in zip(SRC[:600], SRC[600:1200], strict=True)]
    rows[10] = "{"
    rows[20] = json.dumps({"article": "only this"})
    rows[30] = json.dumps({"article": SRC[0] + SRC[1], "summary": "."})
    rows[40] = rows[39]
    rows[50] = json.dumps({"article": "two\nlines and \u2028 a separator", "summary": "fine as it is read"})
    path = tmp_path / "train.jsonl.gz"
    path.write_bytes(gzip.compress("".join(f"{row}\n" for row in rows).encode()))
    files = SplitFiles(jsonl=str(path), src_field="article", tgt_field="summary")
    split = examine({"train": files}, monolingual=True).splits["train"]
    assert split.pairs == 600
    assert {name: [place.line for place in finding.places] for name, finding in split.findings.items()} == {
        "json": [11, 21],
        "short-target": [31],
        "duplicate": [41],
    }


def test_a_mark_of_ten_thousand_bytes_and_a_huge_line(tmp_path: Path) -> None:
    """Neither is cut or lost, and what is shown of it is short."""
    sides = list(SRC), list(TGT)
    sides[0][5] = "word " * 400_000 + "\x07 end"
    findings = examined(tmp_path, *sides).findings
    assert set(findings) == {"control", "ratio", "length"}
    place = findings["control"].places[0]
    assert (place.line, place.byte) == (6, 2_000_001)
    assert len(place.text) < 120


def test_progress_tells_all_bytes(tmp_path: Path) -> None:
    files = real_looking.write(tmp_path, "train", SRC, TGT)
    told: list[int] = []
    examine({"train": files}, progress=told.append)
    assert sum(told) == sum(Path(path).stat().st_size for path in files.paths())


def test_blocks_hold_every_line_once(tmp_path: Path) -> None:
    splits = {
        "train": real_looking.write(tmp_path, "train", *real_looking.pairs(15_000)),
        "valid": real_looking.write(tmp_path, "valid", *VALID),
    }
    seen: dict[str, list[int]] = {"train": [], "valid": []}
    order = []
    for block in examine_blocks(splits, Diagnosis()):
        order.append(block.split)
        seen[block.split] += [block.line(row) for row in range(len(block))]
    assert seen == {"train": list(range(1, 15_001)), "valid": list(range(1, 201))}
    assert order == sorted(order, reverse=True)  # valid first: train goes by what is held out


def test_bytes_are_counted_with_the_byte_order_mark(tmp_path: Path) -> None:
    split = examined(tmp_path, [f"\ufeff<br>{SRC[0]}", *SRC[1:]], [f"\ufeff{TGT[0]}", "<br>", *TGT[2:]])
    assert lines_of(split.findings["markup"]) == [("src", 1, 4), ("tgt", 2, 1)]


def test_an_alignment_file_of_another_length(tmp_path: Path) -> None:
    files = real_looking.write(tmp_path, "train", SRC, TGT)
    links = tmp_path / "train.align"
    links.write_text("0-0\n" * 1999, encoding="utf-8")
    given = SplitFiles(src=files.src, tgt=files.tgt, alignment=str(links))
    (finding,) = examine({"train": given}).splits["train"].findings.values()
    assert (finding.kind.name, finding.count) == ("line-counts", 1)
    assert lines_of(finding) == [("align", 2000, None)]
    links.write_text("0-0\n" * 2000, encoding="utf-8")
    assert not examine({"train": given}).splits["train"].findings


def test_every_kind_can_be_found() -> None:
    """Each of the table is planted in a test of this folder."""
    text = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    assert len(KINDS) >= 25
    assert not {name for name in KINDS if f'"{name}"' not in text}


@pytest.mark.skipif(not PUBLIC.is_dir(), reason="the public corpora are not on this computer")
@pytest.mark.parametrize(
    ("src", "tgt", "known"),
    [
        ("multi30k/raw/val.de.gz", "multi30k/raw/val.en.gz", set()),
        ("tatoeba-deen/test.de.gz", "tatoeba-deen/test.en.gz", set()),
        ("tanaka-enja/test.en.gz", "tanaka-enja/test.ja.gz", set()),
        # Of whole corpora a sample from their beginning tells what is usual, also of one that is sorted by length.
        ("tatoeba-deen/train.de.gz", "tatoeba-deen/train.en.gz", set()),
        ("tanaka-enja/train.en.gz", "tanaka-enja/train.ja.gz", {"duplicate"}),
        ("multi30k/raw/train.de.gz", "multi30k/raw/train.en.gz", {"duplicate", "ratio", "markup"}),
        ("iwslt15-envi/tst2012.en.gz", "iwslt15-envi/tst2012.vi.gz", {"markup", "duplicate", "identical"}),
        # Of some talks the German and the English lines are shifted there, so that lines of unlike length meet.
        ("iwslt14-deen/test.de.gz", "iwslt14-deen/test.en.gz", {"markup", "duplicate", "identical", "shift", "ratio"}),
    ],
    ids=["multi30k", "tatoeba", "tanaka", "tatoeba-train", "tanaka-train", "multi30k-train", "iwslt15", "iwslt14"],
)
def test_public_corpora(src: str, tgt: str, known: set[str]) -> None:
    split = examine({"data": SplitFiles(src=str(PUBLIC / src), tgt=str(PUBLIC / tgt))}).splits["data"]
    assert split.pairs > 400
    assert set(split.findings) - {"foreign"} == known
    # Some of these lines are in another language indeed; a short one with a date may seem to be.
    assert "foreign" not in split.findings or split.findings["foreign"].count <= max(1, split.pairs / 5000)


def test_random_faults_are_all_counted(tmp_path: Path) -> None:
    rng = random.Random(3)
    src, tgt = list(SRC), list(TGT)
    rows = rng.sample(range(2000), 300)
    for row in rows[:100]:
        tgt[row] = ""
    for row in rows[100:200]:
        src[row] += "\u2028"
    for row in rows[200:]:
        tgt[row] = tgt[row].replace(" ", " \ufffd", 1)
    findings = examined(tmp_path, src, tgt).findings
    assert {name: finding.count for name, finding in findings.items()} == dict.fromkeys(
        ("empty", "separator", "replaced"), 100
    )
    assert [place.line for place in findings["empty"].places] == sorted(row + 1 for row in rows[:100])[:5]
