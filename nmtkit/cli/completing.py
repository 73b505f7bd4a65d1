"""Shell completion of recipes, runs, corpora, recipe keys and their values; click completes commands and options.

Modules are imported when they are needed: every command has options that name these functions.
"""

import importlib
from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def completer(names: Callable[[], Iterable[str]], otherwise: str = "") -> Completer:
    """Completes names; where none fits, `otherwise` says what the shell completes instead: "file" or "dir"."""

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        items = [CompletionItem(name) for name in names() if name.startswith(incomplete)]
        return items or ([CompletionItem(incomplete, type=otherwise)] if otherwise else [])

    return complete


def _recipes() -> list[str]:
    folder: Path = importlib.import_module("nmtkit.core.files").bundled_path("recipes")
    return sorted(path.stem for path in folder.glob("*.yaml"))


def _runs() -> list[str]:
    folder = importlib.import_module("nmtkit.runs.folder")
    return [run.path.name for run in folder.run_folders(folder.RUNS)]


def _corpora() -> list[str]:
    catalogue = importlib.import_module("nmtkit.corpora.catalogue").Catalogue()
    return [example for name in catalogue.names() for example in catalogue.examples(name)]


def _keys() -> list[str]:
    recipe, settings = (importlib.import_module(f"nmtkit.{name}") for name in ("recipe", "core.settings"))
    paths = settings.key_paths(recipe.Recipe)
    return list(dict.fromkeys(".".join(path) for path in paths if path[0] != "stages"))


recipes = completer(_recipes, "file")
runs = completer(_runs, "dir")
corpora = completer(_corpora)
keys = completer(_keys)


def _assignments(group: str) -> Completer:
    """Completes KEY=VALUE of a group of keys: keys, and after the sign the values of the key."""

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        key, sign, _ = incomplete.partition("=")
        if not sign:
            names = [name.removeprefix(group) + "=" for name in _keys() if name.startswith(group)]
        else:
            choices = importlib.import_module("nmtkit.recipe").choices(group + key)
            names = [f"{key}={one.name}" for one in choices if " " not in one.name]
        return completer(lambda: names)(ctx, parameter, incomplete)

    return complete


assignments = _assignments("")
search_assignments = _assignments("search.")


@add_completion_class
class _Bash(BashComplete):
    """Bash splits words at `=`, completes what stands behind it, and is to add no space after `KEY=`."""

    source_template = BashComplete.source_template.replace(
        "COMPREPLY+=($value)", "COMPREPLY+=($value)\n            [[ $value == *= ]] && compopt -o nospace"
    )
    _key = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        args, incomplete = super().get_completion_args()
        words: list[str] = []
        for word in (*args, incomplete):
            if words and not words[-1].startswith("-") and (word == "=" or words[-1].endswith("=")):
                words[-1] += word
            else:
                words.append(word)
        key, sign, _ = words[-1].partition("=")
        self._key = key + sign if sign and not key.startswith("-") else ""
        return words[:-1], words[-1]

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{str(item.value).removeprefix(self._key)}"
