"""Translating and scoring a test set in one go."""

import json
import tarfile
from pathlib import Path

import pytest
from sacrebleu.dataset import DATASETS

from tests.cli.untrained_runs import TRANSLATION, make_run
from tests.support.commands import Command, refused, sentence_pairs, succeeded, write_pairs

PAIRS = sentence_pairs(12, 21)


@pytest.fixture
def source_and_ref(tmp_path: Path) -> list[object]:
    """The options of a test set of `PAIRS`."""
    write_pairs(tmp_path, "t", PAIRS)
    return ["--source", tmp_path / "t.src", "--ref", tmp_path / "t.tgt"]


def test_the_setting_that_limits_the_length_is_named(
    console: Command, source_and_ref: list[object]
) -> None:
    make_run(Path(), "mine", TRANSLATION)
    limit = (
        "--search",
        "max_length_ratio=0.1",
        "--search",
        "max_length_offset=1",
        "--beam-size",
        "1",
    )
    done = succeeded(console("evaluate", "-m", "mine", *source_and_ref, *limit))
    assert (
        "if they look cut off, raise the limit with --max-length or --search max_length_ratio=R"
        in done.err
    )


def test_evaluate_gives_the_scores_of_translate_and_score(
    trained: Path, console: Command, source_and_ref: list[object], tmp_path: Path
) -> None:
    metrics = ["--metrics", "bleu,chrf,ter"]
    done = succeeded(console("evaluate", trained, *source_and_ref, *metrics, "--json", "-o", "out"))
    evaluated = json.loads(done.out)
    assert (evaluated["lines"], evaluated["sources_cut"]) == (len(PAIRS), 0)
    translated = console("translate", "-m", trained, "t.src").out
    assert (tmp_path / "out").read_text() == translated
    scored = console("score", "-", "--ref", "t.tgt", *metrics, "--json", stdin=translated)
    assert evaluated["scores"] == json.loads(scored.out)["systems"][0]["scores"]
    assert len(evaluated["scores"]) == 3


def test_options_and_references_reach_search_and_metrics(
    trained: Path, console: Command, source_and_ref: list[object], tmp_path: Path
) -> None:
    (tmp_path / "other.tgt").write_text("BA\n" * len(PAIRS))
    options = ["--ref", "other.tgt", "--lowercase", "--tokenize", "char", "--metrics", "bleu"]
    done = succeeded(
        console("evaluate", "-m", trained, *source_and_ref, *options, "--beam-size", 1, "--json")
    )
    greedy = console("translate", "-m", trained, "t.src", "--beam-size", 1).out
    scored = console("score", "-", "--ref", "t.tgt", *options, "--json", stdin=greedy)
    assert json.loads(done.out)["scores"] == json.loads(scored.out)["systems"][0]["scores"]


def test_quiet_prints_one_line_of_scores(
    trained: Path, console: Command, source_and_ref: list[object]
) -> None:
    done = console("evaluate", trained, *source_and_ref, "-q", "--metrics", "bleu ter")
    assert (done.code, done.err) == (0, "")
    run, source, bleu, value, ter, other = done.out.split()
    assert (run, source, bleu, ter) == (str(trained), str(source_and_ref[1]), "BLEU", "TER")
    assert done.out.count("\n") == 1
    assert 0 <= float(value) <= 100
    assert float(other) >= 0
    assert "nrefs:1" in console("evaluate", trained, *source_and_ref).err


def test_a_published_test_set_is_downloaded_by_sacrebleu(
    trained: Path,
    console: Command,
    source_and_ref: list[object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From an archive of our own: sacrebleu opens the address, checks the sum, unpacks and reads, as with its own."""
    wmt = DATASETS["wmt14"]
    for name, folder in (("_outdir", tmp_path / "kept"), ("_rawdir", tmp_path / "kept" / "raw")):
        monkeypatch.setattr(wmt, name, str(folder))
    with tarfile.open(tmp_path / "test.tgz", "w:gz") as archive:
        for name, texts in zip(wmt.langpairs["en-de"], zip(*PAIRS, strict=True), strict=True):
            lines = (
                f'<seg id="{number}">{text}</seg>\n' for number, text in enumerate(texts, start=1)
            )
            (tmp_path / "sgml").write_text("<doc docid='a'>\n" + "".join(lines) + "</doc>\n")
            archive.add(tmp_path / "sgml", name)

    monkeypatch.setattr(wmt, "data", [(tmp_path / "none.tgz").as_uri()])
    published = ["evaluate", trained, "-q", "--test-set", "wmt14/en-de"]
    failed = "wmt14/en-de: cannot be downloaded"
    done = refused(console(*published), failed, "sacrebleu -t wmt14 -l en-de --echo src")
    assert len(done.err.splitlines()) == 1
    monkeypatch.setattr(wmt, "data", [(tmp_path / "test.tgz").as_uri()])
    refused(console(*published), failed)  # its sum is not that of WMT's archive

    (tmp_path / "kept" / "raw" / "wmt14.test.tgz").unlink()
    monkeypatch.setattr(wmt, "md5", None)
    plain = console("evaluate", trained, "-q", *source_and_ref).out
    assert succeeded(console(*published)).out == plain.replace(
        str(source_and_ref[1]), "wmt14/en-de"
    )
