"""Reads pretrained word vectors from text files of word2vec, GloVe and fastText.

A line has a word and its numbers, separated by single spaces; files of word2vec and fastText begin with a line
"COUNT SIZE". The file may be gzip-compressed. Only vectors of the vocabulary stay in memory.
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
    """Pretrained word vectors, scaled so that their mean length equals that of randomly initialized ones.

    If `model.tie` shares a matrix, its vectors are used everywhere: target vectors also in the output layer, and with
    `all` the vectors of each side on both sides. Two files then fill the same matrix; target vectors take precedence.
    """

    src: str | None = None
    """A word2vec or GloVe text file, plain or .gz, for the source's tokens."""
    tgt: str | None = None
    """A word2vec or GloVe text file, plain or .gz, for the target's tokens."""
    freeze: bool = False
    """Do not train a matrix with pretrained vectors; this also freezes its other rows and the layers that share it."""

    @model_validator(mode="after")
    def _names_a_file(self) -> "PretrainedEmbeddingsConfig":
        if not self.src and not self.tgt:
            raise ValueError("name a file of word vectors as src, as tgt, or as both")
        return self

    def files(self) -> dict[Side, str]:
        """Returns the files by side."""
        sides: dict[Side, str | None] = {"src": self.src, "tgt": self.tgt}
        return {side: path for side, path in sides.items() if path}


@dataclass(frozen=True)
class WordVectors:
    """Vectors of M tokens of a vocabulary."""

    ids: npt.NDArray[np.int64]
    """The tokens, `(M,)`."""
    vectors: npt.NDArray[np.float32]
    """Their vectors, `(M, E)`."""
    in_file: int
    """Number of vectors in the file."""


def read_vectors(path: str | Path, vocabulary: Vocabulary, size: int, setting: str) -> WordVectors:
    """Reads the vectors of a vocabulary's tokens.

    In a vocabulary "▁" begins a word; in most files it does not. A vector belongs to a single token:

    - In a file of whole words "house" is the vector of "▁house", and of "house" (the end of a word, or punctuation)
    only if the vocabulary has no "▁house".
    - In a file of pieces, which contains more of the vocabulary's tokens with "▁" than without, a token has the vector
    of the same piece. Otherwise it has the vector of the piece with or without "▁", unless that is another token.

    Case matters. Of repeated words the first one is used. Raises a DataError for a broken line, and if the file has no
    usable vector.

    Args:
        path: File.
        vocabulary: Vocabulary.
        size: Number of elements of a vector, E.
        setting: The recipe's key of the size, for messages.
    """
    words = set(vocabulary.tokens)
    words.update(map(_twin, vocabulary.tokens))
    words.discard("")  # the twin of a single "▁"
    vector_of_word: dict[str, npt.NDArray[np.float32]] = {}
    n_lines = 0
    for place, line in _entries(path, size, setting):
        n_lines += 1
        n_spaces = line.count(" ")
        if n_spaces < size:
            raise DataError(
                f"{place}: broken: expected a word and {size} numbers, separated by single spaces, but found "
                f"{n_spaces + 1} parts; correct the file or download it again"
            )
        # Most lines are skipped quickly: the beginning up to the first space tells whether the word can be needed.
        if line[: line.index(" ")] not in words:
            continue
        word, *numbers = line.rsplit(" ", size)  # a few of GloVe's words contain spaces
        if word in words and word not in vector_of_word:
            vector_of_word[word] = _parsed(numbers, place)
    word_of_id = _words_by_id(vocabulary, vector_of_word)
    if not word_of_id:
        raise DataError(
            f"{path}: none of its {n_lines:,} vectors is for one of the {len(vocabulary):,} tokens of the vocabulary: "
            "take a file of the same language and the same case as the text (see tokenizer.lowercase). In a file of "
            "words only those subwords have vectors that are whole words, so tokenizer.vocab_size may be too small"
        )
    vectors = np.stack([vector_of_word[word] for word in word_of_id.values()])  # (M, E)
    if not vectors.any():
        raise DataError(f"{path}: all its vectors for the vocabulary are zero; take another file")
    return WordVectors(
        ids=np.array(list(word_of_id), dtype=np.int64), vectors=vectors, in_file=n_lines
    )


def check_size(path: str | Path, size: int, setting: str) -> None:
    """Checks the size of the vectors by the first line; DataError if it differs or the file cannot be read."""
    next(_entries(path, size, setting), None)


def _entries(path: str | Path, size: int, setting: str) -> Iterator[tuple[str, str]]:
    """Yields the location and the text of each line with a vector."""
    promised: int | None = None  # the number of vectors, if the first line is a header
    number = 0
    for number, text in enumerate(read_lines(path), start=1):
        line = text.rstrip(" ")
        if number == 1:
            parts = line.split(" ")
            file_size = len(parts) - 1
            if len(parts) == 2 and all(part.isdecimal() for part in parts):
                promised = int(parts[0])
                file_size = int(parts[1])
            if file_size < 1:
                raise DataError(
                    f"{path}, line 1: not a word and its numbers; take a text file of word2vec or GloVe"
                )
            if file_size != size:
                raise DataError(
                    f"{path}, line 1: its vectors have {file_size} numbers, and the model's embeddings {size}: "
                    f"set {setting} to {file_size}, or take vectors of {size} numbers"
                )
        is_header = number == 1 and promised is not None
        if not is_header:
            yield f"{path}, line {number}", line
    if number == 0:
        raise DataError(f"{path}: the file is empty; download it again")
    if promised is not None and number - 1 != promised:
        raise DataError(
            f"{path}, line 1: announces {promised:,} vectors, but {number - 1:,} follow; download the file again"
        )


def _parsed(numbers: list[str], place: str) -> npt.NDArray[np.float32]:
    try:
        vector = np.array(numbers, dtype=np.float32)  # (E,)
    except ValueError as fault:
        raise DataError(
            f"{place}: broken: {fault}; correct the file or download it again"
        ) from fault
    if not np.isfinite(vector).all():
        raise DataError(
            f"{place}: broken: a number is not finite; correct the file or download it again"
        )
    return vector


def _twin(token: str) -> str:
    """Returns the token without "▁" at its beginning, or with it if it has none."""
    if token.startswith(WORD_START):
        return token.removeprefix(WORD_START)
    return WORD_START + token


def _words_by_id(vocabulary: Vocabulary, words: Container[str]) -> dict[int, str]:
    """Returns, by id, the word in the file that has the token's vector; see `read_vectors`."""
    n_with_mark = 0
    n_without_mark = 0
    for token in vocabulary.tokens:
        if token.startswith(WORD_START) and token != WORD_START:
            n_with_mark += token in words
            n_without_mark += _twin(token) in words
    is_file_of_pieces = n_with_mark > n_without_mark
    word_of_id: dict[int, str] = {}
    for number, token in enumerate(vocabulary.tokens):
        twin = _twin(token)
        if is_file_of_pieces:
            if token in words:
                word_of_id[number] = token
            elif twin in words and twin not in vocabulary:
                word_of_id[number] = twin
        elif token.startswith(WORD_START):
            if twin in words:
                word_of_id[number] = twin
        elif token in words and twin not in vocabulary:
            word_of_id[number] = token
    return word_of_id
