"""`nmtkit align` as a user meets it, on a run that was trained for it."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from commands import Command, refused, sentence_pairs, succeeded, write_pairs

from nmtkit import Translator
from nmtkit.core.errors import DataError
from nmtkit.corpus.alignments import format_pharaoh, links_from_attention, parse_alignments, reverse_links, symmetrize
from nmtkit.data.shortlist import read_shortlist
from nmtkit.metrics import aer


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `test.src` and `test.tgt`: the target says the source backwards, so the gold is known."""
    folder = tmp_path_factory.mktemp("pairs")
    write_pairs(folder, "test", sentence_pairs(60, 7))
    return folder


def gold(folder: Path) -> list[str]:
    sources = (folder / "test.src").read_text().splitlines()
    return [" ".join(f"{i}-{len(line.split()) - 1 - i}" for i in range(len(line.split()))) for line in sources]


def both(folder: Path) -> list[object]:
    return ["--source", folder / "test.src", "--target", folder / "test.tgt"]


def test_align_finds_the_words(trained: Path, console: Command, pairs: Path) -> None:
    done = succeeded(console("align", "-m", trained, *both(pairs)))
    found = [pair.possible for pair in parse_alignments(done.out.splitlines(), "stdout").pairs]
    assert (
        aer(found, parse_alignments(gold(pairs), "gold").pairs).aer.value < 30
    )  # it was trained for seconds; by chance: 75
    for links, target in zip(found, (pairs / "test.tgt").read_text().splitlines(), strict=True):
        assert sorted(tgt for _, tgt in links) == list(range(len(target.split())))  # one link a target word

    (pairs / "gold").write_text("\n".join(gold(pairs)) + "\n")
    (pairs / "found").write_text(done.out)
    scored = console("score-alignments", pairs / "found", "--ref", pairs / "gold", "--json")
    assert json.loads(scored.out)["systems"][0]["scores"][0]["value"] < 30


def test_python_gives_what_the_command_gives(trained: Path, console: Command, pairs: Path) -> None:
    sources, targets = ((pairs / f"test.{side}").read_text().splitlines() for side in ("src", "tgt"))
    found = Translator.load(str(trained), device="cpu").align(sources, targets)
    done = console("align", "-m", trained, *both(pairs))
    assert [format_pharaoh(one.links()) for one in found] == done.out.splitlines()
    assert [one.src_words for one in found] == [line.split() for line in sources]
    for one in found:
        assert one.weights.shape == (len(one.tgt_words), len(one.src_words))
        assert (one.weights.sum(axis=1) <= 1 + 1e-6).all()


def test_words_weights_are_those_of_the_search(trained: Path) -> None:
    """Row t is the attention of the step that wrote word t: the same as the search's own, EOS left out."""
    translator = Translator.load(str(trained), device="cpu")
    sources = [source for source, _ in sentence_pairs(10, 8)]
    searched = [found[0] for found in translator.search(sources, need_attention=True)]
    aligned = translator.align(sources, [one.text for one in searched])
    for search, one in zip(searched, aligned, strict=True):
        assert search.attention is not None
        n_tokens = len(search.tokens)
        assert one.weights == pytest.approx(search.attention[:n_tokens, :-1], abs=1e-5)


def test_empty_sides_and_odd_spaces(trained: Path, console: Command, tmp_path: Path) -> None:
    (tmp_path / "src").write_text("ba  ce\t di\n\n \nba\n\n", encoding="utf-8")
    (tmp_path / "tgt").write_text("DI CE BA\n\nDI\n\n\u3000\n", encoding="utf-8")
    done = succeeded(console("align", "-m", trained, "--source", tmp_path / "src", "--target", tmp_path / "tgt"))
    first, *rest = done.out.split("\n")
    assert {int(link.split("-")[1]) for link in first.split()} == {0, 1, 2}
    assert rest == ["", "", "", "", ""]
    assert "2 pairs have one empty side: their lines are empty" in done.err


def test_words_of_ones_own(trained: Path, console: Command, tmp_path: Path) -> None:
    """Punctuation that is glued to a word is part of it unless the words are given."""
    (tmp_path / "src").write_text("ba ce, di\n")
    (tmp_path / "tgt").write_text("DI CE BA.\n")
    (tmp_path / "src.tok").write_text("ba ce , di\n")
    (tmp_path / "tgt.tok").write_text("DI CE BA .\n")
    texts = ["--source", tmp_path / "src", "--target", tmp_path / "tgt"]
    words = ["--source-words", tmp_path / "src.tok", "--target-words", tmp_path / "tgt.tok"]
    succeeded(console("align", "-m", trained, *texts, *words, "--soft", tmp_path / "soft.json"))
    (record,) = json.loads((tmp_path / "soft.json").read_text())
    assert (record["source"], record["target"]) == (["ba", "ce", ",", "di"], ["DI", "CE", "BA", "."])
    assert np.array(record["weights"]).shape == (4, 4)

    (tmp_path / "src.tok").write_text("ba ce ; di\n")
    refused(
        console("align", "-m", trained, *texts, *words),
        "source line 1: the file of words has ';' where the text has ','",
    )
    (tmp_path / "src.tok").write_text("ba ce , di\n\n")
    refused(console("align", "-m", trained, *texts, *words), "src.tok has more than the 1 lines of", after_results=True)
    (tmp_path / "src.tok").write_text("")
    refused(console("align", "-m", trained, *texts, *words), "src.tok ends after line 0, but")


def test_two_directions(trained: Path, console: Command, pairs: Path, tmp_path: Path) -> None:
    """With a joint vocabulary one run reads either side; as the other direction it stands for any second model."""
    forward = parse_alignments(console("align", "-m", trained, *both(pairs)).out.splitlines(), "forward").pairs
    turned = ["--source", pairs / "test.tgt", "--target", pairs / "test.src"]
    backward = parse_alignments(console("align", "-m", trained, *turned).out.splitlines(), "backward").pairs
    directions = [(one.possible, reverse_links(two.possible)) for one, two in zip(forward, backward, strict=True)]
    for arguments, method in ((["--symmetrize", "union"], "union"), ([], "grow-diag")):
        soft = tmp_path / "soft.npz"
        done = succeeded(
            console("align", "-m", trained, "--reverse-model", trained, *both(pairs), *arguments, "--soft", soft)
        )
        expected = [symmetrize(one, two, method) for one, two in directions]  # type: ignore[arg-type]  # one of the names
        assert done.out.splitlines() == [format_pharaoh(links) for links in expected]
    with np.load(tmp_path / "soft.npz") as arrays:
        assert len(arrays.files) == 2 * 60
        assert links_from_attention(arrays["3"]) == directions[2][0]
        assert reverse_links(links_from_attention(arrays["3.reverse"])) == directions[2][1]


def test_one_attention_read_both_ways(trained: Path, console: Command, pairs: Path) -> None:
    sources, targets = ((pairs / f"test.{side}").read_text().splitlines() for side in ("src", "tgt"))
    found = Translator.load(str(trained), device="cpu").align(sources, targets)
    done = console("align", "-m", trained, *both(pairs), "--symmetrize", "intersection")
    assert done.out.splitlines() == [format_pharaoh(one.links() & one.links_by_source()) for one in found]


def test_threshold(trained: Path, console: Command, pairs: Path) -> None:
    sources, targets = ((pairs / f"test.{side}").read_text().splitlines() for side in ("src", "tgt"))
    found = Translator.load(str(trained), device="cpu").align(sources, targets)
    done = console("align", "-m", trained, *both(pairs), "--threshold", "0.2")
    assert done.out.splitlines() == [format_pharaoh(links_from_attention(one.weights, 0.2)) for one in found]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--soft", "soft.txt"], "'soft.txt' must end in .json or .npz"),
        (["--threshold", "0.2", "--symmetrize", "union"], "does not go with --symmetrize"),
        (["--symmetrize", "both"], "'both' is not one of"),
        (["--reverse-model", "nowhere"], "nowhere"),
    ],
)
def test_wrong_options(trained: Path, console: Command, pairs: Path, arguments: list[str], message: str) -> None:
    refused(console("align", "-m", trained, *both(pairs), *arguments), message)


def test_files_that_do_not_fit(trained: Path, console: Command, pairs: Path, tmp_path: Path) -> None:
    (tmp_path / "short").write_text("DI\n")
    soft = tmp_path / "soft.json"
    done = console(
        "align", "-m", trained, "--source", pairs / "test.src", "--target", tmp_path / "short", "--soft", soft
    )
    assert done.code == 2
    assert "test.src has 60 lines, but" in done.err
    assert list(tmp_path.iterdir()) == [tmp_path / "short"]  # no half a file
    translator = Translator.load(str(trained), device="cpu")
    with pytest.raises(DataError, match="2 source lines but 1 target word lines"):
        translator.align(["ba", "ce"], ["BA", "CE"], tgt_words=["BA"])


def test_a_shortlist_counts_the_links_that_are_printed(
    trained: Path, console: Command, pairs: Path, tmp_path: Path
) -> None:
    path = tmp_path / "list"
    done = succeeded(console("align", "-m", trained, *both(pairs), "--shortlist", path))
    tokenizers = Translator.load(str(trained), device="cpu").tokenizers
    linked, seen = Counter[tuple[int, int]](), Counter[int]()
    for src, tgt, links in zip(
        *((pairs / f"test.{side}").read_text().splitlines() for side in ("src", "tgt")),
        parse_alignments(done.out.splitlines(), "stdout").pairs,
        strict=True,
    ):
        sides = [tokenizers.src.encode_many(src.split()), tokenizers.tgt.encode_many(tgt.split())]
        linked.update((one, other) for i, j in links.possible for one in sides[0][i] for other in sides[1][j])
        seen.update(token for word in sides[1] for token in word)
    found = read_shortlist(path, tokenizers)
    starts = found.starts.tolist()
    listed = {
        (src, tgt) for src in range(len(starts) - 1) for tgt in found.words[starts[src] : starts[src + 1]].tolist()
    }
    assert listed == set(linked)
    assert set(found.always.nonzero()[:, 0].tolist()) == {*range(4), *seen}

    few = console(
        "align", "-m", trained, *both(pairs), "--shortlist", path, "--shortlist-best", 1, "--shortlist-frequent", 0
    )
    assert few.out == done.out
    found = read_shortlist(path, tokenizers)
    assert len(found.words) == len({src for src, _ in linked})
    assert int(found.always.sum()) == 4


def test_what_does_not_go_with_a_shortlist(trained: Path, console: Command, pairs: Path, tmp_path: Path) -> None:
    refused(console("align", "-m", trained, *both(pairs), "--shortlist-best", 3), "are for --shortlist FILE")
    (tmp_path / "file").touch()
    refused(console("align", "-m", trained, *both(pairs), "--shortlist", tmp_path / "file" / "list"), "cannot write it")
