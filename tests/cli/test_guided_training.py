"""Guided alignment as a user sees it."""

from pathlib import Path

import pytest
from commands import Command, json_lines, refused, sets, succeeded

SHORT = sets("training.max_updates=4", "training.log_every=2", "evaluation.max_sentences=2", "search.max_length=9")
UNTESTED = [*SHORT, "--set", "data.test=null"]
GUIDED = "training.guided_alignment.weight=0.5"


@pytest.fixture(scope="module")
def corpus(small_corpus: Path) -> Path:
    return small_corpus


def reversed_links(corpus: Path, path: Path) -> Path:
    """The gold alignment of the made-up language: the translation says the words backwards."""
    lengths = [len(line.split()) for line in (corpus / "train.src").read_text().splitlines()]
    path.write_text("".join(" ".join(f"{i}-{n - 1 - i}" for i in range(n)) + "\n" for n in lengths))
    return path


def steps(folder: Path) -> list[dict[str, float]]:
    return [record for record in json_lines((folder / "metrics.jsonl").read_text()) if record["event"] == "step"]


def test_the_loss_is_shown_where_alignments_guide_and_nowhere_else(
    corpus: Path, nmtkit: Command, tmp_path: Path
) -> None:
    links = f"data.train.alignment={reversed_links(corpus, tmp_path / 'train.align')}"
    command = ["train", corpus / "tiny.yaml", *UNTESTED, "--run"]
    guided = succeeded(nmtkit(*command, tmp_path / "guided", *sets(links, GUIDED)))
    assert "alignment_loss" in guided.err
    assert "4.6 alignment links a pair" in guided.err
    for step in steps(tmp_path / "guided"):
        assert 0.5 < step["alignment_loss"] < 2.5  # of 3 to 6 words and EOS: about ln 5.5
        assert step["loss"] > step["nll"]

    plain = succeeded(nmtkit(*command, tmp_path / "plain"))
    assert "alignment" not in plain.err
    assert all("alignment_loss" not in step for step in steps(tmp_path / "plain"))


def test_links_counted_from_1_are_taught_only_as_such(corpus: Path, nmtkit: Command, tmp_path: Path) -> None:
    """Without the last word of either side, no link is out of range; the same links are then taught by either base."""
    zero, one = tmp_path / "0.align", tmp_path / "1.align"
    rows = reversed_links(corpus, zero).read_text().splitlines()
    kept = [[link.split("-") for link in row.split()[1:-1]] for row in rows]
    for path, base in ((zero, 0), (one, 1)):
        path.write_text("".join(" ".join(f"{int(i) + base}-{int(j) + base}" for i, j in row) + "\n" for row in kept))
    command = ["train", corpus / "tiny.yaml", *UNTESTED, "--set", GUIDED]
    links = f"data.train.alignment={one}"

    doubted = "1.align: words are taken to be counted from 0, but no link has a first word"
    refused(nmtkit(*command, *sets(links), "--run", tmp_path / "refused"), doubted)
    assert not (tmp_path / "refused" / "checkpoints").exists()
    assert doubted in nmtkit("check", corpus / "tiny.yaml", *sets(links), "--run", tmp_path / "refused").err
    succeeded(nmtkit(*command, *sets(links, "data.train.alignment_base=1"), "--run", tmp_path / "said"))
    links = f"data.train.alignment={zero}"
    succeeded(nmtkit(*command, *sets(links, "data.train.alignment_base=0"), "--run", tmp_path / "plain"))
    losses = [[step["alignment_loss"] for step in steps(tmp_path / name)] for name in ("said", "plain")]
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


def test_a_faulty_alignment_ends_in_one_message(corpus: Path, nmtkit: Command, tmp_path: Path) -> None:
    path = reversed_links(corpus, tmp_path / "train.align")
    path.write_text(path.read_text().replace("-", ":", 1))
    changed = sets(f"data.train.alignment={path}")
    refused(nmtkit("train", corpus / "tiny.yaml", "--run", tmp_path / "run", *changed), "train.align, line 1: '0:")
