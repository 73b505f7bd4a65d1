"""Reads pretrained word vectors from text files of word2vec, GloVe and fastText.

A line has a word and its numbers, separated by single spaces; word2vec and fastText begin with a line "COUNT SIZE". The
file may be gzip-compressed. Only vectors of the vocabulary stay in memory.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from nmtkit.core.errors import DataError
from nmtkit.core.settings import Settings, model_validator
from nmtkit.data.text.files.lines import read_lines
from nmtkit.data.tokenizers.tokenizer import WORD_START
from nmtkit.data.tokenizers.vocabulary import Vocabulary

Side = Literal["src", "tgt"]


class PretrainedEmbeddingsConfig(Settings):
    """Pretrained word vectors, scaled so that their mean length is that of the random ones.

    If `model.tie` shares a matrix, the vectors are in all its uses: the target's also in the output layer, and with
    `all` those of either side on both. Two files then fill one matrix; the target's vector wins.
    """

    src: str | None = None
    """A word2vec or GloVe text file, plain or .gz, for the source's tokens."""
    tgt: str | None = None
    """A word2vec or GloVe text file, plain or .gz, for the target's tokens."""
    freeze: bool = False
    """Never train a matrix with pretrained vectors; this also freezes its other rows and the layers that share it."""

    @model_validator(mode="after")
    def _names_a_file(self) -> "PretrainedEmbeddingsConfig":
        if not self.src and not self.tgt:
            raise ValueError("name a file of word vectors as src, as tgt, or one for each")
        return self

    def files(self) -> dict[Side, str]:
        """The files by side."""
        sides: dict[Side, str | None] = {"src": self.src, "tgt": self.tgt}
        return {side: path for side, path in sides.items() if path}


@dataclass(frozen=True)
class WordVectors:
    """Vectors `(M,E)` of the tokens `ids` `(M,)`; the file has `in_file` vectors."""

    ids: npt.NDArray[np.int64]
    vectors: npt.NDArray[np.float32]
    in_file: int


def read_vectors(path: str | Path, vocabulary: Vocabulary, size: int, setting: str) -> WordVectors:
    """Reads the vectors of a vocabulary's tokens, of `size` numbers; `setting` is the recipe's key of the size.

    In a vocabulary "▁" begins a word; in most files it does not. A vector belongs to one token:

    - In a file of whole words "house" is the vector of "▁house", and of "house" (the end of a word, or punctuation)
    only if the vocabulary has no "▁house".
    - In a file of pieces, which has more of the vocabulary's tokens with "▁" than without, a token has the vector of
    the same piece, else that of the piece with or without "▁", unless this is another token.

    Case matters. The first of repeated words counts.
    """
    wanted = {form for token in vocabulary.tokens for form in (token, _twin(token)) if form}
    by_word: dict[str, npt.NDArray[np.float32]] = {}
    count = 0
    for place, line in _entries(path, size, setting):
        count += 1
        if line.count(" ") < size:
            raise DataError(
                f"{place}: broken: expected a word and {size} numbers, set apart by single spaces, and found "
                f"{line.count(' ') + 1} parts; mend the file or fetch it again"
            )
        if line[: line.index(" ")] in wanted:
            word, *numbers = line.rsplit(" ", size)  # a few of GloVe's words have spaces in them
            if word in wanted and word not in by_word:
                by_word[word] = _parsed(numbers, place)
    forms = _forms(vocabulary, by_word)
    if not forms:
        raise DataError(
            f"{path}: none of its {count:,} vectors is for one of the {len(vocabulary):,} tokens of the vocabulary: "
            "take a file of the same language and the same case as the text (see tokenizer.lowercase); of subwords "
            "only those that are whole words have vectors in a file of words, so tokenizer.vocab_size may be too small"
        )
    vectors = np.stack([by_word[form] for form in forms.values()])
    if not vectors.any():
        raise DataError(f"{path}: all its vectors for the vocabulary are zero; take another file")
    return WordVectors(np.array(list(forms), dtype=np.int64), vectors, count)


def check_size(path: str | Path, size: int, setting: str) -> None:
    """Checks the size of the vectors by the first line; DataError if it differs or the file cannot be read."""
    next(_entries(path, size, setting), None)


def _entries(path: str | Path, size: int, setting: str) -> Iterator[tuple[str, str]]:
    """The lines of words, each with its location."""
    promised: int | None = None
    number = 0
    for number, text in enumerate(read_lines(path), start=1):
        line = text.rstrip(" ")
        if number == 1:
            parts = line.split(" ")
            if len(parts) == 2 and all(part.isdecimal() for part in parts):
                promised = int(parts[0])
            length = len(parts) - 1 if promised is None else int(parts[1])
            if length < 1:
                raise DataError(f"{path}, line 1: not a word and its numbers; take a text file of word2vec or GloVe")
            if length != size:
                raise DataError(
                    f"{path}, line 1: its vectors have {length} numbers, and the model's embeddings {size}: "
                    f"set {setting} to {length}, or take vectors of {size} numbers"
                )
        if number > 1 or promised is None:
            yield f"{path}, line {number}", line
    if number == 0:
        raise DataError(f"{path}: the file is empty; fetch it again")
    if promised is not None and number - 1 != promised:
        raise DataError(
            f"{path}, line 1: says that {promised:,} vectors follow, and {number - 1:,} do; fetch the file again"
        )


def _parsed(numbers: list[str], place: str) -> npt.NDArray[np.float32]:
    try:
        vector = np.array(numbers, dtype=np.float32)
    except ValueError as fault:
        raise DataError(f"{place}: broken: {fault}; mend the file or fetch it again") from fault
    if not np.isfinite(vector).all():
        raise DataError(f"{place}: broken: a number is not finite; mend the file or fetch it again")
    return vector


def _twin(token: str) -> str:
    """The token without "▁" at its beginning, or with it if it has none."""
    return token[len(WORD_START) :] if token.startswith(WORD_START) else WORD_START + token


def _forms(vocabulary: Vocabulary, words: Container[str]) -> dict[int, str]:
    """The word in the file for each token, by id; see `read_vectors`."""
    begins = [token for token in vocabulary.tokens if token.startswith(WORD_START) and token != WORD_START]
    of_pieces = sum(token in words for token in begins) > sum(_twin(token) in words for token in begins)

    def form(token: str) -> str | None:
        twin = _twin(token)
        if of_pieces:
            return token if token in words else twin if twin in words and twin not in vocabulary else None
        if token.startswith(WORD_START):
            return twin if twin in words else None
        return token if token in words and twin not in vocabulary else None

    forms = {number: form(token) for number, token in enumerate(vocabulary.tokens)}
    return {number: text for number, text in forms.items() if text is not None}
