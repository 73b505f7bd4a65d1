"""Every mistake a user can make ends in one clear message, exit code 2 and no traceback."""

import os
import shlex
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest
from commands import RECIPE, Command, as_text, contents, refused, sentence_pairs
from processes import Server
from pydantic_core import SchemaValidator, core_schema

from nmtkit.config import Recipe


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


def test_text_that_is_missing_or_not_utf8(folder: Path, console: Command, trained: Path) -> None:
    rows = (folder / "train.src").read_bytes().split(b"\n")
    rows[6] = b"gr\xfc\xdfe"
    (folder / "train.src").write_bytes(b"\n".join(rows))
    refused(console("preprocess", "tiny.yaml"), "train.src, line 7", "not valid UTF-8")
    refused(console("translate", "-m", trained, stdin=rows[6] + b"\n"), "standard input, line 1", "not valid UTF-8")
    (folder / "train.src").unlink()
    (folder / "valid.tgt").unlink()
    refused(console("train", "tiny.yaml", "--run", "run"), "train.src", "valid.tgt", "data.folder")
    assert not (folder / "run").exists()


TEXT = "--source train.src --target train.tgt"
MISTAKES = {
    "train tiny.yaml --run run": {
        "--set model.kind=rnnserch": "rnnserch: `model.kind`: unknown name 'rnnserch': did you mean 'rnnsearch'?",
        "--set training.label_smoothing=2": "`training.label_smoothing`: Input should be less than 1",
        "--set training": "KEY=VALUE",
        "--set training.max_updates=": "training would never end",
        "--set training.threads=true": "`training.threads`: auto, or a number from 1 to 1,024 (given: ",
        "--set 'data.train.weights=[1, 2]'": "src names 1 and weights 2: they must be paired",
        "--set data.valid=": "`data.valid` is missing",
        "--run file/run": "cannot write",
        "--device cuda:99": "no such device: 'cuda:99'; here there is: ",
    },
    "train": {
        "": "name a recipe (`nmtkit recipe ls`), or your text: --source FILE --target FILE",
        "open.yaml": "open.yaml, line 2: not valid YAML",
        "circle.yaml": "circle",
        "extends.yaml": "no recipe 'nowhere.yaml'",
        "demo --source train.src": "demo is a recipe, and --source are for training without one",
        "demo --preset tiny": "--set 'data.train={src: FILE, tgt: FILE}'",
        "demo --minutes 20": "changed by its keys: --set training.max_minutes=N",
        "--preset tiny": "--preset: name the text to train on: --source FILE --target FILE",
        "--source train.src": "1 --source but 0 --target: give one --target for each --source",
        "--valid-target valid.tgt": "0 --valid-source but 1 --valid-target: give one",
        "--source train.src --target valid.tgt": "train.src has 300 lines, but ",
        "--source bad --target bad": "bad, line 3: not valid UTF-8",
        "--source file --target file": "too few to hold some out",
        f"{TEXT} --valid-source file --valid-target file": "nothing in",
        f"{TEXT} --set training.lrr=1": "did you mean 'lr'",
        f"{TEXT} --general-source half --general-target half": "--general-target: only for fine-tuning",
    },
    f"train {TEXT} --init-from": {
        "RUN --preset tiny": "leave --preset and --task out",
        "RUN --general-source half": "1 --general-source but 0 --general-target: give one",
        "RUN --set model.hidden_size=16": "`model.hidden_size` is 16, and there 48",
        "nowhere": "nowhere: not the folder of a run",
    },
    "check": {
        "": "RECIPE|FILES",
        "nowhere train.tgt": "nowhere: no such file",
        "nowhere.yaml": "no recipe 'nowhere.yaml'",
        "demmo": "the nearest are demo, ",
        "train.src train.tgt valid.src": "3 files",
        "train.src train.tgt --valid": "'--valid' requires an argument",
        "train.src train.tgt --set data.max_length=5": "--set and --run go with a recipe",
        "train.src train.tgt --fix .": "is not overwritten",
        "train.src train.tgt --html no/such/folder.html": "no/such/folder.html",
        "tiny.yaml --valid valid.src valid.tgt": "a recipe names its own",
        "tiny.yaml --set data.train.src=gone": "gone",
    },
    "fetch": {
        "": "`nmtkit fetch --list`",
        "xsumm": "did you mean 'xsum'?",
        "tatoeba-en-de --catalogue none.yaml": "No such file",
        "tatoeba-en-de --to file --yes": "is not a fetched corpus",
    },
    "translate": {
        "": "no finished run",
        "-m nothing": "no such folder",
        "-m .": "no recipe.yaml",
        "-m RUN --device gpu": "no such device: 'gpu'",
        "-m RUN --checkpoint average": "'average'",
        "-m RUN --n-best 5 --beam-size 2": "n_best 5",
        "-m RUN --search prefix_bias=0.5": "with --prefix or --jsonl",
        "-m RUN --search max_length_ratio=nan": "`max_length_ratio`",
        "-m RUN --search patiense=2": "did you mean 'patience'",
        "-m RUN --search stop": "expected KEY=VALUE",
        "-m RUN --search engine=quick": "`engine`: not one of its values",
    },
    "rescore -m RUN --source half --target": {"test.tgt": "half has 2 lines", "whole": "pair 2"},
    "plot-attention -m RUN": {
        "'ba ce' ' '": "target line 1 is empty",
        "": "standard input, line 2",
        "caf\udce9": "argument 4 is not UTF-8",
    },
    "bench decode -m RUN": {
        "--source file": "all are empty",
        "--ref half": "--ref belongs to --source",
        "-m RUN": "only one is taken here",
    },
    "average -m RUN": {
        "--model RUN": "only one is taken here",
        "--recent 9": "3 were kept",
        ".": "a run is named with -m",
    },
}


@pytest.mark.parametrize(
    ("line", "message"),
    [(f"{command} {more}", message) for command, rows in MISTAKES.items() for more, message in rows.items()],
)
def test_a_mistake(folder: Path, trained: Path, console: Command, line: str, message: str) -> None:
    for name, text in (("file", ""), ("half", "ba\n\n"), ("whole", "BA\nCE\n"), ("open.yaml", "data: [1\n")):
        (folder / name).write_text(text)
    for name, other in (("circle.yaml", "circle.yaml"), ("extends.yaml", "nowhere.yaml")):
        (folder / name).write_text(f"extends: {other}\n")
    (folder / "bad").write_bytes(b"one\ntwo\n\xff\xfe\n")
    before = contents(folder)
    refused(console(*(trained if word == "RUN" else word for word in shlex.split(line)), stdin="ba\n\n"), message)
    assert contents(folder) == before


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


FREEING = """\
import os, signal, time
from nmtkit.config import Recipe


class Freed:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)


def free_one(_):
    Freed()
    time.sleep(5)


Recipe.model_validate = free_one
"""
"""Ctrl-C comes while an object is freed: Python drops it."""


def test_interrupted_while_an_object_is_freed(nmtkit: Command) -> None:
    done = nmtkit("preprocess", "demo", first=FREEING)
    assert (done.code, done.err.strip()) == (130, "nmtkit: stopped")


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
        ("soft.json", ["align", "-m", trained, *text, "--soft"]),
    ):
        os.mkfifo(tmp_path / name)
        refused(nmtkit(*command, tmp_path / name), f"{tmp_path / name}: cannot write it")
        assert (tmp_path / name).is_fifo()
        assert len(list(tmp_path.iterdir())) == 1
        (tmp_path / name).unlink()
