"""`nmtkit bench`: the table and the JSON say what was measured, and what cannot be measured is refused at once."""

import json
from pathlib import Path

from commands import Command, refused, succeeded


def test_decoding_is_measured(trained: Path, console: Command, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    short = ["--lines", "12", "--rounds", "2", "--alone", "2", "--device", "cpu", "--threads", "1"]
    done = succeeded(console("bench", "decode", "-m", trained, *short, "-o", figures))
    assert "decoding 12 lines, 2 rounds" in done.out
    for word in ("sentences/s", "tokens/s", "alone, ms", "BLEU", ", batches"):
        assert word in done.out
    found = json.loads(figures.read_text(encoding="utf-8"))
    assert found["facts"]["threads"] == 1
    assert {"nmtkit", "torch", "processor", "device"} <= found["facts"].keys()
    assert len(found["seconds"]) == len(found["sentences_per_second"]) == 2
    assert found["latency_ms_median"] <= found["latency_ms_p95"]
    assert found["peak_mib"] > 0
    assert found["scores"].keys() >= {"BLEU"}


def test_what_cannot_be_measured_is_refused_at_once(trained: Path, nmtkit: Command, tmp_path: Path) -> None:
    refused(nmtkit("bench", "decode", "-m", trained, "--source", "-", stdin="\n\n", cwd=tmp_path), "all are empty")
    refused(nmtkit("bench", "decode", "-m", trained, "--ref", "some.txt", cwd=tmp_path), "--ref belongs to --source")


TRAINED = ["--updates", "2", "--rounds", "2", "--device", "cpu", "--threads", "1"]


def test_training_is_measured(corpus: Path, trained: Path, nmtkit: Command, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    before = sorted(path.name for path in trained.rglob("*"))
    bench = ["bench", "train", corpus / "tiny.yaml", *TRAINED, "-o"]
    of_run = succeeded(nmtkit(*bench, figures, "--run", trained, cwd=tmp_path))
    said = " ".join(of_run.out.split())  # a long path is wrapped
    assert f"training tiny on the data of {trained}, 2 rounds of 2 updates" in said
    assert sorted(path.name for path in trained.rglob("*")) == before
    of_text = succeeded(nmtkit(*bench, tmp_path / "again.json", cwd=tmp_path))
    assert "training tiny on its text" in of_text.out
    assert not (tmp_path / "runs").exists()
    found, again = (json.loads(path.read_text(encoding="utf-8")) for path in (figures, tmp_path / "again.json"))
    for one in (found, again):
        assert one["config"]["threads"] == one["facts"]["threads"] == 1
        assert len(one["seconds"]) == len(one["tokens_per_second"]) == 2
        assert one["peak_mib"] > 0
    assert found["tokens"] == again["tokens"]


def test_without_its_text_a_recipe_trains_on_random_words(corpus: Path, nmtkit: Command, tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text((corpus / "tiny.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    done = succeeded(nmtkit("bench", "train", recipe, *TRAINED, cwd=tmp_path))
    assert "on random words, 25 and 25 a line, for its text is not here" in done.out
    assert "train.src" in done.err
    refused(nmtkit("bench", "train", recipe, *TRAINED, "--run", tmp_path / "none", "--updates", "0", cwd=tmp_path))
