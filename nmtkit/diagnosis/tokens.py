"""What only a tokenizer can tell of a corpus: unknown words, what a vocabulary covers, and what a recipe leaves out."""

import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nmtkit.data.blocks import Block
from nmtkit.data.checking import Checker, DataReport
from nmtkit.data.corpus import DataConfig, Files
from nmtkit.data.faults import OVER_LONG, TOKEN_RATIO, UNSEEN, Place
from nmtkit.data.filling import Chunk, EncodedBlock, Encoder, encoded_blocks
from nmtkit.data.hashes import Mask
from nmtkit.data.reading import read_pairs, sound_blocks
from nmtkit.data.tokenizer import Sample, TokenizerConfig, TokenizerPair, learn, learn_from
from nmtkit.data.vocabulary import SPECIALS
from nmtkit.diagnosis.findings import Diagnosis, SplitDiagnosis, add_counts
from nmtkit.diagnosis.report import Sheet, share, visible
from nmtkit.errors import RecipeError

SAMPLE = 100_000
"""Pairs that a tokenizer is learned from where there is none yet."""
MOST_CHARACTERS = 24
"""Unseen characters that are told."""


@dataclass
class TokenReport:
    """What was found by cutting the text into tokens; lengths and unknown tokens stand in the diagnosis itself."""

    tokenizer: str
    """A sentence on where the tokenizer is from."""
    data: DataReport = field(default_factory=DataReport)
    """What preprocessing will find and do; the same numbers."""
    unused: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By vocabulary ("joint", or "src" and "tgt"): entries that never occur in the training text, and all of them."""
    unseen: dict[str, dict[str, int]] = field(default_factory=dict)
    """By split: characters that train never shows on that side, and in how many lines."""

    def sheets(self, diagnosis: Diagnosis) -> list[Sheet]:
        """The tables of a report."""
        return [self._left_out(), self._unknown(diagnosis)]

    def _left_out(self) -> Sheet:
        rows = []
        for name, split in self.data.splits.items():
            rows.append((name, "pairs read", f"{split.read:,}", "", ""))
            for kind, finding in split.findings.items():
                part = share(finding.count, split.read)
                rows.append((name, kind, f"{finding.count:,}", part, finding.action))
            rows.append((name, "pairs kept", f"{split.kept:,}", share(split.kept, split.read), ""))
        return Sheet(
            "What preprocessing will do",
            ("split", "what", "how many", "share", "and then"),
            tuple(rows),
            "By the recipe's data settings; a pair with several faults is dropped for the first of them.",
        )

    def _unknown(self, diagnosis: Diagnosis) -> Sheet:
        rows = []
        for name, split in self.data.splits.items():
            for side, tokens, unknown, longest in (
                ("source", split.src_tokens, split.src_unknown, split.src_longest),
                ("target", split.tgt_tokens, split.tgt_unknown, split.tgt_longest),
            ):
                if tokens:
                    copyable = diagnosis.splits[name].tgt.copyable
                    of_unknown = share(copyable, unknown) if side == "target" and unknown else ""
                    mean = f"{tokens / max(1, split.kept):.1f}"
                    part = share(unknown, tokens) if unknown else "0"
                    rows.append((name, side, f"{tokens:,}", mean, str(longest), part, of_unknown))
        notes = [self.tokenizer]
        for name, (unused, size) in self.unused.items():
            called = (
                "the vocabulary" if name == "joint" else {"src": "source's", "tgt": "target's"}[name] + " vocabulary"
            )
            notes.append(f"{unused:,} of {size:,} entries of {called} never occur in train ({share(unused, size)}).")
        for name, characters in self.unseen.items():
            told = " ".join(visible(character) for character in list(characters)[:MOST_CHARACTERS])
            more = f" and {len(characters) - MOST_CHARACTERS} more" if len(characters) > MOST_CHARACTERS else ""
            notes.append(f"Characters of {name} that train never shows: {told}{more}.")
        columns = ("split", "side", "tokens", "a pair", "longest", "unknown", "copyable")
        note = " ".join(notes) + " Copyable: the share of unknown target tokens that stand in their source."
        return Sheet("Tokens", columns, tuple(rows), note)

    def as_dict(self) -> dict[str, object]:
        """The same as plain values, for JSON."""
        return {
            "tokenizer": self.tokenizer,
            "data": self.data.as_dict(),
            "unused_entries": {name: {"unused": unused, "of": size} for name, (unused, size) in self.unused.items()},
            "unseen_characters": self.unseen,
        }


def quick_sample(config: TokenizerConfig) -> Sample:
    """For a tokenizer as the settings say, but from fewer pairs where learning from all would take long."""
    return Sample(config.train_lines if config.kind == "word" else min(config.train_lines, SAMPLE))


def learn_quickly(config: TokenizerConfig, sample: Sample, files: Files) -> TokenizerPair:
    """A tokenizer as the settings say, from such a sample of the files.

    Raises:
        NmtkitError: the text cannot be read, or the settings do not fit it.
    """
    try:
        return learn_from(config, sample)
    except RecipeError:
        if sample.total == len(sample.kept):
            raise
        return learn(config, read_pairs(files))  # too many tokens for so little text: there may be enough in all of it


def count_tokens(
    config: DataConfig,
    tokenizers: TokenizerPair,
    diagnosis: Diagnosis,
    tokenizer: str,
    progress: Callable[[int], None] = lambda count: None,
) -> TokenReport:
    """Encodes all text and counts, as preprocessing does, but stores nothing. Memory is as of that.

    Args:
        config: the recipe's data settings.
        tokenizers: of both sides.
        diagnosis: gets the lengths, unknown tokens and findings.
        tokenizer: a sentence on where the tokenizers are from.
        progress: told how many pairs are done, block by block.

    Raises:
        DataError: the text cannot be read.
    """
    report = TokenReport(tokenizer)
    checker = Checker(config, report.data)
    used = {"src": np.zeros(len(tokenizers.src.vocabulary), dtype=bool)}
    used["tgt"] = used["src"] if tokenizers.shared else np.zeros(len(tokenizers.tgt.vocabulary), dtype=bool)
    diagnosis.vocabulary = {"src": len(used["src"]), "tgt": len(used["tgt"])}
    alphabets: dict[str, set[str]] = {"src": set(), "tgt": set()}
    splits = config.splits()
    for name, files in splits.items():
        for block in sound_blocks(name, files) if name != "train" else ():
            checker.seek(block)
    for name, files in splits.items():
        encoder = Encoder(name, tokenizers, config)
        walk = _SplitWalk(files, encoder, diagnosis.splits[name], report, used, alphabets)
        for done in encoded_blocks(walk.blocks(), encoder, checker):
            walk.add(done, done.settle(name, checker))
            progress(len(done.verdict.keep))
        walk.close()
    diagnosis.splits["train"].src.covered = int(used["src"].sum())
    diagnosis.splits["train"].tgt.covered = int(used["tgt"].sum())
    for side in ["joint"] if tokenizers.shared else ["src", "tgt"]:
        entries = used["src" if side == "joint" else side][len(SPECIALS) :]
        report.unused[side] = (int((~entries).sum()), len(entries))
    return report


class _SplitWalk:
    """The walk through one split."""

    def __init__(
        self,
        files: Files,
        encoder: Encoder,
        found: SplitDiagnosis,
        report: TokenReport,
        used: Mapping[str, Mask],
        alphabets: Mapping[str, set[str]],
    ) -> None:
        self._name = encoder.split
        self._files = files
        self._encoder = encoder
        self._tokenizers = {"src": encoder.tokenizers.src, "tgt": encoder.tokenizers.tgt}
        self._found = found
        self._report = report
        self._used = used
        self._alphabets = alphabets
        self._firsts: dict[str, tuple[Chunk, int]] = {}
        self._starts: dict[int, int] = {}  # the lines before each file

    def blocks(self) -> Iterator[Block]:
        """The blocks of the split."""
        for block in sound_blocks(self._name, self._files):
            for file, row in zip(*np.unique(block.files, return_index=True), strict=True):
                self._starts.setdefault(int(file), block.before + int(row))
            yield block

    def add(self, done: EncodedBlock, stays: Mask) -> None:
        """Counts some pairs."""
        chunk, encoded = done.chunk, done.encoded
        for kind in (OVER_LONG, TOKEN_RATIO):  # the pair that a fault was first found in
            handled = self._report.data.splits[self._name].findings.get(kind.counted)
            if handled is not None and kind.name not in self._firsts:
                self._firsts[kind.name] = chunk, int(np.flatnonzero(chunk.lines == handled.first_line)[0])
        for side, found in (("src", self._found.src), ("tgt", self._found.tgt)):
            if side in encoded.lengths:
                add_counts(found.tokens, encoded.lengths[side])
                found.unknown += int(encoded.unknown[side][stays].sum())
                if self._name == "train":
                    self._used[side][encoded.columns[side].where(stays).flat] = True
        if chunk.tgt is not None:
            self._copyable(chunk, np.flatnonzero(stays & (encoded.unknown["tgt"] > 0)).tolist())
        self._characters(chunk)

    def _copyable(self, chunk: Chunk, rows: Sequence[int]) -> None:
        """Counts the unknown target tokens of some pairs that stand in their source."""
        src, tgt = self._tokenizers["src"], self._tokenizers["tgt"]
        for row in rows:
            source = set(src.tokens(chunk.src[row])[: self._encoder.limit("src")])
            target = tgt.tokens((chunk.tgt or ())[row])[: self._encoder.limit("tgt")]
            self._found.tgt.copyable += sum(token in source for token in target if token not in tgt.vocabulary)

    def _characters(self, chunk: Chunk) -> None:
        """Collects the characters of train; finds those of the other splits that are not among them."""
        places: dict[int, Place] = {}
        for side, lines in (("src", chunk.src), ("tgt", chunk.tgt or ())):
            known = self._alphabets[side]
            if self._name == "train":
                known.update(*lines)
                continue
            new = {c for c in set().union(*lines) - known if not self._is_known(c, known)}
            for row, text in enumerate(lines) if new else ():
                here = [c for c in dict.fromkeys(text) if c in new]
                if here:
                    counts = self._report.unseen.setdefault(self._name, {})
                    for character in here:
                        counts[character] = counts.get(character, 0) + 1
                    places.setdefault(row, self._place(chunk, row, side, f"{' '.join(here)} in: {text}"))
        for row in sorted(places):  # each pair once, though both its sides may have some
            self._found.find(UNSEEN, places[row])

    def _is_known(self, character: str, known: set[str]) -> bool:
        """Whether train shows the character in the form that the tokenizer makes of it."""
        if character.isspace():
            return True
        config = self._tokenizers["src"].config
        form = unicodedata.normalize("NFKC", character) if config.normalization == "nfkc" else character
        return all(c in known or (config.lowercase and c.lower() in known) for c in form)

    def close(self) -> None:
        """Notes what the lengths in tokens have shown."""
        for kind in (OVER_LONG, TOKEN_RATIO):
            if kind.name in self._firsts:
                handled = self._report.data.splits[self._name].findings[kind.counted]
                chunk, row = self._firsts[kind.name]
                tgt = chunk.tgt[row] if chunk.tgt is not None else ""
                tokens = [self._tokenizers["src"].encode(chunk.src[row]), self._tokenizers["tgt"].encode(tgt)]
                text = f"{len(tokens[0])} and {len(tokens[1])} tokens, {handled.action}: {chunk.src[row]}"
                self._found.find(kind, self._place(chunk, row, "src", text), handled.count)

    def _place(self, chunk: Chunk, row: int, side: str, text: str) -> Place:
        """The pair's line in its own file: a chunk counts over all files of the split."""
        paths = self._files.jsonl or self._files.stories or (self._files.tgt if side == "tgt" else self._files.src)
        file = int(chunk.files[row])
        return Place(paths[file], int(chunk.lines[row]) - self._starts[file], None, text)
