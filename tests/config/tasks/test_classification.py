"""Classification from two files of text: trained without a recipe, given with probabilities, judged by a table."""

import json
import random
import re
from collections import deque
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from nmtkit import config
from nmtkit.core.errors import NmtkitError, RecipeError
from nmtkit.data.tokenizers.tokenizer import TokenizerConfig, WordTokenizer
from nmtkit.data.tokenizers.vocabulary import EOS
from nmtkit.experiment.presets.without_recipe import RecipeRequest, propose_recipe
from nmtkit.experiment.stages import train_stages
from nmtkit.plots.documents import DocumentPicture, save_documents
from nmtkit.plots.drawing import FigureStyle
from tests.support.begun_runs import begin_run
from tests.support.commands import Command, lines_in, refused, succeeded, write_lines

TELLING = {"sport": "the team won", "money": "the bank lent", "fine art": "a film sang"}


def write_texts(folder: Path, count: int) -> None:
    """Texts of two to four sentences, of which one tells the label."""
    draw, words = random.Random(1), [one + other for one in "bdfgklmn" for other in "aeiou"]
    texts, labels = [], []
    for _ in range(count):
        label = draw.choice([*TELLING])
        sentences = [
            " ".join(draw.choices(words, k=draw.randint(3, 5))) for _ in range(draw.randint(1, 3))
        ]
        sentences.insert(draw.randint(0, len(sentences)), TELLING[label])
        texts.append(" ".join(f"{sentence}." for sentence in sentences))
        labels.append(label)
    write_lines(folder / "texts", texts)
    write_lines(folder / "labels", labels)


SMALL = ("embedding_size=16", "hidden_size=8", "attention_size=16", "dropout=0")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of the preset, but of smaller sizes."""
    folder = tmp_path_factory.mktemp("classification")
    write_texts(folder, 600)
    files = {"source": (str(folder / "texts"),), "target": (str(folder / "labels"),)}
    request = RecipeRequest(task="classification", preset="small", **files)  # type: ignore[arg-type]  # names of files
    small = [f"model.{one}" for one in SMALL]
    small += [
        "training.max_updates=60",
        "training.validate_every=30",
        "training.lr=0.02",
        "batch.batch_tokens=1024",
    ]
    lock = propose_recipe(request, str(folder / "run"), small, device="cpu")
    assert lock is not None
    with lock:
        run = begin_run(config.load(folder / "run" / "chosen.yaml", small), str(folder / "run"))
        deque(train_stages(run, torch.device("cpu")), 0)
        run.close()
    return folder


def test_a_recipe_is_proposed_for_texts_and_labels(trained: Path) -> None:
    chosen = (trained / "run" / "chosen.yaml").read_text(encoding="utf-8")
    assert "extends: preset-classes-small" in chosen
    assert "labels: text/train.labels" in chosen
    held = [
        len(lines_in(trained / "run" / "text" / f"{split}.labels"))
        for split in ("train", "valid", "test")
    ]
    assert sum(held) == 600
    assert min(held) > 20


def test_labels_are_given_with_their_probabilities(trained: Path, console: Command) -> None:
    how = ["-m", trained / "run", "--device", "cpu"]
    test = [trained / "run" / "text" / f"test.{end}" for end in ("src", "labels")]
    labels = succeeded(console("classify", *how, test[0])).out.splitlines()
    wanted = lines_in(test[1])
    assert sum(one == other for one, other in zip(labels, wanted, strict=True)) > 0.9 * len(wanted)
    records = [
        json.loads(line)
        for line in succeeded(console("classify", *how, test[0], "--json")).out.splitlines()
    ]
    assert [record["label"] for record in records] == labels
    for number, record in enumerate(records, start=1):
        assert record["line"] == number
        assert {*record["probabilities"]} == {*TELLING}
        assert sum(record["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert record["probability"] == max(record["probabilities"].values())
    best = succeeded(console("classify", *how, test[0], "--n-best", "2")).out.splitlines()
    assert len(best) == 2 * len(labels)
    number, probability, label = best[2].split("\t")
    assert (number, label) == ("2", labels[1])
    assert float(probability) == pytest.approx(records[1]["probability"], abs=1e-5)


def test_evaluation_has_two_scores_and_a_table(trained: Path, console: Command) -> None:
    files = [
        f"--{name}={trained}/run/text/test.{end}"
        for name, end in (("source", "src"), ("ref", "labels"))
    ]
    how = [trained / "run", *files, "--device", "cpu"]
    picture = trained / "table.svg"
    printed = succeeded(console("evaluate", *how, "--plot", picture)).out.splitlines()
    assert "Accuracy" in printed[0]
    assert "F1" in printed[0]
    assert [one.split()[0] for one in printed[3:]] == ["fine_art", "money", "sport"]
    drawn = picture.read_text(encoding="utf-8")
    assert all(
        word in drawn for word in ("fine_art", "true label", "predicted label", "share of the row")
    )
    record = json.loads(succeeded(console("evaluate", *how, "--json")).out)
    assert record["labels"] == ["fine_art", "money", "sport"]
    assert sum(map(sum, record["confusion"])) == record["lines"]
    right = sum(row[number] for number, row in enumerate(record["confusion"]))
    assert record["scores"][0]["value"] == pytest.approx(100 * right / record["lines"])
    refused(
        console("evaluate", *how, "--plot", "table.txt"), "does not select a supported image format"
    )
    refused(
        console("evaluate", *how, "--plot", picture, "-o", picture), "-o would overwrite a file"
    )
    for more in (["--workers", "2"], ["--precision", "bf16"], ["--beam-size", "2"]):
        refused(
            console("evaluate", *how, *more), "remove the search options, --workers and --precision"
        )


def test_attention_is_drawn_on_the_text(trained: Path, console: Command) -> None:
    """The sentence that tells the label has the largest weight, and its words are on the picture in their order."""
    how, text = (
        ["plot-attention", "-m", trained / "run", "--device", "cpu"],
        "ba be bi bo. the team won. gu ga ge.",
    )
    lines = succeeded(console(*how, text)).out.splitlines()
    assert lines[0].startswith("run: sport (")
    weights = {line[5:]: float(line[:4]) for line in lines[1:] if line[0].isdigit()}
    assert [*weights] == ["ba be bi bo.", "the team won.", "gu ga ge."]
    assert max(weights, key=lambda sentence: weights[sentence]) == "the team won."
    assert sum(weights.values()) == pytest.approx(1, abs=0.02)
    for suffix in ("svg", "png", "pdf", "html"):
        succeeded(console(*how, "-o", trained / f"read.{suffix}", stdin=f"{text}\n{text}\n"))
        assert (trained / f"read.{suffix}").stat().st_size > 1000
    drawn = re.findall(r">([^<>]+)</text>", (trained / "read.svg").read_text(encoding="utf-8"))
    shown = [weight for weight, sentence in pairwise(drawn) if sentence == "ba"]
    assert len(shown) == 2
    assert f"{weights['ba be bi bo.']:.2f}" == shown[0]
    assert drawn[-3:] == ["gu", "ga", "ge."]
    for more in (["a target"], ["--layer", "1"], ["--head", "2"]):
        refused(console(*how, text, *more), "a model that predicts labels")
    refused(console(*how, " "), "contains no text that the tokenizer can encode")


def test_a_picture_has_the_shades_of_the_paper(tmp_path: Path) -> None:
    """sqrt(p_s) p_w: of two sentences with the weights 0.64 and 0.36, whose words share them alike and 3 to 1."""
    weights = [np.array([0.32, 0.32]), np.array([0.27, 0.09])]
    picture = DocumentPicture([["a", "b"], ["c", "d"]], weights, title="shades")
    np.testing.assert_allclose(picture.of_sentences, [0.64, 0.36])
    wanted = np.array([0.8 * 0.5, 0.8 * 0.5, 0.6 * 0.75, 0.6 * 0.25]) / 0.45
    np.testing.assert_allclose(np.concatenate(picture.shades), wanted)
    with pytest.raises(NmtkitError, match="no text, or the attention has non-finite weights"):
        save_documents([], tmp_path / "none.png")
    low = FigureStyle(size=(7.0, 0.5), font_size=20)
    with pytest.raises(NmtkitError, match=r"the text needs a height of .* at 20 points"):
        save_documents([picture], tmp_path / "low.png", low)


def test_a_run_of_labels_is_not_fine_tuned_without_a_recipe(
    trained: Path, console: Command
) -> None:
    files = ["--source", trained / "texts", "--target", trained / "labels"]
    refused(
        console("train", *files, "--init-from", trained / "run", "--run", trained / "other"),
        "requires a recipe; write one with",
    )


def test_sentences_end_in_their_marks() -> None:
    tokenizer = WordTokenizer.learn(
        TokenizerConfig(kind="word", vocab_size=50, sentences=True), ["a b c . !"]
    )
    whole = WordTokenizer(
        tokenizer.config.model_copy(update={"sentences": False}), tokenizer.vocabulary
    )
    for text, parts in (
        ("a b. c! a", ["a b.", "c!", "a"]),
        ("a. b\nc", ["a. b", "c"]),
        ("a", ["a"]),
        ("  ", []),
    ):
        wanted = [one for part in parts for one in (*whole.encode(part), EOS)][:-1]
        assert tokenizer.encode_many([text, text]) == [wanted, wanted]


@pytest.mark.parametrize(
    ("task", "answer", "more", "told"),
    [
        (
            "classification",
            "labels",
            "model={kind: hierarchical_attention}",
            "set `tokenizer.sentences` to true",
        ),
        (
            "translation",
            "tgt",
            "tokenizer.sentences=true",
            "the texts generated in the task translation must have a single EOS",
        ),
        (
            "classification",
            "labels",
            "training.objectives.coverage_weight=1",
            "this loss is computed from the attention of output words",
        ),
    ],
)
def test_what_goes_with_labels_alone(
    task: str, answer: str, more: str, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        f"task: {task}\n"
        f"data: {{train: {{src: a, {answer}: b}}, valid: {{src: a, {answer}: b}}}}\n"
        f"model: {{kind: {'rnnsearch' if answer == 'tgt' else 'attention_classifier'}}}\n"
        "training: {max_updates: 1, best_metric: loss}\n"
    )
    assert config.load(path).task == task
    with pytest.raises(RecipeError, match=told):
        config.load(path, [more])
