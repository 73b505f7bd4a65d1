"""Tokenizers of public models cut and join text as `transformers` does."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmtkit.convert.huggingface.tokenizers import read_tokenizers
from nmtkit.core.errors import NmtkitError
from nmtkit.data.tokenizers.languages import in_direction, language_names
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from tests.convert.huggingface.public import TEXTS, byte_level, hostile_strings, unigram, word_piece
from tests.convert.huggingface.random_models import (
    PIECES,
    m2m100_files,
    pegasus_files,
    sentencepiece_model,
)

transformers = pytest.importorskip("transformers")

Maker = Callable[[Path], tuple[Any, tuple[int, int, int]]]


def gpt2(folder: Path) -> tuple[Any, tuple[int, int, int]]:
    own = byte_level(
        folder, eos_token="<|endoftext|>", bos_token="<|endoftext|>", unk_token="<|endoftext|>"
    )
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
    around = theirs("").input_ids
    for text, ids in zip(texts, ours.src.encode_many(texts), strict=True):
        if maker is t5 and "<extra_id_0>" in text:  # which both read as a sentinel
            if any(name in text for name in ("</s>", "<unk>", "<pad>")):
                continue  # which they read, and we do not
            whole = theirs(text, add_special_tokens=False).input_ids
        else:
            whole = theirs(text, split_special_tokens=True, add_special_tokens=False).input_ids
            # unigram has </s>
            whole = [theirs.unk_token_id if one in theirs.all_special_ids else one for one in whole]
        whole = [*around[: len(around) // 2], *whole, *around[len(around) // 2 :]]
        rows = [*([start] if whole[:1] == [start] else []), *(row_of[one] for one in ids)]
        assert [*rows, *([end] if whole[-1:] == [end] else [])] == whole, text
        assert ours.tgt.decode([*ids, 3]) == theirs.decode(whole, skip_special_tokens=True), text
    assert sum(len(ids) for ids in ours.src.encode_many(texts)) > 5000
    assert all(len(ours.tgt.tokens(text)) == len(ours.tgt.encode(text)) for text in texts)
    for text in TEXTS[:20]:
        tokens = ours.tgt.pieces(ours.tgt.encode(text))
        assert [token for token in tokens if token.startswith("▁")]
        assert ours.tgt.join(tokens) == ours.tgt.decode(ours.tgt.encode(text))


def test_another_process_takes_no_special_token_from_a_text_either(tmp_path: Path) -> None:
    theirs, special = bart(tmp_path)
    made, _ = read_tokenizers(tmp_path, special, len(theirs) + 3)
    texts = ["a </s> b", "<mask>"]
    assert pickle.loads(pickle.dumps(made)).src.encode_many(texts) == made.src.encode_many(texts)


def test_a_sentinel_in_a_text_is_read_and_none_is_in_what_is_written(tmp_path: Path) -> None:
    theirs, special = t5(tmp_path)
    for name in ("tokenizer.json", "older"):
        if name == "older":  # spiece.model alone says nothing of sentinels
            (tmp_path / "tokenizer.json").unlink()
            sentencepiece_model(
                tmp_path / "older" / "spiece.model",
                "unigram",
                pad_id=0,
                eos_id=1,
                unk_id=2,
                bos_id=-1,
            )
            settings = {"tokenizer_class": "T5Tokenizer", "extra_ids": 7}
            (tmp_path / "older" / "tokenizer_config.json").write_text(
                json.dumps(settings), encoding="utf-8"
            )
            (tmp_path / "older" / "config.json").write_text(
                '{"model_type": "t5"}', encoding="utf-8"
            )
            theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "older")
        read, (maps, _) = read_tokenizers(
            tmp_path / "older" if name == "older" else tmp_path, special, len(theirs)
        )
        for text in (
            "the <extra_id_0> man",
            "the man<extra_id_3>.",
            "<extra_id_6>",
            "<extra_id_999>",
        ):
            found = read.src.encode(text)
            assert [int(maps.rows[one]) for one in found] == theirs(
                text, add_special_tokens=False
            ).input_ids
            assert read.tgt.decode([*found, 3]) == theirs.decode(
                theirs(text).input_ids, skip_special_tokens=True
            )


@pytest.mark.parametrize("offset", [103, 5])
def test_pegasus_is_read_from_its_published_files_and_from_tokenizer_json(
    offset: int, tmp_path: Path
) -> None:
    theirs = pegasus_files(tmp_path / "model", **({} if offset == 103 else {"offset": offset}))
    theirs.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "tokenizer.json").exists()
    for folder in ("model", "saved"):
        read, (maps, _) = read_tokenizers(
            tmp_path / folder, (0, 0, 1), len(theirs), model_type="pegasus"
        )
        assert len(theirs) == PIECES + offset
        for text in [*TEXTS[:60], "a  b", "日本 x", "the\tman"]:
            found = read.src.encode(text)
            rows = [int(maps.rows[one]) for one in found]
            assert [*rows, 1] == theirs(text).input_ids, (folder, text)
            assert read.tgt.decode([*found, 3]) == theirs.decode(
                [*rows, 1], skip_special_tokens=True
            )
        specials = read.tgt.vocabulary.specials
        assert {"<mask>", "<mask_1>", "<unk_2>", f"<unk_{offset - 1}>"} <= {*specials}
        assert read.tgt.decode(read.tgt.vocabulary.ids([*specials, "▁the"])) == read.tgt.decode(
            read.tgt.vocabulary.ids(["▁the"])
        )


def test_m2m100_is_read_as_transformers_saves_it(tmp_path: Path) -> None:
    theirs = m2m100_files(tmp_path / "model")
    size = PIECES + 1 + 100
    read, (maps, _) = read_tokenizers(tmp_path / "model", (1, 2, 2), size)
    read = in_direction(read, "fr", "en")
    for text in TEXTS[:40]:
        rows = [int(maps.rows[one]) for one in read.src.encode(text)]
        assert [*rows, 2] == theirs(text).input_ids
    languages = language_names(read.config.specials)
    assert len(languages) == 100
    for token in languages:
        assert int(maps.rows[read.src.vocabulary.ids([token])[0]]) == theirs.get_lang_id(
            token.strip("_")
        )


FAULTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "sentinels": (
        "tokenizer_config.json",
        {"extra_ids": "many"},
        "tokenizer_config.json: `extra_ids`",
    ),
    "tokens": (
        "special_tokens_map.json",
        {"mask_token": 3},
        "special_tokens_map.json: `mask_token`",
    ),
    "codes": (
        "tokenizer_config.json",
        {"language_codes": "wmt19"},
        "tokenizer_config.json: `language_codes`",
    ),
    "language": (
        "tokenizer_config.json",
        {"src_lang": "xx"},
        "tokenizer_config.json: `src_lang` is 'xx', which is not one of",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_of_a_tokenizer_names_the_file_that_has_the_value(
    case: str, tmp_path: Path
) -> None:
    file, settings, match = FAULTS[case]
    m2m100_files(tmp_path / "model")
    path = tmp_path / "model" / file
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps(content | settings), encoding="utf-8")
    with pytest.raises(NmtkitError, match=match):
        read_tokenizers(tmp_path / "model", (1, 2, 2), 300)


def test_languages_that_no_file_lists_are_asked_for(tmp_path: Path) -> None:
    sentencepiece_model(tmp_path / "model" / "sentencepiece.bpe.model", "unigram")
    with pytest.raises(NmtkitError, match="does not list the token en_XX; copy special_tokens_map"):
        read_tokenizers(tmp_path / "model", (1, 2, 2), 300)


@pytest.mark.parametrize("family", ["t5", "mbart", "mbart50", "m2m100"])
def test_sentencepiece_models_without_a_tokenizer_json_cut_as_they_do(
    family: str, tmp_path: Path
) -> None:
    folder, begin, languages = tmp_path / "model", list[str](), ["de_DE", "en_XX"]
    if family == "t5":
        model = sentencepiece_model(
            folder / "spiece.model", "unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1
        )
        wanted, special, size, end = model.encode, (0, 0, 1), PIECES + 100, [1]
    else:
        model = sentencepiece_model(
            folder / "sentencepiece.bpe.model", "bpe" if family == "m2m100" else "unigram"
        )
        special, size, end = (1, 2, 2), PIECES + 4, [2]
        if family == "m2m100":
            words = [model.id_to_piece(one) for one in range(3, PIECES)]
            ids = {
                token: row for row, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", *words])
            }
            (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
            languages = ["__en__", "__de__"]
        given = {
            "additional_special_tokens": languages,
            "tokenizer_class": f"{family.upper()[:2]}art{family[5:]}Tokenizer",
        }
        (folder / "tokenizer_config.json").write_text(
            json.dumps(given | {"mask_token": "<mask>"}), encoding="utf-8"
        )

        def wanted(text: str) -> list[int]:
            return [one + 1 if one > 2 else 3 for one in model.encode(text)]

        named = {"mbart": [], "mbart50": [PIECES + 2], "m2m100": [PIECES + 1]}
        begin, end = named[family], [2, PIECES + 2] if family == "mbart" else [2]
    read, (maps, _) = read_tokenizers(folder, special, size)
    if family != "t5":
        read = in_direction(read, "en", "de")
    texts = [text for text in hostile_strings(600) if not {"<", "▁", "\x00", "\x7f"} & {*text}]
    row_of, differ = maps.rows.tolist(), 0
    for text, found in zip(texts, read.src.encode_many(texts), strict=True):
        rows = [
            *(row_of[one] for one in found),
            *([2 if family != "t5" else 1] if end[-1] in (1, 2) else []),
        ]
        differ += rows != [*begin, *wanted(text), *end]
    assert len(texts) > 200
    assert differ <= len(texts) * 0.01
    for text in TEXTS[:30]:
        assert read.tgt.decode(read.tgt.encode(text)) == model.decode(model.encode(text))
