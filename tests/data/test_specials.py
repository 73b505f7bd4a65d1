"""Further special tokens, and tokenizers of single texts."""

import re
from pathlib import Path

import pytest

from nmtkit.core.columns import Column
from nmtkit.core.errors import CheckpointError, RecipeError
from nmtkit.core.settings import parse
from nmtkit.data.text.blocks import Example
from nmtkit.data.tokenizers.tokenizer import TokenizerConfig
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, SPECIALS, UNK
from tests.support.learned_tokenizers import learn_tokenizers

MARKS = ["<mask>", "<c,l>"]
LINES = [
    "the cat sees a dog",
    "a<mask>b and <mask> here",
    "the <c,l> bird sings",
    "dogs and cats",
] * 20
PAIRS = [Example(line, line, number) for number, line in enumerate(LINES, start=1)]


def config(kind: str, **more: object) -> TokenizerConfig:
    size = {"bpe": 34, "unigram": 26}.get(kind, 100)
    return parse(TokenizerConfig, {"kind": kind, "vocab_size": size, **more}, "test")


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word", "whitespace", "pieces"])
def test_no_text_gives_a_special_token(kind: str, tmp_path: Path) -> None:
    learned = learn_tokenizers(config(kind, specials=MARKS), PAIRS)
    learned.save(tmp_path)
    for tokenizers in (learned, Tokenizers.load(tmp_path)):
        vocabulary = tokenizers.src.vocabulary
        assert vocabulary.tokens[:6] == [*SPECIALS, *MARKS]
        assert len({*vocabulary.tokens}) == len(vocabulary)
        assert vocabulary.ids(MARKS) == [4, 5]
        assert vocabulary.tokens_of([4, 5]) == MARKS
        for text in (*LINES, "<mask>", "<c,l>", "x<mask>", "<mask> <c,l>"):
            assert not {4, 5} & {*tokenizers.src.encode(text)}
            tokens = tokenizers.src.tokens(text)
            assert not {4, 5} & {*tokenizers.src.vocabulary.text_ids(tokens)}
            extended, unknown = vocabulary.extend(tokens)
            assert not {4, 5} & {*extended}
            assert not {4, 5} & {*vocabulary.extended_target_ids(tokens, unknown)}
        assert tokenizers.src.encode("the cat")
        assert UNK not in tokenizers.src.encode("the cat")
        assert "<mask>" in tokenizers.src.decode([BOS, *tokenizers.src.encode("the"), 4, EOS])
    assert tokenizers.checksum == learned.checksum
    assert tokenizers.checksum != learn_tokenizers(config(kind), PAIRS).checksum
    settings = tmp_path / "tokenizer.json"
    settings.write_text(
        re.sub(r'"<mask>",\s*"<c,l>"', '"<c,l>", "<mask>"', settings.read_text(encoding="utf-8"))
    )
    (tmp_path / "sums.json").unlink()
    with pytest.raises(
        CheckpointError, match="the first tokens must be <pad> <unk> <s> </s> <c,l> <mask>"
    ):
        Tokenizers.load(tmp_path)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_no_special_token_is_sampled(kind: str) -> None:
    tokenizer = learn_tokenizers(config(kind, specials=MARKS, sampling=0.5), PAIRS).src
    texts = [*LINES[:4], "<mask>", "<c,l><mask>"]
    cuts = [tokenizer.encode_many(texts, seed) for seed in range(30)]
    assert len({str(cut) for cut in cuts}) > 10
    assert not {4, 5} & {number for cut in cuts for ids in cut for number in ids}


def test_a_special_token_is_a_word_of_its_own_in_text_of_words() -> None:
    tokenizer = learn_tokenizers(config("word", specials=MARKS), PAIRS).src
    assert (
        tokenizer.decode([*tokenizer.encode("the cat"), 4, *tokenizer.encode("sees")])
        == "the cat <mask> sees"
    )


@pytest.mark.parametrize(
    "specials",
    [["<s>"], ["<a>", "<a>"], ["a b"], [""], ["▁x"], [f"<{n}>" for n in range(96)]],
    ids=str,
)
def test_specials_that_make_no_sense(specials: list[str]) -> None:
    with pytest.raises(RecipeError, match="specials: "):
        config("word", specials=specials)
    with pytest.raises(RecipeError, match=r"specials: .* kind must not be marian"):
        config("marian", specials=["<mask>"])


# Texts with settings of their own.


def test_each_text_has_its_own_settings(tmp_path: Path) -> None:
    own: dict[str, object] = {"kind": "word", "vocab_size": 16, "lowercase": True}
    learned = learn_tokenizers(
        config("bpe", joint=False, columns={"tgt": own}, specials=MARKS), PAIRS
    )
    learned.save(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("[st][rg]*")) == ["src.model", "tgt.vocab"]
    again = Tokenizers.load(tmp_path)
    assert again.checksum == learned.checksum
    for tokenizers in (learned, again):
        assert (tokenizers.src.config.kind, tokenizers.tgt.config.kind) == ("bpe", "word")
        assert not tokenizers.src.config.lowercase
        assert len(tokenizers.tgt.vocabulary) == 16
        assert tokenizers.tgt.vocabulary.tokens[4:6] == MARKS
        assert not tokenizers.shared
    assert again.tgt.encode("THE") == learned.tgt.encode("the") != [UNK]


@pytest.mark.parametrize(
    ("columns", "fault"),
    [
        ({"tgt": {"kindd": "word"}}, r"tokenizer.columns.tgt: unknown key `kindd`"),
        ({"tgt": {"vocab_size": 2}}, r"tokenizer.columns.tgt: `vocab_size`"),
        ({"src": {"joint": False}}, r"`tokenizer.columns.src.joint` applies to all texts"),
        ({"labels": {"kind": "word"}}, "columns"),
    ],
)
def test_settings_of_a_text_that_make_no_sense(columns: object, fault: str) -> None:
    with pytest.raises(RecipeError, match=fault):
        config("bpe", joint=False, columns=columns)


def test_a_single_text_has_the_one_tokenizer(tmp_path: Path) -> None:
    learned = learn_tokenizers(config("bpe", vocab_size=30), PAIRS, columns=(Column("tgt"),))
    learned.save(tmp_path)
    again = Tokenizers.load(tmp_path)
    assert [*again] == [*learned] == ["tgt"]
    assert again.tgt.encode("the cat") == learned.tgt.encode("the cat")
    assert not again.shared
    with pytest.raises(
        CheckpointError, match="there is no tokenizer for src; the columns with text are: tgt"
    ):
        _ = again.src
    (tmp_path / "tgt.model").unlink()
    with pytest.raises(CheckpointError, match=r"tgt.model: cannot read the vocabulary"):
        Tokenizers.load(tmp_path)


def test_labels_are_a_file_with_a_checksum(tmp_path: Path) -> None:
    pairs = [
        Example("a b", None, 1, labels="Y X"),
        Example("b", None, 2, labels="Y"),
        Example("b", None, 3, labels="Z"),
    ]
    columns = (Column("src"), Column("labels", "labels"))
    learned = learn_tokenizers(config("whitespace"), pairs, columns=columns, most=1)
    assert learned.labels is not None
    assert learned.labels.tokens == ["Y", "X", "Z"]
    assert learned.labels.encode(["Z", "Y"], "here") == [2, 0]
    learned.save(tmp_path)
    assert Tokenizers.load(tmp_path).labels == learned.labels
    (tmp_path / "labels.vocab").write_text("Y\nX\nW\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"labels.vocab: damaged \(checksum mismatch\)"):
        Tokenizers.load(tmp_path)
    other = learn_tokenizers(config("whitespace"), PAIRS)
    other.save(tmp_path)  # of another run that takes the place of the classifier
    assert Tokenizers.load(tmp_path).labels is None
    assert Tokenizers.load(tmp_path).checksum == other.checksum
    whole = learn_tokenizers(
        config("whitespace"), pairs, columns=(Column("src"), Column("labels", "label"))
    ).labels
    assert whole is not None
    assert whole.tokens == ["Y", "Y X", "Z"]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "wordpiece"])
def test_a_special_token_that_the_text_has_is_refused(kind: str) -> None:
    """sentencepiece learns the text without it, so that letters become unknown; WordPiece would have it twice."""
    with pytest.raises(RecipeError, match=r"the text contains 'de', .* for example to <de>"):
        learn_tokenizers(config(kind, specials=["de"]), [Example("le mode", "la mode", 1)])


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "wordpiece"])
@pytest.mark.parametrize(
    ("settings", "line"),
    [({"lowercase": True}, "le MODE"), ({"normalization": "nfkc"}, "le mo\uff44\uff45")],
)
def test_a_special_token_is_found_in_the_text_that_the_tokenizer_reads(
    kind: str, settings: dict[str, object], line: str
) -> None:
    with pytest.raises(RecipeError, match="the text contains 'de'"):
        learn_tokenizers(config(kind, specials=["de"], **settings), [Example(line, line, 1)])


def test_lowercased_text_does_not_contain_a_special_token_in_capitals() -> None:
    pairs = [Example("le MODE", "la MODE", 1)]
    tokenizer = learn_tokenizers(config("char", specials=["DE"], lowercase=True), pairs).src
    assert UNK not in tokenizer.encode("le MODE")


@pytest.mark.parametrize("kind", ["marian", "huggingface"])
def test_a_text_cannot_have_a_kind_that_exists_only_in_imported_models(kind: str) -> None:
    columns = {"tgt": {"kind": kind}}
    with pytest.raises(RecipeError, match=f"{kind} exists only in imported models"):
        learn_tokenizers(config("bpe", joint=False, columns=columns), PAIRS)
