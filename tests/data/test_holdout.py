"""Pairs set aside for validation and test: as many as asked for, spread evenly, their sources nowhere in train."""

import random
from collections import Counter
from pathlib import Path

import pytest

from nmtkit.data import holdout
from nmtkit.data.corpus import Files
from nmtkit.data.holdout import draw, write
from nmtkit.data.reading import Example, read_pairs
from nmtkit.errors import DataError


def pairs_of(sources: list[str]) -> list[Example]:
    return [Example(src, f"<{src}>", line) for line, src in enumerate(sources, start=1)]


def numbered(count: int) -> list[Example]:
    return pairs_of([f"sentence {number}" for number in range(count)])


def split(pairs: list[Example], with_test: bool = True) -> dict[str, list[Example]]:
    hold_out = draw(pairs, with_test)
    found: dict[str, list[Example]] = {"train": [], "valid": [], "test": []}
    for pair in pairs:
        found[hold_out.split_of(pair)].append(pair)
    return found


@pytest.mark.parametrize(
    ("count", "held"), [(3, 1), (50, 2), (600, 30), (20_000, 1_000), (30_000, 1_000)], ids=lambda value: str(value)
)
def test_one_in_twenty_and_never_more_than_a_thousand(count: int, held: int) -> None:
    found = split(numbered(count))
    assert {name: len(pairs) for name, pairs in found.items()} == {
        "train": count - 2 * held,
        "valid": held,
        "test": held,
    }


def test_without_a_test_set_only_validation_is_held_out() -> None:
    found = split(numbered(600), with_test=False)
    assert (len(found["valid"]), len(found["test"])) == (30, 0)
    assert draw(numbered(600), with_test=False).splits == ("valid",)
    assert draw(numbered(600), with_test=True).splits == ("valid", "test")


def test_a_source_is_on_one_side_only_however_it_is_written() -> None:
    sources = [f"Sentence {number % 400}" for number in range(1_600)]
    sources += [f"  sentence   {number} ".upper() for number in range(400)]
    found = split(pairs_of(sources))
    keys = {name: {" ".join(pair.src.lower().split()) for pair in pairs} for name, pairs in found.items()}
    assert not keys["train"] & (keys["valid"] | keys["test"])
    assert not keys["valid"] & keys["test"]
    assert all(len(found[name]) == 5 * len(keys[name]) for name in found)
    assert len(keys["valid"]) == 2_000 // 20


def test_all_parts_of_the_corpus_are_drawn_from() -> None:
    lines = [pair.line for pair in split(numbered(20_000))["valid"]]
    quarters = Counter((line - 1) // 5_000 for line in lines)
    assert all(200 < quarters[number] < 300 for number in range(4))


def test_neither_order_nor_further_pairs_matter_much() -> None:
    pairs = numbered(2_000)
    before = {pair.src for pair in split(pairs)["valid"]}
    random.Random(1).shuffle(pairs)
    assert {pair.src for pair in split(pairs)["valid"]} == before
    after = {pair.src for pair in split(numbered(2_200))["valid"]}
    assert len(before & after) > 80


def test_the_memory_of_a_draw_is_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the least places only, and they are the least of all."""
    monkeypatch.setattr(holdout, "MOST", 7)
    found = split(numbered(5_000))
    assert (len(found["valid"]), len(found["test"])) == (7, 7)
    held = {holdout._place(pair.src) for name in ("valid", "test") for pair in found[name]}
    assert held == set(sorted(holdout._place(pair.src) for pair in numbered(5_000))[:14])


def test_a_pair_with_an_empty_side_measures_nothing() -> None:
    pairs = [Example(f"s{number}", "" if number % 2 else "t", number) for number in range(1, 400)]
    pairs += [Example("", "t", 400), Example(" ", "t", 401)]
    found = split(pairs)
    assert all(pair.src.strip() and pair.tgt for name in ("valid", "test") for pair in found[name])
    assert len(found["valid"]) == 199 // 20


@pytest.mark.parametrize(("sources", "with_test"), [(["a"], False), (["a", "b"], True), (["a", "A", "a "], False)])
def test_too_few_sources(sources: list[str], with_test: bool) -> None:
    with pytest.raises(DataError, match=r"too few to hold some out .* --valid-source"):
        draw(pairs_of(sources), with_test)


def test_every_pair_is_written_once_and_as_it_was(tmp_path: Path) -> None:
    texts = [[f"{corpus} \u2028 {number}\t «x»" for number in range(300)] for corpus in ("one", "two")]
    for number, lines in enumerate(texts):
        (tmp_path / f"{number}.src").write_bytes("".join(line + "\r\n" for line in lines).encode())
        (tmp_path / f"{number}.tgt").write_text("".join(f"T{line}\n" for line in lines), encoding="utf-8")
    files = Files(src=[str(tmp_path / f"{n}.src") for n in (0, 1)], tgt=[str(tmp_path / f"{n}.tgt") for n in (0, 1)])
    hold_out = draw(read_pairs(files), with_test=True)
    counts = write(files, hold_out, tmp_path / "text", ["train-1", "train-2"], ("en", "de"))
    assert counts == {"train": 540, "valid": 30, "test": 30}
    names = {path.name for path in (tmp_path / "text").iterdir()}
    assert names == {f"{name}.{end}" for name in ("train-1", "train-2", "valid", "test") for end in ("en", "de")}

    def read(name: str) -> list[tuple[str, str | None]]:
        one = Files(src=[str(tmp_path / "text" / f"{name}.en")], tgt=[str(tmp_path / "text" / f"{name}.de")])
        return [(pair.src, pair.tgt) for pair in read_pairs(one)]

    parts = {name: read(name) for name in ("train-1", "train-2", "valid", "test")}
    assert all(
        src.startswith(name) for name, part in (("one", "train-1"), ("two", "train-2")) for src, _ in parts[part]
    )
    assert sorted(pair for part in parts.values() for pair in part) == sorted(
        (line, f"T{line}") for lines in texts for line in lines
    )
