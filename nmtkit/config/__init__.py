"""A recipe: every choice of one experiment in one file. It only chooses; it holds no logic.

A recipe may `extends:` one other file and say only what differs; `--set KEY=VALUE` goes through the same parser.
Training in stages is a list of partial recipes, each laid over the whole one and checked as a whole.
"""

from typing import TYPE_CHECKING

from nmtkit.core.registry import lazy_names

if TYPE_CHECKING:
    from nmtkit.config.groups import EvaluationConfig as EvaluationConfig
    from nmtkit.config.keys import KeyChoice as KeyChoice
    from nmtkit.config.keys import RecipeKey as RecipeKey
    from nmtkit.config.keys import all_keys as all_keys
    from nmtkit.config.keys import choices as choices
    from nmtkit.config.keys import describe_key as describe_key
    from nmtkit.config.loading import any_text as any_text
    from nmtkit.config.loading import bundled as bundled
    from nmtkit.config.loading import load as load
    from nmtkit.config.loading import locate as locate
    from nmtkit.config.loading import run_name as run_name
    from nmtkit.config.schema import Recipe as Recipe

# `--help` and completion read the tasks in this package, and do without what a recipe needs.
__getattr__ = lazy_names(
    __name__,
    {
        "EvaluationConfig": "groups",
        "KeyChoice": "keys",
        "Recipe": "schema",
        "RecipeKey": "keys",
        "all_keys": "keys",
        "any_text": "loading",
        "bundled": "loading",
        "choices": "keys",
        "describe_key": "keys",
        "load": "loading",
        "locate": "loading",
        "run_name": "loading",
    },
)
