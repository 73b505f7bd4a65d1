"""Shell completion for recipes, runs, corpora and recipe keys; click itself completes commands and options.

The functions import modules only when they are called, because the options of every command refer to them.
"""

import importlib
from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def completer(names: Callable[[], Iterable[str]], otherwise: str = "") -> Completer:
    """Returns a completer for names; if none matches, the shell completes a path: `otherwise` is "file" or "dir"."""

    def complete(
        ctx: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        items = [CompletionItem(name) for name in names() if name.startswith(incomplete)]
        return items or ([CompletionItem(incomplete, type=otherwise)] if otherwise else [])

    return complete


def _recipes() -> list[str]:
    folder: Path = importlib.import_module("nmtkit.core.files").bundled_path("recipes")
    return sorted(path.stem for path in folder.glob("*.yaml"))


def _runs() -> list[str]:
    folder = importlib.import_module("nmtkit.runs.folder")
    return [run.path.name for run in folder.run_folders(folder.RUNS_FOLDER)]


def _corpora() -> list[str]:
    catalogue = importlib.import_module("nmtkit.datasets.catalogue").Catalogue()
    return [example for name in catalogue.names() for example in catalogue.examples(name)]


def _keys() -> tuple[str, ...]:
    keys: tuple[str, ...] = importlib.import_module("nmtkit.cli.commands.options.recipe_keys").KEYS
    return keys


recipes = completer(_recipes, "file")
runs = completer(_runs, "dir")
corpora = completer(_corpora)
keys = completer(_keys)
assignments = completer(lambda: [f"{key}=" for key in _keys()])
search_assignments = completer(
    lambda: [f"{key.removeprefix('search.')}=" for key in _keys() if key.startswith("search.")]
)


@add_completion_class
class _Bash(BashComplete):
    """Bash completion that adds no space after `KEY=`."""

    source_template = BashComplete.source_template.replace(
        "COMPREPLY+=($value)",
        "COMPREPLY+=($value)\n            [[ $value == *= ]] && compopt -o nospace",
    )
