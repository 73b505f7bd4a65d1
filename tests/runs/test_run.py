"""Which run is meant, and that what it saved is read once."""

import operator
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nmtkit import config
from nmtkit.core.errors import CheckpointError, NmtkitError, RecipeError
from nmtkit.inference.loading.opening import load_from_options
from nmtkit.inference.loading.options import DecodingOptions
from nmtkit.inference.translator import Translator
from nmtkit.models.base import MODELS, VocabularySizes
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.run import EnsembleRun, Run, find_run


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the recipe of each run was read, by the name of its folder."""
    counts: Counter[str] = Counter()

    def counted(path: Path, *given: Any, **named: Any) -> Any:
        counts[path.parent.name] += 1
        return load(path, *given, **named)

    load = config.load
    monkeypatch.setattr(config, "load", counted)
    monkeypatch.delenv("NMTKIT_MODEL", raising=False)
    return counts


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "copy"))


def open_as_translate(run: Path) -> Translator:
    said: list[str] = []
    how = DecodingOptions(model=str(run), device="cpu", n_best=9, engine="nmtkit")
    translator = load_from_options(how, "translation", said.append)
    assert len(said) == 2
    return translator


def test_a_trained_run_is_opened_without_its_recipe(
    trained: Path, copy: Path, reads: Counter[str]
) -> None:
    _, why = find_run(str(trained))
    assert why == "as requested"
    one = open_as_translate(trained)
    assert not reads
    (copy / "inference.json").unlink()
    other = open_as_translate(copy)
    assert reads == {"copy": 1}
    for name in ("config", "name", "reads_articles", "max_source_tokens", "model.config"):
        assert operator.attrgetter(name)(one) == operator.attrgetter(name)(other)
    assert one.translate(["ba zu fo"]) == other.translate(["ba zu fo"])


@pytest.mark.parametrize("content", ["", "[]", '{"name": 7}', "\0"])
def test_a_damaged_inference_config_is_not_believed(
    content: str, copy: Path, reads: Counter[str]
) -> None:
    (copy / "inference.json").write_text(content)
    open_as_translate(copy)
    assert reads == {"copy": 1}


def test_a_recipe_that_was_changed_is_read(copy: Path, reads: Counter[str]) -> None:
    path = copy / "recipe.yaml"
    path.write_text(
        path.read_text(encoding="utf-8").replace("length_penalty: average", "length_penalty: gnmt")
    )
    assert open_as_translate(copy).config.length_penalty == "gnmt"
    assert reads == {"copy": 1}


@pytest.mark.slow  # tests/cli/test_cold_start.py asks this of the command
def test_no_settings_of_training_are_loaded_to_decode(trained: Path) -> None:
    program = (
        "import sys; from nmtkit.inference import Translator\n"
        "Translator.load(sys.argv[1], device='cpu').translate(['ba zu fo'])\n"
        "sys.exit(' '.join({'nmtkit.config.schema', 'nmtkit.training.config'} & {*sys.modules}) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(trained)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_newest_run_of_a_task_is_found_reading_no_recipe_twice(
    trained: Path, tmp_path: Path, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (trained / "recipe.yaml").read_text(encoding="utf-8")
    summaries = text.replace("task: translation", "task: summarization").replace("bleu", "rougeL")
    for number, (name, content) in enumerate({"old": text, "mid": text, "news": summaries}.items()):
        folder = RunFolder(tmp_path / "runs" / name)
        folder.path.mkdir(parents=True)
        folder.recipe.write_text(content, encoding="utf-8")
        folder.result.write_text("{}")
        os.utime(folder.result, (number, number))
    run, why = find_run(task="translation")
    assert (run.folder.path.name, run.recipe.name) == ("mid", "tiny")
    assert "the newest finished run for translation" in why
    assert reads == {"news": 1, "mid": 1}
    run, _ = find_run()
    assert run.folder.path.name == "news"
    assert reads == {"news": 1, "mid": 1}


def test_a_folder_of_the_name_that_is_no_run_hides_none(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(trained)
    assert find_run("mine")[0].recipe.name == "tiny"


def test_no_folder_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = Run(RunFolder(tmp_path))
    with pytest.raises(CheckpointError, match=r"it contains no recipe\.yaml"):
        _ = run.recipe
    with pytest.raises(
        CheckpointError,
        match=r"no finished run for summarization .*train demo-news-pointer-generator",
    ):
        find_run(task="summarization")


def test_the_member_of_an_ensemble_that_writes_no_text_is_named() -> None:
    tokenizers, sizes = SimpleNamespace(checksum="1"), VocabularySizes({"tgt": 9})
    runs = []
    for kind in ("rnn_lm", "bert"):
        run, model = Run(RunFolder(Path(kind))), MODELS.get(kind)(MODELS.get(kind).Config(), sizes)
        run.open_for_inference = lambda *_, model=model: (model, tokenizers, None)
        runs.append(run)
    with pytest.raises(RecipeError, match=r"^bert: this model does not generate text"):
        EnsembleRun(runs, "probabilities", None).open_for_inference(torch.device("cpu"))


def test_a_run_opened_for_reading_is_not_changed(copy: Path) -> None:
    run = Run.open(copy)
    before = (copy / "recipe.yaml").read_bytes()
    with pytest.raises(NmtkitError, match=r"does not hold the lock .* `Run\.open_to_write`"):
        run.save_recipe(run.recipe.model_copy(update={"description": "changed"}))
    with pytest.raises(NmtkitError, match="does not hold the lock"):
        run.keep_module(None)
    assert (copy / "recipe.yaml").read_bytes() == before
    assert run.recipe.description != "changed"


def test_each_run_of_a_folder_holds_the_lock_until_it_is_closed(copy: Path) -> None:
    first = Run.open_to_write(copy)
    second = Run.open_to_write(copy)
    first.close()
    first.close()
    assert not first.may_write
    assert second.may_write
    assert RunFolder(copy).lock_holder()
    second.close()
    assert not second.may_write
    assert not RunFolder(copy).lock_holder()
