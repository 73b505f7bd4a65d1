"""`nmtkit score` as a user meets it: output, messages and exit codes."""

import gzip
import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from commands import Command, succeeded, write_lines

from nmtkit import metrics

REF = ["a b c d", "the quick brown fox jumps", "Hello, World!"]
HYP = ["a b c e", "the quick brown dog jumps", "hello, world!"]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(console: Command) -> Run:
    """Runs the command in a folder with a reference and an output; returns exit code, stdout and stderr."""
    write_lines(Path("ref.txt"), REF)
    write_lines(Path("hyp.txt"), HYP)

    def call(*args: str, stdin: bytes = b"") -> tuple[int, str, str]:
        done = console("score", *args, stdin=stdin)
        return done.code, done.out, done.err

    return call


def _table_row(output: str, start: str) -> str:
    return next(line for line in output.splitlines() if line.split()[:1] == [start])


def test_prints_every_metric_with_its_signature(run: Run) -> None:
    code, out, err = run("hyp.txt", "--ref", "ref.txt")
    assert (code, err) == (0, "")
    assert "ROUGE" not in out
    code, with_rouge, _ = run("hyp.txt", "--ref", "ref.txt", "--metrics", "bleu,chrf,ter,rouge")
    scores = metrics.score_all(HYP, [REF], ["bleu", "chrf", "ter", "rouge"])
    assert len(scores) == 7
    for score, shown in zip(scores, [out] * 3 + [with_rouge] * 4, strict=True):
        assert f"{score.value:.2f}" in _table_row(shown, score.name)
        assert f"{score.name}|{score.signature} = {score.value:.2f}" in shown


def test_bleu_tells_what_it_is_made_of(run: Run, tmp_path: Path) -> None:
    # By hand: 4 words against 6, and 4, 3, 2 and 1 n-grams, all but the last word's of them found.
    write_lines(tmp_path / "ref1", ["the cat sat on the mat"])
    write_lines(tmp_path / "hyp1", ["the cat sat in"])
    code, out, _ = run("hyp1", "--ref", "ref1", "-m", "bleu", "-w", "1")
    assert code == 0
    assert _table_row(out, "hyp1").split() == [
        *("hyp1", "75.0", "66.7", "50.0", "50.0"),  # no match of 4-grams is smoothed to 1/2
        *("0.607", "0.667", "4", "6"),
    ]
    assert out.splitlines()[-1].endswith(" 75.0/66.7/50.0/50.0 (BP = 0.607 ratio = 0.667 hyp_len = 4 ref_len = 6)")
    (score,) = json.loads(run("hyp1", "--ref", "ref1", "-m", "bleu", "--json")[1])["systems"][0]["scores"]
    assert score["precisions"] == pytest.approx([75, 200 / 3, 50, 50])
    assert score["brevity_penalty"] == pytest.approx(math.exp(1 - 6 / 4))
    assert (score["ratio"], score["hyp_length"], score["ref_length"]) == (pytest.approx(2 / 3), 4, 6)


def test_options_are_spelled_as_sacrebleu_spells_them(run: Run) -> None:
    args = ["hyp.txt", "--ref", "ref.txt"]
    wanted = run(*args, "--metrics", "bleu,chrf", "--lowercase", "--tokenize", "char", "--width", "3")
    assert wanted[0] == 0
    assert wanted[1].count("case:lc") == 2
    assert "tok:char" in wanted[1]
    for words in (["-m", "bleu", "chrf"], ["-mbleu,chrf"], ["-m", "bleu", "-m", "chrf"], ["--metrics=bleu,chrf"]):
        assert run(*args, *words, "-lc", "-w", "3", "-tok", "char") == wanted
    # What follows is a HYP again as soon as it names no metric.
    assert run("-lc", "-m", "bleu", "chrf", "hyp.txt", "-tok", "char", "-w3", "--ref", "ref.txt") == wanted


def test_a_line_to_paste_is_never_wrapped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    lines = run("hyp.txt", "hyp.txt", "--ref", "ref.txt", "--n-samples", "5")[1].splitlines()
    pasted = [line for line in lines if line.startswith(("BLEU|", "chrF2|", "TER|"))]
    assert len(pasted) == 6
    assert all("|version:" in line and " = " in line and " ± " in line for line in pasted)


def test_approximate_randomization(run: Run, tmp_path: Path) -> None:
    refs = REF * 10
    write_lines(tmp_path / "refs.txt", refs)
    write_lines(tmp_path / "good.txt", refs)
    write_lines(tmp_path / "bad.txt", ["a z y d", "a quick red fox sits", "Hi, you!"] * 10)
    args = ["good.txt", "bad.txt", "good.txt", "--ref", "refs.txt", "--metrics", "bleu,rouge1", "--n-samples", "100"]
    code, out, err = run(*args, "--paired-ar")
    assert (code, err) == (0, "")
    assert _table_row(out, "BLEU").split() == ["BLEU", "100.00", "1.27", "(p", "0.010*)", "100.00", "(p", "1.000)"]
    assert "* p < 0.05 against good.txt (approximate randomization)" in out
    systems = json.loads(run(*args, "--paired-ar", "--json")[1])["systems"]
    for number in (0, 1):
        scores = [system["scores"][number] for system in systems]
        assert [score.get("p_value") for score in scores] == [None, pytest.approx(1 / 101), 1.0]
        assert "|ar:100|seed:12345|" in scores[0]["signature"]
        assert "interval" not in scores[1]
    default = json.loads(run(*args[:-2], "--paired-ar", "--json")[1])["systems"][0]["scores"]
    assert all("|ar:10000|" in score["signature"] for score in default)


def test_a_tokenizer_that_cannot_be_downloaded_says_what_to_do(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is looked for in a folder where there is none, behind a proxy where nobody listens."""
    for module in ("sacrebleu.utils", "sacrebleu.tokenizers.tokenizer_spm"):
        monkeypatch.setattr(f"{module}.SACREBLEU_DIR", str(Path.cwd() / "cache"))
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for tokenizer in metrics.SPM_TOKENIZERS:
        code, out, err = run("hyp.txt", "--ref", "ref.txt", "--tokenize", tokenizer)
        assert (code, out) == (2, "")
        assert f"tokenizer '{tokenizer}' is not ready" in err
        assert f"{Path.cwd() / 'cache' / 'models'}" in err
        assert "run this once with a network, or save https://" in err
        assert err.count("\n") == 1
    Path("cache/models/sacrebleu_tokenizer_spm.model").write_bytes(b"half a mod")
    code, _, err = run("hyp.txt", "--ref", "ref.txt", "--tokenize", "flores101")
    assert (code, "is not ready" in err, err.count("\n")) == (2, True, 1)


def test_json_holds_all_digits_and_nothing_else(run: Run) -> None:
    code, out, _ = run("hyp.txt", "--ref", "ref.txt", "--metrics", "ter,bleu", "--json")
    assert code == 0
    scores = [metrics.ter(HYP, [REF]), metrics.bleu(HYP, [REF])]
    expected = json.loads(json.dumps([asdict(score) for score in scores]))
    assert json.loads(out) == {"references": ["ref.txt"], "systems": [{"system": "hyp.txt", "scores": expected}]}


def test_options_reach_the_metrics(run: Run) -> None:
    args = ["--tokenize", "none", "--lowercase", "--no-stem", "--sentences", "newline", "-m", "bleu,chrf,ter,rouge"]
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
    write_lines(tmp_path / "gap.txt", [HYP[0], "", HYP[2]])
    code, out, _ = run("gap.txt", "--ref", "ref.txt", "--metrics", "bleu", "--json")
    assert code == 0
    assert json.loads(out)["systems"][0]["scores"][0]["value"] == metrics.bleu([HYP[0], "", HYP[2]], [REF]).value


def test_several_systems_are_compared_with_the_first(run: Run, tmp_path: Path) -> None:
    refs = REF * 10
    write_lines(tmp_path / "refs.txt", refs)
    write_lines(tmp_path / "good.txt", refs)
    write_lines(tmp_path / "bad.txt", ["a z y d", "a quick red fox sits", "Hi, you!"] * 10)
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
    assert set(json.loads(out)["systems"][1]["scores"][1]) == {"name", "value", "signature", "precision", "recall"}


def test_titles_are_file_names_where_they_differ(run: Run, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        write_lines(tmp_path / folder / "out.txt", HYP)
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
    write_lines(tmp_path / "src.txt", ["1 2 3 4 5 6", "1", "1"])
    code, out, _ = run(
        "hyp.txt", "--ref", "ref.txt", "--metrics", "bleu", "--by-length", "--source", "src.txt", "--edges", "1,5"
    )
    assert code == 0
    table = out[out.index("BLEU by length") :].splitlines()
    rows = [line.split() for line in table if line.strip()[:1].isdigit()]
    expected = metrics.bleu(HYP[1:], [REF[1:]]).value, metrics.bleu(HYP[:1], [REF[:1]]).value
    assert rows == [
        ["0-1", "2", f"{expected[0]:.2f}"],
        ["6", "and", "more", "1", f"{expected[1]:.2f}"],
    ]

    code, out, _ = run("hyp.txt", "--ref", "ref.txt", "--metrics", "bleu", "--by-length", "--edges", "4", "--json")
    assert code == 0
    buckets = json.loads(out)["systems"][0]["by_length"]
    assert [(bucket["low"], bucket["high"], bucket["count"]) for bucket in buckets] == [(0, 4, 2), (5, None, 1)]


def test_letters_that_rouge_drops_are_reported(run: Run, tmp_path: Path) -> None:
    write_lines(tmp_path / "german.txt", ["schön", "gut", "besser"])
    code, out, err = run("hyp.txt", "--ref", "german.txt", "--metrics", "rouge", "--json")
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
        (["hyp.txt", "--ref", "ref.txt", "--paired-ar"], "--paired-ar compares several HYPs"),
        (["hyp.txt", "hyp.txt", "--ref", "ref.txt", "--paired-ar", "--paired-bs"], "leave the other option out"),
        (["hyp.txt", "--ref", "ref.txt", "--by-length", "--edges", "10,x"], "'10,x' is not a list of whole numbers"),
        (["hyp.txt", "--ref", "ref.txt", "--by-length", "--edges", "20,10"], "must rise"),
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
    hidden = ("--terms", "--hyp-base", "--stem", "--sentences")
    assert not any(option in out for option in hidden)
    assert all(option in out for option in ("-m, --metrics", "-lc, --lowercase", "-w, --width", "--paired-ar"))


def test_bleu_by_length_as_a_picture(nmtkit: Command, tmp_path: Path) -> None:
    (tmp_path / "ref").write_text("a b c d e\n" * 3 + "a b c d e f g h i j k l\n")
    (tmp_path / "good").write_text((tmp_path / "ref").read_text())
    (tmp_path / "bad").write_text("a b c d e\n" * 4)
    call = ["score", tmp_path / "good", tmp_path / "bad", "--ref", tmp_path / "ref", "--no-significance"]
    succeeded(nmtkit(*call, "--by-length", "--plot", tmp_path / "length.svg"))
    text = (tmp_path / "length.svg").read_text()
    assert all(word in text for word in (">good<", ">bad<", ">11-20<", "n = 3"))
    assert "--by-length" in nmtkit(*call, "--plot", tmp_path / "length.svg").err
    refused = nmtkit(*call, "--by-length", "--plot", tmp_path / "length.gif")
    assert refused.code == 2
    assert "not a picture format" in refused.err
