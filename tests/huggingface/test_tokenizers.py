"""Tokenizers of public models cut and join text as `transformers` does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from public import TEXTS, byte_level, hostile_strings, unigram, word_piece

from nmtkit.data.tokenizers import Tokenizers
from nmtkit.huggingface.tokenizers import read_tokenizers

pytest.importorskip("transformers")

Maker = Callable[[Path], tuple[Any, tuple[int, int, int]]]


def gpt2(folder: Path) -> tuple[Any, tuple[int, int, int]]:
    own = byte_level(folder, eos_token="<|endoftext|>", bos_token="<|endoftext|>", unk_token="<|endoftext|>")
    return own, (own.eos_token_id,) * 3


def bart(folder: Path) -> tuple[Any, tuple[int, int, int]]:
    names = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
    own = byte_level(folder, **{f"{key}_token": name for key, name in names.items()})
    return own, (own.pad_token_id, own.eos_token_id, own.eos_token_id)


def bert(folder: Path) -> tuple[Any, tuple[int, int, int]]:
    own = word_piece(folder)
    return own, (own.pad_token_id, own.cls_token_id, own.sep_token_id)


def t5(folder: Path) -> tuple[Any, tuple[int, int, int]]:
    own = unigram(folder)
    return own, (own.pad_token_id, own.pad_token_id, own.eos_token_id)


@pytest.mark.parametrize("maker", [gpt2, bart, bert, t5])
def test_a_thousand_strings_are_cut_and_joined_as_they_are(maker: Maker, tmp_path: Path) -> None:
    theirs, special = maker(tmp_path)
    made, (maps, _) = read_tokenizers(tmp_path, special, len(theirs) + 3)
    made.save(tmp_path / "saved")
    ours = Tokenizers.load(tmp_path / "saved")
    assert ours.checksum == made.checksum
    assert ours.shared
    row_of = maps.rows.tolist()
    texts = hostile_strings(1000)
    start, end = special[1:]
    for text, ids in zip(texts, ours.src.encode_many(texts), strict=True):
        whole = theirs(text, split_special_tokens=True).input_ids
        rows = [*([start] if whole[:1] == [start] else []), *(row_of[one] for one in ids)]
        assert [*rows, *([end] if whole[-1:] == [end] else [])] == whole, text
        assert ours.tgt.decode([*ids, 3]) == theirs.decode(whole, skip_special_tokens=True), text
    assert sum(len(ids) for ids in ours.src.encode_many(texts)) > 5000
    assert all(len(ours.tgt.tokens(text)) == len(ours.tgt.encode(text)) for text in texts)
    for text in TEXTS[:20]:
        tokens = ours.tgt.pieces(ours.tgt.encode(text))
        assert [token for token in tokens if token.startswith("▁")]
        assert ours.tgt.join(tokens) == ours.tgt.decode(ours.tgt.encode(text))
