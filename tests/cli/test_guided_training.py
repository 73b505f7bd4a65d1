"""Guided alignment as a user sees it."""

import re
from pathlib import Path

import pytest

from tests.support.commands import (
    Command,
    backwards_links,
    lines_in,
    logged,
    refused,
    sets,
    succeeded,
    write_lines,
)

SHORT = sets(
    "training.max_updates=4",
    "training.log_every=2",
    "evaluation.max_sentences=2",
    "search.max_length=9",
)
UNTESTED = [*SHORT, "--set", "data.test=null"]
GUIDED = "training.objectives.guided_alignment.weight=0.5"


@pytest.mark.slow
def test_guided_training_reports_the_alignment_loss(
    small_corpus: Path, nmtkit: Command, tmp_path: Path
) -> None:
    gold = write_lines(
        tmp_path / "train.align", backwards_links(lines_in(small_corpus / "train.src"))
    )
    command = ["train", small_corpus / "tiny.yaml", *UNTESTED, "--run"]
    guided = succeeded(
        nmtkit(*command, tmp_path / "guided", *sets(f"data.train.alignment={gold}", GUIDED))
    )
    assert "alignment_loss" in guided.err
    assert "4.6 alignment links per pair" in guided.err
    for step in logged(tmp_path / "guided", "step"):
        assert 0.5 < step["alignment_loss"] < 2.5  # of 3 to 6 words and EOS: about ln 5.5
        assert step["loss"] > step["nll"]

    plain = succeeded(nmtkit(*command, tmp_path / "plain"))
    assert "alignment" not in plain.err
    assert all("alignment_loss" not in step for step in logged(tmp_path / "plain", "step"))


def test_links_counted_from_1_are_refused_without_alignment_base(
    small_corpus: Path, nmtkit: Command, tmp_path: Path
) -> None:
    """Without the last word of either side, no link is out of range."""
    shorter = backwards_links(
        line.rpartition(" ")[0] for line in lines_in(small_corpus / "train.src")
    )
    path = tmp_path / "1.align"
    write_lines(
        path, [re.sub(r"\d+", lambda number: str(int(number[0]) + 1), row) for row in shorter]
    )
    command = [
        "train",
        small_corpus / "tiny.yaml",
        *UNTESTED,
        *sets(GUIDED, f"data.train.alignment={path}"),
        "--run",
    ]
    doubted = "1.align: words are assumed to be counted from 0, but no link refers to the first word of a sentence"
    refused(nmtkit(*command, tmp_path / "run"), doubted)
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert doubted in nmtkit("check", *command[1:], tmp_path / "run").err
    succeeded(nmtkit(*command, tmp_path / "run", "--set", "data.train.alignment_base=1"))


@pytest.mark.slow
def test_a_gold_alignment_counted_from_1_is_noted(
    small_corpus: Path, nmtkit: Command, tmp_path: Path
) -> None:
    gold = tmp_path / "gold"
    gold.write_text("1-1 2-2\n" * 40)
    options = [*SHORT, "--set", f"data.test.alignment={gold}"]
    noted = succeeded(
        nmtkit("train", small_corpus / "tiny.yaml", "--run", tmp_path / "noted", *options)
    )
    assert (
        f"{gold} was read as if words were counted from 0, but no link refers to the first word of a sentence"
        in noted.err
    )
    options += ["--set", "data.test.alignment_base=1"]
    said = succeeded(
        nmtkit("train", small_corpus / "tiny.yaml", "--run", tmp_path / "said", *options)
    )
    assert "counting words from 0" not in said.err
