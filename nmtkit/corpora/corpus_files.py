"""The files of a fetched corpus: train, valid and test as text or JSON lines, and the card.

The card records where the corpus is from, its licence, what is in it and what was filtered out.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nmtkit.core.errors import DataError
from nmtkit.core.formats import parse_json
from nmtkit.core.task import TASKS
from nmtkit.core.version import __version__
from nmtkit.corpora.catalogue import Corpus, Entry
from nmtkit.corpora.filters import count_words, filter_pairs
from nmtkit.corpora.readers import Pair
from nmtkit.corpora.sources import SourceFile
from nmtkit.corpus.splitting import Splitter
from nmtkit.corpus.statistics import CorpusCounter, CorpusStatistics
from nmtkit.corpus.text import is_unspaced

CARD_JSON = "card.json"
CARD_TEXT = "CARD.md"
SPLITS = ("train", "valid", "test")
TOLD_EVERY = 1_000
"""Pairs between two progress reports."""


@dataclass
class SplitCounts:
    """The size of one split."""

    pairs: int = 0
    src_words: int = 0
    tgt_words: int = 0


@dataclass(frozen=True)
class WriteResult:
    """What was written and what was filtered out."""

    counts: dict[str, SplitCounts]
    """By split, without empty splits."""
    dropped: dict[str, int]
    """Filtered pairs by reason."""
    overlaps: dict[str, int]
    """Pairs of the corpus's own validation and test sets that share a side with train; they are kept."""
    files: dict[str, str]
    """SHA-256 checksums by file name."""
    statistics: CorpusStatistics = field(repr=False)
    """Statistics of train, by which a preset is chosen."""


def file_names(entry: Entry, split: str) -> list[str]:
    """The file names of one split: source and target, or one file of JSON lines."""
    if TASKS.get(entry.task).monolingual:
        return [f"{split}.jsonl"]
    return [f"{split}.{entry.src}", f"{split}.{entry.tgt}"]


def recipe_data(entry: Entry, splits: Iterable[str]) -> dict[str, Any]:
    """The `data` settings of a recipe beside the files."""
    if TASKS.get(entry.task).monolingual:
        keys = dict(zip(("src_field", "tgt_field"), TASKS.get(entry.task).fields, strict=True))
        return {split: {"jsonl": file_names(entry, split)[0], **keys} for split in splits}
    return {split: dict(zip(("src", "tgt"), file_names(entry, split), strict=True)) for split in splits}


def write_pairs(
    entry: Entry,
    pairs: Iterable[Pair],
    folder: Path,
    dropped: Counter[str],
    progress: Callable[[int], None] = lambda count: None,
) -> WriteResult:
    """Filters, splits and writes the pairs of a corpus.

    Train is streamed; validation and test are kept in memory until all of train is known. `dropped` has the reader's
    counts of skipped items by reason; filtered pairs are added. `progress` takes the training pairs written so far.
    """
    counter = CorpusCounter()
    given: dict[str, list[Pair]] = {"valid": [], "test": []}
    with _Writer(entry, folder, "train") as train:

        def learn(pair: Pair) -> None:
            train.add(pair)
            counter.add(pair.src, pair.tgt)
            if train.count.pairs % TOLD_EVERY == 0:
                progress(train.count.pairs)

        splitter = Splitter(entry.split.valid, entry.split.test, entry.split.max_pairs, learn)
        for pair in filter_pairs(pairs, entry.filter, entry.src, entry.tgt, dropped):
            if pair.split in given:
                given[pair.split].append(pair)
            elif pair.split:
                learn(pair)
            else:
                splitter.add(pair.group or pair.src, pair)
    if not train.count.pairs:
        reasons = ", ".join(f"{reason}: {count:,}" for reason, count in dropped.most_common(3))
        raise DataError(f"nothing is left for training ({reasons or 'the files have no pairs'})")
    progress(train.count.pairs)
    held = {name: splitter.held_out(name) for name in ("test", "valid")}
    wanted = {text for pairs in (*held.values(), *given.values()) for pair in pairs for text in (pair.src, pair.tgt)}
    in_train = {text for pair in _read_back(entry, folder) for text in pair if text in wanted} if wanted else set()
    overlaps = Counter(name for name in given for pair in given[name] if in_train & {pair.src, pair.tgt})
    _leave_out_overlaps(held, given["test"], in_train, dropped)
    counts, files = {"train": train.count}, dict(train.sums)
    for name in ("test", "valid"):
        if held[name] or given[name]:
            with _Writer(entry, folder, name) as writer:
                for pair in (*given[name], *held[name]):
                    writer.add(pair)
            counts[name], files = writer.count, {**files, **writer.sums}
    ordered = {name: counts[name] for name in SPLITS if name in counts}
    return WriteResult(ordered, dict(dropped), dict(overlaps), files, counter.statistics())


def _leave_out_overlaps(held: dict[str, list[Pair]], given: list[Pair], known: set[str], dropped: Counter[str]) -> None:
    """Removes test pairs that share a side with train, and validation pairs that share one with train or test.

    `given` are the corpus's own test pairs, which are kept. `known` are the texts of train; those of test are added.
    """
    for name, earlier in (("test", "train"), ("valid", "train or test")):
        kept = [pair for pair in held[name] if not known & {pair.src, pair.tgt}]
        if len(kept) < len(held[name]):
            dropped[f"{name}: a side also stands in {earlier}"] += len(held[name]) - len(kept)
        held[name] = kept
        known |= {text for pair in (*kept, *given) for text in (pair.src, pair.tgt)}


class _Writer(ExitStack):
    def __init__(self, entry: Entry, folder: Path, split: str) -> None:
        super().__init__()
        self.count = SplitCounts()
        self._keys = TASKS.get(entry.task).fields
        self._unspaced = is_unspaced(entry.src), is_unspaced(entry.tgt)
        self._digests = {name: hashlib.sha256() for name in file_names(entry, split)}
        opened = [open(folder / name, "wb") for name in self._digests]  # noqa: SIM115  # closed by the stack
        self._files = [self.enter_context(file) for file in opened]

    @property
    def sums(self) -> dict[str, str]:
        """SHA-256 checksums by file name."""
        return {name: digest.hexdigest() for name, digest in self._digests.items()}

    def add(self, pair: Pair) -> None:
        self.count.pairs += 1
        self.count.src_words += count_words(pair.src, self._unspaced[0])
        self.count.tgt_words += count_words(pair.tgt, self._unspaced[1])
        texts = [pair.src, pair.tgt]
        if len(self._files) == 1:
            texts = [json.dumps(dict(zip(self._keys, texts, strict=True)), ensure_ascii=False)]
        for text, file, digest in zip(texts, self._files, self._digests.values(), strict=True):
            line = f"{text}\n".encode()
            file.write(line)
            digest.update(line)


def _read_back(entry: Entry, folder: Path) -> Iterator[tuple[str, str]]:
    with ExitStack() as closing:
        names = file_names(entry, "train")
        files = [closing.enter_context(open(folder / name, encoding="utf-8", newline="\n")) for name in names]
        if len(files) == 1:
            for line in files[0]:
                src, tgt = json.loads(line).values()
                yield src, tgt
        else:
            for src, tgt in zip(*files, strict=True):
                yield src.rstrip("\n"), tgt.rstrip("\n")


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
            {
                "origin": one.origin,
                "file": one.path.name,
                "version": one.version,
                "bytes": one.size,
                "sha256": one.sha256,
                "verified": one.verified,
            }
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
        lines += [f"| {reason} | {count:,} |" for reason, count in largest_first(card["dropped"])]
    for name, count in card["overlaps_kept"].items():
        lines += ["", f"{count:,} pairs of {name} have a side that also stands in train; the corpus gives them so."]
    lines += ["", "## Files", "", "| file | SHA-256 |", "|---|---|"]
    lines += [f"| {name} | {digest} |" for name, digest in card["files"].items()]
    return "\n".join(lines) + "\n"


def largest_first(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Names and counts; equal counts in alphabetical order."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
