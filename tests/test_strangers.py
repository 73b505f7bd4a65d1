"""What is made outside of nmtkit, after it was loaded, takes part by its name: the guide's model, and a task."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from nmtkit import config
from nmtkit.core.errors import RecipeError
from nmtkit.core.registry import Registry
from nmtkit.data.batches.batch import collate
from nmtkit.decoding.engine import beam_search
from nmtkit.decoding.rules import SearchConfig
from nmtkit.experiment.run import Run
from nmtkit.layers.attention import SCORES
from nmtkit.models.base import MODELS, VocabularySizes
from nmtkit.tasks.builtin import TRANSLATION
from nmtkit.tasks.task import TASKS
from nmtkit.training.events import Evaluated, Step
from nmtkit.training.losses.objective import OBJECTIVES

CPU = torch.device("cpu")
PAGE = Path(__file__).resolve().parents[1] / "nmtkit" / "guide" / "extending.md"


def shown(heading: str) -> str:
    """The first block of Python below a heading of the guide's page."""
    page = PAGE.read_text(encoding="utf-8")
    block = re.search(rf"^## {heading}$.*?^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert block is not None
    return block[1]


@contextmanager
def added_model(folder: Path) -> Iterator[ModuleType]:
    """The file that "Adding a model" in the guide shows, written and imported; forgotten at the end."""
    (folder / "bag.py").write_text(shown("Adding a model"), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("bag", folder / "bag.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules["bag"] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        MODELS._members.pop("bag", None)
        del sys.modules["bag"]


@contextmanager
def registered(registry: Registry[Any], name: str, member: Any) -> Iterator[None]:
    """For as long as this lasts; other tests go through all members of a registry."""
    registry.register(name)(member)
    try:
        yield
    finally:
        del registry._members[name]


def test_the_guides_model_reads_and_searches(tmp_path: Path) -> None:
    with added_model(tmp_path) as bags:
        model = bags.Bag(bags.BagConfig(hidden_size=8), VocabularySizes({"src": 20, "tgt": 20}, shared=True)).eval()
        sources = [[5, 6, 7], [8]]
        n_best = beam_search(model, collate(sources), SearchConfig(beam_size=3, max_length=4))
        batch = collate(sources, [best.ids for best, *_ in n_best])
        with torch.no_grad():
            log_probs = model(batch)
        torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(log_probs.shape[:2]))
        for (best, *_), walked, wanted in zip(n_best, log_probs, batch.targets.ids, strict=True):
            expected = torch.tensor(best.token_log_probs)
            torch.testing.assert_close(walked.gather(1, wanted[:, None])[: len(expected), 0], expected)


def test_a_model_that_came_later_is_named(corpus: Path, tmp_path: Path) -> None:
    bag = ["model={kind: bag, hidden_size: 8}"]
    with pytest.raises(RecipeError, match=r"`model.kind`: unknown name 'bag'"):
        config.load(corpus / "tiny.yaml", bag)
    with added_model(tmp_path) as bags:
        with pytest.raises(RecipeError, match=r"unknown key `model.hiden_size`: did you mean 'hidden_size'\?"):
            config.load(corpus / "tiny.yaml", ["model={kind: bag, hiden_size: 8}"])
        assert "bag" in config.Recipe.model_json_schema()["properties"]["model"]["discriminator"]["mapping"]
        loaded = config.load(corpus / "tiny.yaml", bag)
        assert loaded.model == bags.BagConfig(hidden_size=8)


def test_a_task_that_came_later_is_trained_validated_and_tested(corpus: Path, tmp_path: Path) -> None:
    turning = ["task=turning", "training.best_metric=chrf", "model={kind: rnnsearch, hidden_size: 8}"]
    with pytest.raises(RecipeError, match="there is no task 'turning'"):
        config.load(corpus / "tiny.yaml", turning)
    metrics = {"validation_metrics": ("chrf",), "test_metrics": ("chrf", "ter")}
    task = replace(TRANSLATION, name="turning", command="turn", done="turned", result="turned line", **metrics)
    with registered(TASKS, "turning", task):
        quick = ["training.max_updates=2", "training.validate_every=2", "search.max_length=8"]
        run = Run.begin(config.load(corpus / "tiny.yaml", [*quick, *turning]), str(tmp_path / "run"))
        (evaluated,) = (event for event in run.train(CPU) if isinstance(event, Evaluated))
        assert evaluated.metrics.keys() == {"chrf", "loss", "perplexity", "seconds"}
        result = run.test(CPU)
        assert result is not None
        assert [score.name for score in result.scores] == ["chrF2", "TER"]
        assert "turning" in config.Recipe.model_json_schema()["properties"]["task"]["enum"]


@pytest.mark.slow
def test_a_file_of_ones_own_is_run_as_nmtkit(corpus: Path, tmp_path: Path) -> None:
    own = shown("Adding a model") + shown("Run a file of your own as nmtkit")
    (tmp_path / "bag.py").write_text(own, encoding="utf-8")
    words = ["train", corpus / "tiny.yaml", "--run", "run", "--set", "model={kind: bag, hidden_size: 8}"]
    small = [*("--device", "cpu", "--threads", "1", "--set", "training.max_updates=2"), "--set", "data.test=null"]
    for command in ([*words, *small], ["translate", "-m", "run", corpus / "test.src", "-o", "out"]):
        done = subprocess.run(
            [sys.executable, "bag.py", *map(str, command)], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert len((tmp_path / "out").read_text(encoding="utf-8").splitlines()) == 40


def test_the_guides_attention_score_and_loss_train(corpus: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    own = [block for block in blocks if '"entropy_attention"' in block or '"euclid"' in block]
    assert len(own) == 2
    try:
        for block in own:
            exec(compile(block, "extending.md", "exec"), {"__name__": "extending"})
        settings = [
            *("model.score=euclid", "training.objectives={entropy_attention: 0.1}"),
            *("training.max_updates=2", "training.validate_every=2", "training.log_every=1", "search.max_length=4"),
        ]
        run = Run.begin(config.load(corpus / "tiny.yaml", settings), str(tmp_path / "run"))
        steps = [event for event in run.train(CPU) if isinstance(event, Step)]
    finally:
        SCORES._members.pop("euclid", None)
        OBJECTIVES._members.pop("entropy_attention", None)
    for step in steps:
        assert 0 < step.terms["attention_entropy"] < 4
        assert step.loss == pytest.approx(step.terms["nll"] + 0.1 * step.terms["attention_entropy"], rel=1e-4)
