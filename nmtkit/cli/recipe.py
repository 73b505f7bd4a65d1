"""`nmtkit recipe`: ls, show, check, explain, schema."""

import json
from pathlib import Path
from typing import Any

import click

from nmtkit import console, recipe
from nmtkit.cli import options
from nmtkit.errors import RecipeError
from nmtkit.experiment import checks
from nmtkit.files import write_whole
from nmtkit.registry import near_names
from nmtkit.settings import Settings


@click.group("recipe")
def command() -> None:
    """List, show, check and explain recipes.

    \b
    Examples:
      nmtkit recipe ls
      nmtkit recipe show multi30k-en-de-transformer > mine.yaml
      nmtkit recipe check mine.yaml --set training.lr=0.001
      nmtkit recipe explain training.schedule
    """


@command.command("ls")
def list_recipes() -> None:
    """List the recipes that come with nmtkit, and presets for others to extend.

    \b
    Example:
      nmtkit recipe ls
    """
    loaded = [recipe.load(name) for name in recipe.shipped()]
    loaded += [recipe.load(name, recipe.ANY_TEXT) for name in recipe.shipped(presets=True)]
    rows = [[one.name, one.model.kind, one.description] for one in loaded]
    console.table("", ["recipe", "model", "what it is for"], rows)


@command.command("show")
@click.argument("name", metavar="RECIPE")
@click.option("--resolved", is_flag=True, help="Write out every default; follow `extends` and --set.")
@options.overrides
def show_recipe(name: str, resolved: bool, overrides: tuple[str, ...]) -> None:
    """Print a recipe, to start your own from.

    \b
    Examples:
      nmtkit recipe show demo
      nmtkit recipe show multi30k-en-de-rnnsearch --resolved > mine.yaml
    """
    if resolved or overrides:
        click.echo(recipe.load(name, overrides).to_yaml(), nl=False)
    else:
        click.echo(recipe.locate(name).read_text(encoding="utf-8"), nl=False)


@command.command("check")
@click.argument("name", metavar="RECIPE")
@options.overrides
def check_keys(name: str, overrides: tuple[str, ...]) -> None:
    """Check a recipe without training: its keys, its files, its model's size.

    All faults of the keys are reported at once, with file and line; the exit code is then 2. Missing text files are
    reported too, but are no fault.

    \b
    Examples:
      nmtkit recipe check mine.yaml
      nmtkit recipe check wmt14-en-de-transformer-base
    """
    loaded = recipe.load(name, overrides)
    rows = [[key, value] for key, value in checks.dry_run(loaded)]
    console.table(loaded.name, ["what", "value"], rows)


@command.command("explain")
@click.argument("key", required=False)
@click.option(
    "--recipe", "name", metavar="RECIPE", default="demo", show_default=True, help="Show the values of this recipe."
)
def explain_keys(key: str | None, name: str) -> None:
    """Explain a recipe's keys: meaning, default, and the value in one recipe.

    \b
    Examples:
      nmtkit recipe explain
      nmtkit recipe explain search
      nmtkit recipe explain model.attention_size --recipe multi30k-en-de-rnnsearch
      nmtkit recipe explain stages --recipe demo-news-pointer-generator
    """
    loaded = recipe.load(name)
    rows = [row for row in _rows(loaded, "") if key is None or row[0] == key or row[0].startswith(f"{key}.")]
    if not rows:
        raise RecipeError(f"no key `{key}` in a recipe: {near_names(key or '', [r[0] for r in _rows(loaded, '')])}")
    console.table("", ["key", f"in {loaded.name}", "default", "meaning"], rows)


def _rows(settings: Any, prefix: str) -> list[list[str]]:
    rows = []
    for key, field in type(settings).model_fields.items():
        value = getattr(settings, key)
        if isinstance(value, Settings):
            rows += _rows(value, f"{prefix}{key}.")
        elif key == "stages" and value:
            rows += _rows_of_stages(settings)
        else:
            default = "(required)" if field.is_required() else _short(field.get_default(call_default_factory=True))
            rows.append([f"{prefix}{key}", _short(value), default, " ".join(type(settings).meaning(key).split())])
    return rows


def _rows_of_stages(whole: recipe.Recipe) -> list[list[str]]:
    """What every stage changes; the value without it stands where others have their default."""
    usual = {row[0]: row for row in _rows(whole.model_copy(update={"stages": []}), "")}
    rows = []
    for name, one in whole.by_stage().items():
        for row in _rows(one, ""):
            before = usual.get(row[0], [row[0], "-", row[2], row[3]])
            if row[1] != before[1] and row[0] != "stages":
                rows.append([f"stages.{name}.{row[0]}", row[1], f"{before[1]} (before)", row[3]])
    return rows


def _short(value: Any) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


@command.command("schema")
@click.option("-o", "--output", type=options.FILE, help="Write it to a file.")
def print_schema(output: Path | None) -> None:
    """Print the JSON schema of recipes, for editors that check YAML while you type.

    \b
    Example:
      nmtkit recipe schema -o recipe.schema.json
    """
    text = json.dumps(recipe.recipe_schema(), ensure_ascii=False, indent=1) + "\n"
    if output is None:
        click.echo(text, nl=False)
    else:
        write_whole(output, text)
