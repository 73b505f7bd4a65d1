"""Checks a corpus before training: decides which pairs to drop, and reports all faults."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nmtkit.core.errors import DataError
from nmtkit.data.text.blocks import Block
from nmtkit.data.text.config import TEXT_COLUMNS, DataConfig
from nmtkit.data.text.faults import (
    DUPLICATE,
    EMPTY,
    IN_TRAIN,
    OVER_LONG,
    SRC_IN_TRAIN,
    TOKEN_RATIO,
    FaultKind,
)
from nmtkit.data.text.hashes import HashSet, Mask, SoughtHashes
from nmtkit.data.text.normalization import TextForms

MIN_REPORTED_UNKNOWN_RATE = 0.0005
"""The report mentions only rates of unknown tokens from here on."""
HIGH_UNKNOWN_RATE = 0.2
"""Rate of unknown tokens from which training on a text is hardly useful."""
MAX_SAMPLED_HASHES = 8_000_000
"""Maximum size of the sample in which duplicates are counted if they are not dropped."""

Lengths: TypeAlias = npt.NDArray[np.int64]


@dataclass
class FaultCount:
    """Number of pairs with a certain fault, and the action taken."""

    count: int = 0
    first_line: int = 0
    """Line number of the first such pair, counted from 1."""
    action: str = "kept"
    """"kept", "dropped" or "truncated"."""


@dataclass
class SplitReport:
    """Counts for one split: pairs read and kept, and the tokens of the kept pairs, without EOS.

    A dropped pair is counted under the first fault that applies.
    """

    read: int = 0
    kept: int = 0
    src_tokens: int = 0
    tgt_tokens: int = 0
    src_unknown: int = 0
    tgt_unknown: int = 0
    src_longest: int = 0
    tgt_longest: int = 0
    links: int | None = None
    """Number of links between tokens; None without an alignment."""
    findings: dict[str, FaultCount] = field(default_factory=dict)
    """Counts of faults by name, which is `FaultKind.counted`."""

    def add_fault(self, kind: FaultKind, lines: Lengths, action: str) -> None:
        """Counts pairs with a certain fault; `lines` are their line numbers."""
        if not len(lines):
            return
        if kind.counted not in self.findings:
            self.findings[kind.counted] = FaultCount(first_line=int(lines[0]), action=action)
        self.findings[kind.counted].count += len(lines)

    def add_tokens(self, side: str, lengths: Lengths, unknown: Lengths) -> None:
        """Counts the tokens of kept pairs on one side, "src" or "tgt".

        Args:
            side: the side.
            lengths: number of tokens in each text, `(n,)`.
            unknown: number of unknown tokens in each text, `(n,)`.
        """
        if side == "src":
            self.src_tokens += int(lengths.sum())
            self.src_unknown += int(unknown.sum())
            self.src_longest = max(self.src_longest, int(lengths.max(initial=0)))
        else:
            self.tgt_tokens += int(lengths.sum())
            self.tgt_unknown += int(unknown.sum())
            self.tgt_longest = max(self.tgt_longest, int(lengths.max(initial=0)))

    def unknown_rate(self, side: str) -> float:
        """Returns the share of unknown tokens on one side, "src" or "tgt"."""
        if side == "src":
            return self.src_unknown / max(1, self.src_tokens)
        return self.tgt_unknown / max(1, self.tgt_tokens)

    def summary(self, name: str, columns: Sequence[str] = TEXT_COLUMNS) -> str:
        """Returns the number of kept pairs and, for train, the tokens per pair in each text column."""
        unit = "pair" if len(columns) > 1 else "text"
        details = []
        if name == "train" and (self.src_tokens or self.tgt_tokens):
            means = []
            longest = []
            for column in columns:
                tokens = self.src_tokens if column == "src" else self.tgt_tokens
                means.append(f"{tokens / max(1, self.kept):.1f}")
                longest.append(str(self.src_longest if column == "src" else self.tgt_longest))
            details.append(
                f"{' and '.join(means)} tokens a {unit}, at most {' and '.join(longest)}"
            )
        if self.links is not None:
            links_per_pair = self.links / max(1, self.kept)
            details.append(f"{links_per_pair:.1f} alignment links a {unit}")

        amount = f"{self.kept:,}"
        if self.kept != self.read:
            amount += f" of {self.read:,}"
        text = f"{name} {amount} {unit}s"
        if details:
            text += f" ({', '.join(details)})"
        return text

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SplitReport":
        """Reverses `dataclasses.asdict`; TypeError if keys are missing or unknown."""
        findings = {name: FaultCount(**count) for name, count in values["findings"].items()}
        return cls(**{**values, "findings": findings})


@dataclass
class DataReport:
    """Report on a corpus: its splits and its tokenizer."""

    splits: dict[str, SplitReport] = field(default_factory=dict)
    tokenizer: dict[str, str | int] = field(default_factory=dict)
    """The tokenizer's "kind", "src_size" and "tgt_size"; the number of "pairs_used" to learn it, and of all "pairs"."""
    files: dict[str, dict[str, str]] = field(default_factory=dict)
    """Checksums by split and path."""

    def one_line_summary(self) -> str:
        """Returns pairs, tokens per pair, unknown tokens, dropped pairs and tokenizer, all in one line."""
        columns = [
            column for column in TEXT_COLUMNS if f"{column}_size" in self.tokenizer
        ] or TEXT_COLUMNS
        has_two_sides = len(columns) > 1
        summaries = [split.summary(name, columns) for name, split in self.splits.items()]
        parts = [f"the data: {', '.join(summaries)}"]

        unknown = []
        for name, split in self.splits.items():
            rates = [split.unknown_rate(column) for column in columns]
            if max(rates) >= MIN_REPORTED_UNKNOWN_RATE:
                percentages = " and ".join(f"{rate:.1%}" for rate in rates)
                unknown.append(f"{name} {percentages}")
        if unknown:
            sides = "source and target " if has_two_sides else ""
            parts.append(f"unknown {sides}tokens: {', '.join(unknown)}")

        tolerated = []
        for split_name, fault_name, fault in self.faults():
            if fault.action == "kept":
                tolerated.append(f"{fault.count:,} {fault_name} in {split_name}")
        if len(tolerated) == len(self.faults()):
            parts.append("nothing was left out")
        else:
            parts.append("left out or cut: see below")
        if tolerated:
            parts.append(f"found and kept: {', '.join(tolerated)}")

        if self.tokenizer:
            sizes = [f"{size:,}" for key, size in self.tokenizer.items() if key.endswith("_size")]
            distinct_sizes = "/".join(dict.fromkeys(sizes))  # equal sizes are shown once
            text = f"{self.tokenizer['kind']} tokenizer of {distinct_sizes}"
            pairs_used = self.tokenizer["pairs_used"]
            pairs = self.tokenizer["pairs"]
            if pairs_used != pairs:
                unit = "pairs" if has_two_sides else "texts"
                text += f" learned from {pairs_used:,} of {pairs:,} {unit}"
            parts.append(text)
        return "; ".join(parts)

    def mostly_unknown(self) -> str:
        """Returns the sides of train and valid that have many unknown tokens, with their rates; "" if none has."""
        descriptions = []
        for name, split in self.splits.items():
            if name == "test":
                continue
            for column, side in (("src", "source"), ("tgt", "target")):
                rate = split.unknown_rate(column)
                if rate >= HIGH_UNKNOWN_RATE:
                    descriptions.append(f"{rate:.1%} of the {side} tokens of {name}")
        return ", ".join(descriptions)

    def faults(self) -> list[tuple[str, str, FaultCount]]:
        """Returns name of the split, name of the fault and count for each fault of each split."""
        faults = []
        for split_name, split in self.splits.items():
            for fault_name, fault in split.findings.items():
                faults.append((split_name, fault_name, fault))
        return faults


def read_checksums(report: Path) -> dict[str, dict[str, str]]:
    """Returns the checksums in a JSON report; an empty dictionary if it cannot be read."""
    try:
        files: dict[str, dict[str, str]] = json.loads(report.read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return files


@dataclass(frozen=True)
class FilterDecisions:
    """What `PairChecker.judge` finds in a block before tokenization."""

    keep: Mask
    """Whether each pair is kept, `(n,)`."""
    faults: list[tuple[FaultKind, Lengths, str]]
    """Each fault with the line numbers of its pairs and the action taken."""


class PairChecker:
    """Finds the faulty pairs of a corpus, counts them in the report and decides which to drop.

    Order of calls: `register` all blocks of valid and test; then, for each block of train and after that of valid and
    test, `judge`, `add_to_report` and, once the texts are tokenized, `filter_by_length`.

    Memory: 8 bytes per training pair (about 20 while the set grows, see `HashSet`), 18 per pair of another split. If
    duplicates are not dropped and train has more than `MAX_SAMPLED_HASHES` pairs, duplicates are counted in a sample of
    limited size, so that their number is an estimate.
    """

    def __init__(
        self,
        config: DataConfig,
        report: DataReport,
        need_references: bool = False,
        forms: TextForms | None = None,
    ) -> None:
        """Starts with an empty set of pairs.

        Args:
            config: the filters.
            report: receives all counts.
            need_references: makes an empty target outside train an error, for metrics that need a reference.
            forms: see `Block.hashes`; pairs are duplicates if their texts have the same form.
        """
        self.config = config
        self._forms = forms
        self.report = report
        self._need_references = need_references
        self._pairs = HashSet(None if config.drop_duplicates else MAX_SAMPLED_HASHES)
        self._other_pairs = SoughtHashes()
        self._other_sources = SoughtHashes()

    @property
    def estimate_note(self) -> str:
        """Note for the user that the number of duplicates is an estimate; "" if it is exact."""
        one_in = self._pairs.one_in
        if one_in == 1:
            return ""
        return (
            f"duplicates of train: estimated from one in {one_in} pairs, to save memory; data.drop_duplicates finds "
            "each, with 8 to 20 bytes a pair"
        )

    def register(self, block: Block) -> None:
        """Remembers pairs of valid or test, so that they are recognized in train."""
        hashes = block.hashes(self._forms)
        self._other_pairs.add(hashes.pairs)
        self._other_sources.add(hashes.src)

    def judge(self, block: Block) -> FilterDecisions:
        """Finds empty sides, duplicates in train, and overlap of other splits with train in the next block."""
        if block.split == "train":
            return self._judge_train(block)
        return self._judge_held_out(block)

    def _judge_train(self, block: Block) -> FilterDecisions:
        lines = block.lines
        empty = block.empty()
        hashes = block.hashes(self._forms)
        keep = ~empty
        # Marks held-out hashes that occur in train; `was_matched` reads the marks later.
        self._other_sources.lookup(hashes.src[keep])
        self._other_pairs.lookup(hashes.pairs[keep])
        one_in = self._pairs.one_in  # before `add`, which may halve the sample for later pairs
        duplicate = np.zeros_like(keep)
        duplicate[keep] = self._pairs.add(hashes.pairs[keep])
        action = "kept"
        if self.config.drop_duplicates:
            keep &= ~duplicate
            action = "dropped"
        # If one in `one_in` pairs is sampled, each duplicate found stands for `one_in` duplicates.
        duplicate_lines = lines[duplicate].repeat(one_in)
        faults = [(EMPTY, lines[empty], "dropped"), (DUPLICATE, duplicate_lines, action)]
        return FilterDecisions(keep, faults)

    def _judge_held_out(self, block: Block) -> FilterDecisions:
        lines = block.lines
        empty = block.empty()
        hashes = block.hashes(self._forms)
        if self._need_references:
            without_reference = lines[block.empty_targets()]
            if len(without_reference):
                raise DataError(
                    f"{block.split}, line {without_reference[0]}: the reference is empty, so no output can be "
                    "compared with it; take the example out of the file"
                )
        in_train = self._other_pairs.was_matched(hashes.pairs) & ~empty
        source_in_train = self._other_sources.was_matched(hashes.src) & ~in_train & ~empty
        faults = [
            (EMPTY, lines[empty], "kept"),
            (IN_TRAIN, lines[in_train], "kept"),
            (SRC_IN_TRAIN, lines[source_in_train], "kept"),
        ]
        return FilterDecisions(np.ones_like(empty), faults)

    def add_to_report(self, split: str, decisions: FilterDecisions) -> SplitReport:
        """Counts a block in the split's report, and returns the report."""
        report = self.report.splits.setdefault(split, SplitReport())
        report.read += len(decisions.keep)
        for kind, lines, action in decisions.faults:
            report.add_fault(kind, lines, action)
        return report

    def filter_by_length(self, split: str, lines: Lengths, n_tokens: Mapping[str, Lengths]) -> Mask:
        """Counts pairs that are too long or uneven, and returns which examples are kept, `(n,)`.

        `add_to_report` must have been called before for this split.

        Args:
            split: name of the split.
            lines: line number of each example, `(n,)`.
            n_tokens: number of tokens in each text, without EOS, by column, `(n,)`. With `over_long: truncate` the
                caller truncates texts that are too long.
        """
        report = self.report.splits[split]
        config = self.config
        drops = split == "train"
        action = "dropped" if drops else "kept"
        truncates = config.over_long == "truncate"

        over_long = np.zeros(len(lines), dtype=bool)
        for column, limit in zip(TEXT_COLUMNS, config.limits, strict=True):
            if column in n_tokens:
                over_long |= n_tokens[column] > limit
        report.add_fault(OVER_LONG, lines[over_long], "truncated" if truncates else action)
        keep = np.ones(len(lines), dtype=bool)
        if drops and not truncates:
            keep = ~over_long

        has_both_sides = len(n_tokens) == 2  # one text alone has no length ratio
        if config.max_ratio is not None and has_both_sides:
            src_lengths, tgt_lengths = n_tokens.values()
            longer = np.maximum(src_lengths, tgt_lengths)
            shorter = np.minimum(src_lengths, tgt_lengths)
            uneven = keep & (longer > config.max_ratio * shorter)
            report.add_fault(TOKEN_RATIO, lines[uneven], action)
            if drops:
                keep &= ~uneven
        return keep


class FileChecksums:
    """Computes SHA-256 checksums of files while they are read; a `ByteObserverFactory`."""

    def __init__(self) -> None:
        self._digests: dict[str, hashlib._Hash] = {}

    def __call__(self, path: str) -> Callable[[bytes], object]:
        """Starts the checksum of a file; returns the observer of the file's bytes."""
        self._digests[path] = hashlib.sha256()
        return self._digests[path].update

    def of(self, paths: Iterable[str]) -> dict[str, str]:
        """Returns the checksum of each file or folder of stories by path; reads files that were not observed.

        Even for a single file, the checksum is the SHA-256 sum of SHA-256 digests, so it differs from `sha256sum`'s.
        """
        try:
            return {path: self._checksum(path) for path in paths}
        except OSError as error:
            raise DataError(f"{error.filename}: cannot read it: {error.strerror}") from error

    def _checksum(self, path: str) -> str:
        files = [Path(path)]
        if os.path.isdir(path):
            files = sorted(Path(path).glob("*.story"))
        total = hashlib.sha256()
        for file in files:
            if len(files) > 1:
                total.update(file.name.encode())
            if path in self._digests:  # never true for a folder: stories are not observed
                total.update(self._digests[path].digest())
                continue
            with open(file, "rb") as opened:
                total.update(hashlib.file_digest(opened, "sha256").digest())
        return total.hexdigest()
