"""The results of the data check: findings and statistics of each split."""

from collections import Counter
from dataclasses import dataclass, field
from typing import get_args

from nmtkit.data.text.config import TEXT_COLUMNS
from nmtkit.data.text.faults import FaultKind, FaultLocation, Severity
from nmtkit.data.text.scripts import SCRIPTS
from nmtkit.datacheck.characters import TextArrays

SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""Severities, worst first."""
MAX_EXAMPLES = 5
"""Number of places recorded per kind of fault."""


@dataclass
class Finding:
    """One kind of fault in one split."""

    kind: FaultKind
    count: int = 0
    """Number of pairs (counted once even if both sides have the fault), or lines for faults of whole files."""
    places: list[FaultLocation] = field(default_factory=list)
    """Places of the first few faults."""


@dataclass
class Side:
    """Statistics of one side of a split."""

    words: Counter[int] = field(default_factory=Counter)
    """Number of lines by length in white-space separated words."""
    scripts: Counter[str] = field(default_factory=Counter)
    """Number of letters by script: "Latin", "Cyrillic", "Han", ..."""
    language: str = ""
    """Language code, such as "de"; empty if the language is unclear, and in splits other than the main one."""
    tokens: Counter[int] = field(default_factory=Counter)
    """Number of lines by length in tokens, if there is a tokenizer."""
    unknown: int = 0
    """Number of out-of-vocabulary tokens."""
    copyable: int = 0
    """Number of out-of-vocabulary target tokens that occur in their source, so a copying model can generate them."""

    def count(self, text: TextArrays) -> None:
        """Adds lines to the statistics."""
        self.words.update(text.words.tolist())
        for script, letters in text.letters.items():
            self.scripts[SCRIPTS[script]] += int(letters.sum())


@dataclass
class SplitDiagnosis:
    """The findings and statistics of one split."""

    name: str
    """Name of the split: "train", "valid" or "test", or "data" for files without a recipe."""
    pairs: int = 0
    """Number of line pairs."""
    src: Side = field(default_factory=Side)
    tgt: Side = field(default_factory=Side)
    """The target side; empty if there is none. A single text is always `src`."""
    columns: tuple[str, ...] = TEXT_COLUMNS
    """The column of each side."""
    ratios: Counter[int] = field(default_factory=Counter)
    """Number of pairs by target words per source word, in tenths (key 12 means 1.2 to 1.3)."""
    findings: dict[str, Finding] = field(default_factory=dict)
    """Faults by the name of their kind."""

    def sides(self) -> list[tuple[str, Side]]:
        """Returns the sides with text and their names, "source" and "target"."""
        names = {"src": "source", "tgt": "target"}
        both = zip(self.columns, (self.src, self.tgt), strict=False)
        return [(names[column], side) for column, side in both if side.words]

    def find(self, kind: FaultKind, place: FaultLocation, count: int = 1) -> None:
        """Counts a fault, and records its place if it is among the first."""
        finding = self.findings.setdefault(kind.name, Finding(kind))
        finding.count += count
        if len(finding.places) < MAX_EXAMPLES:
            finding.places.append(place)

    def count(self, src: TextArrays, tgt: TextArrays | None) -> None:
        """Adds the lines of a block to the statistics."""
        self.pairs += len(src.lines)
        self.src.count(src)
        if tgt is not None:
            self.tgt.count(tgt)
            both = (src.words > 0) & (tgt.words > 0)
            self.ratios.update((tgt.words[both] * 10 // src.words[both]).tolist())


@dataclass
class Diagnosis:
    """The findings and statistics of all splits."""

    splits: dict[str, SplitDiagnosis] = field(default_factory=dict)

    def findings(self) -> list[tuple[str, Finding]]:
        """Returns all faults with the names of their splits, worst first."""
        findings = [
            (split.name, finding)
            for split in self.splits.values()
            for finding in split.findings.values()
        ]
        return sorted(findings, key=lambda pair: SEVERITIES.index(pair[1].kind.severity))
