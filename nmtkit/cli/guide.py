"""`nmtkit guide`: the pages in nmtkit/guide/, and a reference generated from the code."""

import importlib
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from nmtkit.cli import cli, terminal
from nmtkit.cli.terminal.markdown import rendered_page
from nmtkit.cli.terminal.reporting import note
from nmtkit.core.errors import NmtkitError
from nmtkit.core.files import bundled_path, write_errors
from nmtkit.core.registry import suggest_names

GROUPS = {
    "Start": ["first", "second"],
    "The main steps": ["data", "training", "decoding", "attention"],
    "Your own project": [
        "language-pair",
        "domain",
        "little-text",
        "pretraining",
        "multilingual",
        "public-models",
        "summarizer",
    ],
    "Other tasks": ["language-models", "classification", "captioning", "parsing"],
    "Lectures": ["tour"],
    "Machines and colleagues": ["gpu", "cluster", "logging", "sharing", "coming-from"],
    "Programming": ["python", "extending"],
}
"""The pages that are files, in the groups of the README and in the order in which a newcomer needs them."""
PAGES = [name for names in GROUPS.values() for name in names]
REFERENCE = "reference"
"""The page that is generated from the code, so that it is never out of date."""
TOPICS = (*PAGES, REFERENCE)

_BLOCK = re.compile(r"^```(?P<kind>\w*)\n(?P<content>.*?)^```$", re.MULTILINE | re.DOTALL)
_RECIPE_NAME = re.compile(r"`([\w-]+\.yaml)`")
_CORPUS = re.compile(r"\bdata/(demo-[a-z]+(?:-[a-z]+)*)")
"""Matches the path of a bundled corpus in pages and recipes."""
_LINK = re.compile(r"\[([^]]+)\]\(([a-z-]+)\.md(?:#[a-z-]+)?\)")


def page(topic: str) -> str:
    """Returns a page as Markdown."""
    if topic == REFERENCE:
        return reference()
    if topic not in PAGES:
        raise NmtkitError(f"the guide has no topic {topic!r}; {suggest_names(topic, TOPICS)}")
    return bundled_path("guide", f"{topic}.md").read_text(encoding="utf-8")


def reference() -> str:
    """Returns all commands with their options, and all recipe keys with their choices, as Markdown."""
    head = [
        "# Reference",
        "nmtkit generates this page from its own code: first the commands, then the keys of a recipe.",
        "`nmtkit COMMAND --help` has examples; `nmtkit recipe explain KEY` shows a key and its value in one recipe.",
    ]
    commands = _commands(click.Context(cli, info_name="nmtkit"))
    return "\n\n".join([*head, "## Commands", *commands, "## Recipe keys", *_keys()]) + "\n"


def _commands(context: click.Context) -> Iterator[str]:
    """Yields a section for each subcommand, in the order of `--help`."""
    group = context.command
    assert isinstance(group, click.Group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        below = click.Context(command, parent=context, info_name=name)
        yield f"### {below.command_path}"
        yield " ".join((command.help or "").split("\n\n")[0].split())
        yield f"`{' '.join([below.command_path, *command.collect_usage_pieces(below)])}`"
        records = (one.get_help_record(below) for one in command.get_params(below))
        yield "\n".join(
            f"- `{names}`: {' '.join(about.split())}" for names, about in filter(None, records)
        )
        if isinstance(command, click.Group):
            yield from _commands(below)


def _keys() -> Iterator[str]:
    """Yields a section for each group of a recipe, with a line for each key and each of its choices."""
    # imported here, because this loads every model, which other pages do not need
    config = importlib.import_module("nmtkit.config")
    by_group: dict[str, list[str]] = {}
    for key in config.all_keys():
        group, point, _ = key.path.partition(".")
        lines = by_group.setdefault(group if point else "the recipe itself", [])
        kinds = f" ({', '.join(key.kinds)})" if key.kinds else ""
        choices = config.choices(key.path, key.kinds)
        described = any(one.meaning for one in choices)
        listed = (
            f" One of: {', '.join(one.name for one in choices)}."
            if choices and not described
            else ""
        )
        lines.append(f"- `{key.path}`{kinds}, default `{key.default}`: {key.meaning}{listed}")
        lines += [f"  - `{one.name}`: {one.meaning}" for one in choices if described]
    for group, lines in by_group.items():
        yield f"### {group}"
        yield "\n".join(lines)


def recipes_of(text: str) -> dict[str, str]:
    """Returns the recipes of a page by their file names.

    A recipe's file name is the last `NAME.yaml` in the text between its code block and the preceding one. A block
    without a name is a fragment and is left out.
    """
    recipes = {}
    end_of_last = 0
    for block in _BLOCK.finditer(text):
        names = _RECIPE_NAME.findall(text[end_of_last : block.start()])
        if block["kind"] == "yaml" and names:
            recipes[names[-1]] = block["content"]
        end_of_last = block.end()
    return recipes


def save_files(topic: str, folder: Path) -> list[str]:
    """Saves a page's recipes and the bundled corpora it mentions to a folder; returns their paths within the folder.

    Raises:
        NmtkitError: the page has no recipes, or a file with a recipe's name has different content. Nothing is written.
    """
    text = page(topic)
    recipes = recipes_of(text)
    if not recipes:
        raise NmtkitError(f"the page {topic!r} has no recipes to save")
    for name, content in recipes.items():
        path = folder / name
        if path.exists() and path.read_bytes() != content.encode():
            raise NmtkitError(
                f"{path} already exists and differs from the page's recipe; choose another folder"
            )
    corpora = sorted(set(_CORPUS.findall(text)))
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in recipes.items():
            (folder / name).write_text(content, encoding="utf-8")
        for corpus in corpora:
            _copy_corpus(bundled_path("data", corpus), folder / "data" / corpus)
    return [*recipes, *(f"data/{corpus}" for corpus in corpora)]


def _copy_corpus(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.iterdir()):
        copy = target / file.name
        if file.suffix in (".gz", ".npz") and not copy.exists():
            shutil.copyfile(file, copy)


def run_guide(topic: str | None, folder: Path | None) -> None:
    """Carries out `nmtkit guide`."""
    if folder is not None:
        if topic is None:
            raise click.UsageError(
                "--save requires a TOPIC; specify the guide page whose recipes you want to save"
            )
        for name in save_files(topic, folder):
            note(f"wrote {folder / name}")
    elif topic is None:
        width = max(len(topic) for topic in TOPICS)
        for group, names in GROUPS.items():
            terminal.say(f"{group}:")
            for name in names:
                title = page(name).partition("\n")[0].removeprefix("# ")
                terminal.say(f"  {name:<{width}}  {title}")
        terminal.say(f"  {REFERENCE:<{width}}  All commands, their options, and all recipe keys")
        terminal.say("\nto read a page: nmtkit guide TOPIC")
    elif sys.stdout.isatty():
        text = rendered_page(_LINK.sub(r"\1 (`nmtkit guide \2`)", page(topic)))
        if text.count("\n") < shutil.get_terminal_size().lines:
            click.echo(text, nl=False, color=True)
        else:
            # keeps colours if the pager supports them; click sets the option that `less` needs
            click.echo_via_pager(text)
    else:
        click.echo(page(topic), nl=False)
