"""Tasks: what a recipe can train a model for. Importing this registers them."""

from nmtkit.tasks import builtin as builtin
