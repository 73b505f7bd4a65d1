"""The card of a fetched corpus: where it is from, what may be done with it, what is in it and what was left out."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nmtkit import __version__
from nmtkit.corpora.catalogue import Corpus
from nmtkit.corpora.sources import Obtained
from nmtkit.corpora.writing import Written
from nmtkit.errors import DataError
from nmtkit.settings import parse_json

JSON_NAME = "card.json"
TEXT_NAME = "CARD.md"


def make_card(corpus: Corpus, obtained: Sequence[Obtained], written: Written, command: str) -> dict[str, Any]:
    """All facts about a fetched corpus, as card.json has them.

    Args:
        corpus: what was fetched.
        obtained: the files of its sources.
        written: what was made of them.
        command: what the user typed.
    """
    entry = corpus.entry
    return {
        "name": corpus.name,
        "title": entry.title,
        "task": entry.task,
        "src": entry.src,
        "tgt": entry.tgt,
        "licence": entry.licence,
        "homepage": entry.homepage,
        "citation": entry.citation,
        "fetched": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "nmtkit": __version__,
        "sources": [
            {
                "origin": one.origin,
                "file": one.path.name,
                "version": one.version,
                "bytes": one.size,
                "sha256": one.sha256,
                "vouched": one.vouched,
            }
            for one in obtained
        ],
        "read": entry.read.model_dump(mode="json"),
        "keep": entry.keep.model_dump(mode="json"),
        "split": entry.split.model_dump(mode="json"),
        "counts": {name: vars(count) for name, count in written.counts.items()},
        "dropped": written.dropped,
        "overlaps_kept": written.overlaps,
        "files": written.files,
    }


def read_card(folder: Path) -> dict[str, Any] | None:
    """The card in a folder; None where there is none.

    Raises:
        DataError: it is damaged.
    """
    path = folder / JSON_NAME
    try:
        card = parse_json(path.read_bytes(), "its text")
        return {"files": dict(card["files"]), "sources": list(card["sources"]), **card}
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, DataError, ValueError, TypeError, KeyError) as fault:
        raise DataError(f"{path}: cannot be read ({fault}); delete {folder} and fetch the corpus again") from fault


def write_card(card: Mapping[str, Any], folder: Path) -> None:
    """Writes card.json and CARD.md."""
    (folder / JSON_NAME).write_text(json.dumps(card, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    (folder / TEXT_NAME).write_text(_as_text(card), encoding="utf-8")


def _as_text(card: Mapping[str, Any]) -> str:
    """The card for people."""
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
        unsure = "" if one["vouched"] else " (as it came; nothing vouches for it)"
        lines.append(f"| {one['origin']} | {one['version'] or '-'} | {one['bytes']:,} | {one['sha256']}{unsure} |")
    lines += ["", "## What is in it", "", "| split | pairs | source words | target words |", "|---|---:|---:|---:|"]
    for name, count in card["counts"].items():
        lines.append(f"| {name} | {count['pairs']:,} | {count['src_words']:,} | {count['tgt_words']:,} |")
    if card["dropped"]:
        lines += ["", "## What was left out", "", "| reason | pairs |", "|---|---:|"]
        lines += [f"| {reason} | {count:,} |" for reason, count in _largest_first(card["dropped"])]
    for name, count in card["overlaps_kept"].items():
        lines += ["", f"{count:,} pairs of {name} have a side that also stands in train; the corpus gives them so."]
    lines += ["", "## Files", "", "| file | SHA-256 |", "|---|---|"]
    lines += [f"| {name} | {digest} |" for name, digest in card["files"].items()]
    return "\n".join(lines) + "\n"


def _largest_first(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
