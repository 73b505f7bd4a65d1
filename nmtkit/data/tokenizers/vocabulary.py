"""Vocabularies: tokens and their ids, and extended ids of unknown words for models that copy."""

import errno
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

from nmtkit.core.columns import ColumnType
from nmtkit.core.errors import CheckpointError, DataError, shorten
from nmtkit.core.files import bytes_checksum

PAD = 0
UNK = 1
BOS = 2
EOS = 3
RESTORE_HINT = (
    "copy the folder again, or recreate this file from the same text with "
    "`nmtkit preprocess RECIPE --run DIR`"
)
"""Remedy for a damaged vocabulary file, in messages."""
V = TypeVar("V", bound="Vocabulary")
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")


class Vocabulary:
    """The tokens in the order of their ids: PAD, UNK, BOS, EOS, the `further` special tokens, then the tokens of texts.

    Tokens are distinct and not empty. Special tokens are never recognized in a text.
    """

    reserved: ClassVar[tuple[str, ...]] = SPECIALS

    def __init__(self, tokens: Sequence[str], further: Sequence[str] = ()) -> None:
        specials = [*self.reserved, *further]
        if [*tokens[: len(specials)]] != specials:
            raise CheckpointError(
                f"vocabulary: the first tokens must be {' '.join(specials)}; {RESTORE_HINT}"
            )
        self.specials = tuple(further)
        self.n_specials = len(specials)
        self.tokens = list(tokens)
        self._ids = {token: number for number, token in enumerate(self.tokens)}
        if len(self._ids) != len(self.tokens) or "" in self._ids:
            raise CheckpointError(f"vocabulary: a token is empty or repeated; {RESTORE_HINT}")
        self._text_ids: dict[str, int] = {}
        """Ids of the tokens that texts may contain, and of "<unk>", which may stand for an unknown word."""
        for token, number in self._ids.items():
            if number >= self.n_specials or number == UNK:
                self._text_ids[token] = number

    @classmethod
    def build(
        cls: type[V],
        counts: Mapping[str, int],
        max_size: int | None = None,
        min_frequency: int = 1,
        further: Sequence[str] = (),
    ) -> V:
        """Builds a vocabulary from the most frequent tokens; ties are broken by code point.

        `max_size` includes the special tokens.
        """
        specials = [*cls.reserved, *further]
        frequent = []
        for token, count in counts.items():
            if count >= min_frequency and token and token not in specials:
                frequent.append(token)
        frequent.sort(key=lambda token: (-counts[token], token))
        if max_size is not None:
            frequent = frequent[: max(0, max_size - len(specials))]
        return cls([*specials, *frequent], further)

    def __len__(self) -> int:
        return len(self.tokens)

    def __contains__(self, token: str) -> bool:
        return token in self._ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.tokens == other.tokens

    def ids(self, tokens: Iterable[str]) -> list[int]:
        """Returns the ids of tokens; UNK for unknown tokens."""
        get = self._ids.get
        return [get(token, UNK) for token in tokens]

    def text_ids(self, tokens: Iterable[str]) -> list[int]:
        """Returns the ids of the tokens of a text; words that look like a special token, such as "<s>", become UNK."""
        return [self._text_ids.get(token, UNK) for token in tokens]

    def extend(self, src_tokens: Iterable[str]) -> tuple[list[int], list[str]]:
        """Assigns the ids V, V+1, ... to the unknown words of a source, in the order of their first occurrence.

        Use the *target* vocabulary: extended ids are the ids that the decoder can generate (See et al. 2017, section
        2.2). Returns the id of each source token, and the unknown words in the order of their ids.
        """
        ids: list[int] = []
        oov_ids: dict[str, int] = {}
        for token in src_tokens:
            number = self._text_ids.get(token)
            if number is None:
                next_id = len(self.tokens) + len(oov_ids)
                number = oov_ids.setdefault(token, next_id)
            ids.append(number)
        return ids, list(oov_ids)

    def extended_target_ids(self, tgt_tokens: Iterable[str], oov: Sequence[str]) -> list[int]:
        """Returns the ids of a target, with extended ids for words in `oov`, the unknown words of the source."""
        oov_ids = {token: number for number, token in enumerate(oov, start=len(self.tokens))}
        ids = []
        for token in tgt_tokens:
            number = self._text_ids.get(token)
            if number is None:
                number = oov_ids.get(token, UNK)
            ids.append(number)
        return ids

    def tokens_of(self, ids: Iterable[int], oov: Sequence[str] = ()) -> list[str]:
        """Converts ids to tokens; the ids V, V+1, ... stand for the words in `oov`."""
        if not oov:
            return list(map(self.tokens.__getitem__, ids))
        size = len(self.tokens)
        tokens = []
        for number in ids:
            if number < size:
                tokens.append(self.tokens[number])
            else:
                tokens.append(oov[number - size])
        return tokens

    def content(self) -> bytes:
        """Returns the content of the vocabulary's file: UTF-8, one token per line, in the order of the ids."""
        return ("\n".join(self.tokens) + "\n").encode("utf-8")

    @classmethod
    def load(cls: type[V], path: Path, further: Sequence[str] = ()) -> V:
        """Reads a vocabulary file; raises a CheckpointError if it is missing, truncated or not a vocabulary."""
        try:
            text = read_vocabulary_file(path).decode("utf-8")
        except UnicodeDecodeError as fault:
            raise CheckpointError(
                f"{path}: damaged (not UTF-8 at byte {fault.start}); {RESTORE_HINT}"
            ) from fault
        if not text.endswith("\n"):
            raise CheckpointError(
                f"{path}: truncated (no newline after the last token); {RESTORE_HINT}"
            )
        # `splitlines` would also split at Unicode's rarer line separators, which tokens may contain.
        tokens = text.removesuffix("\n").split("\n")
        try:
            return cls(tokens, further)
        except CheckpointError as fault:
            raise CheckpointError(f"{path}: {fault}") from fault


def read_vocabulary_file(path: Path, what: str = "the vocabulary") -> bytes:
    """Reads a vocabulary file of a run; raises a CheckpointError, which mentions `what`, if it cannot be read."""
    try:
        if path.exists() and not path.is_file():  # reading a named pipe would block
            raise OSError(errno.EINVAL, "not a file")
        return path.read_bytes()
    except OSError as fault:
        raise CheckpointError(
            f"{path}: cannot read {what}: {fault.strerror}; {RESTORE_HINT}"
        ) from fault


def check_sums(path: Path) -> None:
    """Verifies the checksums listed in `path` for files in its folder; raises a CheckpointError if one differs."""
    if not os.path.lexists(path):  # a folder that was copied without its checksums is usable
        return
    try:
        checksums = json.loads(read_vocabulary_file(path))
        for name in checksums:
            file = path.with_name(name)
            if not os.path.lexists(file):
                continue
            checksum = bytes_checksum(read_vocabulary_file(file))
            if checksum != checksums[name]:
                raise CheckpointError(f"{file}: damaged (checksum mismatch); {RESTORE_HINT}")
    except (ValueError, TypeError, RecursionError) as fault:
        raise CheckpointError(f"{path}: damaged ({fault}); {RESTORE_HINT}") from fault


class LabelVocabulary(Vocabulary):
    """A vocabulary of labels, most frequent first, without special tokens."""

    reserved: ClassVar[tuple[str, ...]] = ()

    def encode(self, labels: Sequence[str], place: str) -> list[int]:
        """Returns the ids of the labels at `place`; raises a DataError if a label is missing or unknown."""
        if not labels or "" in labels:
            raise DataError(f"{place}: the label is missing; add it, or remove the example")
        for label in labels:
            if label not in self:
                train_labels = shorten(", ".join(self.tokens))
                raise DataError(
                    f"{place}: the label {shorten(label)!r} does not occur in the training data (known labels: "
                    f"{train_labels}); correct it, or add training examples with this label"
                )
        return self.ids(labels)


def split_labels(line: str, kind: ColumnType | None) -> list[str]:
    """Returns the labels in a line: the whole line for a column of type "label", its words for type "labels"."""
    if kind == "labels":
        return line.split()
    return [line.strip()]
