"""Every mistake a user can make ends in one clear message, exit code 2 and no traceback."""

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest
from commands import RECIPE, Command, as_text, refused, sentence_pairs, sets
from processes import Server
from pydantic_core import SchemaValidator, core_schema

from nmtkit.recipe import Recipe


@pytest.fixture
def folder(own_corpus: Path, console: Command, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small corpus and its recipe, in the current folder."""
    monkeypatch.chdir(own_corpus)
    return own_corpus


def test_every_recipe_fault_in_one_message(folder: Path, console: Command) -> None:
    text = RECIPE.replace("hidden_size", "hiden_size").replace("lr: 0.005", "lr: fast")
    text = text.replace("beam_size", "beam_sise") + "traning: {}\n"
    (folder / "bad.yaml").write_text(text)
    done = refused(
        console("train", folder / "bad.yaml"),
        *("unknown key `model.hiden_size`: did you mean 'hidden_size'?", "`training.lr`", "(given: 'fast')"),
        *("unknown key `search.beam_sise`: did you mean 'beam_size'?", "unknown key `traning`"),
    )
    for word in ("hiden_size", "lr: fast", "beam_sise"):
        number = next(number for number, line in enumerate(text.splitlines(), start=1) if word in line)
        assert f"{folder / 'bad.yaml'}, line {number}:" in done.err


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("model.kind=rnnserch", ["`model.kind`", "did you mean 'rnnsearch'?", "transformer"]),
        ("training.label_smoothing=2", ["`training.label_smoothing`", "less than 1"]),
        ("training", ["KEY=VALUE"]),
        ("training.max_updates=", ["training would never end"]),
        ("training.threads=true", ["`training.threads`: auto, or a number from 1 to 1,024 (given: "]),
        ("data.train.weights=[1, 2]", ["src names 1 and weights 2: they must be paired"]),
    ],
)
def test_overrides_go_through_the_same_parser(folder: Path, console: Command, override: str, parts: list[str]) -> None:
    refused(console("train", "tiny.yaml", "--set", override), "--set", *parts)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("data: [1\n", ["not valid YAML", "line"]),
        ("extends: nowhere.yaml\n", ["line 1", "`extends`", "no recipe 'nowhere.yaml'"]),
        ("extends: bad.yaml\n", ["circle"]),
    ],
)
def test_broken_recipe_files(folder: Path, console: Command, text: str, parts: list[str]) -> None:
    (folder / "bad.yaml").write_text(text)
    refused(console("train", "bad.yaml"), "bad.yaml", *parts)


def test_text_that_is_missing_or_not_utf8(folder: Path, console: Command, trained: Path) -> None:
    rows = (folder / "train.src").read_bytes().split(b"\n")
    rows[6] = b"gr\xfc\xdfe"
    (folder / "train.src").write_bytes(b"\n".join(rows))
    refused(console("preprocess", "tiny.yaml"), "train.src, line 7", "not UTF-8")
    refused(console("translate", "-m", trained, stdin=rows[6] + b"\n"), "standard input, line 1", "not UTF-8")
    (folder / "train.src").unlink()
    (folder / "valid.tgt").unlink()
    refused(console("train", "tiny.yaml", "--run", "run"), "train.src", "valid.tgt", "data.folder")
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["preprocess", "tiny.yaml", *sets("tokenizer.kind=bpe", "tokenizer.vocab_size=5000")], ["vocab_size"]),
        (["train", "tiny.yaml", "--run", "file/run"], ["cannot write"]),
        (["train", "tiny.yaml", "--run", "run", "--set", "data.valid="], ["`data.valid` is missing"]),
        (["train", "tiny.yaml", "--device", "cuda:99"], ["no such device: 'cuda:99'", "cpu"]),
        (["translate", "-m", "RUN", "--device", "gpu"], ["no such device: 'gpu'"]),
        (["translate", "-m", "nothing"], ["no such folder"]),
        (["translate", "-m", "."], ["no recipe.yaml"]),
        (["translate"], ["no finished run"]),
        (["translate", "-m", "RUN", "--checkpoint", "average"], ["'average'", "best, last"]),
        (["translate", "-m", "RUN", "--n-best", "5", "--beam-size", "2"], ["n_best 5"]),
        (["rescore", "-m", "RUN", "--source", "half", "--target", "test.tgt"], ["half has 2 lines"]),
        (["rescore", "-m", "RUN", "--source", "half", "--target", "whole"], ["pair 2", "empty"]),
        (["plot-attention", "-m", "RUN", "ba ce", " "], ["target line 1 is empty"]),
        (["plot-attention", "-m", "RUN"], ["standard input, line 2"]),
        (["plot-attention", "-m", "RUN", "caf\udce9"], ["argument 4 is not UTF-8"]),
    ],
    ids=lambda value: None if isinstance(value, list) else "",
)
def test_mistakes(folder: Path, trained: Path, console: Command, words: list[str], parts: list[str]) -> None:
    for name, text in (("file", ""), ("half", "ba\n\n"), ("whole", "BA\nCE\n")):
        (folder / name).write_text(text)
    refused(console(*(trained if word == "RUN" else word for word in words), stdin="ba\n\n"), *parts)
    assert not (folder / "run").exists()


def test_a_run_that_is_not_whole(copied: Path, console: Command) -> None:
    def translation_is_refused(*parts: str) -> None:
        refused(console("translate", "-m", copied, stdin="ba ce\n"), *parts)

    recipe = (copied / "recipe.yaml").read_text()
    (copied / "recipe.yaml").write_text(recipe.replace("hidden_size: 48", "hidden_size: 64"))
    translation_is_refused("weights-", "of another model")
    (copied / "recipe.yaml").write_text(recipe)
    for path in (copied / "checkpoints").glob("weights-*"):
        path.write_bytes(path.read_bytes()[:-100])
    translation_is_refused("weights-", "damaged")
    shutil.rmtree(copied / "vocabulary")
    translation_is_refused("vocabulary")


def test_a_reader_that_goes_away_is_no_fault(trained: Path, server: Server) -> None:
    with server.begin("translate", "-m", trained) as process:
        process.stdout.close()
        with suppress(BrokenPipeError):
            process.stdin.write(as_text(source for source, _ in sentence_pairs(300, 5)).encode())
            process.stdin.close()
        errors = process.stderr.read()
        assert process.wait() == 1
    assert b"Traceback" not in errors, errors


def test_a_variable_that_names_nothing(nmtkit: Command, tmp_path: Path) -> None:
    done = nmtkit("translate", stdin="ba\n", NMTKIT_MODEL=str(tmp_path / "gone"))
    refused(done, "$NMTKIT_MODEL", str(tmp_path / "gone"))


def test_interrupted_while_waiting_for_input(trained: Path, server: Server) -> None:
    """The results of what was given are there before the input ends."""
    with server.begin("translate", "-m", trained) as process:
        for source, _ in sentence_pairs(3, 9):
            process.stdin.write(source.encode() + b"\n")
            assert process.stdout.readline().strip()
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read()
        assert process.wait() == 130, errors
    assert errors.endswith(b"nmtkit: stopped\n"), errors


def test_interrupted_in_a_library_that_makes_an_error_of_it(console: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def __repr__(self) -> str:
            raise KeyboardInterrupt

    def validation_metrics(_: object) -> NoReturn:
        SchemaValidator(core_schema.literal_schema([Interrupted()]))
        raise AssertionError("not interrupted")

    monkeypatch.setattr(Recipe, "model_validate", validation_metrics)
    done = console("preprocess", "demo")
    assert (done.code, done.err) == (130, "nmtkit: stopped\n")


NARROW = """\
import resource

there = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (there + (1 << 28), there + (1 << 28)))
"""
"""A process gets no more than another 256 MiB."""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell how much memory is taken")
def test_out_of_memory(folder: Path, nmtkit: Command) -> None:
    wide = ["--run", folder / "run", "--set", "model.embedding_size=1048576"]
    refused(nmtkit("train", folder / "tiny.yaml", *wide, first=NARROW), "out of memory", "batch.batch_tokens")


def test_a_device_is_not_replaced_by_a_file(trained: Path, corpus: Path, nmtkit: Command, tmp_path: Path) -> None:
    """Whoever may write in /dev would lose /dev/null."""
    text = ["--source", corpus / "test.src", "--target", corpus / "test.tgt"]
    for name, command in (
        ("null", ["average", "-m", trained, "-o"]),
        ("schema", ["recipe", "schema", "-o"]),
        ("soft.json", ["align", "-m", trained, *text, "--soft"]),
    ):
        os.mkfifo(tmp_path / name)
        refused(nmtkit(*command, tmp_path / name), f"{tmp_path / name}: cannot write it")
        assert (tmp_path / name).is_fifo()
        assert len(list(tmp_path.iterdir())) == 1
        (tmp_path / name).unlink()
