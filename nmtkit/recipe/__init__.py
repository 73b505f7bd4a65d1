"""A recipe: every choice of one experiment in one file. It only chooses; it holds no logic.

A recipe may `extends:` one other file and say only what differs; `--set KEY=VALUE` goes through the same parser.
Training in stages is a list of partial recipes, each laid over the whole one and checked as a whole.
"""

from nmtkit.recipe.composition import EvaluationConfig, InitConfig, Recipe, Stage, recipe_schema
from nmtkit.recipe.explaining import KeyChoice, choices, default_of, every_key, keys_elsewhere, meaning_of
from nmtkit.recipe.loading import ANY_TEXT, load, locate, shipped

__all__ = [
    "ANY_TEXT",
    "EvaluationConfig",
    "InitConfig",
    "KeyChoice",
    "Recipe",
    "Stage",
    "choices",
    "default_of",
    "every_key",
    "keys_elsewhere",
    "load",
    "locate",
    "meaning_of",
    "recipe_schema",
    "shipped",
]
