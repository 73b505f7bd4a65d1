"""Translating and scoring a test set in one go."""

import json
import tarfile
from pathlib import Path

import pytest
from commands import Command, refused, sentence_pairs, succeeded, write_pairs
from sacrebleu.dataset import DATASETS
from untrained_runs import TRANSLATION, make_run

PAIRS = sentence_pairs(12, 21)


@pytest.fixture
def test_set(tmp_path: Path) -> list[object]:
    """The options of a test set of `PAIRS`."""
    write_pairs(tmp_path, "t", PAIRS)
    return ["--source", tmp_path / "t.src", "--ref", tmp_path / "t.tgt"]


def test_the_limit_that_the_length_of_the_source_sets_is_named(console: Command, test_set: list[object]) -> None:
    make_run(Path(), "mine", TRANSLATION)
    limit = ("--search", "max_length_ratio=0.1", "--search", "max_length_offset=1", "--beam-size", "1")
    done = succeeded(console("evaluate", "-m", "mine", *test_set, *limit))
    assert "outputs reached the length limit; --max-length or --search max_length_ratio=R raises it" in done.err


def test_the_figures_are_those_of_translate_and_score(
    trained: Path, console: Command, test_set: list[object], tmp_path: Path
) -> None:
    metrics = ["--metrics", "bleu,chrf,ter"]
    done = succeeded(console("evaluate", trained, *test_set, *metrics, "--json", "-o", "out"))
    evaluated = json.loads(done.out)
    assert (evaluated["lines"], evaluated["sources_cut"]) == (len(PAIRS), 0)
    translated = console("translate", "-m", trained, "t.src").out
    assert (tmp_path / "out").read_text() == translated
    scored = console("score", "-", "--ref", "t.tgt", *metrics, "--json", stdin=translated)
    assert evaluated["scores"] == json.loads(scored.out)["systems"][0]["scores"]
    assert len(evaluated["scores"]) == 3

    (tmp_path / "other.tgt").write_text("BA\n" * len(PAIRS))
    options = ["--ref", "other.tgt", "--lowercase", "--tokenize", "char", "--beam-size", 1]
    done = succeeded(console("evaluate", "-m", trained, *test_set, *options, *metrics[:1], "bleu", "--json"))
    greedy = console("translate", "-m", trained, "t.src", "--beam-size", 1).out
    refs = ["--ref", "t.tgt", "--ref", "other.tgt", "--lowercase", "--tokenize", "char", "--metrics", "bleu"]
    scored = console("score", "-", *refs, "--json", stdin=greedy)
    assert json.loads(done.out)["scores"] == json.loads(scored.out)["systems"][0]["scores"]


def test_one_line_and_nothing_else(trained: Path, console: Command, test_set: list[object]) -> None:
    done = console("evaluate", trained, *test_set, "-q", "--metrics", "bleu ter")
    assert (done.code, done.err) == (0, "")
    run, source, bleu, value, ter, other = done.out.split()
    assert (run, source, bleu, ter) == (str(trained), str(test_set[1]), "BLEU", "TER")
    assert done.out.count("\n") == 1
    assert 0 <= float(value) <= 100
    assert float(other) >= 0
    assert "nrefs:1" in console("evaluate", trained, *test_set).err


def test_a_published_test_set_is_downloaded_by_sacrebleu(
    trained: Path, console: Command, test_set: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From an archive of our own: sacrebleu opens the address, checks the sum, unpacks and reads, as with its own."""
    wmt = DATASETS["wmt14"]
    for name, folder in (("_outdir", tmp_path / "kept"), ("_rawdir", tmp_path / "kept" / "raw")):
        monkeypatch.setattr(wmt, name, str(folder))
    with tarfile.open(tmp_path / "test.tgz", "w:gz") as archive:
        for name, texts in zip(wmt.langpairs["en-de"], zip(*PAIRS, strict=True), strict=True):
            lines = (f'<seg id="{number}">{text}</seg>\n' for number, text in enumerate(texts, start=1))
            (tmp_path / "sgml").write_text("<doc docid='a'>\n" + "".join(lines) + "</doc>\n")
            archive.add(tmp_path / "sgml", name)

    monkeypatch.setattr(wmt, "data", [(tmp_path / "none.tgz").as_uri()])
    published = ["evaluate", trained, "-q", "--test-set", "wmt14/en-de"]
    failed = "wmt14/en-de: cannot download it"
    done = refused(console(*published), failed, "sacrebleu -t wmt14 -l en-de --echo src")
    assert len(done.err.splitlines()) == 1
    monkeypatch.setattr(wmt, "data", [(tmp_path / "test.tgz").as_uri()])
    refused(console(*published), failed)  # its sum is not that of WMT's archive

    (tmp_path / "kept" / "raw" / "wmt14.test.tgz").unlink()
    monkeypatch.setattr(wmt, "md5", None)
    plain = console("evaluate", trained, "-q", *test_set).out
    assert succeeded(console(*published)).out == plain.replace(str(test_set[1]), "wmt14/en-de")
