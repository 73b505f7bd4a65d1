"""Vocabulary: tokens and ids, and extended ids of unknown words for models that copy."""

import errno
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

from nmtkit.core.columns import ColumnType
from nmtkit.core.errors import CheckpointError, DataError, shorten
from nmtkit.core.files import bytes_checksum

PAD, UNK, BOS, EOS = 0, 1, 2, 3
RESTORE_HINT = "copy the folder again; of the same text `nmtkit preprocess RECIPE --run DIR` makes the same one"
"""The remedy for a damaged file."""
V = TypeVar("V", bound="Vocabulary")
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")


class Vocabulary:
    """Tokens by id. The first four are PAD, UNK, BOS and EOS, then come `further` special ones, which no text gives.

    Tokens are distinct and not empty.
    """

    reserved: ClassVar[tuple[str, ...]] = SPECIALS

    def __init__(self, tokens: Sequence[str], further: Sequence[str] = ()) -> None:
        specials = [*self.reserved, *further]
        self.specials = tuple(further)
        self.n_specials = len(specials)
        if [*tokens[: len(specials)]] != specials:
            raise CheckpointError(f"vocabulary: it must begin with {' '.join(specials)}; {RESTORE_HINT}")
        self.tokens = list(tokens)
        self._ids = {token: number for number, token in enumerate(self.tokens)}
        self._text_ids = {token: n for token, n in self._ids.items() if n >= self.n_specials or n == UNK}
        if len(self._ids) != len(self.tokens) or "" in self._ids:
            raise CheckpointError(f"vocabulary: a token is empty or repeated; {RESTORE_HINT}")

    @classmethod
    def build(
        cls: type[V],
        counts: Mapping[str, int],
        max_size: int | None = None,
        min_frequency: int = 1,
        further: Sequence[str] = (),
    ) -> V:
        """The most frequent tokens; equal counts in code-point order. `max_size` includes the special ones."""
        specials = [*cls.reserved, *further]
        kept = sorted(
            (token for token, count in counts.items() if count >= min_frequency and token and token not in specials),
            key=lambda token: (-counts[token], token),
        )
        room = None if max_size is None else max(0, max_size - len(specials))
        return cls([*specials, *kept[:room]], further)

    def __len__(self) -> int:
        return len(self.tokens)

    def __contains__(self, token: str) -> bool:
        return token in self._ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.tokens == other.tokens

    def ids(self, tokens: Iterable[str]) -> list[int]:
        """The ids of tokens; UNK for unknown ones."""
        get = self._ids.get
        return [get(token, UNK) for token in tokens]

    def text_ids(self, tokens: Iterable[str]) -> list[int]:
        """Returns the ids of tokens of a text; UNK also for tokens that spell a special one, such as "<s>"."""
        return [self._text_ids.get(token, UNK) for token in tokens]

    def extend(self, src_tokens: Iterable[str]) -> tuple[list[int], list[str]]:
        """Gives the unknown words of a source the ids V, V+1, ... in the order of their first occurrence.

        Called on the *target* vocabulary: extended ids are what the decoder can emit (See et al. 2017, section 2.2).
        Returns the id of each source token, and the unknown words in the order of their ids.
        """
        ids: list[int] = []
        extra: dict[str, int] = {}
        for token in src_tokens:
            known = self._text_ids.get(token)
            ids.append(extra.setdefault(token, len(self.tokens) + len(extra)) if known is None else known)
        return ids, list(extra)

    def extended_target_ids(self, tgt_tokens: Iterable[str], oov: Sequence[str]) -> list[int]:
        """The target's ids; extended ones for unknown words of the source (`oov`), else UNK."""
        extra = {token: len(self.tokens) + number for number, token in enumerate(oov)}
        return [self._text_ids[token] if token in self._text_ids else extra.get(token, UNK) for token in tgt_tokens]

    def tokens_of(self, ids: Iterable[int], oov: Sequence[str] = ()) -> list[str]:
        """The tokens of ids; ids from V upwards are in `oov`."""
        size = len(self.tokens)
        return [self.tokens[number] if number < size else oov[number - size] for number in ids]

    def content(self) -> bytes:
        """The content of its file: a token a line, UTF-8; line n (from 0) is id n."""
        return ("\n".join(self.tokens) + "\n").encode("utf-8")

    @classmethod
    def load(cls: type[V], path: Path, further: Sequence[str] = ()) -> V:
        """Reads a vocabulary file; CheckpointError if it is missing, truncated or not a vocabulary."""
        try:
            text = read_vocabulary_file(path).decode("utf-8")
        except UnicodeDecodeError as fault:
            raise CheckpointError(f"{path}: damaged (not UTF-8 at byte {fault.start}); {RESTORE_HINT}") from fault
        if not text.endswith("\n"):
            raise CheckpointError(f"{path}: truncated (no line end after the last token); {RESTORE_HINT}")
        try:
            # Not splitlines(): a token may hold one of the rarer line separators of Unicode.
            return cls(text[:-1].split("\n"), further)
        except CheckpointError as fault:
            raise CheckpointError(f"{path}: {fault}") from fault


def read_vocabulary_file(path: Path, what: str = "the vocabulary") -> bytes:
    """Reads a file of a run's vocabulary, which messages call `what`; CheckpointError if it cannot be read."""
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise OSError(errno.EINVAL, "not a file")
        return path.read_bytes()
    except OSError as fault:
        raise CheckpointError(f"{path}: cannot read {what}: {fault.strerror}; {RESTORE_HINT}") from fault


def check_sums(path: Path) -> None:
    """Compares files with their checksums, which `path` beside them has; CheckpointError if one is damaged."""
    if not os.path.lexists(path):  # a copy without it can still be used
        return
    try:
        expected = json.loads(read_vocabulary_file(path))
        for name in expected:
            own = path.with_name(name)
            if os.path.lexists(own) and bytes_checksum(read_vocabulary_file(own)) != expected[name]:
                raise CheckpointError(f"{own}: damaged (its checksum is another); {RESTORE_HINT}")
    except (ValueError, TypeError, RecursionError) as fault:
        raise CheckpointError(f"{path}: damaged ({fault}); {RESTORE_HINT}") from fault


class LabelVocabulary(Vocabulary):
    """Labels by id from 0, the most frequent first: a vocabulary without special tokens."""

    reserved: ClassVar[tuple[str, ...]] = ()

    def encode(self, labels: Sequence[str], place: str) -> list[int]:
        """The ids of the labels of an example at `place`; DataError if it has none, or one that train has not."""
        if not labels or "" in labels:
            raise DataError(f"{place}: there is no label; write it there, or leave the example out")
        for label in labels:
            if label not in self:
                known = shorten(", ".join(self.tokens))
                raise DataError(f"{place}: train has no label {shorten(label)!r}, only {known}; correct it")
        return self.ids(labels)


def split_labels(line: str, kind: ColumnType | None) -> list[str]:
    """The labels in a line: "labels" are separated by white space, a "label" is all of it."""
    return line.split() if kind == "labels" else [line.strip()]
