"""Several processes that train on text with sampled tokenization."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nmtkit import Run, config
from nmtkit.data.batches.store import Store
from nmtkit.experiment.batches import training_batches
from nmtkit.training.parallel import processes
from nmtkit.training.read_ahead import ReadAhead
from tests.support.begun_runs import begin_run
from tests.support.commands import environment, lines_in, logged, sets
from tests.support.ranks import join_as, start_two
from tests.support.seeds import moved

KINDS = ("bpe", "unigram")
TOKENIZERS = {kind: f"tokenizer={{kind: {kind}, vocab_size: 64, sampling: 0.3}}" for kind in KINDS}
EPOCHS = 2


def take_two_epochs(rank: int, port: int, folder: str) -> None:
    """Writes the texts of each batch that this process takes; null where an update has no batch left for it."""
    join_as(rank, port)
    for kind in KINDS:
        run = Run.open(f"{folder}/{kind}")
        tokenizers = run.load_tokenizers()
        store = Store.open(run.folder.data, "train")
        stream = training_batches(run.recipe, store, tokenizers, seed=moved(1))
        taken: list[list[str] | None] = []
        with ReadAhead(stream, torch.device("cpu"), per_update=3) as batches:
            while batches.epoch < EPOCHS:
                batch = next(batches)
                if batch is None:
                    taken.append(None)
                else:
                    taken.append([tokenizers.src.decode(ids) for ids in batch.inputs.ids.tolist()])
        Path(folder, f"{kind}.{rank}.json").write_text(json.dumps(taken), encoding="utf-8")
    processes.leave()


def test_two_processes_take_each_example_of_an_epoch_once(
    small_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(small_corpus)
    for kind in KINDS:
        changes = [TOKENIZERS[kind], "batch.batch_tokens=200", "batch.sort_window=100"]
        begin_run(config.load("tiny.yaml", changes), str(tmp_path / kind)).close()
    start_two(take_two_epochs, tmp_path)
    corpus = Counter(lines_in(small_corpus / "train.src"))
    size = corpus.total()
    assert size == 300
    for kind in KINDS:
        shares = [
            json.loads((tmp_path / f"{kind}.{rank}.json").read_text(encoding="utf-8"))
            for rank in range(2)
        ]
        # of all batches, in the order in which they were dealt to the processes
        texts: list[str] = []
        for batches in zip(*shares, strict=True):
            for batch in batches:
                texts += batch or []
        for epoch in range(EPOCHS):
            assert Counter(texts[epoch * size : (epoch + 1) * size]) == corpus
        for share in shares:
            assert sum(len(batch or []) for batch in share) > size / 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_training_by_two_processes_is_that_of_one_with_twice_the_batches(
    kind: str, small_corpus: Path, tmp_path: Path
) -> None:
    settings = sets(
        TOKENIZERS[kind],
        "model.dropout=0",
        "data.test=null",
        "batch.batch_tokens=200",
        "training.max_updates=20",
        "training.log_every=1",
        "training.threads=1",
        "training.precision=fp32",
        "training.matmul_precision=highest",
    )
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "--"]
    runs = {}
    for name, words, accumulate in (("one", ["-m"], 2), ("two", launcher, 1)):
        runs[name] = tmp_path / name
        command = [sys.executable, *words, "nmtkit", "train", "tiny.yaml", "--run", str(runs[name])]
        command += [*settings, *sets(f"training.accumulate={accumulate}")]
        done = subprocess.run(
            command,
            cwd=small_corpus,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    steps = {
        name: [(step["tokens"], step["loss"]) for step in logged(run, "step")]
        for name, run in runs.items()
    }
    assert len(steps["one"]) == 20
    assert steps["one"] == steps["two"]
    states = [load_file(run / "checkpoints/last.safetensors") for run in runs.values()]
    for tensor, weight in states[0].items():
        if tensor.startswith("weights/"):
            assert torch.equal(weight, states[1][tensor]), tensor
