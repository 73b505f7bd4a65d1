"""Faults that a table of mistakes cannot show: damaged files, signals, too little memory, readers that go away."""

import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from pydantic_core import SchemaValidator, core_schema
from torch.overrides import _pop_mode

from nmtkit.config import Recipe
from tests.support.command_cases import words_of
from tests.support.commands import RECIPE, Command, as_text, refused, sentence_pairs
from tests.support.processes import Server


@pytest.fixture
def folder(own_corpus: Path, console: Command, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small corpus and its recipe, in the current folder."""
    monkeypatch.chdir(own_corpus)
    return own_corpus


def test_one_message_names_every_fault_of_a_recipe_with_its_line(
    folder: Path, console: Command
) -> None:
    text = RECIPE.replace("hidden_size", "hiden_size").replace("lr: 0.005", "lr: fast")
    text = text.replace("beam_size", "beam_sise") + "traning: {}\n"
    (folder / "bad.yaml").write_text(text)
    done = refused(
        console("train", folder / "bad.yaml"),
        "unknown key `model.hiden_size`; did you mean 'hidden_size'?",
        "`training.lr`",
        "(given: 'fast')",
        "unknown key `search.beam_sise`; did you mean 'beam_size'?",
        "unknown key `traning`",
    )
    lines = text.splitlines()
    for word in ("hiden_size", "lr: fast", "beam_sise"):
        number = next(number for number, line in enumerate(lines, start=1) if word in line)
        assert f"{folder / 'bad.yaml'}, line {number}:" in done.err


def test_text_that_is_not_utf_8_is_refused_by_file_and_line(
    folder: Path, console: Command, trained: Path
) -> None:
    rows = (folder / "train.src").read_bytes().split(b"\n")
    rows[6] = b"gr\xfc\xdfe"
    (folder / "train.src").write_bytes(b"\n".join(rows))
    refused(console("preprocess", "tiny.yaml"), "train.src, line 7", "not valid UTF-8")
    refused(
        console("translate", "-m", trained, stdin=rows[6] + b"\n"),
        "standard input, line 1",
        "not valid UTF-8",
    )


def test_all_missing_texts_of_a_recipe_are_named_at_once(folder: Path, console: Command) -> None:
    (folder / "train.src").unlink()
    (folder / "valid.tgt").unlink()
    refused(console("train", "tiny.yaml", "--run", "run"), "train.src", "valid.tgt", "data.folder")
    assert not (folder / "run").exists()


def of_another_size(run: Path) -> None:
    recipe = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(recipe.replace("hidden_size: 48", "hidden_size: 64"))


def with_shortened_weights(run: Path) -> None:
    for path in (run / "checkpoints").glob("weights-*"):
        path.write_bytes(path.read_bytes()[:-100])


def without_vocabulary(run: Path) -> None:
    shutil.rmtree(run / "vocabulary")


@pytest.mark.parametrize(
    ("damage", "parts"),
    [
        pytest.param(
            of_another_size,
            ["weights-", "belongs to a different model"],
            id="a recipe of another size",
        ),
        pytest.param(
            with_shortened_weights, ["weights-", "damaged"], id="weights that were cut off"
        ),
        pytest.param(without_vocabulary, ["vocabulary"], id="no vocabulary"),
    ],
)
def test_translate_refuses_an_incomplete_run(
    copied: Path, console: Command, damage: Callable[[Path], None], parts: list[str]
) -> None:
    damage(copied)
    refused(console("translate", "-m", copied, stdin="ba ce\n"), *parts)


def test_translate_stops_without_a_traceback_when_its_reader_goes_away(
    trained: Path, server: Server
) -> None:
    with server.begin("translate", "-m", trained) as process:
        process.stdout.close()
        with suppress(BrokenPipeError):
            process.stdin.write(as_text(source for source, _ in sentence_pairs(300, 5)).encode())
            process.stdin.close()
        errors = process.stderr.read()
        assert process.wait() == 1
    assert b"Traceback" not in errors, errors


def test_the_variable_for_the_model_is_named_if_its_folder_is_missing(
    nmtkit: Command, tmp_path: Path
) -> None:
    done = nmtkit("translate", stdin="ba\n", NMTKIT_MODEL=str(tmp_path / "gone"))
    refused(done, "$NMTKIT_MODEL", str(tmp_path / "gone"))


def test_ctrl_c_stops_translate_while_it_waits_for_input(trained: Path, server: Server) -> None:
    """The results of what was given are there before the input ends."""
    with server.begin("translate", "-m", trained) as process:
        for source, _ in sentence_pairs(3, 9):
            process.stdin.write(source.encode() + b"\n")
            assert process.stdout.readline().strip()
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read()
        assert process.wait() == 130, errors
    assert errors.endswith(b"nmtkit: stopped\n"), errors


def test_ctrl_c_stops_a_command_though_a_library_raises_another_error(
    console: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted:
        def __repr__(self) -> str:
            raise KeyboardInterrupt

    def validation_metrics(_: object) -> NoReturn:
        SchemaValidator(core_schema.literal_schema([Interrupted()]))
        raise AssertionError("not interrupted")

    monkeypatch.setattr(Recipe, "model_validate", validation_metrics)
    done = console("preprocess", "demo")
    assert (done.code, done.err) == (130, "nmtkit: stopped\n")


def test_ctrl_c_stops_a_command_though_a_library_fails_to_clean_up_after_it(
    console: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing_clean_up(_: object) -> NoReturn:
        try:
            raise KeyboardInterrupt
        finally:
            with torch.device("meta"):
                # the interrupt hit torch while this mode was off its stack
                _pop_mode()  # type: ignore[no-untyped-call]  # torch gives no types

    monkeypatch.setattr(Recipe, "model_validate", failing_clean_up)
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


def test_ctrl_c_stops_a_command_while_an_object_is_freed(nmtkit: Command) -> None:
    done = nmtkit("preprocess", "demo", first=FREEING)
    assert (done.code, done.err.strip()) == (130, "nmtkit: stopped")


NARROW = """\
import resource

there = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (there + (1 << 28), there + (1 << 28)))
"""
"""A process gets no more than another 256 MiB."""


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(),
    reason="the system does not tell how much memory is taken",
)
def test_too_little_memory_is_one_message_with_the_remedy(folder: Path, nmtkit: Command) -> None:
    wide = ["--run", folder / "run", "--set", "model.embedding_size=1048576"]
    refused(
        nmtkit("train", folder / "tiny.yaml", *wide, first=NARROW),
        "out of memory",
        "batch.batch_tokens",
    )


@pytest.mark.parametrize(
    ("name", "line"),
    [
        pytest.param("null", "average -m RUN -o", id="average -o"),
        pytest.param(
            "soft.json", "align -m RUN --source SOURCE --target TARGET --soft", id="align --soft"
        ),
    ],
)
def test_a_result_does_not_replace_a_device(
    trained: Path, corpus: Path, nmtkit: Command, tmp_path: Path, name: str, line: str
) -> None:
    """Whoever may write in /dev would lose /dev/null."""
    device = tmp_path / name
    os.mkfifo(device)
    places = {"RUN": trained, "SOURCE": corpus / "test.src", "TARGET": corpus / "test.tgt"}
    refused(nmtkit(*words_of(line, places), device), f"{device}: cannot be written")
    assert device.is_fifo()
    assert list(tmp_path.iterdir()) == [device]
