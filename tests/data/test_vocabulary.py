from collections import Counter
from pathlib import Path

import pytest

from nmtkit.core.errors import CheckpointError
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, UNK, Vocabulary

SPECIALS = ["<pad>", "<unk>", "<s>", "</s>"]


def test_frequent_tokens_come_first_and_ties_go_by_code_point() -> None:
    vocabulary = Vocabulary.build(
        Counter({"b": 3, "a": 3, "z": 5, "é": 3, "rare": 1}), min_frequency=2
    )
    assert vocabulary.tokens == [*SPECIALS, "z", "a", "b", "é"]
    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)
    assert vocabulary.ids(["a", "rare", "</s>"]) == [5, UNK, EOS]


def test_size_counts_the_specials_and_a_special_in_the_text_gets_no_second_id() -> None:
    vocabulary = Vocabulary.build({"a": 3, "b": 2, "c": 1, "<unk>": 9}, max_size=6)
    assert vocabulary.tokens == [*SPECIALS, "a", "b"]


def test_unknown_words_of_a_source_get_ids_above_the_vocabulary() -> None:
    vocabulary = Vocabulary([*SPECIALS, "the", "met"])
    ids, oov = vocabulary.extend(["Kripke", "met", "Quine", "the", "Kripke"])
    assert ids == [6, 5, 7, 4, 6]
    assert oov == ["Kripke", "Quine"]
    target = vocabulary.extended_target_ids(["Quine", "met", "Lewis"], oov)
    assert target == [7, 5, UNK]
    assert vocabulary.tokens_of(target, oov) == ["Quine", "met", "<unk>"]


def test_special_tokens_in_a_text_are_words_that_can_be_copied() -> None:
    vocabulary = Vocabulary([*SPECIALS, "<tag>", "the"], ["<tag>"])
    text = ["<s>", "the", "<unk>", "<tag>", "</s>", "<pad>"]
    ids, oov = vocabulary.extend(text)
    assert (ids, oov) == ([6, 5, UNK, 7, 8, 9], ["<s>", "<tag>", "</s>", "<pad>"])
    assert vocabulary.extended_target_ids(text, oov) == ids
    assert vocabulary.extended_target_ids(text, []) == [UNK, 5, UNK, UNK, UNK, UNK]


def test_saving_keeps_rare_line_separators_inside_tokens(tmp_path: Path) -> None:
    vocabulary = Vocabulary([*SPECIALS, "▁a", "x y", "x\u0085y", "\r", "ß"])
    (tmp_path / "v").write_bytes(vocabulary.content())
    assert Vocabulary.load(tmp_path / "v") == vocabulary


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"<pad>\n<unk>\n<s>\n</s>\nhalf a wo", "truncated"),
        (b"<pad>\n<unk>\n<s>\n</s>\na\na\n", "repeated"),
        (b"<unk>\n<pad>\n<s>\n</s>\n", "first tokens must be"),
        (b"<pad>\n<unk>\n<s>\n</s>\n\xff\n", "not UTF-8"),
        (None, "cannot read"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes | None, fault: str) -> None:
    path = tmp_path / "v"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=fault) as error:
        Vocabulary.load(path)
    assert str(path) in str(error.value)
