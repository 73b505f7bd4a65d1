"""The tokens of a run, and back."""

from pathlib import Path

import pytest
from commands import Command, sentence_pairs, succeeded

from nmtkit import Translator

LINES = [source for source, _ in sentence_pairs(6, 31)]


def test_there_and_back(trained: Path, console: Command, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("".join(line + "\n" for line in [*LINES, "", "Unknown, WORDS! 3.5"]))
    done = succeeded(console("tokenize", "-m", trained, text))
    assert f"source tokenizer of {trained} (as asked): word, " in done.err
    tokenizer = Translator.load(str(trained), device="cpu").tokenizers.src
    *known, empty, unknown = done.out.splitlines()
    assert [line.split(" ") for line in known] == [tokenizer.pieces(tokenizer.encode(line)) for line in LINES]
    assert (empty, unknown) == ("", "▁Unknown , ▁WORDS ! ▁3.5")
    back = console("detokenize", "-q", "-m", trained, "-o", "back", stdin=done.out)
    assert (back.code, back.out, back.err) == (0, "", "")
    assert (tmp_path / "back").read_text() == text.read_text()


@pytest.mark.parametrize("side", ["source", "target"])
def test_each_side_has_its_tokenizer(trained: Path, console: Command, side: str) -> None:
    for command in ("tokenize", "detokenize"):
        done = console(command, "-m", trained, "--side", side, stdin="")
        assert (done.code, done.out) == (0, "")
        assert done.err.startswith(f"{side} tokenizer of ")


def test_text_that_was_not_tokenized_is_refused(trained: Path, console: Command) -> None:
    done = console("detokenize", "-m", trained, stdin="▁ba\nba ce di\n")
    assert (done.code, done.out) == (2, "ba\n")
    assert "line 2: no token of 'ba ce di' has the mark ▁ of a word" in done.err
