"""A stage of a training: what it changes in the recipe."""

from collections.abc import Iterator, Mapping
from typing import Any

from nmtkit.core.settings import Field, Name, Settings

STAGE_GROUPS = ("task", "data", "model", "batch", "training", "search", "evaluation")
"""What a stage may change of a recipe: the task, and these groups."""
MAX_STAGES = 100
"""How many stages a training may have: each is a whole recipe."""


class Stage(Settings):
    """One stage of a training: what it changes in the recipe. Updates, epochs and minutes count from its beginning.

    A stage begins with the weights that validation chose in the stage before, and with its own data order. What the
    model has only now begins as in a fresh model. The optimizer goes on with what it knows of each weight, if it is the
    same. Minutes that the recipe gives, and not a stage, are those of all stages together.
    """

    name: Name = Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*(-[A-Za-z0-9_]+)*$")
    """What the stage is called; letters, digits, - and _."""
    task: str | None = None
    """Another task, such as language-modelling to pretrain; the last stage has that of the recipe."""
    data: dict[str, Any] = Field(default_factory=dict)
    """Settings of `data` that differ; train and valid are taken whole. Another text is stored on its own."""
    model: dict[str, Any] = Field(default_factory=dict)
    """Settings of the model that differ; `kind` and all sizes stay."""
    batch: dict[str, Any] = Field(default_factory=dict)
    """How training batches are made."""
    training: dict[str, Any] = Field(default_factory=dict)
    """Settings of `training` that differ."""
    search: dict[str, Any] = Field(default_factory=dict)
    """Search settings: beam, penalties, limits."""
    evaluation: dict[str, Any] = Field(default_factory=dict)
    """How validation and test judge the model."""

    def changes(self) -> dict[str, Any]:
        """What it changes, by group."""
        return {group: getattr(self, group) for group in STAGE_GROUPS if getattr(self, group)}

    def changed_keys(self) -> Iterator[tuple[str, Any]]:
        """The dotted keys that it changes, with their values."""
        return _dotted_keys(self.changes())


def without_replaced(recipe: Mapping[str, Any], stage: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe without what a stage replaces as a whole: files of its own; metrics and test set of another task."""
    gone = {"train", "valid"} & {*stage.get("data", ())} | ({"test", "metrics"} if stage.get("task") else set())
    groups = {name: recipe[name] for name in ("data", "evaluation") if isinstance(recipe.get(name), Mapping)}
    return {**recipe, **{name: {k: one[k] for k in one if k not in gone} for name, one in groups.items()}}


def _dotted_keys(changes: dict[str, Any], group: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in changes.items():
        if isinstance(value, dict):
            yield from _dotted_keys(value, f"{group}{key}.")
        else:
            yield f"{group}{key}", value
