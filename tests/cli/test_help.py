"""Help, completion, what a likely mistake is answered with, recipes and the doctor."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from nmtkit.cli import COMMANDS, SECTIONS
from nmtkit.config import bundled
from nmtkit.config import load as load_recipe
from nmtkit.experiment.plan import plan
from nmtkit.models.base import MODELS
from tests.support.cases import daily
from tests.support.commands import Command, as_text, lines_in, refused, sets, succeeded, write_lines

SUBCOMMANDS = [
    *([name] for name in COMMANDS),
    *(["recipe", name] for name in ("ls", "show", "check", "explain", "schema")),
    *(["runs", name] for name in ("rm", "mv")),
    *(["bench", name] for name in ("decode", "train")),
]


def test_every_command_has_examples(console: Command) -> None:
    without = []
    for words in SUBCOMMANDS:
        done = console(*words, "--help")
        _, heading, after = done.out.partition("Example")
        # On a line of its own, not wrapped into a paragraph.
        if (
            done.code != 0
            or not heading
            or f"  nmtkit {words[0]}" not in after
            or "\\b" in done.out
        ):
            without.append(done)
    assert without == []
    assert len(SUBCOMMANDS) > 30


def test_help_is_short_and_has_headings(console: Command) -> None:
    """The options of every day come first; `translate --help` has at most 100 lines."""
    shown = console("translate", "--help").out
    assert len(shown.splitlines()) <= 100
    headings = [
        line for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")
    ]
    assert headings[:4] == [
        "Common:",
        "Constraints:",
        "Search (default: the recipe's settings):",
        "Sampling:",
    ]
    shown = console("--help").out
    assert all(f"  {name} " in shown for name in COMMANDS)
    assert "visualize-alignment" in shown
    assert [shown.index(f"{title}:") for title in SECTIONS] == sorted(
        shown.index(f"{title}:") for title in SECTIONS
    )


def test_no_command_shows_which_there_are(nmtkit: Command) -> None:
    for words in ([], ["recipe"], ["bench"]):
        done = nmtkit(*words)
        assert (done.code, done.err) == (0, "")
        assert ("Commands:" if words else "Evaluation:") in done.out


def test_unknown_command_and_option(nmtkit: Command) -> None:
    refused(nmtkit("trian"), "did you mean 'train'?")
    done = refused(
        nmtkit("translate", "--beam-sise", "3"), "--beam-size", "see `nmtkit translate --help`"
    )
    assert done.err.startswith("nmtkit: error: ")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("tra", ["train", "translate"]),
        ("train demo-n", ["demo-news-attention", "demo-news-pointer-generator"]),
        ("recipe show preset-s", ["preset-small", "preset-summaries-base"]),
        ("train nothing-of-ours", ["nothing-of-ours"]),
        ("translate -m ", ["first", "second"]),
        ("translate --model s", ["second"]),
        ("runs rm f", ["first"]),
        ("plot-training first s", ["second"]),
        ("fetch libreoffice-help-en-d", ["libreoffice-help-en-da", "libreoffice-help-en-de"]),
        ("train demo --set training.lr", ["training.lr="]),
        ("recipe explain training.optim", ["training.optimizer"]),
        ("guide se", ["second"]),
        ("translate --search sto", ["stop="]),
        ("train --task ", ["translation", "classification", "language-modelling", "summarization"]),
        ("train --over", ["--overwrite"]),
    ],
)
def test_completion(
    nmtkit: Command,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: str,
    completions: list[str],
) -> None:
    for name in ("first", "second"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "recipe.yaml").touch()
    monkeypatch.setenv("_NMTKIT_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"nmtkit {words}")
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ") + 1))
    assert [line.split(",")[1] for line in nmtkit(cwd=tmp_path).out.splitlines()][
        : len(completions)
    ] == completions


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_the_script_of_bash_completes(
    nmtkit: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("_NMTKIT_COMPLETE", "bash_source")
    script = tmp_path / "completion.sh"
    script.write_text(nmtkit().out, encoding="utf-8")
    program = (
        f"env() {{ printf 'plain,one\\nplain,two=\\n'; }}; compopt() {{ echo \"$@\"; }}; complete() {{ :; }}; "
        f"source {script}; _nmtkit_completion nmtkit; echo ${{COMPREPLY[@]}}"
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["-o", "nospace", "one", "two="], done


def test_an_unknown_command_is_refused_in_a_line(nmtkit: Command) -> None:
    remedy = "if it belongs to a task in a file of your own, add `--user-module FILE.py`"
    refused(nmtkit("serve"), f"no such command 'serve'; {remedy} (see `nmtkit --help`)")
    refused(
        nmtkit("tranlate"),
        "no such command 'tranlate': did you mean 'translate'? (see `nmtkit --help`)",
    )
    refused(nmtkit("s" * 500), "no such command 'sss")


def test_an_unknown_key_is_not_answered_by_names_at_random(nmtkit: Command) -> None:
    done = refused(
        nmtkit("recipe", "explain", "wandb"), "no key `wandb`", "nmtkit recipe explain training"
    )
    assert "window" not in done.err
    refused(nmtkit("recipe", "explain", "droput"), "did you mean 'dropout'")


def test_recipe_commands(nmtkit: Command, tmp_path: Path) -> None:
    shown = nmtkit("recipe", "show", "demo")
    (tmp_path / "mine.yaml").write_text(shown.out)
    assert "kind: rnnsearch" in shown.out
    done = nmtkit("recipe", "check", tmp_path / "mine.yaml")
    assert "parameters" in done.out
    assert "(missing)" in done.out
    refused(done, "recipe mine: these files are missing", after_results=True)
    succeeded(nmtkit("recipe", "check", "demo"))
    (tmp_path / "pairs.csv").write_text("en,fr\na,b\n")
    sides = [
        f"data.train.{side}={tmp_path}/pairs.csv#{name}"
        for side, name in (("src", "en"), ("tgt", "de"))
    ]
    refused(nmtkit("recipe", "check", "demo", *sets(*sides)), "no column 'de' in the first row")
    assert "gradient" in nmtkit("recipe", "explain", "training.clip_norm").out
    refused(nmtkit("recipe", "explain", "training.clipnorm"), "training.clip_norm")
    (tmp_path / "other.yaml").write_text(nmtkit("recipe", "show", "multi30k-en-de-transformer").out)
    assert (
        "transformer" in nmtkit("recipe", "check", tmp_path / "other.yaml").out
    )  # of a file that is not beside it
    assert "training" in json.loads(nmtkit("recipe", "schema").out)["properties"]


def test_explain_lists_what_may_stand_there(console: Command) -> None:
    shown = console("recipe", "explain", "model.kind").out
    for kind in MODELS.names():
        (line,) = [line for line in paragraphs(shown) if line.startswith(f"{kind} ")]
        assert re.search(r"\b(19|20)\d\d\b", line), line  # the paper
        config = MODELS.get(kind).Config
        assert all(key in line for key in config.model_fields if key != "kind"), line
    assert len(MODELS.names()) > 5
    for key, values in {
        "training.schedule.kind": ["luong_halving", "warmup_share"],
        "optimizer": ["training.optimizer", "Zeiler 2012"],
        "model.score": ["Luong et al. 2015, eq. 8"],
        "model.norm": ["pre, post"],
        "model.copying": [
            "(pointer_generator) is one of: true, false",
            "(luong) is one of: none, shared, own",
            "(t5, transformer) is one of: none, head, learned",
        ],
        "positions": [
            "(transformer) is one of: sinusoidal, sinusoidal_halves, sinusoidal_fairseq, learned"
        ],
        "model.alignment_heads": ["mean, a number"],
        "model.transformer": ["model.heads", "d_ff"],
        "task": ["summarization, translation"],
        "evaluation.metrics": ["chrf++"],
        "tokenizer.kind": ["bpe, unigram, char, word"],
        "data.test": ["--set data.test=null", "data.test.jsonl"],
        "lr": ["training.lr "],
    }.items():
        done = succeeded(console("recipe", "explain", key))
        assert all(value in " ".join(paragraphs(done.out)) for value in values), done
    assert "data.valid.jsonl" not in console("recipe", "explain", "data").out  # as data.train.jsonl
    assert (
        "term-recall" not in console("recipe", "explain", "evaluation.metrics").out
    )  # it compares no texts
    done = console("recipe", "explain", "lrr")
    assert "did you mean 'lr'" in done.err
    assert len(done.err) < 200


def test_explain_shows_values_as_yaml_and_short_paths(
    console: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "text").mkdir()
    (tmp_path / "recipes" / "mine.yaml").write_text(
        "extends: demo\ndata: {folder: ../text, train: {src: a, tgt: b}, drop_duplicates: true}\n"
        "training: {schedule: {kind: noam, size: 8}}\n",
        encoding="utf-8",
    )
    expected = {
        "data.folder": "text",
        "data.train": "{src: [a], tgt: [b]}",
        "data.drop_duplicates": "true",
        "training.schedule": "{kind: noam, size: 8}",
    }
    for key, value in expected.items():
        done = succeeded(console("recipe", "explain", key, "--recipe", "recipes/mine.yaml"))
        row = next(line for line in done.out.splitlines() if line.startswith(f"{key} "))
        assert re.split(r"\s{2,}", row)[1] == value


def paragraphs(table: str) -> list[str]:
    """The rows of a table, each with what its cells go on with below, column by column."""
    rows: list[list[str]] = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in re.split(r"\s{3,}", line.strip())]
        if line[:1] not in ("", " ") or not rows:
            rows.append([])
        rows[-1] += cells
    return [" ".join(cells) for cells in rows]


@pytest.mark.parametrize("every", daily([5, 1]))
def test_recipes_are_grouped_by_what_can_be_run_here(
    console: Command, tmp_path: Path, every: int
) -> None:
    def groups() -> list[str]:
        return console("recipe", "ls").out.split("\n\n")

    ready, fetched, large, presets, _ = groups()
    assert all(max(map(len, group.splitlines())) <= 100 for group in (ready, large, presets))
    assert "\ndemo " in ready
    assert "\nlibreoffice-help-en-de-transformer " in fetched
    assert "\npreset-tiny " in presets
    for name in bundled()[::every]:
        one = load_recipe(name)
        rows = dict(plan(one, torch.device("cpu"), need_files=False).rows)
        weights = int(rows["parameters"].split()[0].replace(",", ""))
        updates = sum(stage.training.max_updates or 0 for stage in one.by_stage().values())
        operations = weights * updates * one.batch.batch_tokens * one.training.accumulate
        limited = updates or one.training.max_minutes
        assert (f"\n{name} " in large) == (operations > 1e15 or not limited), (name, operations)
    for name in (
        f"{split}.{side}" for split in ("train", "valid", "test") for side in ("en", "de")
    ):
        write_lines(tmp_path / "corpora" / "libreoffice-help-en-de" / name, ["a"])
    assert "\nlibreoffice-help-en-de-transformer " in groups()[0]


def test_the_doctor_tells_what_is_here(console: Command) -> None:
    shown = succeeded(console("doctor")).out
    for word in (
        "nmtkit",
        "torch",
        torch.backends.cpu.get_cpu_capability(),
        "sentencepiece",
        "will be used",
    ):
        assert word in shown


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ("train a.en a.de --minutes 3", "--source FILE --target FILE"),
        ("align -m x a.en a.de", "--source FILE --target FILE"),
        ("evaluate runs/x a.en a.de", "--source FILE --ref FILE"),
        ("score one.de two.de a.de", "FILE --ref FILE"),
    ],
)
def test_two_files_without_their_options(given: str, options: str, console: Command) -> None:
    command, *_ = given.split()
    refused(console(*given.split()), f"; pass files as {options} (see `nmtkit {command} --help`)")
    assert "pass files as" not in refused(console(command, "--no-such-option")).err


@pytest.mark.parametrize("command", ["translate", "summarize", "tokenize", "detokenize"])
def test_a_text_in_place_of_a_file(command: str, console: Command) -> None:
    """Also one that is longer than any file's name."""
    for text in ("A dog runs.", "dog", "A dog runs. " * 50):
        remedy = "there is no such file; to pass text, use standard input: echo "
        assert len(refused(console(command, text), remedy, f"| nmtkit {command}\n").err) < 400
    assert "echo" not in console(command, "input.txt").err


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("demoo", "demo, demo-captions and demo-parsing"),
        ("preset-smal.yaml", "preset-small, "),
        ("mine.yaml", ""),
        ("x" * 300, ""),
    ],
)
def test_an_unknown_recipe_is_answered_with_the_three_nearest(
    given: str, near: str, console: Command
) -> None:
    done = refused(
        console("train", given),
        f"and nmtkit has no recipe with that name; the closest names are {near}",
        "`nmtkit recipe ls` lists all",
    )
    assert len(done.err) < 400


def test_fewer_results_than_asked_for_are_told(
    trained: Path, corpus: Path, console: Command
) -> None:
    text = as_text([*lines_in(corpus / "test.src")[:6], ""])
    groups = [
        "translate",
        "-m",
        trained,
        "--beam-size",
        "6",
        "--search",
        "diversity_groups=3",
        "--n-best",
        "6",
    ]
    done = console(*groups, stdin=text)
    counts = [
        sum(one.startswith(f"{number}\t") for one in done.out.splitlines())
        for number in range(1, 7)
    ]
    fewer = sum(count < 6 for count in counts)
    assert fewer, "groups have found the same"
    assert (
        f"{fewer} of 7 lines have fewer than 6 translations, because the search found no more, or"
        in done.err
    )
    assert "fewer than" not in console("translate", "-m", trained, "--n-best", "6", stdin=text).err
