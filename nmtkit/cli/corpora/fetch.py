"""`nmtkit fetch`."""

import shlex
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from nmtkit.cli import terminal
from nmtkit.cli.terminal.reporting import confirm
from nmtkit.datasets.catalogue import Catalogue, Corpus
from nmtkit.datasets.download import FetchContext
from nmtkit.datasets.fetching import cache_folder, fetch, find_fetched

CORPORA = Path("corpora")


def run_fetch(
    name: str | None,
    lists: bool,
    show: bool,
    to: Path | None,
    yes: bool,
    overwrite: bool,
    catalogue: Path | None,
) -> None:
    """Carries out `nmtkit fetch`."""
    known = Catalogue(catalogue)
    if lists:
        _list(known)
        return
    if name is None:
        raise click.UsageError(
            "no corpus was given; `nmtkit fetch --list` lists the corpora, and `nmtkit fetch NAME` fetches one"
        )
    corpus = known.get(name)
    folder = to or CORPORA / corpus.name
    if show:
        _show(corpus, stderr=False)
        for key, parameter in corpus.entry.parameters.items():
            terminal.say(
                f"values of {{{key}}}: {' '.join(parameter.values) or f'any, such as {parameter.example}'}"
            )
        return
    card = None if overwrite else find_fetched(corpus, folder)
    if card is not None:
        terminal.say(
            f"{folder} already exists and was fetched on {card['fetched']} (--overwrite rebuilds it)",
            stderr=True,
        )
    else:
        _show(corpus, stderr=True)
        confirm("Accept the licence and the size above, and download?", yes)
        card = _fetch(corpus, folder)
    _say_what_next(folder, card)


def _list(known: Catalogue) -> None:
    tables: dict[str, list[list[str]]] = {}
    for name in known.names():
        corpus = known.get(known.examples(name)[0])
        entry = corpus.entry
        example = f" (such as {corpus.name})" if entry.parameters else ""
        size, licence = (text.partition(";")[0] for text in (entry.size, entry.licence))
        tables.setdefault(entry.task, []).append([name + example, size, licence])
    for task, rows in tables.items():
        terminal.table(task, ["name", "size", "licence"], rows)
        terminal.say("")
    terminal.say(
        "to see the possible values of {...}, run `nmtkit fetch NAME --show` with an example's name as NAME"
    )


def _show(corpus: Corpus, stderr: bool) -> None:
    entry = corpus.entry
    languages = entry.src if entry.src == entry.tgt else f"{entry.src} to {entry.tgt}"
    about = [
        (corpus.name, entry.title),
        ("task", f"{entry.task}, {languages}"),
        ("size", entry.size),
        ("licence", entry.licence),
        ("homepage", entry.homepage),
        ("citation", entry.citation),
        *(("from", source.label()) for source in entry.sources),
    ]
    terminal.say("\n".join(f"{key}: {value}" for key, value in about if value), stderr=stderr)


def _fetch(corpus: Corpus, folder: Path) -> dict[str, Any]:
    with terminal.ProgressDisplay() as display:

        def show_bytes(done: int, total: int | None) -> None:
            of_all = f" of {total / 1e6:,.1f}" if total else ""
            display.update(f"{done / 1e6:,.1f}{of_all} MB", done / total if total else None)

        context = FetchContext(
            cache_folder(),
            display.message,
            show_bytes,
            lambda count: display.update(f"{count:,} pairs for training"),
        )
        return fetch(corpus, folder, context, shlex.join(["nmtkit", *sys.argv[1:]]))


def _say_what_next(folder: Path, card: Mapping[str, Any]) -> None:
    rows = [
        [name, *(f"{count[key]:,}" for key in ("pairs", "src_words", "tgt_words"))]
        for name, count in card["counts"].items()
    ]
    terminal.table(f"{folder}", ["split", "pairs", "source words", "target words"], rows)
    if dropped := Counter(card["dropped"]):
        terminal.say(
            "left out: "
            + ", ".join(f"{count:,} {reason}" for reason, count in dropped.most_common())
        )
    recipe = shlex.quote(str(folder / f"{card['name']}.yaml"))
    terminal.say(f"\nnext:\n  nmtkit check {recipe}\n  nmtkit train {recipe}")
