"""The reference of the guide, made from click's commands and from the types of the settings."""

from collections.abc import Iterator

import click

from nmtkit import recipe
from nmtkit.cli import cli


def reference() -> str:
    """All commands with their options, and all keys of a recipe with their choices, as Markdown."""
    head = [
        "# Reference",
        "nmtkit makes this page from its own code: commands first, then the keys of a recipe.",
        "`nmtkit COMMAND --help` has examples; `nmtkit recipe explain KEY` shows a key beside the value of one recipe.",
    ]
    root = click.Context(cli, info_name="nmtkit")
    parts = [*head, "## Commands", *_commands(root), "## Recipe keys", *_keys()]
    return "\n\n".join(parts) + "\n"


def _commands(context: click.Context) -> Iterator[str]:
    """A section for each command below one, in the order of `--help`."""
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
        yield "\n".join(f"- `{names}`: {' '.join(about.split())}" for names, about in filter(None, records))
        if isinstance(command, click.Group):
            yield from _commands(below)


def _keys() -> Iterator[str]:
    """A section for each group of a recipe, with a line for each key and for what may stand there."""
    seen: dict[str, list[str]] = {}
    for key in recipe.every_key():
        group, point, _ = key.path.partition(".")
        lines = seen.setdefault(group if point else "the recipe itself", [])
        kinds = f" ({', '.join(key.kinds)})" if key.kinds else ""
        lines.append(f"- `{key.path}`{kinds}, default `{key.default}`: {' '.join(key.meaning.split())}")
        for kind in recipe.choices(key.path):
            lines.append(f"  - `{kind.name}`" + (f": {kind.meaning}" if kind.meaning else ""))
    for group, lines in seen.items():
        yield f"### {group}"
        yield "\n".join(lines)
