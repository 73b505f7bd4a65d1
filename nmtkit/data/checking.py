"""The check of a corpus before training: what is faulty, what is left out, and the report of what was found."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nmtkit.data.corpus import DataConfig
from nmtkit.data.hashes import Hashes, HashSet, Mask
from nmtkit.data.reading import Example
from nmtkit.errors import DataError

Lengths: TypeAlias = npt.NDArray[np.int64]

# What can be found wrong with a pair, in the words of the report.
EMPTY = "empty side"
OVER_LONG = "over-long"
RATIO = "length ratio"
DUPLICATE = "duplicate"
IN_TRAIN = "pair also in train"
SRC_IN_TRAIN = "source also in train"


@dataclass
class Finding:
    """How often one kind of fault was found in a split."""

    count: int = 0
    """Pairs with this fault."""
    first_line: int = 0
    """The line of the first one, from 1."""
    action: str = "kept"
    """What was done with them: kept, dropped or truncated."""


@dataclass
class SplitReport:
    """What was found in one split. A dropped pair is counted under one kind of fault, the first that applies."""

    read: int = 0
    """Pairs in the files."""
    kept: int = 0
    """Pairs left after dropping."""
    src_tokens: int = 0
    """Source tokens of the kept pairs, without EOS."""
    tgt_tokens: int = 0
    """Target tokens of the kept pairs, without EOS."""
    src_unknown: int = 0
    """Source tokens that are not in the vocabulary."""
    tgt_unknown: int = 0
    """Target tokens that are not in the vocabulary."""
    src_longest: int = 0
    """The most tokens of a kept source."""
    tgt_longest: int = 0
    """The most tokens of a kept target."""
    links: int | None = None
    """Links between tokens of the kept pairs; None where no alignment was given."""
    findings: dict[str, Finding] = field(default_factory=dict)
    """Faults by kind."""

    def found(self, kind: str, lines: Sequence[int], action: str) -> None:
        """Counts the pairs of these lines under one kind of fault."""
        if len(lines):
            finding = self.findings.setdefault(kind, Finding(0, int(lines[0]), action))
            finding.count += len(lines)

    def count(self, side: str, lengths: Lengths, unknown: Lengths) -> None:
        """Counts the tokens of kept pairs.

        Args:
            side: "src" or "tgt".
            lengths: the tokens of each pair, `(n,)`.
            unknown: how many of them are unknown, `(n,)`.
        """
        tokens, missing, longest = int(lengths.sum()), int(unknown.sum()), int(lengths.max(initial=0))
        if side == "src":
            self.src_tokens += tokens
            self.src_unknown += missing
            self.src_longest = max(self.src_longest, longest)
        else:
            self.tgt_tokens += tokens
            self.tgt_unknown += missing
            self.tgt_longest = max(self.tgt_longest, longest)

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return {**vars(self), "findings": {kind: dict(vars(finding)) for kind, finding in self.findings.items()}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SplitReport":
        """The report that `as_dict` gave.

        Raises:
            TypeError: these are not its values.
        """
        findings = {kind: Finding(**finding) for kind, finding in values["findings"].items()}
        return cls(**{**values, "findings": findings})


@dataclass
class DataReport:
    """What the check of a corpus found, split by split."""

    splits: dict[str, SplitReport] = field(default_factory=dict)
    """By the name of the split."""
    tokenizer: dict[str, str | int] = field(default_factory=dict)
    """What was learned, from how many pairs."""
    files: dict[str, dict[str, str]] = field(default_factory=dict)
    """By the name of the split the checksum of each file, as `nmtkit.data.store.sums_of_files` gives them."""

    def learned(self, kind: str, src_size: int, tgt_size: int, used: int, of: int) -> None:
        """Notes the learning of the tokenizer: vocabulary sizes, pairs used and pairs there were."""
        self.tokenizer = {"kind": kind, "src_size": src_size, "tgt_size": tgt_size, "pairs_used": used, "pairs": of}

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """The report as a table: split, what, how many, first line, what was done."""
        rows = []
        if self.tokenizer:
            t = self.tokenizer
            used = f"{t['pairs_used']:,} of {t['pairs']:,} pairs"
            rows.append(
                ("tokenizer", f"{t['kind']}, learned from {used}", f"{t['src_size']:,}/{t['tgt_size']:,}", "", "")
            )
        for name, split in self.splits.items():
            rows.append((name, "pairs", f"{split.read:,}", "", f"{split.kept:,} kept"))
            for kind, finding in split.findings.items():
                rows.append((name, kind, f"{finding.count:,}", str(finding.first_line), finding.action))
            for side, tokens, unknown, longest in (
                ("source", split.src_tokens, split.src_unknown, split.src_longest),
                ("target", split.tgt_tokens, split.tgt_unknown, split.tgt_longest),
            ):
                if tokens:
                    mean = tokens / max(1, split.kept)
                    what = f"{side} tokens: {mean:.1f} a pair, at most {longest}"
                    rows.append((name, what, f"{tokens:,}", "", f"{unknown / tokens:.3%} unknown"))
            if split.links is not None:
                what = f"alignment links between tokens: {split.links / max(1, split.kept):.1f} a pair"
                rows.append((name, what, f"{split.links:,}", "", ""))
        return rows

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return {
            "tokenizer": dict(self.tokenizer),
            "files": self.files,
            "splits": {name: split.as_dict() for name, split in self.splits.items()},
        }


def read_files(report: Path) -> dict[str, dict[str, str]]:
    """The `files` of a report that was written as JSON; nothing if there is none, or it is of an earlier version."""
    try:
        files: dict[str, dict[str, str]] = json.loads(report.read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return files


def _hashes(texts: Iterable[str]) -> Hashes:
    digests = [hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest() for text in texts]
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


@dataclass(frozen=True)
class TextFacts:
    """What the check must know of the text of n pairs; found by looking at each alone."""

    lines: Lengths
    """Their lines, `(n,)`."""
    empty: Mask
    """Whether a side is empty, `(n,)`."""
    no_reference: Mask
    """Whether there is a target and it is empty, `(n,)`."""
    sources: Hashes
    """The hash of each source, `(n,)`."""
    pairs: Hashes
    """The hash of each pair, `(n,)`."""

    @classmethod
    def of(cls, src: Sequence[str], tgt: Sequence[str | None], lines: Lengths) -> "TextFacts":
        """Looks at n pairs.

        Args:
            src: sources.
            tgt: targets, or None.
            lines: the line of each, `(n,)`.
        """
        no_reference = np.array([text is not None and not text.strip() for text in tgt], dtype=bool)
        no_source = np.array([not text.strip() for text in src], dtype=bool)
        pairs = _hashes(f"{one}\n{other}" for one, other in zip(src, tgt, strict=True))
        return cls(lines, no_source | no_reference, no_reference, _hashes(src), pairs)


class _Sought:
    """Some hashes, and which of them have come by."""

    def __init__(self) -> None:
        self._hashes: Hashes = np.empty(0, dtype=np.uint64)
        self._seen: Mask = np.empty(0, dtype=bool)

    def seek(self, hashes: Hashes) -> None:
        """Looks out for these as well; before anything comes by."""
        self._hashes = np.union1d(self._hashes, hashes)
        self._seen = np.zeros(len(self._hashes), dtype=bool)

    def look(self, hashes: Hashes) -> None:
        """Notes what comes by."""
        if len(self._hashes):
            place = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
            self._seen[place[self._hashes[place] == hashes]] = True

    def seen(self, hashes: Hashes) -> Mask:
        """For each hash, whether it was sought and came by."""
        return np.isin(hashes, self._hashes[self._seen])


class Checker:
    """Finds the faulty pairs of a corpus, counts them in the report and says which to leave out.

    The other splits are made known first (`seek`), then train goes by, then they. Memory: 8 bytes for a training pair,
    16 at times (see `HashSet`), and 18 for a pair of another split.

    Args:
        config: what to leave out of training.
        report: filled as the corpus goes by.
        need_references: refuse an empty target outside of train, where it would be dropped: for tasks whose metric says
            nothing about an empty reference.
    """

    def __init__(self, config: DataConfig, report: DataReport, need_references: bool = False) -> None:
        self.config = config
        self.report = report
        self._need_references = need_references
        self._pairs = HashSet()
        self._sought_pairs = _Sought()
        self._sought_sources = _Sought()

    def cut_at(self, side: str) -> int | None:
        """Where a side ("src" or "tgt") is to be cut, in tokens; None if over-long text is not cut."""
        return self.config.cuts[0 if side == "src" else 1] if self.config.cuts else None

    def seek(self, facts: TextFacts) -> None:
        """Makes pairs of another split known, so that they are recognised when train goes by."""
        self._sought_pairs.seek(facts.pairs)
        self._sought_sources.seek(facts.sources)

    def texts(self, split: str, examples: Sequence[Example]) -> Mask:
        """As `judge`, by the examples themselves."""
        lines = np.array([example.line for example in examples], dtype=np.int64)
        return self.judge(split, TextFacts.of([e.src for e in examples], [e.tgt for e in examples], lines))

    def judge(self, split: str, facts: TextFacts) -> Mask:
        """Checks raw text: empty sides, duplicates, overlap with train.

        Args:
            split: which split; of another one than train only those pairs are compared with it that `seek` was given.
            facts: of the pairs that come next.

        Returns:
            For each pair, whether it stays.

        Raises:
            DataError: a reference is empty that must not be.
        """
        out = self.report.splits.setdefault(split, SplitReport())
        lines, empty = facts.lines, facts.empty
        out.read += len(lines)
        train = split == "train"
        if self._need_references and not train and facts.no_reference.any():
            raise DataError(
                f"{split}, line {lines[facts.no_reference][0]}: the reference is empty, and no summary can be measured "
                "by it; take the example out of the file"
            )
        out.found(EMPTY, lines[empty].tolist(), "dropped" if train else "kept")
        if train:
            keep = ~empty
            self._sought_sources.look(facts.sources[keep])
            self._sought_pairs.look(facts.pairs[keep])
            double = np.zeros_like(keep)
            double[keep] = self._pairs.add(facts.pairs[keep])
            out.found(DUPLICATE, lines[double].tolist(), "dropped" if self.config.drop_duplicates else "kept")
            if self.config.drop_duplicates:
                keep &= ~double
            return keep
        in_train = self._sought_pairs.seen(facts.pairs) & ~empty
        out.found(IN_TRAIN, lines[in_train].tolist(), "kept")
        source_in_train = self._sought_sources.seen(facts.sources) & ~in_train & ~empty
        out.found(SRC_IN_TRAIN, lines[source_in_train].tolist(), "kept")
        return np.ones(len(lines), dtype=bool)

    def lengths(self, split: str, lines: Lengths, src: Lengths, tgt: Lengths | None) -> Mask:
        """Checks lengths in tokens, EOS not counted.

        Args:
            split: which split.
            lines: the line of each example, `(n,)`.
            src: tokens of each source, `(n,)`.
            tgt: tokens of each target, `(n,)`.

        Returns:
            For each example, whether it stays. With `over_long: truncate` the caller cuts what is longer.
        """
        out = self.report.splits[split]
        train = split == "train"
        keep = np.ones(len(lines), dtype=bool)
        src_limit, tgt_limit = self.config.limits
        over = src > src_limit
        if tgt is not None:
            over |= tgt > tgt_limit
        truncate = self.config.over_long == "truncate"
        out.found(OVER_LONG, lines[over].tolist(), "truncated" if truncate else "dropped" if train else "kept")
        if train and not truncate:
            keep &= ~over
        if self.config.max_ratio is not None and tgt is not None:
            uneven = keep & (np.maximum(src, tgt) > self.config.max_ratio * np.minimum(src, tgt))
            out.found(RATIO, lines[uneven].tolist(), "dropped" if train else "kept")
            if train:
                keep &= ~uneven
        return keep
