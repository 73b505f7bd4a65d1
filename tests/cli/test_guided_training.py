"""Guided alignment as a user sees it."""

from pathlib import Path

import pytest
from commands import Command, backwards_links, lines_in, logged, refused, sets, succeeded, write_lines

SHORT = sets("training.max_updates=4", "training.log_every=2", "evaluation.max_sentences=2", "search.max_length=9")
UNTESTED = [*SHORT, "--set", "data.test=null"]
GUIDED = "training.guided_alignment.weight=0.5"


@pytest.fixture(scope="module")
def corpus(small_corpus: Path) -> Path:
    return small_corpus


@pytest.fixture(scope="module")
def links(corpus: Path) -> list[str]:
    """The gold alignment of the training text."""
    return backwards_links(lines_in(corpus / "train.src"))


def test_the_loss_is_shown_where_alignments_guide_and_nowhere_else(
    corpus: Path, links: list[str], nmtkit: Command, tmp_path: Path
) -> None:
    alignment = f"data.train.alignment={write_lines(tmp_path / 'train.align', links)}"
    command = ["train", corpus / "tiny.yaml", *UNTESTED, "--run"]
    guided = succeeded(nmtkit(*command, tmp_path / "guided", *sets(alignment, GUIDED)))
    assert "alignment_loss" in guided.err
    assert "4.6 alignment links a pair" in guided.err
    for step in logged(tmp_path / "guided", "step"):
        assert 0.5 < step["alignment_loss"] < 2.5  # of 3 to 6 words and EOS: about ln 5.5
        assert step["loss"] > step["nll"]

    plain = succeeded(nmtkit(*command, tmp_path / "plain"))
    assert "alignment" not in plain.err
    assert all("alignment_loss" not in step for step in logged(tmp_path / "plain", "step"))


def test_links_counted_from_1_are_taught_only_as_such(
    corpus: Path, links: list[str], nmtkit: Command, tmp_path: Path
) -> None:
    """Without the last word of either side, no link is out of range; the same links are then taught by either base."""
    kept = [[link.split("-") for link in row.split()[1:-1]] for row in links]
    zero, one = (
        write_lines(
            tmp_path / f"{base}.align", [" ".join(f"{int(i) + base}-{int(j) + base}" for i, j in row) for row in kept]
        )
        for base in (0, 1)
    )
    command = ["train", corpus / "tiny.yaml", *UNTESTED, "--set", GUIDED]
    alignment = f"data.train.alignment={one}"

    doubted = "1.align: words are taken to be counted from 0, but no link has a first word"
    refused(nmtkit(*command, *sets(alignment), "--run", tmp_path / "refused"), doubted)
    assert not (tmp_path / "refused" / "checkpoints").exists()
    assert doubted in nmtkit("check", corpus / "tiny.yaml", *sets(alignment), "--run", tmp_path / "refused").err
    succeeded(nmtkit(*command, *sets(alignment, "data.train.alignment_base=1"), "--run", tmp_path / "said"))
    alignment = f"data.train.alignment={zero}"
    succeeded(nmtkit(*command, *sets(alignment, "data.train.alignment_base=0"), "--run", tmp_path / "plain"))
    losses = [[step["alignment_loss"] for step in logged(tmp_path / name, "step")] for name in ("said", "plain")]
    assert losses[0] == losses[1]


def test_a_gold_alignment_counted_from_1_is_noted_beside_its_error_rate(
    corpus: Path, nmtkit: Command, tmp_path: Path
) -> None:
    gold = tmp_path / "gold"
    gold.write_text("1-1 2-2\n" * 40)
    options = [*SHORT, "--set", f"data.test.alignment={gold}"]
    noted = succeeded(nmtkit("train", corpus / "tiny.yaml", "--run", tmp_path / "noted", *options))
    assert f"{gold} was read as counting words from 0, but no link has a first word" in noted.err
    options += ["--set", "data.test.alignment_base=1"]
    said = succeeded(nmtkit("train", corpus / "tiny.yaml", "--run", tmp_path / "said", *options))
    assert "counting words from 0" not in said.err


def test_a_faulty_alignment_ends_in_one_message(
    corpus: Path, links: list[str], nmtkit: Command, tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "train.align", [links[0].replace("-", ":"), *links[1:]])
    changed = sets(f"data.train.alignment={path}")
    refused(nmtkit("train", corpus / "tiny.yaml", "--run", tmp_path / "run", *changed), "train.align, line 1: '0:")
