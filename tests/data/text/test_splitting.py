"""Pairs set aside for validation and test: whole groups, as many as asked for, from everywhere."""

import random
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from nmtkit.core.errors import DataError
from nmtkit.data.text import splitting
from nmtkit.data.text.blocks import Example
from nmtkit.data.text.config import SplitFiles
from nmtkit.data.text.reading import read_pairs
from nmtkit.data.text.splitting import HoldOut, Splitter, choose_hold_out, group_hash, write_splits
from nmtkit.datasets.readers import Pair


def pairs_of(sources: list[str]) -> list[Example]:
    return [Example(src, f"<{src}>", line) for line, src in enumerate(sources, start=1)]


def numbered(count: int) -> list[Example]:
    return pairs_of([f"sentence {number}" for number in range(count)])


def draw(pairs: Iterable[Example], with_test: bool) -> HoldOut:
    """What is held out; all others, and only they, are given away for training, each once."""
    given: list[Example] = []
    pairs = list(pairs)
    held = choose_hold_out(pairs, with_test, given.append)
    train = [pair.line for pair in pairs if held.split_of(pair) == "train"]
    assert sorted(pair.line for pair in given) == sorted(train)
    return held


def split(pairs: list[Example], with_test: bool = True) -> dict[str, list[Example]]:
    hold_out = draw(pairs, with_test)
    found: dict[str, list[Example]] = {"train": [], "valid": [], "test": []}
    for pair in pairs:
        found[hold_out.split_of(pair)].append(pair)
    return found


@pytest.mark.parametrize(
    ("count", "held"), [(3, 1), (50, 2), (600, 30), (20_000, 1_000), (30_000, 1_000)]
)
def test_one_in_twenty_and_never_more_than_a_thousand(count: int, held: int) -> None:
    sizes = {name: len(pairs) for name, pairs in split(numbered(count)).items()}
    assert sizes == {"train": count - 2 * held, "valid": held, "test": held}


def test_without_a_test_set_only_validation_is_held_out() -> None:
    found = split(numbered(600), with_test=False)
    assert (len(found["valid"]), len(found["test"])) == (30, 0)
    assert draw(numbered(600), with_test=False).splits == ("valid",)
    assert draw(numbered(600), with_test=True).splits == ("valid", "test")


def test_a_source_is_on_one_side_only_however_it_is_written() -> None:
    sources = [f"Sentence {number % 400}" for number in range(1_600)]
    sources += [f"  sentence   {number} ".upper() for number in range(400)]
    found = split(pairs_of(sources))
    keys = {
        name: {" ".join(pair.src.lower().split()) for pair in pairs}
        for name, pairs in found.items()
    }
    assert not keys["train"] & (keys["valid"] | keys["test"])
    assert not keys["valid"] & keys["test"]
    assert all(len(found[name]) == 5 * len(keys[name]) for name in found)
    assert len(found["valid"]) == len(found["test"]) == 2_000 // 20


@pytest.mark.parametrize(
    "other",
    [
        lambda text: unicodedata.normalize("NFD", text),
        # full-width
        lambda text: text.translate({code: code + 0xFEE0 for code in range(0x21, 0x7F)}),
        lambda text: text.replace(" ", "\u00a0"),
        lambda text: text.replace(" ", "\x1f"),
    ],
)
def test_copies_in_another_form_are_on_the_same_side(other: Callable[[str], str]) -> None:
    sources = [f"l'élève n° {number} voit le café" for number in range(400)]
    sources += [other(source) for source in sources]
    found = split(pairs_of(sources))
    numbers = {}
    for name, pairs in found.items():
        numbers[name] = {
            int(re.sub(r"\D", "", unicodedata.normalize("NFKC", pair.src))) for pair in pairs
        }
        assert len(pairs) == 2 * len(numbers[name])
    assert not numbers["train"] & (numbers["valid"] | numbers["test"])
    assert numbers["valid"]
    assert numbers["test"]


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
    monkeypatch.setattr(splitting, "MAX_HELD_OUT", 7)
    found = split(numbered(5_000))
    assert (len(found["valid"]), len(found["test"])) == (7, 7)
    held = {group_hash(pair.src) for name in ("valid", "test") for pair in found[name]}
    assert held == set(sorted(group_hash(pair.src) for pair in numbered(5_000))[:14])


def test_a_pair_with_an_empty_side_measures_nothing() -> None:
    pairs = [Example(f"s{number}", "" if number % 2 else "t", number) for number in range(1, 400)]
    pairs += [Example("", "t", 400), Example(" ", "t", 401)]
    found = split(pairs)
    assert all(pair.src.strip() and pair.tgt for name in ("valid", "test") for pair in found[name])
    assert len(found["valid"]) == 199 // 20


def test_train_keeps_every_label() -> None:
    """One in three is of a label of its own; of one source some lines have a common label and one has a rare one."""
    pairs = [Example(f"text {n}", f"rare {n}" if n % 3 == 0 else "common", n) for n in range(600)]
    pairs += [Example("text 1", " rare ", 600), Example("text 2", "common", 601)]
    given: list[Example] = []
    held = choose_hold_out(pairs, True, given.append, labelled=True)
    found = {
        name: [pair for pair in pairs if held.split_of(pair) == name]
        for name in ("train", "valid", "test")
    }
    assert sorted(pair.line for pair in given) == [pair.line for pair in found["train"]]
    assert (len(found["valid"]), len(found["test"])) == (30, 30)
    assert {pair.tgt for pair in pairs} == {pair.tgt for pair in found["train"]}
    with pytest.raises(
        DataError,
        match=r"0 distinct source lines \(not counting the first line with each label, .*\) are too few",
    ):
        choose_hold_out(pairs[::3], True, given.append, labelled=True)


@pytest.mark.parametrize(
    ("sources", "with_test"), [(["a"], False), (["a", "b"], True), (["a", "A", "a "], False)]
)
def test_too_few_sources(sources: list[str], with_test: bool) -> None:
    with pytest.raises(DataError, match=r"too few to hold some out .* with --valid"):
        draw(pairs_of(sources), with_test)


def test_every_pair_is_written_once_and_as_it_was(tmp_path: Path) -> None:
    texts = [
        [f"{corpus} \u2028 {number}\t «x»" for number in range(300)] for corpus in ("one", "two")
    ]
    for number, lines in enumerate(texts):
        (tmp_path / f"{number}.src").write_bytes("".join(line + "\r\n" for line in lines).encode())
        (tmp_path / f"{number}.tgt").write_text(
            "".join(f"T{line}\n" for line in lines), encoding="utf-8"
        )
    files = SplitFiles(
        src=[str(tmp_path / f"{n}.src") for n in (0, 1)],
        tgt=[str(tmp_path / f"{n}.tgt") for n in (0, 1)],
    )
    hold_out = draw(read_pairs(files), with_test=True)
    counts = write_splits(files, hold_out, tmp_path / "text", ["train-1", "train-2"], ("en", "de"))
    assert counts == {"train": 540, "valid": 30, "test": 30}
    names = {path.name for path in (tmp_path / "text").iterdir()}
    assert names == {
        f"{name}.{end}" for name in ("train-1", "train-2", "valid", "test") for end in ("en", "de")
    }

    def read(name: str) -> list[tuple[str, str | None]]:
        one = SplitFiles(
            src=[str(tmp_path / "text" / f"{name}.en")], tgt=[str(tmp_path / "text" / f"{name}.de")]
        )
        return [(pair.src, pair.tgt) for pair in read_pairs(one)]

    parts = {name: read(name) for name in ("train-1", "train-2", "valid", "test")}
    assert all(src.startswith("one") for src, _ in parts["train-1"])
    assert all(src.startswith("two") for src, _ in parts["train-2"])
    written = sorted(pair for part in parts.values() for pair in part)
    assert written == sorted((line, f"T{line}") for lines in texts for line in lines)


# By shares of all groups.


def split_of(group: str, valid: float, test: float) -> str:
    """The split of a group, by its name and the shares alone."""
    place = group_hash(group) / 2**64
    return "test" if place < test else "valid" if place < test + valid else "train"


def divide(
    pairs: list[Pair], valid: float, test: float, at_most: int | None = None
) -> dict[str, list[Pair]]:
    train: list[Pair] = []
    splitter = Splitter[Pair](valid, test, at_most, train.append)
    for pair in pairs:
        splitter.add(pair.group or pair.src, pair)
    return {
        "train": train,
        "valid": splitter.held_out["valid"].items(),
        "test": splitter.held_out["test"].items(),
    }


def test_the_places_do_not_depend_on_the_machine() -> None:
    """Worked out by hand from the first eight bytes of the SHA-256 sum of "abc", ba7816bf 8f01cfea."""
    assert group_hash("abc") == 0xBA7816BF8F01CFEA


def test_groups_are_divided_by_their_places_alone_and_the_order_is_kept() -> None:
    pairs = [
        Pair(f"s{number}", f"t{number}", group=f"page-{number % 4_000}") for number in range(12_000)
    ]
    found = divide(pairs, 0.1, 0.2)
    for name, held in found.items():
        assert held == [pair for pair in pairs if split_of(pair.group, 0.1, 0.2) == name]
    assert len(found["test"]) / len(pairs) == pytest.approx(0.2, abs=0.02)
    assert len(found["valid"]) / len(pairs) == pytest.approx(0.1, abs=0.02)
    assert {pair.group for pair in found["test"]} > {
        pair.group for pair in divide(pairs, 0.1, 0.1)["test"]
    }


@pytest.mark.parametrize("per_group", [1, 7])
def test_no_more_than_asked_for_and_from_everywhere(per_group: int) -> None:
    pairs = [Pair(f"s{number}", "t", group=f"g{number // per_group}") for number in range(20_000)]
    found = divide(pairs, 0.3, 0.3, at_most=210)
    for name in ("valid", "test"):
        assert 210 - per_group < len(found[name]) <= 210
        numbers = [int(pair.src[1:]) for pair in found[name]]
        assert numbers == sorted(numbers)
        assert sum(number < 10_000 for number in numbers) > 60  # not all from one end
        assert sum(number >= 10_000 for number in numbers) > 60
    assert sum(map(len, found.values())) == len(pairs)
    groups = [{pair.group for pair in held} for held in found.values()]
    assert not groups[0] & groups[1] | groups[0] & groups[2] | groups[1] & groups[2]


def test_with_a_limit_the_order_of_the_corpus_does_not_matter() -> None:
    pairs = [Pair(f"s{number}", "t", group=f"g{number // 4}") for number in range(5000)]
    shuffled = random.Random(1).sample(pairs, len(pairs))
    one, other = divide(pairs, 0.2, 0.2, 100), divide(shuffled, 0.2, 0.2, 100)
    for name in ("valid", "test"):
        assert {pair.src for pair in one[name]} == {pair.src for pair in other[name]}


def test_a_group_that_is_too_large_for_the_limit_goes_to_train() -> None:
    pairs = [Pair(f"s{number}", "t", group="one") for number in range(10)]
    found = divide(pairs, 0.0, 0.999999, at_most=9)
    assert len(found["train"]) == 10
