"""Fetches a corpus: from a catalogue entry to a folder of files that can be trained on.

Beside the files lies the card: where the corpus is from, its licence, what is in it and what was filtered out.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nmtkit.core.errors import DataError
from nmtkit.core.files import bundled_path, write_errors
from nmtkit.core.formats import dump_yaml, load_yaml, parse_json
from nmtkit.core.version import __version__
from nmtkit.corpora.catalogue import Corpus
from nmtkit.corpora.download import FetchContext
from nmtkit.corpora.readers import Pair
from nmtkit.corpora.sources import SourceFile
from nmtkit.corpora.writing import SPLITS, WriteResult, recipe_data, write_pairs
from nmtkit.corpus.config import FILE_KINDS
from nmtkit.presets.fitting import choose_preset
from nmtkit.runs.folder import user_cache

CARD_JSON = "card.json"
CARD_TEXT = "CARD.md"


@dataclass(frozen=True)
class FetchedCorpus:
    """A fetched corpus: its folder, a recipe that trains on it, and the content of card.json."""

    folder: Path
    recipe: Path
    card: dict[str, Any]


def cache_folder() -> Path:
    """The download cache: `nmtkit/downloads` in $XDG_CACHE_HOME, else in ~/.cache."""
    return user_cache() / "downloads"


def find_fetched(corpus: Corpus, folder: Path) -> FetchedCorpus | None:
    """The corpus if it is already in the folder; DataError if it is incomplete, or something else is there."""
    card = _earlier_card(corpus, folder)
    if card is None:
        return None
    recipe = folder / f"{corpus.name}.yaml"
    missing = [name for name in (*card["files"], recipe.name) if not (folder / name).is_file()]
    if missing:
        raise DataError(f"{folder}: {', '.join(missing)} of the corpus is missing; fetch it again with --force")
    return FetchedCorpus(folder, recipe, card)


def _earlier_card(corpus: Corpus, folder: Path) -> dict[str, Any] | None:
    """The card of the corpus; None if the folder is empty or missing."""
    card = read_card(folder)
    if card is None:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise DataError(f"{folder} exists already, and is not a fetched corpus; name another folder with --to DIR")
        return None
    if card.get("name") != corpus.name:
        raise DataError(f"{folder} holds the corpus {card.get('name')}; name another folder with --to DIR")
    return card


def fetch(corpus: Corpus, folder: Path, context: FetchContext, command: str) -> FetchedCorpus:
    """Downloads, reads, filters, splits and writes a corpus.

    The files are written to a temporary folder that takes the folder's place when they are complete. Files of an
    earlier fetch are replaced, other files in the folder stay.
    """
    earlier = _earlier_card(corpus, folder)
    obtained = [one for source in corpus.entry.sources for one in source.obtain(context)]
    _compare(obtained, earlier, folder)
    temporary = folder.parent / f".{folder.name}-{os.getpid()}"
    try:
        with write_errors(folder):
            temporary.mkdir(parents=True)
            card = _write(corpus, obtained, temporary, context, command)
            _put_in_place(temporary, folder, {*(earlier or card)["files"], CARD_JSON, CARD_TEXT, f"{corpus.name}.yaml"})
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return FetchedCorpus(folder, folder / f"{corpus.name}.yaml", card)


def _write(
    corpus: Corpus, obtained: Sequence[SourceFile], folder: Path, context: FetchContext, command: str
) -> dict[str, Any]:
    """Writes the splits, the card and the recipe into an empty folder; returns the content of the card."""
    context.notify("reading and writing the pairs")
    dropped, read = Counter[str](), Counter[str]()
    pairs = _tallied(corpus.entry.read.pairs([one.path for one in obtained], dropped), read)
    written = write_pairs(corpus.entry, pairs, folder, dropped, context.count)
    for split, count in corpus.entry.expected.items():
        if read[split] != count:
            context.notify(f"{split} has {read[split]:,} pairs as it was published, but {count:,} were expected")
    card = make_card(corpus, obtained, written, command)
    write_card(card, folder)
    (folder / f"{corpus.name}.yaml").write_text(corpus_recipe(corpus, written), encoding="utf-8")
    return card


def _tallied(pairs: Iterable[Pair], read: Counter[str]) -> Iterator[Pair]:
    """Counts the pairs by the split that the corpus gives them."""
    for pair in pairs:
        read[pair.split] += 1
        yield pair


def corpus_recipe(corpus: Corpus, written: WriteResult) -> str:
    """The recipe beside the files: one of nmtkit's own for this corpus, or a preset chosen by size."""
    entry, data = corpus.entry, recipe_data(corpus.entry, written.counts)
    ours = bundled_path("recipes", f"{entry.recipe}.yaml")
    if not entry.recipe or not ours.is_file():
        return choose_preset(entry.task, written.statistics).text(corpus.name, data, entry.title)
    # What the extended recipe says of other files is taken back.
    extended = load_yaml(ours)[0].get("data", {})
    for split in SPLITS:
        if split in extended and split not in data:
            data[split] = None
        elif split in extended:
            data[split] |= {kind: [] for kind in FILE_KINDS if kind in extended[split] and kind not in data[split]}
    about = {"extends": entry.recipe, "name": entry.recipe, "data": {"folder": ".", **data}}
    return f"# {entry.title}\n" + dump_yaml(about)


def _compare(obtained: Sequence[SourceFile], earlier: dict[str, Any] | None, folder: Path) -> None:
    """Files without a checksum must not have changed since the last fetch."""
    before = {one["origin"]: one["sha256"] for one in (earlier or {}).get("sources", ())}
    for one in obtained:
        old = before.get(one.origin, one.sha256)
        if not one.verified and old != one.sha256:
            raise DataError(
                f"{one.origin}: it is not the file it was when {folder} was fetched: its sum was {old} and now is "
                f"{one.sha256}. If you trust the new one, fetch it into another folder with --to DIR"
            )


def _put_in_place(temporary: Path, folder: Path, ours: set[str]) -> None:
    """Moves a finished folder to its place; files of the old folder that are not `ours` move into the new one."""
    old = temporary.with_name(temporary.name + "-old")
    with suppress(FileNotFoundError):
        folder.rename(old)
    try:
        temporary.rename(folder)
    except OSError:
        if old.exists():
            old.rename(folder)
        raise
    for path in old.iterdir() if old.exists() else ():
        if path.name not in ours and not (folder / path.name).exists():
            path.rename(folder / path.name)
    shutil.rmtree(old, ignore_errors=True)


# ------------------------------------------------------------------------------------------------------------- the card


def make_card(corpus: Corpus, obtained: Sequence[SourceFile], written: WriteResult, command: str) -> dict[str, Any]:
    """The content of card.json; `command` is what the user typed."""
    entry = corpus.entry
    return {
        "name": corpus.name,
        **entry.model_dump(include={"title", "task", "src", "tgt", "licence", "homepage", "citation"}),
        "fetched": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "nmtkit": __version__,
        "sources": [
            {key: value for key, value in vars(one).items() if key != "path"}
            | {"file": one.path.name, "bytes": one.size}
            for one in obtained
        ],
        **entry.model_dump(mode="json", include={"read", "filter", "split"}),
        "counts": {name: vars(count) for name, count in written.counts.items()},
        "dropped": written.dropped,
        "overlaps_kept": written.overlaps,
        "files": written.files,
    }


def read_card(folder: Path) -> dict[str, Any] | None:
    """The card in a folder; None if there is none. DataError if it is damaged."""
    path = folder / CARD_JSON
    try:
        card = parse_json(path.read_bytes(), "its text")
        return {"files": dict(card["files"]), "sources": list(card["sources"]), **card}
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, DataError, ValueError, TypeError, KeyError) as fault:
        raise DataError(f"{path}: cannot be read ({fault}); delete {folder} and fetch the corpus again") from fault


def write_card(card: Mapping[str, Any], folder: Path) -> None:
    """Writes card.json and CARD.md."""
    (folder / CARD_JSON).write_text(json.dumps(card, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    (folder / CARD_TEXT).write_text(_as_text(card), encoding="utf-8")


def _as_text(card: Mapping[str, Any]) -> str:
    lines = [f"# {card['name']}: {card['title']}", ""]
    about = {
        "task": f"{card['task']}, {card['src']}" + ("" if card["src"] == card["tgt"] else f" to {card['tgt']}"),
        "licence": card["licence"],
        "homepage": card["homepage"],
        "to be cited": card["citation"],
        "fetched": f"{card['fetched']} by nmtkit {card['nmtkit']}",
        "command": f"`{card['command']}`",
    }
    lines += [f"* {name}: {value}" for name, value in about.items() if value]
    lines += ["", "## Sources", "", "| from | version | bytes | SHA-256 |", "|---|---|---:|---|"]
    for one in card["sources"]:
        unsure = "" if one["verified"] else " (not verified)"
        lines.append(f"| {one['origin']} | {one['version'] or '-'} | {one['bytes']:,} | {one['sha256']}{unsure} |")
    lines += ["", "## What is in it", "", "| split | pairs | source words | target words |", "|---|---:|---:|---:|"]
    for name, count in card["counts"].items():
        lines.append(f"| {name} | {count['pairs']:,} | {count['src_words']:,} | {count['tgt_words']:,} |")
    if card["dropped"]:
        lines += ["", "## What was left out", "", "| reason | pairs |", "|---|---:|"]
        lines += [f"| {reason} | {count:,} |" for reason, count in Counter(card["dropped"]).most_common()]
    for name, count in card["overlaps_kept"].items():
        lines += ["", f"{count:,} pairs of {name} have a side that also stands in train; the corpus gives them so."]
    lines += ["", "## Files", "", "| file | SHA-256 |", "|---|---|"]
    lines += [f"| {name} | {digest} |" for name, digest in card["files"].items()]
    return "\n".join(lines) + "\n"
