"""What translate and its kin share: files, windows of lines, `--output`, `--quiet`, the prompt, paragraphs, tokens."""

import gzip
import os
import shutil
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import pytest

from nmtkit import ParagraphTranslator, Translator
from nmtkit.cli.text_io import reading
from nmtkit.cli.text_io.reading import article_windows, text_windows, windows
from nmtkit.core.errors import DataError
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


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def writing(pipe: Path) -> BinaryIO:
    """Opens a pipe although nobody reads it yet."""
    return open(os.open(pipe, os.O_RDWR), "wb", buffering=0)


def test_a_line_is_passed_on_while_the_next_one_is_awaited(pipe: Path) -> None:
    with writing(pipe) as writer:
        cut = text_windows([pipe])
        for number in range(3):
            writer.write(b"%d\n" % number)
            assert next(cut) == [str(number)]
        writer.write(b"a\nb\nc")
        assert next(cut) == ["a", "b"]
        writer.write(b"d\n" * 1000)
        assert next(cut) == ["cd", *["d"] * 999]


def test_a_window_ends_where_the_next_line_is_incomplete(pipe: Path) -> None:
    with writing(pipe) as writer:
        cut = text_windows([pipe])
        writer.write(b"a\n")
        threading.Timer(0.005, writer.write, [b"b"]).start()
        assert next(cut) == ["a"]
        threading.Timer(0.1, writer.write, [b"c\nd\n"]).start()
        assert next(cut) == ["bc", "d"]


def test_a_pipe_is_read_to_its_end(pipe: Path) -> None:
    def write() -> None:
        with open(pipe, "wb") as writer:
            writer.write(b"\xef\xbb\xbfa\r\nb\n" + b"c\n" * 10_000 + b"d")

    thread = threading.Thread(target=write)
    thread.start()
    lines = [*chain.from_iterable(text_windows([pipe], most=100))]
    thread.join()
    assert lines == ["a", "b", *["c"] * 10_000, "d"]


def test_files_before_a_pipe_do_not_wait_for_it(tmp_path: Path, pipe: Path) -> None:
    first = write_lines(tmp_path / "first", ["a", "b"])
    second = write_lines(tmp_path / "second", ["c"])
    cut = text_windows([first, second, pipe, second, first])
    assert next(cut) == ["a", "b", "c"]
    writer = writing(pipe)
    writer.write(b"d\n")
    assert next(cut) == ["d"]
    writer.close()
    assert list(cut) == [["c", "a", "b"]]
    articles = article_windows([first, second, pipe, second], most=9, remedy="")
    assert next(articles) == ["a b", "c"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pipe#2", b"1\tb\n"),
        ("pipe.csv#2", b'1,"b"\n'),
        ("pipe.jsonl#text", b'{"text": "b"}\n'),
        ("pipe.gz", None),
    ],
)
def test_columns_and_compressed_lines_are_passed_on_as_well(
    tmp_path: Path, name: str, text: bytes | None
) -> None:
    path = tmp_path / name.partition("#")[0]
    os.mkfifo(path)
    packer = zlib.compressobj(wbits=31)
    with writing(path) as writer:
        cut = text_windows([tmp_path / name])
        for _ in range(3):
            if text is None:
                data = packer.compress(b"b\n") + packer.flush(zlib.Z_SYNC_FLUSH)
                writer.write(data)
            else:
                writer.write(text)
            assert next(cut) == ["b"]


def test_a_pipe_of_json_lines_is_refused_at_its_first_window(pipe: Path) -> None:
    with writing(pipe) as writer:
        writer.write(b'{"text": "a"}\n')
        with pytest.raises(DataError, match=f"{pipe}: each line is a JSON object"):
            next(text_windows([pipe]))


def filled(pipe: BinaryIO) -> int:
    """Writes as many bytes as fit into a pipe."""
    written = 0
    os.set_blocking(pipe.fileno(), False)
    with suppress(BlockingIOError):
        while True:
            written += os.write(pipe.fileno(), b"x\n" * 500)
    return written


def test_memory_does_not_grow_with_the_input(pipe: Path) -> None:
    """Lines are read only a block ahead, and not by a thread."""
    threads = threading.active_count()
    with writing(pipe) as writer:
        capacity = filled(writer)
        cut = text_windows([pipe], most=50)
        assert next(cut) == ["x"] * 50
        time.sleep(0.05)
        assert filled(writer) < capacity
        assert next(cut) == ["x"] * 50
        assert filled(writer) == 0
    assert threading.active_count() == threads
    read = 0

    def lines() -> Iterator[str]:
        nonlocal read
        for read in range(1, 100_000):  # noqa: B007  # counted on purpose
            yield "x"

    next(windows(lines(), most=50))
    assert read == 50


def test_windows_are_smaller_where_lines_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [str(number) for number in range(250)]
    assert list(windows(iter(lines), most=100)) == [lines[:100], lines[100:200], lines[200:]]
    assert list(windows(iter([]))) == []
    monkeypatch.setattr(reading, "MAX_CHARACTERS", 10)
    assert list(windows(iter(["a" * 6] * 5), most=100)) == [["a" * 6] * 2, ["a" * 6] * 2, ["a" * 6]]


def test_a_window_that_has_been_open_for_long_ends(
    monkeypatch: pytest.MonkeyPatch, pipe: Path
) -> None:
    monkeypatch.setattr(reading, "MAX_AGE", 0.0)
    with writing(pipe) as writer:
        cut = text_windows([pipe])
        writer.write(b"a\nb\nc\n")
        assert [next(cut) for _ in range(3)] == [["a"], ["b"], ["c"]]


def test_a_fault_of_the_input_is_raised_after_the_lines_before_it(pipe: Path) -> None:
    def lines() -> Iterator[str]:
        yield "a"
        yield "b"
        raise ValueError("broken")

    cut = windows(lines())
    assert next(cut) == ["a", "b"]
    with pytest.raises(ValueError, match="broken"):
        next(cut)
    with writing(pipe) as writer:
        writer.write(b"a\nb\n\xff\n")
        cut = text_windows([pipe])
        assert next(cut) == ["a", "b"]
        with pytest.raises(DataError, match=f"{pipe}, line 3: "):
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
