"""`nmtkit explain`."""

import json
from pathlib import Path

from commands import Command, json_lines, refused, succeeded
from untrained_runs import LINES, TRANSLATION, make_run

SENTENCE = "ba ce di"
EAGER = ("--search", "engine=eager")
"""Recorded steps read more columns than there are, which may round the last digit otherwise."""


def test_the_numbers_are_those_of_translate(trained: Path, console: Command) -> None:
    """With the same options for the same sentence."""
    for options in (["--beam-size", "2"], ["--no-repeat-ngram", "1", "--min-length", "5", "--length-penalty", "gnmt"]):
        tree = json.loads(succeeded(console("explain", "-m", trained, SENTENCE, "--json", *options)).out)
        translate = ["translate", "-m", trained, *EAGER, *options]
        searched = json.loads(console(*translate, "--json", stdin=SENTENCE + "\n").out)
        assert (tree["best"], tree["source_tokens"]) == (searched["best"], searched["source_tokens"])
        ends = [one["score"] for step in tree["steps"] for one in step if one["fate"] == "ended"]
        assert max(ends) == searched["best"]["score"]
        scores = console(*translate, "--scores", stdin=SENTENCE + "\n").out.split("\t")
        shown = console("explain", "-m", trained, SENTENCE, *options)
        best = next(line for line in shown.out.splitlines() if line.startswith(" 1* "))
        assert best.split() == ["1*", "score", scores[0], "log-probability", *scores[1:2], *scores[2].split()]
    blocked = {one["rule"] for step in tree["steps"] for one in step if one["fate"] == "blocked"}
    assert blocked == {"min_length", "no_repeat_ngram"}


def test_results_are_those_of_translate_however_many_are_searched_for(trained: Path, console: Command) -> None:
    """Of groups, by minimum Bayes risk, drawn, and of an ensemble."""
    for options in (
        ["--beam-size", "4", "--search", "diversity_groups=2", "--search", "diversity_strength=0.1", "--n-best", "4"],
        ["--beam-size", "3", "--mbr", "chrf", "--n-best", "3"],
        ["--samples", "3", "--temperature", "2"],
        ["-m", trained, "--beam-size", "2", "--n-best", "2"],
    ):
        words = ("-m", trained, *options, "--json", "-q")
        translated = console("translate", *words, *EAGER, stdin=SENTENCE + "\n")
        without = [word for at, word in enumerate(words) if "--n-best" not in words[max(0, at - 1) : at + 1]]
        explained = console("explain", SENTENCE, *without)
        assert explained.code == translated.code == 0, explained
        tree, searched = json.loads(explained.out), json.loads(translated.out)
        assert [tree["best"], *tree["others"]] == [searched["best"], *searched["others"]], options
        shown = console("explain", SENTENCE, *[word for word in without if word != "--json"])
        ranks = [line[:2].strip() for line in shown.out.splitlines() if "log-probability " in line]
        assert ranks == [str(rank) for rank in range(1, len(tree["others"]) + 2)]
    tree = json.loads(console("explain", "-m", trained, SENTENCE, "--json", "--samples", "2", "-q").out)
    assert "samples 2" in tree["settings"]
    assert tree["beam_size"] == 2


def test_samples_of_each_line_are_those_of_translate(tmp_path: Path, console: Command) -> None:
    make_run(tmp_path, "mine", TRANSLATION)
    words, text = ("-m", "mine", "--samples", "2", "--json", "-q"), f"{LINES[0]}\n" * 2
    explained, translated = (
        [[one["text"] for one in (record["best"], *record["others"])] for record in json_lines(done.out)]
        for done in (succeeded(console(command, *words, stdin=text)) for command in ("explain", "translate"))
    )
    assert explained == translated
    assert explained[0] != explained[1]


def test_a_search_fits_a_screen(trained: Path, console: Command) -> None:
    short = ["-m", trained, SENTENCE, "--beam-size", "2"]
    long = ["-m", trained, "ba ce " * 10, "--beam-size", "2", "--min-length", "20"]
    for words, is_cut in ((short, False), (long, True)):
        done = succeeded(console("explain", *words))
        lines = done.out.splitlines()
        assert len(lines) <= 23 + is_cut
        assert max(map(len, lines)) <= 80
        assert ("steps are not shown: --steps 0 or -o page.html shows all" in done.out) == is_cut
    done = console("explain", *long, "--steps", "0")
    assert "not shown" not in done.out
    assert len(done.out.splitlines()) > 24
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


def test_steps_are_of_the_terminal(tmp_path: Path, console: Command) -> None:
    make_run(tmp_path, "mine", TRANSLATION)
    for more in (["--json"], ["-o", "search.html"]):
        words = ["explain", "-m", "mine", LINES[0], *more, "--steps"]
        refused(console(*words, "2"), "--steps is for the terminal")
        assert not Path("search.html").exists()
        succeeded(console(*words, "0"))
