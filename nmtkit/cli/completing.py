"""Shell completion of names: recipes, runs, corpora, a recipe's keys and their values, topics of the guide.

Commands are not loaded for it. Their names and options are click's own completion, to which everything goes that is not
known here.
"""

import importlib
from collections.abc import Iterable, Sequence

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)

from nmtkit.core.settings import beside_package
from nmtkit.runs.folder import RUNS, run_folders

OF_RECIPES = ("train", "preprocess", "tune", "compare", "check", "recipe show", "recipe check", "bench train")
"""The commands whose arguments are recipes."""
OF_RUNS = ("runs rm", "runs mv", "plot-training")
RUN_OPTIONS = ("-m", "--model", "--run", "--reverse-model", "--init-from")


class _Names(ShellComplete):
    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """See `ShellComplete`."""
        if incomplete.startswith("-"):
            return super().get_completions(args, incomplete)
        found = _completed(args, incomplete)
        return super().get_completions(args, incomplete) if found is None else found


def _completed(args: Sequence[str], incomplete: str) -> list[CompletionItem] | None:
    """What may stand after some words; None if it is no name."""
    command, last = " ".join(args[:2]), args[-1] if args else ""
    if last == "--set":
        return _key(incomplete)
    if last in RUN_OPTIONS and not command.startswith("score"):
        return _items(_runs(), incomplete, "dir")
    if last == "--recipe":
        return _items(_recipes(), incomplete, "file")
    if last.startswith("-"):
        return None
    if command in OF_RUNS or args[:1] == ["plot-training"]:
        return _items(_runs(), incomplete, "dir")
    if command in OF_RECIPES or (args[:1] and args[0] in OF_RECIPES):
        return _items(_recipes(), incomplete, "file")
    if command == "recipe explain":
        return _items(_keys(), incomplete)
    if args == ["guide"]:
        return _items(importlib.import_module("nmtkit.cli.guide").TOPICS, incomplete)
    return _items(_corpora(), incomplete) if args[:1] == ["fetch"] else None


def _items(names: Iterable[str], incomplete: str, otherwise: str = "") -> list[CompletionItem]:
    """The names that begin so; if there are none, files or folders may be meant, which the shell completes."""
    found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return found or ([CompletionItem(incomplete, type=otherwise)] if otherwise else [])


def _recipes() -> list[str]:
    return sorted(path.stem for path in beside_package("recipes").glob("*.yaml"))


def _runs() -> list[str]:
    return [folder.path.name for folder in run_folders(RUNS)]


def _corpora() -> list[str]:
    catalogue = importlib.import_module("nmtkit.corpora.catalogue").Catalogue()
    return [example for name in catalogue.names() for example in catalogue.examples(name)]


def _keys() -> list[str]:
    """The dotted keys of recipes; this takes as long as loading the models."""
    recipe, settings = (importlib.import_module(f"nmtkit.{name}") for name in ("recipe", "core.settings"))
    paths = settings.paths_of(recipe.Recipe)
    return list(dict.fromkeys(".".join(path) for path in paths if path[0] != "stages"))


def _key(incomplete: str) -> list[CompletionItem]:
    """What begins so as KEY=VALUE: keys, or after the sign the values of the key."""
    key, sign, value = incomplete.partition("=")
    if not sign:
        return _items((f"{name}=" for name in _keys()), incomplete)
    choices = importlib.import_module("nmtkit.recipe").choices(key)
    values = [one.name for one in choices if " " not in one.name]
    return _items((f"{key}={name}" for name in values), f"{key}={value}")


class _Bash(_Names, BashComplete):
    """Bash takes `=` for a word of its own, and completes what stands behind it."""

    source_template = BashComplete.source_template.replace(
        "COMPREPLY+=($value)", "COMPREPLY+=($value)\n            [[ $value == *= ]] && compopt -o nospace"
    )
    _before = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        args, incomplete = super().get_completion_args()
        words: list[str] = []
        for word in (*args, incomplete):
            if words and not words[-1].startswith("-") and (word == "=" or words[-1].endswith("=")):
                words[-1] += word
            else:
                words.append(word)
        key, sign, _ = words[-1].partition("=")
        self._before = key + sign if sign and not key.startswith("-") else ""
        return words[:-1], words[-1]

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{str(item.value).removeprefix(self._before)}"


class _Zsh(_Names, ZshComplete):
    pass


class _Fish(_Names, FishComplete):
    pass


def prepare_completion() -> None:
    """Makes click's completion know names."""
    for shell in (_Bash, _Zsh, _Fish):
        add_completion_class(shell)
