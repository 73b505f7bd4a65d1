"""Word vectors from files: what is read, and to which token it is given."""

import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from nmtkit.core.errors import DataError, RecipeError
from nmtkit.core.settings import parse
from nmtkit.data.embeddings import PretrainedEmbeddingsConfig, WordVectors, check_size, read_vectors
from nmtkit.data.tokenizers.vocabulary import SPECIALS, Vocabulary

SETTING = "model.embedding_size"
GLOVE = "the 1.5 -2 0\nhouse 0.25 3 1e-2\nBach 7 8 9\nthe 4 4 4\n"


def vocabulary(*tokens: str) -> Vocabulary:
    return Vocabulary([*SPECIALS, *tokens])


def written(folder: Path, text: str, name: str = "vectors.txt") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def by_token(vectors: WordVectors, known: Vocabulary) -> dict[str, list[float]]:
    assert vectors.ids.tolist() == sorted(vectors.ids.tolist())
    return {
        known.tokens[number]: row.tolist()
        for number, row in zip(vectors.ids, vectors.vectors, strict=True)
    }


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (GLOVE, "glove.txt"),
        (GLOVE, "glove.txt.gz"),
        ("4 3\n" + GLOVE, "word2vec.vec"),
        ("4 3\n" + GLOVE.replace("\n", " \n"), "trailing-spaces.vec"),
        ("\ufeff" + GLOVE.replace("\n", "\r\n"), "windows.txt"),
    ],
)
def test_all_kinds_of_files_are_read(tmp_path: Path, text: str, name: str) -> None:
    known = vocabulary("▁house", "▁bach", "▁the", "▁tree")
    vectors = read_vectors(written(tmp_path, text, name), known, 3, SETTING)
    rows = by_token(vectors, known)
    # case counts, and the first "the"
    assert rows == {"▁house": pytest.approx([0.25, 3, 0.01]), "▁the": [1.5, -2, 0]}
    assert vectors.n_file_vectors == 4
    assert vectors.vectors.dtype == np.float32


def test_words_with_spaces_are_no_tokens(tmp_path: Path) -> None:
    known = vocabulary("▁.", "▁at")
    vectors = read_vectors(
        written(tmp_path, "at 1 2\n. . . 3 4\nat home 5 6\n. 7 8\n"), known, 2, SETTING
    )
    assert by_token(vectors, known) == {"▁at": [1, 2], "▁.": [7, 8]}


def test_a_file_of_words_gives_each_vector_to_one_token(tmp_path: Path) -> None:
    """First to the token that is a whole word; to the bare one, a mark behind a word say, where there is no such."""
    known = vocabulary("▁the", "the", ",", "ing", "▁", "▁house", "</w>")
    text = "the 1 1\n, 2 2\ning 3 3\nhouse 4 4\n</s> 5 5\n▁ 6 6\n▁the 7 7\n"
    rows = by_token(read_vectors(written(tmp_path, text), known, 2, SETTING), known)
    assert rows == {"▁the": [1, 1], ",": [2, 2], "ing": [3, 3], "▁house": [4, 4], "</s>": [5, 5]}


def test_a_file_of_pieces_is_taken_literally(tmp_path: Path) -> None:
    known = vocabulary("▁the", "the", "ing", "▁house", "▁on", "▁an", "x")
    text = "▁an 0 1\n▁the 1 1\nthe 2 2\n▁house 3 3\n▁ing 4 4\non 5 5\n▁the 6 6\n"
    rows = by_token(read_vectors(written(tmp_path, text), known, 2, SETTING), known)
    assert rows == {
        "▁an": [0, 1],
        "▁the": [1, 1],
        "the": [2, 2],
        "▁house": [3, 3],
        "ing": [4, 4],
        "▁on": [5, 5],
    }


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "a 1 2\nb 3\n",
            r"vectors\.txt, line 2: malformed: expected a word and 2 numbers.*found only 2 fields",
        ),
        ("2 2\na 1 2\nb\n", r"vectors\.txt, line 3: malformed: .*found only 1 fields"),
        ("a 1 2\n\nb 1 2\n", r"vectors\.txt, line 2: malformed"),
        ("a 1 2\nb 3 four\n", r"vectors\.txt, line 2: malformed: .*four.*download it again"),
        ("a 1 2\nb 3 nan\n", r"vectors\.txt, line 2: an element of the vector is not finite"),
        (
            "a 1 2 3\nb 3 4 5\n",
            r"line 1: the vectors have 3 elements, but the model's embeddings have 2; set model\.emb",
        ),
        (
            "2 300\na 1 2\n",
            r"line 1: the vectors have 300 elements.*set model\.embedding_size to 300, or use vectors",
        ),
        ("3 2\na 1 2\nb 3 4\n", r"line 1: announces 3 vectors, but 2 follow"),
        ("1 2\na 1 2\nb 3 4\n", r"line 1: announces 1 vectors, but 2 follow"),
        ("a\t1\t2\n", r"line 1: expected a word and its vector"),
        ("", r"vectors\.txt: the file is empty"),
        ("A 1 2\nB 3 4\nC 5 6\n", r"none of the 3 vectors belongs to .* \(6 tokens\).*lowercase"),
        ("a 0 0\nb 0 0\n", r"all vectors for the vocabulary are zero"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        read_vectors(written(tmp_path, text), vocabulary("▁a", "▁b"), 2, SETTING)


def test_the_size_is_found_wrong_at_the_first_line(tmp_path: Path) -> None:
    """The rest is not looked at."""
    check_size(written(tmp_path, "a 1 2\nb broken"), 2, SETTING)
    with pytest.raises(DataError, match="have 2 elements, but the model's embeddings have 5"):
        check_size(written(tmp_path, "a 1 2\nb broken"), 5, SETTING)
    with pytest.raises(DataError, match="cannot be read"):
        check_size(tmp_path / "nothing", 5, SETTING)


def test_only_the_vocabularys_vectors_stay_in_memory(tmp_path: Path) -> None:
    size, words = 100, 4000
    line = " ".join(["0.25"] * size)
    path = written(tmp_path, "".join(f"w{number} {line}\n" for number in range(words)))
    tracemalloc.start()
    vectors = read_vectors(path, vocabulary("▁w7", "▁w3999"), size, SETTING)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (vectors.vectors == 0.25).all()
    assert vectors.n_file_vectors == words
    assert peak < 200_000 < 4 * size * words / 5


def test_settings_name_at_least_one_file() -> None:
    assert list(parse(PretrainedEmbeddingsConfig, {"tgt": "b", "src": "a"}, "test").files()) == [
        "src",
        "tgt",
    ]
    with pytest.raises(RecipeError, match="specify a file of word vectors for src, tgt or both"):
        parse(PretrainedEmbeddingsConfig, {}, "test")
