"""Recipes: a recipe contains all settings of one experiment in one file, and no logic.

With `extends:`, a recipe inherits from one other file and contains only what differs; `--set KEY=VALUE` uses the same
parser. Stages of training are a list of partial recipes. Each stage is merged into the complete recipe, and the result
is validated.
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
    from nmtkit.config.keys import show_value as show_value
    from nmtkit.config.loading import any_text as any_text
    from nmtkit.config.loading import bundled as bundled
    from nmtkit.config.loading import load as load
    from nmtkit.config.loading import locate as locate
    from nmtkit.config.loading import run_name as run_name
    from nmtkit.config.schema import Recipe as Recipe

# Names are imported on first use, because `--help` and completion need only the tasks in this package.
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
        "show_value": "keys",
    },
)
