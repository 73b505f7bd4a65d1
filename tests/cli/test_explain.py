"""`nmtkit explain`."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.untrained_runs import LINES, TRANSLATION, make_run
from tests.support.command_cases import by_name, words_of
from tests.support.commands import Command, json_lines, succeeded

SENTENCE = "ba ce di"
OWN = ("--engine", "nmtkit")


def near(value: Any) -> Any:
    """The same with numbers that may differ in the last digit: recorded steps read more columns than there are."""
    if isinstance(value, dict):
        return {key: near(item) for key, item in value.items()}
    if isinstance(value, list):
        return [near(item) for item in value]
    return pytest.approx(value, rel=1e-5) if isinstance(value, float) else value


RULES = "--no-repeat-ngram 1 --min-length 5 --length-penalty gnmt"


@pytest.mark.parametrize("options", ["--beam-size 2", RULES])
def test_scores_are_those_of_translate(trained: Path, console: Command, options: str) -> None:
    words = options.split()
    tree = json.loads(succeeded(console("explain", "-m", trained, SENTENCE, "--json", *words)).out)
    translate = ["translate", "-m", trained, *OWN, *words]
    searched = json.loads(console(*translate, "--json", stdin=SENTENCE + "\n").out)
    assert (tree["best"], tree["source_tokens"]) == (
        near(searched["best"]),
        searched["source_tokens"],
    )
    ends = [one["score"] for step in tree["steps"] for one in step if one["fate"] == "ended"]
    assert max(ends) == near(searched["best"]["score"])
    score, log_prob, text = console(*translate, "--scores", stdin=SENTENCE + "\n").out.split("\t")
    shown = console("explain", "-m", trained, SENTENCE, *words)
    best = next(line for line in shown.out.splitlines() if line.startswith(" 1* "))
    mark, _, shown_score, _, shown_log_prob, *words_of_text = best.split()
    assert (mark, words_of_text) == ("1*", text.split())
    assert [float(shown_score), float(shown_log_prob)] == near([float(score), float(log_prob)])


def test_blocked_hypotheses_name_their_rule(trained: Path, console: Command) -> None:
    tree = json.loads(
        succeeded(console("explain", "-m", trained, SENTENCE, "--json", *RULES.split())).out
    )
    blocked = {one["rule"] for step in tree["steps"] for one in step if one["fate"] == "blocked"}
    assert blocked == {"min_length", "no_repeat_ngram"}


SEARCHES = {
    "groups": "--beam-size 4 --search diversity_groups=2 --n-best 4",
    "minimum Bayes risk": "--samples 3 --mbr chrf --n-best 3",
    "samples": "--samples 3 --temperature 2",
    "an ensemble": "-m RUN --beam-size 2 --n-best 2",
}


@pytest.mark.parametrize("options", by_name(SEARCHES))
def test_results_are_those_of_translate_with(trained: Path, console: Command, options: str) -> None:
    words = ["-m", trained, *words_of(options, {"RUN": trained}), "-q"]
    translated = succeeded(console("translate", *words, "--json", *OWN, stdin=SENTENCE + "\n"))
    if "--n-best" in words:  # explain shows all results
        at = words.index("--n-best")
        del words[at : at + 2]
    tree = json.loads(succeeded(console("explain", SENTENCE, *words, "--json")).out)
    searched = json.loads(translated.out)
    assert [tree["best"], *tree["others"]] == near([searched["best"], *searched["others"]])
    shown = console("explain", SENTENCE, *words)
    ranks = [line[:2].strip() for line in shown.out.splitlines() if "log-probability " in line]
    assert ranks == [str(rank) for rank in range(1, len(tree["others"]) + 2)]


def test_json_names_the_number_of_samples(trained: Path, console: Command) -> None:
    tree = json.loads(
        console("explain", "-m", trained, SENTENCE, "--json", "--samples", "2", "-q").out
    )
    assert "samples 2" in tree["settings"]
    assert tree["beam_size"] == 2


def test_samples_of_each_line_are_those_of_translate(tmp_path: Path, console: Command) -> None:
    make_run(tmp_path, "mine", TRANSLATION)
    words, text = ("-m", "mine", "--samples", "2", "--json", "-q"), f"{LINES[0]}\n" * 2
    explained, translated = (
        [
            [one["text"] for one in (record["best"], *record["others"])]
            for record in json_lines(done.out)
        ]
        for done in (
            succeeded(console(command, *words, stdin=text)) for command in ("explain", "translate")
        )
    )
    assert explained == translated
    assert explained[0] != explained[1]


def test_only_some_steps_of_a_long_search_are_shown(trained: Path, console: Command) -> None:
    hint = "steps are not shown: --steps 0 or -o page.html shows all"
    assert (
        hint not in succeeded(console("explain", "-m", trained, SENTENCE, "--beam-size", "2")).out
    )
    long = ["-m", trained, "ba ce " * 10, "--beam-size", "2", "--min-length", "20"]
    shown = succeeded(console("explain", *long)).out
    assert hint in shown
    whole = succeeded(console("explain", *long, "--steps", "0")).out
    assert "not shown" not in whole
    assert len(shown.splitlines()) <= 24 < len(whole.splitlines()), "a screen has 24 lines"
    assert "…" in console("explain", *long, "--steps", "2").out


def test_a_page_of_several_lines(trained: Path, console: Command) -> None:
    text = f"{SENTENCE}\nfo gu\n"
    done = console("explain", "-m", trained, "-o", "search.html", stdin=text)
    assert (done.code, done.out) == (0, ""), done
    assert "wrote search.html" in done.err
    page = Path("search.html").read_text(encoding="utf-8")
    assert page.count("<section>") == 2
    assert "Beam search: 2 sentences" in page
    piped = console("explain", "-m", trained, "--json", stdin=text)
    assert [json.loads(line)["line"] for line in piped.out.splitlines()] == [1, 2]


@pytest.mark.parametrize("output", ["--json", "-o search.html"])
def test_all_steps_may_be_asked_for_outside_the_terminal(
    tmp_path: Path, console: Command, output: str
) -> None:
    make_run(tmp_path, "mine", TRANSLATION)
    succeeded(console("explain", "-m", "mine", LINES[0], *output.split(), "--steps", "0"))
