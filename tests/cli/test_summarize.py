"""`nmtkit summarize`, on runs whose weights are random: what is read, what is written, and what is said."""

import json
import os
import re
from pathlib import Path

import pytest
from commands import Command, Finished, as_text, json_lines, refused, succeeded
from untrained_runs import ARTICLES, LINES, SUMMARIZATION, TRANSLATION, make_run

from nmtkit import Translator
from nmtkit.inference.long_texts import Summarizer


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of each task, that of the translation the newer one."""
    folder = tmp_path_factory.mktemp("summarize")
    make_run(folder, "news", SUMMARIZATION)
    make_run(folder, "plain", SUMMARIZATION.replace("hidden_size: 8,", "hidden_size: 8, copying: false,"))
    os.utime(folder / "runs/plain/result.json", (1, 1))
    make_run(folder, "text", TRANSLATION)
    return folder


@pytest.fixture
def console(place: Path, console: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.chdir(place)
    return console


def jsonl(articles: list[str]) -> str:
    return as_text(json.dumps({"id": number, "text": article}) for number, article in enumerate(articles))


def test_one_line_for_each_article_in_order(console: Command) -> None:
    done = succeeded(console("summarize", stdin=as_text(ARTICLES)))
    summaries = done.out.split("\n")
    assert summaries.pop() == ""
    assert [bool(line) for line in summaries] == [True, False, True, True]
    assert all("<pad>" not in line and "▁" not in line for line in summaries)
    assert "".join(console("summarize", stdin=article + "\n").out for article in ARTICLES) == done.out
    assert Translator.load("runs/news", device="cpu").translate(ARTICLES) == summaries


def test_each_task_has_its_command(console: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for command, name, task, other in (
        ("summarize", "news", "summarization", "translate"),
        ("translate", "text", "translation", "summarize"),
    ):
        assert f"runs/{name} (the newest finished run for {task} under runs/)" in console(command, stdin="").err
        trained_for = f"runs/{name} (as asked) was trained for {task}: use `nmtkit {command}`"
        refused(console(other, "-m", f"runs/{name}", stdin=""), trained_for)
    make_run(tmp_path, "text", TRANSLATION)
    monkeypatch.chdir(tmp_path)
    refused(console("summarize", stdin="a"), "no finished run for summarization under runs/: name one with -m RUN")


def test_articles_are_cut_as_in_training_and_that_is_said(console: Command) -> None:
    done = console("summarize", stdin=as_text(ARTICLES))
    assert "2 of 4 articles were longer than 8 tokens and were cut; --window reads them whole" in done.err
    short = console("summarize", "--max-source-tokens", "3", "--json", stdin=as_text(ARTICLES))
    records = json_lines(short.out)
    assert records[0]["source_tokens"] == ["▁Zyx", "▁sees", "▁the"]
    assert [record.get("source_tokens_left_out", 0) for record in records] == [8, 0, 1, 8]
    assert "3 of 4 articles were longer than 3 tokens" in short.err
    whole = console("summarize", "--max-source-tokens", "100", stdin=as_text(ARTICLES))
    assert "were cut" not in whole.err


def test_windows(console: Command, tmp_path: Path) -> None:
    done = succeeded(console("summarize", "--window", "6", stdin=as_text(ARTICLES)))
    assert "were cut" not in done.err
    expected = Summarizer(Translator.load("runs/news", device="cpu"), 6).summarize(ARTICLES)
    assert done.out == as_text(expected)
    printed = console("summarize", "--window", "6", "--json", stdin=as_text(ARTICLES)).out
    record = json_lines(printed)[0]
    parts = [window["best"]["text"] for window in record["windows"]]
    assert record["text"] == " ".join(parts) == expected[0]
    assert len(parts) == 2
    refused(rescored(console, tmp_path, printed), "out.jsonl, line 1: not what", "prints without --window")


def rescored(console: Command, folder: Path, printed: str) -> Finished:
    """What `rescore` says of summaries that were printed with `--json`."""
    (folder / "in").write_text(as_text(ARTICLES))
    (folder / "out.jsonl").write_text(printed)
    return console("rescore", "-m", "news", "--source", folder / "in", "--target", folder / "out.jsonl")


def test_json_says_what_was_copied_and_from_where(console: Command) -> None:
    records = json_lines(succeeded(console("summarize", "--json", "--n-best", "2", stdin=as_text(ARTICLES))).out)
    assert [record["line"] for record in records] == [1, 2, 3, 4]
    plain = console("summarize", stdin=as_text(ARTICLES)).out
    assert as_text(record["best"]["text"] for record in records) == plain
    spans = 0
    for record in [records[0], *records[2:]]:
        words = ARTICLES[record["line"] - 1].split()
        for one in (record["best"], *record["others"]):
            assert len(one["p_gen"]) == len(one["copied"]) + one["finished"]
            for span in one["copied_spans"]:
                spans += 1
                assert one["tokens"][slice(*span["tokens"])] == record["source_tokens"][slice(*span["source_tokens"])]
                assert span["text"] in " ".join(words[slice(*span["source_words"])])
    assert spans > 3
    assert records[1]["best"]["text"] == ""
    (plain_model,) = json_lines(console("summarize", "-m", "plain", "--json", stdin=ARTICLES[0]).out)
    assert "p_gen" not in plain_model["best"]
    assert plain_model["source_tokens"][0] == "▁<unk>"


def test_rescore_gives_what_summarize_printed(console: Command, tmp_path: Path) -> None:
    printed = console("summarize", "--json", stdin=as_text(ARTICLES)).out
    done = succeeded(rescored(console, tmp_path, printed))
    for line, record in zip(done.out.splitlines(), json_lines(printed), strict=True):
        expected = [record["best"]["score"], record["best"]["log_prob"]]
        assert [float(one) for one in line.split("\t")] == pytest.approx(expected, abs=1e-4)
    assert "2 of 4 sources were longer than 8 tokens and were cut" in done.err


def test_n_best(console: Command) -> None:
    given = as_text([ARTICLES[0], "", ARTICLES[2]])
    rows = [line.split("\t") for line in console("summarize", "--n-best", "3", stdin=given).out.splitlines()]
    done = succeeded(console("summarize", "--n-best", "3", "--format", "moses", stdin=given))
    moses = [line.split(" ||| ") for line in done.out.splitlines()]
    for (line, text, features, score), row in zip(moses, rows, strict=True):
        assert [int(line) + 1, float(score), text] == [int(row[0]), float(row[1]), row[3]]
        assert float(features.split()[1]) == float(row[2])
    assert {number for number, *_ in moses} == {"0", "1", "2"}
    best = console("summarize", "--format", "moses", stdin=given).out.splitlines()
    assert [line[:6] for line in best] == ["0 ||| ", "1 ||| ", "2 ||| "]


def test_the_options_of_the_search_arrive(console: Command) -> None:
    def lengths(*options: str) -> list[int]:
        done = succeeded(console("summarize", "--json", *options, stdin=as_text([ARTICLES[0], ARTICLES[2]])))
        return [len(record["best"]["tokens"]) for record in json_lines(done.out)]

    assert max(lengths("--min-length", "0", "--max-length", "2")) <= 2
    assert min(lengths("--min-length", "9")) >= 9
    first, second = lengths("--min-length", "0", "--search", "min_length_ratio=1.25", "--max-length", "30")
    assert (first >= 10, second >= 5) == (True, True)  # of 8 tokens that are read, and 4
    assert max(lengths("--search", "min_length_ratio=9")) <= 12  # never more than the limit
    done = console("summarize", "--no-repeat-ngram", "1", "--min-length", "8", stdin=as_text(ARTICLES))
    for line in done.out.splitlines():
        words = re.findall(r"\w+|[.,]", line)
        assert len(words) == len(set(words))
    short = ["--min-length", "0", "--search", "max_length_ratio=0.1", "--search", "max_length_offset=1"]
    done = console("summarize", *short, stdin=as_text(ARTICLES))  # which --max-length does not raise
    assert "of the summaries reached the length limit before their end; raise it with --max-length or" in done.err
    assert "--search max_length_ratio=R" in done.err
    penalties = ["--length-penalty", "none", "--coverage-penalty", "2", "--search", "coverage_kind=summary"]
    best = json.loads(console("summarize", "--json", "--min-length", "8", *penalties, stdin=ARTICLES[0]).out)["best"]
    assert best["score"] < best["log_prob"] - 0.01


def test_jsonl_articles(console: Command) -> None:
    plain = console("summarize", stdin=as_text(ARTICLES)).out
    assert succeeded(console("summarize", "--article-field", "text", stdin=jsonl(ARTICLES))).out == plain
    parts = json.dumps({"text": ["The man", "sleeps."]}) + "\n\n" + json.dumps({"text": "The man\nsleeps."})
    done = console("summarize", "--article-field", "text", stdin=parts)
    assert done.out.splitlines() == [plain.splitlines()[2], "", plain.splitlines()[2]]
    for line, message in (
        ("The man sleeps.", "not JSON"),
        ('{"article": "a"}', "no field 'text'; it has article: name another with --article-field"),
    ):
        done = console("summarize", "--article-field", "text", stdin=jsonl(ARTICLES[:1]) + line + "\n")
        refused(done, "standard input, line 2: ", message, after_results=True)


def test_stories(console: Command, tmp_path: Path) -> None:
    for name, article in (("b", ARTICLES[3]), ("a", ARTICLES[0])):
        text = article.replace(". ", ".\n\n") + "\n\n@highlight\n\nThe dog sleeps\n"
        (tmp_path / f"{name}.story").write_text(text)
    done = succeeded(console("summarize", "--stories", tmp_path))
    assert done.out == console("summarize", stdin=as_text([ARTICLES[0], ARTICLES[3]])).out


def test_the_lead_needs_no_model(console: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words in ("--checkpoint best", "--lm runs/lm", "--precision int8", "--device cuda", "--engine graph"):
        refused(console("summarize", "--lead", "1", *words.split()), "--lead copies sentences without a model")
    done = console("summarize", "--lead", "1", stdin=as_text(ARTICLES))
    assert done.out.splitlines() == ["Zyx sees the old dog.", "", "The man sleeps.", "Abc and Def see the old house."]
    done = console("summarize", "--lead", "2", "--article-field", "text", stdin=jsonl(ARTICLES))
    assert done.out == as_text(ARTICLES)


def test_translate_has_the_same_search(console: Command) -> None:
    done = succeeded(console("translate", "--no-repeat-ngram", "1", "--min-length", "6", "--json", stdin=LINES[0]))
    record = json.loads(done.out)
    assert list(record) == ["line", "source_tokens", "best", "others"]
    assert list(record["best"]) == ["text", "score", "log_prob", "tokens", "token_log_probs", "finished"]
    tokens = record["best"]["tokens"]
    assert len(tokens) == len(set(tokens)) >= 6


def test_evaluate_gives_the_figures_of_summarize_and_score(console: Command, tmp_path: Path) -> None:
    """Articles and summaries of JSON lines; a reference in sentences keeps them apart."""
    path = tmp_path / "test.jsonl"
    records = [{"article": article, "summary": ["The dog sleeps.", "A cat sings."]} for article in ARTICLES if article]
    path.write_text(as_text(map(json.dumps, records)))
    done = succeeded(console("evaluate", "news", "--source", path, "--ref", path, "--json", "-o", tmp_path / "out"))
    articles = as_text(filter(None, ARTICLES))
    assert (tmp_path / "out").read_text() == console("summarize", "-m", "news", stdin=articles).out
    plain = ["--json", "--no-significance"]
    scored = json.loads(console("score-summaries", tmp_path / "out", "--ref", path, *plain).out)
    assert json.loads(done.out)["scores"] == scored["systems"][0]["scores"]
    assert len(scored["systems"][0]["scores"]) == 4


def test_evaluate_refuses_an_empty_reference_as_score_summaries_does(console: Command, tmp_path: Path) -> None:
    source, ref = tmp_path / "articles", tmp_path / "summaries"
    source.write_text(as_text(LINES))
    ref.write_text("The dog sleeps.\n\n")
    told = f"{ref}, line 2: the reference is empty, so no summary can be scored against it"
    refused(console("evaluate", "news", "--source", source, "--ref", ref), told)
    refused(console("score-summaries", source, "--ref", ref), told)
