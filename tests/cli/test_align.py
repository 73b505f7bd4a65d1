"""`nmtkit align` on a run that was trained for it, and searches with the shortlist that it writes."""

import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from nmtkit import Translator
from nmtkit.cli.inference import pairs as commands
from nmtkit.core.errors import DataError
from nmtkit.data.text.alignments import (
    Links,
    SoftAlignment,
    format_pharaoh,
    links_from_attention,
    parse_alignments,
    reverse_links,
    symmetrize,
)
from nmtkit.decoding.shortlist import shortlist_lines, shortlist_writer
from tests.cli.untrained_runs import ARTICLES, LINES, SUMMARIZATION, TRANSLATION, make_run
from tests.support.commands import (
    Command,
    Finished,
    as_text,
    backwards_links,
    json_lines,
    lines_in,
    refused,
    sentence_pairs,
    succeeded,
    write_lines,
    write_pairs,
)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `test.src` and `test.tgt`: the target says the source backwards, so the gold is known."""
    folder = tmp_path_factory.mktemp("pairs")
    write_pairs(folder, "test", sentence_pairs(60, 7))
    return folder


@pytest.fixture
def align(console: Command, trained: Path, pairs: Path) -> Command:
    """Aligns the pairs, or others, with the trained run."""

    def run(
        *words: object, src: Path = pairs / "test.src", tgt: Path = pairs / "test.tgt"
    ) -> Finished:
        return console("align", "-m", trained, "--source", src, "--target", tgt, *words)

    return run


def test_align_finds_the_words(align: Command, console: Command, pairs: Path) -> None:
    done = succeeded(align())
    aligned = [pair.possible for pair in parse_alignments(done.out.splitlines(), "stdout").pairs]
    for links, target in zip(aligned, lines_in(pairs / "test.tgt"), strict=True):
        # one link a target word
        assert sorted(tgt for _, tgt in links) == list(range(len(target.split())))
    write_lines("gold", backwards_links(lines_in(pairs / "test.src")))
    Path("found").write_text(done.out)
    scored = console("score-alignments", "found", "--ref", "gold", "--json")
    # trained for seconds; by chance: 75
    assert json.loads(scored.out)["systems"][0]["scores"][0]["value"] < 30


LINKS: dict[str, Callable[[SoftAlignment], Links]] = {
    "": lambda soft: soft.links(),
    "--symmetrize intersection": lambda soft: soft.symmetrized("intersection"),
    "--threshold 0.2": lambda soft: links_from_attention(soft.weights, 0.2),
}


@pytest.mark.parametrize("options", LINKS, ids=lambda options: options or "no options")
def test_python_gives_what_the_command_gives(
    trained: Path, align: Command, pairs: Path, options: str
) -> None:
    sources, targets = (lines_in(pairs / f"test.{side}") for side in ("src", "tgt"))
    soft = Translator.load(str(trained), device="cpu").align(sources, targets)
    assert align(*options.split()).out.splitlines() == [
        format_pharaoh(LINKS[options](one)) for one in soft
    ]


def test_weights_of_a_target_word_are_at_most_1(trained: Path, pairs: Path) -> None:
    sources, targets = (lines_in(pairs / f"test.{side}") for side in ("src", "tgt"))
    for line, soft in zip(
        sources, Translator.load(str(trained), device="cpu").align(sources, targets), strict=True
    ):
        assert soft.src_words == line.split()
        assert soft.weights.shape == (len(soft.tgt_words), len(soft.src_words))
        assert (soft.weights.sum(axis=1) <= 1 + 1e-6).all()


def test_pairs_with_an_empty_side_have_no_links(align: Command, tmp_path: Path) -> None:
    (tmp_path / "src").write_text("ba  ce\t di\n\n \nba\n\n", encoding="utf-8")
    (tmp_path / "tgt").write_text("DI CE BA\n\nDI\n\n\u3000\n", encoding="utf-8")
    done = succeeded(align(src=tmp_path / "src", tgt=tmp_path / "tgt"))
    first, *rest = done.out.split("\n")
    assert {int(link.split("-")[1]) for link in first.split()} == {0, 1, 2}
    assert rest == ["", "", "", "", ""]
    assert "2 pairs have one empty side; their lines in the output are empty" in done.err


@pytest.fixture
def align_words(align: Command, tmp_path: Path) -> Command:
    """Aligns a pair of lines by the words of two files: punctuation is not part of a word there."""
    src = write_lines(tmp_path / "src", ["ba ce, di"])
    tgt = write_lines(tmp_path / "tgt", ["DI CE BA."])
    write_lines(tmp_path / "src.tok", ["ba ce , di"])
    write_lines(tmp_path / "tgt.tok", ["DI CE BA ."])
    return partial(
        align, "--source-words", "src.tok", "--target-words", "tgt.tok", src=src, tgt=tgt
    )


def test_links_are_between_the_words_of_the_files(align_words: Command, tmp_path: Path) -> None:
    succeeded(align_words("--soft", "soft.json"))
    (record,) = json.loads((tmp_path / "soft.json").read_text())
    assert (record["source"], record["target"]) == (
        ["ba", "ce", ",", "di"],
        ["DI", "CE", "BA", "."],
    )
    assert np.array(record["weights"]).shape == (4, 4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(
            "ba ce ; di\n",
            "source line 1: the words file has 'ce ;' where the text has 'ce,'",
            id="another word",
        ),
        pytest.param("ba ce , di\n\n", "src.tok has more lines than ", id="too many lines"),
        pytest.param("", "src.tok ends after line 0, but", id="too few lines"),
    ],
)
def test_words_that_do_not_fit_the_text_are_refused(
    align_words: Command, tmp_path: Path, words: str, message: str
) -> None:
    (tmp_path / "src.tok").write_text(words)
    refused(align_words(), message, after_results=True)


def test_links_of_two_directions_are_merged(trained: Path, align: Command, pairs: Path) -> None:
    """With a joint vocabulary one run reads either side; as the other direction it stands for any second model."""
    turned = align(src=pairs / "test.tgt", tgt=pairs / "test.src").out
    forward, backward = (
        parse_alignments(text.splitlines(), "stdout").pairs for text in (align().out, turned)
    )
    directions = [
        (one.possible, reverse_links(two.possible))
        for one, two in zip(forward, backward, strict=True)
    ]
    for arguments, method in ((["--symmetrize", "union"], "union"), ([], "grow-diag")):
        done = succeeded(align("--reverse-model", trained, *arguments, "--soft", "soft.npz"))
        expected = [symmetrize(one, two, method) for one, two in directions]  # type: ignore[arg-type]  # one of the names
        assert done.out.splitlines() == [format_pharaoh(links) for links in expected]
    with np.load("soft.npz") as arrays:
        assert len(arrays.files) == 2 * 60
        assert links_from_attention(arrays["3"]) == directions[2][0]
        assert reverse_links(links_from_attention(arrays["3.reverse"])) == directions[2][1]


def test_files_of_different_lengths_leave_no_incomplete_output(
    align: Command, tmp_path: Path
) -> None:
    short = write_lines(tmp_path / "short", ["DI"])
    refused(
        align("--soft", "soft.json", tgt=short), "test.src has 60 lines, but", after_results=True
    )
    assert list(tmp_path.iterdir()) == [short]


def test_python_refuses_lists_of_different_lengths(trained: Path) -> None:
    translator = Translator.load(str(trained), device="cpu")
    with pytest.raises(DataError, match="2 source lines but 1 target word lines"):
        translator.align(["ba", "ce"], ["BA", "CE"], tgt_words=["BA"])


def test_a_shortlist_counts_the_links_that_are_printed(
    trained: Path, align: Command, pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizers = Translator.load(str(trained), device="cpu").tokenizers
    encode = tokenizers.src.encode_many  # one tokenizer has both sides
    sources, targets = (
        [encode(line.split()) for line in lines_in(pairs / f"test.{n}")] for n in ("src", "tgt")
    )
    for best, frequent in ((100, 100), (1, 0)):
        done = succeeded(align("--shortlist", "list"))
        printed = parse_alignments(done.out.splitlines(), "stdout").pairs
        with shortlist_writer(Path("expected"), tokenizers, best, frequent) as counts:
            for links, source, target in zip(printed, sources, targets, strict=True):
                counts.add(links.possible, source, target)
        assert Path("list").read_text() == Path("expected").read_text()
        monkeypatch.setattr(commands, "BEST", 1)
        monkeypatch.setattr(commands, "FREQUENT", 0)


def write_list(
    path: Path, run: Path, listed: dict[str, Iterable[str]], frequent: Iterable[str]
) -> None:
    """The candidates of source tokens, and of all."""
    tokenizers = Translator.load(str(run), device="cpu").tokenizers
    ids = {src: tokenizers.tgt.vocabulary.ids(words) for src, words in listed.items()}
    lines = shortlist_lines(
        tokenizers,
        [ids.get(src, []) for src in tokenizers.src.vocabulary.tokens],
        tokenizers.tgt.vocabulary.ids(frequent),
    )
    path.write_text("".join(lines), encoding="utf-8")


def test_a_shortlist_of_aligned_words_changes_few_translations(
    trained: Path, console: Command, align: Command, pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of a text has all words of its translations: hardly a line differs."""
    monkeypatch.setattr(commands, "FREQUENT", 4)
    succeeded(align("--shortlist", "list"))
    text = (pairs / "test.src").read_text()
    plain = console("translate", "-m", trained, stdin=text).out.splitlines()
    words = ["translate", "-m", trained, "--shortlist", "list"]
    done = succeeded(console(*words, stdin=text))
    assert succeeded(console(*words, "--workers", 2, stdin=text)).out == done.out
    listed = done.out.splitlines()
    assert len(listed) == len(plain)
    assert sum(one != other for one, other in zip(listed, plain, strict=True)) <= 0.2 * len(plain)


TEXT = as_text(src for src, _ in sentence_pairs(20, 3))


def test_words_outside_a_shortlist_are_not_written(
    trained: Path, console: Command, tmp_path: Path
) -> None:
    few = Translator.load(str(trained), device="cpu").tokenizers.tgt.vocabulary.tokens[4:12]
    write_list(tmp_path / "few", trained, {}, few)
    out = console(
        "translate", "-m", trained, "--shortlist", tmp_path / "few", "--json", stdin=TEXT
    ).out
    outputs = [record["best"]["tokens"] for record in json_lines(out)]
    assert set().union(*outputs) <= {*few, "<unk>"}
    assert len(outputs) == 20


@pytest.fixture
def all_words(trained: Path, tmp_path: Path) -> Path:
    """A shortlist of the whole vocabulary."""
    vocabulary = Translator.load(str(trained), device="cpu").tokenizers.tgt.vocabulary.tokens
    write_list(tmp_path / "all", trained, {}, vocabulary)
    return tmp_path / "all"


def test_a_shortlist_of_all_words_changes_nothing(
    trained: Path, console: Command, all_words: Path
) -> None:
    whole = console("translate", "-m", trained, "--shortlist", all_words, "--n-best", 2, stdin=TEXT)
    assert whole.out == console("translate", "-m", trained, "--n-best", 2, stdin=TEXT).out


def test_a_shortlist_of_other_vocabularies_is_refused(
    trained: Path, console: Command, all_words: Path
) -> None:
    others = all_words.with_name("others")
    others.write_text(all_words.read_text().replace("vocabularies ", "vocabularies 0"))
    done = console("translate", "-m", trained, "--shortlist", others, stdin="ba\n")
    refused(done, f"{others}, line 2: the shortlist was made for different vocabularies")


def test_summaries_copy_what_is_not_listed(
    console: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path, "news", SUMMARIZATION)
    write_list(tmp_path / "list", run, {}, ["▁house"])
    done = succeeded(
        console("summarize", "--shortlist", tmp_path / "list", "--json", stdin=as_text(ARTICLES))
    )
    written: set[str] = set()
    for record in json_lines(done.out):
        tokens = set(record["best"]["tokens"])
        assert tokens <= {*record["source_tokens"], "▁house", "<unk>"}
        written |= tokens
    assert written - {"▁house", "<unk>"}  # copied


def test_the_language_to_write_is_for_the_first_direction(console: Command, tmp_path: Path) -> None:
    several = make_run(
        tmp_path, "several", TRANSLATION.replace("kind: word", "kind: word, specials: [<2de>]")
    )
    back = make_run(tmp_path, "back", TRANSLATION)
    (tmp_path / "lines").write_text(as_text(LINES))
    words = ["align", "--source", tmp_path / "lines", "--target", tmp_path / "lines", "-m"]
    done = succeeded(console(*words, several, "--to", "de", "--reverse-model", back))
    assert len(done.out.splitlines()) == len(LINES)
    refused(
        console(*words, several, "--to", "fr"), "has not learned the tag <2fr>; its tags are: <2de>"
    )
