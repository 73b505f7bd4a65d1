"""White space and normalization: the same for every kind of tokenizer, and numbers keep their value."""

import json
import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from nmtkit.core.protobuf import decode_fields
from nmtkit.data.batches.store import Store
from nmtkit.data.text.blocks import Block, Example
from nmtkit.data.text.normalization import OTHER_SPACES, comparable, nfkc_exceptions, normalize
from nmtkit.data.tokenizers.sentencepiece_rules import with_number_rules, with_space_rules
from nmtkit.data.tokenizers.tokenizer import SentencePieceTokenizer, TokenizerConfig
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.words import cut_words
from tests.data.stored import checker, write_store
from tests.support.learned_tokenizers import learn_tokenizers

KINDS = ["bpe", "unigram", "char", "wordpiece", "word", "whitespace", "pieces"]
RULES = ["nfkc_numbers", "nfkc", "none"]
LINES = [
    "the old man sees the dog",
    "10⁵ m² is not 105 m2",
    "2½ km, ½ km: 1⁄2",
    "می‌روم به خانه",
    "H₂O costs 1º ①",
]
PERSIAN = "می‌روم به خانه"


def learned(kind: str, rules: str = "nfkc_numbers") -> Tokenizers:
    # so few words give unigram no more pieces
    size = {"nfkc": 42}.get(rules, 47) if kind == "unigram" else 75
    config = TokenizerConfig.model_validate(
        {"kind": kind, "vocab_size": size, "normalization": rules}
    )
    return learn_tokenizers(config, [Example(line, line, 1) for line in 3 * LINES])


def test_white_space_is_what_python_splits_at() -> None:
    assert [chr(code) for code in range(0x110000) if chr(code).isspace()] == sorted(
        OTHER_SPACES + " "
    )


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_white_space_separates_words(kind: str, rules: str) -> None:
    tokenizer = learned(kind, rules).src
    expected = tokenizer.tokens("the old man")
    for space in OTHER_SPACES:
        assert tokenizer.tokens(f"the{space}old {space}man{space}") == expected, hex(ord(space))
        assert tokenizer.encode(f"{space}the{space}old man") == tokenizer.encode("the old man")
        words = cut_words(tokenizer, [f"the{space}old man"], [None], ["here"])[0]
        assert (words.words, words.ids) == (["the", "old", "man"], tokenizer.encode("the old man"))


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("kind", ["bpe", "char", "word"])
def test_links_between_words_fit_whatever_white_space_separates_them(
    kind: str, rules: str, tmp_path: Path
) -> None:
    tokenizers = learned(kind, rules)
    plain = Example("the old man", "the old man", 1, links=frozenset({(0, 0), (2, 1)}))
    odd = replace(plain, src="the\vold\x1cman", tgt="the\x85old\u00a0man")
    write_store(tmp_path, "train", [plain, odd], tokenizers, checker(), keep_text=True)
    store = Store.open(tmp_path, "train")
    for column in ("src", "tgt", "alignment"):
        np.testing.assert_array_equal(store.ids(column, 0), store.ids(column, 1))


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_keep_their_value_and_persian_its_joiner(kind: str) -> None:
    tokenizer = learned(kind).src
    for text in [*LINES, "5 m² 10⁵"]:
        assert tokenizer.join(tokenizer.tokens(text)) == text
    assert tokenizer.join(tokenizer.tokens("１０⁵ ㎡ ﬁ")) == "10⁵ m² fi"
    if kind in ("bpe", "unigram", "char"):
        assert tokenizer.decode(tokenizer.encode(PERSIAN)) == PERSIAN


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("10⁵ ½ 2½ ㎡ ① ⁿ ™", "10⁵ ½ 2½ m² ① ⁿ ™"),
        ("１２３．５　ｋｍ", "123.5 km"),
        ("𝟏𝟎 ﬁne", "10 fine"),
        ("e\u0301te\u0301", "été"),
        ("a\u200cb\u200dc", "a\u200cb\u200dc"),  # joiners
        # marks of direction and byte order, a control character
        ("a\u200eb\ufeffc\u0007d", "abcd"),
        ("a\u200bb\ufffdc\x0bd", "a b c d"),
        ("  two   spaces ", "two spaces"),
        ("１０～２０", "10～20"),
    ],
)
def test_the_form_of_a_text(text: str, form: str) -> None:
    assert normalize(text, "nfkc_numbers") == form
    assert comparable(text) == form
    assert comparable(form) == form


def test_only_exceptions_and_invisible_characters_differ_from_nfkc() -> None:
    different = set()
    for code in range(0x20000):
        letter = chr(code)
        if unicodedata.category(letter) in ("Cn", "Co", "Cs") or letter in nfkc_exceptions():
            continue
        if normalize(f"a{letter}b", "nfkc_numbers") != normalize(f"a{letter}b", "nfkc"):
            different.add(unicodedata.category(letter))
    assert different == {"Cc", "Cf", "So"}  # So: the replacement character
    numbers = {letter for letter in nfkc_exceptions() if letter.isnumeric()}
    assert {*"²³¹⁰⁵₂½¾⅓①⑳⒈⑴"} <= numbers
    assert not {*"０９𝟎Ⅷ"} & numbers


def test_ordinary_text_is_learned_as_with_nfkc() -> None:
    lines = [f"The old man’s dog n° {number} sees « {number} » cafés …" for number in range(50)]
    pieces = []
    for rules in ("nfkc_numbers", "nfkc"):
        config = TokenizerConfig.model_validate({"vocab_size": 90, "normalization": rules})
        pieces.append(SentencePieceTokenizer.learn(config, lines).model_pieces)
    assert pieces[0] == pieces[1]


def test_an_exported_model_normalizes_by_itself() -> None:
    tokenizer = learned("bpe").src
    assert isinstance(tokenizer, SentencePieceTokenizer)
    exported = sentencepiece.SentencePieceProcessor(
        model_proto=with_number_rules(tokenizer.content())
    )
    letters = [
        *nfkc_exceptions(),
        *OTHER_SPACES,
        *map(chr, range(0x250)),
        *map(chr, range(0x250, 0x20000, 41)),
    ]
    letters += map(chr, [*range(0x2000, 0x2070), 0xFEFF, 0xFFFD, 0x061C])
    for letter in letters:
        if letter == "\0" or unicodedata.category(letter) in ("Cn", "Cs"):
            continue
        text = f"the {letter} o{letter}ld 10{letter}"
        assert exported.encode(text) == tokenizer.encode(text), hex(ord(letter))
    assert exported.encode("e\u0301 می‌روم") == tokenizer.encode("é می‌روم")


def test_a_model_without_a_normalizer_gets_the_rules() -> None:
    normalizer_spec = 3
    content = learned("bpe", "none").src.content()
    fields = [field for field in decode_fields(content) if field.number != normalizer_spec]
    bare = b"".join(field.encoded for field in fields)
    processor = sentencepiece.SentencePieceProcessor(model_proto=with_space_rules(bare))
    assert processor.encode("the\u3000old man") == processor.encode("the old man")


def test_a_tokenizer_without_a_rule_is_older_than_the_default(tmp_path: Path) -> None:
    learned("bpe", "nfkc").save(tmp_path)
    for name, key in (("tokenizer.json", "normalization"), ("sums.json", "tokenizer.json")):
        content = json.loads((tmp_path / name).read_text(encoding="utf-8"))
        del content[key]
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    tokenizer = Tokenizers.load(tmp_path).src
    assert tokenizer.config.normalization == "nfkc"
    assert tokenizer.decode(tokenizer.encode("10⁵")) == "105"


VARIANTS = [
    "le café 10",
    "le cafe\u0301 10",
    "le\u00a0café\x0b10",
    "le  café １０",
    " ｌｅ café 10",
]


def test_pairs_in_another_form_have_equal_hashes() -> None:
    block = Block("train", "a", "b", 1, VARIANTS, VARIANTS[::-1])
    for hashes in block.hashes():
        assert len({*hashes.tolist()}) == 1
    different = Block("train", "a", "b", 1, ["10⁵", "105", "café", "cafe"], ["x"] * 4)
    for hashes in different.hashes():
        assert len({*hashes.tolist()}) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_are_compared_as_the_tokenizer_reads_them(kind: str) -> None:
    pairs = Block("train", "a", "b", 1, ["10⁵", "105", "cafe\u0301", "café"], ["x"] * 4)
    counts = {}
    for rules in RULES:
        hashes = pairs.hashes(learned(kind, rules).text_forms())
        counts[rules] = len({*hashes.src.tolist()})
    assert counts == {"nfkc_numbers": 3, "nfkc": 2, "none": 4}
