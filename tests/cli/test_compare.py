"""`nmtkit compare`: several recipes trained and measured alike."""

import json
import shutil
from pathlib import Path

import pytest
from commands import Command, refused, succeeded


@pytest.fixture
def recipes(corpus: Path, tmp_path: Path) -> list[Path]:
    """Two small recipes on one corpus whose test set has gold alignments; the second has a copy of it."""
    lines = (corpus / "test.src").read_text().splitlines()
    gold = [" ".join(f"{i}-{len(line.split()) - 1 - i}" for i in range(len(line.split()))) for line in lines]
    (tmp_path / "gold").write_text("".join(line + "\n" for line in gold))
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


def test_two_recipes_in_one_table(recipes: list[Path], nmtkit: Command, tmp_path: Path) -> None:
    where = ["--runs", tmp_path / "runs", "--longer-than", "5", "--plot", tmp_path / "runs" / "length.svg"]
    done = succeeded(nmtkit("compare", *recipes, *where, cwd=tmp_path))
    head, *rows = (line for line in done.out.splitlines() if line.startswith(("recipe", "attends", "blind")))
    assert "BLEU > 5 words" in head
    assert len(rows) == 2
    assert "BLEU by length" in done.out
    assert ">0-10<" in (tmp_path / "runs" / "length.svg").read_text()
    assert "measuring blind" in done.err

    logs = {name: (tmp_path / "runs" / name / "metrics.jsonl").read_bytes() for name in ("attends", "blind")}
    again = succeeded(
        nmtkit("compare", *recipes, "--runs", tmp_path / "runs", "--json", "--longer-than", "99", cwd=tmp_path)
    )
    assert "training" not in again.err, "what is trained is not trained again"
    attends, blind = json.loads(again.out)
    assert {name: (tmp_path / "runs" / name / "metrics.jsonl").read_bytes() for name in logs} == logs
    assert (attends["kind"], blind["kind"]) == ("rnnsearch", "rnn_encdec")
    assert 0 <= attends["aer"]["value"] <= 100
    assert blind["aer"] is None
    assert attends["long_bleu"] is None
    assert attends["n_long"] == 0
    assert attends["search_speed"] > 0
    assert attends["training_speed"] > 0
    assert attends["parameters"] > blind["parameters"]
    assert sum(part["count"] for part in attends["by_length"]) == 40

    refused(
        nmtkit("compare", *recipes, "--runs", tmp_path / "runs", "--set", "search.beam_size=2", cwd=tmp_path),
        "search.beam_size",
    )

    runs = [Path("runs/attends"), tmp_path / "runs" / "blind"]
    by_folder = succeeded(nmtkit("compare", *runs, "--json", "--longer-than", "99", cwd=tmp_path))
    assert "different test sets" not in by_folder.err
    assert [(run["name"], run["bleu"]) for run in json.loads(by_folder.out)] == [
        ("attends", attends["bleu"]),
        (str(runs[1]), blind["bleu"]),
    ]
    with (tmp_path / "copy.tgt").open("r+") as file:
        file.write("X")
    assert "different test sets" in nmtkit("compare", *runs, cwd=tmp_path).err
    refused(nmtkit("compare", *runs, "--set", "search.beam_size=2", cwd=tmp_path), "--set changes recipes only")
    (tmp_path / "runs" / "attends" / "result.json").unlink()
    refused(nmtkit("compare", *runs, cwd=tmp_path), "not finished")


def test_one_name_for_two_recipes(recipes: list[Path], nmtkit: Command, tmp_path: Path) -> None:
    refused(nmtkit("compare", recipes[0], recipes[0], cwd=tmp_path), "one name")
