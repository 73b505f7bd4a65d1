"""Every kind of fault, planted at known lines of a clean corpus, is found there and nowhere else."""

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from nmtkit.corpus import faults
from nmtkit.corpus.config import SplitFiles
from nmtkit.corpus.faults import FaultKind
from nmtkit.diagnosis.examine import examine
from nmtkit.diagnosis.findings import EXAMPLES, Diagnosis

DEMO = Path(__file__).resolve().parents[2] / "data/demo-en-fr"
SIZES = {"train": 3000, "valid": 400, "test": 400}
Lines = dict[str, list[bytes]]


def demo() -> Lines:
    """The first pairs of the demo, by the names of their files."""
    return {
        f"{split}.{side}": gzip.open(DEMO / f"{split}.{side}.gz").read().splitlines()[:size]
        for split, size in SIZES.items()
        for side in ("en", "fr")
    }


CLEAN = demo()


def write(folder: Path, lines: Lines) -> dict[str, SplitFiles]:
    """The corpus on disk."""
    for name, rows in lines.items():
        (folder / name).write_bytes(b"".join(row + b"\n" for row in rows))
    return {
        split: SplitFiles(src=[str(folder / f"{split}.en")], tgt=[str(folder / f"{split}.fr")])
        for split in SIZES
        if f"{split}.en" in lines
    }


@dataclass(frozen=True)
class Found:
    """Where a kind of fault was found."""

    count: int
    places: list[tuple[str, int, int | None]]


def found(diagnosis: Diagnosis) -> dict[tuple[str, str], Found]:
    """By split and kind."""
    return {
        (split, finding.kind.name): Found(
            finding.count, [(Path(place.file).name, place.line, place.byte) for place in finding.places]
        )
        for split, finding in diagnosis.findings()
    }


def look(folder: Path, lines: Lines) -> dict[tuple[str, str], Found]:
    """What is found in a corpus."""
    return found(examine(write(folder, lines)))


def copy() -> Lines:
    """The clean corpus, to plant something in."""
    return {name: list(rows) for name, rows in CLEAN.items()}


def test_nothing_is_found_in_the_clean_corpus(tmp_path: Path) -> None:
    assert look(tmp_path, CLEAN) == {}


@dataclass(frozen=True)
class Plant:
    """A fault of single lines: what it makes of a line, and the byte where it is to be found there."""

    name: str
    kind: FaultKind
    change: Callable[[bytes], bytes]
    byte: int | None
    side: str = "en"


PLANTS = [
    Plant("latin-1", faults.ENCODING, lambda line: b"caf\xe9 " + line, 4),
    Plant("cut-character", faults.ENCODING, lambda line: line + b" \xc3", -1, "fr"),
    Plant("overlong", faults.ENCODING, lambda line: b"a\xc0\xaf" + line, 2),
    Plant("lone-surrogate", faults.ENCODING, lambda line: b"ab\xed\xa0\x80" + line, 3),
    Plant("nul", faults.NUL, lambda line: b"A\0 " + line, 2),
    Plant("line-separator", faults.SEPARATOR, lambda line: b"Yes.\xe2\x80\xa8" + line, 5),
    Plant("paragraph-separator", faults.SEPARATOR, lambda line: b"Yes.\xe2\x80\xa9" + line, 5, "fr"),
    Plant("next-line", faults.SEPARATOR, lambda line: b"Yes.\xc2\x85" + line, 5),
    Plant("carriage-return", faults.SEPARATOR, lambda line: b"Yes.\r" + line, 5),
    Plant("form-feed", faults.SEPARATOR, lambda line: b"Yes.\x0c" + line, 5, "fr"),
    Plant("byte-order-mark", faults.BOM, lambda line: b"\xef\xbb\xbf" + line, 1),
    Plant("control", faults.CONTROL, lambda line: b"B\x07 " + line, 2),
    Plant("replacement", faults.REPLACED, lambda line: b"caf\xef\xbf\xbd " + line, 4),
    Plant("mojibake", faults.MOJIBAKE, lambda line: "café été ".encode().decode("cp1252").encode() + line, 4),
    Plant("entity", faults.MARKUP, lambda line: b"Q&amp;A " + line, 2),
    Plant("tag", faults.MARKUP, lambda line: b"<b>" + line + b"</b>", 1, "fr"),
    Plant("pieces", faults.PIECES, lambda line: b"win@@ dow " + line, None),
]
"""Faults that a byte tells."""

AT = (2, 37, 1500, 2999, 3000)
"""The lines where they are planted: beginning, middle and end of the file."""


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_a_fault_of_characters_is_found_at_its_byte(plant: Plant, tmp_path: Path) -> None:
    lines = copy()
    rows = lines[f"train.{plant.side}"]
    expected = []
    for number in AT:
        before = rows[number - 1]
        rows[number - 1] = plant.change(before)
        byte = len(rows[number - 1]) if plant.byte == -1 else plant.byte
        expected.append((f"train.{plant.side}", number, byte))
    here = look(tmp_path, lines)
    assert set(here) == {("train", plant.kind.name)}
    (only,) = here.values()
    assert only.count == len(AT) == EXAMPLES
    assert [place[:2] for place in only.places] == [place[:2] for place in expected]
    if plant.byte is not None:
        assert only.places == expected


def swap(lines: Lines, split: str, number: int) -> None:
    src, tgt = lines[f"{split}.en"], lines[f"{split}.fr"]
    src[number - 1], tgt[number - 1] = tgt[number - 1], src[number - 1]


def longest(lines: Lines, number: int, side: str = "en") -> bytes:
    """A long line, another one for every number."""
    rows = lines[f"train.{side}"]
    return b" ".join(rows[number + 1 : number + 40])


PAIRS: dict[str, tuple[FaultKind, Callable[[Lines, int], None]]] = {
    "empty-source": (faults.EMPTY, lambda lines, n: lines["train.en"].__setitem__(n - 1, b"")),
    "empty-target": (faults.EMPTY, lambda lines, n: lines["train.fr"].__setitem__(n - 1, b"")),
    "white-space": (faults.EMPTY, lambda lines, n: lines["train.fr"].__setitem__(n - 1, b" \t\xc2\xa0 ")),
    "identical": (faults.IDENTICAL, lambda lines, n: lines["train.fr"].__setitem__(n - 1, lines["train.en"][n - 1])),
    "swapped": (faults.SWAPPED, lambda lines, n: swap(lines, "train", n)),
    "wrong-script": (
        faults.SCRIPT,
        lambda lines, n: lines["train.fr"].__setitem__(n - 1, f"Старая женщина видит {n} красных машин.".encode()),
    ),
    "wrong-script-of-source": (
        faults.SCRIPT,
        lambda lines, n: lines["train.en"].__setitem__(n - 1, f"老妇人看见了{n}辆红色的汽车".encode()),
    ),
    "other-language": (
        faults.FOREIGN,
        lambda lines, n: lines["train.fr"].__setitem__(
            n - 1, f"Die alte Frau sieht {n} rote Autos auf dem Weg.".encode()
        ),
    ),
    "other-language-of-source": (
        faults.FOREIGN,
        lambda lines, n: lines["train.en"].__setitem__(n - 1, f"La vecchia non vede le {n} macchine rosse.".encode()),
    ),
    "short-target": (
        faults.SHORT_TARGET,
        lambda lines, n: (
            lines["train.en"].__setitem__(n - 1, longest(lines, n)[:200].rsplit(b" ", 1)[0]),
            lines["train.fr"].__setitem__(n - 1, b"Ah."),
        )[0],
    ),
}
"""Faults of whole pairs: their kind, and what plants one."""
EXAMPLE_LINES = (12, 400, 1501, 2222, 2990)


@pytest.mark.parametrize("name", PAIRS)
def test_a_fault_of_a_pair_is_found_at_its_line(name: str, tmp_path: Path) -> None:
    kind, plant = PAIRS[name]
    lines = copy()
    for number in EXAMPLE_LINES:
        plant(lines, number)
    here = look(tmp_path, lines)
    assert ("train", kind.name) in here
    assert here[("train", kind.name)].count == len(EXAMPLE_LINES)
    assert [place[1] for place in here[("train", kind.name)].places] == list(EXAMPLE_LINES)


def test_a_line_in_the_language_of_the_other_side_is_found(tmp_path: Path) -> None:
    """English where French should be, and not what the source says, so that it is no copy of it."""
    lines = copy()
    english = [line for line in lines["valid.en"] if len(line.split()) >= 10]
    for number in EXAMPLE_LINES:
        lines["train.fr"][number - 1] = english[number % 100]
    here = look(tmp_path, lines)
    assert [place[1] for place in here[("train", "language")].places] == list(EXAMPLE_LINES)
    assert here[("train", "language")].count == len(EXAMPLE_LINES)


def test_duplicates_are_found_where_they_come_again(tmp_path: Path) -> None:
    lines = copy()
    for number, first in ((50, 10), (51, 20), (2000, 10), (3000, 1999)):
        for side in ("en", "fr"):
            lines[f"train.{side}"][number - 1] = lines[f"train.{side}"][first - 1]
    here = look(tmp_path, lines)
    assert set(here) == {("train", "duplicate")}
    assert here[("train", "duplicate")].count == 4
    assert [place[1] for place in here[("train", "duplicate")].places] == [50, 51, 2000, 3000]


@pytest.mark.parametrize("split", ["valid", "test"])
def test_overlap_with_train_is_found(split: str, tmp_path: Path) -> None:
    lines = copy()
    for side in ("en", "fr"):
        lines[f"{split}.{side}"][6] = lines[f"train.{side}"][1233]
    lines[f"{split}.en"][99] = lines["train.en"][17]
    lines[f"{split}.fr"][299] = lines["train.fr"][18]
    here = look(tmp_path, lines)
    assert [place[:2] for place in here[(split, "in-train")].places] == [(f"{split}.en", 7, None)[:2]]
    assert [place[1] for place in here[(split, "src-in-train")].places] == [100]
    assert [place[1] for place in here[(split, "tgt-in-train")].places] == [300]
    assert here[(split, "in-train")].count == here[(split, "src-in-train")].count == 1


def test_uneven_pairs_are_found(tmp_path: Path) -> None:
    lines = copy()
    for number in EXAMPLE_LINES:
        lines["train.fr"][number - 1] = longest(lines, number, "fr")[:900].rsplit(b" ", 1)[0]
        lines["train.en"][number - 1] = b"Yes, indeed."
    here = look(tmp_path, lines)
    assert [place[1] for place in here[("train", "ratio")].places] == list(EXAMPLE_LINES)


def test_joined_lines_are_found(tmp_path: Path) -> None:
    lines = copy()
    for number in EXAMPLE_LINES[:2]:
        for side in ("en", "fr"):
            rows = CLEAN[f"train.{side}"]
            lines[f"train.{side}"][number - 1] = b" ".join(rows[500 + number : 620 + number])
    here = look(tmp_path, lines)
    assert [place[1] for place in here[("train", "length")].places] == list(EXAMPLE_LINES[:2])


@pytest.mark.parametrize("where", [3, 700, 2500], ids=str)
@pytest.mark.parametrize("side", ["en", "fr"])
def test_files_of_different_length_part_where_a_line_is_missing(side: str, where: int, tmp_path: Path) -> None:
    lines = copy()
    del lines[f"train.{side}"][where - 1]
    here = look(tmp_path, lines)
    counts = here[("train", "line-counts")]
    assert counts.count == 1
    assert abs(counts.places[0][1] - where) <= 2


def test_a_shift_between_files_of_equal_length_is_found(tmp_path: Path) -> None:
    """A line too much on one side, and one too few further on: all pairs between are wrong."""
    lines = copy()
    lines["train.fr"].insert(999, b"Une ligne de trop, que personne n'a traduite.")
    del lines["train.fr"][1800]
    here = look(tmp_path, lines)
    assert ("train", "shift") in here
    assert abs(here[("train", "shift")].places[0][1] - 1000) <= 20
    assert abs(here[("train", "shift")].count - 801) <= 20


@pytest.mark.parametrize("count", [100, 1000, 6000], ids=str)
def test_about_as_many_pairs_are_shifted_as_are_told(count: int, tmp_path: Path) -> None:
    """Also where the stretch is as short as a window, and where it goes over several blocks."""
    rows = [gzip.decompress((DEMO / f"train.{side}.gz").read_bytes()).splitlines()[:9000] for side in ("en", "fr")]
    rows[0].insert(2000, b"A line too much, which nobody has translated.")
    del rows[0][2000 + count]
    here = look(tmp_path, {"train.en": rows[0], "train.fr": rows[1]})
    assert abs(here[("train", "shift")].count - count) <= 20
    assert abs(here[("train", "shift")].places[0][1] - 2001) <= 20


def test_swapped_files_are_found(tmp_path: Path) -> None:
    lines = copy()
    lines["valid.en"], lines["valid.fr"] = lines["valid.fr"], lines["valid.en"]
    assert ("valid", "swapped-files") in look(tmp_path, lines)


def test_mixed_line_ends_are_found(tmp_path: Path) -> None:
    lines = copy()
    for number in (30, 31, 2000):
        lines["train.en"][number - 1] += b"\r"
    here = look(tmp_path, lines)
    assert here == {("train", "line-ends"): Found(3, [("train.en", 30, None)])}


def test_line_ends_of_windows_all_over_are_no_fault(tmp_path: Path) -> None:
    lines = copy()
    lines["train.en"] = [b"\xef\xbb\xbf"[: 3 * (n == 0)] + row + b"\r" for n, row in enumerate(lines["train.en"])]
    assert look(tmp_path, lines) == {}


def test_a_file_in_utf_16_is_found(tmp_path: Path) -> None:
    splits = write(tmp_path, CLEAN)
    (tmp_path / "train.fr").write_text("".join(row.decode() + "\n" for row in CLEAN["train.fr"]), encoding="utf-16")
    here = found(examine(splits))
    assert here[("train", "utf-16")].places == [("train.fr", 1, None)]


def test_a_cut_gzip_file_is_found(tmp_path: Path) -> None:
    splits = write(tmp_path, CLEAN)
    packed = gzip.compress((tmp_path / "train.fr").read_bytes(), mtime=0)
    (tmp_path / "train.fr").write_bytes(packed[: len(packed) // 2])
    here = found(examine(splits))
    assert here[("train", "gzip")].count == 1
    ((name, line, _),) = here[("train", "gzip")].places
    assert name == "train.fr"
    assert 1000 < line < 2000


def test_faulty_json_lines_are_found(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    rows = [
        json.dumps({"article": src.decode(), "summary": tgt.decode()}, ensure_ascii=False)
        for src, tgt in zip(CLEAN["train.en"], CLEAN["train.fr"], strict=True)
    ]
    rows[4] = rows[4][:-3]
    rows[9] = '{"article": "no summary"}'
    rows[14] = '{"article": 5, "summary": "x"}'
    rows[19] = r'{"article": "half a \ud83d character", "summary": "x"}'
    rows[29] = r'{"article": "a whole one: \ud83d\ude00", "summary": "une entière"}'
    rows[2999] = "[]"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    files = SplitFiles(jsonl=[str(path)], src_field="article", tgt_field="summary")
    here = found(examine({"data": files}))
    assert here == {("data", "json"): Found(5, [(path.name, line, None) for line in (5, 10, 15, 20, 3000)])}


def test_all_at_once(tmp_path: Path) -> None:
    """Many kinds in one corpus do not hide each other."""
    lines = copy()
    expected: dict[tuple[str, str], list[int]] = {}
    for step, plant in enumerate(PLANTS):
        number = 101 + 150 * step
        rows = lines[f"train.{plant.side}"]
        rows[number - 1] = plant.change(rows[number - 1])
        expected.setdefault(("train", plant.kind.name), []).append(number)
    for step, name in enumerate(PAIRS):
        kind, change = PAIRS[name]
        number = 171 + 150 * step
        while len(lines["train.en"][number - 1].split()) < 8:  # little can be told of the language of a few words
            number += 1
        change(lines, number)
        expected.setdefault(("train", kind.name), []).append(number)
    here = look(tmp_path, lines)
    for key, numbers in expected.items():
        assert sorted(place[1] for place in here[key].places) == sorted(numbers), key
        assert here[key].count == len(numbers), key
