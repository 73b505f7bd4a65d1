"""What only a tokenizer can tell of a corpus: unknown words, what a vocabulary covers, and what a recipe leaves out."""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from nmtkit.data.checking import OVER_LONG, RATIO, Checker, DataReport
from nmtkit.data.corpus import DataConfig, Files
from nmtkit.data.reading import Example, read_pairs
from nmtkit.data.store import seek
from nmtkit.data.tokenizer import TokenizerConfig, TokenizerPair, learn
from nmtkit.data.vocabulary import SPECIALS, UNK
from nmtkit.diagnosis.findings import Diagnosis, Kind, Place, Side
from nmtkit.diagnosis.report import Sheet, share, visible
from nmtkit.errors import RecipeError

CHUNK = 4096
"""Pairs that are handled at a time."""
SAMPLE = 100_000
"""Pairs that a tokenizer is learned from where there is none yet."""
MOST_CHARACTERS = 24
"""Unseen characters that are told."""

UNSEEN = Kind(
    "unseen-character",
    "note",
    "characters that train never shows",
    "The model cannot know them: they become unknown tokens. See whether they belong there, or add text that has them.",
    drops=False,
)
TOO_LONG = Kind(
    "over-long",
    "note",
    "longer than data.max_length",
    "The recipe's data.over_long says what becomes of them: drop leaves them out of train, truncate cuts them. Raise "
    "data.max_length if they are good.",
    drops=False,
)
UNEVEN = Kind(
    "token-ratio",
    "note",
    "more uneven than data.max_ratio",
    "Training leaves them out, as the recipe says: raise data.max_ratio if they are good.",
    drops=False,
)
KINDS = {OVER_LONG: TOO_LONG, RATIO: UNEVEN}
"""What preprocessing finds by counting tokens, as findings; the rest is found without."""


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


def learn_quickly(config: TokenizerConfig, files: Files) -> TokenizerPair:
    """A tokenizer as the settings say, but from a sample where learning from all would take long.

    Raises:
        NmtkitError: the text cannot be read, or the settings do not fit it.
    """
    if config.kind == "word" or config.train_lines <= SAMPLE:
        return learn(config, read_pairs(files))
    try:
        return learn(config.model_copy(update={"train_lines": SAMPLE}), read_pairs(files))
    except RecipeError:  # too many tokens for so little text: there may be enough in all of it
        return learn(config, read_pairs(files))


def look(
    config: DataConfig,
    tokenizers: TokenizerPair,
    diagnosis: Diagnosis,
    tokenizer: str,
    progress: Callable[[int], None] | None = None,
) -> TokenReport:
    """Cuts all text into tokens and counts, as preprocessing will. Memory does not grow but for 16 bytes a pair.

    Args:
        config: the recipe's data settings.
        tokenizers: of both sides.
        diagnosis: gets the lengths, unknown tokens and findings.
        tokenizer: a sentence on where the tokenizers are from.
        progress: told how many pairs are done, chunk by chunk.

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
        if name != "train":
            seek(checker, read_pairs(files))
    for name, files in splits.items():
        walk = _Split(name, files, tokenizers, checker, diagnosis, report, used, alphabets)
        pairs = read_pairs(files)
        while chunk := list(islice(pairs, CHUNK)):
            walk.add(chunk)
            if progress is not None:
                progress(len(chunk))
        walk.close()
    diagnosis.splits["train"].src.covered = int(used["src"].sum())
    diagnosis.splits["train"].tgt.covered = int(used["tgt"].sum())
    for side in ["joint"] if tokenizers.shared else ["src", "tgt"]:
        entries = used["src" if side == "joint" else side][len(SPECIALS) :]
        report.unused[side] = (int((~entries).sum()), len(entries))
    return report


class _Split:
    """The walk through one split."""

    def __init__(
        self,
        name: str,
        files: Files,
        tokenizers: TokenizerPair,
        checker: Checker,
        diagnosis: Diagnosis,
        report: TokenReport,
        used: dict[str, "np.ndarray[tuple[int], np.dtype[np.bool_]]"],
        alphabets: dict[str, set[str]],
    ) -> None:
        self.name = name
        self.files = files
        self.tokenizers = {"src": tokenizers.src, "tgt": tokenizers.tgt}
        self.checker = checker
        self.found = diagnosis.splits[name]
        self.report = report
        self.used = used
        self.alphabets = alphabets
        self._firsts: dict[str, Example] = {}
        self._starts: dict[int, int] = {}  # the lines before each file

    def add(self, chunk: Sequence[Example]) -> None:
        """Counts some pairs."""
        for example in chunk:
            self._starts.setdefault(example.file, example.line - 1)
        kept = [e for e, stays in zip(chunk, self.checker.texts(self.name, chunk), strict=True) if stays]
        if not kept:
            return
        texts = {"src": [e.src for e in kept]}
        if kept[0].tgt is not None:
            texts["tgt"] = [e.tgt or "" for e in kept]
        ids = {side: self.tokenizers[side].encode_many(lines) for side, lines in texts.items()}
        lengths = {side: np.array([len(row) for row in rows], dtype=np.int64) for side, rows in ids.items()}
        numbers = np.array([e.line for e in kept], dtype=np.int64)
        stays = self.checker.lengths(self.name, numbers, lengths["src"], lengths.get("tgt"))
        split = self.checker.report.splits[self.name]
        split.kept += int(stays.sum())
        self._keep_firsts(kept)
        left = [e for e, good in zip(kept, stays, strict=True) if good]
        for side, rows in ids.items():
            limit = self.checker.cut_at(side)
            cut = [row[:limit] for row, good in zip(rows, stays, strict=True) if good]
            counts = np.array([(len(row), row.count(UNK)) for row in cut], dtype=np.int64).reshape(-1, 2)
            split.count(side, counts[:, 0], counts[:, 1])
            self._count(side, lengths[side].tolist(), int(counts[:, 1].sum()), cut)
            if side == "tgt":
                self._copyable([pair for pair, row in zip(left, cut, strict=True) if UNK in row])
        self._characters(kept, texts)

    def _side(self, side: str) -> Side:
        return self.found.src if side == "src" else self.found.tgt

    def _count(self, side: str, lengths: list[int], unknown: int, rows: Sequence[Sequence[int]]) -> None:
        found = self._side(side)
        found.tokens.update(lengths)
        found.unknown += unknown
        if self.name == "train":
            for row in rows:
                self.used[side][row] = True

    def _copyable(self, pairs: Sequence[Example]) -> None:
        """Counts the unknown target tokens of some pairs that stand in their source."""
        src, tgt = self.tokenizers["src"], self.tokenizers["tgt"]
        for pair in pairs:
            source = set(src.tokens(pair.src)[: self.checker.cut_at("src")])
            target = tgt.tokens(pair.tgt or "")[: self.checker.cut_at("tgt")]
            self.found.tgt.copyable += sum(token in source for token in target if token not in tgt.vocabulary)

    def _characters(self, pairs: Sequence[Example], texts: Mapping[str, Sequence[str]]) -> None:
        """Collects the characters of train; finds those of the other splits that are not among them."""
        places: dict[int, Place] = {}
        for side, lines in texts.items():
            known = self.alphabets[side]
            if self.name == "train":
                known.update(*lines)
                continue
            new = {c for c in set().union(*lines) - known if not self._is_known(c, known)}
            for row, text in enumerate(lines) if new else ():
                here = [c for c in dict.fromkeys(text) if c in new]
                if here:
                    counts = self.report.unseen.setdefault(self.name, {})
                    for character in here:
                        counts[character] = counts.get(character, 0) + 1
                    places.setdefault(row, self._place(pairs[row], side, f"{' '.join(here)} in: {text}"))
        for row in sorted(places):  # each pair once, though both its sides may have some
            self.found.find(UNSEEN, places[row])

    def _is_known(self, character: str, known: set[str]) -> bool:
        """Whether train shows the character in the form that the tokenizer makes of it."""
        if character.isspace():
            return True
        config = self.tokenizers["src"].config
        form = unicodedata.normalize("NFKC", character) if config.normalization == "nfkc" else character
        return all(c in known or (config.lowercase and c.lower() in known) for c in form)

    def _keep_firsts(self, kept: Sequence[Example]) -> None:
        """Remembers the pair that a fault was first found in."""
        for kind, finding in self.checker.report.splits[self.name].findings.items():
            if kind in KINDS and kind not in self._firsts:
                self._firsts[kind] = next(e for e in kept if e.line == finding.first_line)

    def close(self) -> None:
        """Notes what the lengths in tokens have shown."""
        for kind, finding in self.checker.report.splits[self.name].findings.items():
            if kind in KINDS:
                first = self._firsts[kind]
                tokens = [self.tokenizers["src"].encode(first.src), self.tokenizers["tgt"].encode(first.tgt or "")]
                text = f"{len(tokens[0])} and {len(tokens[1])} tokens, {finding.action}: {first.src}"
                self.found.find(KINDS[kind], self._place(first, "src", text), finding.count)

    def _place(self, pair: Example, side: str, text: str) -> Place:
        """The pair's line in its own file: an example counts over all files of the split."""
        paths = self.files.jsonl or self.files.stories or (self.files.tgt if side == "tgt" else self.files.src)
        return Place(paths[pair.file], pair.line - self._starts[pair.file], None, text)
