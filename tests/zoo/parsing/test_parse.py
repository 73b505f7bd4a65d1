"""Parsing by command: training on trees, trees out for sentences in, their drawings, and trees from a treebank."""

import gzip
import json
from pathlib import Path

import pytest
import torch

from nmtkit import config
from nmtkit.experiment.stages import train_stages
from nmtkit.zoo.parsing.trees import read_penn, read_tree
from tests.support.begun_runs import begin_run
from tests.support.commands import Command, lines_in, refused, succeeded, write_lines

DATA = Path(__file__).resolve().parents[3] / "data" / "demo-trees"
SENTENCES = ["The old woman sees (the) car .", "", "Nobody knows him .", "xyz"]


def lines_of(name: str) -> list[str]:
    with gzip.open(DATA / f"{name}.gz", "rt", encoding="utf-8") as file:
        return file.read().splitlines()


TINY = [
    "model.embedding_size=8",
    "model.hidden_size=8",
    "model.attention_size=8",
    "model.maxout_size=8",
    "training.max_updates=2",
    "training.max_minutes=null",
    "evaluation.max_sentences=3",
    "tokenizer.normalization=nfkc",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A parser that has seen two updates, in `runs/parser`."""
    folder = tmp_path_factory.mktemp("parser")
    for part, count in (("train", 80), ("valid", 4), ("test", 4)):
        for kind in ("words", "trees"):
            write_lines(folder / f"{part}.{kind}", lines_of(f"{part}.{kind}")[:count])
    own = [
        f"data.{part}={{src: {part}.words, tgt: {part}.trees}}"
        for part in ("train", "valid", "test")
    ]
    run = begin_run(
        config.load("demo-parsing", [f"data.folder={folder}", *own, *TINY]),
        str(folder / "runs" / "parser"),
    )
    assert [*train_stages(run, torch.device("cpu"))]
    run.close()
    return folder


@pytest.fixture(autouse=True)
def in_folder(folder: Path, console: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def parsed(console: Command, *options: str, lines: list[str] = SENTENCES) -> list[str]:
    return succeeded(
        console(
            "parse", "-m", "runs/parser", *options, stdin="".join(f"{line}\n" for line in lines)
        )
    ).out.splitlines()


def test_each_sentence_becomes_a_tree_over_its_words(console: Command) -> None:
    for options in (
        (),
        ("--beam-size", "1"),
        ("--max-length", "1"),
        ("--samples", "1", "--temperature", "9"),
    ):
        trees = parsed(console, *options)
        assert trees[1] == ""
        for sentence, line in zip(SENTENCES, trees, strict=True):
            words = read_tree(line, "output").words() if line else []
            assert words == sentence.replace("(", "-LRB-").replace(")", "-RRB-").split()


def test_words_are_those_that_normalization_leaves(console: Command) -> None:
    trees = parsed(console, "--beam-size", "1", lines=["I don´t .", "I do ."])
    assert [len(read_tree(tree, "output").words()) for tree in trees] == [4, 3]


def test_several_trees_and_objects(console: Command) -> None:
    several = [line.split("\t") for line in parsed(console, "--n-best", "3", lines=SENTENCES[:1])]
    assert [number for number, *_ in several] == ["1", "1", "1"]
    assert len({tree for *_, tree in several}) == 3
    assert all(len(read_tree(tree, "output").words()) == 7 for *_, tree in several)
    record = json.loads(parsed(console, "--json", lines=SENTENCES[:1])[0])
    assert record["best"]["text"] == several[0][-1]
    short = succeeded(
        console("parse", "-m", "runs/parser", "--n-best", "99", "--max-length", "4", stdin="xyz\n")
    )
    assert 0 < len(short.out.splitlines()) < 99
    assert "1 of 1 lines have fewer than 99 trees" in short.err


def test_trees_are_drawn(console: Command, tmp_path: Path) -> None:
    for name in ("trees.svg", "trees.png", "trees.html"):
        shown = parsed(console, "--draw", "--plot", str(tmp_path / name))
        text = "\n".join(shown)
        assert all(word in text for word in SENTENCES[0].split())
        # a line for each word, and an empty one
        assert len(shown) == sum(len(line.split()) + 1 for line in SENTENCES)
        assert (tmp_path / name).stat().st_size > 1000
    assert all(
        f">{word}<" in (tmp_path / "trees.svg").read_text() for word in ("woman", "(the)", "Nobody")
    )
    assert (
        "--draw shows only the best tree"
        in refused(console("parse", "-m", "runs/parser", "--draw", "--json", stdin="a\n")).err
    )


def test_trees_are_kept_where_no_picture_of_them_can_be_drawn(
    console: Command, tmp_path: Path
) -> None:
    parse, lines = ["parse", "-m", "runs/parser", "-o", tmp_path / "kept"], f"{SENTENCES[0]}\n" * 9
    early = refused(
        console(*parse, "--plot", tmp_path / "tree.jpg", stdin=lines),
        "the suffix '.jpg' does not select a supported image format",
    )
    assert "model runs/parser" not in early.err  # before anything is parsed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nmtkit.plots.drawing.MAX_PIXELS", 10)
        refused(
            console(*parse, "--plot", tmp_path / "tree.png", stdin=lines),
            "would be unreadable as PNG",
        )
    assert len(lines_in(tmp_path / "kept")) == 9


def test_a_test_set_is_scored_by_brackets(console: Command) -> None:
    done = succeeded(
        console("evaluate", "runs/parser", "--source", "test.words", "--ref", "test.trees")
    )
    assert "Bracket F1" in done.out + done.err
    assert "bracket-f1" in (Path("runs/parser") / "metrics.jsonl").read_text(encoding="utf-8")


def test_the_search_of_a_tree_is_explained(console: Command) -> None:
    done = succeeded(console("explain", "-m", "runs/parser", "Nobody knows him ."))
    assert "brackets" in done.out


def test_what_no_tree_can_have_is_refused(console: Command) -> None:
    assert (
        "determine a tree's length"
        in refused(console("parse", "-m", "runs/parser", "--min-length", "3", stdin="a\n")).err
    )


def test_a_treebank_becomes_the_two_files_of_a_parser(console: Command, tmp_path: Path) -> None:
    bank = write_lines(
        tmp_path / "bank.mrg",
        [
            "( (S (NP-SBJ (DT the) (NN cat))",
            "  (VP (VBZ sleeps)) (. .)) )",
            "(S (NP (-NONE- *)))",
            "(FRAG (UH oh))",
        ],
    )
    words, trees = tmp_path / "bank.words", tmp_path / "bank.trees"
    common = ("linearize", str(bank), "--source", str(words), "--target", str(trees))
    assert "2 trees" in succeeded(console(*common)).err
    assert lines_in(words) == ["the cat sleeps .", "oh"]
    assert lines_in(trees) == ["(S (NP XX XX )NP (VP XX )VP . )S", "(FRAG XX )FRAG"]
    succeeded(console(*common, "--tags"))
    assert lines_in(trees) == ["(S (NP DT NN )NP (VP VBZ )VP . )S", "(FRAG UH )FRAG"]
    refused(
        console(*common[:4], "--target", str(tmp_path / "." / "bank.words")),
        "bank.words; use two different files",
    )
    write_lines(bank, ["(S (NP"])
    assert "bank.mrg: some brackets are not closed" in refused(console(*common)).err
    assert lines_in(words) == ["the cat sleeps .", "oh"]  # as it was


@pytest.mark.slow
def test_the_trees_of_the_demo_are_over_its_words() -> None:
    for part, size in {"train": 7000, "valid": 300, "test": 300}.items():
        words, trees = lines_of(f"{part}.words"), lines_of(f"{part}.trees")
        assert len(words) == len(trees) == size
        for sentence, line in zip(words, trees, strict=True):
            tree = read_tree(line, part).with_words(sentence.split())
            assert next(read_penn(tree.penn(), part)).words() == sentence.split()
    assert sum(path.stat().st_size for path in DATA.iterdir()) < 200_000
