"""What a likely mistake on the command line is answered with: what was probably meant."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import Command, as_text, lines_in, refused

from nmtkit.experiment.stages import more_time_advice
from nmtkit.runs.folder import RunFolder
from nmtkit.training.events import Stopped


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("train a.en a.de --minutes 3", "train --source a.en --target a.de --minutes 3"),
        ("preprocess a.en a.de", "train --source a.en --target a.de"),
        ("align -m x a.en a.de", "align -m x --source a.en --target a.de"),
        ("rescore a.en a.de", "rescore --source a.en --target a.de"),
        ("evaluate a.en a.de", "evaluate --source a.en --ref a.de"),
        ("evaluate runs/x 'a b.en' a.de", "evaluate runs/x --source 'a b.en' --ref a.de"),
        ("score new.de a.de -m bleu", "score new.de --ref a.de -m bleu"),
        ("score one.de two.de a.de", "score one.de two.de --ref a.de"),
        ("score-summaries new.txt gold.txt", "score-summaries new.txt --ref gold.txt"),
        ("score-alignments new.txt gold.txt", "score-alignments new.txt --ref gold.txt"),
    ],
)
def test_two_files_without_their_options(given: str, meant: str, console: Command) -> None:
    refused(console(*shlex.split(given)), f"did you mean `nmtkit {meant}`?")


def test_no_meaning_is_made_up(console: Command) -> None:
    given = ["train demo other.yaml", "train a.en a.de b.de", "train a.en", "score a.de", "evaluate runs/x a.en"]
    for words in (*given, "tokenize -x"):
        assert "did you mean `nmtkit" not in refused(console(*words.split())).err


@pytest.mark.parametrize("command", ["translate", "summarize", "tokenize", "detokenize"])
def test_a_text_in_place_of_a_file(command: str, console: Command) -> None:
    """Also one that is longer than any file's name."""
    for text in ("A dog runs.", "dog", "A dog runs. " * 50):
        remedy = "there is no such file; text is read from standard input: echo "
        assert len(refused(console(command, text), remedy, f"| nmtkit {command}\n").err) < 400
    assert "echo" not in console(command, "input.txt").err


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("demoo", "demo, demo-news-attention and demo-news-pointer-generator"),
        ("preset-smal.yaml", "preset-small, "),
        ("mine.yaml", ""),
        ("x" * 300, ""),
    ],
)
def test_an_unknown_recipe_is_answered_with_the_three_nearest(given: str, near: str, console: Command) -> None:
    done = refused(
        console("train", given),
        f"there is no such file, and nmtkit has no recipe of that name; the nearest are {near}",
        "`nmtkit recipe ls` lists all",
    )
    assert len(done.err) < 400


def test_fewer_results_than_asked_for_are_told(trained: Path, corpus: Path, console: Command) -> None:
    text = as_text([*lines_in(corpus / "test.src")[:6], ""])
    groups = ["translate", "-m", trained, "--beam-size", "6", "--search", "diversity_groups=3", "--n-best", "6"]
    done = console(*groups, stdin=text)
    counts = [sum(one.startswith(f"{number}\t") for one in done.out.splitlines()) for number in range(1, 7)]
    fewer = sum(count < 6 for count in counts)
    assert fewer, "groups have found the same"
    assert f"{fewer} of 7 lines have fewer than 6 translations: equal texts are one" in done.err
    assert "fewer than" not in console("translate", "-m", trained, "--n-best", "6", stdin=text).err


def advice(folder: Path, facts: Mapping[str, object], minutes: float = 2.0) -> str | None:
    """What is advised after a training of a text that the clock has ended, of 100 updates that were planned."""
    training = SimpleNamespace(max_updates=100, max_minutes=minutes, best_metric="bleu", schedule=None)
    recipe = SimpleNamespace(training=training, stages=[])
    stage = SimpleNamespace(recipe=recipe, checkpoints=SimpleNamespace(read_metadata=lambda: facts), name="")
    run = SimpleNamespace(stages=lambda: [stage], recipe=recipe, folder=RunFolder(folder))
    return more_time_advice(run, Stopped("max_minutes", 0, 0.0, 0.1, 120.0))  # type: ignore[arg-type]  # as far as it is read


def test_after_too_few_minutes_as_many_are_advised_as_were_enough(tmp_path: Path) -> None:
    """Even where the validations do not rise yet; with more than half of the updates twice the minutes are enough."""
    few, many = ({"validations": [[1, 1.0], [2, score]], "update": made} for made, score in ((7, 0.5), (60, 2.0)))
    for facts in (few, many):
        assert "--minutes" not in (advice(tmp_path, facts) or ""), "the recipe was not chosen for a text"
    (tmp_path / "chosen.yaml").touch()
    told = advice(tmp_path, few)
    assert told is not None
    assert "after 7 of the 100 updates" in told
    assert "about 29 minutes: train anew with --minutes 29 --overwrite" in told
    assert "--set training.max_minutes=4" in (advice(tmp_path, many) or "")
