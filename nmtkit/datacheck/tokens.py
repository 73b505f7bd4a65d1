"""Checks a corpus with a tokenizer: unknown words, vocabulary coverage, and pairs that a recipe drops."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from nmtkit.core.columns import Column, ColumnType
from nmtkit.core.errors import RecipeError
from nmtkit.data.batches.encoding import EncodedBlock, encode_blocks
from nmtkit.data.batches.pair_encoder import PairEncoder
from nmtkit.data.text.checking import DataReport, PairChecker
from nmtkit.data.text.config import DataConfig, SplitFiles
from nmtkit.data.text.faults import OVER_LONG, TOKEN_RATIO, UNSEEN, FaultKind, FaultLocation
from nmtkit.data.text.hashes import Mask
from nmtkit.data.text.normalization import normalize
from nmtkit.data.text.reading import read_blocks
from nmtkit.data.tokenizers.tokenizer import TRAIN_LINES, TokenizerConfig
from nmtkit.data.tokenizers.tokenizer_training import (
    PAIR_COLUMNS,
    TokenizerSample,
    learn_from_samples,
)
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import SPECIALS
from nmtkit.datacheck.findings import Diagnosis, SplitDiagnosis
from nmtkit.datacheck.report import ReportTable, share

SAMPLE_PAIRS = 100_000
"""Number of pairs on which a tokenizer is trained if there is none yet."""


@dataclass
class TokenReport:
    """Tokenizer results; lengths and unknown tokens are in the diagnosis."""

    tokenizer: str
    """A sentence about the origin of the tokenizer."""
    data: DataReport = field(default_factory=DataReport)
    """The same numbers as in the preprocessing report."""
    unused_entries: dict[str, dict[str, int]] = field(default_factory=dict)
    """Number of entries that never occur in train ("unused") and of all entries ("of"), by vocabulary ("joint", or
    "src" and "tgt").
    """

    def tables(self, diagnosis: Diagnosis) -> list[ReportTable]:
        """Returns the tables of a report."""
        return [self._left_out(), self._unknown(diagnosis)]

    def _left_out(self) -> ReportTable:
        rows = []
        for name, split in self.data.splits.items():
            rows.append((name, "read", f"{split.read:,}", "", ""))
            for kind, finding in split.findings.items():
                part = share(finding.count, split.read)
                rows.append((name, kind, f"{finding.count:,}", part, finding.action))
            rows.append((name, "kept", f"{split.kept:,}", share(split.kept, split.read), ""))
        return ReportTable(
            "What preprocessing will do",
            ("split", "pairs", "count", "share", "action"),
            tuple(rows),
            "This follows the recipe's data settings. A pair with several problems is counted "
            "only under the first of them.",
        )

    def _unknown(self, diagnosis: Diagnosis) -> ReportTable:
        rows = []
        for name, split in self.data.splits.items():
            for key, side in (("src", "source"), ("tgt", "target")):
                tokens, unknown, longest = (
                    getattr(split, f"{key}_{name}") for name in ("tokens", "unknown", "longest")
                )
                if tokens:
                    copyable = diagnosis.splits[name].tgt.copyable
                    of_unknown = share(copyable, unknown) if side == "target" and unknown else ""
                    mean = f"{tokens / max(1, split.kept):.1f}"
                    part = share(unknown, tokens) if unknown else "0"
                    rows.append((name, side, f"{tokens:,}", mean, str(longest), part, of_unknown))
        notes = [self.tokenizer]
        called = {
            "joint": "the vocabulary",
            "src": "the source vocabulary",
            "tgt": "the target vocabulary",
        }
        for name, entries in self.unused_entries.items():
            unused, size = entries["unused"], entries["of"]
            part = share(unused, size)
            notes.append(
                f"{unused:,} of {size:,} entries in {called[name]} never occur in train ({part})."
            )
        columns = ("split", "side", "tokens", "per pair", "longest", "unknown", "copyable")
        note = (
            " ".join(notes)
            + " Copyable is the share of unknown target tokens that occur in their source."
        )
        return ReportTable("Tokens", columns, tuple(rows), note)


def quick_sample(
    config: TokenizerConfig, columns: Sequence[Column] = PAIR_COLUMNS
) -> TokenizerSample:
    """Returns an empty sample for `train_on_sample`; it is smaller for tokenizers that take long to train."""
    most = TRAIN_LINES if config.cuts_words else SAMPLE_PAIRS
    return TokenizerSample(most, columns=columns)


def train_on_sample(
    config: TokenizerConfig,
    sample: TokenizerSample,
    files: SplitFiles,
    columns: Sequence[Column] = PAIR_COLUMNS,
) -> Tokenizers:
    """Trains a tokenizer on a sample of the files, or on all text if the sample is too small."""
    try:
        return learn_from_samples(config, [sample])
    except RecipeError:  # the sample may be too small for this many tokens
        if sample.examples_seen == len(sample.examples):
            raise
        whole = TokenizerSample(TRAIN_LINES, columns=columns)
        for block in read_blocks("train", files):
            whole.add_block(block)
        return learn_from_samples(config, [whole])


def count_tokens(
    config: DataConfig,
    tokenizers: Tokenizers,
    diagnosis: Diagnosis,
    tokenizer: str,
    progress: Callable[[int], None] = lambda count: None,
    labels: ColumnType | None = None,
) -> TokenReport:
    """Encodes and counts all text as preprocessing does, without storing anything.

    `diagnosis` receives lengths, unknown tokens and findings, and `progress` the number of pairs per
    block. `tokenizer` describes the origin of the tokenizers.
    """
    report = TokenReport(tokenizer)
    checker = PairChecker(config, report.data, forms=tokenizers.text_forms())
    used = {
        column: np.zeros(len(tokenizer.vocabulary), dtype=bool)
        for column, tokenizer in tokenizers.items()
    }
    used |= {"tgt": used["src"]} if tokenizers.shared else {}
    alphabets: dict[str, set[str]] = {column: set() for column in tokenizers}
    splits = config.splits()
    for name, files in splits.items():
        for block in read_blocks(name, files) if name != "train" else ():
            checker.register(block)
    for name, files in splits.items():
        encoder = PairEncoder(name, tokenizers, config, label_type=labels)
        walk = _SplitWalk(encoder, diagnosis.splits[name], report, used, alphabets)
        for done in encode_blocks(read_blocks(name, files), encoder, checker):
            walk.add(done, done.check_and_count(name, checker))
            progress(len(done.block))
        for kind, place in walk.firsts.items():
            diagnosis.splits[name].find(
                kind, place, report.data.splits[name].findings[kind.preprocessing_name].count
            )
    for side, entries in {"joint": used["src"]}.items() if tokenizers.shared else used.items():
        ordinary = entries[len(SPECIALS) + len(tokenizers.config.special_tokens) :]
        report.unused_entries[side] = {"unused": int((~ordinary).sum()), "of": len(ordinary)}
    return report


@dataclass
class _SplitWalk:
    encoder: PairEncoder
    diagnosis: SplitDiagnosis
    report: TokenReport
    used: Mapping[str, Mask]
    """Vocabulary entries of each side that occur in train."""
    alphabets: Mapping[str, set[str]]
    """Characters that occur in train, by side."""
    firsts: dict[FaultKind, FaultLocation] = field(default_factory=dict)
    """First pair with each token-length fault."""

    def add(self, done: EncodedBlock, stays: Mask) -> None:
        """Counts the tokens of a block; `stays` marks the pairs that preprocessing keeps."""
        chunk = done.chunk
        encoded = done.encoded
        findings = self.report.data.splits[self.encoder.split].findings
        for kind in (OVER_LONG, TOKEN_RATIO):
            finding = findings.get(kind.preprocessing_name)
            if finding is not None and kind not in self.firsts:
                row = int(np.flatnonzero(chunk.line_numbers == finding.first_line)[0])
                tokens = " and ".join(str(lengths[row]) for lengths in encoded.n_tokens.values())
                first = next(iter(chunk.texts))
                text = f"{tokens} tokens, {finding.action}: {chunk.texts[first][row]}"
                self.firsts[kind] = _place(done, row, first, text)
        for side, counts in zip(
            chunk.texts, (self.diagnosis.src, self.diagnosis.tgt), strict=False
        ):
            counts.tokens.update(encoded.n_tokens[side].tolist())
            counts.unknown += int(encoded.n_unknown[side][stays].sum())
            if self.encoder.split == "train":
                self.used[side][encoded.columns[side].where(stays).flat] = True
        if len(chunk.texts) == 2:
            src, tgt = self.encoder.tokenizers.src, self.encoder.tokenizers.tgt
            for row in np.flatnonzero(stays & (encoded.n_unknown["tgt"] > 0)).tolist():
                known = {
                    *src.tokens(chunk.texts["src"][row])[: self.encoder.truncation_limit("src")]
                }
                answer = tgt.tokens(chunk.texts["tgt"][row])[: self.encoder.truncation_limit("tgt")]
                self.diagnosis.tgt.copyable += sum(
                    one in known for one in answer if one not in tgt.vocabulary
                )
        # reading the features reports faults in their files
        for _ in done.block.columns.get("features", ()):
            continue
        self._characters(done)

    def _characters(self, done: EncodedBlock) -> None:
        """Collects the characters of train, and finds unseen characters in the other splits."""
        places: dict[int, FaultLocation] = {}
        for side, lines in done.chunk.texts.items():
            known = self.alphabets[side]
            if self.encoder.split == "train":
                known.update(*lines)
                continue
            new = {c for c in set().union(*lines) - known if not self._is_known(c, known)}
            for row, text in enumerate(lines) if new else ():
                if here := [c for c in dict.fromkeys(text) if c in new]:
                    places.setdefault(row, _place(done, row, side, f"{' '.join(here)} in: {text}"))
        for row in sorted(places):  # each pair once, even if both sides contain unseen characters
            self.diagnosis.find(UNSEEN, places[row])

    def _is_known(self, character: str, known: set[str]) -> bool:
        """Returns whether train contains the character after tokenizer normalization."""
        if character.isspace():
            return True
        config = self.encoder.tokenizers.config
        form = normalize(character, config.normalization)
        return all(c in known or (config.lowercase and c.lower() in known) for c in form)


def _place(done: EncodedBlock, row: int, side: str, text: str) -> FaultLocation:
    """Returns the place of a pair in the file of this side."""
    of_block = int(np.flatnonzero(done.decisions.keep)[row])
    position = "src" if side == done.block.text_columns[0] else "tgt"
    return replace(done.block.side(position, of_block), byte=None, text=text)
