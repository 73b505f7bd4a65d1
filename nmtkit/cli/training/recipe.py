"""`nmtkit recipe`: ls, show, check, explain, schema; and `nmtkit preprocess`."""

import difflib
import json
import os
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from nmtkit import config
from nmtkit.cli import terminal
from nmtkit.cli.terminal.reporting import tell
from nmtkit.cli.terminal.reports import show_diagnosis, show_report
from nmtkit.core import device as devices
from nmtkit.core.errors import RecipeError
from nmtkit.core.formats import read_yaml_text
from nmtkit.core.settings import Settings
from nmtkit.data.text.files.lines import read_lines
from nmtkit.data.tokenizers.wordpiece import replay
from nmtkit.datacheck.findings import Diagnosis
from nmtkit.experiment import checks
from nmtkit.experiment.execute import begin, prepare
from nmtkit.experiment.plan import plan


def run_list_recipes() -> None:
    """Carries out `nmtkit recipe ls`."""
    ready: list[list[str]] = []
    fetched: list[list[str]] = []
    large: list[list[str]] = []
    for name in config.bundled():
        one = config.load(name)
        here = all(map(os.path.exists, one.data.paths()))
        (large if "GPU" in one.description else ready if here else fetched).append(_listed(one))
    presets = [
        _listed(config.load(name, config.any_text(name))) for name in config.bundled(presets=True)
    ]
    for title, rows in (
        ("ready to train: the text comes with nmtkit", ready),
        ("the text must be fetched first (nmtkit fetch --list)", fetched),
        ("the text must be fetched, and training needs a GPU or a lot of time", large),
        ("presets, for your own text: train --preset, or `extends` in a recipe", presets),
    ):
        if rows:
            terminal.table(title, ["recipe", "purpose"], rows)
            terminal.say("")


def _listed(one: config.Recipe) -> list[str]:
    folder = Path(one.data.folder)
    fetch = (
        f" (nmtkit fetch {folder.name})"
        if folder.parent.name == "corpora" and not folder.is_dir()
        else ""
    )
    return [one.name, one.description + fetch]


def run_show_recipe(name: str, resolved: bool, overrides: tuple[str, ...]) -> None:
    """Carries out `nmtkit recipe show`."""
    if resolved or overrides:
        lines: Iterable[str] = config.load(name, overrides).to_yaml().splitlines()
    else:
        lines = read_yaml_text(config.locate(name)).splitlines()
    for line in lines:
        if not line.startswith("name:"):  # a copy is named after its own file
            click.echo(line)


def run_check_keys(name: str, overrides: tuple[str, ...]) -> None:
    """Carries out `nmtkit recipe check`."""
    loaded = config.load(name, overrides)
    # The sizes can be shown even if text files are missing; missing files are listed at the end.
    planned = plan(loaded, devices.choose("auto"), need_files=False)
    terminal.table(loaded.name, ["what", "value"], [[*row] for row in planned.rows])
    for note in planned.notes:
        tell(note)
    checks.require_files(loaded)


def run_explain_keys(key: str | None, name: str) -> None:
    """Carries out `nmtkit recipe explain`."""
    loaded = config.load(name)
    values, keys = _values(loaded), config.all_keys()
    rows: dict[tuple[str, ...], list[str]] = {}
    for one in keys:
        if (one.path in values) if key is None else one.is_named(key):
            # Keys that several groups have in common, such as the files of each split, are explained once.
            kind = values.get(f"{one.path.rpartition('.')[0]}.kind")
            value = (
                f"({', '.join(one.kinds)})"
                if one.kinds and kind not in one.kinds
                else values.get(one.path, "-")
            )
            row = [one.path, _short(value), _short(one.default), one.meaning]
            rows.setdefault((one.path.split(".")[-1], one.default, one.meaning), row)
    for stage in loaded.stages:
        for changed, value in stage.changed_keys():
            path, before = (
                f"stages.{stage.name}.{changed}",
                f"{_short(values.get(changed, '-'))} (before)",
            )
            if key is None or f".{key}." in f".{path}.":
                now = _short(config.show_value(value))
                rows[(path,)] = [path, now, before, config.describe_key(changed)]
    if key is not None and not rows:
        raise RecipeError(
            f"recipes have no key `{key}`{_near_keys(key, [one.path for one in keys])}"
        )
    paths = [row[0] for row in rows.values()]
    if key is not None and key not in paths and (group := config.describe_key(key)):
        terminal.say(f"{key}: {group}\n")
    terminal.table("", ["key", f"in {loaded.name}", "default", "meaning"], [*rows.values()])
    shown: dict[tuple[str, tuple[config.KeyChoice, ...]], list[str]] = {}
    named: list[tuple[str, tuple[str, ...]]] = [] if key in paths else [(key or "", ())]
    named += [
        (one.path, one.kinds)
        for one in keys
        if one.path in paths and f".{one.path}".endswith(f".{key}")
    ]
    for path, kinds in named:
        shown.setdefault((path, tuple(config.choices(path, kinds))), []).extend(kinds)
    for (path, choices), of_kinds in shown.items():
        _show_choices(path, choices, of_kinds)


def _near_keys(key: str, paths: Sequence[str]) -> str:
    """Returns a hint: similarly spelled keys or, if there are none, how to list all keys."""
    names = {path if "." in key else path.split(".")[-1] for path in paths}
    near = difflib.get_close_matches(key, sorted(names), n=3, cutoff=0.7)
    if near:
        return f"; did you mean {' or '.join(map(repr, near))}?"
    groups = sorted({path.split(".")[0] for path in paths if "." in path})
    return (
        f"; `nmtkit recipe explain GROUP` lists the keys of a group, such as `nmtkit recipe explain training`. "
        f"Groups: {', '.join(groups)}"
    )


def _show_choices(key: str, choices: Sequence[config.KeyChoice], kinds: Sequence[str]) -> None:
    """Shows the choices for a key; `kinds` lists the kinds of its group that have this key."""
    if not choices:
        return
    terminal.say("")
    if not any(one.meaning for one in choices):
        of_kinds = f" ({', '.join(kinds)})" if kinds else ""
        terminal.say(f"{key}{of_kinds} is one of: {', '.join(one.name for one in choices)}")
    elif any(one.keys for one in choices):
        rows = [[one.name, one.meaning, ", ".join(one.keys)] for one in choices]
        terminal.table("", [key, "meaning", "keys"], rows)
        group = key.removesuffix(".kind")
        terminal.say(
            f"\nto explain the keys of one kind: nmtkit recipe explain {group}.{choices[-1].name}"
        )
    else:
        terminal.table("", [key, "meaning"], [[one.name, one.meaning] for one in choices])


def _values(settings: Any, group: str = "") -> dict[str, str]:
    """Returns the values of all keys, by key path."""
    values: dict[str, str] = {}
    for key in type(settings).model_fields:
        value = getattr(settings, key)
        if isinstance(value, Settings):
            values |= _values(value, f"{group}{key}.")
        values[f"{group}{key}"] = config.show_value(value)
    return values


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def run_print_schema() -> None:
    """Carries out `nmtkit recipe schema`."""
    click.echo(json.dumps(config.Recipe.model_json_schema(), ensure_ascii=False, indent=1))


def run_preprocess(
    name: str,
    overrides: tuple[str, ...],
    run_path: str | None,
    workers: int | None,
    text: Path | None,
) -> None:
    """Carries out `nmtkit preprocess`."""
    loaded = config.load(name, overrides)
    planned, run = begin(loaded, devices.choose("cpu"), run_path, notify=tell)
    try:
        with run:
            for event in prepare(planned, run, tell, workers):
                if isinstance(event, Diagnosis):
                    show_diagnosis(event)
                else:
                    show_report(event)
    except KeyboardInterrupt:
        tell("stopped; to continue from the finished parts, run the same command again")
        raise SystemExit(130) from None
    same = [*(f"--set={text}" for text in overrides), *([f"--run={run_path}"] if run_path else [])]
    following = shlex.join(["nmtkit", "train", name, *same])
    tell(f"{run.folder.data} and {run.folder.vocabulary} are ready; next: {following}")
    if text is not None:
        tokenizers = run.load_tokenizers()
        for one in dict.fromkeys(
            tokenizers.values()
        ):  # a tokenizer shared by both sides is shown once
            steps = [
                [number, " + ".join(merge.pair), merge.count, ", ".join(map(" ".join, merge.words))]
                for number, merge in enumerate(replay(one, read_lines(text)), start=1)
            ]
            terminal.table("", ["merge", "pair", "count", "words with the pair"], steps)
