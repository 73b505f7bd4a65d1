"""Cleaned copies: what is left out, what is mended, what is refused; and that nothing else changes."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from nmtkit.core.errors import NmtkitError
from nmtkit.data.text.config import SplitFiles
from nmtkit.data.text.reading import read_pairs
from nmtkit.datacheck.characters import repair_line
from nmtkit.datacheck.examine import examine
from nmtkit.datacheck.repair import LOG_NAME, RepairedSplit, repair
from tests.datacheck.real_looking import write_pairs

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
ZAHLEN = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn"]
PAIRS = [
    (
        f"{WORDS[n // 10]} and {WORDS[n % 10]} is number {n}",
        f"{ZAHLEN[n // 10]} und {ZAHLEN[n % 10]} ist Nummer {n}",
    )
    for n in range(100)
]


def log(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / LOG_NAME).read_text(encoding="utf-8").splitlines()]


def with_links(folder: Path, pairs: list[tuple[str, str]], links: list[str]) -> SplitFiles:
    text = write_pairs(folder, "train", pairs)
    (folder / "train.align").write_text("".join(line + "\n" for line in links), encoding="utf-8")
    return text.model_copy(update={"alignment": [str(folder / "train.align")]})


def nothing_written(folder: Path) -> bool:
    return not (folder / "new").exists() and not (folder / "new.part").exists()


def new(done: RepairedSplit, out: Path) -> list[tuple[str, str | None]]:
    """The pairs that were written."""
    return [(pair.src, pair.tgt) for pair in read_pairs(done.files.resolved(str(out)))]


def test_a_line_is_put_right() -> None:
    for text, mended, kinds in (
        ("one\u2028two\rthree\x85four", "one two three four", ["separator"]),
        ("a\0b", "ab", ["nul"]),
        ("\ufeffa\x07b", "ab", ["bom", "control"]),
        ("ends in CR\r", "ends in CR", ["separator"]),
        ("cafÃ© Ã©tÃ©", "café été", ["mojibake"]),
        ("cafÃ\x83Â©", "café", ["mojibake"]),
        ("cafÃƒÂ©", "café", ["mojibake"]),
    ):
        assert repair_line(text) == (mended, kinds)
        assert repair_line(mended) == (mended, [])
    for clean in ("with\ta tab and\xa0a space", "garçon, façade, «ÉTÉ»"):
        assert repair_line(clean) == (clean, [])


def test_clean_files_are_copied_as_they_are(tmp_path: Path) -> None:
    given = write_pairs(tmp_path / "old", "train", PAIRS)
    packed = write_pairs(tmp_path / "old", "test", [("a sentence", "ein Satz")], ".gz")
    done = repair({"train": given, "test": packed}, tmp_path / "new")
    for side, text in (("en", b"a sentence\n"), ("de", b"ein Satz\n")):
        assert (tmp_path / f"new/train.{side}").read_bytes() == (
            tmp_path / f"old/train.{side}"
        ).read_bytes()
        assert gzip.decompress((tmp_path / f"new/test.{side}.gz").read_bytes()) == text
    assert done["train"] == RepairedSplit(SplitFiles(src=["train.en"], tgt=["train.de"]), kept=100)
    assert log(tmp_path / "new") == []


def test_several_packed_files_of_a_split_can_be_read(tmp_path: Path) -> None:
    one, two = (write_pairs(tmp_path / f"old{n}", f"part{n}", PAIRS[n::2], ".gz") for n in (0, 1))
    done = repair(
        {"train": SplitFiles(src=one.src + two.src, tgt=one.tgt + two.tgt)}, tmp_path / "new"
    )["train"]
    assert new(done, tmp_path / "new") == PAIRS[0::2] + PAIRS[1::2]


def test_what_is_left_out_and_what_is_mended_is_logged(tmp_path: Path) -> None:
    pairs = list(PAIRS)
    pairs[2] = ("caf\udce9", "Kaffee")
    pairs[4] = ("", "leer")
    pairs[6] = ("six\u2028and", "sechs und\0")
    pairs[8] = pairs[7]
    given = write_pairs(tmp_path / "old", "train", pairs)
    before = {path: path.read_bytes() for path in (tmp_path / "old").iterdir()}
    out = tmp_path / "new"
    done = repair({"train": given}, out)["train"]
    expected = [pair for number, pair in enumerate(pairs) if number not in (2, 4, 8)]
    expected[4] = ("six and", "sechs und")
    assert new(done, out) == expected
    assert done.kept == 97
    assert done.dropped == {"encoding": 1, "empty": 1, "duplicate": 1}
    assert done.mended == {"separator": 1, "nul": 1}
    entries = log(out)
    assert [(entry["line"], entry["done"], entry["kinds"]) for entry in entries] == [
        (3, "dropped", ["encoding"]),
        (5, "dropped", ["empty"]),
        (7, "mended", ["separator", "nul"]),
        (9, "dropped", ["duplicate"]),
    ]
    assert entries[0]["src"] == r"caf\xe9"
    assert entries[0]["file"] == given.src[0]
    assert (
        entries[2] | {"src": "six\u2028and", "new_src": "six and", "new_tgt": "sechs und"}
        == entries[2]
    )
    assert {path: path.read_bytes() for path in (tmp_path / "old").iterdir()} == before


def test_what_was_fixed_is_not_found_again(tmp_path: Path) -> None:
    """Also not what is a fault only once something else is mended: a duplicate, an empty side."""
    pairs = list(PAIRS)
    pairs[10] = (PAIRS[20][0].replace(" ", "\u2028"), PAIRS[20][1])  # mended, it is pair 20
    pairs[30] = ("\0\x07", "nichts")  # mended, it is empty
    pairs[40] = ("caf\udce9", "Kaffee")
    pairs[50] = pairs[51]
    held_out = [(PAIRS[60][0].replace(" ", "\r", 1), PAIRS[60][1]), ("only here", "nur hier")]
    splits = {
        "train": write_pairs(tmp_path / "old", "train", pairs),
        "test": write_pairs(tmp_path / "old", "test", held_out),
    }
    kinds = {finding.kind.name for _, finding in examine(splits).findings()}
    assert {"encoding", "duplicate", "separator", "nul"} <= kinds
    out = tmp_path / "new"
    done = repair(splits, out)
    again = examine({name: split.files.resolved(str(out)) for name, split in done.items()})
    assert again.findings() == []
    assert done["train"].dropped == {"duplicate": 2, "empty": 1, "encoding": 1, "held-out": 1}
    assert done["test"].kept == 2


def test_a_test_set_stays_the_same_set(tmp_path: Path) -> None:
    """Test loses only what cannot be read or is empty, so that scores can be compared: not what is in valid, too."""
    valid = PAIRS[30:50]
    pairs = [
        *PAIRS[:10],
        PAIRS[0],
        PAIRS[40],
        ("the same", "the same"),
        ("caf\udce9", "Kaffee"),
        ("", "leer"),
    ]
    texts = {"train": PAIRS[50:], "valid": valid, "test": pairs}
    splits = {name: write_pairs(tmp_path, name, text) for name, text in texts.items()}
    assert examine(splits).splits["test"].findings["in-valid"].count == 1
    done = repair(splits, tmp_path / "new")
    assert new(done["valid"], tmp_path / "new") == valid
    assert new(done["test"], tmp_path / "new") == pairs[:13]
    assert done["test"].dropped == {"encoding": 1, "empty": 1}


def test_files_of_different_length_are_refused_and_the_others_written(tmp_path: Path) -> None:
    train = write_pairs(tmp_path, "train", PAIRS)
    (tmp_path / "train.de").write_text(
        "".join(tgt + "\n" for _, tgt in PAIRS[1:]), encoding="utf-8"
    )
    out = tmp_path / "new"
    done = repair({"train": train, "valid": write_pairs(tmp_path, "valid", PAIRS[:5])}, out)
    assert "files have different numbers of lines" in done["train"].refused
    assert "train." in done["train"].refused
    assert done["train"].files == train
    assert done["valid"].kept == 5
    assert sorted(path.name for path in out.iterdir()) == [LOG_NAME, "valid.de", "valid.en"]


def test_alignments_go_with_their_pairs(tmp_path: Path) -> None:
    pairs = list(PAIRS)
    pairs[3] = ("", "leer")
    pairs[5] = (
        "one \0 two",
        "eins zwei",
    )  # three words now, two once it is mended: its links would point elsewhere
    pairs[7] = ("one\u2028three", "eins\0 drei")
    given = with_links(tmp_path, pairs, [f"0-{n % 2}" for n in range(100)])
    done = repair({"train": given}, tmp_path / "new")["train"]
    links = [pair.links for pair in read_pairs(done.files.resolved(str(tmp_path / "new")))]
    assert links == [{(0, n % 2)} for n in range(100) if n not in (3, 5)]
    assert done.dropped == {"empty": 1, "nul": 1}
    assert done.mended == {"separator": 1, "nul": 1}


@pytest.mark.parametrize("lines", [99, 101], ids=["fewer", "more"])
def test_alignments_of_another_length_are_refused(lines: int, tmp_path: Path) -> None:
    done = repair({"train": with_links(tmp_path, PAIRS, ["0-0"] * lines)}, tmp_path / "new")[
        "train"
    ]
    assert "train.align" in done.refused
    assert nothing_written(tmp_path)


def test_json_lines_keep_their_other_fields(tmp_path: Path) -> None:
    rows = [{"id": n, "article": src, "summary": tgt} for n, (src, tgt) in enumerate(PAIRS)]
    rows[3]["article"] = "three\0"
    lines = [json.dumps(row) for row in rows]  # escapes everything that is not ASCII
    lines[5] = "{broken"
    (tmp_path / "train.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    given = SplitFiles(
        jsonl=[str(tmp_path / "train.jsonl")], src_field="article", tgt_field="summary"
    )
    done = repair({"train": given}, tmp_path / "new")["train"]
    written = (tmp_path / "new/train.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(written) == 99
    assert written[0] == lines[0]
    assert json.loads(written[3]) == {"id": 3, "article": "three", "summary": PAIRS[3][1]}
    assert written[5] == lines[6]
    assert done.dropped == {"json": 1}


def test_stories_become_json_lines(tmp_path: Path) -> None:
    folder = tmp_path / "stories"
    folder.mkdir()
    for n in range(5):
        (folder / f"{n}.story").write_text(
            f"Article {n}\u2028goes on.\n\n@highlight\n\nIt is {n}\n", encoding="utf-8"
        )
    (folder / "5.story").write_text("No summary.\n", encoding="utf-8")
    done = repair({"train": SplitFiles(stories=[str(folder)])}, tmp_path / "new", monolingual=True)[
        "train"
    ]
    assert done.files == SplitFiles(jsonl=["train.jsonl"], src_field="article", tgt_field="summary")
    assert new(done, tmp_path / "new")[0] == ("Article 0 goes on.", "It is 0.")
    assert done.kept == 5
    assert done.dropped == {"story": 1}


def test_weights_of_stories_are_not_lost_in_silence(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.story").write_text(
            "TextArrays.\n\n@highlight\n\nShort\n", encoding="utf-8"
        )
    given = SplitFiles(stories=[str(tmp_path / "a"), str(tmp_path / "b")], weights=[1.0, 3.0])
    done = repair({"train": given}, tmp_path / "new", monolingual=True)["train"]
    assert "weights" in done.refused
    assert nothing_written(tmp_path)


def test_several_files_keep_their_names_and_one_named_twice_gets_another(tmp_path: Path) -> None:
    one, two = (
        write_pairs(tmp_path / "one", "train", PAIRS[:50]),
        write_pairs(tmp_path / "two", "train", PAIRS[50:]),
    )
    empty = write_pairs(tmp_path / "none", "train", [])
    train = SplitFiles(src=one.src + empty.src + two.src, tgt=one.tgt + empty.tgt + two.tgt)
    valid = write_pairs(tmp_path, "valid", [("a sentence", "ein Satz")])
    out = tmp_path / "new"
    done = repair({"train": train, "valid": valid, "test": valid}, out)
    assert done["train"].files.src == ["one/train.en", "none/train.en", "two/train.en"]
    assert new(done["train"], out) == PAIRS
    assert [len((out / path).read_bytes().splitlines()) for path in done["train"].files.src] == [
        50,
        0,
        50,
    ]
    assert done["valid"].files.src == ["valid.en"]
    assert done["test"].files.src == ["2-valid.en"]
    assert new(done["test"], out) == [("a sentence", "ein Satz")]


def test_a_source_alone_is_cleaned(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"one\r\ntwo\xe2\x80\xa8two\n\nfour\n")
    done = repair({"data": SplitFiles(src=[str(path)])}, tmp_path / "new")["data"]
    assert (tmp_path / "new/text").read_bytes() == b"one\ntwo two\nfour\n"
    assert done.mended == {"separator": 1, "line-ends": 1}
    assert done.dropped == {"empty": 1}


def test_a_text_may_have_the_name_of_its_split_and_end_in_log(tmp_path: Path) -> None:
    (tmp_path / "data.log").write_text("one\n\nthree\n", encoding="utf-8")
    repair({"data": SplitFiles(src=[str(tmp_path / "data.log")])}, tmp_path / "new")
    assert (tmp_path / "new/data.log").read_text(encoding="utf-8") == "one\nthree\n"
    assert [entry["line"] for entry in log(tmp_path / "new")] == [2]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["data.log", LOG_NAME]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    given = {"train": write_pairs(tmp_path / "old", "train", PAIRS)}
    before = {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()}
    for place in ("old", "old/train.en"):
        with pytest.raises(NmtkitError, match="already exists"):
            repair(given, tmp_path / place)
    assert {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()} == before
    (tmp_path / "new").mkdir()
    repair(given, tmp_path / "new")  # an empty folder is as good as none
    assert (tmp_path / "new/train.en").exists()


def test_a_stop_leaves_nothing_behind(tmp_path: Path) -> None:
    given = {"train": write_pairs(tmp_path / "old", "train", PAIRS)}

    def stop(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repair(given, tmp_path / "new", progress=stop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old"]
