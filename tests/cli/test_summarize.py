"""`nmtkit summarize`, on runs whose weights are random: articles, summaries and messages."""

import json
import os
import re
from pathlib import Path

import pytest

from nmtkit import Translator
from nmtkit.inference.long_texts import Summarizer
from tests.cli.untrained_runs import ARTICLES, LINES, SUMMARIZATION, TRANSLATION, make_run
from tests.support.command_cases import words_of
from tests.support.commands import (
    Command,
    Finished,
    as_text,
    json_lines,
    refused,
    succeeded,
    write_lines,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs of two tasks; the one for translation is the newest."""
    folder = tmp_path_factory.mktemp("summarize")
    make_run(folder, "news", SUMMARIZATION)
    make_run(
        folder, "plain", SUMMARIZATION.replace("hidden_size: 8,", "hidden_size: 8, copying: false,")
    )
    os.utime(folder / "runs/plain/result.json", (1, 1))
    make_run(folder, "text", TRANSLATION)
    return folder


@pytest.fixture
def console(place: Path, console: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.chdir(place)
    return console


SHORT_RATIO = ["--search", "max_length_ratio=0.1", "--search", "max_length_offset=1"]


def jsonl(articles: list[str]) -> str:
    return as_text(
        json.dumps({"id": number, "text": article}) for number, article in enumerate(articles)
    )


def test_one_line_is_printed_for_each_article_in_order(console: Command) -> None:
    done = succeeded(console("summarize", stdin=as_text(ARTICLES)))
    summaries = done.out.split("\n")
    assert summaries.pop() == ""
    assert [bool(line) for line in summaries] == [True, False, True, True]
    assert all("<pad>" not in line and "▁" not in line for line in summaries)
    assert (
        "".join(console("summarize", stdin=article + "\n").out for article in ARTICLES) == done.out
    )
    assert Translator.load("runs/news", device="cpu").translate(ARTICLES) == summaries


@pytest.mark.parametrize(
    ("command", "name", "task", "other"),
    [
        ("summarize", "news", "summarization", "translate"),
        ("translate", "text", "translation", "summarize"),
    ],
)
def test_each_task_has_its_command(
    console: Command, command: str, name: str, task: str, other: str
) -> None:
    done = console(command, stdin="")
    assert f"runs/{name} (the newest finished run for {task} under runs/)" in done.err
    trained_for = f"runs/{name} (as requested) was trained for {task}; use `nmtkit {command}`"
    refused(console(other, "-m", f"runs/{name}", stdin=""), trained_for)


def test_a_run_of_another_task_is_not_taken(
    console: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path, "text", TRANSLATION)
    monkeypatch.chdir(tmp_path)
    refused(
        console("summarize", stdin="a"),
        "no finished run for summarization under runs/; give one with -m RUN",
    )


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        pytest.param(
            "",
            "2 of 4 articles were longer than 8 tokens and were truncated; to read whole articles, use --window",
            id="8",
        ),
        pytest.param("--max-source-tokens 3", "3 of 4 articles were longer than 3 tokens", id="3"),
        pytest.param("--max-source-tokens 100", "", id="100"),
    ],
)
def test_articles_are_cut_with_a_warning(console: Command, options: str, warning: str) -> None:
    done = succeeded(console("summarize", *options.split(), stdin=as_text(ARTICLES)))
    assert warning in done.err
    assert ("were truncated" in done.err) == bool(warning)


def test_json_has_the_tokens_that_were_read_and_counts_the_others(console: Command) -> None:
    short = console("summarize", "--max-source-tokens", "3", "--json", stdin=as_text(ARTICLES))
    records = json_lines(short.out)
    assert records[0]["source_tokens"] == ["▁Zyx", "▁sees", "▁the"]
    assert [record.get("source_tokens_left_out", 0) for record in records] == [8, 0, 1, 8]


def test_windows_are_summarized_one_by_one(console: Command, tmp_path: Path) -> None:
    done = succeeded(console("summarize", "--window", "6", stdin=as_text(ARTICLES)))
    assert "were truncated" not in done.err
    expected = Summarizer(Translator.load("runs/news", device="cpu"), 6).summarize(ARTICLES)
    assert done.out == as_text(expected)
    printed = console("summarize", "--window", "6", "--json", stdin=as_text(ARTICLES)).out
    record = json_lines(printed)[0]
    parts = [window["best"]["text"] for window in record["windows"]]
    assert record["text"] == " ".join(parts) == expected[0]
    assert len(parts) == 2
    refused(
        rescored(console, tmp_path, printed),
        "out.jsonl, line 1: this was not written by",
        "create the file with that command, without --window or --split-sentences",
    )


def rescored(console: Command, folder: Path, printed: str) -> Finished:
    """Scores of summaries that were printed with `--json`."""
    (folder / "in").write_text(as_text(ARTICLES))
    (folder / "out.jsonl").write_text(printed)
    return console(
        "rescore", "-m", "news", "--source", folder / "in", "--target", folder / "out.jsonl"
    )


def test_json_names_copied_spans_with_their_places(console: Command) -> None:
    records = json_lines(
        succeeded(console("summarize", "--json", "--n-best", "2", stdin=as_text(ARTICLES))).out
    )
    assert [record["line"] for record in records] == [1, 2, 3, 4]
    plain = console("summarize", stdin=as_text(ARTICLES)).out
    assert as_text(record["best"]["text"] for record in records) == plain
    assert records[1]["best"]["text"] == ""
    spans = 0
    for record in [records[0], *records[2:]]:
        words = ARTICLES[record["line"] - 1].split()
        for summary in (record["best"], *record["others"]):
            assert len(summary["p_gen"]) == len(summary["copied"]) + summary["finished"]
            for span in summary["copied_spans"]:
                spans += 1
                written = summary["tokens"][slice(*span["tokens"])]
                assert written == record["source_tokens"][slice(*span["source_tokens"])]
                assert span["text"] in " ".join(words[slice(*span["source_words"])])
    assert spans > 3


def test_json_of_a_model_that_does_not_copy_has_no_p_gen(console: Command) -> None:
    (record,) = json_lines(console("summarize", "-m", "plain", "--json", stdin=ARTICLES[0]).out)
    assert "p_gen" not in record["best"]
    assert record["source_tokens"][0] == "▁<unk>"


def test_rescore_gives_what_summarize_printed(console: Command, tmp_path: Path) -> None:
    printed = console("summarize", "--json", stdin=as_text(ARTICLES)).out
    done = succeeded(rescored(console, tmp_path, printed))
    for line, record in zip(done.out.splitlines(), json_lines(printed), strict=True):
        expected = [record["best"]["score"], record["best"]["log_prob"]]
        assert [float(one) for one in line.split("\t")] == pytest.approx(expected, abs=1e-4)
    assert "2 of 4 sources were longer than 8 tokens and were truncated" in done.err


def test_moses_lists_have_the_values_of_n_best_lists(console: Command) -> None:
    articles = as_text([ARTICLES[0], "", ARTICLES[2]])
    rows = [
        line.split("\t")
        for line in console("summarize", "--n-best", "3", stdin=articles).out.splitlines()
    ]
    done = succeeded(console("summarize", "--n-best", "3", "--format", "moses", stdin=articles))
    moses = [line.split(" ||| ") for line in done.out.splitlines()]
    for (line, text, features, score), row in zip(moses, rows, strict=True):
        assert [int(line) + 1, float(score), text] == [int(row[0]), float(row[1]), row[3]]
        assert float(features.split()[1]) == float(row[2])
    assert {number for number, *_ in moses} == {"0", "1", "2"}
    best = console("summarize", "--format", "moses", stdin=articles).out.splitlines()
    assert [line[:6] for line in best] == ["0 ||| ", "1 ||| ", "2 ||| "]


@pytest.mark.parametrize(
    ("options", "shortest", "longest"),
    [
        pytest.param("--min-length 0 --max-length 2", [0, 0], [2, 2], id="max_length"),
        pytest.param("--min-length 9", [9, 9], [12, 12], id="min_length"),
        # 8 and 4 tokens are read.
        pytest.param(
            "--min-length 0 --search min_length_ratio=1.25 --max-length 30",
            [10, 5],
            [30, 30],
            id="min_length_ratio",
        ),
        pytest.param(
            "--search min_length_ratio=9", [0, 0], [12, 12], id="a ratio beyond the limit"
        ),
    ],
)
def test_limits_of_length_reach_the_search(
    console: Command, options: str, shortest: list[int], longest: list[int]
) -> None:
    articles = as_text([ARTICLES[0], ARTICLES[2]])
    done = succeeded(console("summarize", "--json", *options.split(), stdin=articles))
    lengths = [len(record["best"]["tokens"]) for record in json_lines(done.out)]
    for length, least, most in zip(lengths, shortest, longest, strict=True):
        assert least <= length <= most


def test_no_repeat_ngram_reaches_the_search(console: Command) -> None:
    done = console(
        "summarize", "--no-repeat-ngram", "1", "--min-length", "8", stdin=as_text(ARTICLES)
    )
    for line in done.out.splitlines():
        words = re.findall(r"\w+|[.,]", line)
        assert len(words) == len(set(words))


def test_the_setting_that_limits_the_length_is_named(console: Command) -> None:
    """`--max-length` does not raise a limit that depends on the length of the source."""
    short = ["--min-length", "0", *SHORT_RATIO]
    done = console("summarize", *short, stdin=as_text(ARTICLES))
    assert (
        "warning: 3 of 4 summaries reached the length limit (line 1, line 3, line 4): " in done.err
    )
    assert "if they look cut off, raise the limit with --max-length or --search" in done.err
    assert "max_length_ratio=R" in done.err


def test_penalties_reach_the_search(console: Command) -> None:
    penalties = [
        "--length-penalty",
        "none",
        "--search",
        "coverage_penalty=2",
        "--search",
        "coverage_kind=summary",
    ]
    best = json.loads(
        console("summarize", "--json", "--min-length", "8", *penalties, stdin=ARTICLES[0]).out
    )["best"]
    assert best["score"] < best["log_prob"] - 0.01


def test_articles_may_be_a_field_of_json_lines(console: Command, tmp_path: Path) -> None:
    plain = console("summarize", stdin=as_text(ARTICLES)).out
    file = tmp_path / "articles.jsonl"
    file.write_text(jsonl(ARTICLES), encoding="utf-8")
    assert succeeded(console("summarize", f"{file}#text")).out == plain
    file.write_text(
        json.dumps({"text": ["The man", "sleeps."]})
        + "\n\n"
        + json.dumps({"text": "The man\nsleeps."})
    )
    done = console("summarize", f"{file}#text")
    assert done.out.splitlines() == [plain.splitlines()[2], "", plain.splitlines()[2]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param("The man sleeps.", "not valid JSON", id="text"),
        pytest.param(
            '{"article": "a"}',
            "no field 'text', only article; specify a different one as FILE#FIELD",
            id="another field",
        ),
    ],
)
def test_a_wrong_json_line_is_refused_after_the_summaries_before_it(
    console: Command, tmp_path: Path, line: str, message: str
) -> None:
    file = tmp_path / "articles.jsonl"
    file.write_text(jsonl(ARTICLES[:1]) + line + "\n", encoding="utf-8")
    refused(console("summarize", f"{file}#text"), f"{file}, line 2: ", message, after_results=True)


def test_stories_are_articles_without_their_highlights(console: Command, tmp_path: Path) -> None:
    for name, article in (("b", ARTICLES[3]), ("a", ARTICLES[0])):
        text = article.replace(". ", ".\n\n") + "\n\n@highlight\n\nThe dog sleeps\n"
        (tmp_path / f"{name}.story").write_text(text)
    done = succeeded(console("summarize", "--stories", tmp_path))
    assert done.out == console("summarize", stdin=as_text([ARTICLES[0], ARTICLES[3]])).out


def test_the_lead_needs_no_model(
    console: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = console("summarize", "--lead", "1", stdin=as_text(ARTICLES))
    assert done.out.splitlines() == [
        "Zyx sees the old dog.",
        "",
        "The man sleeps.",
        "Abc and Def see the old house.",
    ]
    (tmp_path / "articles.jsonl").write_text(jsonl(ARTICLES), encoding="utf-8")
    done = console("summarize", "--lead", "2", "articles.jsonl#text")
    assert done.out == as_text(ARTICLES)


def test_translate_takes_the_same_search_options(console: Command) -> None:
    done = succeeded(
        console(
            "translate", "--no-repeat-ngram", "1", "--min-length", "6", "--json", stdin=LINES[0]
        )
    )
    record = json.loads(done.out)
    assert list(record) == ["line", "source_tokens", "best", "others"]
    assert list(record["best"]) == [
        "text",
        "score",
        "log_prob",
        "tokens",
        "token_log_probs",
        "finished",
    ]
    tokens = record["best"]["tokens"]
    assert len(tokens) == len(set(tokens)) >= 6


def test_evaluate_gives_the_figures_of_summarize_and_score(
    console: Command, tmp_path: Path
) -> None:
    """Articles and summaries of JSON lines; a reference in sentences keeps them apart."""
    path = tmp_path / "test.jsonl"
    records = [
        {"article": article, "summary": ["The dog sleeps.", "A cat sings."]}
        for article in ARTICLES
        if article
    ]
    path.write_text(as_text(map(json.dumps, records)))
    done = succeeded(
        console(
            "evaluate", "news", "--source", path, "--ref", path, "--json", "-o", tmp_path / "out"
        )
    )
    articles = as_text(filter(None, ARTICLES))
    assert (tmp_path / "out").read_text() == console("summarize", "-m", "news", stdin=articles).out
    plain = ["--json", "--no-significance"]
    scored = json.loads(console("score-summaries", tmp_path / "out", "--ref", path, *plain).out)
    assert json.loads(done.out)["scores"] == scored["systems"][0]["scores"]
    assert len(scored["systems"][0]["scores"]) == 4


@pytest.mark.parametrize(
    "line",
    ["evaluate news --source articles --ref summaries", "score-summaries articles --ref summaries"],
)
def test_an_empty_reference_is_refused(console: Command, tmp_path: Path, line: str) -> None:
    places = {name: tmp_path / name for name in ("articles", "summaries")}
    write_lines(places["articles"], LINES)
    write_lines(places["summaries"], ["The dog sleeps.", ""])
    message = f"{places['summaries']}, line 2: the reference is empty, so no summary can be scored against it"
    refused(console(*words_of(line, places)), message)
