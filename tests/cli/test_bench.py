"""`nmtkit bench`: the table and the JSON say what was measured, and what cannot be measured is refused at once."""

import importlib.util
import json
import subprocess
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import RECIPE, Command, refused, succeeded

from nmtkit.experiment.bench import decoding
from nmtkit.experiment.bench.decoding import Ask, Service
from nmtkit.experiment.loading import ModelOptions
from nmtkit.interchange.conversion import LIBRARIES

THERE = [engine for engine, library in LIBRARIES.items() if importlib.util.find_spec(library)]
SHORT = ["--lines", "12", "--rounds", "2", "--alone", "2", "--device", "cpu"]
SPOKEN = "model: {kind: transformer, hidden_size: 32, feed_forward_size: 48, heads: 2, encoder_layers: 1, tie: all}"


@pytest.fixture(params=["one process", pytest.param("their own", marks=pytest.mark.slow)])
def bench(
    request: pytest.FixtureRequest, nmtkit: Command, console: Command, monkeypatch: pytest.MonkeyPatch
) -> Command:
    """The command line, where engines and cold starts have processes of their own, or none: each one loads torch."""
    if request.param == "their own":
        return nmtkit

    def started(name: str, how: ModelOptions, stack: ExitStack) -> Ask:
        service = Service(name, how)
        return lambda method, *arguments: service((method, arguments))

    def at_once(program: list[str], **given: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.CompletedProcess(program, 0)

    monkeypatch.setattr(decoding, "_started", started)
    monkeypatch.setattr(decoding, "subprocess", SimpleNamespace(run=at_once))
    return console


def test_decoding_is_measured_beside_its_floor(trained: Path, bench: Command, nmtkit: Command, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    done = bench("bench", "decode", "-m", trained, *SHORT, "--threads", "1", "-o", figures)
    assert done.code == 0, done
    assert "decoding 12 lines, 2 rounds" in done.out
    for word in ("sentences/s", "tokens/s", "alone, ms", "of floor", "BLEU", "import torch", "nmtkit translate"):
        assert word in done.out
    found = json.loads(figures.read_text(encoding="utf-8"))
    assert found["facts"]["threads"] == 1
    assert {"nmtkit", "torch", "processor", "device"} <= found["facts"].keys()
    assert {len(taken) for taken in found["cold_start_seconds"].values()} == {2}
    for row in found["rows"]:
        assert row["engine"] == "nmtkit"
        assert row["gflop"] > 0
        assert row["gigabytes"] > 0
        assert all(share > 0 for share in row["share_of_floor"])
        assert len(row["seconds"]) == len(row["sentences_per_second"]) == 2
        assert row["latency_ms_median"] <= row["latency_ms_p95"]
        assert row["peak_mib"] > 0 or bench is not nmtkit  # a process of tests has had more memory before
        assert row["scores"].keys() >= {"BLEU"}
    assert found["rows"][0]["differing"] == 0


@pytest.mark.skipif(not THERE, reason="neither ctranslate2 nor transformers is installed (pip install 'nmtkit[peers]')")
def test_the_same_weights_give_the_same_lines_elsewhere(corpus: Path, nmtkit: Command, tmp_path: Path) -> None:
    first, _, rest = RECIPE.partition("model:")
    recipe = corpus / "spoken.yaml"
    recipe.write_text(first + SPOKEN + "\n" + rest.partition("\n")[2], encoding="utf-8")
    run, figures = tmp_path / "run", tmp_path / "figures.json"
    succeeded(nmtkit("train", recipe, "--run", run))
    lines = "".join((corpus / "test.src").read_text(encoding="utf-8").splitlines(keepends=True)[:11]) + "\n"
    asked = ["--source", "-", *SHORT, "--against", ",".join(THERE), "-o", figures]
    done = succeeded(nmtkit("bench", "decode", "-m", run, *asked, stdin=lines, cwd=tmp_path))
    found = json.loads(figures.read_text(encoding="utf-8"))
    exact = [row for row in found["rows"] if row["setting"]["precision"] == "fp32"]
    assert {row["engine"] for row in exact} == {"nmtkit", *THERE}
    assert len({row["tokens"] for row in exact if not row["differing"]}) == 1
    assert [row["differing"] - row["ties"] - row["cut"] for row in exact] == [0] * len(exact), done


def test_what_cannot_be_measured_is_refused_at_once(trained: Path, nmtkit: Command, tmp_path: Path) -> None:
    refused(
        nmtkit("bench", "decode", "-m", trained, "--against", "huggingface", cwd=tmp_path),
        "huggingface has no counterpart of a rnnsearch",
    )
    refused(
        nmtkit("bench", "decode", "-m", trained, "--against", "opennmt", cwd=tmp_path),
        "there is no engine 'opennmt': take ctranslate2 or huggingface",
    )
    refused(nmtkit("bench", "decode", "-m", trained, "--source", "-", stdin="\n\n", cwd=tmp_path), "all are empty")
    refused(nmtkit("bench", "decode", "-m", trained, "--ref", "some.txt", cwd=tmp_path), "--ref belongs to --source")


TRAINED = ["--updates", "2", "--rounds", "2", "--device", "cpu", "--threads", "1"]


def test_training_is_measured_beside_its_floor(corpus: Path, trained: Path, nmtkit: Command, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    before = sorted(path.name for path in trained.rglob("*"))
    of_run = succeeded(
        nmtkit("bench", "train", corpus / "tiny.yaml", "--run", trained, *TRAINED, "-o", figures, cwd=tmp_path)
    )
    said = " ".join(of_run.out.split())  # a long path is wrapped
    assert f"training tiny on the data of {trained}, 2 rounds of 2 updates" in said
    assert sorted(path.name for path in trained.rglob("*")) == before
    of_text = succeeded(
        nmtkit("bench", "train", corpus / "tiny.yaml", *TRAINED, "-o", tmp_path / "again.json", cwd=tmp_path)
    )
    assert "training tiny on its text" in of_text.out
    assert not (tmp_path / "runs").exists()
    found, again = (json.loads(path.read_text(encoding="utf-8")) for path in (figures, tmp_path / "again.json"))
    for one in (found, again):
        assert one["way"]["threads"] == one["facts"]["threads"] == 1
        assert len(one["seconds"]) == len(one["bare"]) == len(one["tokens_per_second"]) == 2
        assert all(share > 0 for share in one["share_of_floor"])
        assert one["peak_mib"] > 0
    same = ("tokens", "gflop", "gigabytes")
    assert [found[name] for name in same] == [again[name] for name in same]


def test_without_its_text_a_recipe_trains_on_random_words(corpus: Path, nmtkit: Command, tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text((corpus / "tiny.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    done = succeeded(nmtkit("bench", "train", recipe, *TRAINED, cwd=tmp_path))
    assert "on random words, 25 and 25 a line, for its text is not here" in done.out
    assert "train.src" in done.err
    refused(nmtkit("bench", "train", recipe, *TRAINED, "--run", tmp_path / "none", "--updates", "0", cwd=tmp_path))
