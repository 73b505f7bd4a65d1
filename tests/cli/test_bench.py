"""`nmtkit bench`, `nmtkit train --dry-run` and `nmtkit compare`."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nmtkit import config
from nmtkit.cli.training import bench
from tests.cli.untrained_runs import CAPTIONER, make_run
from tests.support.commands import (
    Command,
    backwards_links,
    lines_in,
    refused,
    sets,
    succeeded,
    write_lines,
)


def test_decoding_is_measured(trained: Path, console: Command, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    short = ["--lines", "12", "--rounds", "2", "--device", "cpu", "--threads", "1"]
    done = succeeded(console("bench", "decode", "-m", trained, *short, "-o", figures))
    for words in (
        "decoding 12 lines, 2 rounds",
        "sentences/s",
        "tokens/s",
        "alone, ms",
        "BLEU",
        ", batches",
    ):
        assert words in done.out
    measured = json.loads(figures.read_text(encoding="utf-8"))
    assert measured["facts"]["threads"] == 1
    assert {"nmtkit", "torch", "processor", "device"} <= measured["facts"].keys()
    assert len(measured["seconds"]) == len(measured["sentences_per_second"]) == 2
    assert measured["latency_ms_median"] <= measured["latency_ms_p95"]
    assert measured["peak_mib"] > 0
    assert measured["scores"].keys() >= {"BLEU"}


def test_figures_remove_no_other_file(tmp_path: Path) -> None:
    other = write_lines(tmp_path / "x.new", ["of the user"])
    bench.write_figures(tmp_path / "x", {"seconds": [1.0]})
    assert lines_in(other) == ["of the user"]
    assert json.loads((tmp_path / "x").read_text(encoding="utf-8")) == {"seconds": [1.0]}


TRAINED = ["--rounds", "2", "--device", "cpu", "--threads", "1"]


def test_training_is_measured(corpus: Path, trained: Path, nmtkit: Command, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    before = sorted(path.name for path in trained.rglob("*"))
    bench = ["bench", "train", corpus / "tiny.yaml", *TRAINED, "-o"]
    of_run = succeeded(nmtkit(*bench, figures, "--run", trained, cwd=tmp_path))
    said = " ".join(of_run.out.split())  # a long path is wrapped
    assert f"training tiny on the data of {trained}, 2 rounds of 5 updates" in said
    assert sorted(path.name for path in trained.rglob("*")) == before
    of_text = succeeded(nmtkit(*bench, tmp_path / "again.json", cwd=tmp_path))
    assert "training tiny on its text" in of_text.out
    assert not (tmp_path / "runs").exists()
    measured, again = (
        json.loads(path.read_text(encoding="utf-8")) for path in (figures, tmp_path / "again.json")
    )
    for one in (measured, again):
        assert one["config"]["threads"] == one["facts"]["threads"] == 1
        assert len(one["seconds"]) == len(one["tokens_per_second"]) == 2
        assert one["peak_mib"] > 0
    assert measured["tokens"] == again["tokens"]


DRY_RUN = ["--dry-run", "--device", "cpu", "--threads", "1"]


def test_a_dry_run_predicts_the_cost_of_training_and_saves_nothing(
    corpus: Path, console: Command
) -> None:
    """The recipe has sixty updates."""
    done = succeeded(console("train", corpus / "tiny.yaml", *DRY_RUN))
    rows = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in done.out.splitlines()}
    assert int(rows["parameters"].replace(",", "")) > 1000
    assert rows["updates"].startswith("60 of ")
    assert float(rows["operations"]) == pytest.approx(
        60 * float(rows["operations per update"]), rel=0.1
    )
    assert "0:0" in rows["time without validation"]
    assert not Path("runs").exists()


def test_a_dry_run_finds_the_largest_batch(corpus: Path, console: Command) -> None:
    done = succeeded(
        console("train", corpus / "tiny.yaml", *DRY_RUN, *sets("batch.batch_tokens=auto"))
    )
    assert "padded tokens fit into" in done.err
    assert not Path("runs").exists()


def test_a_dry_run_cannot_be_resumed(corpus: Path, console: Command) -> None:
    refused(console("train", corpus / "tiny.yaml", *DRY_RUN, "--resume"), "--dry-run saves nothing")


@pytest.mark.parametrize(
    ("name", "title", "note"),
    [
        pytest.param("demo", "complete training of demo", "", id="one stage"),
        pytest.param(
            "demo-news-pointer-generator",
            "stage pointer of demo-news-pointer-generator",
            "need additional time: coverage\n",
            id="two stages",
        ),
    ],
)
def test_a_dry_run_is_of_the_first_stage(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    title: str,
    note: str,
) -> None:
    monkeypatch.setattr(bench, "_try_training", lambda *_, **__: (None, [["updates", "71,000"]]))
    bench.dry_run(config.load(name), "", torch.device("cpu"))
    printed = capsys.readouterr()
    assert "".join(title.split()) in "".join(printed.out.split())  # a long title is wrapped
    assert note in printed.err
    assert ("additional time" in printed.err) == bool(note)


@pytest.mark.parametrize(
    ("name", "note"),
    [("demo", ""), ("demo-news-pointer-generator", "only updates of stage pointer were measured")],
    ids=["one stage", "two stages"],
)
def test_bench_train_names_the_stage_that_it_measures(
    monkeypatch: pytest.MonkeyPatch, console: Command, name: str, note: str
) -> None:
    monkeypatch.setattr(
        bench, "_try_training", lambda *_, **__: (SimpleNamespace(figures=dict), [])
    )
    done = succeeded(console("bench", "train", name, "--device", "cpu"))
    assert done.err.startswith(note)
    assert bool(done.err) == bool(note)


def test_without_its_text_a_recipe_trains_on_random_words(
    corpus: Path, nmtkit: Command, tmp_path: Path
) -> None:
    own = tmp_path / "tiny.yaml"
    own.write_text((corpus / "tiny.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    done = succeeded(nmtkit("bench", "train", own, *TRAINED, cwd=tmp_path))
    shown = " ".join(done.out.split())  # the table wraps where the path of the recipe is long
    assert (
        "on random words (25 source and 25 target words per line), because the recipe's text"
        in shown
    )
    assert "train.src" in done.err
    refused(
        nmtkit(
            "bench",
            "train",
            own,
            *TRAINED,
            "--run",
            tmp_path / "none",
            "--rounds",
            "0",
            cwd=tmp_path,
        )
    )


@pytest.fixture
def recipes(corpus: Path, tmp_path: Path) -> list[Path]:
    """Two small recipes on one corpus whose test set has gold alignments; the second has a copy of it."""
    write_lines(tmp_path / "gold", backwards_links(lines_in(corpus / "test.src")))
    base = f"""\
extends: {corpus}/tiny.yaml
data: {{test: {{alignment: {tmp_path}/gold}}}}
training: {{max_updates: 8, validate_every: 8, log_every: 4, keep_best: 1}}
"""
    (tmp_path / "attends.yaml").write_text(base)
    for side in ("src", "tgt"):
        shutil.copy(corpus / f"test.{side}", tmp_path / f"copy.{side}")
    base = base.replace("test: {", f"test: {{src: {tmp_path}/copy.src, tgt: {tmp_path}/copy.tgt, ")
    (tmp_path / "blind.yaml").write_text(
        base + "model: {kind: rnn_encdec, embedding_size: 8, hidden_size: 8, maxout_size: 8}\n"
    )
    return [tmp_path / "attends.yaml", tmp_path / "blind.yaml"]


@pytest.mark.slow
def test_compare_trains_each_recipe_once_and_shows_both(
    recipes: list[Path], nmtkit: Command, tmp_path: Path
) -> None:
    compare = ["compare", *recipes, "--runs", tmp_path / "runs"]
    done = succeeded(nmtkit(*compare, "--plot", tmp_path / "runs" / "length.svg", cwd=tmp_path))
    head, *rows = (
        line for line in done.out.splitlines() if line.startswith(("recipe", "attends", "blind"))
    )
    assert "BLEU > 30 words" in head
    assert len(rows) == 2
    assert "BLEU by length" in done.out
    assert ">0-10<" in (tmp_path / "runs" / "length.svg").read_text()
    assert "measuring blind" in done.err

    logs = {
        name: (tmp_path / "runs" / name / "metrics.jsonl").read_bytes()
        for name in ("attends", "blind")
    }
    again = succeeded(nmtkit(*compare, "--json", cwd=tmp_path))
    assert "training" not in again.err, "what is trained is not trained again"
    attends, blind = json.loads(again.out)
    assert {
        name: (tmp_path / "runs" / name / "metrics.jsonl").read_bytes() for name in logs
    } == logs
    assert (attends["kind"], blind["kind"]) == ("rnnsearch", "rnn_encdec")
    assert 0 <= attends["aer"]["value"] <= 100
    assert blind["aer"] is None
    assert (attends["long_bleu"], attends["n_long"]) == (None, 0)
    assert min(attends["search_speed"], attends["training_speed"]) > 0
    assert attends["parameters"] > blind["parameters"]
    assert sum(part["count"] for part in attends["by_length"]) == 40

    refused(nmtkit(*compare, "--set", "search.beam_size=2", cwd=tmp_path), "search.beam_size")

    runs = [Path("runs/attends"), tmp_path / "runs" / "blind"]
    by_folder = succeeded(nmtkit("compare", *runs, "--json", cwd=tmp_path))
    assert "different test sets" not in by_folder.err
    assert [(run["name"], run["bleu"]) for run in json.loads(by_folder.out)] == [
        ("attends", attends["bleu"]),
        (str(runs[1]), blind["bleu"]),
    ]
    with (tmp_path / "copy.tgt").open("r+") as file:
        file.write("X")
    assert "different test sets" in nmtkit("compare", *runs, cwd=tmp_path).err
    refused(
        nmtkit("compare", *runs, "--set", "search.beam_size=2", cwd=tmp_path),
        "--set applies only to recipes",
    )
    (tmp_path / "runs" / "attends" / "result.json").unlink()
    refused(nmtkit("compare", *runs, cwd=tmp_path), "not finished")
    refused(nmtkit("compare", recipes[0], recipes[0], cwd=tmp_path), "same name")


@pytest.mark.slow
def test_compare_trains_and_summarizes_seeds(
    recipes: list[Path], nmtkit: Command, tmp_path: Path
) -> None:
    done = succeeded(
        nmtkit("compare", *recipes, "--seeds", "2", "--runs", tmp_path / "runs", cwd=tmp_path)
    )
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        *("attends-seed1", "attends-seed2", "blind-seed1", "blind-seed2")
    }
    attends, blind = (
        line.split() for line in done.out.split("over seeds")[1].splitlines() if " 2 " in line
    )
    assert attends[:2] == ["attends", "2"]
    assert blind[:2] == ["blind", "2"]

    runs = sorted((tmp_path / "runs").iterdir())
    before = {run.name: (run / "test.out").read_bytes() for run in runs}
    table = succeeded(nmtkit("compare", *runs, "--format", "csv", cwd=tmp_path)).out.splitlines()
    assert table[0] == "system,seeds,mean BLEU,std. deviation,p"
    assert [line.split(",")[1] for line in table[1:]] == ["2", "2"]
    assert "*" not in table[2]

    records = json.loads(succeeded(nmtkit("compare", *runs, "--json", cwd=tmp_path)).out)
    assert [record["seed"] for record in records] == [1, 2, 1, 2]
    assert len({record["over_seeds"]["name"] for record in records}) == 2
    scores = [record["bleu"]["value"] for record in records]
    assert records[0]["over_seeds"]["scores"] == pytest.approx(scores[:2])
    assert records[0]["checkpoint"].startswith("weights-")
    assert {run.name: (run / "test.out").read_bytes() for run in runs} == before, (
        "answers that are there stay"
    )
    refused(nmtkit("compare", *runs, "--seeds", "2", cwd=tmp_path), "this is a run; remove --seeds")
    latex = succeeded(nmtkit("compare", *runs, "--format", "latex", cwd=tmp_path)).out
    assert latex.startswith("\\begin{tabular}{lrrrr}\n\\toprule\nsystem & seeds & mean BLEU")


@pytest.mark.parametrize("name", ["pictures.yaml", "runs/pictures"])
def test_compare_refuses_captioners(tmp_path: Path, console: Command, name: str) -> None:
    files = "{features: [a], tgt: [b]}"
    make_run(tmp_path, "pictures", CAPTIONER.replace(files, f"{files}, test: {files}"), features=24)
    refused(
        console("compare", name),
        f"{name}: `nmtkit compare` supports only models that translate text",
        "`nmtkit score`",
    )
