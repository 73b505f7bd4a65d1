"""Four files of strangers, each a model and its task, neither a pair of texts nor ours, by `--user-module`."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.commands import WORDS, environment, lines_in, logged, write_lines
from tests.support.compare_runs import differences, wait_for_update

HERE = Path(__file__).parent
COLOURS = ("blue", "green", "red")
SPLITS = {"train": 400, "valid": 40, "test": 40}

RECIPE = """\
task: {task}
data:
{splits}
tokenizer: {{kind: word, vocab_size: 60, specials: ["<mask>"]}}
model: {{kind: {model}}}
batch: {{batch_tokens: 256{batch}}}
training: {{lr: 0.01, max_updates: 300, validate_every: 100, save_every: 20, threads: 1, {best}{training}}}
search: {{max_length: 8, beam_size: 3}}
"""
STRANGERS = {
    "language_model": (
        "language modelling",
        "tiny-lm",
        ("tgt",),
        ", block_tokens: 32",
        "perplexity",
    ),
    "masked_language_model": ("masking", "masked-lm", ("src",), "", "perplexity"),
    "classifier": ("sorting", "bag-of-words", ("src", "labels"), "", "accuracy"),
    "captioner": ("picturing", "captioner", ("features", "tgt"), "", "chrf"),
}


def write_corpus(folder: Path) -> None:
    """Words in their order; whether `ba` is among them; and pictures of three regions of a colour, with captions."""
    for seed, (split, count) in enumerate(SPLITS.items()):
        draw = random.Random(seed)
        begins = [draw.randrange(20) for _ in range(count)]
        texts = [" ".join((WORDS * 2)[begin : begin + draw.randrange(4, 8)]) for begin in begins]
        write_lines(folder / f"{split}.text", texts)
        write_lines(
            folder / f"{split}.labels",
            ["with" if "ba" in text.split() else "without" for text in texts],
        )
        colours = [draw.choices(range(3), k=3) for _ in range(count)]
        noise = np.random.default_rng(seed).normal(scale=0.05, size=(count, 3, 3))
        np.save(folder / f"{split}.npy", (np.eye(3)[colours] + noise).astype(np.float16))
        write_lines(
            folder / f"{split}.captions",
            [" ".join(COLOURS[one] for one in sorted(row)) for row in colours],
        )


def recipe_of(stranger: str) -> str:
    task, model, columns, batch, metric = STRANGERS[stranger]
    files = {
        "labels": "labels",
        "features": "npy",
        "tgt": "captions" if stranger == "captioner" else "text",
    }
    splits = ""
    for split in SPLITS:
        named = ", ".join(f"{column}: {split}.{files.get(column, 'text')}" for column in columns)
        splits += f"  {split}: {{{named}}}\n"
    best = f"best_metric: {metric}"
    training = ", objectives: {masking: 1}" if task == "masking" else ""
    return RECIPE.format(
        task=task, splits=splits.rstrip(), model=model, batch=batch, best=best, training=training
    )


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "nmtkit", *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=pipe, stderr=pipe, text=True
    )


def done(folder: Path, *words: str) -> str:
    """What the command printed; it ends well."""
    process = started(folder, *words)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


# tests/cli/test_user_module.py has a training and a translation that `make test` runs
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=STRANGERS)
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """The name of a stranger, and a folder with its recipe and what `train` made of it."""
    stranger, folder = request.param, tmp_path_factory.mktemp(request.param)
    write_corpus(folder)
    (folder / "recipe.yaml").write_text(recipe_of(stranger), encoding="utf-8")
    option = ("--user-module", str(HERE / f"{stranger}.py"))
    done(folder, "train", "recipe.yaml", "--run", "run", "--device", "cpu", *option)
    return stranger, folder


def test_it_learns_and_is_validated_and_tested(trained: tuple[str, Path]) -> None:
    stranger, run = trained[0], trained[1] / "run"
    metric = STRANGERS[stranger][-1]
    scores = [record[f"valid_{metric}"] for record in logged(run, "evaluated")]
    assert len(scores) == 3
    assert (scores[-1] < 4) if metric == "perplexity" else (scores[-1] > 90)  # of 24 words
    tested = json.loads((run / "test.json").read_text(encoding="utf-8"))["scores"]
    assert pytest.approx(scores[-1], rel=0.3) in [one["value"] for one in tested]


def test_a_killed_training_goes_on_bit_for_bit(trained: tuple[str, Path]) -> None:
    stranger, folder = trained
    words = ("train", "recipe.yaml", "--run", "killed", "--device", "cpu")
    process = started(folder, "--user-module", str(HERE / f"{stranger}.py"), *words)
    wait_for_update(folder / "killed", 150, lambda: process.poll() is None)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    done(folder, *words, "--resume")
    assert differences(folder / "run", folder / "killed") == []


def test_it_answers_by_its_command(trained: tuple[str, Path]) -> None:
    stranger, folder = trained
    if stranger == "language_model":
        prompts = [" ".join(line.split()[:2]) for line in lines_in(folder / "test.text")]
        write_lines(folder / "prompts", [*prompts, ""])
        written = done(folder, "continue", "-m", "run", "prompts").splitlines()
        assert len(written) == 41
        whole = " ".join(WORDS * 2)
        goes_on = [
            line.startswith(f"{prompt} ") and line in whole
            for line, prompt in zip(written, prompts, strict=False)
        ]
        assert sum(goes_on) > 36
    if stranger == "classifier":
        (folder / "answers").write_text(done(folder, "sort-texts", "-m", "run", "test.text"))
        assert set(lines_in(folder / "answers")) == {"with", "without"}
        assert "Accuracy" in done(
            folder, "score", "answers", "--ref", "test.labels", "--metrics", "accuracy"
        )
    if stranger == "captioner":
        (folder / "answers").write_text(done(folder, "picture", "-m", "run", "test.npy"))
        pairs = zip(lines_in(folder / "answers"), lines_in(folder / "test.captions"), strict=True)
        assert sum(answer == caption for answer, caption in pairs) >= 36
        assert "chrF2" in done(
            folder, "score", "answers", "--ref", "test.captions", "--metrics", "chrf"
        )
