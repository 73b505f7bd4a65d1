"""Every mistake a user can make ends in one clear message, exit code 2 and no traceback."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from commands import RECIPE, Command, environment, refused, sentence_pairs, succeeded, write_pairs
from processes import Server
from pydantic_core import SchemaValidator, core_schema

from nmtkit.recipe import Recipe


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small corpus and its recipe, to be damaged."""
    for name, count, seed in (("train", 40, 1), ("valid", 10, 2), ("test", 10, 3)):
        write_pairs(tmp_path, name, sentence_pairs(count, seed))
    (tmp_path / "tiny.yaml").write_text(RECIPE, encoding="utf-8")
    return tmp_path


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    """A copy of the trained run, to be damaged."""
    return Path(shutil.copytree(trained, tmp_path / "copied"))


def test_every_recipe_fault_in_one_message(folder: Path, nmtkit: Command) -> None:
    recipe = folder / "bad.yaml"
    text = (
        RECIPE.replace("hidden_size", "hiden_size").replace("lr: 0.005", "lr: fast").replace("beam_size", "beam_sise")
    )
    recipe.write_text(text + "traning: {}\n")
    done = nmtkit("train", recipe)
    refused(done, "unknown key `model.hiden_size`: did you mean 'hidden_size'?", "`training.lr`", "(given: 'fast')")
    refused(done, "unknown key `search.beam_sise`: did you mean 'beam_size'?", "unknown key `traning`")
    lines = text.splitlines()
    for word in ("hiden_size", "lr: fast", "beam_sise"):
        number = next(number for number, line in enumerate(lines, start=1) if word in line)
        assert f"{recipe}, line {number}:" in done.err


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("model.kind=rnnserch", ["`model.kind`", "did you mean 'rnnsearch'?", "transformer"]),
        ("training.optimizer=adm", ["`training.optimizer`", "did you mean 'adam'?"]),
        ("training.label_smoothing=2", ["`training.label_smoothing`", "less than 1"]),
        ("training", ["KEY=VALUE"]),
        ("seed.x=1", ["`seed`", "integer"]),
        ("training.max_updates=", ["training would never end"]),
    ],
)
def test_overrides_go_through_the_same_parser(folder: Path, nmtkit: Command, override: str, parts: list[str]) -> None:
    refused(nmtkit("train", folder / "tiny.yaml", "--set", override), "--set", *parts)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("data: [1\n", ["not valid YAML", "line"]),
        ("seed: 1\nseed: 2\n", ["given twice", "line 2"]),
        ("- a\n", ["expected `key: value` lines"]),
        ("extends: nowhere.yaml\n", ["line 1", "`extends`", "no recipe 'nowhere.yaml'"]),
        ("extends: bad.yaml\n", ["circle"]),
    ],
)
def test_broken_recipe_files(folder: Path, nmtkit: Command, text: str, parts: list[str]) -> None:
    (folder / "bad.yaml").write_text(text)
    refused(nmtkit("train", folder / "bad.yaml"), "bad.yaml", *parts)


def test_unknown_recipe(nmtkit: Command) -> None:
    refused(nmtkit("train", "multi30k-en-de-transfomer"), "the nearest are multi30k-en-de-transformer, ")


def test_missing_files_are_all_named(folder: Path, nmtkit: Command) -> None:
    (folder / "train.src").unlink()
    (folder / "valid.tgt").unlink()
    done = nmtkit("train", folder / "tiny.yaml", "--run", folder / "run")
    refused(done, "train.src", "valid.tgt", "data.folder")
    assert not (folder / "run").exists()


def test_text_that_is_not_utf8(folder: Path, nmtkit: Command, trained: Path) -> None:
    rows = (folder / "train.src").read_bytes().split(b"\n")
    rows[6] = b"gr\xfc\xdfe"
    (folder / "train.src").write_bytes(b"\n".join(rows))
    done = nmtkit("preprocess", folder / "tiny.yaml", "--run", folder / "run")
    refused(done, "train.src, line 7", "not UTF-8")
    done = nmtkit("translate", "-m", trained, stdin=b"gr\xfc\xdfe\n")
    refused(done, "standard input, line 1", "not UTF-8")


def test_vocabulary_larger_than_the_text(folder: Path, nmtkit: Command) -> None:
    options = ["--set", "tokenizer.kind=bpe", "--set", "tokenizer.vocab_size=5000", "--run", folder / "run"]
    refused(nmtkit("preprocess", folder / "tiny.yaml", *options), "vocab_size")


def test_truncated_checkpoint(copied: Path, nmtkit: Command) -> None:
    for path in (copied / "checkpoints").glob("weights-*"):
        path.write_bytes(path.read_bytes()[:-100])
    refused(nmtkit("translate", "-m", copied, stdin="ba ce\n"), "weights-", "damaged")


def test_checkpoint_of_another_model(copied: Path, nmtkit: Command) -> None:
    recipe = copied / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("hidden_size: 48", "hidden_size: 64"))
    refused(nmtkit("translate", "-m", copied, stdin="ba ce\n"), "weights-", "shape")


def test_model_folder_without_vocabulary(copied: Path, nmtkit: Command) -> None:
    shutil.rmtree(copied / "vocabulary")
    refused(nmtkit("translate", "-m", copied, stdin="ba ce\n"), "vocabulary")


def test_model_folder_that_is_none(nmtkit: Command, tmp_path: Path) -> None:
    refused(nmtkit("translate", "-m", tmp_path / "nothing", stdin="ba ce\n"), "no such folder")
    refused(nmtkit("translate", "-m", tmp_path, stdin="ba ce\n"), "no recipe.yaml")
    refused(nmtkit("translate", stdin="ba ce\n", cwd=tmp_path), "no finished run")


def test_unwritable_output(folder: Path, trained: Path, nmtkit: Command) -> None:
    (folder / "file").write_text("")
    refused(nmtkit("train", folder / "tiny.yaml", "--run", folder / "file" / "run"), "cannot write")
    refused(nmtkit("plot-attention", "-m", trained, "ba ce", "-o", folder / "no" / "folder.png"), "folder")
    refused(nmtkit("plot-attention", "-m", trained, "ba ce", "-o", folder / "picture.bmp"), ".png")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full to stand for a full disk")
def test_a_full_disk_is_said(trained: Path, nmtkit: Command) -> None:
    full = "import os\nos.dup2(os.open('/dev/full', os.O_WRONLY), 1)"
    refused(nmtkit("translate", "-m", trained, stdin="ba ce\n", first=full), "cannot write")


@pytest.mark.parametrize("name", ["cuda:99", "gpu", "tpu:0"])
def test_no_such_device(folder: Path, trained: Path, nmtkit: Command, name: str) -> None:
    refused(nmtkit("train", folder / "tiny.yaml", "--device", name), f"no such device: '{name}'", "cpu")
    refused(nmtkit("translate", "-m", trained, "--device", name, stdin="ba\n"), f"no such device: '{name}'")


def test_a_reader_that_goes_away_is_no_fault(trained: Path) -> None:
    words = [sys.executable, "-m", "nmtkit", "translate", "-m", str(trained)]
    text = "".join(source + "\n" for source, _ in sentence_pairs(300, 5)).encode()
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    try:
        process.stdin.write(text)
        process.stdin.close()
    except BrokenPipeError:
        pass
    errors = process.stderr.read()
    process.wait()
    assert b"Traceback" not in errors, errors
    assert process.returncode == 1


def test_rescore_of_half_pairs(trained: Path, nmtkit: Command, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("ba\n\n")
    (tmp_path / "b").write_text("BA\nCE\n")
    refused(nmtkit("rescore", "-m", trained, "--source", tmp_path / "a", "--target", tmp_path / "b"), "pair 2", "empty")


def test_training_needs_a_validation_set(folder: Path, nmtkit: Command) -> None:
    done = nmtkit("train", folder / "tiny.yaml", "--run", folder / "run", "--set", "data.valid=")
    refused(done, "`data.valid` is missing")
    assert not (folder / "run").exists()


def test_nothing_to_draw(trained: Path, nmtkit: Command) -> None:
    refused(nmtkit("plot-attention", "-m", trained, "ba ce", " "), "target line 1 is empty")
    refused(nmtkit("plot-attention", "-m", trained, stdin="ba\n\n"), "standard input, line 2")


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


def test_unknown_weights(trained: Path, nmtkit: Command) -> None:
    refused(nmtkit("translate", "-m", trained, "--checkpoint", "average", stdin="ba\n"), "'average'", "best, last")


def test_an_unusable_search_setting(trained: Path, nmtkit: Command) -> None:
    refused(nmtkit("translate", "-m", trained, "--length-penalty", "gnmd", stdin="ba\n"), "did you mean 'gnmt'?")
    refused(nmtkit("translate", "-m", trained, "--n-best", "5", "--beam-size", "2", stdin="ba\n"), "n_best 5")


def test_plot_of_a_model_without_attention(folder: Path, nmtkit: Command) -> None:
    options = ["--set", "model={kind: rnn_encdec, embedding_size: 16, hidden_size: 16, maxout_size: 16}"]
    options += ["--set", "training.max_updates=2", "--run", folder / "run"]
    succeeded(nmtkit("train", folder / "tiny.yaml", *options))
    refused(nmtkit("plot-attention", "-m", folder / "run", "ba ce"), "no attention")


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


def test_an_argument_that_is_not_utf_8(trained: Path, nmtkit: Command) -> None:
    refused(nmtkit("plot-attention", "-m", trained, "caf\udce9"), "argument 4 is not UTF-8")


def test_a_name_cannot_lead_out_of_the_runs(folder: Path, nmtkit: Command) -> None:
    before = sorted(folder.rglob("*"))
    for command in ("preprocess", "train", "tune", "check"):
        refused(nmtkit(command, folder / "tiny.yaml", "--set", "name=../escaped", cwd=folder), "`name`")
    assert sorted(folder.rglob("*")) == before


def test_a_device_is_not_replaced_by_a_file(trained: Path, corpus: Path, nmtkit: Command, tmp_path: Path) -> None:
    """Whoever may write in /dev would lose /dev/null."""
    text = ["--source", corpus / "test.src", "--target", corpus / "test.tgt"]
    for name, command in (
        ("null", ["average", "-m", trained, "-o"]),
        ("schema", ["recipe", "schema", "-o"]),
        ("soft.json", ["align", "-m", trained, *text, "--soft"]),
    ):
        os.mkfifo(tmp_path / name)
        done = refused(nmtkit(*command, tmp_path / name))
        assert f"{tmp_path / name}: cannot write it" in " ".join(done.err.split())
        assert (tmp_path / name).is_fifo()
        assert len(list(tmp_path.iterdir())) == 1
        (tmp_path / name).unlink()
