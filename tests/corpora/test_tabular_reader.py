"""Tab-separated corpora: columns, what is passed over, and every fault with its line."""

from collections import Counter
from pathlib import Path

import pytest
from published import gzipped, zipped

from nmtkit.core.errors import DataError
from nmtkit.corpora.aligned import TabSeparatedReader
from nmtkit.corpora.readers import Pair

NEW = (
    "Go.\tGeh.\tCC-BY 2.0 (France) Attribution: tatoeba.org #1 (a) & #2 (b)\n"
    "Go.\tLos!\tCC-BY 2.0 (France) Attribution: tatoeba.org #1 (a) & #3 (c)\n"
    "Where is the cat?\tWo ist die Katze?\tCC-BY 2.0 (France) Attribution: tatoeba.org #4 (a) & #5 (b)\n"
)
ABOUT = "** Info **\nNo pairs\tin here.\n"


def read(reader: TabSeparatedReader, *files: Path) -> tuple[list[Pair], dict[str, int]]:
    """All pairs, and what was left out."""
    dropped: Counter[str] = Counter()
    return list(reader.pairs(files, dropped)), dict(dropped)


def test_new_export_with_the_attribution(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "deu-eng.zip", {"_about.txt": ABOUT, "deu.txt": NEW})
    pairs, dropped = read(TabSeparatedReader(text="deu-eng.zip:deu.txt", group=1), archive)
    assert [(pair.src, pair.tgt) for pair in pairs] == [
        ("Go.", "Geh."),
        ("Go.", "Los!"),
        ("Where is the cat?", "Wo ist die Katze?"),
    ]
    assert {pair.split for pair in pairs} == {""}
    assert dropped == {}


def test_old_export_of_two_columns_and_windows_line_ends(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "fra-eng.zip", {"fra.txt": "\ufeffHi.\tSalut !\r\n\r\nRun!\tCours !\r\n"})
    pairs, dropped = read(TabSeparatedReader(text="fra-eng.zip:fra.txt"), archive)
    assert [(pair.src, pair.tgt) for pair in pairs] == [("Hi.", "Salut !"), ("Run!", "Cours !")]
    assert dropped == {"empty lines": 1}


def test_the_other_direction_has_the_same_groups(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "deu-eng.zip", {"deu.txt": NEW})
    there, _ = read(TabSeparatedReader(text="deu-eng.zip:deu.txt", group=1), archive)
    back, _ = read(TabSeparatedReader(text="deu-eng.zip:deu.txt", src=2, tgt=1, group=1), archive)
    assert [(pair.tgt, pair.src, pair.group) for pair in back] == [(pair.src, pair.tgt, pair.group) for pair in there]


def test_without_a_group_the_source_is_one(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "deu-eng.zip", {"deu.txt": NEW})
    pairs, _ = read(TabSeparatedReader(text="deu-eng.zip:deu.txt", src=2, tgt=1), archive)
    assert [pair.group for pair in pairs] == [pair.src for pair in pairs]


def test_a_file_that_is_no_archive(tmp_path: Path) -> None:
    plain = tmp_path / "pairs.tsv"
    plain.write_text(NEW, encoding="utf-8")
    packed = gzipped(tmp_path / "pairs.tsv.gz", NEW)
    assert len(read(TabSeparatedReader(text="pairs.tsv"), plain, packed)[0]) == 3
    assert len(read(TabSeparatedReader(text="pairs.tsv.gz"), plain, packed)[0]) == 3


def test_other_line_separators_do_not_end_a_line(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", {"a.txt": "one\u2028still one\teins\x85noch\nzwei\ttwo\n"})
    pairs, _ = read(TabSeparatedReader(text="a.zip:a.txt"), archive)
    assert [pair.tgt for pair in pairs] == ["eins\x85noch", "two"]


def test_a_line_with_one_column_is_named(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", {"a.txt": "one\teins\nno tab here\n"})
    with pytest.raises(DataError, match=r"a\.zip:a\.txt, line 2: expected 2 columns between tabs, found 1"):
        read(TabSeparatedReader(text="a.zip:a.txt"), archive)


def test_bytes_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", {"a.txt": b"one\teins\ntwo\t" + "f\xfcnf\n".encode("latin-1")})
    with pytest.raises(DataError, match=r"a\.zip:a\.txt, line 2: not UTF-8 \(byte 6 of the line\)"):
        read(TabSeparatedReader(text="a.zip:a.txt"), archive)


def test_a_member_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", {"b.txt": NEW, "_about.txt": ABOUT})
    with pytest.raises(DataError, match=r"it has no member a\.txt, only b\.txt, _about\.txt"):
        read(TabSeparatedReader(text="a.zip:a.txt"), archive)


def test_a_long_list_of_members_is_cut(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", {f"{number}.txt": NEW for number in range(25)})
    with pytest.raises(DataError, match=r"only 0\.txt, .*, 9\.txt and 15 more;"):
        read(TabSeparatedReader(text="a.zip:a.txt"), archive)


def test_an_archive_is_not_taken_for_a_text(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", {"b.txt": NEW})
    with pytest.raises(DataError, match=r"an archive of b\.txt: name one as a\.zip:MEMBER"):
        read(TabSeparatedReader(text="a.zip"), archive)


def test_a_file_that_no_source_gives(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", {"b.txt": NEW})
    with pytest.raises(DataError, match=r"b\.zip: no source of the corpus gives a file of this name, only a\.zip"):
        read(TabSeparatedReader(text="b.zip:b.txt"), archive)


def test_pairs_come_before_the_end_is_read(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", {"a.txt": "one\teins\n" * 3 + "damaged\n"})
    pairs = TabSeparatedReader(text="a.zip:a.txt").pairs([archive], Counter())
    assert [next(pairs).src for _ in range(3)] == ["one"] * 3
    with pytest.raises(DataError, match="line 4"):
        next(pairs)


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmtkit.corpora.readers.LONGEST", 20_000)
    archive = zipped(tmp_path / "a.zip", {"a.txt": "one\teins\n" + "x" * 60_000 + "\n"})
    with pytest.raises(DataError, match=r"line 2: more than 20,000 bytes without a line end"):
        read(TabSeparatedReader(text="a.zip:a.txt"), archive)
