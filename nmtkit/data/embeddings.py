"""Reads pretrained word vectors from word2vec, GloVe and fastText text files.

Each line has a word and its numbers, separated by single spaces; word2vec and fastText files begin with a header line
"COUNT SIZE". The file may be compressed. Only vectors of words in the vocabulary are kept in memory.
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
    """Pretrained word vectors, scaled so that their mean length equals that of randomly initialized vectors.

    If `model.tie` shares a matrix, the vectors are used wherever the matrix is: target vectors also in the output
    layer and, with `all`, the vectors of each side on both sides. If two files fill the same matrix, target vectors
    take precedence.
    """

    src: str | None = None
    """A word2vec or GloVe text file, plain or .gz, for the source tokens."""
    tgt: str | None = None
    """A word2vec or GloVe text file, plain or .gz, for the target tokens."""
    freeze: bool = False
    """Do not train a matrix with pretrained vectors. This also freezes its other rows and the layers that share it."""

    @model_validator(mode="after")
    def _names_a_file(self) -> "PretrainedEmbeddingsConfig":
        if not self.src and not self.tgt:
            raise ValueError("name a file of word vectors as src, as tgt, or as both")
        return self

    def files(self) -> dict[Side, str]:
        """Returns the named files by side."""
        sides: dict[Side, str | None] = {"src": self.src, "tgt": self.tgt}
        return {side: path for side, path in sides.items() if path}


@dataclass(frozen=True)
class WordVectors:
    """Vectors for M tokens of a vocabulary."""

    ids: npt.NDArray[np.int64]
    """Token ids, `(M,)`."""
    vectors: npt.NDArray[np.float32]
    """Vectors of these tokens, `(M, E)`."""
    n_file_vectors: int
    """Number of all vectors in the file."""


def read_vectors(path: str | Path, vocabulary: Vocabulary, size: int, setting: str) -> WordVectors:
    """Reads the vectors of a vocabulary's tokens.

    In a vocabulary "▁" marks the beginning of a word; in most files it does not. A file counts as a file of pieces if
    it has more of the vocabulary's word-initial tokens with "▁" than without. No vector is used for two tokens:

        token of the vocabulary  file of whole words            file of pieces
        "▁house"                 "house"                        "▁house", else "house" if that is not a token
        "house"                  "house" if there is no         "house", else "▁house" if that is not a token
                                 token "▁house"

    Case matters. If a word is repeated, its first vector is used.

    Args:
        path: Text file of vectors.
        vocabulary: Vocabulary of the side.
        size: Number of elements in a vector, E.
        setting: The recipe key that sets E, for messages.

    Raises:
        DataError: a line is malformed, or the file has no usable vector.
    """
    words = set(vocabulary.tokens)  # all words whose vectors may be needed
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
        # A quick test that skips most lines without splitting them. Tokens contain no spaces, so a word can be needed
        # only if the text before the first space is.
        if line[: line.index(" ")] not in words:
            continue
        # Split from the right: a few of GloVe's words contain spaces.
        word, *numbers = line.rsplit(" ", size)
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
        ids=np.array(list(word_of_id), dtype=np.int64), vectors=vectors, n_file_vectors=n_lines
    )


def check_size(path: str | Path, size: int, setting: str) -> None:
    """Checks the vector size in the first line; raises a DataError if it differs or the file cannot be read."""
    next(_entries(path, size, setting), None)


def _entries(path: str | Path, size: int, setting: str) -> Iterator[tuple[str, str]]:
    """Yields location and text of each line that contains a vector; checks the header if there is one."""
    announced_count: int | None = (
        None  # the number of vectors according to the header, if there is one
    )
    line_number = 0
    for line_number, text in enumerate(read_lines(path), start=1):
        line = text.rstrip(" ")
        if line_number == 1:
            parts = line.split(" ")
            file_size = len(parts) - 1
            # Two whole numbers are a header. They could also be a word and its vector of size 1, but embeddings of that
            # size are not in use.
            if len(parts) == 2 and all(part.isdecimal() for part in parts):
                announced_count = int(parts[0])
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
        is_header = line_number == 1 and announced_count is not None
        if not is_header:
            yield f"{path}, line {line_number}", line
    if line_number == 0:
        raise DataError(f"{path}: the file is empty; download it again")
    n_vectors = line_number - 1
    if announced_count is not None and n_vectors != announced_count:
        raise DataError(
            f"{path}, line 1: announces {announced_count:,} vectors, but {n_vectors:,} follow; download the file again"
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
    """Removes "▁" from the beginning of a token, or adds it if there is none."""
    if token.startswith(WORD_START):
        return token.removeprefix(WORD_START)
    return WORD_START + token


def _words_by_id(vocabulary: Vocabulary, file_words: Container[str]) -> dict[int, str]:
    """Returns, by token id, the word of the file whose vector the token gets; see the table in `read_vectors`."""
    n_with_mark = 0
    n_without_mark = 0
    for token in vocabulary.tokens:
        if token.startswith(WORD_START) and token != WORD_START:
            n_with_mark += token in file_words
            n_without_mark += _twin(token) in file_words
    is_file_of_pieces = n_with_mark > n_without_mark
    word_of_id: dict[int, str] = {}
    for token_id, token in enumerate(vocabulary.tokens):
        twin = _twin(token)
        if is_file_of_pieces:
            if token in file_words:
                word_of_id[token_id] = token
            elif twin in file_words and twin not in vocabulary:
                word_of_id[token_id] = twin
        elif token.startswith(WORD_START):
            if twin in file_words:
                word_of_id[token_id] = twin
        elif token in file_words and twin not in vocabulary:
            word_of_id[token_id] = token
    return word_of_id
