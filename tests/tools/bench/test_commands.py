"""`python -m tests.tools.bench decode`: the table and the JSON say what was measured beside what."""

import importlib.util
import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from nmtkit.convert.engines import LIBRARIES
from nmtkit.inference.loading.options import DecodingOptions
from tests.support.commands import RECIPE, ROOT, Command, Finished, environment, succeeded

from . import decoding, models
from .__main__ import main
from .decoding import Ask, EngineServer
from .pretraining import WORK

THERE = [engine for engine, library in LIBRARIES.items() if importlib.util.find_spec(library)]
SHORT = ["--lines", "12", "--rounds", "2", "--alone", "2", "--device", "cpu"]
SPOKEN = "model: {kind: transformer, hidden_size: 32, feed_forward_size: 48, heads: 2, encoder_layers: 1, tie: all}"


def in_process_of_its_own(*arguments: object, stdin: str | None = None) -> Finished:
    words = [sys.executable, "-m", "tests.tools.bench", *map(str, arguments)]
    done = subprocess.run(
        words, input=stdin, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    return Finished(done.returncode, done.stdout, done.stderr)


@pytest.fixture(params=["one process", pytest.param("their own", marks=pytest.mark.slow)])
def bench(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:
    """The command line, where engines and cold starts have processes of their own, or none: each one loads torch."""
    if request.param == "their own":
        return in_process_of_its_own

    def started(name: str, how: DecodingOptions, stack: ExitStack) -> Ask:
        server = EngineServer(name, how)
        return lambda method, *arguments: server((method, arguments))

    def at_once(program: list[str], **given: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.CompletedProcess(program, 0)

    def run(*arguments: object) -> Finished:
        monkeypatch.setattr(sys, "argv", ["tests.tools.bench", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return Finished(int(ended.value.code or 0), *capsys.readouterr())

    monkeypatch.setattr(decoding, "start_engine", started)
    monkeypatch.setattr(decoding, "subprocess", SimpleNamespace(run=at_once))
    return run


def test_decoding_is_measured(trained: Path, bench: Command, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    done = succeeded(
        bench("decode", "-m", trained, *SHORT, "--rounds", "1", "--threads", "1", "-o", figures)
    )
    assert "decoding 12 lines, 1 rounds" in done.out
    for word in (
        "sentences/s",
        "tokens/s",
        "alone, ms",
        "of floor",
        "BLEU",
        "import torch",
        "nmtkit translate",
    ):
        assert word in done.out
    found = json.loads(figures.read_text(encoding="utf-8"))
    assert found["facts"]["threads"] == 1
    assert {"nmtkit", "torch", "processor", "device"} <= found["facts"].keys()
    assert {len(taken) for taken in found["cold_start_seconds"].values()} == {2}
    for row in found["rows"]:
        assert row["engine"] == "nmtkit"
        assert min(row["gflop"], row["gigabytes"], *row["share_of_floor"]) > 0
        assert len(row["seconds"]) == len(row["sentences_per_second"]) == 1
        assert row["latency_ms_median"] <= row["latency_ms_p95"]
        # A process of tests has had more memory before.
        assert row["peak_mib"] > 0 or bench is not in_process_of_its_own
        assert row["scores"].keys() >= {"BLEU"}
    assert found["rows"][0]["differing"] == 0


@pytest.mark.slow
@pytest.mark.skipif(
    not THERE,
    reason="neither ctranslate2 nor transformers is installed (pip install 'nmtkit[peers]')",
)
def test_the_same_weights_give_the_same_lines_elsewhere(
    corpus: Path, nmtkit: Command, tmp_path: Path
) -> None:
    first, _, rest = RECIPE.partition("model:")
    recipe = corpus / "spoken.yaml"
    recipe.write_text(first + SPOKEN + "\n" + rest.partition("\n")[2], encoding="utf-8")
    run, figures = tmp_path / "run", tmp_path / "figures.json"
    succeeded(nmtkit("train", recipe, "--run", run))
    lines = (
        "".join((corpus / "test.src").read_text(encoding="utf-8").splitlines(keepends=True)[:11])
        + "\n"
    )
    asked = ["--source", "-", *SHORT, "--against", ",".join(THERE), "-o", figures]
    done = succeeded(in_process_of_its_own("decode", "-m", run, *asked, stdin=lines))
    found = json.loads(figures.read_text(encoding="utf-8"))
    exact = [row for row in found["rows"] if row["setting"]["precision"] == "fp32"]
    assert {row["engine"] for row in exact} == {"nmtkit", *THERE}
    assert len({row["tokens"] for row in exact if not row["differing"]}) == 1
    assert [row["differing"] - row["ties"] - row["cut"] for row in exact] == [0] * len(exact), done


@pytest.mark.slow
def test_generation_is_measured(bench: Command, tmp_path: Path) -> None:
    """Beside transformers where it is there: it writes the same."""
    figures, there = tmp_path / "figures.json", "huggingface" in THERE
    how = [
        "generate",
        "--shape",
        "toy",
        "--batches",
        "3,1",
        "--rounds",
        "1",
        "--threads",
        "1",
        "--json",
        figures,
    ]
    done = succeeded(bench(*how, "--against" if there else "--alone"))
    rows = [
        row
        for row in json.loads(figures.read_text())["generation"]
        if row["engine"].endswith("fp32")
    ]
    assert [(row["batch"], row["same"]) for row in rows] == [(3, 3), (3, 3), (1, 1), (1, 1)][
        :: 1 if there else 2
    ]
    assert all(min(row["tokens_per_second"]) > 0 for row in rows)
    assert "nmtkit, fp32" in done.out


@pytest.mark.slow
def test_an_engine_that_cannot_do_it_is_refused_at_once(trained: Path) -> None:
    for engine, fault in {
        "huggingface": "huggingface does not support rnnsearch models",
        "opennmt": "there is no engine 'opennmt': take ctranslate2 or huggingface",
    }.items():
        done = in_process_of_its_own("decode", "-m", trained, "--against", engine)
        assert (done.code, done.out) == (2, ""), done
        assert fault in " ".join(done.err.split())


@pytest.mark.slow
def test_pretraining_beside_bare_torch(tmp_path: Path) -> None:
    done = in_process_of_its_own(
        *(
            "pretrain",
            "--shape",
            "toy",
            "--rounds",
            1,
            "--updates",
            1,
            "--threads",
            1,
            "--json",
            tmp_path / "figures",
        )
    )
    assert succeeded(done)
    rows = json.loads((tmp_path / "figures").read_text())["pretraining"]
    assert [row["objective"] for row in rows] == [*WORK]
    assert all(
        row["nmtkit"] > 0 and row["bare torch"] > 0 and len(row["ratios"]) == 1 for row in rows
    )


@pytest.mark.slow
@pytest.mark.parametrize("bench", ["one process"], indirect=True)
def test_further_models_beside_bare_torch(
    bench: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, few in {"TOGETHER": 2, "ALONE": 1, "WRITTEN": 3, "BATCHES": 1}.items():
        monkeypatch.setattr(models, name, few)
    how = [
        "--shape",
        "toy",
        "--rounds",
        1,
        "--updates",
        1,
        "--threads",
        1,
        "--json",
        tmp_path / "figures",
    ]
    done = succeeded(bench("models", *how))
    assert "snail: 158,256 parameters; with equal weights the loss is" in done.out
    found = json.loads((tmp_path / "figures").read_text())
    assert [row["objective"] for row in found["training"]] == [*models.WORK]
    # the first two are classifiers
    assert [row["model"] for row in found["decoding"]] == [*models.WORK][2:]
    assert all(min(row["together"] + row["alone"]) > 0 for row in found["decoding"])
    refused = bench("models", "--only", "convs2s,seq2seq")
    assert refused.code == 2
    assert "there is no model 'seq2seq'" in refused.err
