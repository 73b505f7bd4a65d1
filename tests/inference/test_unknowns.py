"""Which source word stands in for an unknown one: by hand, and the dictionary."""

import json
from dataclasses import replace

import numpy as np
import pytest

from nmtkit.core.errors import DataError
from nmtkit.data.tokenizers.huggingface_tokenizer import HuggingFaceTokenizer
from nmtkit.data.tokenizers.vocabulary import UNK
from nmtkit.inference.constraints.glossary import parse_dictionary
from nmtkit.inference.constraints.requests import Request
from nmtkit.inference.unknowns import MIN_UNKNOWN_SHARE, Replacement, UnknownReplacer
from tests.inference.untrained import imported, learned, marian, untrained

TEXT = [
    "the old man sees Paris , and the dog sleeps .",
    "the dog sees the old man , and Paris sleeps .",
]


WORDS = learned(TEXT, vocab_size=40)
UNKNOWN = "▁<unk>"
"""The unknown word with the kinds `word` and `whitespace`."""


def unknown_word(replacer: UnknownReplacer) -> list[str]:
    """Returns a translation that consists of the unknown word, as the target tokenizer represents it."""
    return replacer._tokenizers.tgt.pieces([UNK])


def replaced(
    line: str, weights: list[float], dictionary: dict[str, str] | None = None
) -> tuple[str, list[Replacement]]:
    """Replaces the unknown word of "the <unk> sees"; EOS has the rest of the weight."""
    uniform_weights = [1 / len(weights)] * len(weights)
    attention = np.array([uniform_weights, weights, uniform_weights])
    return UnknownReplacer(WORDS, dictionary).replace_unknowns(
        line, ["▁the", UNKNOWN, "▁sees"], attention
    )


@pytest.mark.parametrize(
    ("line", "weights", "text"),
    [
        ("the dog sees", [0.1, 0.6, 0.2], "the dog sees"),
        # An unknown source word is preferred if its weight is close, and of several the most attended.
        ("the dog Zyx", [0.0, 0.8, 0.8 * MIN_UNKNOWN_SHARE], "the Zyx sees"),
        ("the dog Zyx", [0.0, 0.8, 0.8 * MIN_UNKNOWN_SHARE - 0.01], "the dog sees"),
        ("Abc dog Zyx", [0.21, 0.5, 0.22], "the Zyx sees"),
        # Punctuation and the end of the sentence are passed over, unless there is nothing else.
        ("Zyx sleeps .", [0.02, 0.01, 0.9], "the Zyx sees"),
        ("Zyx sleeps .", [0.02, 0.01, 0.0], "the Zyx sees"),
        ("the dog , .", [0.0, 0.02, 0.5, 0.4], "the dog sees"),
        (". ,", [0.2, 0.5], "the , sees"),
        ("dog € .", [0.2, 0.3, 0.4], "the € sees"),  # a mark that the model does not know
    ],
)
def test_the_most_attended_word_is_copied(line: str, weights: list[float], text: str) -> None:
    replaced_text, (replacement,) = replaced(line, weights)
    assert replaced_text == text
    assert replacement.token == 1
    assert replacement.written == replacement.source_word == line.split()[replacement.source_token]


def test_tokens_that_the_model_has_not_read_are_never_copied() -> None:
    attention = np.array([[0.1, 0.2]])  # the model truncated the source to two tokens
    text, (replacement,) = UnknownReplacer(WORDS).replace_unknowns(
        "the dog Zyx", [UNKNOWN], attention
    )
    assert text == "dog"
    assert replacement == Replacement(0, 1, "dog", "dog")


def test_a_column_for_eos_is_rejected() -> None:
    attention = np.array([[0.1, 0.2, 0.7]])
    with pytest.raises(AssertionError, match="is the column of EOS among them"):
        UnknownReplacer(WORDS).replace_unknowns("the dog", [UNKNOWN], attention)


def test_the_dictionary_is_asked_first() -> None:
    text, found = replaced("the dog sees", [0.1, 0.6, 0.2], {"dog": "perro", "Dog": "Perro"})
    assert text == "the perro sees"
    assert found == [Replacement(1, 1, "dog", "perro")]
    lower = UnknownReplacer(learned(TEXT, vocab_size=40, lowercase=True), {"Zyx": "Zyxien"})
    assert lower.replace_unknowns("the ZYX", [UNKNOWN], np.array([[0.1, 0.8]]))[0] == "Zyxien"
    message = (
        "^dictionary: 'Dog' and 'DOG' are the same word for the model, but have the translations "
        "'perro' and 'Perro'; remove one of them$"
    )
    with pytest.raises(DataError, match=message):
        UnknownReplacer(
            learned(TEXT, vocab_size=40, lowercase=True),
            {"Dog": "perro", "dog": "perro", "DOG": "Perro"},
        )


def test_tags_before_a_source_are_never_copied() -> None:
    translator = replace(
        untrained("rnnsearch", learned(TEXT, specials=["<2de>"]), 4.0), tags="<2de>"
    )
    translator.model.output.bias.data[UNK] = 20.0
    line = "the Zyx sees Abc"
    (found,) = translator.replacing_unknown().search([line])[0]
    assert found.replaced
    assert found.src_tokens[0] == "▁<2de>"
    for one in found.replaced:
        assert one.source_word == line.split()[one.source_token - 1]
    attention = np.array([[0.9, 0.02, 0.06]])
    _, replacements = UnknownReplacer(WORDS).replace_unknowns(
        "the dog", [UNKNOWN], attention, n_tags=1
    )
    assert replacements == [Replacement(0, 2, "dog", "dog")]


def test_tokens_of_languages_around_a_source_are_never_copied() -> None:
    tokenizers = imported({"src": {"before": ["en_XX"], "after": ["</s>", "en_XX"]}})
    attention = np.array([[0.5, 0.02, 0.02, 0.1, 0.3, 0.06]])
    (one,) = UnknownReplacer(tokenizers).replace_unknowns("the dog Zyx", ["<unk>"], attention)[1]
    assert (one.source_word, one.source_token) == ("Zyx", 3)
    (one,) = UnknownReplacer(marian()).replace_unknowns(
        ">>en_XX<< I", ["<unk>"], np.array([[0.9, 0.02, 0.03]])
    )[1]
    assert (one.source_word, one.source_token) == ("I", 2)


def test_the_languages_of_a_request_do_not_shift_the_weights() -> None:
    """By default the sources have no language token, but the source of this request does."""
    translator = untrained("rnnsearch", imported({}), 4.0, beam_size=1)
    translator.model.output.bias.data[UNK] = 20.0
    request = Request("the dog Zyx", languages=("en_XX", ""))
    ((found,),) = translator.replacing_unknown().search([request])
    assert found.src_tokens == ["en_XX", "▁the", "▁dog", "<unk>"]
    assert found.replaced
    for replacement in found.replaced:
        assert replacement.source_word == request.text.split()[replacement.source_token - 1]


def test_a_prefix_of_the_model_hides_no_word_of_the_source() -> None:
    """The prefix of an empty line has a token for its last space, and a token of a language comes after it."""
    tokenizers = imported({"src": {"after": ["en_XX"]}}).with_source_prefix("the ")
    assert len(tokenizers.src.tokens("")) == 3
    assert tokenizers.src.tokens("dog the") == ["▁the", "▁dog", "▁the", "en_XX"]
    attention = np.array([[0.3, 0.5, 0.1, 0.05]])
    (one,) = UnknownReplacer(tokenizers).replace_unknowns("dog the", ["<unk>"], attention)[1]
    assert (one.source_word, one.source_token) == ("dog", 1)


def test_a_language_tag_in_a_line_hides_no_prefix() -> None:
    tokenizers = imported({}).with_source_prefix("the ")
    line = ">>en_XX<< dog"
    assert tokenizers.src.tokens(line) == ["en_XX", "▁the", "▁dog"]
    attention = np.array([[0.1, 0.7, 0.1]])
    (one,) = UnknownReplacer(tokenizers).replace_unknowns(line, ["<unk>"], attention)[1]
    assert (one.source_word, one.source_token) == ("dog", 2)


def test_a_sentinel_within_a_text_does_not_shift_the_weights() -> None:
    tokenizers = imported({}, ["<extra_id_0>"])
    line = "the<extra_id_0>dog Zyx"
    position = tokenizers.src.tokens(line).index("<extra_id_0>")
    assert 0 < position < 3
    for word in ("▁dog", "▁Zyx"):
        source_token = tokenizers.src.tokens(line).index(word)
        weights = np.full((1, len(tokenizers.src.tokens(line))), 0.01)
        weights[0, source_token] = 0.9
        (one,) = UnknownReplacer(tokenizers).replace_unknowns(line, ["<unk>"], weights)[1]
        assert (one.source_word, one.source_token) == (word[1:], source_token)


def test_entries_match_words_that_an_imported_tokenizer_does_not_know() -> None:
    """Its decoder keeps the word-start marker of an unknown word, which look-ups do not have."""
    tokenizers = imported({})
    facts = json.loads(tokenizers.src.content())
    public = json.loads(facts["tokenizer"])
    public["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": False}
    content = HuggingFaceTokenizer.pack(json.dumps(public), facts["ids"], clean_up=False)
    src = HuggingFaceTokenizer(tokenizers.config, content, tokenizers.src.vocabulary, "src")
    assert src.join(src.tokens("Zyx")) == "▁Zyx"
    tokenizers["src"] = src
    replacer = UnknownReplacer(tokenizers, {"Zyx": "Zyxien", "the dog": "le chien"})
    attention = np.array([[0.1, 0.1, 0.7]])
    text, (one,) = replacer.replace_unknowns("the dog Zyx", ["<unk>"], attention)
    assert text == "Zyxien"
    assert one == Replacement(0, 2, "Zyx", "Zyxien")


def test_an_imported_decoder_does_not_read_replacements_as_tokens() -> None:
    """A byte-level decoder reads the letter ë as a byte, which is no UTF-8."""
    tokenizers = imported({})
    facts = json.loads(tokenizers.src.content())
    public = json.loads(facts["tokenizer"])
    settings = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    public["decoder"] = {"type": "ByteLevel", **settings}
    content = HuggingFaceTokenizer.pack(json.dumps(public), facts["ids"], clean_up=False)
    tgt = HuggingFaceTokenizer(tokenizers.config, content, tokenizers.tgt.vocabulary, "tgt")
    assert tgt.join(["Zoë"]) == "Zo\N{REPLACEMENT CHARACTER}"
    tokenizers["tgt"] = tgt
    replacer = UnknownReplacer(tokenizers, {"dog": "chiën"})
    weights = np.full((2, len(tokenizers.src.tokens("the dog Zoë"))), 0.01)
    weights[0, 1] = weights[1, 2] = 0.9
    tokens = ["<unk>", "<unk>"]
    text, _ = UnknownReplacer(tokenizers).replace_unknowns("the dog Zoë", tokens, weights)
    assert text == "dogZoë"
    text, _ = replacer.replace_unknowns("the dog Zoë", tokens, weights)
    assert text == "chiënZoë"


@pytest.mark.parametrize(
    ("attended", "dictionary", "expected"),
    [
        ("▁Zoë", {}, "▁the ▁Zoë s"),
        ("ë", {}, "▁the ë s"),
        ("▁dog", {}, "▁the ▁dog s"),
        ("▁dog", {"dog": "perro"}, "▁the ▁perro s"),
        ("▁dog", {"▁dog": "▁perro"}, "▁the ▁perro s"),
        ("▁dog", {"dog": "per ro ▁grande"}, "▁the ▁per ro ▁grande s"),
        ("s", {"s": "es"}, "▁the es s"),
        ("▁dog", {"do g": "perro"}, "▁the ▁dog s"),  # several pieces never match a single one
    ],
)
def test_replacements_in_pieces_keep_the_word_start_marker_of_the_source(
    attended: str, dictionary: dict[str, str], expected: str
) -> None:
    tokenizers = learned(["▁the ▁dog s"], "pieces")
    tokens = tokenizers.tgt.pieces(tokenizers.tgt.encode("▁the ▁unknown s"))
    assert tokens == ["▁the", "<unk>", "s"]
    source = ["▁the", attended]
    attention = np.array([[0.8, 0.1], [0.1, 0.8], [0.1, 0.1]])
    replacer = UnknownReplacer(tokenizers, dictionary)
    text, (replacement,) = replacer.replace_unknowns(" ".join(source), tokens, attention)
    assert text == expected
    assert (replacement.token, replacement.source_token) == (1, 1)


def test_unknown_tokens_are_copied_with_their_punctuation() -> None:
    line = "the (Zoë)."
    tokenizers = learned(TEXT, "whitespace")
    attention = np.array([[0.1, 0.8]])
    copied, _ = UnknownReplacer(tokenizers).replace_unknowns(line, [UNKNOWN], attention)
    assert copied == "(Zoë)."
    replacer = UnknownReplacer(tokenizers, {"Zoë": "Zoe"})
    translated, _ = replacer.replace_unknowns(line, [UNKNOWN], attention)
    assert translated == "Zoe"


@pytest.mark.parametrize("kind", ["char", "whitespace"])
def test_dictionary_entries_may_have_punctuation(kind: str) -> None:
    text = ["the (U.S.), the U.S. and U.S no no. (no)"]
    dictionary = {"U.S.": "EE.UU.", "no.": "núm.", "no": "nein"}
    replacer = UnknownReplacer(learned(text, kind, vocab_size=60), dictionary)
    tokenizer = replacer._tokenizers.src
    for word, expected, source_word in [
        ("U.S.", "EE.UU.", "U.S."),
        ("(U.S.),", "EE.UU.", "U.S."),
        ("U.S", "U.S", "U.S"),
        ("no.", "núm.", "no."),
        ("no", "nein", "no"),
        ("(no)", "nein", "no"),
    ]:
        weights = np.full((1, len(tokenizer.tokens(word))), 0.1)
        new_text, (one,) = replacer.replace_unknowns(word, unknown_word(replacer), weights)
        assert (new_text, one.source_word, one.written) == (expected, source_word, expected)


def test_of_two_entries_with_the_same_length_the_first_is_used() -> None:
    tokenizers = learned(["the (no)"], "whitespace", vocab_size=60)
    replacer = UnknownReplacer(tokenizers, {"no": "a", "no)": "b", "(no": "c"})
    text, _ = replacer.replace_unknowns("(no)", [UNKNOWN], np.array([[0.5]]))
    assert text == "b"


@pytest.mark.parametrize("kind", ["char", "whitespace"])
@pytest.mark.parametrize(
    ("word", "copied"),
    [
        ("-5", "-5"),
        ("(-5),", "-5"),
        ("\N{MINUS SIGN}5", "\N{MINUS SIGN}5"),
        ("+5.", "+5"),
        ("5%", "5%"),
        ("(5‰).", "5‰"),
        ("5°,", "5°"),
        ("$5", "$5"),
        ("($5)", "$5"),
        ("-$5", "-$5"),
        ("5€.", "5€"),
        ("-5%", "-5%"),
        ("(-½).", "-½"),
        # These are not signs of a number.
        ("5-", "5"),
        ("%5", "5"),
        ("-dog-", "dog"),
        ("$dog%", "dog"),
    ],
)
def test_signs_of_numbers_are_copied(kind: str, word: str, copied: str) -> None:
    replacer = UnknownReplacer(learned([*TEXT, word], kind, vocab_size=60))
    weights = np.full((1, len(replacer._tokenizers.src.tokens(word))), 0.1)
    text, (replacement,) = replacer.replace_unknowns(word, unknown_word(replacer), weights)
    assert text == replacement.source_word == copied


@pytest.mark.parametrize("kind", ["char", "whitespace"])
def test_entries_for_numbers_match_only_with_their_signs(kind: str) -> None:
    text = ["the 5 -5 (5), (-5), $5 and 7 -7 (-7)."]
    dictionary = {"5": "five", "-7": "minus seven"}
    replacer = UnknownReplacer(learned(text, kind, vocab_size=60), dictionary)
    for word, expected in [
        ("5", "five"),
        ("(5),", "five"),
        ("-5", "-5"),
        ("$5", "$5"),
        ("7", "7"),
        ("-7", "minus seven"),
        ("(-7).", "minus seven"),
    ]:
        weights = np.full((1, len(replacer._tokenizers.src.tokens(word))), 0.1)
        assert replacer.replace_unknowns(word, unknown_word(replacer), weights)[0] == expected


def test_a_token_of_a_script_without_spaces_is_a_word() -> None:
    line = "我们今天去北京。"
    replacer = UnknownReplacer(learned([line, TEXT[0]], "char", vocab_size=60), {"北": "north"})
    tokens = replacer._tokenizers.src.tokens(line)
    for character, expected in (("京", "京"), ("北", "north")):
        attention = np.full((1, len(tokens)), 0.01)
        attention[0, tokens.index(character)] = 0.5
        assert replacer.replace_unknowns(line, ["<unk>"], attention)[0] == expected


def test_several_unknown_words_and_none() -> None:
    replacer = UnknownReplacer(WORDS)
    attention = np.array([[0.1, 0.8], [0.8, 0.1], [0.3, 0.3]])
    text, found = replacer.replace_unknowns("Abc Xyz", [UNKNOWN, UNKNOWN, "▁dog"], attention)
    assert text == "Xyz Abc dog"
    assert [(one.token, one.source_token) for one in found] == [(0, 1), (1, 0)]
    assert replacer.replace_unknowns("Abc Xyz", ["▁the", "▁dog"], attention) == ("the dog", [])
    # there is no source word
    assert replacer.replace_unknowns("", [UNKNOWN], np.ones((1, 0))) == ("<unk>", [])


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
def test_unknown_pieces_of_words(kind: str) -> None:
    """A subword vocabulary lacks characters, not words: only they are copied."""
    replacer = UnknownReplacer(learned(TEXT, kind, vocab_size=26))
    line = "the 漢字 dog"
    pieces = replacer._tokenizers.src.tokens(line)
    attention = np.full((3, len(pieces)), 0.01)
    attention[1, pieces.index("漢字")] = 0.5
    text, found = replacer.replace_unknowns(line, ["▁", "<unk>", "s"], attention)
    assert text == "漢字s"
    assert found == [Replacement(1, pieces.index("漢字"), "漢字", "漢字")]


def test_an_unknown_piece_with_little_weight_makes_its_word_preferred() -> None:
    """The whole word's weight counts, and the word is copied as a whole."""
    replacer = UnknownReplacer(learned(TEXT, "char", vocab_size=40))
    line = "man oldß dog"
    pieces = replacer._tokenizers.src.tokens(line)
    attention = np.zeros((1, len(pieces)))
    attention[0, pieces.index("m")] = 0.6
    attention[0, pieces.index("l")] = 0.3
    attention[0, pieces.index("ß")] = 0.01
    text, (replacement,) = replacer.replace_unknowns(line, ["<unk>"], attention)
    assert text == "oldß"
    assert replacement == Replacement(0, pieces.index("l"), "oldß", "oldß")


def test_a_known_subword_stands_for_its_word() -> None:
    replacer = UnknownReplacer(learned(TEXT, "char", vocab_size=40))
    line = "the (old dog)."
    pieces = replacer._tokenizers.src.tokens(line)
    attention = np.full((2, len(pieces)), 0.01)
    attention[1, pieces.index("g")] = 0.5
    text, found = replacer.replace_unknowns(line, ["▁", "<unk>"], attention)
    assert text == "dog"
    assert found[0].source_word == "dog"


def test_dictionary_files() -> None:
    assert parse_dictionary(["Haus\thouse", "", " Hund \tbig dog", "Haus\thouse"], "d.tsv") == {
        "Haus": "house",
        "Hund": "big dog",
    }


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["Haus\thouse", "Hund dog"], r"^d\.tsv, line 2: 'Hund dog' is not SOURCE TAB TARGET"),
        *(
            (["Haus\thouse", line], "with text on both sides")
            for line in ("Haus\t", "\thouse", "a\tb\tc")
        ),
        (["Haus\thouse", "Haus\thome"], r"^d\.tsv, line 2: 'Haus' has two translations"),
    ],
)
def test_faults_of_a_dictionary(lines: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_dictionary(lines, "d.tsv")
