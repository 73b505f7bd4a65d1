"""Sizes of presets, and the tasks that have presets."""

from nmtkit.config.tasks.task import TASKS

PRESETS = {
    "tiny": "for quick tests",
    "small": "for CPUs and small corpora",
    "base": "for GPUs and large corpora",
}
"""The purpose of each size."""

TASKS_WITH_PRESETS = tuple(name for name in TASKS if TASKS.get(name).presets)
"""Tasks for which a recipe can be chosen."""
