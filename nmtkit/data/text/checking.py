"""Checks the pairs of a corpus during preprocessing: decides which to drop, and counts faulty pairs in a report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

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
"""The summary of a report omits rates of unknown tokens below this value."""
HIGH_UNKNOWN_RATE = 0.2
"""Minimum rate of unknown tokens at which the user is warned that training is hardly useful."""
MAX_SAMPLED_HASHES = 8_000_000
"""If duplicates are not dropped, they are counted in a sample of at most this many training pairs."""

LineNumbers: TypeAlias = NDArray[np.int64]
"""Line numbers of pairs, counted from 1 through all files of the split, `(n,)`."""
TokenCounts: TypeAlias = NDArray[np.int64]
"""Number of tokens in each text, `(n,)`."""
Action: TypeAlias = Literal["kept", "dropped", "truncated"]
"""How preprocessing handles pairs with a fault."""


# -------------------------------------------------------------------------------------------------------------- reports


@dataclass
class FaultCount:
    """Number of pairs with a certain fault in one split, and how they were handled."""

    count: int = 0
    first_line: int = 0
    """Line number of the first such pair, counted from 1."""
    action: Action = "kept"


@dataclass
class SplitReport:
    """Counts for one split: pairs read and kept, and the tokens of the kept pairs, without EOS.

    A dropped pair is counted under the first fault that applies. The field names are the keys in the JSON report.
    """

    read: int = 0
    """Number of pairs read."""
    kept: int = 0
    """Number of pairs kept."""
    src_tokens: int = 0
    tgt_tokens: int = 0
    src_unknown: int = 0
    """Number of unknown source tokens."""
    tgt_unknown: int = 0
    src_longest: int = 0
    """Number of tokens in the longest source."""
    tgt_longest: int = 0
    links: int | None = None
    """Number of links between tokens; None without an alignment."""
    findings: dict[str, FaultCount] = field(default_factory=dict)
    """Counts of faults, by `FaultKind.preprocessing_name`."""

    def add_fault(self, kind: FaultKind, line_numbers: LineNumbers, action: Action) -> None:
        """Counts pairs with a certain fault.

        Args:
            kind: the fault.
            line_numbers: line numbers of the pairs, in ascending order; later calls must pass larger numbers.
            action: how the pairs are handled; the same for all pairs of a split with this fault.
        """
        if not len(line_numbers):
            return
        name = kind.preprocessing_name
        if name not in self.findings:
            self.findings[name] = FaultCount(first_line=int(line_numbers[0]), action=action)
        fault = self.findings[name]
        assert fault.action == action
        fault.count += len(line_numbers)

    def add_tokens(self, side: str, lengths: TokenCounts, unknown: TokenCounts) -> None:
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

    def summary(self, split: str, columns: Sequence[str] = TEXT_COLUMNS) -> str:
        """Returns the number of kept pairs and, for the split "train", the tokens per pair in each text column."""
        unit = "pair" if len(columns) > 1 else "text"
        details = []
        if split == "train" and (self.src_tokens or self.tgt_tokens):
            means = []
            longest = []
            for side in columns:
                tokens = self.src_tokens if side == "src" else self.tgt_tokens
                means.append(f"{tokens / max(1, self.kept):.1f}")
                longest.append(str(self.src_longest if side == "src" else self.tgt_longest))
            details.append(
                f"{' and '.join(means)} tokens per {unit}, at most {' and '.join(longest)}"
            )
        if self.links is not None:
            links_per_pair = self.links / max(1, self.kept)
            details.append(f"{links_per_pair:.1f} alignment links per {unit}")

        amount = f"{self.kept:,}"
        if self.kept != self.read:
            amount += f" of {self.read:,}"
        text = f"{split} {amount} {unit}s"
        if details:
            text += f" ({', '.join(details)})"
        return text

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SplitReport":
        """Reverses `dataclasses.asdict`.

        Raises:
            KeyError, TypeError: keys are missing or unknown.
        """
        findings = {name: FaultCount(**count) for name, count in values["findings"].items()}
        return cls(**{**values, "findings": findings})


@dataclass
class DataReport:
    """Report on a corpus: its splits and its tokenizer. The field names are the keys in the JSON report."""

    splits: dict[str, SplitReport] = field(default_factory=dict)
    tokenizer: dict[str, str | int] = field(default_factory=dict)
    """The tokenizer's "kind"; the vocabulary sizes of the text columns, "src_size" and "tgt_size"; the number of
    training "pairs", and the number of "pairs_used" to train the tokenizer. Empty if there is no tokenizer."""
    files: dict[str, dict[str, str]] = field(default_factory=dict)
    """Checksums by split and path."""

    def one_line_summary(self) -> str:
        """Returns one line with pairs, tokens per pair, unknown tokens, faulty pairs that were kept, and tokenizer.

        If pairs were dropped or truncated, the line refers to a table that the caller prints below it.
        """
        columns = [
            column for column in TEXT_COLUMNS if f"{column}_size" in self.tokenizer
        ] or TEXT_COLUMNS
        summaries = [split.summary(name, columns) for name, split in self.splits.items()]
        parts = [f"the data: {', '.join(summaries)}"]
        unknown_rates = self._unknown_rates(columns)
        if unknown_rates:
            sides = "source and target " if len(columns) > 1 else ""
            parts.append(f"unknown {sides}tokens: {unknown_rates}")
        parts += self._fault_summaries()
        if self.tokenizer:
            parts.append(self._tokenizer_summary(columns))
        return "; ".join(parts)

    def _unknown_rates(self, columns: Sequence[str]) -> str:
        """Returns the rates of unknown tokens, for all splits in which they are not negligible."""
        descriptions = []
        for name, split in self.splits.items():
            rates = [split.unknown_rate(side) for side in columns]
            if max(rates) >= MIN_REPORTED_UNKNOWN_RATE:
                percentages = " and ".join(f"{rate:.1%}" for rate in rates)
                descriptions.append(f"{name} {percentages}")
        return ", ".join(descriptions)

    def _fault_summaries(self) -> list[str]:
        faults = self.faults()
        kept_faults = [
            f"{fault.count:,} {fault_name} in {split_name}"
            for split_name, fault_name, fault in faults
            if fault.action == "kept"
        ]
        all_are_kept = len(kept_faults) == len(faults)
        parts = ["nothing was left out" if all_are_kept else "dropped or truncated: see below"]
        if kept_faults:
            parts.append(f"found and kept: {', '.join(kept_faults)}")
        return parts

    def _tokenizer_summary(self, columns: Sequence[str]) -> str:
        sizes = [f"{self.tokenizer[f'{column}_size']:,}" for column in columns]
        distinct_sizes = "/".join(dict.fromkeys(sizes))  # equal sizes are shown once
        text = f"{self.tokenizer['kind']} tokenizer with {distinct_sizes} tokens"
        pairs_used = self.tokenizer["pairs_used"]
        pairs = self.tokenizer["pairs"]
        if pairs_used != pairs:
            unit = "pairs" if len(columns) > 1 else "texts"
            text += f" trained on {pairs_used:,} of {pairs:,} {unit}"
        return text

    def describe_unknown_sides(self) -> str:
        """Returns the sides with a high rate of unknown tokens, and their rates; "" if there are none.

        The test split is ignored, because training does not read it.
        """
        descriptions = []
        for name, split in self.splits.items():
            if name == "test":
                continue
            for side, side_name in (("src", "source"), ("tgt", "target")):
                rate = split.unknown_rate(side)
                if rate >= HIGH_UNKNOWN_RATE:
                    descriptions.append(f"{rate:.1%} of the {side_name} tokens in {name}")
        return ", ".join(descriptions)

    def faults(self) -> list[tuple[str, str, FaultCount]]:
        """Returns the name of the split, the name of the fault and the count for each fault in each split."""
        faults = []
        for split_name, split in self.splits.items():
            for fault_name, fault in split.findings.items():
                faults.append((split_name, fault_name, fault))
        return faults


# -------------------------------------------------------------------------------------------------------------- checker


class FoundFault(NamedTuple):
    """A kind of fault, and the pairs in a block that have this fault."""

    kind: FaultKind
    line_numbers: LineNumbers
    """Line numbers of the pairs. If duplicates are counted in a sample of one in n pairs, each number occurs n times,
    so the count is an estimate for all pairs."""
    action: Action


@dataclass(frozen=True)
class FilterDecisions:
    """Which pairs of a block are kept, and which faults were found, before tokenization."""

    keep: Mask
    """Whether each pair is kept, `(n,)`."""
    faults: list[FoundFault]


class PairChecker:
    """Finds the faulty pairs of a corpus, counts them in the report and decides which to drop.

    Order of calls: first `register` each block of the valid and test splits. Then call `judge`, `add_to_report` and,
    once the texts are tokenized, `check_lengths` for each block, beginning with the training split. `judge` may run
    several blocks ahead of the other two methods, so it returns its decisions instead of counting them.

    The caller adds the kept pairs, tokens and links to the report (see `EncodedBlock.check_and_count`).

    Memory: 8 bytes per training pair (about 20 while the set grows, see `HashSet`), and 18 per pair of the other splits
    (two hashes with a mark each). If duplicates are not dropped and there are more than `MAX_SAMPLED_HASHES` training
    pairs, duplicates are counted in a sample of limited size, so their number is an estimate.
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
            need_references: whether an empty target outside the training split is an error, because metrics compare
                outputs with targets.
            forms: see `Block.hashes`; pairs are duplicates if their texts have the same form.
        """
        self.config = config
        self._forms = forms
        self.report = report
        self._need_references = need_references
        self._train_pairs = HashSet(None if config.drop_duplicates else MAX_SAMPLED_HASHES)
        self._other_pairs = SoughtHashes()
        self._other_sources = SoughtHashes()

    @property
    def estimate_note(self) -> str:
        """Note for the user that the number of duplicates is an estimate; "" if it is exact."""
        one_in = self._train_pairs.one_in
        if one_in == 1:
            return ""
        return (
            f"to save memory, the number of duplicates in train is estimated from one in {one_in} pairs; to find all "
            "duplicates, set data.drop_duplicates, which requires 8 to 20 bytes of memory per pair"
        )

    def register(self, block: Block) -> None:
        """Records the pairs of a block of the valid or test split, so that they can be recognized in train."""
        hashes = block.hashes(self._forms)
        self._other_pairs.add(hashes.pairs)
        self._other_sources.add(hashes.src)

    def judge(self, block: Block) -> FilterDecisions:
        """Finds faults in the next block: empty sides, duplicates in train, and overlap of other splits with train.

        Each training block must be judged exactly once and in order, because its pairs are recorded for comparison with
        later pairs.
        """
        if block.split == "train":
            return self._judge_train(block)
        return self._judge_other_split(block)

    def _judge_train(self, block: Block) -> FilterDecisions:
        is_empty = block.empty()
        hashes = block.hashes(self._forms)
        keep = ~is_empty
        # The matches are needed only later, when `_judge_other_split` calls `was_matched`.
        self._other_sources.mark_matches(hashes.src[keep])
        self._other_pairs.mark_matches(hashes.pairs[keep])
        # Read before `add`, which may halve the sample for later pairs. Always 1 if duplicates are dropped.
        one_in = self._train_pairs.one_in
        is_duplicate = np.zeros_like(keep)
        is_duplicate[keep] = self._train_pairs.add(hashes.pairs[keep])
        duplicate_action: Action = "kept"
        if self.config.drop_duplicates:
            keep &= ~is_duplicate
            duplicate_action = "dropped"
        # If one in `one_in` pairs is sampled, each duplicate found represents `one_in` duplicates.
        duplicate_lines = block.lines[is_duplicate].repeat(one_in)
        faults = [
            FoundFault(EMPTY, block.lines[is_empty], "dropped"),
            FoundFault(DUPLICATE, duplicate_lines, duplicate_action),
        ]
        return FilterDecisions(keep, faults)

    def _judge_other_split(self, block: Block) -> FilterDecisions:
        line_numbers = block.lines
        is_empty = block.empty()
        hashes = block.hashes(self._forms)
        if self._need_references:
            without_reference = line_numbers[block.empty_targets()]
            if len(without_reference):
                raise DataError(
                    f"{block.split}, line {without_reference[0]}: the reference is empty, so no output can be "
                    "compared with it; remove the example from the file"
                )
        is_in_train = self._other_pairs.was_matched(hashes.pairs) & ~is_empty
        has_source_in_train = self._other_sources.was_matched(hashes.src) & ~is_in_train & ~is_empty
        faults = [
            FoundFault(EMPTY, line_numbers[is_empty], "kept"),
            FoundFault(IN_TRAIN, line_numbers[is_in_train], "kept"),
            FoundFault(SRC_IN_TRAIN, line_numbers[has_source_in_train], "kept"),
        ]
        return FilterDecisions(np.ones_like(is_empty), faults)

    def add_to_report(self, split: str, decisions: FilterDecisions) -> SplitReport:
        """Counts a block in the split's report, and returns the report."""
        split_report = self.report.splits.setdefault(split, SplitReport())
        split_report.read += len(decisions.keep)
        for fault in decisions.faults:
            split_report.add_fault(fault.kind, fault.line_numbers, fault.action)
        return split_report

    def check_lengths(
        self, split: str, line_numbers: LineNumbers, n_tokens: Mapping[str, TokenCounts]
    ) -> Mask:
        """Counts pairs that are too long or too uneven in length; returns which examples are kept, `(n,)`.

        Examples are dropped from the training split only. A pair that is dropped as too long is not counted as uneven,
        but a pair that is kept or truncated may be counted as both. `add_to_report` must already have been
        called for this split.

        Args:
            split: name of the split.
            line_numbers: line number of each example, `(n,)`.
            n_tokens: number of tokens in each text, by side, `(n,)`, before truncation and without EOS; used by both
                checks. With `over_long: truncate`, the caller truncates texts that are too long.
        """
        split_report = self.report.splits[split]
        config = self.config
        is_train = split == "train"
        action: Action = "dropped" if is_train else "kept"
        truncates = config.over_long == "truncate"

        is_over_long = np.zeros(len(line_numbers), dtype=bool)
        for side, limit in zip(TEXT_COLUMNS, config.limits, strict=True):
            if side in n_tokens:
                is_over_long |= n_tokens[side] > limit
        over_long_action: Action = "truncated" if truncates else action
        split_report.add_fault(OVER_LONG, line_numbers[is_over_long], over_long_action)
        keep = np.ones(len(line_numbers), dtype=bool)
        if is_train and not truncates:
            keep = ~is_over_long

        has_both_sides = "src" in n_tokens and "tgt" in n_tokens
        if config.max_ratio is not None and has_both_sides:
            longer = np.maximum(n_tokens["src"], n_tokens["tgt"])
            shorter = np.minimum(n_tokens["src"], n_tokens["tgt"])
            is_uneven = keep & (longer > config.max_ratio * shorter)
            split_report.add_fault(TOKEN_RATIO, line_numbers[is_uneven], action)
            if is_train:
                keep &= ~is_uneven
        return keep
