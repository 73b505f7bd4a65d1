"""Guided alignment as a user sees it."""

import json
from pathlib import Path

from conftest import Command

SHORT = [
    *("--set", "training.max_updates=4", "--set", "training.log_every=2", "--set", "evaluation.max_sentences=2"),
    *("--set", "data.test=null", "--set", "search.max_length=9"),
]


def reversed_links(corpus: Path, path: Path) -> Path:
    """The gold alignment of the made-up language: the translation says the words backwards."""
    lengths = [len(line.split()) for line in (corpus / "train.src").read_text().splitlines()]
    path.write_text("".join(" ".join(f"{i}-{n - 1 - i}" for i in range(n)) + "\n" for n in lengths))
    return path


def steps(folder: Path) -> list[dict[str, float]]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if record["event"] == "step"]


def test_the_loss_is_shown_where_alignments_guide_and_nowhere_else(
    corpus: Path, nmtkit: Command, tmp_path: Path
) -> None:
    links = ["--set", f"data.train.alignment={reversed_links(corpus, tmp_path / 'train.align')}"]
    guided = nmtkit(
        *("train", corpus / "tiny.yaml", "--run", tmp_path / "guided", *SHORT, *links),
        *("--set", "training.guided_alignment.weight=0.5"),
    )
    assert guided.code == 0, guided
    assert "alignment_loss" in guided.err
    assert "alignment links between tokens: 4.5 a pair" in guided.err
    for step in steps(tmp_path / "guided"):
        assert 0.5 < step["alignment_loss"] < 2.5  # of 3 to 6 words and EOS: about ln 5.5
        assert step["loss"] > step["nll"]

    plain = nmtkit("train", corpus / "tiny.yaml", "--run", tmp_path / "plain", *SHORT)
    assert plain.code == 0, plain
    assert "alignment" not in plain.err
    assert all("alignment_loss" not in step for step in steps(tmp_path / "plain"))


def test_a_faulty_alignment_ends_in_one_message(corpus: Path, nmtkit: Command, tmp_path: Path) -> None:
    path = reversed_links(corpus, tmp_path / "train.align")
    path.write_text(path.read_text().replace("-", ":", 1))
    done = nmtkit("train", corpus / "tiny.yaml", "--run", tmp_path / "run", "--set", f"data.train.alignment={path}")
    assert done.code == 2
    assert "train.align, line 1: '0:" in done.err
    assert "Traceback" not in done.err
