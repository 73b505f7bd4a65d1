"""Registries import the module of a member when it is first asked for."""

import json
import subprocess
import sys

import pytest

from nmtkit.config.tasks.task import TASKS
from nmtkit.core.errors import RecipeError
from nmtkit.core.registry import Registry
from nmtkit.metrics.metric import METRICS
from nmtkit.models.base import MODELS
from nmtkit.training.losses.objective import OBJECTIVES

LOADED = """
import json, sys
from nmtkit.config import load
load(sys.argv[1])
from nmtkit.models.base import MODELS
from nmtkit.metrics.metric import METRICS
members = [*MODELS._members, *METRICS._members]
from nmtkit.config.keys import choices
print(json.dumps([members, [choice.name for choice in choices("model.kind")]]))
"""


def test_a_recipe_imports_only_the_model_and_the_metrics_that_it_names() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED, "demo"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    members, kinds = json.loads(done.stdout)
    assert "rnnsearch" in members
    assert not {"transformer", "convs2s", "bert", "ntm", "cider", "bracket-f1", "bertscore"} & {
        *members
    }
    assert kinds == MODELS.names(), "help lists all of them"


@pytest.mark.parametrize(
    "registry", [MODELS, METRICS, TASKS, OBJECTIVES], ids=lambda registry: registry.what
)
def test_every_name_is_registered_by_its_module(registry: Registry[object]) -> None:
    assert len(registry.names()) > 5
    for name in registry:
        registry.get(name)  # KeyError if its module registers others


def test_names_come_without_importing_and_the_first_get_imports() -> None:
    assert "this" not in sys.modules
    registry: Registry[int] = Registry("proverb", {"zen": "this"})
    registry.register("mine")(3)
    assert registry.names() == ["mine", "zen"]
    assert [*registry] == ["zen", "mine"]
    assert "zen" in registry
    assert registry.get("mine") == 3
    assert "this" not in sys.modules
    with pytest.raises(KeyError):  # it is imported, and registers nothing
        registry.get("zen")
    assert sys.modules.pop("this")


def test_a_name_can_be_taken_once() -> None:
    registry: Registry[int] = Registry("number", {"four": "nmtkit.nowhere"})
    registry.register("three")(3)
    with pytest.raises(AssertionError, match="number 'three' is registered twice"):
        registry.register("three")(4)
    with pytest.raises(AssertionError, match="number 'four' belongs to nmtkit"):
        registry.register("four")(4)
    with pytest.raises(RecipeError, match="unknown number 'thre'; did you mean 'three'"):
        registry.get("thre")
