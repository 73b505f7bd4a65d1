"""`nmtkit score` as a user meets it: output, messages and exit codes."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Command

from nmtkit import metrics

REF = ["a b c d", "the quick brown fox jumps", "Hello, World!"]
HYP = ["a b c e", "the quick brown dog jumps", "hello, world!"]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(console: Command) -> Run:
    """Runs the command in a folder with a reference and an output; returns exit code, stdout and stderr."""
    _write(Path("ref.txt"), REF)
    _write(Path("hyp.txt"), HYP)

    def call(*args: str, stdin: bytes = b"") -> tuple[int, str, str]:
        done = console("score", *args, stdin=stdin)
        return done.code, done.out, done.err

    return call


def _write(path: Path, lines: list[str]) -> None:
    path.write_bytes("".join(line + "\n" for line in lines).encode())


def _table_row(output: str, start: str) -> str:
    return next(line for line in output.splitlines() if line.split()[:1] == [start])


def test_prints_every_metric_with_its_signature(run: Run) -> None:
    code, out, err = run("hyp.txt", "--ref", "ref.txt")
    assert (code, err) == (0, "")
    scores = metrics.score_all(HYP, [REF], ["bleu", "chrf", "ter", "rouge"])
    assert len(scores) == 7
    for score in scores:
        assert f"{score.value:.2f}" in _table_row(out, score.name)
        assert score.signature in out


def test_json_holds_all_digits_and_nothing_else(run: Run) -> None:
    code, out, _ = run("hyp.txt", "--ref", "ref.txt", "--metrics", "ter,bleu", "--json")
    assert code == 0
    scores = [metrics.ter(HYP, [REF]), metrics.bleu(HYP, [REF])]
    expected = [{"name": s.name, "value": s.value, "signature": s.signature} for s in scores]
    assert json.loads(out) == {"references": ["ref.txt"], "systems": [{"system": "hyp.txt", "scores": expected}]}


def test_options_reach_the_metrics(run: Run) -> None:
    args = ["--tokenize", "none", "--lowercase", "--no-stem", "--sentences", "newline"]
    code, out, _ = run("hyp.txt", "--ref", "ref.txt", *args, "--json")
    assert code == 0
    options = metrics.Options(tokenize="none", lowercase=True, stem=False, sentences="newline")
    expected = metrics.score_all(HYP, [REF], ["bleu", "chrf", "ter", "rouge"], options)
    assert [entry["value"] for entry in json.loads(out)["systems"][0]["scores"]] == [score.value for score in expected]


def test_standard_input_gzip_and_several_references(run: Run, tmp_path: Path) -> None:
    (tmp_path / "ref2.txt.gz").write_bytes(gzip.compress("\n".join(HYP).encode()))
    stdin = "".join(line + "\n" for line in HYP).encode()
    code, out, _ = run("-", "--ref", "ref.txt", "--ref", "ref2.txt.gz", "--metrics", "bleu", "--json", stdin=stdin)
    assert code == 0
    (score,) = json.loads(out)["systems"][0]["scores"]
    assert score["value"] == pytest.approx(100)
    assert score["signature"].startswith("nrefs:2|")


def test_an_empty_line_is_an_example_like_any_other(run: Run, tmp_path: Path) -> None:
    _write(tmp_path / "gap.txt", [HYP[0], "", HYP[2]])
    code, out, _ = run("gap.txt", "--ref", "ref.txt", "--metrics", "bleu", "--json")
    assert code == 0
    assert json.loads(out)["systems"][0]["scores"][0]["value"] == metrics.bleu([HYP[0], "", HYP[2]], [REF]).value


def test_several_systems_are_compared_with_the_first(run: Run, tmp_path: Path) -> None:
    refs = REF * 10
    _write(tmp_path / "refs.txt", refs)
    _write(tmp_path / "good.txt", refs)
    _write(tmp_path / "bad.txt", ["a z y d", "a quick red fox sits", "Hi, you!"] * 10)
    args = ["good.txt", "bad.txt", "good.txt", "--ref", "refs.txt", "--metrics", "bleu,rouge1", "--n-samples", "100"]
    code, out, err = run(*args)
    assert (code, err) == (0, "")
    row = _table_row(out, "BLEU")
    assert row.count("100.00 ± 0.00") == 2
    assert "(p 0.010*)" in row
    assert row.rstrip().endswith("(p 1.000)")
    assert "* p < 0.05 against good.txt" in out

    code, out, _ = run(*args, "--json")
    systems = json.loads(out)["systems"]
    assert [system["scores"][0]["p_value"] for system in systems] == [None, pytest.approx(1 / 101), 1.0]
    assert systems[1]["scores"][1]["interval"] > 0
    assert "bs:100|seed:12345" in systems[1]["scores"][1]["signature"]

    code, out, _ = run(*args, "--no-significance", "--json")
    assert code == 0
    assert set(json.loads(out)["systems"][1]["scores"][0]) == {"name", "value", "signature"}


def test_titles_are_file_names_where_they_differ(run: Run, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        _write(tmp_path / folder / "out.txt", HYP)
    args = ["--ref", "ref.txt", "--metrics", "bleu", "--n-samples", "5"]
    assert _table_row(run("hyp.txt", "one/out.txt", *args)[1], "metric").split() == ["metric", "hyp.txt", "out.txt"]
    header = _table_row(run("one/out.txt", "two/out.txt", *args)[1], "metric")
    assert header.split() == ["metric", "one/out.txt", "two/out.txt"]


def test_significance_of_one_system_is_its_interval(run: Run) -> None:
    code, out, _ = run("hyp.txt", "--ref", "ref.txt", "--metrics", "bleu", "--significance", "--n-samples", "20")
    assert code == 0
    assert "±" in _table_row(out, "BLEU")
    assert "(p " not in out


def test_by_length_sorts_by_source_or_reference(run: Run, tmp_path: Path) -> None:
    _write(tmp_path / "src.txt", ["1 2 3 4 5 6", "1", "1"])
    code, out, _ = run(
        "hyp.txt", "--ref", "ref.txt", "--metrics", "bleu", "--by-length", "--source", "src.txt", "--edges", "1,5"
    )
    assert code == 0
    table = out[out.index("BLEU by length") :].splitlines()
    rows = [line.split() for line in table if line.strip()[:1].isdigit()]
    expected = metrics.bleu(HYP[1:], [REF[1:]]).value, metrics.bleu(HYP[:1], [REF[:1]]).value
    assert rows == [
        ["0-1", "2", f"{expected[0]:.2f}"],
        ["2-5", "0", "-"],
        ["6", "and", "more", "1", f"{expected[1]:.2f}"],
    ]

    code, out, _ = run("hyp.txt", "--ref", "ref.txt", "--metrics", "bleu", "--by-length", "--edges", "4", "--json")
    assert code == 0
    buckets = json.loads(out)["systems"][0]["by_length"]
    assert [(bucket["low"], bucket["high"], bucket["count"]) for bucket in buckets] == [(0, 4, 2), (5, None, 1)]


def test_letters_that_rouge_drops_are_reported(run: Run, tmp_path: Path) -> None:
    _write(tmp_path / "german.txt", ["schön", "gut", "besser"])
    code, out, err = run("hyp.txt", "--ref", "german.txt", "--json")
    assert code == 0
    assert "1 of 3 reference lines hold letters or digits other than a-z and 0-9" in err
    assert json.loads(out)["references"] == ["german.txt"]
    assert run("hyp.txt", "--ref", "german.txt", "--metrics", "bleu")[2] == ""


def _damaged_gzip() -> bytes:
    return gzip.compress(b"a b c\n" * 1000)[:-12]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a b c d\n", "different line counts: hyp.txt has 3 lines, bad.txt has 1"),
        (b"", "bad.txt: no lines; there is nothing to score"),
        (b"a\nb\xff\nc\n", "bad.txt, line 2: not UTF-8"),
        (_damaged_gzip(), "bad.txt: broken gzip file"),
        (None, "bad.txt: cannot read it: No such file or directory"),
    ],
    # Named: the bytes of a gzip file hold the time, and every worker must give a test the same name.
    ids=["short", "empty", "not-utf-8", "broken-gzip", "missing"],
)
@pytest.mark.parametrize("as_source", [False, True])
def test_bad_files_end_in_one_message(
    run: Run, tmp_path: Path, content: bytes | None, message: str, as_source: bool
) -> None:
    if content is not None:
        (tmp_path / "bad.txt").write_bytes(content)
    args = ["--ref", "ref.txt", "--by-length", "--source", "bad.txt"] if as_source else ["--ref", "bad.txt"]
    code, out, err = run("hyp.txt", *args)
    assert (code, out) == (2, "")
    assert err.startswith("nmtkit: error: ")
    assert message in err
    assert err.count("\n") == 1


def test_bad_standard_input_ends_in_one_message(run: Run) -> None:
    code, _, err = run("-", "--ref", "ref.txt", stdin=b"a\n\xff\nc\n")
    assert (code, "standard input, line 2: not UTF-8" in err) == (2, True)
    code, _, err = run("-", "--ref", "ref.txt", stdin=b"")
    assert (code, "standard input: no lines" in err) == (2, True)
    code, _, err = run("hyp.txt", "-", "--ref", "ref.txt", stdin=b"a\n")
    assert (code, "hyp.txt has 3 lines, standard input has 1" in err) == (2, True)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["hyp.txt"], "Missing option '--ref'"),
        (["--ref", "ref.txt"], "Missing argument 'HYP...'"),
        (["hyp.txt", "--ref", "ref.txt", "--metrics", "blue"], "unknown metric 'blue': did you mean 'bleu'"),
        (["hyp.txt", "--ref", "ref.txt", "--tokenize", "14a"], "'14a' is not one of"),
        (["hyp.txt", "--ref", "ref.txt", "--source", "ref.txt"], "only read for --by-length"),
        (["-", "-", "--ref", "ref.txt"], "only one"),
        (["hyp.txt", "--ref", "ref.txt", "--by-length", "--edges", "10,x"], "'10,x' is not a list of whole numbers"),
        (["hyp.txt", "--ref", "ref.txt", "--by-length", "--edges", "20,10"], "must rise"),
        *(
            (["hyp.txt", "--ref", "ref.txt", *option], f"{option[0]} only goes with `nmtkit {command}`")
            for command, options in {
                "score-summaries": (["--wanted", "x"], ["--summary-field", "text"], ["--article-field", "text"]),
                "score-alignments": (["--ref-base", "1"], ["--hyp-base", "0"], ["--reverse-hyp"]),
            }.items()
            for option in options
        ),
    ],
)
def test_wrong_options_end_in_exit_code_2(run: Run, args: list[str], message: str) -> None:
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert message in err


def test_help_shows_examples(run: Run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    assert "  nmtkit score output.de --ref test.de\n" in out
    assert "--n-samples" in out
    assert not any(option in out for option in ("--summary ", "--alignment ", "--wanted", "--hyp-base"))


def test_bleu_by_length_as_a_picture(nmtkit: Command, tmp_path: Path) -> None:
    (tmp_path / "ref").write_text("a b c d e\n" * 3 + "a b c d e f g h i j k l\n")
    (tmp_path / "good").write_text((tmp_path / "ref").read_text())
    (tmp_path / "bad").write_text("a b c d e\n" * 4)
    call = ["score", tmp_path / "good", tmp_path / "bad", "--ref", tmp_path / "ref", "--no-significance"]
    done = nmtkit(*call, "--by-length", "--plot", tmp_path / "length.svg")
    assert done.code == 0, done
    text = (tmp_path / "length.svg").read_text()
    assert all(word in text for word in (">good<", ">bad<", ">11-20<", "n = 3"))
    assert "--by-length" in nmtkit(*call, "--plot", tmp_path / "length.svg").err
    refused = nmtkit(*call, "--by-length", "--plot", tmp_path / "length.gif")
    assert refused.code == 2
    assert "not a picture format" in refused.err
