"""A recipe: every choice of one experiment in one file. It only chooses; it holds no logic.

A recipe may `extends:` one other file and say only what differs; `--set KEY=VALUE` goes through the same parser.
Training in stages is a list of partial recipes, each laid over the whole one and checked as a whole.
"""

from nmtkit.config.groups import EvaluationConfig
from nmtkit.config.keys import KeyChoice, RecipeKey, all_keys, choices, describe_key
from nmtkit.config.loading import any_text, bundled, load, locate
from nmtkit.config.schema import Recipe

__all__ = [
    "EvaluationConfig",
    "KeyChoice",
    "Recipe",
    "RecipeKey",
    "all_keys",
    "any_text",
    "bundled",
    "choices",
    "describe_key",
    "load",
    "locate",
]
