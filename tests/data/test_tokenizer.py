import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.core.errors import CheckpointError, DataError, RecipeError
from nmtkit.data.text.blocks import Example
from nmtkit.data.text.checking import DataReport
from nmtkit.data.tokenizers.tokenizer import SentencePieceTokenizer, TokenizerConfig, WordTokenizer
from nmtkit.data.tokenizers.tokenizer_training import describe_shortfall
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, SPECIALS, UNK, Vocabulary
from tests.support.learned_tokenizers import learn_tokenizers

KINDS = ["bpe", "unigram", "char", "word"]
SENTENCE = "Otto opens the window and Süßmann sees the bridge."


def config(kind: str, **settings: object) -> TokenizerConfig:
    # So few words give unigram no 100 pieces.
    return TokenizerConfig.model_validate(
        {"kind": kind, "vocab_size": 60 if kind == "unigram" else 100, **settings}
    )


@pytest.mark.parametrize("kind", KINDS)
def test_text_survives_the_way_to_ids_and_back(kind: str, pairs: list[Example]) -> None:
    tokenizer = learn_tokenizers(config(kind), pairs).src
    ids = tokenizer.encode(SENTENCE)
    assert not {PAD, UNK, BOS, EOS} & set(ids)
    assert tokenizer.decode([BOS, *ids, EOS, PAD]) == SENTENCE
    assert tokenizer.pieces(ids) == tokenizer.tokens(SENTENCE)
    assert tokenizer.pieces(ids)[0].startswith("▁")
    assert sum(piece.startswith("▁") for piece in tokenizer.pieces(ids)) == len(SENTENCE.split())
    assert tokenizer.encode_many([SENTENCE, "", "the"]) == [ids, [], tokenizer.encode("the")]
    assert len(tokenizer.vocabulary) <= 100
    assert tuple(tokenizer.vocabulary.tokens[:4]) == SPECIALS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("joint", [True, False])
def test_saving_and_loading_and_learning_again_change_nothing(
    kind: str, joint: bool, pairs: list[Example], tmp_path: Path
) -> None:
    before = learn_tokenizers(config(kind, joint=joint, lowercase=True), pairs)
    before.save(tmp_path / "made" / "here")
    after = Tokenizers.load(tmp_path / "made" / "here")
    assert after.shared == before.shared == joint
    for old, new in ((before.src, after.src), (before.tgt, after.tgt)):
        assert new.vocabulary == old.vocabulary
        assert new.encode(SENTENCE) == old.encode(SENTENCE)
        assert new.config == old.config
    learn_tokenizers(config(kind, joint=joint, lowercase=True), pairs).save(tmp_path / "again")
    made, again = (
        {path.name: path.read_bytes() for path in folder.iterdir()}
        for folder in (tmp_path / "made/here", tmp_path / "again")
    )
    assert made == again


@pytest.mark.parametrize("kind", KINDS)
def test_lower_case_keeps_the_sharp_s(kind: str, pairs: list[Example]) -> None:
    tokenizer = learn_tokenizers(config(kind, lowercase=True), pairs).src
    assert (
        tokenizer.decode(tokenizer.encode(SENTENCE))
        == "otto opens the window and süßmann sees the bridge."
    )


@pytest.mark.parametrize("kind", KINDS)
def test_wide_letters_are_narrow_ones_unless_text_is_taken_as_it_is(
    kind: str, pairs: list[Example]
) -> None:
    narrow, wide = "Otto opens the window.", "\uff2f\uff54\uff54\uff4f opens the window."
    tokenizer = learn_tokenizers(config(kind), pairs).src
    assert tokenizer.encode(wide) == tokenizer.encode(narrow)
    as_it_is = learn_tokenizers(config(kind, normalization="none"), pairs).src
    assert as_it_is.encode(wide) != as_it_is.encode(narrow)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sampling_is_random_but_repeatable(kind: str, pairs: list[Example]) -> None:
    tokenizer = learn_tokenizers(config(kind, sampling=0.3), pairs).src
    texts = [pair.src for pair in pairs[:50]]
    best = tokenizer.encode_many(texts)
    one, again, other = (tokenizer.encode_many(texts, seed) for seed in (1, 1, 2))
    assert one == again
    assert one != other
    assert one != best
    assert tokenizer.encode_many(texts) == best
    assert [tokenizer.decode(ids) for ids in one] == texts


def test_bpe_dropout_of_one_leaves_single_characters(pairs: list[Example]) -> None:
    tokenizer = learn_tokenizers(config("bpe", sampling=1.0), pairs).src
    assert tokenizer.pieces(tokenizer.encode_many(["the dog"], seed=5)[0]) == list("▁the▁dog")


def test_unknown_text_reads_unk(pairs: list[Example]) -> None:
    bpe = learn_tokenizers(config("bpe"), pairs).src
    assert bpe.decode(bpe.encode("the 犬 house")) == "the <unk> house"
    word = learn_tokenizers(config("word"), pairs).src
    assert word.decode(word.encode("the cat, house")) == "the <unk> <unk> house"


WORDS = WordTokenizer(config("word", normalization="none"), Vocabulary(SPECIALS))


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Hello, world!", "▁Hello , ▁world !"),
        ("It's l'eau (3.14 or 1,000).", "▁It ' s ▁l ' eau ▁( 3.14 ▁or ▁1,000 ) ."),
        ("U.S. well-known ...", "▁U . S . ▁well - known ▁. . ."),
        (unicodedata.normalize("NFD", "Zoë"), "▁" + unicodedata.normalize("NFD", "Zoë")),
        ("नमस्ते दुनिया।", "▁नमस्ते ▁दुनिया ।"),
        ("<s> <unk>", "▁< s > ▁< unk >"),
        ("", ""),
    ],
)
def test_words_and_punctuation(text: str, pieces: str) -> None:
    assert WORDS.tokens(text) == pieces.split()
    assert WORDS.join(WORDS.tokens(text)) == text


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ("▁the year year year", "the year year year"),
        ("▁- old old - old", "-old old-old"),
        ("▁1,000 kg kg", "1,000kg kg"),
        ("▁3.14 15 .", "3.14 15."),
        ("▁wait . . . ▁<unk> . ▁<unk> s", "wait... <unk>. <unk>s"),
    ],
)
def test_words_that_a_model_repeats_are_not_glued(pieces: str, text: str) -> None:
    assert WORDS.join(pieces.split()) == text


def test_a_piece_that_spells_a_special_one_is_unknown() -> None:
    tokenizer = WordTokenizer(config("pieces"), Vocabulary([*SPECIALS, "a"]))
    assert tokenizer.encode("a </s> <pad>") == [4, UNK, UNK]


@pytest.mark.parametrize(
    ("kind", "words", "ids"),
    [
        ("word", ["▁(", "▁MASK"], [6, 5, UNK]),
        ("whitespace", ["▁(MASK", "▁MASK"], [6, 5]),
        ("pieces", ["(MASK"], [UNK, 5]),
    ],
)
def test_a_text_never_has_the_id_of_a_special_token_that_it_names(
    kind: str, words: list[str], ids: list[int]
) -> None:
    line = "MASK (MASK"
    tokenizer = learn_tokenizers(config(kind, specials=["MASK"]), [Example(line, line, 1)]).src
    assert tokenizer.vocabulary.tokens == [*SPECIALS, "MASK", *words]
    assert tokenizer.encode(line) == ids


@settings(max_examples=30)
@given(st.text())
def test_joining_words_gives_the_text_back_up_to_white_space(text: str) -> None:
    assert WORDS.join(WORDS.tokens(text)) == " ".join(text.replace("▁", " ").split())


def test_a_corpus_larger_than_the_limit_is_thinned_out_evenly(pairs: list[Example]) -> None:
    report = DataReport()
    # Every 8th of 600 pairs is the first choice to fit: those of lines 1, 9, 17, ...
    thinned = learn_tokenizers(config("word"), pairs, report, most=80)
    assert report.tokenizer["pairs_used"] == 75
    assert report.tokenizer["pairs"] == 600
    assert thinned.src.vocabulary == learn_tokenizers(config("word"), pairs[::8]).src.vocabulary


@pytest.mark.parametrize(("min_frequency", "known"), [(1, True), (3, True), (4, False)])
def test_rare_words_are_unknown(min_frequency: int, known: bool, pairs: list[Example]) -> None:
    rare = [*pairs, Example("the quokka", "quokka quokka", 601)]
    vocabulary = learn_tokenizers(config("word", min_frequency=min_frequency), rare).src.vocabulary
    assert ("▁quokka" in vocabulary) == known


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word", "whitespace", "wordpiece"])
def test_a_vocabulary_has_fewer_tokens_than_asked_for_if_the_text_has_no_more(
    kind: str, joint: bool, pairs: list[Example]
) -> None:
    too_large = config(kind, vocab_size=9000, joint=joint)
    learned = learn_tokenizers(too_large, pairs)
    largest = len(learned.src.vocabulary)
    assert largest < 9000
    fitting = config(
        kind, vocab_size=largest, joint=joint, **({} if joint else {"tgt_vocab_size": 9000})
    )
    assert learn_tokenizers(fitting, pairs).src.vocabulary.tokens == learned.src.vocabulary.tokens
    says = describe_shortfall(too_large, learned)
    assert (f"{largest:,} of 9,000" in says) == (kind in ("bpe", "unigram"))


def test_too_small_a_vocabulary_says_how_many_it_takes(pairs: list[Example]) -> None:
    with pytest.raises(RecipeError, match=r"vocab_size: 20 is too small.*at least \d+") as error:
        learn_tokenizers(config("bpe", vocab_size=20), pairs)
    least = int(str(error.value).split("at least ")[1].split(",")[0])
    assert len(learn_tokenizers(config("bpe", vocab_size=least), pairs).src.vocabulary) == least


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lines", [[], ["", " "]])
def test_no_text_is_a_fault(kind: str, lines: list[str]) -> None:
    with pytest.raises(DataError, match="to train on"):
        learn_tokenizers(config(kind), [Example(line, line, 1) for line in lines])


def test_a_line_with_the_sign_of_sentencepiece_itself_is_learned_from() -> None:
    tokenizer = SentencePieceTokenizer.learn(config("char"), ["▁▂▃▄▅▆ q", "xyz"])
    assert [UNK in tokenizer.encode(text) for text in ("▆ q xyz", "▅")] == [False, True]


def test_very_long_lines_are_learned_from() -> None:
    text = " ".join(f"w{number}" for number in range(3000))
    tokenizer = SentencePieceTokenizer.learn(config("char"), [text, "xyz"])
    assert UNK not in tokenizer.encode("w0123456789")


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"kind": "word", "sampling": 0.1}, "cannot sample tokenizations"),
        (
            {"kind": "bpe", "min_frequency": 2},
            "only to tokenizers of kind word, whitespace or pieces",
        ),
        ({"kind": "word", "tgt_vocab_size": 6}, "set joint to false"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        TokenizerConfig.model_validate(settings)


def test_each_side_can_have_a_vocabulary_of_its_own_size(pairs: list[Example]) -> None:
    made = learn_tokenizers(config("word", joint=False, vocab_size=10, tgt_vocab_size=6), pairs)
    assert (len(made.src.vocabulary), len(made.tgt.vocabulary)) == (10, 6)


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("joint.model", b"half", r"joint\.model"),
        ("joint.model", None, "cannot read the vocabulary"),
        ("tokenizer.json", b"{", "damaged"),
        ("tokenizer.json", None, r"tokenizer\.json: cannot read the settings"),
    ],
)
def test_a_damaged_folder_is_refused(
    name: str, content: bytes | None, fault: str, pairs: list[Example], tmp_path: Path
) -> None:
    learn_tokenizers(config("bpe"), pairs).save(tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=fault):
        Tokenizers.load(tmp_path)


def test_what_comes_with_imported_models_cannot_be_learned() -> None:
    with pytest.raises(RecipeError, match=r"tokenizer.kind: marian.*imported.*bpe"):
        learn_tokenizers(TokenizerConfig(kind="marian"), [])
