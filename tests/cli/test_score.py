"""`nmtkit score` as a user meets it: output, messages and exit codes."""

import csv
import gzip
import json
import math
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from commands import Command, as_text, refused, succeeded, write_lines
from daily import daily
from untrained_runs import make_run

from nmtkit import metrics
from nmtkit.cli.figures import draw_lengths, show_lengths

REF = ["a b c d", "the quick brown fox jumps", "Hello, World!"]
HYP = ["a b c e", "the quick brown dog jumps", "hello, world!"]
PLAIN = ["hyp.txt", "--ref", "ref.txt"]


@pytest.fixture
def score(console: Command) -> Command:
    """Runs the command in a folder with a reference and outputs, some of them ten times as long."""
    write_lines("ref.txt", REF)
    write_lines("hyp.txt", HYP)
    write_lines("refs.txt", REF * 10)
    write_lines("good.txt", REF * 10)
    write_lines("bad.txt", ["a z y d", "a quick red fox sits", "Hi, you!"] * 10)
    return partial(console, "score")


COMPARED = ["good.txt", "bad.txt", "good.txt", "--ref", "refs.txt", "--metrics", "bleu,rouge1", "--n-samples", "100"]


def in_json(score: Command, *words: object, stdin: str | bytes = "") -> list[dict[str, Any]]:
    """The systems that `--json` prints."""
    systems: list[dict[str, Any]] = json.loads(succeeded(score(*words, "--json", stdin=stdin)).out)["systems"]
    return systems


def table_row(output: str, start: str) -> str:
    return next(line for line in output.splitlines() if line.split()[:1] == [start])


def test_scores_as_a_table_for_latex_or_as_comma_separated_values(score: Command) -> None:
    latex = succeeded(score(*COMPARED, "--format", "latex")).out.splitlines()
    assert latex[:4] == ["\\begin{tabular}{lrr}", "\\toprule", "system & BLEU & ROUGE-1 \\\\", "\\midrule"]
    assert latex[4].startswith("good.txt & 100.00 $\\pm$ 0.00 & 100.00")
    assert "$^{*}$" in latex[5]
    assert latex[-2:] == ["\\bottomrule", "\\end{tabular}"]
    rows = list(csv.reader(succeeded(score(*COMPARED, "--format", "csv")).out.splitlines()))
    assert rows[0] == ["system", "metric", "score", "interval", "p_value", "signature"]
    in_csv = [(row[1], float(row[2]), row[5]) for row in rows[1:]]
    in_records = [
        (one["name"], one["value"], one["signature"])
        for system in in_json(score, *COMPARED)
        for one in system["scores"]
    ]
    assert in_csv == in_records
    refused(score(*PLAIN, "--format", "csv", "--json"), "--json asks for JSON and --format for csv")
    refused(score(*PLAIN, "--format", "latex", "--by-length"), "--format latex has no table by length")


def test_prints_every_metric_with_its_signature(score: Command) -> None:
    done = succeeded(score(*PLAIN))
    assert done.err == ""
    assert "ROUGE" not in done.out
    shown = score(*PLAIN, "--metrics", "bleu,chrf,ter,rouge").out
    scores = metrics.score_all(HYP, [REF], ["bleu", "chrf", "ter", "rouge"])
    assert len(scores) == 7
    for one in scores:
        assert f"{one.value:.2f}" in table_row(shown, one.name)
        assert f"{one.name}|{one.signature} = {one.value:.2f}" in shown
    expected = [asdict(one) for one in metrics.score_all(HYP, [REF], ["ter", "bleu"])]
    assert json.loads(score(*PLAIN, "--metrics", "ter,bleu", "--json").out) == {
        "references": ["ref.txt"],
        "systems": [{"system": "hyp.txt", "scores": json.loads(json.dumps(expected))}],
    }


def test_bleu_tells_what_it_is_made_of(score: Command) -> None:
    # By hand: 4 words against 6, and 4, 3, 2 and 1 n-grams, all but the last word's of them found; no match of 4-grams
    # is smoothed to 1/2.
    write_lines("ref1", ["the cat sat on the mat"])
    write_lines("hyp1", ["the cat sat in"])
    out = succeeded(score("hyp1", "--ref", "ref1", "-m", "bleu", "-w", "1")).out
    assert out.splitlines()[-1].endswith(" 75.0/66.7/50.0/50.0 (BP = 0.607 ratio = 0.667 hyp_len = 4 ref_len = 6)")
    (bleu,) = in_json(score, "hyp1", "--ref", "ref1", "-m", "bleu")[0]["scores"]
    assert bleu["precisions"] == pytest.approx([75, 200 / 3, 50, 50])
    assert bleu["brevity_penalty"] == pytest.approx(math.exp(1 - 6 / 4))
    assert (bleu["ratio"], bleu["hyp_length"], bleu["ref_length"]) == (pytest.approx(2 / 3), 4, 6)


def test_metrics_are_separated_by_commas_or_blanks(score: Command) -> None:
    expected = succeeded(score(*PLAIN, "--metrics", "bleu,chrf")).out
    for words in (["-m", "bleu", "chrf"], ["-mbleu,chrf"], ["-m", "bleu", "-m", "chrf"], ["--metrics=bleu,chrf"]):
        assert score(*PLAIN, *words).out == expected
    # What follows is a HYP again as soon as it names no metric.
    assert score("-m", "bleu", "chrf", *PLAIN).out == expected


def test_a_line_to_paste_is_never_wrapped(score: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    lines = score("hyp.txt", *PLAIN, "--n-samples", "5").out.splitlines()
    pasted = [line for line in lines if line.startswith(("BLEU|", "chrF2|", "TER|"))]
    assert len(pasted) == 6
    assert all("|version:" in line and " = " in line and " ± " in line for line in pasted)


def test_several_systems_are_compared_with_the_first(score: Command) -> None:
    done = succeeded(score(*COMPARED))
    assert done.err == ""
    row = table_row(done.out, "BLEU")
    assert row.count("100.00 ± 0.00") == 2
    assert "(p 0.010*)" in row
    assert row.rstrip().endswith("(p 1.000)")
    assert "* p < 0.05 against good.txt" in done.out
    plain = in_json(score, *COMPARED[:-2], "--no-significance")[1]["scores"][1]
    assert plain.keys() == {"name", "value", "signature", "precision", "recall"}
    alone = succeeded(score(*PLAIN, "--metrics", "bleu", "--significance", "--n-samples", "20")).out
    assert "±" in table_row(alone, "BLEU")
    assert "(p " not in alone


@pytest.mark.parametrize(("test", "name"), daily([("--paired-bs", "bs"), ("--paired-ar", "ar")]))
def test_significance_in_json(score: Command, test: str, name: str) -> None:
    systems = in_json(score, *COMPARED, test)
    assert [system["scores"][0].get("p_value") for system in systems] == [None, pytest.approx(1 / 101), 1.0]
    rouge = systems[1]["scores"][1]
    assert f"|{name}:100|seed:12345|" in rouge["signature"]
    assert ("interval" in rouge) == (name == "bs")
    default = in_json(score, *COMPARED[:-2], test)[0]["scores"][0]
    assert f"|{name}:{'1000' if name == 'bs' else '10000'}|" in default["signature"]


def test_a_tokenizer_that_cannot_be_downloaded_says_what_to_do(score: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is looked for in a folder where there is none, behind a proxy where nobody listens."""
    for module in ("sacrebleu.utils", "sacrebleu.tokenizers.tokenizer_spm"):
        monkeypatch.setattr(f"{module}.SACREBLEU_DIR", str(Path.cwd() / "cache"))
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for tokenizer in metrics.SPM_TOKENIZERS:
        said = f"tokenizer '{tokenizer}' is not ready", "run this once with a network"
        done = refused(score(*PLAIN, "--tokenize", tokenizer), *said)
        assert done.err.count("\n") == 1
    Path("cache/models/sacrebleu_tokenizer_spm.model").write_bytes(b"half a mod")
    refused(score(*PLAIN, "--tokenize", "flores101"), "is not ready")


def test_options_reach_the_metrics(score: Command) -> None:
    args = ["--tokenize", "none", "--lowercase", "--no-stem", "--sentences", "newline", "-m", "bleu,chrf,ter,rouge"]
    options = metrics.Options(tokenize="none", lowercase=True, stem=False, sentences="newline")
    expected = metrics.score_all(HYP, [REF], ["bleu", "chrf", "ter", "rouge"], options)
    scores = in_json(score, *PLAIN, *args)[0]["scores"]
    assert [entry["value"] for entry in scores] == [one.value for one in expected]


def test_forms_of_files(score: Command) -> None:
    """Standard input, a packed file, several references, an empty line."""
    Path("ref2.txt.gz").write_bytes(gzip.compress("\n".join(HYP).encode()))
    several = ["-", "--ref", "ref.txt", "--ref", "ref2.txt.gz", "--metrics", "bleu"]
    for given in (as_text(HYP), gzip.compress(as_text(HYP).encode())):
        (bleu,) = in_json(score, *several, stdin=given)[0]["scores"]
        assert bleu["value"] == pytest.approx(100)
        assert bleu["signature"].startswith("nrefs:2|")
    gap = [HYP[0], "", HYP[2]]
    write_lines("gap.txt", gap)
    (bleu,) = in_json(score, "gap.txt", "--ref", "ref.txt", "--metrics", "bleu")[0]["scores"]
    assert bleu["value"] == metrics.score_all(gap, [REF], ["bleu"])[0].value


def test_standard_input_is_read_once(console: Command) -> None:
    for words in (
        "score - --ref -",
        "score-summaries - --ref b --source -",
        "score-alignments - --ref -",
        "evaluate --source - --ref -",
    ):
        refused(console(*words.split(), stdin="a\n"), "only one of the files can be it")


def test_titles_are_file_names_where_they_differ(score: Command) -> None:
    for folder in ("one", "two"):
        write_lines(f"{folder}/out.txt", HYP)
    args = ["--ref", "ref.txt", "--metrics", "bleu", "--n-samples", "5"]
    for hyps, titles in (
        (["hyp.txt", "one/out.txt"], ["hyp.txt", "out.txt"]),
        (["one/out.txt", "two/out.txt"], ["one/out.txt", "two/out.txt"]),
    ):
        assert table_row(score(*hyps, *args).out, "metric").split() == ["metric", *titles]


def test_by_length_sorts_by_source_or_reference(score: Command) -> None:
    write_lines("src.txt", ["1 2 3 4 5 6 7 8 9 10 11", "1", "1"])
    words = [*PLAIN, "--metrics", "bleu", "--by-length"]
    out = succeeded(score(*words, "--source", "src.txt")).out
    table = out[out.index("BLEU by length") :].splitlines()
    rows = [line.split() for line in table if line.strip()[:1].isdigit()]
    expected = [metrics.score_all(HYP[part], [REF[part]], ["bleu"])[0].value for part in (slice(1, None), slice(1))]
    assert rows == [["0-10", "2", f"{expected[0]:.2f}"], ["11-20", "1", f"{expected[1]:.2f}"]]
    buckets = in_json(score, *words)[0]["by_length"]
    ends = [(bucket["low"], bucket["high"], bucket["count"]) for bucket in buckets]
    assert (ends[0], ends[-1]) == ((0, 10, 3), (51, None, 0))


def test_ranges_that_only_one_of_two_test_sets_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`nmtkit compare` may be given runs with different test sets."""
    short, long = " ".join("abcd"), " ".join("abcdefghijklm")
    buckets = [metrics.by_length(lines, [lines], lines) for lines in ([short] * 2 + [long], [short], [long])]
    show_lengths(["both", "short", "long"], buckets)
    shown = capsys.readouterr().out
    assert table_row(shown, "0-10").split() == ["0-10", "2/1/0", "100.00", "100.00", "-"]
    assert table_row(shown, "11-20").split() == ["11-20", "1/0/1", "100.00", "-", "100.00"]
    draw_lengths(["both", "short", "long"], buckets, tmp_path / "length.svg")
    assert "n = 2/1/0" in (tmp_path / "length.svg").read_text(encoding="utf-8")


def test_bleu_by_length_as_a_picture(score: Command) -> None:
    write_lines("long", ["a b c d e"] * 3 + ["a b c d e f g h i j k l"])
    write_lines("cut", ["a b c d e"] * 4)
    succeeded(score("long", "cut", "--ref", "long", "--no-significance", "--by-length", "--plot", "length.svg"))
    text = Path("length.svg").read_text()
    assert all(word in text for word in (">long<", ">cut<", ">11-20<", "n = 3"))


def test_only_lines_that_a_run_knows_are_scored(score: Command, tmp_path: Path) -> None:
    """A line counts if its source and all its references have known words alone."""
    word = "model: {kind: rnnsearch, embedding_size: 8, hidden_size: 8}\ntokenizer: {kind: word, joint: false}\n"
    recipe = "data:\n  train: {src: a, tgt: b}\n  valid: {src: a, tgt: b}\ntraining: {max_updates: 1}\n"
    run = str(make_run(tmp_path, "words", word + recipe, ["the dog runs", "a dog sleeps here"]))
    write_lines("source", ["the dog runs", "a cat sleeps here", "the dog sleeps here", "a dog sleeps here"])
    write_lines("first", ["the dog runs", "a dog sleeps here", "a cat sleeps here", "the dog sleeps here"])
    write_lines("second", ["the dog runs", "the dog", "the dog", "dog runs"])
    write_lines("output", ["the dog runs", "no", "no", "the dog sleeps here"])
    write_lines("two", ["the dog runs", "the dog sleeps here"])
    write_lines("two.first", ["the dog runs", "the dog sleeps here"])
    write_lines("two.second", ["the dog runs", "dog runs"])
    words = ("output", "--ref", "first", "--ref", "second", "--source", "source", "--known-by", run)
    done = succeeded(score(*words, "--json"))
    assert f"2 of 4 lines have no word that {run} does not know" in done.err
    told = json.loads(done.out)
    assert (told["known_by"], told["lines"], told["of"]) == (run, 2, 4)
    alone = in_json(score, "two", "--ref", "two.first", "--ref", "two.second")
    assert told["systems"][0]["scores"] == alone[0]["scores"]
    refused(score("output", "--ref", "first", "--known-by", run), "give it with --source")
    write_lines("source", ["a bird"] * 4)
    refused(score(*words), "each of the 4 lines has a word that this run does not know")
