"""Shortlists of target tokens: what is counted, what a file holds, what of it is refused."""

import random
from collections import Counter
from pathlib import Path

import pytest
import torch

from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.data.batches.batch import collate
from nmtkit.data.text.blocks import Example
from nmtkit.data.tokenizers.tokenizer import TokenizerConfig
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import SPECIALS
from nmtkit.decoding import shortlist as shortlists
from nmtkit.decoding.shortlist import (
    LinkCounts,
    Shortlist,
    read_shortlist,
    shortlist_lines,
    shortlist_writer,
)
from tests.support.learned_tokenizers import learn_tokenizers

SIZE = 60


def drawn_pairs(count: int) -> list[tuple[set[tuple[int, int]], list[list[int]], list[list[int]]]]:
    """Links between words, and the tokens of the words of both sides; some words have none."""
    draw = random.Random(5)

    def side() -> list[list[int]]:
        return [
            [draw.randrange(4, SIZE) for _ in range(draw.randint(0, 3))]
            for _ in range(draw.randint(1, 9))
        ]

    pairs = []
    for _ in range(count):
        src, tgt = side(), side()
        pairs.append(
            (
                {(draw.randrange(len(src)), j) for j in range(len(tgt)) if draw.random() < 0.8},
                src,
                tgt,
            )
        )
    return pairs


@pytest.mark.parametrize("at_once", [1, 50, 1 << 20])
def test_links_are_counted(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever parts, the counts are those of a table of all links."""
    monkeypatch.setattr(shortlists, "LINKS_AT_ONCE", at_once)
    counts, table, occurrences = LinkCounts(SIZE, SIZE), Counter[tuple[int, int]](), Counter[int]()
    for links, src, tgt in drawn_pairs(80):
        counts.add(links, src, tgt)
        table.update((one, other) for i, j in links for one in src[i] for other in tgt[j])
        occurrences.update(token for word in tgt for token in word)
    for best in (1, 5, SIZE):
        rows = counts.candidates(best)
        assert len(rows) == SIZE
        for src_id, row in enumerate(rows):
            linked = [other for one, other in table if one == src_id]
            assert row == sorted(linked, key=lambda other: (-table[src_id, other], other))[:best]
    ranked = sorted(occurrences, key=lambda token: (-occurrences[token], token))
    assert counts.frequent(7) == ranked[:7]
    assert counts.frequent(10 * SIZE) == ranked


def test_no_links() -> None:
    counts = LinkCounts(SIZE, SIZE)
    assert counts.candidates(5) == [[]] * SIZE
    assert counts.frequent(5) == []


def test_candidates_of_sentences() -> None:
    listed: list[list[int]] = [[] for _ in range(SIZE)]
    listed[4], listed[5], listed[9] = [20, 21], [21, 30, 31], [59]
    shortlist = Shortlist.from_candidates(listed, [40, 41], SIZE)
    batch = collate(
        [[4, 5, 4], [7], [9, 1]], src_extended=[[4, 5, 4], [SIZE], [9, SIZE + 1]], n_oov=2
    )
    always = {*range(len(SPECIALS)), 40, 41}

    def ids(rows: torch.Tensor) -> list[set[int]]:
        return [set(row.nonzero()[:, 0].tolist()) for row in rows]

    assert ids(shortlist.candidates(batch, copies=False)) == [
        always | {20, 21, 30, 31},
        always,
        always | {59},
    ]
    copied = [always | {20, 21, 30, 31, 4, 5}, always, always | {59, 9}]
    assert ids(shortlist.candidates(batch, copies=True)) == copied


def write(
    path: Path, tokenizers: Tokenizers, rows: dict[int, list[int]], frequent: list[int]
) -> None:
    candidates = [rows.get(src, []) for src in range(len(tokenizers.src.vocabulary))]
    path.write_text("".join(shortlist_lines(tokenizers, candidates, frequent)), encoding="utf-8")


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    words = " ".join(
        chr(letter) * 2
        for letter in [*range(ord("a"), ord("z") + 1), *range(ord("α"), ord("ω") + 1)]
    )
    return learn_tokenizers(
        TokenizerConfig(kind="char", vocab_size=100), [Example(words, words * 2, 1)]
    )


@pytest.fixture
def path(tokenizers: Tokenizers, tmp_path: Path) -> Path:
    """A file of two candidates of token 4, one of token 50, and two frequent tokens."""
    write(tmp_path / "list", tokenizers, {4: [9, 8], 50: [7]}, [30, 20])
    return tmp_path / "list"


def test_a_file_holds_it(tokenizers: Tokenizers, path: Path) -> None:
    size = len(tokenizers.tgt.vocabulary)
    assert path.read_text() == (
        f"nmtkit shortlist 1\nvocabularies {tokenizers.checksum} {size} {size}\nfrequent 30 20\n4 9 8\n50 7\nend\n"
    )
    shortlist = read_shortlist(path, tokenizers)
    assert shortlist.words.tolist() == [9, 8, 7]
    assert (shortlist.starts.diff().nonzero()[:, 0].tolist(), len(shortlist.starts)) == (
        [4, 50],
        size + 1,
    )
    assert shortlist.always.nonzero()[:, 0].tolist() == [0, 1, 2, 3, 20, 30]
    write(path, tokenizers, {}, [])
    assert int(read_shortlist(path, tokenizers).always.sum()) == len(SPECIALS)


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ("nmtkit shortlist 1", "nmtkit shortlist 11", 1),
        ("vocabularies ", "vocabularies 0", 2),
        ("frequent", "rare", 3),
        ("frequent 30", "frequent x", 3),
        ("4 9 8", "4 9 999", 4),
        ("4 9 8", "4 9 -8", 4),
        ("4 9 8", "4 9  8", 4),
        ("4 9 8", "4 9 \u0668", 4),
        ("4 9 8", "4 9 " + 9999 * "1", 4),
        ("4 9 8", "4 9 9", 4),
        ("4 9 8", "999 9 8", 4),
        ("4 9 8", "", 4),
        ("50 7", "4 7", 5),
        ("50 7", "3 7", 5),
        ("end", "end\n51 7", 6),
    ],
)
def test_a_damaged_file(
    before: str, after: str, line: int, tokenizers: Tokenizers, path: Path
) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1), encoding="utf-8")
    with pytest.raises(
        DataError, match=rf"^{path}, line {line}: .*`nmtkit align --shortlist FILE` creates one"
    ):
        read_shortlist(path, tokenizers)


def test_what_is_no_shortlist(tokenizers: Tokenizers, tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\x00" * 50)
    (tmp_path / "empty").write_bytes(b"")
    for name in ("bytes", "empty", "missing", "."):
        with pytest.raises(DataError) as fault:
            read_shortlist(tmp_path / name, tokenizers)
        assert str(tmp_path / name) in str(fault.value)


def test_what_was_counted_is_written(tokenizers: Tokenizers, tmp_path: Path) -> None:
    path = tmp_path / "new" / "list"
    with shortlist_writer(path, tokenizers, 1, 2) as counts:
        counts.add({(0, 0)}, [[7]], [[8, 8, 9, 10, 10, 10]])
        assert not path.exists()
    shortlist = read_shortlist(path, tokenizers)
    assert (shortlist.words.tolist(), shortlist.always.nonzero()[:, 0].tolist()) == (
        [10],
        [0, 1, 2, 3, 8, 10],
    )
    before = path.read_bytes()
    with pytest.raises(RuntimeError), shortlist_writer(path, tokenizers, 1, 2):
        raise RuntimeError
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
    with (
        pytest.raises(NmtkitError, match="cannot be written"),
        shortlist_writer(tmp_path, tokenizers, 1, 1),
    ):
        pytest.fail("it is seen at the end only")


def test_every_cut_of_a_file_is_refused(tokenizers: Tokenizers, path: Path) -> None:
    whole = path.read_bytes()
    for size in range(len(whole) - 1):  # but for the last line end
        path.write_bytes(whole[:size])
        with pytest.raises(DataError):
            read_shortlist(path, tokenizers)
