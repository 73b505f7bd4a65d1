"""`nmtkit score` as a user meets it: output, messages and exit codes."""

import csv
import gzip
import json
import math
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nmtkit import metrics
from nmtkit.cli.pictures.figures import draw_lengths, show_lengths
from tests.cli.untrained_runs import make_run
from tests.support.cases import daily
from tests.support.commands import Command, as_text, refused, succeeded, write_lines

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


COMPARED = [
    "good.txt",
    "bad.txt",
    "good.txt",
    "--ref",
    "refs.txt",
    "--metrics",
    "bleu,rouge1",
    "--n-samples",
    "100",
]


def in_json(score: Command, *words: object, stdin: str | bytes = "") -> list[dict[str, Any]]:
    """The systems that `--json` prints."""
    systems: list[dict[str, Any]] = json.loads(succeeded(score(*words, "--json", stdin=stdin)).out)[
        "systems"
    ]
    return systems


def table_row(output: str, start: str) -> str:
    return next(line for line in output.splitlines() if line.split()[:1] == [start])


def test_latex_is_a_table_with_intervals_and_marks(score: Command) -> None:
    latex = succeeded(score(*COMPARED, "--format", "latex")).out.splitlines()
    assert latex[:4] == [
        "\\begin{tabular}{lrr}",
        "\\toprule",
        "system & BLEU & ROUGE-1 \\\\",
        "\\midrule",
    ]
    assert latex[4].startswith("good.txt & 100.00 $\\pm$ 0.00 & 100.00")
    assert "$^{*}$" in latex[5]
    assert latex[-2:] == ["\\bottomrule", "\\end{tabular}"]


def test_csv_has_the_values_of_json(score: Command) -> None:
    rows = list(csv.reader(succeeded(score(*COMPARED, "--format", "csv")).out.splitlines()))
    assert rows[0] == ["system", "metric", "score", "interval", "p_value", "signature"]
    in_csv = [(row[1], float(row[2]), row[5]) for row in rows[1:]]
    in_records = []
    for system in in_json(score, *COMPARED):
        for record in system["scores"]:
            in_records.append((record["name"], record["value"], record["signature"]))
    assert in_csv == in_records


def test_every_metric_is_printed_with_its_signature(score: Command) -> None:
    shown = succeeded(score(*PLAIN, "--metrics", "bleu,chrf,ter,rouge")).out
    scores = metrics.score_all(HYP, [REF], ["bleu", "chrf", "ter", "rouge"])
    assert len(scores) == 7
    for one in scores:
        assert f"{one.value:.2f}" in table_row(shown, one.name)
        assert f"{one.name}|{one.signature} = {one.value:.2f}" in shown


def test_default_metrics_have_no_rouge_and_no_messages(score: Command) -> None:
    done = succeeded(score(*PLAIN))
    assert done.err == ""
    assert "ROUGE" not in done.out


def test_json_has_the_fields_of_the_scores(score: Command) -> None:
    expected = [asdict(one) for one in metrics.score_all(HYP, [REF], ["ter", "bleu"])]
    assert json.loads(score(*PLAIN, "--metrics", "ter,bleu", "--json").out) == {
        "references": ["ref.txt"],
        "systems": [{"system": "hyp.txt", "scores": json.loads(json.dumps(expected))}],
    }


def test_bleu_shows_its_precisions_and_brevity_penalty(score: Command) -> None:
    # By hand: 4 words against 6, and 4, 3, 2 and 1 n-grams, all but the last word's of them found; no match of 4-grams
    # is smoothed to 1/2.
    write_lines("ref1", ["the cat sat on the mat"])
    write_lines("hyp1", ["the cat sat in"])
    out = succeeded(score("hyp1", "--ref", "ref1", "-m", "bleu", "-w", "1")).out
    assert "75.0/66.7/50.0/50.0 (BP = 0.607 ratio = 0.667 hyp_len = 4 ref_len = 6)" in out
    (bleu,) = in_json(score, "hyp1", "--ref", "ref1", "-m", "bleu")[0]["scores"]
    assert bleu["precisions"] == pytest.approx([75, 200 / 3, 50, 50])
    assert bleu["brevity_penalty"] == pytest.approx(math.exp(1 - 6 / 4))
    assert (bleu["ratio"], bleu["hyp_length"], bleu["ref_length"]) == (pytest.approx(2 / 3), 4, 6)


SPELLINGS = [
    "hyp.txt --ref ref.txt -m bleu chrf",
    "hyp.txt --ref ref.txt -mbleu,chrf",
    "hyp.txt --ref ref.txt -m bleu -m chrf",
    "hyp.txt --ref ref.txt --metrics=bleu,chrf",
    # What follows is a HYP again as soon as it names no metric.
    "-m bleu chrf hyp.txt --ref ref.txt",
]


@pytest.mark.parametrize("line", SPELLINGS)
def test_metrics_are_separated_by_commas_or_blanks(score: Command, line: str) -> None:
    expected = succeeded(score(*PLAIN, "--metrics", "bleu,chrf")).out
    assert score(*line.split()).out == expected


def test_a_signature_to_paste_is_never_wrapped(
    score: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert row.index("(p 0.010*)") < row.index("(p 1.000)")
    assert "* p < 0.05 against good.txt" in done.out


def test_no_significance_leaves_intervals_and_p_values_out(score: Command) -> None:
    rouge = in_json(score, *COMPARED[:-2], "--no-significance")[1]["scores"][1]
    assert rouge.keys() == {"name", "value", "signature", "precision", "recall"}


def test_one_system_has_intervals_without_p_values(score: Command) -> None:
    alone = succeeded(score(*PLAIN, "--metrics", "bleu", "--significance", "--n-samples", "20")).out
    assert "±" in table_row(alone, "BLEU")
    assert "(p " not in alone


@pytest.mark.parametrize(("test", "name"), daily([("--paired-bs", "bs"), ("--paired-ar", "ar")]))
def test_significance_in_json(score: Command, test: str, name: str) -> None:
    systems = in_json(score, *COMPARED, test)
    assert [system["scores"][0].get("p_value") for system in systems] == [
        None,
        pytest.approx(1 / 101),
        1.0,
    ]
    rouge = systems[1]["scores"][1]
    assert f"|{name}:100|seed:12345|" in rouge["signature"]
    assert ("interval" in rouge) == (name == "bs")
    default = in_json(score, *COMPARED[:-2], test)[0]["scores"][0]
    assert f"|{name}:{'1000' if name == 'bs' else '10000'}|" in default["signature"]


@pytest.fixture
def no_tokenizer_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder for the models of tokenizers, and a proxy where nobody listens."""
    for module in ("sacrebleu.utils", "sacrebleu.tokenizers.tokenizer_spm"):
        monkeypatch.setattr(f"{module}.SACREBLEU_DIR", str(tmp_path / "cache"))
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache" / "models"


@pytest.mark.usefixtures("no_tokenizer_models")
@pytest.mark.parametrize("tokenizer", metrics.SPM_TOKENIZERS)
def test_a_tokenizer_that_cannot_be_downloaded_says_what_to_do(
    score: Command, tokenizer: str
) -> None:
    done = score(*PLAIN, "--tokenize", tokenizer)
    refused(
        done,
        f"tokenizer '{tokenizer}' is not available",
        "run this command once with an internet connection",
    )
    assert done.err.count("\n") == 1


def test_half_a_model_of_a_tokenizer_is_not_ready(
    score: Command, no_tokenizer_models: Path
) -> None:
    no_tokenizer_models.mkdir(parents=True)
    (no_tokenizer_models / "sacrebleu_tokenizer_spm.model").write_bytes(b"half a mod")
    refused(score(*PLAIN, "--tokenize", "flores101"), "is not available")


def test_options_reach_the_metrics(score: Command) -> None:
    args = [
        "--tokenize",
        "none",
        "--lowercase",
        "--no-stem",
        "--sentences",
        "newline",
        "-m",
        "bleu,chrf,ter,rouge",
    ]
    options = metrics.Options(tokenize="none", lowercase=True, stem=False, sentences="newline")
    expected = metrics.score_all(HYP, [REF], ["bleu", "chrf", "ter", "rouge"], options)
    scores = in_json(score, *PLAIN, *args)[0]["scores"]
    assert [entry["value"] for entry in scores] == [one.value for one in expected]


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_standard_input_and_references_may_be_packed(
    score: Command, pack: Callable[[bytes], bytes]
) -> None:
    Path("ref2.txt.gz").write_bytes(gzip.compress("\n".join(HYP).encode()))
    several = ["-", "--ref", "ref.txt", "--ref", "ref2.txt.gz", "--metrics", "bleu"]
    (bleu,) = in_json(score, *several, stdin=pack(as_text(HYP).encode()))[0]["scores"]
    assert bleu["value"] == pytest.approx(100)
    assert bleu["signature"].startswith("nrefs:2|")


def test_an_empty_line_is_scored(score: Command) -> None:
    gap = [HYP[0], "", HYP[2]]
    write_lines("gap.txt", gap)
    (bleu,) = in_json(score, "gap.txt", "--ref", "ref.txt", "--metrics", "bleu")[0]["scores"]
    assert bleu["value"] == metrics.score_all(gap, [REF], ["bleu"])[0].value


@pytest.mark.parametrize(
    ("hyps", "titles"),
    [
        pytest.param(
            ["hyp.txt", "one/out.txt"], ["hyp.txt", "out.txt"], id="file names that differ"
        ),
        pytest.param(
            ["one/out.txt", "two/out.txt"], ["one/out.txt", "two/out.txt"], id="folders that differ"
        ),
    ],
)
def test_titles_are_the_shortest_names_that_differ(
    score: Command, hyps: list[str], titles: list[str]
) -> None:
    for folder in ("one", "two"):
        write_lines(f"{folder}/out.txt", HYP)
    done = score(*hyps, "--ref", "ref.txt", "--metrics", "bleu", "--n-samples", "5")
    assert table_row(done.out, "metric").split() == ["metric", *titles]


def test_by_length_sorts_by_source_or_reference(score: Command) -> None:
    write_lines("src.txt", ["1 2 3 4 5 6 7 8 9 10 11", "1", "1"])
    words = [*PLAIN, "--metrics", "bleu", "--by-length"]
    out = succeeded(score(*words, "--source", "src.txt")).out
    table = out[out.index("BLEU by length") :].splitlines()
    rows = [line.split() for line in table if line.strip()[:1].isdigit()]
    expected = [
        metrics.score_all(HYP[part], [REF[part]], ["bleu"])[0].value
        for part in (slice(1, None), slice(1))
    ]
    assert rows == [["0-10", "2", f"{expected[0]:.2f}"], ["11-20", "1", f"{expected[1]:.2f}"]]
    buckets = in_json(score, *words)[0]["by_length"]
    ends = [(bucket["low"], bucket["high"], bucket["count"]) for bucket in buckets]
    assert (ends[0], ends[-1]) == ((0, 10, 3), (51, None, 0))


def test_ranges_that_only_one_of_two_test_sets_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`nmtkit compare` may be given runs with different test sets."""
    short, long = " ".join("abcd"), " ".join("abcdefghijklm")
    buckets = [
        metrics.by_length(lines, [lines], lines)
        for lines in ([short] * 2 + [long], [short], [long])
    ]
    show_lengths(["both", "short", "long"], buckets)
    shown = capsys.readouterr().out
    assert table_row(shown, "0-10").split() == ["0-10", "2/1/0", "100.00", "100.00", "-"]
    assert table_row(shown, "11-20").split() == ["11-20", "1/0/1", "100.00", "-", "100.00"]
    draw_lengths(["both", "short", "long"], buckets, tmp_path / "length.svg")
    assert "n = 2/1/0" in (tmp_path / "length.svg").read_text(encoding="utf-8")


def test_bleu_by_length_as_a_picture(score: Command) -> None:
    write_lines("long", ["a b c d e"] * 3 + ["a b c d e f g h i j k l"])
    write_lines("cut", ["a b c d e"] * 4)
    succeeded(
        score(
            "long",
            "cut",
            "--ref",
            "long",
            "--no-significance",
            "--by-length",
            "--plot",
            "length.svg",
        )
    )
    text = Path("length.svg").read_text()
    assert all(word in text for word in (">long<", ">cut<", ">11-20<", "n = 3"))


@pytest.fixture
def words_run(tmp_path: Path) -> str:
    """A run that has few words."""
    word = "model: {kind: rnnsearch, embedding_size: 8, hidden_size: 8}\ntokenizer: {kind: word, joint: false}\n"
    recipe = (
        "data:\n  train: {src: a, tgt: b}\n  valid: {src: a, tgt: b}\ntraining: {max_updates: 1}\n"
    )
    return str(make_run(tmp_path, "words", word + recipe, ["the dog runs", "a dog sleeps here"]))


KNOWN_BY = ("output", "--ref", "first", "--ref", "second", "--source", "source", "--known-by")


def test_known_by_scores_only_lines_whose_words_a_run_has(score: Command, words_run: str) -> None:
    """A line counts if its source and all its references have known words alone."""
    write_lines(
        "source", ["the dog runs", "a cat sleeps here", "the dog sleeps here", "a dog sleeps here"]
    )
    write_lines(
        "first", ["the dog runs", "a dog sleeps here", "a cat sleeps here", "the dog sleeps here"]
    )
    write_lines("second", ["the dog runs", "the dog", "the dog", "dog runs"])
    write_lines("output", ["the dog runs", "no", "no", "the dog sleeps here"])
    write_lines("two", ["the dog runs", "the dog sleeps here"])
    write_lines("two.first", ["the dog runs", "the dog sleeps here"])
    write_lines("two.second", ["the dog runs", "dog runs"])
    done = succeeded(score(*KNOWN_BY, words_run, "--json"))
    assert f"scoring only the 2 of 4 lines that contain no words unknown to {words_run}" in done.err
    report = json.loads(done.out)
    assert (report["known_by"], report["lines"], report["of"]) == (words_run, 2, 4)
    alone = in_json(score, "two", "--ref", "two.first", "--ref", "two.second")
    assert report["systems"][0]["scores"] == alone[0]["scores"]


def test_known_by_refuses_a_text_without_a_line_of_known_words(
    score: Command, words_run: str
) -> None:
    for name in ("first", "second", "output"):
        write_lines(name, ["the dog runs"] * 4)
    write_lines("source", ["a bird"] * 4)
    refused(
        score(*KNOWN_BY, words_run), "each of the 4 lines has a word that this run does not know"
    )
