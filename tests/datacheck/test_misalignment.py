"""Where two files part: a line taken out at a random place of a real-looking corpus is found again near there."""

import random
import re
from pathlib import Path

import pytest

from nmtkit.data.text.faults import FaultLocation
from nmtkit.datacheck.examine import examine
from nmtkit.datacheck.findings import SplitDiagnosis
from tests.datacheck import real_looking
from tests.support.cases import daily

SRC, TGT = real_looking.pairs(20_000)


def diagnose(folder: Path, src: list[str], tgt: list[str], quick: bool = True) -> SplitDiagnosis:
    files = real_looking.write(folder, "train", src, tgt)
    return examine({"train": files}, quick=quick).splits["train"]


def parted(folder: Path, src: list[str], tgt: list[str]) -> FaultLocation:
    """Where the files part; nothing is said of a shift, which would be the same said twice."""
    findings = diagnose(folder, src, tgt).findings
    assert "shift" not in findings
    finding = findings["line-counts"]
    assert finding.count == abs(len(src) - len(tgt))
    assert (
        f"{len(src):,} lines here, but {len(tgt):,} in {folder / 'train.tgt'}"
        in finding.places[0].text
    )
    return finding.places[0]


@pytest.mark.parametrize(("side", "seed"), daily([("src", 0), ("tgt", 0), ("tgt", 1), ("src", 1)]))
def test_lines_taken_out_at_random_places(tmp_path: Path, side: str, seed: int) -> None:
    rng = random.Random(seed)
    src, tgt = list(SRC), list(TGT)
    place = rng.randrange(len(src) - 100)
    count = rng.choice([1, 1, 2, 30])
    del (src if side == "src" else tgt)[place : place + count]
    parting = parted(tmp_path, src, tgt)
    assert abs(parting.line - (place + 1)) <= 8
    assert (
        f"the files diverge near line {parting.line:,}: {src[parting.line - 1][:20]}"
        in parting.text
    )
    assert tgt[parting.line - 1][:20] in parting.text


def test_the_first_of_several_places_is_given(tmp_path: Path) -> None:
    src, tgt = list(SRC), list(TGT)
    del tgt[15_000], tgt[9_000:9_003], src[4_321]
    assert abs(parted(tmp_path, src, tgt).line - 4_322) <= 8


def test_the_place_is_found_in_small_files(tmp_path: Path) -> None:
    src, tgt = SRC[:400], TGT[:400]
    tgt.insert(150, "Une ligne de trop.")
    assert abs(parted(tmp_path, src, tgt).line - 151) <= 8
    src, tgt = SRC[:1000], TGT[:1000]
    del src[985]
    assert 970 <= parted(tmp_path, src, tgt).line <= 1000


def test_a_file_that_was_cut_off(tmp_path: Path) -> None:
    """The lines that there are belong together."""
    parting = parted(tmp_path, SRC, TGT[:12_345])
    assert parting.line == 12_346
    assert re.search(r"the lines may match up to the end of the shorter file$", parting.text)


@pytest.mark.filterwarnings("error")
def test_an_empty_file_beside_one_with_text(tmp_path: Path) -> None:
    assert "the lines may match" in parted(tmp_path, ["one line"], []).text


def test_files_of_nothing_but_one_line(tmp_path: Path) -> None:
    """Where no line differs from another nothing can be told, but the counts are."""
    assert parted(tmp_path, ["a b c"] * 500, ["d e f"] * 501).line == 501
    assert parted(tmp_path, [], ["d e f"]).line == 1


@pytest.mark.parametrize("count", daily([1000, 100, 6000]))
def test_a_shift_between_files_of_equal_length(count: int, tmp_path: Path) -> None:
    """The shifted stretch may be as short as a window, or go over several blocks."""
    src, tgt = list(SRC), list(TGT)
    src.insert(2000, "A line too much, which nobody has translated.")
    del src[2000 + count]
    findings = diagnose(tmp_path, src, tgt).findings
    assert set(findings) <= {"shift", "ratio"}  # wrongly paired lines are of unlike length, too
    assert abs(findings["shift"].count - count) <= 20
    assert abs(findings["shift"].places[0].line - 2001) <= 8


@pytest.mark.parametrize("seed", daily([0, 1, 2]))
def test_no_shift_is_seen_in_clean_files(tmp_path: Path, seed: int) -> None:
    order = random.Random(seed).sample(range(len(SRC)), len(SRC))
    if seed == 2:  # in the order of their length, neighbours are much alike
        order.sort(key=lambda row: len(SRC[row]))
    assert not diagnose(tmp_path, [SRC[row] for row in order], [TGT[row] for row in order]).findings


def test_no_shift_is_seen_where_the_lines_have_nothing_to_do_with_each_other(
    tmp_path: Path,
) -> None:
    rng = random.Random(0)
    findings = diagnose(tmp_path, rng.sample(SRC, 20_000), rng.sample(TGT, 20_000)).findings
    assert "shift" not in findings
