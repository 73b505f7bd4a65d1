"""Language models by command: perplexity, rescoring, continuing texts."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest
import torch

from nmtkit import config
from nmtkit.data.batches.batch import Batch, Targets
from nmtkit.data.tokenizers.vocabulary import BOS, EOS
from nmtkit.experiment.stages import train_stages
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.run import Run
from tests.cli.untrained_runs import TRANSLATION, make_run
from tests.support.begun_runs import begin_run
from tests.support.command_cases import refusals, words_of
from tests.support.commands import (
    Command,
    json_lines,
    lines_in,
    refused,
    sentence_pairs,
    sets,
    succeeded,
    write_lines,
)

CPU = torch.device("cpu")
BLOCK = 8
RECIPE = """\
task: language-modelling
data: {train: {tgt: train.txt}, valid: {tgt: test.txt}, test: {tgt: test.txt}}
tokenizer: {kind: bpe, vocab_size: 50}
model: {kind: transformer_lm, hidden_size: 16, feed_forward_size: 32, heads: 2, layers: 1, max_positions: 32}
batch: {block_tokens: 8, batch_tokens: 128}
training: {lr: 0.01, max_updates: 30, validate_every: 30, best_metric: perplexity}
search: {max_length: 12}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained language model of blocks in `runs/story`, a translation model in `runs/mt`, and their texts."""
    folder = tmp_path_factory.mktemp("language-models")
    write_lines(folder / "train.txt", [source for source, _ in sentence_pairs(300, 1)])
    write_lines(
        folder / "test.txt",
        [*(source for source, _ in sentence_pairs(20, 2)), "", "  ", "ba zozo cece"],
    )
    (folder / "story.yaml").write_text(RECIPE.replace("tgt: ", f"tgt: {folder}/"))
    run = begin_run(config.load(folder / "story.yaml"), str(folder / "runs" / "story"))
    assert [*train_stages(run, CPU)]
    run.close()
    make_run(folder, "mt", TRANSLATION)
    return folder


@torch.no_grad()
def test_perplexity_is_that_of_each_block_by_itself(folder: Path, console: Command) -> None:
    """By token, word, byte and frequency, summed up from the distributions of the model, one block at a time."""
    model, tokenizers, _ = Run(RunFolder(folder / "runs" / "story")).open_model(CPU)
    seen = Counter(word for line in lines_in(folder / "train.txt") for word in line.split())
    lines = [line for line in lines_in(folder / "test.txt") if line.strip()]
    # all tokens, and of each that is predicted its line, the place of its word there, its word
    text, owner = [BOS], []
    for number, line in enumerate(lines):
        for place, word in enumerate(line.split()):
            text += tokenizers.tgt.encode(word)
            owner += [(number, place, word)] * (len(text) - 1 - len(owner))
        text.append(EOS)
        owner.append((number, -1, ""))
    of_words = Counter[tuple[int, int, str]]()
    for first in range(0, len(owner), BLOCK):
        wanted = torch.tensor([text[first + 1 : first + BLOCK + 1]])
        read = torch.tensor(
            [[BOS if token == EOS else token for token in text[first : first + wanted.shape[1]]]]
        )
        log_probs = model(
            Batch(targets=Targets(read, wanted, wanted, torch.ones_like(wanted, dtype=torch.bool)))
        )
        for step, token in enumerate(wanted[0].tolist()):
            of_words[owner[first + step]] += float(log_probs[0, step, token])
    total, size = sum(of_words.values()), sum(len(line) + 1 for line in lines)

    done = succeeded(
        console("perplexity", "-m", folder / "runs" / "story", "--json", folder / "test.txt")
    )
    found = json.loads(done.out)
    counts = {"token": len(owner), "word": len(of_words), "byte": size}
    for unit, count in counts.items():
        one = next(one for one in found["by_unit"] if one["unit"] == unit)
        assert one["count"] == count
        assert one["log_prob"] == pytest.approx(total, rel=1e-5)
        assert one["perplexity"] == pytest.approx(math.exp(-total / count), rel=1e-5)
        assert one["bits"] == pytest.approx(-total / count / math.log(2), rel=1e-5)
    table = {one["unit"]: one for one in found["by_frequency"]}
    ranges = {"0": range(1), "10 to 99": range(10, 100)}
    for name, numbers in ranges.items():
        own = [
            log_prob
            for (_, _, word), log_prob in of_words.items()
            if word and seen[word] in numbers
        ]
        assert table[name]["count"] == len(own) > 0
        assert table[name]["log_prob"] == pytest.approx(sum(own), rel=1e-5)
    assert table["end of a line"]["count"] == len(lines)
    assert sum(one["log_prob"] for one in table.values()) == pytest.approx(total, rel=1e-5)
    evaluated = succeeded(console("evaluate", folder / "runs" / "story"))
    level, of_a_word = (math.exp(-total / counts[unit]) for unit in ("token", "word"))
    assert f"perplexity {level:.2f}  word perplexity {of_a_word:.2f}" in evaluated.out


def test_a_model_of_lines_measures_each_line_by_itself(console: Command) -> None:
    model = "{kind: rnn_lm, hidden_size: 8, layers: 1, dropout: 0}"
    data = "{train: {tgt: [text]}, valid: {tgt: [text]}}"
    training = "{max_updates: 1, best_metric: perplexity}"
    settings = f"data: {data}\ntokenizer: {{kind: word}}\nmodel: {model}\ntraining: {training}\n"
    run = make_run(Path(), "lines", f"task: language-modelling\n{settings}")
    how, text = (
        ["perplexity", "-m", run, "--json"],
        "The old man sees the dog.\nThe dog sleeps.\nIt sees the man.\n",
    )
    alone, in_blocks = (
        json.loads(console(*how, *more, stdin=text).out) for more in ((), ("--block-tokens", 50))
    )
    assert in_blocks["by_unit"][0]["count"] == alone["by_unit"][0]["count"]
    assert in_blocks["by_unit"][0]["log_prob"] == pytest.approx(
        alone["by_unit"][0]["log_prob"], rel=1e-6
    )


def test_rescore_gives_the_values_of_generate_and_perplexity(
    folder: Path, console: Command
) -> None:
    """Continuations as the search found them; a text by itself as `perplexity` has it."""
    run, prompts = folder / "runs" / "story", write_lines(folder / "prompts", ["", "ba"])
    how = [
        "generate",
        "-m",
        run,
        "--json",
        "--max-length",
        20,
        "-o",
        folder / "found.jsonl",
        prompts,
    ]
    succeeded(console(*how))
    best = [record["best"] for record in json_lines((folder / "found.jsonl").read_text())]
    assert best[1]["text"].startswith("ba")
    done = succeeded(
        console("rescore", "-m", run, "--source", prompts, "--target", folder / "found.jsonl")
    )
    given = [float(line.split("\t")[1]) for line in done.out.splitlines()]
    assert given == pytest.approx([one["log_prob"] for one in best], abs=1e-4)
    lines = write_lines(folder / "lines", lines_in(folder / "test.txt")[:3])
    done = succeeded(console("rescore", "-m", run, "--target", lines))
    for line, log_prob in zip(lines_in(lines), done.out.splitlines(), strict=True):
        fit = json.loads(
            console("perplexity", "-m", run, "--block-tokens", 32, "--json", stdin=line).out
        )
        assert fit["by_unit"][0]["log_prob"] == pytest.approx(
            float(log_prob.split("\t")[1]), rel=1e-5
        )
    assert "3 lines, " in done.err


def test_samples_depend_on_the_seed(folder: Path, console: Command) -> None:
    how = ["generate", "-m", folder / "runs" / "story", "--samples", 3, "--top-k", 5]
    first, same, other = (
        succeeded(console(*how, "--seed", seed, stdin="ba\n\n")).out for seed in (1, 1, 2)
    )
    assert first == same != other
    rows = [line.split("\t") for line in first.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "1", "2", "2", "2"]
    assert all(row[3].startswith("ba") for row in rows[:3])


def test_lists_that_are_shorter_than_asked_for_are_reported(folder: Path, console: Command) -> None:
    """There are at most 50 tokens."""
    how = ["generate", "-m", folder / "runs" / "story", "--n-best", 90, "--max-length", 1]
    assert "1 of 1 lines have fewer than 90 texts" in succeeded(console(*how, stdin="\n")).err


def test_a_language_model_is_trained_on_one_text_without_a_recipe(console: Command) -> None:
    """One text is enough: it is split, a model is chosen by its words, trained, resumed and tested."""
    lines = [source for source, _ in sentence_pairs(200, 3)]
    how = [
        "train",
        "--task",
        "language-modelling",
        "--target",
        write_lines("own.txt", lines),
        "--device",
        "cpu",
    ]
    small = sets("model.hidden_size=16", "model.feed_forward_size=16", "batch.batch_tokens=256")
    done = succeeded(console(*how, *small, "--set", "training.max_updates=2"))
    assert "180 texts with " in done.err
    assert (
        "held out: 10 for valid and 10 for test; none of their texts are used for training"
        in done.err
    )
    assert "train 180 texts (" in done.err
    assert "perplexity|tokens:" in done.out
    splits = [
        lines_in(Path("runs/own/text") / f"{split}.txt") for split in ("train", "valid", "test")
    ]
    assert sorted(line for split in splits for line in split) == sorted(lines)
    assert "pair" not in Path("runs/own/chosen.yaml").read_text() + done.err.replace("pairs.py", "")
    resumed = succeeded(console(*how, *small, "--set", "training.max_updates=3", "--resume"))
    assert "finished after update 3" in resumed.err
    refused(
        console(*how, "--source", "own.txt"),
        "--source does not apply to this task, whose examples are single texts; give only --target FILE",
    )


POSITIONS = "fewer than 33 positions; use a smaller --block-tokens"
LOSS_ALONE = "only by loss and perplexity; remove "
REFUSED = {
    "perplexity -m MT": {"TEXT": "is not a language model; use a run with a language model"},
    "rescore -m MT": {"--target TEXT": "is not a language model; use a run with a language model"},
    "generate -m MT": {"TEXT": "was trained for translation; use `nmtkit translate`"},
    "perplexity -m STORY": {
        "": "there is nothing to measure, because all lines are empty",
        "--block-tokens 33 TEXT": POSITIONS,
    },
    "evaluate STORY": {
        "-o out": LOSS_ALONE + "-o",
        "--metrics bleu": LOSS_ALONE + "--metrics",
        "--beam-size 2": LOSS_ALONE + "all search options",
        "--plot a.png": LOSS_ALONE + "--plot",
        "--no-lowercase": LOSS_ALONE + "--[no-]lowercase",
    },
}


@pytest.mark.parametrize(("line", "message"), refusals(REFUSED))
def test_options_that_do_not_fit_a_language_model_are_refused(
    folder: Path, console: Command, line: str, message: str
) -> None:
    places = {
        "MT": folder / "runs" / "mt",
        "STORY": folder / "runs" / "story",
        "TEXT": folder / "test.txt",
    }
    refused(console(*words_of(line, places), stdin="\n \n"), message)
