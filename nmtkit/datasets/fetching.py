"""Fetches a corpus: turns a catalogue entry into a folder of files for training.

The folder also contains a card, which records the origin, licence and content of the corpus, and
what was filtered out.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nmtkit.core.errors import DataError
from nmtkit.core.files import bundled_path, user_cache, write_errors
from nmtkit.core.formats import dump_yaml, load_yaml, parse_json
from nmtkit.core.version import __version__
from nmtkit.data.text.config import FILE_KINDS
from nmtkit.datasets.catalogue import Corpus
from nmtkit.datasets.download import FetchContext
from nmtkit.datasets.readers import Pair
from nmtkit.datasets.sources import SourceFile
from nmtkit.datasets.writing import SPLITS, WriteResult, recipe_data, write_pairs
from nmtkit.experiment.presets.fitting import choose_preset

CARD_JSON = "card.json"
CARD_TEXT = "CARD.md"


def cache_folder() -> Path:
    """Returns the download cache: `nmtkit/downloads` in $XDG_CACHE_HOME or ~/.cache."""
    return user_cache() / "downloads"


def find_fetched(corpus: Corpus, folder: Path) -> dict[str, Any] | None:
    """Returns the card if the folder contains the corpus; DataError if files are missing or of another corpus."""
    card = _earlier_card(corpus, folder)
    missing = (
        [name for name in _names(corpus, card) if not (folder / name).is_file()] if card else []
    )
    if missing:
        raise DataError(
            f"{folder}: the corpus lacks {', '.join(missing)}; fetch it again with --overwrite"
        )
    return card


def _names(corpus: Corpus, card: Mapping[str, Any]) -> list[str]:
    """Returns the names of the texts and the recipe."""
    return [*card["files"], f"{corpus.name}.yaml"]


def _earlier_card(corpus: Corpus, folder: Path) -> dict[str, Any] | None:
    """Returns the card of the corpus; None if the folder is empty or missing."""
    path = folder / CARD_JSON
    if not path.is_file():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise DataError(
                f"{folder} already exists and is not a fetched corpus; choose another folder with "
                "--to DIR"
            )
        return None
    try:
        card: dict[str, Any] = parse_json(path.read_bytes(), "its text")
        name, _ = card["name"], dict(card["files"])
    except (OSError, DataError, ValueError, TypeError, KeyError) as fault:
        raise DataError(
            f"{path}: cannot read the file ({fault}); delete {folder} and fetch the corpus again"
        ) from fault
    if name != corpus.name:
        raise DataError(
            f"{folder} already contains the corpus {name}; choose another folder with --to DIR"
        )
    return card


def fetch(corpus: Corpus, folder: Path, context: FetchContext, command: str) -> dict[str, Any]:
    """Downloads, reads, filters, splits and writes a corpus; returns its card.

    The files are written to a temporary folder and moved into place when all are complete; the card
    is moved last. Files of an earlier fetch are replaced; other files in the folder remain.
    """
    earlier = _earlier_card(corpus, folder)
    obtained = [one for source in corpus.entry.sources for one in source.obtain(context)]
    temporary = folder.parent / f".{folder.name}-{os.getpid()}"
    try:
        with write_errors(folder):
            temporary.mkdir(parents=True)
            card = _write(corpus, obtained, temporary, context, command)
            folder.mkdir(exist_ok=True)
            for name in _names(corpus, earlier) if earlier else ():
                (folder / name).unlink(missing_ok=True)
            for name in (*_names(corpus, card), CARD_TEXT, CARD_JSON):
                (temporary / name).replace(folder / name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return card


def _write(
    corpus: Corpus,
    obtained: Sequence[SourceFile],
    folder: Path,
    context: FetchContext,
    command: str,
) -> dict[str, Any]:
    """Writes splits, card and recipe into an empty folder; returns the content of the card."""
    context.notify("reading and writing the pairs")
    dropped, read = Counter[str](), Counter[str]()
    pairs = _tallied(corpus.entry.read.pairs([one.path for one in obtained], dropped), read)
    written = write_pairs(corpus.entry, pairs, folder, dropped, context.count)
    for split, count in corpus.entry.expected.items():
        if read[split] != count:
            context.notify(
                f"the published {split} split has {read[split]:,} pairs, but {count:,} were "
                "expected"
            )
    card = make_card(corpus, obtained, written, dropped, command)
    write_card(card, folder)
    (folder / f"{corpus.name}.yaml").write_text(corpus_recipe(corpus, written), encoding="utf-8")
    return card


def _tallied(pairs: Iterable[Pair], read: Counter[str]) -> Iterator[Pair]:
    """Counts the pairs per split of the corpus."""
    for pair in pairs:
        read[pair.split] += 1
        yield pair


def corpus_recipe(corpus: Corpus, written: WriteResult) -> str:
    """Returns the recipe for the folder: nmtkit's own for this corpus, or a preset chosen by size."""
    entry, data = corpus.entry, recipe_data(corpus.entry, written.counts)
    ours = bundled_path("recipes", f"{entry.recipe}.yaml")
    if not entry.recipe or not ours.is_file():
        return choose_preset(entry.task, written.statistics).text(corpus.name, data, entry.title)
    # Reset the extended recipe's settings for other files.
    extended = load_yaml(ours)[0].get("data", {})
    for split in SPLITS:
        if split in extended and split not in data:
            data[split] = None
        elif split in extended:
            data[split] |= {
                kind: []
                for kind in FILE_KINDS
                if kind in extended[split] and kind not in data[split]
            }
    about = {
        "extends": entry.recipe,
        "name": entry.recipe,
        "description": entry.title,
        "data": {"folder": ".", **data},
    }
    return f"# {entry.title}\n" + dump_yaml(about)


# ------------------------------------------------------------------------------------------------------------- the card


def make_card(
    corpus: Corpus,
    obtained: Sequence[SourceFile],
    written: WriteResult,
    dropped: Counter[str],
    command: str,
) -> dict[str, Any]:
    """Returns the content of card.json; `command` is the user's command."""
    entry = corpus.entry
    return {
        "name": corpus.name,
        **entry.model_dump(
            include={"title", "task", "src", "tgt", "licence", "homepage", "citation"}
        ),
        "fetched": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "nmtkit": __version__,
        "sources": [
            {key: value for key, value in vars(one).items() if key != "path"}
            | {"file": one.path.name, "bytes": one.path.stat().st_size}
            for one in obtained
        ],
        **entry.model_dump(mode="json", include={"read", "filter", "split"}),
        "counts": written.counts,
        "dropped": dict(dropped.most_common()),
        "files": written.files,
    }


def write_card(card: Mapping[str, Any], folder: Path) -> None:
    """Writes card.json and its readable version CARD.md."""
    (folder / CARD_JSON).write_text(
        json.dumps(card, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
    )
    text = f"# {card['name']}: {card['title']}\n\n```yaml\n{dump_yaml(card)}```\n"
    (folder / CARD_TEXT).write_text(text, encoding="utf-8")
