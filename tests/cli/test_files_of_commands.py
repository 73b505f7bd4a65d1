"""Files as arguments, `--output`, `--quiet`, the prompt, and paragraphs: what translate and its kin share."""

import gzip
from pathlib import Path

import pytest
from commands import Command, as_text, refused, sentence_pairs, succeeded, write_lines
from keyboard import typed

from nmtkit import ParagraphTranslator, Translator

LINES = [source for source, _ in sentence_pairs(9, 11)]


@pytest.fixture
def texts(tmp_path: Path) -> list[Path]:
    """Two files that are `LINES` together, the second packed."""
    second = tmp_path / "second.txt.gz"
    second.write_bytes(gzip.compress(as_text(LINES[5:]).encode()))
    return [write_lines(tmp_path / "first.txt", LINES[:5]), second]


def test_files_are_one_text(trained: Path, console: Command, texts: list[Path], tmp_path: Path) -> None:
    words = ["translate", "-m", trained, "--n-best", 2]
    piped = console(*words, stdin=as_text(LINES)).out
    assert len(piped.splitlines()) == 2 * len(LINES)
    assert succeeded(console(*words, *texts)).out == piped
    out = tmp_path / "new" / "out.txt"
    done = succeeded(console(*words, *texts, "-o", out))
    assert (done.out, out.read_text()) == ("", piped)
    assert f"wrote {out}" in done.err
    succeeded(console(*words, "-", "-o", "out.gz", stdin=as_text(LINES)))
    assert gzip.decompress(Path("out.gz").read_bytes()).decode() == piped


@pytest.mark.parametrize("name", ["rescore", "align"])
def test_output_of_pairs(trained: Path, corpus: Path, console: Command, tmp_path: Path, name: str) -> None:
    pairs = ["--source", corpus / "test.src", "--target", corpus / "test.tgt"]
    printed = console(name, "-m", trained, *pairs)
    done = console(name, "-m", trained, *pairs, "-q", "--output", tmp_path / "out")
    assert (done.code, done.out, (tmp_path / "out").read_text()) == (0, "", printed.out)
    assert "model " in printed.err
    assert "model " not in done.err
    assert ("perplexity" in done.err) == (name == "rescore"), "results stay"


def test_no_file_that_is_read_is_replaced(trained: Path, console: Command, texts: list[Path], tmp_path: Path) -> None:
    before = [text.read_bytes() for text in texts]
    (tmp_path / "link").symlink_to(texts[1])
    for output in (texts[0], tmp_path / "link", tmp_path / "." / texts[1].name):
        refused(console("translate", "-m", trained, *texts, "-o", output), "-o names a file that is read")
    files = ["--source", texts[0], "--target", texts[1], "-o", texts[1]]
    refused(console("align", "-m", trained, *files), "-o names a file that is read")
    assert [text.read_bytes() for text in texts] == before


def test_no_half_an_output(trained: Path, console: Command, texts: list[Path], tmp_path: Path) -> None:
    out, bad = tmp_path / "out", tmp_path / "bad"
    out.write_text("what was there\n")
    bad.write_bytes(b"ba\n\xff\n")
    refused(console("translate", "-m", trained, texts[0], bad, "-o", out), "bad, line 2: not UTF-8")
    assert out.read_text() == "what was there\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "first.txt", "out", "second.txt.gz"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["first.txt", "nosuch"], "nosuch: cannot read it: there is no such file"),
        (["first.txt", "."], ".: cannot read it: it is a folder"),
        (["first.txt", "-"], "standard input (-) cannot stand among files"),
        (["first.txt", "lines.json"], "lines.json: each line is a JSON object"),
        (["first.txt", "-o", "."], "is a directory"),
        (["--split-sentences", "--n-best", "2", "first.txt"], "leave --n-best, --scores out"),
    ],
)
def test_mistakes(trained: Path, console: Command, texts: list[Path], words: list[str], message: str) -> None:
    texts[0].with_name("lines.json").write_text('{"src": "ba"}\n')
    refused(console("translate", "-m", trained, *words), message, after_results=True)


def test_quiet_leaves_results_warnings_and_errors(trained: Path, console: Command, texts: list[Path]) -> None:
    said = console("translate", "-m", trained, texts[0])
    assert said.err.startswith("model ")
    done = console("translate", "-m", trained, "-q", texts[0])
    assert (done.code, done.out, done.err) == (0, said.out, "")
    done = console("translate", "-m", trained, "-q", "--max-length", 1, texts[0])
    assert "reached the length limit" in done.err
    assert console("translate", "-m", "nosuch", "-q", texts[0]).err.startswith("nmtkit: error: nosuch")


PARAGRAPH = " ".join(f"{line.capitalize()}." for line in LINES)


def test_paragraphs(trained: Path, console: Command, tmp_path: Path) -> None:
    (tmp_path / "text").write_text(f"ba ce\n{PARAGRAPH}\n\n{PARAGRAPH}\n")
    whole = console("translate", "-m", trained, "text")
    assert whole.err.count("looks like a paragraph") == 1
    assert "line 2 looks like a paragraph" in whole.err
    done = console("translate", "-m", trained, "text", "--split-sentences")
    assert (done.code, "paragraph" in done.err) == (0, False)
    one_by_one = console("translate", "-m", trained, stdin=as_text(f"{line.capitalize()}." for line in LINES))
    joined = " ".join(filter(None, one_by_one.out.splitlines()))
    short, first, empty, second = done.out.splitlines()
    assert (short, first, empty, second) == (whole.out.splitlines()[0], joined, "", joined)
    translator = ParagraphTranslator(Translator.load(str(trained), device="cpu"))
    assert translator.translate(["ba ce", PARAGRAPH, ""]) == [short, joined, ""]
    assert translator.translate(PARAGRAPH) == joined
    succeeded(console("translate", "-m", trained, "text", "--split-sentences", "--json", "-o", "found.json"))
    done = console("rescore", "-m", trained, "--source", "text", "--target", "found.json")
    refused(done, "a translation of several sentences")


def test_a_prompt_at_a_terminal(trained: Path, console: Command) -> None:
    """Whoever types is asked; nobody else is, nor with --quiet."""
    answer = console("translate", "-m", trained, stdin="ba ce di\n")
    assert "type a sentence" not in answer.err
    code, shown = typed([b"ba ce di\n\x04"], "translate", "-m", trained)
    assert code == 0, shown
    hint, asked, answered = map(shown.index, ("type a sentence on each line", "> ", answer.out.strip()))
    assert hint < asked < answered
    code, shown = typed([b"ba ce di\n\x04"], "translate", "-m", trained, "-q")
    assert code == 0, shown
    assert answer.out.strip() in shown
    assert "type" not in shown
    assert "> " not in shown
