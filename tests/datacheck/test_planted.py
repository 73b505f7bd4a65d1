"""Every kind of fault, planted at known lines of a clean corpus, is found there and nowhere else."""

import gzip
from pathlib import Path

import pytest

from nmtkit.data.text.config import SplitFiles
from nmtkit.datacheck.examine import examine
from nmtkit.datacheck.findings import MAX_EXAMPLES, Diagnosis
from tests.datacheck import real_looking

Lines = tuple[list[bytes], list[bytes]]
Place = tuple[str, int, int | None]
NAMES = ("train.en", "train.fr")


def clean() -> Lines:
    """The sources and targets of a corpus without faults, to plant something in."""
    src, tgt = ([line.encode() for line in side] for side in real_looking.pairs(3000))
    return src, tgt


def write(folder: Path, lines: Lines) -> dict[str, SplitFiles]:
    for name, side in zip(NAMES, lines, strict=True):
        (folder / name).write_bytes(b"".join(line + b"\n" for line in side))
    return {"train": SplitFiles(src=str(folder / NAMES[0]), tgt=str(folder / NAMES[1]))}


def found(diagnosis: Diagnosis) -> dict[str, tuple[int, list[Place]]]:
    """By kind of fault, how often it was found, and where."""
    return {
        kind: (
            finding.count,
            [(Path(place.file).name, place.line, place.byte) for place in finding.places],
        )
        for kind, finding in diagnosis.splits["train"].findings.items()
    }


CHARACTERS: list[tuple[str, bytes, int]] = [
    ("encoding", b"caf\xe9 %b", 4),
    ("encoding", b"a\xc0\xaf%b", 2),  # overlong
    ("encoding", b"ab\xed\xa0\x80%b", 3),  # a lone surrogate
    ("encoding", b"%b \xc3", -1),  # a character that was cut off
    ("nul", b"A\0 %b", 2),
    ("separator", "Yes.\u2028%b".encode(), 5),
    ("separator", "Größe\u2029%b".encode(), 8),
    ("separator", "Yes.\x85%b".encode(), 5),
    ("separator", b"Yes.\r%b", 5),
    ("separator", b"\v%b", 1),
    ("separator", b"Yes.\x0c%b", 5),
    ("separator", b"Yes.\x1c%b", 5),
    ("bom", "\ufeff%b".encode(), 1),
    ("control", b"B\x07 %b", 2),
    ("control", "é\x90 %b".encode(), 3),
    ("replaced", "caf\ufffd %b".encode(), 4),
    ("mojibake", "für MÃ¼ller %b".encode(), 7),
    ("mojibake", "itâ€™s %b".encode(), 3),
    ("mojibake", "ÐŸÑ€Ð¸Ð²ÐµÑ‚ %b".encode(), 1),
    ("markup", b"Tom &amp;amp; Jerry %b", 5),
    ("markup", b"it&#39;s %b", 3),
    ("markup", b"<b>%b</b>", 1),
    ("pieces", b"ein Haus@@ t %b", 8),
    ("pieces", "\u2581ein \u2581Haus %b".encode(), 1),
]
"""A kind of fault, what it makes of a line, and the byte where it is found there."""


def test_faults_of_characters_are_found_at_their_bytes(tmp_path: Path) -> None:
    lines = clean()
    expected: dict[str, list[Place]] = {}
    for step, (kind, planted, byte) in enumerate(CHARACTERS):
        number, rows = 60 + 100 * step, lines[step % 2]
        rows[number - 1] = planted % rows[number - 1]
        place = (NAMES[step % 2], number, len(rows[number - 1]) if byte == -1 else byte)
        expected.setdefault(kind, []).append(place)
    assert found(examine(write(tmp_path, lines))) == {
        kind: (len(places), places[:MAX_EXAMPLES]) for kind, places in expected.items()
    }


PAIRS: dict[str, tuple[str, str, str]] = {
    "empty source": ("empty", "", "{tgt}"),
    "empty target": ("empty", "{src}", ""),
    "white space": ("empty", "{src}", " \t\xa0\u3000 "),
    "identical": ("identical", "{src}", "{src}"),
    "identical but for spaces": ("identical", "{src}", "{spaced_src}"),
    "swapped": ("swapped", "{tgt}", "{src}"),
    "script of the target": ("script", "{src}", "Старая женщина видит {n} красных машин."),
    "script of the source": ("script", "老妇人看见了{n}辆红色的汽车", "{tgt}"),
    "language of the other side": ("language", "{src}", "{other_src}"),
    "third language as target": (
        "foreign",
        "{src}",
        "Die alte Frau sieht {n} rote Autos auf dem Weg.",
    ),
    "third language as source": ("foreign", "La vecchia non vede le {n} macchine rosse.", "{tgt}"),
    "short target": ("short-target", "{long_src}", "Ah."),
    "uneven": ("ratio", "Yes, indeed.", "{long_tgt}"),
}
"""A kind of fault, and the source and target that have it."""


def plant(name: str, lines: Lines, number: int) -> None:
    """Plants a faulty pair, made of the next lines of the clean corpus."""
    _, *sides = PAIRS[name]
    src, tgt = ([line.decode() for line in side[number - 1 : number + 40]] for side in clean())
    given = {"n": number, "src": src[0], "tgt": tgt[0], "other_src": " ".join(src[5:7])[:70]}
    given["spaced_src"] = src[0].replace(" ", "\u00a0")
    given |= {"long_src": " ".join(src[1:8]), "long_tgt": " ".join(tgt[1:20])}
    for rows, side in zip(lines, sides, strict=True):
        rows[number - 1] = side.format(**given).encode()


def planted_numbers(name: str) -> list[int]:
    """The lines, counted from 1, of the pairs that have this fault."""
    offset = 3 * list(PAIRS).index(name)
    return [offset + first for first in (10, 400, 1501, 2222, 2900)]


@pytest.fixture(scope="module")
def faulty_pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, list[Place]]]:
    """What is found in a corpus with five pairs of every fault."""
    lines = clean()
    for name in PAIRS:
        for number in planted_numbers(name):
            plant(name, lines, number)
    return found(examine(write(tmp_path_factory.mktemp("pairs"), lines)))


@pytest.mark.parametrize("kind", sorted({kind for kind, _, _ in PAIRS.values()}))
def test_faults_of_pairs_are_found_at_their_lines(
    kind: str, faulty_pairs: dict[str, tuple[int, list[Place]]]
) -> None:
    names = [name for name, (planted_kind, _, _) in PAIRS.items() if planted_kind == kind]
    expected = sorted(number for name in names for number in planted_numbers(name))
    count, places = faulty_pairs[kind]
    assert count == len(expected)
    assert [line for _, line, _ in places] == expected[:MAX_EXAMPLES]


def test_nothing_else_is_found_in_faulty_pairs(
    faulty_pairs: dict[str, tuple[int, list[Place]]],
) -> None:
    assert set(faulty_pairs) == {kind for kind, _, _ in PAIRS.values()}


def test_repeated_and_joined_lines_are_found(tmp_path: Path) -> None:
    lines, original = clean(), clean()
    for rows, before in zip(lines, original, strict=True):
        for number, first in ((50, 10), (51, 20), (2000, 10), (3000, 1999)):
            rows[number - 1] = before[first - 1]
        for number in (12, 400):
            rows[number - 1] = b" ".join(before[500 + number : 620 + number])
    here = found(examine(write(tmp_path, lines)))
    assert {kind: [line for _, line, _ in places] for kind, (_, places) in here.items()} == {
        "duplicate": [50, 51, 2000, 3000],
        "length": [12, 400],
    }


def test_mixed_line_ends_are_found_and_those_of_windows_are_not(tmp_path: Path) -> None:
    lines = clean()
    for number in (30, 31, 2000):
        lines[0][number - 1] += b"\r"
    assert found(examine(write(tmp_path, lines))) == {"line-ends": (3, [("train.en", 30, None)])}
    src = [line.removesuffix(b"\r") + b"\r" for line in lines[0]]
    assert found(examine(write(tmp_path, ([b"\xef\xbb\xbf" + src[0], *src[1:]], lines[1])))) == {}


def test_files_that_cannot_be_read_as_text_are_found(tmp_path: Path) -> None:
    splits = write(tmp_path, clean())
    text = (tmp_path / "train.fr").read_bytes()
    (tmp_path / "train.fr").write_text(text.decode(), encoding="utf-16")
    assert found(examine(splits))["utf-16"][1] == [("train.fr", 1, None)]
    packed = gzip.compress(text, mtime=0)
    (tmp_path / "train.fr").write_bytes(packed[: len(packed) // 2])
    count, ((name, line, _),) = found(examine(splits))["compression"]
    assert (count, name) == (1, "train.fr")
    assert 1000 < line < 2000
