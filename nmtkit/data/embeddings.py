"""Reads pretrained word vectors from word2vec, GloVe and fastText text files.

Each line contains a word and the elements of its vector, separated by single spaces. word2vec and fastText files begin
with a header line "COUNT SIZE". A file may be compressed. Only the vectors that a vocabulary may need are kept in
memory.
"""

from collections.abc import Container, Iterator, Sequence
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
    """Pretrained word vectors, scaled so that their mean norm equals that of randomly initialized vectors.

    If `model.tie` shares a matrix, the vectors are used wherever the matrix is used: target vectors also in the output
    layer and, with `all`, the vectors of each side on both sides. If two files fill the same matrix, target vectors
    take precedence.

    `training.freeze: [src_embedding]`, or tgt_embedding, keeps the vectors as they are. This also freezes the other
    rows of the matrix, and the layers that share it.
    """

    src: str | None = None
    """Text file of word vectors for the source tokens (word2vec, GloVe or fastText), plain or compressed."""
    tgt: str | None = None
    """Text file of word vectors for the target tokens (word2vec, GloVe or fastText), plain or compressed."""

    @model_validator(mode="after")
    def _require_file(self) -> "PretrainedEmbeddingsConfig":
        if not self.src and not self.tgt:
            raise ValueError("specify a file of word vectors for src, tgt or both")
        return self

    def files(self) -> dict[Side, str]:
        """Returns the files by side; omits sides without a file."""
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
    """Total number of vectors in the file."""


def read_vectors(
    path: str | Path, vocabulary: Vocabulary, vector_size: int, size_key: str
) -> WordVectors:
    """Reads the vectors of a vocabulary's tokens.

    In a vocabulary, "▁" marks the beginning of a word; most files have no such mark. A file counts as a file of subword
    pieces if it has more of the vocabulary's word-initial tokens with "▁" than without. Each vector is used for
    at most one token:

        token of the vocabulary  file of whole words            file of pieces
        "▁house"                 "house"                        "▁house", else "house" if that is not a token
        "house"                  "house" if there is no         "house", else "▁house" if that is not a token
                                 token "▁house"

    Special tokens are treated like all others, so EOS gets the vector of "</s>", which fastText files contain. Case
    matters. If a word occurs more than once, its first vector is used.

    Args:
        path: text file of vectors.
        vocabulary: vocabulary of the side.
        vector_size: number of elements in a vector, E.
        size_key: the recipe key that sets E, for messages.

    Raises:
        DataError: a line is malformed, or the file has no usable vector.
    """
    needed_words = {*vocabulary.tokens, *map(_twin, vocabulary.tokens)}
    needed_words.discard("")  # the twin of a single "▁"
    vector_of_word: dict[str, npt.NDArray[np.float32]] = {}
    n_file_vectors = 0
    for line_number, line in _vector_lines(path, vector_size, size_key):
        n_file_vectors += 1
        n_spaces = line.count(" ")
        # There are more spaces than elements if the word itself contains spaces, as a few words in GloVe files do.
        if n_spaces < vector_size:
            raise DataError(
                f"{path}, line {line_number}: malformed: expected a word and {vector_size} numbers, separated by "
                f"single spaces, but found only {n_spaces + 1} fields; correct the file or download it again"
            )
        # A quick test that skips most lines without splitting them. It looks at the text before the first space, which
        # is the word or, if the word contains spaces, its beginning; words with spaces are never needed.
        if line[: line.index(" ")] not in needed_words:
            continue
        # Split from the right, because the word may contain spaces.
        word, *elements = line.rsplit(" ", vector_size)
        if word in needed_words and word not in vector_of_word:
            vector_of_word[word] = _parse_vector(elements, f"{path}, line {line_number}")
    word_of_id = _words_by_id(vocabulary, vector_of_word)
    if not word_of_id:
        raise DataError(
            f"{path}: none of the {n_file_vectors:,} vectors belongs to a token of the vocabulary "
            f"({len(vocabulary):,} tokens); use a file in the same language and case as the text (see "
            "tokenizer.lowercase). If the file contains whole words, only tokens that are whole words have vectors, so "
            "you may have to increase tokenizer.vocab_size"
        )
    vectors = np.stack([vector_of_word[word] for word in word_of_id.values()])  # (M, E)
    if not vectors.any():
        raise DataError(f"{path}: all vectors for the vocabulary are zero; use a different file")
    return WordVectors(
        ids=np.array(list(word_of_id), dtype=np.int64),
        vectors=vectors,
        n_file_vectors=n_file_vectors,
    )


def check_size(path: str | Path, vector_size: int, size_key: str) -> None:
    """Checks the vector size in the first line; raises a DataError if it differs or the file cannot be read."""
    next(_vector_lines(path, vector_size, size_key), None)


def _vector_lines(path: str | Path, vector_size: int, size_key: str) -> Iterator[tuple[int, str]]:
    """Yields the number and text of each line that contains a vector.

    Raises a DataError if the first line has a different vector size, if the file is empty, or if the number of vectors
    differs from that in the header.
    """
    lines = iter(read_lines(path))
    first_line = next(lines, None)
    if first_line is None:
        raise DataError(f"{path}: the file is empty; download it again")
    first_line = first_line.rstrip(" ")
    announced_count = _check_first_line(
        first_line, path, vector_size=vector_size, size_key=size_key
    )
    if announced_count is None:
        yield 1, first_line
    line_number = 1
    for line_number, line in enumerate(lines, start=2):
        yield line_number, line.rstrip(" ")
    if announced_count is not None:
        n_vectors = line_number - 1  # without the header
        if n_vectors != announced_count:
            raise DataError(
                f"{path}, line 1: announces {announced_count:,} vectors, but {n_vectors:,} follow; download the file "
                "again"
            )


def _check_first_line(line: str, path: str | Path, vector_size: int, size_key: str) -> int | None:
    """Checks the vector size in the first line; returns the number of vectors if the line is a header, else None."""
    parts = line.split(" ")
    n_elements = len(parts) - 1
    announced_count = None
    # A line of two whole numbers is a header. It could also be a word with a vector of size 1, but nobody uses
    # embeddings of that size.
    if len(parts) == 2 and all(part.isdecimal() for part in parts):
        announced_count = int(parts[0])
        n_elements = int(parts[1])
    if n_elements < 1:
        raise DataError(
            f"{path}, line 1: expected a word and its vector; use a text file in word2vec, GloVe or fastText format"
        )
    if n_elements != vector_size:
        raise DataError(
            f"{path}, line 1: the vectors have {n_elements} elements, but the model's embeddings have {vector_size}; "
            f"set {size_key} to {n_elements}, or use vectors with {vector_size} elements"
        )
    return announced_count


def _parse_vector(elements: Sequence[str], place: str) -> npt.NDArray[np.float32]:
    try:
        vector = np.array(elements, dtype=np.float32)  # (E,)
    except ValueError as fault:
        raise DataError(
            f"{place}: malformed: {fault}; correct the file or download it again"
        ) from fault
    if not np.isfinite(vector).all():
        raise DataError(
            f"{place}: an element of the vector is not finite; correct the file or download it again"
        )
    return vector


def _twin(token: str) -> str:
    """Removes the initial "▁" of a token, or adds one if there is none."""
    if token.startswith(WORD_START):
        return token.removeprefix(WORD_START)
    return WORD_START + token


def _words_by_id(vocabulary: Vocabulary, file_words: Container[str]) -> dict[int, str]:
    """Returns, for each token id, the word in the file whose vector the token gets; see the table in `read_vectors`."""
    n_with_mark = 0
    n_without_mark = 0
    for token in vocabulary.tokens:
        if token.startswith(WORD_START) and token != WORD_START:
            n_with_mark += token in file_words
            n_without_mark += _twin(token) in file_words
    is_file_of_pieces = n_with_mark > n_without_mark
    word_of_id: dict[int, str] = {}
    for token_id, token in enumerate(vocabulary.tokens):
        for word in _usable_words(token, vocabulary, is_file_of_pieces):
            if word in file_words:
                word_of_id[token_id] = word
                break
    return word_of_id


def _usable_words(token: str, vocabulary: Vocabulary, is_file_of_pieces: bool) -> list[str]:
    """Returns the words whose vectors a token may get, the preferred word first, as in the table of `read_vectors`."""
    twin = _twin(token)
    twin_is_token = twin in vocabulary
    if is_file_of_pieces:
        return [token] if twin_is_token else [token, twin]
    if token.startswith(WORD_START):
        return [twin]
    return [] if twin_is_token else [token]
