"""Warnings, with their remedy, of text that a vocabulary or a metric does not fit."""

from pathlib import Path

import pytest

from tests.support.command_cases import Case, by_name, run_case
from tests.support.commands import (
    Command,
    sentence_pairs,
    sets,
    succeeded,
    write_lines,
    write_pairs,
)
from tests.support.unspaced_pairs import unspaced_pairs

QUICK = [
    "--device",
    "cpu",
    *sets("training.max_updates=2", "training.validate_every=2", "data.test=null"),
]
GREEK = [("ωραία μέρα σήμερα", "ΣΗΜΕΡΑ ΜΕΡΑ ΩΡΑΙΑ"), ("καλημέρα κόσμε", "ΚΟΣΜΕ ΚΑΛΗΜΕΡΑ")] * 20


@pytest.fixture
def greek(tmp_path: Path) -> Path:
    write_pairs(tmp_path, "greek", GREEK)
    return tmp_path


def warnings(err: str) -> list[str]:
    return [line for line in err.splitlines() if line.startswith("warning:")]


def test_fine_tuning_on_unknown_text_is_warned_of(
    greek: Path, trained: Path, console: Command
) -> None:
    files = ["--source", greek / "greek.src", "--target", greek / "greek.tgt"]
    files += ["--valid", greek / "greek.src", greek / "greek.tgt"]
    done = succeeded(
        console("train", *files, "--init-from", trained, "--run", greek / "tuned", *QUICK)
    )
    (warning,) = [line for line in warnings(done.err) if "not in the vocabulary" in line]
    assert str(trained) in warning
    assert "100.0% of the source tokens in train, 100.0% of the target tokens in train" in warning
    assert "guide public-models" in warning


def test_fine_tuning_on_known_text_is_not_warned_of(
    tmp_path: Path, trained: Path, console: Command
) -> None:
    write_pairs(tmp_path, "own", sentence_pairs(60, 9))
    files = ["--source", tmp_path / "own.src", "--target", tmp_path / "own.tgt"]
    done = succeeded(
        console("train", *files, "--init-from", trained, "--run", tmp_path / "tuned", *QUICK)
    )
    assert "not in the vocabulary" not in done.err


def test_a_small_vocabulary_of_the_text_itself_is_warned_of(
    corpus: Path, tmp_path: Path, console: Command
) -> None:
    small = sets("tokenizer.vocab_size=10")
    done = succeeded(
        console("train", corpus / "tiny.yaml", "--run", tmp_path / "run", *QUICK, *small)
    )
    (warning,) = [line for line in warnings(done.err) if "not in the vocabulary" in line]
    assert "Raise tokenizer.vocab_size" in warning


SOURCE_UNKNOWN = "100% of the source tokens are not in"
TARGET_UNKNOWN = "100% of the target tokens are not in"
COMMANDS = {
    "translate": Case("translate greek.src -m RUN --device cpu", err=[SOURCE_UNKNOWN]),
    "translate --split-sentences": Case(
        "translate --split-sentences greek.src -m RUN --device cpu", err=[SOURCE_UNKNOWN]
    ),
    "translate -q": Case("translate -q greek.src -m RUN --device cpu", err=[SOURCE_UNKNOWN]),
    "evaluate": Case(
        "evaluate RUN --source greek.src --ref greek.tgt --device cpu", err=[SOURCE_UNKNOWN]
    ),
    "rescore": Case(
        "rescore -m RUN --source greek.src --target greek.tgt --device cpu",
        err=[SOURCE_UNKNOWN, TARGET_UNKNOWN],
    ),
    "translate known text": Case(
        "translate known.src -m RUN --device cpu", not_err=["not in the model's vocabulary"]
    ),
}


@pytest.mark.parametrize("case", by_name(COMMANDS))
def test_commands_warn_of_an_unknown_text(
    greek: Path, trained: Path, console: Command, case: Case
) -> None:
    write_lines(greek / "known.src", [source for source, _ in sentence_pairs(5, 3)])
    run_case(console, case, {"RUN": trained})


@pytest.mark.parametrize("tokenize", ["13a", "char"])
def test_a_tokenizer_of_the_metric_that_does_not_fit_the_language_is_warned_of(
    tokenize: str, corpus: Path, tmp_path: Path, console: Command
) -> None:
    write_pairs(tmp_path, "zh", unspaced_pairs("zh")[:60])
    files = f"{{src: {tmp_path}/zh.src, tgt: {tmp_path}/zh.tgt}}"
    changes = sets(f"data.train={files}", f"data.valid={files}", f"evaluation.tokenize={tokenize}")
    outputs = [
        succeeded(console("recipe", "check", corpus / "tiny.yaml", *changes, *QUICK[2:])).err,
        succeeded(
            console("train", corpus / "tiny.yaml", "--run", tmp_path / "run", *changes, *QUICK)
        ).err,
    ]
    for err in outputs:
        says = [line for line in warnings(err) if "Chinese is written without spaces" in line]
        assert len(says) == (tokenize == "13a")
        assert all("evaluation.tokenize" in line for line in says)


def test_training_without_a_recipe_chooses_settings_for_the_language(
    tmp_path: Path, console: Command
) -> None:
    """Short lines of Chinese are validated by characters; the vocabulary is one that they fill."""
    write_pairs(tmp_path, "zh", unspaced_pairs("zh")[:200])
    files = [
        "--source",
        tmp_path / "zh.src",
        "--target",
        tmp_path / "zh.tgt",
        "--run",
        tmp_path / "run",
    ]
    done = succeeded(console("train", *files, *QUICK))
    assert "evaluation.tokenize: char" in done.err
    assert "tokenize: char" in (tmp_path / "run" / "recipe.yaml").read_text()
    assert "too few subwords" not in done.err
    assert "without spaces between words, and the tokenizer" not in done.err
