"""`nmtkit translate` and `nmtkit summarize` with the shortlist that `nmtkit align` writes."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from commands import Command, as_text, json_lines, refused, sentence_pairs, succeeded, write_pairs
from test_summarize import ARTICLES
from untrained_runs import SUMMARIZATION, make_run

from nmtkit import Translator
from nmtkit.data.shortlist import shortlist_lines


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("listed")
    write_pairs(folder, "test", sentence_pairs(200, 11))
    return folder


def write_list(path: Path, run: Path, listed: dict[str, Iterable[str]], frequent: Iterable[str]) -> None:
    """The candidates of source tokens, and of all."""
    tokenizers = Translator.load(str(run), device="cpu").tokenizers
    ids = {src: tokenizers.tgt.vocabulary.ids(words) for src, words in listed.items()}
    lines = shortlist_lines(
        tokenizers,
        [ids.get(src, []) for src in tokenizers.src.vocabulary.tokens],
        tokenizers.tgt.vocabulary.ids(frequent),
    )
    path.write_text("".join(lines), encoding="utf-8")


def test_translations_by_aligned_words(trained: Path, console: Command, pairs: Path, tmp_path: Path) -> None:
    """The list of a text has all words of its translations: hardly a line differs."""
    files = ["--source", pairs / "test.src", "--target", pairs / "test.tgt"]
    succeeded(console("align", "-m", trained, *files, "--shortlist", tmp_path / "list", "--shortlist-frequent", 4))
    text = (pairs / "test.src").read_text()
    plain = console("translate", "-m", trained, stdin=text).out.splitlines()
    done = succeeded(console("translate", "-m", trained, "--shortlist", tmp_path / "list", stdin=text))
    workers = console("translate", "-m", trained, "--shortlist", tmp_path / "list", "--workers", 2, stdin=text)
    assert (workers.code, workers.out) == (0, done.out)
    listed = done.out.splitlines()
    assert len(listed) == len(plain)
    assert sum(one != other for one, other in zip(listed, plain, strict=True)) <= 0.2 * len(plain)


def test_words_that_are_not_listed_are_not_written(trained: Path, console: Command, tmp_path: Path) -> None:
    vocabulary = Translator.load(str(trained), device="cpu").tokenizers.tgt.vocabulary.tokens
    few = vocabulary[4:12]
    write_list(tmp_path / "few", trained, {}, few)
    text = as_text(src for src, _ in sentence_pairs(20, 3))
    out = console("translate", "-m", trained, "--shortlist", tmp_path / "few", "--json", stdin=text).out
    found = [record["best"]["tokens"] for record in json_lines(out)]
    assert set().union(*found) <= {*few, "<unk>"}
    assert len(found) == 20

    write_list(tmp_path / "all", trained, {}, vocabulary)
    whole = console("translate", "-m", trained, "--shortlist", tmp_path / "all", "--n-best", 2, stdin=text)
    assert whole.out == console("translate", "-m", trained, "--n-best", 2, stdin=text).out


def test_lists_that_do_not_fit(trained: Path, console: Command, tmp_path: Path) -> None:
    path = tmp_path / "list"
    write_list(path, trained, {}, [])
    sound = path.read_text()
    for text, says in [
        (sound.replace("vocabularies ", "vocabularies 0"), "line 2: it belongs to other vocabularies than"),
        ("ba ce\n", "line 1: not 'nmtkit shortlist 1', so it is not a shortlist"),
        (sound[:-4], "truncated"),
    ]:
        path.write_text(text)
        refused(console("translate", "-m", trained, "--shortlist", path, stdin="ba\n"), f"{path}", says)
    refused(console("translate", "-m", trained, "--shortlist", tmp_path / "none", stdin="ba\n"), "cannot read it")


def test_summaries_copy_what_is_not_listed(console: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path, "news", SUMMARIZATION)
    write_list(tmp_path / "list", run, {}, ["▁house"])
    done = succeeded(console("summarize", "--shortlist", tmp_path / "list", "--json", stdin=as_text(ARTICLES)))
    written: set[str] = set()
    for record in json_lines(done.out):
        tokens = set(record["best"]["tokens"])
        assert tokens <= {*record["source_tokens"], "▁house", "<unk>"}
        written |= tokens
    assert written - {"▁house", "<unk>"}  # copied
    refused(
        console("summarize", "--lead", 1, "--shortlist", tmp_path / "list", stdin=as_text(ARTICLES)),
        "leave the options of a model out",
    )
