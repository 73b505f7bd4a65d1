"""Filters and splits pairs and writes them as the files of a corpus (text or JSON lines)."""

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from nmtkit.config.tasks.task import TASKS
from nmtkit.core.errors import DataError
from nmtkit.data.text.config import SplitFiles
from nmtkit.data.text.hashes import HashSet, PairHashes
from nmtkit.data.text.reading import read_pairs
from nmtkit.data.text.scripts import is_unspaced
from nmtkit.data.text.splitting import Splitter
from nmtkit.data.text.statistics import CorpusCounter, CorpusStatistics
from nmtkit.datasets.catalogue import Entry, FilterConfig
from nmtkit.datasets.readers import Pair

SPLITS = ("train", "valid", "test")
PROGRESS_INTERVAL = 1_000
"""Number of pairs between two progress reports."""
CHUNK_PAIRS = 10_000
"""Number of pairs checked for duplicates at once."""
LINE_ENDS = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029\0]+")
"""Characters that some programs treat as the end of a line or text."""
LONE_SURROGATES = re.compile(r"[\ud800-\udfff]")


class _LettersOnly(dict[int, str | None]):
    """A table for `str.translate` that keeps only letters and combining marks."""

    def __missing__(self, code: int) -> str | None:
        letter = chr(code)
        self[code] = letter if unicodedata.category(letter)[0] in "LM" else None
        return self[code]


_LETTERS = _LettersOnly()


def count_words(text: str, unspaced: bool = False) -> int:
    """Returns the number of words: white-space separated words, or half the characters in unspaced languages."""
    return -(-sum(map(len, text.split())) // 2) if unspaced else len(text.split())


def letter_ratio(text: str) -> float:
    """Returns the share of letters and marks among all characters except white space; 0 if there are none."""
    visible = "".join(text.split())
    return len(visible.translate(_LETTERS)) / len(visible) if visible else 0.0


def rejection_reason(pair: Pair, config: FilterConfig, unspaced: Sequence[bool]) -> str:
    """Returns the reason for dropping a pair, or an empty string; `unspaced` holds `count_words`'s flag per side."""
    sides = (pair.src, pair.tgt)
    counts = [count_words(text, one) for text, one in zip(sides, unspaced, strict=True)]
    if 0 in counts:
        return "an empty side"
    if min(counts) < config.min_words:
        return "too few words"
    if config.max_words is not None and max(counts) > config.max_words:
        return "too many words"
    if config.max_ratio is not None and max(counts) > config.max_ratio * min(counts):
        return "lengths too different"
    if config.min_letter_ratio and any(
        letter_ratio(text) < config.min_letter_ratio for text in sides
    ):
        return "too few letters"
    if not config.keep_identical and pair.src == pair.tgt:
        return "both sides identical"
    return ""


def single_line(text: str) -> str:
    """Returns the stripped text on a line that no program splits; replaces lone surrogates with U+FFFD."""
    return LONE_SURROGATES.sub("\ufffd", LINE_ENDS.sub(" ", text)).strip()


def filter_pairs(
    pairs: Iterable[Pair], config: FilterConfig, src: str, tgt: str, dropped: Counter[str]
) -> Iterator[Pair]:
    """Filters pairs, except in the corpus's own validation and test sets, and puts each text on one line.

    Adds the counts of filtered pairs by reason to `dropped`; `src` and `tgt` are the languages.
    """
    unspaced, kept, source = (is_unspaced(src), is_unspaced(tgt)), HashSet(), iter(pairs)
    while chunk := [
        replace(pair, src=single_line(pair.src), tgt=single_line(pair.tgt))
        for pair in islice(source, CHUNK_PAIRS)
    ]:
        filtered = [pair.split not in ("valid", "test") for pair in chunk]
        reasons = [
            rejection_reason(pair, config, unspaced) if filtered[i] else ""
            for i, pair in enumerate(chunk)
        ]
        if not config.keep_duplicates:
            compared = [i for i, reason in enumerate(reasons) if filtered[i] and not reason]
            hashes = PairHashes.from_texts(
                [chunk[i].src for i in compared], [chunk[i].tgt for i in compared]
            ).pairs
            for i in np.flatnonzero(kept.add(hashes)):
                reasons[compared[i]] = "duplicate"
        for pair, reason in zip(chunk, reasons, strict=True):
            if reason:
                dropped[reason] += 1
            else:
                yield pair


# ------------------------------------------------------------------------------------------------------------- writing


@dataclass(frozen=True)
class WriteResult:
    """The written corpus."""

    counts: dict[str, dict[str, int]]
    """Number of pairs and of words per side, by non-empty split."""
    files: dict[str, str]
    """SHA-256 checksums by file name."""
    statistics: CorpusStatistics = field(repr=False)
    """Statistics of train, for choosing a preset."""


def file_names(entry: Entry, split: str) -> list[str]:
    """Returns the file names of a split: source and target, or one JSON lines file."""
    if TASKS.get(entry.task).fields:
        return [f"{split}.jsonl"]
    return [f"{split}.{entry.src}", f"{split}.{entry.tgt}"]


def recipe_data(entry: Entry, splits: Iterable[str]) -> dict[str, Any]:
    """Returns the `data` settings of a recipe in the same folder."""
    if fields := TASKS.get(entry.task).fields:
        keys = dict(zip(("src_field", "tgt_field"), fields, strict=True))
        return {split: {"jsonl": file_names(entry, split)[0], **keys} for split in splits}
    return {
        split: dict(zip(("src", "tgt"), file_names(entry, split), strict=True)) for split in splits
    }


def write_pairs(
    entry: Entry,
    pairs: Iterable[Pair],
    folder: Path,
    dropped: Counter[str],
    progress: Callable[[int], None] = lambda count: None,
) -> WriteResult:
    """Filters, splits and writes the pairs of a corpus.

    Train is streamed; validation and test stay in memory until all of train has been read.
    `dropped` contains the reader's counts of skipped items by reason; filtered pairs are added.
    `progress` receives the number of training pairs written so far.
    """
    counter = CorpusCounter()
    given: dict[str, list[Pair]] = {"valid": [], "test": []}
    with _Writer(entry, folder, "train") as train:

        def add_to_train(pair: Pair) -> None:
            train.add(pair)
            counter.add(pair.src, pair.tgt)
            if train.counts["pairs"] % PROGRESS_INTERVAL == 0:
                progress(train.counts["pairs"])

        splitter = Splitter(
            entry.split.valid, entry.split.test, entry.split.max_pairs, add_to_train
        )
        for pair in filter_pairs(pairs, entry.filter, entry.src, entry.tgt, dropped):
            if pair.split in given:
                given[pair.split].append(pair)
            elif pair.split:
                add_to_train(pair)
            else:
                splitter.add(pair.group or pair.src, pair)
    if not train.counts["pairs"]:
        reasons = ", ".join(f"{reason}: {count:,}" for reason, count in dropped.most_common(3))
        raise DataError(
            f"no pairs are left for training ({reasons or 'the files contain no pairs'})"
        )
    progress(train.counts["pairs"])
    held = {name: splitter.held_out[name].items() for name in ("test", "valid")}
    held_texts = {
        text for pairs in held.values() for pair in pairs for text in (pair.src, pair.tgt)
    }
    written = SplitFiles.model_validate(recipe_data(entry, ["train"])["train"]).resolved(
        str(folder)
    )
    written_pairs = read_pairs(written, json_target=True) if held_texts else ()
    in_train = {
        text for pair in written_pairs for text in (pair.src, pair.tgt) if text in held_texts
    }
    _leave_out_overlaps(held, given["test"], in_train, dropped)
    counts, files = {"train": train.counts}, dict(train.sums)
    for name in ("test", "valid"):
        if held[name] or given[name]:
            with _Writer(entry, folder, name) as writer:
                for pair in (*given[name], *held[name]):
                    writer.add(pair)
            counts[name], files = writer.counts, {**files, **writer.sums}
    ordered = {name: counts[name] for name in SPLITS if name in counts}
    return WriteResult(ordered, files, counter.statistics())


def _leave_out_overlaps(
    held: dict[str, list[Pair]], given: list[Pair], known: set[str], dropped: Counter[str]
) -> None:
    """Removes held-out pairs that share a side with other pairs: test with train, and validation with train or test.

    `given` are the corpus's own test pairs, which are kept. `known` contains the texts of train; the
    texts of test are added to it.
    """
    for name, earlier in (("test", "train"), ("valid", "train or test")):
        kept = [pair for pair in held[name] if not known & {pair.src, pair.tgt}]
        if len(kept) < len(held[name]):
            dropped[f"{name}: a side also occurs in {earlier}"] += len(held[name]) - len(kept)
        held[name] = kept
        known |= {text for pair in (*kept, *given) for text in (pair.src, pair.tgt)}


class _Writer(ExitStack):
    def __init__(self, entry: Entry, folder: Path, split: str) -> None:
        super().__init__()
        self.counts = {"pairs": 0, "src_words": 0, "tgt_words": 0}
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
        self.counts["pairs"] += 1
        self.counts["src_words"] += count_words(pair.src, self._unspaced[0])
        self.counts["tgt_words"] += count_words(pair.tgt, self._unspaced[1])
        texts = [pair.src, pair.tgt]
        if len(self._files) == 1:
            texts = [json.dumps(dict(zip(self._keys, texts, strict=True)), ensure_ascii=False)]
        for text, file, digest in zip(texts, self._files, self._digests.values(), strict=True):
            line = f"{text}\n".encode()
            file.write(line)
            digest.update(line)
