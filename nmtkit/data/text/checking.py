"""Checks a corpus before training: which pairs are dropped, and a report of all faults."""

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
from nmtkit.data.text.faults import DUPLICATE, EMPTY, IN_TRAIN, OVER_LONG, SRC_IN_TRAIN, TOKEN_RATIO, FaultKind
from nmtkit.data.text.hashes import HashSet, Mask, SoughtHashes
from nmtkit.data.text.normalization import TextForms

MIN_REPORTED_UNKNOWN_RATE = 0.0005
"""The share of unknown tokens from which the report mentions them."""
MANY_UNKNOWN = 0.2
"""From this share of unknown tokens on, training on a text is hardly useful."""
MOST_HASHES = 8_000_000
"""Pairs of train among which duplicates are counted where none is dropped."""

Lengths: TypeAlias = npt.NDArray[np.int64]


@dataclass
class FaultCount:
    """The pairs with one kind of fault, and what happened to them: kept, dropped or truncated."""

    count: int = 0
    first_line: int = 0
    """Counted from 1."""
    action: str = "kept"


@dataclass
class SplitReport:
    """The report of one split: pairs read and kept, and the tokens of the kept ones, without EOS.

    A dropped pair counts under the first fault that applies.
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
    """Links between tokens; None without an alignment."""
    findings: dict[str, FaultCount] = field(default_factory=dict)
    """By `FaultKind.counted`."""

    def add_fault(self, kind: FaultKind, lines: Lengths, action: str) -> None:
        """Adds pairs, by their lines, with one kind of fault."""
        if len(lines):
            self.findings.setdefault(kind.counted, FaultCount(0, int(lines[0]), action)).count += len(lines)

    def count(self, side: str, lengths: Lengths, unknown: Lengths) -> None:
        """Adds the tokens of one side ("src" or "tgt") of kept pairs, and the unknown ones, `(n,)` each."""
        for measure, count in (("tokens", lengths.sum()), ("unknown", unknown.sum())):
            setattr(self, f"{side}_{measure}", getattr(self, f"{side}_{measure}") + int(count))
        setattr(self, f"{side}_longest", max(getattr(self, f"{side}_longest"), int(lengths.max(initial=0))))

    def summary(self, name: str, columns: Sequence[str] = TEXT_COLUMNS) -> str:
        """A summary in a few words; for train with the tokens of its text columns."""
        of = "" if self.kept == self.read else f" of {self.read:,}"
        facts, unit = [], "pair" if len(columns) > 1 else "text"
        if (self.tgt_tokens or self.src_tokens) and name == "train":
            a_pair = (f"{getattr(self, f'{column}_tokens') / max(1, self.kept):.1f}" for column in columns)
            longest = (str(getattr(self, f"{column}_longest")) for column in columns)
            facts.append(f"{' and '.join(a_pair)} tokens a {unit}, at most {' and '.join(longest)}")
        if self.links is not None:
            facts.append(f"{self.links / max(1, self.kept):.1f} alignment links a {unit}")
        return f"{name} {self.kept:,}{of} {unit}s" + (f" ({', '.join(facts)})" if facts else "")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SplitReport":
        """The inverse of `dataclasses.asdict`; TypeError for other values."""
        findings = {kind: FaultCount(**finding) for kind, finding in values["findings"].items()}
        return cls(**{**values, "findings": findings})


@dataclass
class DataReport:
    """The report of a corpus: each split, and the tokenizer."""

    splits: dict[str, SplitReport] = field(default_factory=dict)
    tokenizer: dict[str, str | int] = field(default_factory=dict)
    """Its kind, "src_size" and "tgt_size", "pairs_used" to learn it and "pairs" in all."""
    files: dict[str, dict[str, str]] = field(default_factory=dict)
    """Checksums of the files of each split."""

    def line(self) -> str:
        """A summary in one line: pairs, tokens a pair, unknown tokens, dropped pairs, the tokenizer."""
        columns = [column for column in TEXT_COLUMNS if f"{column}_size" in self.tokenizer] or TEXT_COLUMNS
        parts = ["the data: " + ", ".join(split.summary(name, columns) for name, split in self.splits.items())]
        unknown = []
        for name, split in self.splits.items():
            counts = ([getattr(split, f"{column}_{what}") for what in ("unknown", "tokens")] for column in columns)
            rates = [count / max(1, total) for count, total in counts]
            told = " and ".join(f"{rate:.1%}" for rate in rates)
            unknown += [f"{name} {told}"] if max(rates) >= MIN_REPORTED_UNKNOWN_RATE else []
        sides = "source and target " if len(columns) > 1 else ""
        parts += [f"unknown {sides}tokens: {', '.join(unknown)}"] if unknown else []
        kept = [f"{fault.count:,} {kind} in {name}" for name, kind, fault in self.faults() if fault.action == "kept"]
        parts.append("nothing was left out" if len(kept) == len(self.faults()) else "left out or cut: see below")
        parts += [f"found and kept: {', '.join(kept)}"] if kept else []
        if t := self.tokenizer:
            sizes = "/".join(dict.fromkeys(f"{t[key]:,}" for key in t if key.endswith("_size")))
            sample = f" learned from {t['pairs_used']:,} of {t['pairs']:,} {'pairs' if sides else 'texts'}"
            parts.append(f"{t['kind']} tokenizer of {sizes}{sample if t['pairs_used'] != t['pairs'] else ''}")
        return "; ".join(parts)

    def mostly_unknown(self) -> str:
        """The sides of train and valid with many unknown tokens, with their shares; empty if there are none."""
        sides = {"src": "source", "tgt": "target"}
        facts = []
        for name, split in self.splits.items():
            for column, side in sides.items():
                tokens = getattr(split, f"{column}_tokens")
                share = getattr(split, f"{column}_unknown") / max(1, tokens)
                if name != "test" and share >= MANY_UNKNOWN:
                    facts.append(f"{share:.1%} of the {side} tokens of {name}")
        return ", ".join(facts)

    def faults(self) -> list[tuple[str, str, FaultCount]]:
        """The faults of all splits: split, name of the fault, and count."""
        return [(name, kind, fault) for name, split in self.splits.items() for kind, fault in split.findings.items()]


def read_checksums(report: Path) -> dict[str, dict[str, str]]:
    """The checksums in a JSON report; empty if there is no report."""
    try:
        files: dict[str, dict[str, str]] = json.loads(report.read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return files


@dataclass(frozen=True)
class FilterDecisions:
    """The check of some pairs before tokenization."""

    keep: Mask
    """`(n,)`: whether each pair is kept."""
    faults: list[tuple[FaultKind, Lengths, str]]
    """Faults, the lines of their pairs, and the action taken."""


class PairChecker:
    """Finds the faulty pairs of a corpus, counts them in the report and decides which to drop.

    The other splits are registered first, then train is checked, then they are. Memory: 8 bytes for a training pair (20
    at times, see `HashSet`), 18 for a pair of another split. Where duplicates are kept, those of a train of more than
    `MOST_HASHES` pairs are counted in a part of it, in memory that does not grow: their number is then an estimate.

    With `need_references` an empty target outside of train is refused, for tasks whose metrics need one. Texts that are
    equal in the `forms` that the model sees are duplicates.
    """

    def __init__(
        self, config: DataConfig, report: DataReport, need_references: bool = False, forms: TextForms | None = None
    ) -> None:
        self.config = config
        self._forms = forms
        self.report = report
        self._need_references = need_references
        self._pairs = HashSet(None if config.drop_duplicates else MOST_HASHES)
        self._other_pairs = SoughtHashes()
        self._other_sources = SoughtHashes()

    @property
    def estimates(self) -> str:
        """What is known of one in some pairs only, for a message; empty if there is nothing."""
        share = f"duplicates of train: estimated from one in {self._pairs.one_in} pairs, to save memory"
        return f"{share}; data.drop_duplicates finds each, with 8 to 20 bytes a pair" if self._pairs.one_in > 1 else ""

    def register(self, block: Block) -> None:
        """Registers pairs of another split, to be recognised in train."""
        hashes = block.hashes(self._forms)
        self._other_pairs.add(hashes.pairs)
        self._other_sources.add(hashes.src)

    def judge(self, block: Block) -> FilterDecisions:
        """Checks the text of the next pairs: empty sides, duplicates, overlap with train."""
        lines, empty, hashes = block.lines, block.empty(), block.hashes(self._forms)
        if block.split == "train":
            keep = ~empty
            self._other_sources.lookup(hashes.src[keep])
            self._other_pairs.lookup(hashes.pairs[keep])
            double, one_in = np.zeros_like(keep), self._pairs.one_in
            double[keep] = self._pairs.add(hashes.pairs[keep])
            action = "dropped" if self.config.drop_duplicates else "kept"
            faults = [(EMPTY, lines[empty], "dropped"), (DUPLICATE, lines[double].repeat(one_in), action)]
            return FilterDecisions(keep & ~double if self.config.drop_duplicates else keep, faults)
        if self._need_references and (without := block.empty_targets()).any():
            raise DataError(
                f"{block.split}, line {lines[without][0]}: the reference is empty, and no summary can be measured "
                "by it; take the example out of the file"
            )
        in_train = self._other_pairs.was_matched(hashes.pairs) & ~empty
        source_in_train = self._other_sources.was_matched(hashes.src) & ~in_train & ~empty
        masks = {EMPTY: empty, IN_TRAIN: in_train, SRC_IN_TRAIN: source_in_train}
        return FilterDecisions(np.ones_like(empty), [(kind, lines[mask], "kept") for kind, mask in masks.items()])

    def count(self, split: str, decision: FilterDecisions) -> SplitReport:
        """Adds a decision to the report of the split, and returns it."""
        report = self.report.splits.setdefault(split, SplitReport())
        report.read += len(decision.keep)
        for fault in decision.faults:
            report.add_fault(*fault)
        return report

    def lengths(self, split: str, lines: Lengths, lengths: Mapping[str, Lengths]) -> Mask:
        """Whether each example is kept by the lengths of its texts, by column, in tokens without EOS. All are `(n,)`.

        With `over_long: truncate` the caller truncates longer ones.
        """
        report, config = self.report.splits[split], self.config
        action = "dropped" if split == "train" else "kept"
        over = np.zeros(len(lines), dtype=bool)
        for column, limit in zip(TEXT_COLUMNS, config.limits, strict=True):
            over |= lengths[column] > limit if column in lengths else False
        truncates = config.over_long == "truncate"
        report.add_fault(OVER_LONG, lines[over], "truncated" if truncates else action)
        keep = np.ones_like(over) if truncates or action == "kept" else ~over
        if config.max_ratio is not None and len(lengths) == 2:
            longer, shorter = np.maximum(*lengths.values()), np.minimum(*lengths.values())
            uneven = keep & (longer > config.max_ratio * shorter)
            report.add_fault(TOKEN_RATIO, lines[uneven], action)
            if action == "dropped":
                keep &= ~uneven
        return keep


class FileChecksums:
    """Computes SHA-256 checksums of files while they are read: a `ByteObserver`."""

    def __init__(self) -> None:
        self._digests: dict[str, hashlib._Hash] = {}

    def __call__(self, path: str) -> Callable[[bytes], object]:
        """Starts a file."""
        self._digests[path] = hashlib.sha256()
        return self._digests[path].update

    def of(self, paths: Iterable[str]) -> dict[str, str]:
        """The checksum of each file, and of the stories in a folder; files not observed are read now."""
        try:
            return {path: self._of_file(path) for path in paths}
        except OSError as fault:
            raise DataError(f"{fault.filename}: cannot read it: {fault.strerror}") from fault

    def _of_file(self, path: str) -> str:
        files = sorted(Path(path).glob("*.story")) if os.path.isdir(path) else [Path(path)]
        total = hashlib.sha256()
        for file in files:
            total.update(file.name.encode() if len(files) > 1 else b"")
            if path in self._digests:
                total.update(self._digests[path].digest())
            else:
                with open(file, "rb") as opened:
                    total.update(hashlib.file_digest(opened, "sha256").digest())
        return total.hexdigest()
