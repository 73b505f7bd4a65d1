"""What translate and its kin share: files, windows of lines, `--output`, `--quiet`, the prompt, paragraphs, tokens."""

import gzip
import queue
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Command, as_text, contents, refused, sentence_pairs, succeeded, write_lines
from keyboard import typed
from untrained_runs import TRANSLATION, make_run

from nmtkit import ParagraphTranslator, Translator
from nmtkit.cli import reading
from nmtkit.cli.reading import windows
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.saved import SavedRun
from nmtkit.training.checkpoints.weights import read_weights

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


def test_no_half_an_output(trained: Path, console: Command, texts: list[Path], tmp_path: Path) -> None:
    out, bad = tmp_path / "out", tmp_path / "bad"
    out.write_text("what was there\n")
    bad.write_bytes(b"ba\n\xff\n")
    refused(console("translate", "-m", trained, texts[0], bad, "-o", out), "bad, line 2: not valid UTF-8")
    assert out.read_text() == "what was there\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "first.txt", "out", "second.txt.gz"]


def test_no_file_is_lost_that_ends_in_new(trained: Path, corpus: Path, console: Command, tmp_path: Path) -> None:
    """What is written lies beside the output till it is whole, under a name that is nobody's."""
    trees = "(S (NP (NN cat)) (VP (VBZ sleeps)))\n"
    for name in ("words.new", "linear.new"):
        (tmp_path / name).write_text(trees)
    succeeded(console("linearize", "words.new", "linear.new", "--source", "words", "--target", "linear"))
    assert (tmp_path / "words").read_text() == 2 * "cat sleeps\n"
    assert [(tmp_path / name).read_text() for name in ("words.new", "linear.new")] == [trees, trees]
    for name in ("links.new", "soft.json.new", "list.new"):
        (tmp_path / name).write_text("mine")
    pairs = ("--source", corpus / "test.src", "--target", corpus / "test.tgt", "-o", "links")
    succeeded(console("align", "-m", trained, *pairs, "--soft", "soft.json", "--shortlist", "list"))
    assert [path.read_text() for path in tmp_path.glob("*.new") if path.stem not in ("words", "linear")] == 3 * ["mine"]


def test_two_results_are_two_files(console: Command, tmp_path: Path) -> None:
    pairs = ["--source", "a", "--target", "b"]
    refused(console("align", *pairs, "-o", "new.json", "--soft", "./new.json"), "-o would overwrite a file")
    assert not [*tmp_path.iterdir()]


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
    refused(done, "not what `nmtkit translate --json` prints without --window and --split-sentences")
    (tmp_path / "found.json.txt").write_text("BA CE\nBA\n\nBA\n")
    succeeded(console("rescore", "-m", trained, "--source", "text", "--target", "found.json.txt"))


def test_a_prompt_at_a_terminal(trained: Path, console: Command) -> None:
    """Whoever types is asked; nobody else is, nor with --quiet."""
    answer = console("translate", "-m", trained, stdin="ba ce di\n")
    assert "type a sentence" not in answer.err
    code, shown = typed([b"ba ce di\n\x04"], "translate", "-m", trained)
    assert code == 0, shown
    hint, prompt, answered = map(shown.index, ("type a sentence on each line", "> ", answer.out.strip()))
    assert hint < prompt < answered
    code, shown = typed([b"ba ce di\n\x04"], "translate", "-m", trained, "-q")
    assert code == 0, shown
    assert answer.out.strip() in shown
    assert "type" not in shown
    assert "> " not in shown


def test_tokens_there_and_back(trained: Path, console: Command, tmp_path: Path) -> None:
    text = write_lines(tmp_path / "text", [*LINES, "", "Unknown, WORDS! 3.5"])
    done = succeeded(console("tokenize", "-m", trained, text))
    assert f"source tokenizer of {trained} (as asked): word, " in done.err
    tokenizer = Translator.load(str(trained), device="cpu").tokenizers.src
    *known, empty, unknown = done.out.splitlines()
    assert [line.split(" ") for line in known] == [tokenizer.pieces(tokenizer.encode(line)) for line in LINES]
    assert (empty, unknown) == ("", "▁Unknown , ▁WORDS ! ▁3.5")
    back = succeeded(console("detokenize", "-q", "-m", trained, "-o", "back", stdin=done.out))
    assert (back.out, back.err) == ("", "")
    assert (tmp_path / "back").read_text() == text.read_text()
    done = console("detokenize", "-m", trained, stdin="▁ba\nba ce di\n")
    refused(done, "line 2: no token of 'ba ce di' has the mark ▁ that begins a word", after_results=True)
    assert done.out == "ba\n"
    for command, side in (("tokenize", "target"), ("detokenize", "source")):
        done = succeeded(console(command, "-m", trained, "--side", side, stdin=""))
        assert done.err.startswith(f"{side} tokenizer of ")


def test_tokens_of_pieces_need_no_marks(tmp_path: Path, console: Command) -> None:
    run = make_run(tmp_path, "pieces", TRANSLATION.replace("kind: word", "kind: pieces"))
    cut = succeeded(console("tokenize", "-m", run, stdin="the old man\n")).out
    assert succeeded(console("detokenize", "-m", run, stdin=cut)).out == "the old man\n"


def test_who_waits_for_an_answer_gets_it() -> None:
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


def test_windows_are_full_but_where_lines_are_long_or_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [str(number) for number in range(250)]
    assert list(windows(iter(lines), most=100)) == [lines[:100], lines[100:200], lines[200:]]
    assert list(windows(iter([]))) == []
    with monkeypatch.context() as changed:
        changed.setattr(reading, "MAX_CHARACTERS", 10)
        assert list(windows(iter(["a" * 6] * 5), most=100)) == [["a" * 6] * 2, ["a" * 6] * 2, ["a" * 6]]
    monkeypatch.setattr(reading, "MAX_AGE", 0.0)
    assert list(windows(iter("abc"), most=100)) == [["a"], ["b"], ["c"]]


def test_a_fault_of_the_input_arrives_after_the_lines_before_it() -> None:
    def lines() -> Iterator[str]:
        yield "a"
        yield "b"
        raise ValueError("broken")

    cut = windows(lines())
    assert next(cut) == ["a", "b"]
    with pytest.raises(ValueError, match="broken"):
        next(cut)


def test_results_of_bench_and_average_replace_nothing_that_they_read(console: Command) -> None:
    for name in ("one", "two"):
        write_lines(Path(name), [name])
    for words in ("bench decode --source one --ref two -o two", "bench train one -o one", "average -o one one two"):
        refused(console(*words.split()), "-o would overwrite a file")
    assert [Path(name).read_text() for name in ("one", "two")] == ["one\n", "two\n"]


def test_an_average_replaces_none_of_the_checkpoints_that_a_run_kept(console: Command) -> None:
    run = SavedRun(RunFolder(make_run(Path(), "mine", TRANSLATION)))
    kept = run.newest_stage().checkpoints
    for update in (1, 2):
        kept.keep(read_weights(run.folder.average), update, 0.0, run.recipe.training)
    before = contents(run.folder.path)
    refused(console("average", "-m", "mine", "-o", kept.weights_path(1)), "-o would overwrite a file")
    assert contents(run.folder.path) == before


def test_an_average_does_not_replace_the_weights_of_an_imported_run(console: Command) -> None:
    run = RunFolder(make_run(Path(), "mine", TRANSLATION))
    run.imported.write_text("{}")
    other = run.path / "other.safetensors"
    shutil.copy(run.average, other)
    refused(console("average", "-m", "mine", run.average, other), "name another file with -o FILE")
    succeeded(console("average", "-m", "mine", run.average, other, "-o", "both.safetensors"))


def test_what_align_writes_besides_replaces_nothing_that_it_reads(console: Command) -> None:
    make_run(Path(), "mine", TRANSLATION)
    text = {name: write_lines(Path(name), LINES).read_text() for name in ("one.json", "two")}
    words = ["align", "-m", "mine", "--source", "one.json", "--target", "two"]
    for option, name in (("--soft", "one.json"), ("--shortlist", "two")):
        refused(console(*words, option, name), f"{option} would overwrite a file")
    assert {name: Path(name).read_text() for name in text} == text
