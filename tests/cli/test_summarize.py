"""`nmtkit summarize`, on runs whose weights are random: what is read, what is written, and what is said."""

import json
import os
from pathlib import Path

import pytest
from commands import Command, refused, succeeded
from untrained_runs import LINES, SUMMARIZATION, TRANSLATION, make_run

from nmtkit import Translator
from nmtkit.translation.long_texts import Summarizer

ARTICLES = [
    "Zyx sees the old dog. The dog sees Abc.",
    "",
    "The man sleeps.",
    "Abc and Def see the old house. Ghi sleeps.",
]


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


def joined(lines: list[str]) -> str:
    return "".join(line + "\n" for line in lines)


def jsonl(articles: list[str]) -> str:
    return joined([json.dumps({"id": number, "text": article}) for number, article in enumerate(articles)])


def test_one_line_for_each_article_in_order(console: Command) -> None:
    done = succeeded(console("summarize", stdin=joined(ARTICLES)))
    found = done.out.split("\n")
    assert found.pop() == ""
    assert [bool(line) for line in found] == [True, False, True, True]
    assert all("<pad>" not in line and "▁" not in line for line in found)
    alone = [console("summarize", stdin=article + "\n").out for article in ARTICLES]
    assert "".join(alone) == done.out
    assert Translator.load("runs/news", device="cpu").translate(ARTICLES) == found


def test_each_task_has_its_command(console: Command) -> None:
    done = console("summarize", stdin="")
    assert "runs/news (the newest finished run for summarization under runs/)" in done.err
    done = console("translate", stdin="")
    assert "runs/text (the newest finished run for translation under runs/)" in done.err
    refused(
        console("summarize", "-m", "text", stdin=""),
        "runs/text (as asked) was trained for translation: use `nmtkit translate`",
    )
    refused(
        console("translate", "-m", "runs/news", stdin=""),
        "runs/news (as asked) was trained for summarization: use `nmtkit summarize`",
    )


def test_without_a_run_it_says_what_to_do(console: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path, "text", TRANSLATION)
    monkeypatch.chdir(tmp_path)
    refused(console("summarize", stdin="a"), "no finished run for summarization under runs/: name one with -m RUN")


def test_articles_are_cut_as_in_training_and_that_is_said(console: Command) -> None:
    done = console("summarize", stdin=joined(ARTICLES))
    assert "2 of 4 articles were longer than 8 tokens and were cut; --window reads them whole" in done.err
    short = console("summarize", "--max-source-tokens", "3", "--json", stdin=joined(ARTICLES))
    records = [json.loads(line) for line in short.out.splitlines()]
    assert records[0]["source_tokens"] == ["▁Zyx", "▁sees", "▁the"]
    assert [record.get("source_tokens_left_out", 0) for record in records] == [8, 0, 1, 8]
    assert "3 of 4 articles were longer than 3 tokens" in short.err
    whole = console("summarize", "--max-source-tokens", "100", stdin=joined(ARTICLES))
    assert "were cut" not in whole.err


def test_windows(console: Command) -> None:
    done = succeeded(console("summarize", "--window", "6", stdin=joined(ARTICLES)))
    assert "were cut" not in done.err
    expected = Summarizer(Translator.load("runs/news", device="cpu"), 6).summarize(ARTICLES)
    assert done.out == joined(expected)
    parts = ["Zyx sees the old dog.", "The dog sees Abc."]
    each = console("summarize", "--max-source-tokens", "100", stdin=joined(parts)).out.split("\n")[:2]
    assert expected[0] == " ".join(each)
    records = [
        json.loads(line) for line in console("summarize", "--window", "6", "--json", stdin=ARTICLES[0]).out.splitlines()
    ]
    assert records[0]["text"] == expected[0]
    assert [window["best"]["text"] for window in records[0]["windows"]] == each


def test_json_says_what_was_copied_and_from_where(console: Command) -> None:
    done = succeeded(console("summarize", "--json", "--n-best", "2", stdin=joined(ARTICLES)))
    records = [json.loads(line) for line in done.out.splitlines()]
    assert [record["line"] for record in records] == [1, 2, 3, 4]
    plain = console("summarize", stdin=joined(ARTICLES)).out
    assert joined([record["best"]["text"] for record in records]) == plain
    spans = 0
    for record in [records[0], *records[2:]]:
        assert len(record["others"]) == 1
        for one in (record["best"], *record["others"]):
            tokens = one["tokens"]
            assert len(one["copied"]) == len(tokens)
            assert len(one["p_gen"]) == len(one["token_log_probs"]) == len(tokens) + one["finished"]
            assert all(0 < p < 1 for p in one["p_gen"])
            for token, place in zip(tokens, one["copied"], strict=True):
                assert place is None or record["source_tokens"][place] == token
            words = ARTICLES[record["line"] - 1].split()
            for span in one["copied_spans"]:
                spans += 1
                first, end = span["source_tokens"]
                assert one["tokens"][slice(*span["tokens"])] == record["source_tokens"][first:end]
                assert span["text"] in " ".join(words[slice(*span["source_words"])])
    assert spans > 3
    assert records[1]["best"]["text"] == ""


def test_rescore_gives_what_summarize_printed(console: Command, tmp_path: Path) -> None:
    (tmp_path / "in").write_text(joined(ARTICLES))
    printed = console("summarize", "--json", stdin=joined(ARTICLES)).out
    (tmp_path / "out.jsonl").write_text(printed)
    done = succeeded(console("rescore", "-m", "news", "--source", tmp_path / "in", "--target", tmp_path / "out.jsonl"))
    for line, record in zip(done.out.splitlines(), printed.splitlines(), strict=True):
        best = json.loads(record)["best"]
        assert [float(one) for one in line.split("\t")] == pytest.approx([best["score"], best["log_prob"]], abs=1e-4)
    assert "2 of 4 sources were longer than 8 tokens and were cut" in done.err


def test_rescore_refuses_summaries_of_windows(console: Command, tmp_path: Path) -> None:
    (tmp_path / "in").write_text(joined(ARTICLES))
    (tmp_path / "out.jsonl").write_text(console("summarize", "--window", "6", "--json", stdin=joined(ARTICLES)).out)
    refused(
        console("rescore", "-m", "news", "--source", tmp_path / "in", "--target", tmp_path / "out.jsonl"),
        "out.jsonl, line 1: a summary of several windows",
        "leave --window out",
    )


def test_a_model_that_does_not_copy_says_nothing_of_copying(console: Command) -> None:
    (line,) = console("summarize", "-m", "plain", "--json", stdin=ARTICLES[0]).out.splitlines()
    assert "p_gen" not in json.loads(line)["best"]
    assert json.loads(line)["source_tokens"][0] == "▁<unk>"


def test_n_best_widens_the_beam(console: Command) -> None:
    done = console("summarize", "--n-best", "4", stdin=joined(ARTICLES[:1]))
    assert "beam size 4 instead of 2" in done.err
    rows = [line.split("\t") for line in done.out.splitlines()]
    assert [row[0] for row in rows] == ["1"] * 4
    assert [float(row[1]) for row in rows] == sorted((float(row[1]) for row in rows), reverse=True)


def test_n_best_as_moses_writes_it(console: Command) -> None:
    given = joined([ARTICLES[0], "", ARTICLES[2]])
    rows = [line.split("\t") for line in console("summarize", "--n-best", "3", stdin=given).out.splitlines()]
    done = succeeded(console("summarize", "--n-best", "3", "--format", "moses", stdin=given))
    found = [line.split(" ||| ") for line in done.out.splitlines()]
    assert [[int(number) + 1, text, float(score)] for number, text, _, score in found] == [
        [int(number), text, float(score)] for number, score, _, text in rows
    ]
    assert {number for number, *_ in found} == {"0", "1", "2"}
    for (_, text, features, _), (_, _, log_prob, _) in zip(found, rows, strict=True):
        named = features.split()
        assert (named[0], named[2]) == ("LogProb=", "Length=")
        assert float(named[1]) == float(log_prob)
        assert int(named[3]) >= len(text.split())
    best = console("summarize", "--format", "moses", stdin=given).out.splitlines()
    assert [line[:6] for line in best] == ["0 ||| ", "1 ||| ", "2 ||| "]


def test_the_options_of_the_search_arrive(console: Command) -> None:
    def lengths(*options: str) -> list[int]:
        done = succeeded(console("summarize", "--json", *options, stdin=joined([ARTICLES[0], ARTICLES[2]])))
        return [len(json.loads(line)["best"]["tokens"]) for line in done.out.splitlines()]

    assert max(lengths("--min-length", "0", "--max-length", "2")) <= 2
    assert min(lengths("--min-length", "9")) >= 9
    first, second = lengths("--min-length", "0", "--search", "min_length_ratio=1.25", "--max-length", "30")
    assert (first >= 10, second >= 5) == (True, True)  # of 8 tokens that are read, and 4
    assert max(lengths("--search", "min_length_ratio=9")) <= 12  # never more than the limit
    done = console("summarize", "--no-repeat-ngram", "1", "--min-length", "8", stdin=joined(ARTICLES))
    for line in done.out.splitlines():
        words = line.replace(".", " .").replace(",", " ,").split()
        assert len(words) == len(set(words))


def test_the_summary_coverage_penalty_is_in_the_score(console: Command) -> None:
    options = ["summarize", "--json", "--length-penalty", "none", "--min-length", "8"]
    done = console(*options, "--coverage-penalty", "2", "--search", "coverage_kind=summary", stdin=ARTICLES[0])
    best = json.loads(done.out)["best"]
    settings = {"length_penalty": "none", "min_length": 8, "coverage_penalty": 2.0, "coverage_kind": "summary"}
    translator = Translator.load("runs/news", device="cpu", search_settings=settings)
    ((found,),) = translator.search([ARTICLES[0]], need_attention=True)
    assert found.tokens == best["tokens"]
    assert found.attention is not None
    cost = 2 * (found.attention.sum(0)[:-1].clip(min=1) - 1).sum()
    assert cost > 0.01
    assert best["score"] == pytest.approx(best["log_prob"] - cost, abs=1e-4)
    (again,) = translator.rescore([ARTICLES[0]], [found])
    assert again.score == pytest.approx(found.score, abs=1e-4)


def test_jsonl_articles(console: Command) -> None:
    plain = console("summarize", stdin=joined(ARTICLES))
    done = console("summarize", "--article-field", "text", stdin=jsonl(ARTICLES))
    assert (done.code, done.out) == (0, plain.out)
    parts = json.dumps({"text": ["The man", "sleeps."]}) + "\n\n" + json.dumps({"text": "The man\nsleeps."})
    done = console("summarize", "--article-field", "text", stdin=parts)
    assert done.out.splitlines() == [plain.out.splitlines()[2], "", plain.out.splitlines()[2]]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("The man sleeps.", "not JSON"),
        ('{"article": "a"}', "no field 'text'; it has article: name another with --article-field"),
        ("[1]", "expected a JSON object, found a list"),
        ('{"text": 3}', "field 'text' is neither a string nor a list of strings"),
    ],
    ids=["text", "field", "list", "number"],
)
def test_wrong_jsonl_is_refused_with_its_line(console: Command, line: str, said: str) -> None:
    refused(
        console("summarize", "--article-field", "text", stdin=jsonl(ARTICLES[:1]) + line + "\n"),
        "standard input, line 2: ",
        said,
        after_results=True,
    )


def test_stories(console: Command, tmp_path: Path) -> None:
    for name, article in (("b", ARTICLES[3]), ("a", ARTICLES[0])):
        text = article.replace(". ", ".\n\n") + "\n\n@highlight\n\nThe dog sleeps\n"
        (tmp_path / f"{name}.story").write_text(text)
    done = succeeded(console("summarize", "--stories", tmp_path))
    assert done.out == console("summarize", stdin=joined([ARTICLES[0], ARTICLES[3]])).out
    refused(console("summarize", "--stories", tmp_path / "none"), "no such folder of .story files")
    (tmp_path / "empty").mkdir()
    refused(console("summarize", "--stories", tmp_path / "empty"), "no .story files in this folder")
    refused(console("summarize", "--stories", tmp_path, "--article-field", "text"), "leave one of them out")


def test_the_lead_needs_no_model(console: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = console("summarize", "--lead", "1", stdin=joined(ARTICLES))
    assert done.out.splitlines() == ["Zyx sees the old dog.", "", "The man sleeps.", "Abc and Def see the old house."]
    done = console("summarize", "--lead", "2", "--article-field", "text", stdin=jsonl(ARTICLES))
    assert done.out == joined(ARTICLES)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--lead", "3", "-m", "news"], "--lead copies sentences without a model"),
        (["--lead", "3", "--min-length", "4"], "--lead copies sentences without a model"),
        (["--window", "9", "--max-source-tokens", "4"], "--window reads whole articles"),
        (["--window", "9", "--n-best", "2"], "--window reads whole articles"),
        (["--format", "moses", "--json"], "--format moses writes n-best lists: leave --json out"),
        (["--format", "moses", "--window", "9"], "leave --window out"),
        (["--min-length", "30"], "min_length 30 leaves no room below max_length 12"),
        (["--beam-size", "2", "--n-best", "3"], "n_best 3 is more than beam_size 2"),
        (["--search", "coverage_kind=wu"], "gnmt"),
        (["-m", "nowhere"], "there is no such folder"),
    ],
    ids=[
        "lead-model",
        "lead-search",
        "window-cut",
        "window-n-best",
        "json",
        "window",
        "min-length",
        "n-best",
        "coverage",
        "no-run",
    ],
)
def test_what_does_not_go_together_is_refused(console: Command, options: list[str], said: str) -> None:
    refused(console("summarize", *options, stdin=joined(ARTICLES)), said)


def test_a_length_limit_that_cuts_summaries_is_told(console: Command) -> None:
    done = console("summarize", "--min-length", "4", "--max-length", "5", stdin=joined(ARTICLES))
    assert "of the summaries reached the length limit before their end; raise it with --max-length" in done.err


def test_translate_has_the_same_search(console: Command, tmp_path: Path) -> None:
    given = joined(LINES)
    plain = succeeded(console("translate", stdin=given))
    records = [
        json.loads(line) for line in console("translate", "--json", "--n-best", "2", stdin=given).out.splitlines()
    ]
    assert [record["best"]["text"] for record in records] == plain.out.splitlines()
    assert list(records[0]) == ["line", "source_tokens", "best", "others"]
    assert list(records[0]["best"]) == ["text", "score", "log_prob", "tokens", "token_log_probs", "finished"]
    scored = console("translate", "--scores", stdin=given).out.splitlines()
    (tmp_path / "in").write_text(given)
    (tmp_path / "out.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    again = console("rescore", "--model", "text", "--source", tmp_path / "in", "--target", tmp_path / "out.jsonl")
    for line, other in zip(scored, again.out.splitlines(), strict=True):
        assert [float(one) for one in line.split("\t")[:2]] == pytest.approx(
            [float(one) for one in other.split("\t")], abs=1e-4
        )
    ruled = console("translate", "--no-repeat-ngram", "1", "--min-length", "6", "--json", stdin=given)
    for line in ruled.out.splitlines():
        tokens = json.loads(line)["best"]["tokens"]
        assert len(tokens) == len(set(tokens)) >= 6
    replaced = console("translate", "--replace-unknown", "--json", stdin=given)
    assert all("replaced" in json.loads(line)["best"] for line in replaced.out.splitlines())


def test_evaluate_gives_the_figures_of_summarize_and_score(console: Command, tmp_path: Path) -> None:
    """Articles and summaries of JSON lines; a reference in sentences keeps them apart."""
    path = tmp_path / "test.jsonl"
    records = [{"article": article, "summary": ["The dog sleeps.", "A cat sings."]} for article in ARTICLES if article]
    path.write_text(joined(list(map(json.dumps, records))))
    done = succeeded(console("evaluate", "news", "--source", path, "--ref", path, "--json", "-o", tmp_path / "out"))
    articles = joined([article for article in ARTICLES if article])
    assert (tmp_path / "out").read_text() == console("summarize", "-m", "news", stdin=articles).out
    assert console("summarize", "-m", "news", "--article-field", "article", path).out == (tmp_path / "out").read_text()
    plain = ["--json", "--no-significance"]
    scored = json.loads(console("score-summaries", tmp_path / "out", "--ref", path, *plain).out)
    assert json.loads(done.out)["scores"] == scored["systems"][0]["scores"]
    assert len(scored["systems"][0]["scores"]) == 4
