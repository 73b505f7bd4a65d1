"""What translate and its kin share: files, windows of lines, `--output`, `--quiet`, the prompt, paragraphs, tokens."""

import gzip
import queue
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nmtkit import ParagraphTranslator, Translator
from nmtkit.cli.text_io import reading
from nmtkit.cli.text_io.reading import windows
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.run import Run
from nmtkit.training.checkpoints.weights import read_weights
from tests.cli.keyboard import typed
from tests.cli.untrained_runs import TRANSLATION, make_run
from tests.support.commands import (
    Command,
    as_text,
    contents,
    refused,
    sentence_pairs,
    succeeded,
    write_lines,
)

LINES = [source for source, _ in sentence_pairs(9, 11)]


@pytest.fixture
def texts(tmp_path: Path) -> list[Path]:
    """Two files that are `LINES` together, the second packed."""
    second = tmp_path / "second.txt.gz"
    second.write_bytes(gzip.compress(as_text(LINES[5:]).encode()))
    return [write_lines(tmp_path / "first.txt", LINES[:5]), second]


def test_several_files_are_translated_as_one_text(
    trained: Path, console: Command, texts: list[Path]
) -> None:
    words = ["translate", "-m", trained, "--n-best", 2]
    piped = console(*words, stdin=as_text(LINES)).out
    assert len(piped.splitlines()) == 2 * len(LINES)
    assert succeeded(console(*words, *texts)).out == piped


def test_output_goes_to_a_new_folder_and_may_be_packed(
    trained: Path, console: Command, tmp_path: Path
) -> None:
    words = ["translate", "-m", trained, "--n-best", 2]
    printed = console(*words, stdin=as_text(LINES)).out
    out = tmp_path / "new" / "out.txt"
    done = succeeded(console(*words, "-", "-o", out, stdin=as_text(LINES)))
    assert (done.out, out.read_text()) == ("", printed)
    assert f"wrote {out}" in done.err
    succeeded(console(*words, "-", "-o", "out.gz", stdin=as_text(LINES)))
    assert gzip.decompress(Path("out.gz").read_bytes()).decode() == printed


@pytest.mark.parametrize("name", ["rescore", "align"])
def test_output_file_has_what_is_printed(
    trained: Path, corpus: Path, console: Command, tmp_path: Path, name: str
) -> None:
    pairs = ["--source", corpus / "test.src", "--target", corpus / "test.tgt"]
    printed = console(name, "-m", trained, *pairs)
    done = console(name, "-m", trained, *pairs, "-q", "--output", tmp_path / "out")
    assert (done.code, done.out, (tmp_path / "out").read_text()) == (0, "", printed.out)
    assert "model " in printed.err
    assert "model " not in done.err
    assert ("perplexity" in done.err) == (name == "rescore"), "results stay"


def test_a_fault_leaves_the_earlier_output(
    trained: Path, console: Command, texts: list[Path], tmp_path: Path
) -> None:
    out, bad = tmp_path / "out", tmp_path / "bad"
    out.write_text("what was there\n")
    bad.write_bytes(b"ba\n\xff\n")
    refused(
        console("translate", "-m", trained, texts[0], bad, "-o", out),
        "bad, line 2: not valid UTF-8",
    )
    assert out.read_text() == "what was there\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bad",
        "first.txt",
        "out",
        "second.txt.gz",
    ]


def test_results_replace_no_file_that_ends_in_new(
    trained: Path, corpus: Path, console: Command, tmp_path: Path
) -> None:
    """What is written has a temporary name beside the output till it is complete; that name is nobody's."""
    trees = "(S (NP (NN cat)) (VP (VBZ sleeps)))\n"
    for name in ("words.new", "linear.new"):
        (tmp_path / name).write_text(trees)
    succeeded(
        console("linearize", "words.new", "linear.new", "--source", "words", "--target", "linear")
    )
    assert (tmp_path / "words").read_text() == 2 * "cat sleeps\n"
    assert [(tmp_path / name).read_text() for name in ("words.new", "linear.new")] == [trees, trees]
    own_files = ("links.new", "soft.json.new", "list.new")
    for name in own_files:
        (tmp_path / name).write_text("mine")
    pairs = ("--source", corpus / "test.src", "--target", corpus / "test.tgt", "-o", "links")
    succeeded(console("align", "-m", trained, *pairs, "--soft", "soft.json", "--shortlist", "list"))
    assert [(tmp_path / name).read_text() for name in own_files] == ["mine"] * 3


def test_quiet_leaves_results_warnings_and_errors(
    trained: Path, console: Command, texts: list[Path]
) -> None:
    loud = console("translate", "-m", trained, texts[0])
    assert "\nmodel " in f"\n{loud.err}"
    done = console("translate", "-m", trained, "-q", texts[0])
    assert (done.code, done.out, done.err) == (0, loud.out, "")
    done = console("translate", "-m", trained, "-q", "--max-length", 1, texts[0])
    assert "reached the length limit" in done.err
    assert console("translate", "-m", "nosuch", "-q", texts[0]).err.startswith(
        "nmtkit: error: nosuch"
    )


PARAGRAPH = " ".join(f"{line.capitalize()}." for line in LINES)


@pytest.fixture
def paragraphs(tmp_path: Path) -> Path:
    """A sentence, a paragraph, an empty line and the paragraph again."""
    return write_lines(tmp_path / "text", ["ba ce", PARAGRAPH, "", PARAGRAPH])


@pytest.mark.usefixtures("paragraphs")
def test_a_line_that_looks_like_a_paragraph_is_noticed_once(
    trained: Path, console: Command
) -> None:
    whole = console("translate", "-m", trained, "text")
    assert whole.err.count("looks like a paragraph") == 1
    assert "line 2 looks like a paragraph" in whole.err
    split = succeeded(console("translate", "-m", trained, "text", "--split-sentences"))
    assert "paragraph" not in split.err


@pytest.mark.usefixtures("paragraphs")
def test_sentences_of_a_paragraph_are_translated_one_by_one(
    trained: Path, console: Command
) -> None:
    done = succeeded(console("translate", "-m", trained, "text", "--split-sentences"))
    sentence = console("translate", "-m", trained, stdin="ba ce\n").out.strip()
    one_by_one = console(
        "translate", "-m", trained, stdin=as_text(f"{line.capitalize()}." for line in LINES)
    )
    joined = " ".join(filter(None, one_by_one.out.splitlines()))
    assert done.out.splitlines() == [sentence, joined, "", joined]
    translator = ParagraphTranslator(Translator.load(str(trained), device="cpu"))
    assert translator.translate(["ba ce", PARAGRAPH, ""]) == [sentence, joined, ""]
    assert translator.translate(PARAGRAPH) == joined


@pytest.mark.usefixtures("paragraphs")
def test_rescore_reads_texts_of_paragraphs_and_refuses_their_json(
    trained: Path, console: Command
) -> None:
    succeeded(
        console(
            "translate", "-m", trained, "text", "--split-sentences", "--json", "-o", "found.json"
        )
    )
    done = console("rescore", "-m", trained, "--source", "text", "--target", "found.json")
    refused(done, "this was not written by `nmtkit translate --json`")
    write_lines("found.json.txt", ["BA CE", "BA", "", "BA"])
    succeeded(console("rescore", "-m", trained, "--source", "text", "--target", "found.json.txt"))


def test_who_types_at_a_terminal_is_prompted(trained: Path, console: Command) -> None:
    answer = console("translate", "-m", trained, stdin="ba ce di\n")
    assert "type a sentence" not in answer.err
    code, shown = typed([b"ba ce di\n\x04"], "translate", "-m", trained)
    assert code == 0, shown
    hint, prompt, answered = map(
        shown.index, ("type one sentence per line", "> ", answer.out.strip())
    )
    assert hint < prompt < answered


def test_quiet_leaves_the_prompt_out(trained: Path, console: Command) -> None:
    answer = console("translate", "-m", trained, stdin="ba ce di\n")
    code, shown = typed([b"ba ce di\n\x04"], "translate", "-m", trained, "-q")
    assert code == 0, shown
    assert answer.out.strip() in shown
    assert "type" not in shown
    assert "> " not in shown


def test_detokenize_restores_what_tokenize_divided(
    trained: Path, console: Command, tmp_path: Path
) -> None:
    text = write_lines(tmp_path / "text", [*LINES, "", "Unknown, WORDS! 3.5"])
    done = succeeded(console("tokenize", "-m", trained, text))
    assert f"source tokenizer of {trained} (as requested): word, " in done.err
    tokenizer = Translator.load(str(trained), device="cpu").tokenizers.src
    *known, empty, unknown = done.out.splitlines()
    assert [line.split(" ") for line in known] == [
        tokenizer.pieces(tokenizer.encode(line)) for line in LINES
    ]
    assert (empty, unknown) == ("", "▁Unknown , ▁WORDS ! ▁3.5")
    back = succeeded(console("detokenize", "-q", "-m", trained, "-o", "back", stdin=done.out))
    assert (back.out, back.err) == ("", "")
    assert (tmp_path / "back").read_text() == text.read_text()
    done = console("detokenize", "-m", trained, stdin="▁ba\nba ce di\n")
    refused(
        done,
        "line 2: no token in 'ba ce di' contains ▁, which marks the start of a word",
        after_results=True,
    )
    assert done.out == "ba\n"
    for command, side in (("tokenize", "target"), ("detokenize", "source")):
        done = succeeded(console(command, "-m", trained, "--side", side, stdin=""))
        assert done.err.startswith(f"{side} tokenizer of ")


def test_detokenize_joins_pieces_without_marks(tmp_path: Path, console: Command) -> None:
    run = make_run(tmp_path, "pieces", TRANSLATION.replace("kind: word", "kind: pieces"))
    cut = succeeded(console("tokenize", "-m", run, stdin="the old man\n")).out
    assert succeeded(console("detokenize", "-m", run, stdin=cut)).out == "the old man\n"


def test_a_line_is_passed_on_while_the_next_one_is_awaited() -> None:
    given: queue.Queue[str | None] = queue.Queue()
    cut = windows(iter(given.get, None), patience=0.02)
    for number in range(3):
        given.put(str(number))
        assert next(cut) == [str(number)]
    given.put(None)
    assert list(cut) == []


def test_memory_does_not_grow_with_the_input() -> None:
    """The reader stays little ahead of whoever translates."""
    read = 0

    def lines() -> Iterator[str]:
        nonlocal read
        for read in range(1, 100_000):  # noqa: B007  # counted on purpose
            yield "x"

    cut = windows(lines(), most=50)
    next(cut)
    time.sleep(0.05)
    assert read <= 50 + 50 + 2
    assert threading.active_count() < 20


def test_windows_are_smaller_where_lines_are_long_or_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [str(number) for number in range(250)]
    assert list(windows(iter(lines), most=100)) == [lines[:100], lines[100:200], lines[200:]]
    assert list(windows(iter([]))) == []
    with monkeypatch.context() as changed:
        changed.setattr(reading, "MAX_CHARACTERS", 10)
        assert list(windows(iter(["a" * 6] * 5), most=100)) == [
            ["a" * 6] * 2,
            ["a" * 6] * 2,
            ["a" * 6],
        ]
    monkeypatch.setattr(reading, "MAX_AGE", 0.0)
    assert list(windows(iter("abc"), most=100)) == [["a"], ["b"], ["c"]]


def test_a_fault_of_the_input_is_raised_after_the_lines_before_it() -> None:
    def lines() -> Iterator[str]:
        yield "a"
        yield "b"
        raise ValueError("broken")

    cut = windows(lines())
    assert next(cut) == ["a", "b"]
    with pytest.raises(ValueError, match="broken"):
        next(cut)


def test_an_average_replaces_none_of_the_checkpoints_that_a_run_kept(console: Command) -> None:
    run = Run(RunFolder(make_run(Path(), "mine", TRANSLATION)))
    kept = run.newest_stage().checkpoints
    for update in (1, 2):
        kept.keep(read_weights(run.folder.average), update, 0.0, run.recipe.training)
    before = contents(run.folder.path)
    refused(
        console("average", "-m", "mine", "-o", kept.weights_path(1)), "-o would overwrite a file"
    )
    assert contents(run.folder.path) == before


def test_an_average_does_not_replace_the_weights_of_an_imported_run(console: Command) -> None:
    run = RunFolder(make_run(Path(), "mine", TRANSLATION))
    run.imported.write_text("{}")
    other = run.path / "other.safetensors"
    shutil.copy(run.average, other)
    refused(console("average", "-m", "mine", run.average, other), "give another file with -o FILE")
    succeeded(console("average", "-m", "mine", run.average, other, "-o", "both.safetensors"))
