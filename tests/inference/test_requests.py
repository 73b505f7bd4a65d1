"""What is asked of translations: prefixes, terms, and the lines that cannot have them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nmtkit.core.errors import DataError
from nmtkit.data.tokenizers.tokenizer import SentencePieceTokenizer, TokenizerConfig
from nmtkit.data.tokenizers.vocabulary import UNK
from nmtkit.decoding.shortlist import Shortlist
from nmtkit.inference.constraints.glossary import Glossary
from nmtkit.inference.constraints.requests import Request
from nmtkit.inference.constraints.terms import term_tokens, unmet_constraints
from nmtkit.inference.constraints.words import starts_word, words_of
from nmtkit.inference.loading.opening import load_from_options
from nmtkit.inference.loading.options import DecodingOptions
from nmtkit.inference.translator import Translator
from nmtkit.layers.copying import renumber_by_position
from tests.inference.untrained import KNOWN, WORDS, imported, learned, untrained
from tests.support.commands import Command

SOURCES = ["ba ce di", "fo gu ha na", "je ki lo"]


@pytest.fixture(scope="module")
def translator(trained: Path) -> Translator:
    return load_from_options(DecodingOptions(trained, device="cpu"))


def test_a_word_is_whole() -> None:
    assert " ".join(words_of("Der Hund's (U.S.) 機械x")) == "Der Hund ' s ( U . S . ) 機 械 x"
    tokens = {
        "▁Hund": True,
        "e": False,
        ".": True,
        "▁": True,
        "'s": True,
        "3": False,
        "_": False,
        "機": True,
    }
    assert {token: starts_word(token) for token in tokens} == tokens
    assert not starts_word("\u0308")  # belongs to the letter before it


def test_prefixes_and_terms_stand_in_the_text(translator: Translator) -> None:
    requests = [
        Request(SOURCES[0], prefix="HA BA", must=("LO", "CE CE"), in_order=True),
        Request(SOURCES[1], must_not=("FO",)),
        Request(SOURCES[2], must=("BA", "KI JE")),
    ]
    free = [best[0].text for best in translator.search(SOURCES)]
    found = [best[0] for best in translator.search(requests)]
    assert found[0].text.startswith("HA BA ")
    assert "FO" in free[1]
    assert [one.unmet_constraints for one in found] == [(), (), ()]
    assert unmet_constraints(requests[0], translator.tokenizers.tgt, "HA BA CE CE LO") == [
        "lacks 'CE CE' after 'LO'"
    ]
    assert unmet_constraints(requests[1], translator.tokenizers.tgt, "A FO") == [
        "contains the forbidden term 'FO'"
    ]
    # Lines that ask for nothing are translated as ever beside those that do.
    assert [best[0].text for best in translator.search([*SOURCES, requests[0]])][:3] == free
    by_prefix = translator.search([SOURCES[1], Request(SOURCES[2], prefix="unheard")])
    assert by_prefix[0][0].text == free[1]
    assert by_prefix[1][0].tokens[0] == "▁<unk>"


@pytest.mark.parametrize("kind", ["bpe", "char", "word"])
@pytest.mark.parametrize("model", ["transformer", "pointer-generator"])
def test_the_last_word_of_a_prefix_is_not_continued(model: str, kind: str) -> None:
    translator = untrained(model, learned(KNOWN, kind, vocab_size=45), beam_size=3, max_length=12)
    sources = ["the old man", "a dog", "who sleeps in the house"]
    size = len(translator.tokenizers.tgt.vocabulary)
    shortlist = Shortlist.from_candidates(
        [[number] for number in range(size)], range(4, size, 2), size
    )
    for prefix in ("the do", "m", "sleep", "house"):
        requests = [Request(source, prefix=prefix) for source in sources]
        for results in translator.search(requests, 3) + replace(
            translator, shortlist=shortlist
        ).search(requests, 3):
            for result in results:
                begun = translator.tokenizers.tgt.tokens(prefix)
                following = result.tokens[len(begun) :]
                assert not following or starts_word(following[0]), result.text
    # An apostrophe or a bracket ends no word.
    assert translator.search([Request("a dog", prefix="the (")])[0][0].text
    plain = translator.search(sources)
    mixed = translator.search([*sources, Request("a dog", prefix="m")])
    assert [best[0].text for best in mixed[:3]] == [best[0].text for best in plain]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request("ba", must=("Ünheard",)), "line 1: the model cannot generate the term 'Ünheard'"),
        (
            Request("ba", must=("BA CE",), must_not=("CE",)),
            "line 1: the required term 'BA CE' contains a forbidden term",
        ),
        (Request("ba", must=(" ".join(["BA"] * 300),)), "but max_length is 256"),
        (Request("", prefix="BA"), "line 1: an empty source cannot have a prefix or terms"),
        (Request("ba", must=(" ",)), "line 1: a term is empty; remove it"),
    ],
)
def test_what_cannot_be_met_is_told_with_its_line(
    translator: Translator, request_: Request, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        translator.search([request_])


def test_what_cannot_be_met_in_a_stream_is_told_of_a_line(translator: Translator) -> None:
    with pytest.raises(DataError, match=r"^a line: a term is empty; remove it$"):
        list(translator.stream([[Request(SOURCES[0], must=("",))]]))


def test_a_subword_that_goes_on_is_no_term() -> None:
    """The tokens of a term may begin a longer word; in a script without spaces they have no mark before them."""
    config = TokenizerConfig(kind="char", vocab_size=60)
    tokenizer = SentencePieceTokenizer.learn(config, ["Hund Hunde 機械 翻訳", "Hunde 翻 機"])
    assert unmet_constraints(Request("", must=("Hund",)), tokenizer, "Zwei Hunde.") == [
        "lacks 'Hund'"
    ]
    assert term_tokens(tokenizer, "Hund") == ["▁", *"Hund"]


def test_glossary_takes_the_longest_whole_words() -> None:
    terms = Glossary({"new york": "New York", "york": "Jork", "dog": "Hund"})
    asked = terms.apply(Request("a dog in new york, not dogs of york", must=("Hund",)))
    assert asked.must == ("Hund", "New York", "Jork")


def test_two_spellings_of_a_term_are_one_term() -> None:
    request = Request("a dog in New York")
    older = Glossary({"New York": "Nueva York", "dog": "perro"})
    newer = older.overridden_by(Glossary({"New  York": "Nova York"}))
    assert newer.entries == {"dog": "perro", "New  York": "Nova York"}
    assert newer.apply(request).must == ("perro", "Nova York")
    assert Glossary({"A b": "X", "Ａ b": "X"}).apply(Request("A b")).must == ("X",)
    with pytest.raises(
        DataError, match="'Ａ b' as 'Y', but another spelling of this term has the translation 'X'"
    ):
        Glossary({"A b": "X", "Ａ b": "Y"})
    same_target = Glossary({"dog": "Tier", "cat": "Tier"})
    assert same_target.apply(Request("a dog, a cat")).must == ("Tier",)


def test_with_terms_overrides_other_spellings_of_a_term() -> None:
    translator = untrained("rnnsearch", WORDS).with_terms({"the dog": "house"})
    changed = translator.with_terms({"the  dog": "man"})
    (found,) = changed.search(["the dog"])[0]
    assert found.request is not None
    assert found.request.must == ("man",)


def test_a_copied_word_that_the_source_lacks_is_unknown() -> None:
    found = renumber_by_position(torch.tensor([[3, 12, 11]]), torch.tensor([[5, 11, 2]]), 10, UNK)
    assert found.tolist() == [[3, UNK, 11]]


def test_the_command_reads_them(console: Command, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "terms.tsv").write_text("ba ce\tLO LO\n", encoding="utf-8")
    run = ("translate", "-m", trained, "--device", "cpu")
    text = console(*run, "--prefix", "--terms", "terms.tsv", stdin="ba ce di\tHA\nfo gu\n")
    assert text.code == 0, text
    first, second = text.out.splitlines()
    assert first.startswith("HA ")
    assert "LO LO" in first
    assert "HA" not in second
    lines = [
        {"source": "ba ce", "must": ["JE"], "prefix": "KI"},
        {"source": "ba ce", "must_not": ["BA"]},
    ]
    done = console(*run, "--jsonl", stdin="".join(json.dumps(line) + "\n" for line in lines))
    first, second = done.out.splitlines()
    assert first.startswith("KI ")
    assert "JE" in first.split()
    assert "BA" not in second.split()
    for given, message in (
        ('{"source": "ba", "musts": []}', "line 1: unknown field 'musts'"),
        ("{}", "the field 'source' is missing"),
    ):
        refused = console(*run, "--jsonl", stdin=given + "\n")
        assert refused.code == 2, refused
        assert message in refused.err
    asked = json.dumps({"source": "ba ce", "must": ["JE"]}) + "\n"
    for words, given in (
        (["--terms", "terms.tsv"], "fo gu\nba ce\n"),
        (["--jsonl"], '{"source": "ba"}\n' + asked),
    ):
        for several, message in (
            (["--samples", "2"], "terms require a single beam: remove samples"),
            (
                ["--beam-size", "4", "--search", "diversity_groups=2"],
                "terms require a single beam: remove samples and diversity_groups",
            ),
        ):
            refused = console(*run, "-q", *words, *several, stdin=given)
            assert (refused.code, refused.out, refused.err.count("error:")) == (2, "", 1), refused
            assert message in refused.err
    assert "remove --prefix" in console(*run, "--jsonl", "--prefix").err


def test_a_certain_prefix_is_certain_when_it_is_scored_again() -> None:
    """The token of a language, as imported models begin with."""
    translator = untrained(
        "rnnsearch", imported({"tgt": {"before": ["en_XX"]}}), beam_size=2, certain_prefix=True
    )
    for found in translator.search(["the dog", "dog"], 2):
        source = " ".join(found[0].src_tokens).replace("▁", "")
        for one, again in zip(found, translator.rescore([source] * len(found), found), strict=True):
            assert (one.tokens[0], one.token_log_probs[0]) == ("en_XX", 0.0)
            assert again.token_log_probs == pytest.approx(one.token_log_probs, abs=1e-6)
            assert (again.score, again.log_prob) == pytest.approx(
                (one.score, one.log_prob), abs=1e-6
            )


def test_an_end_at_the_limit_costs_nothing_when_it_is_scored_again() -> None:
    translator = untrained(
        "rnnsearch", WORDS, beam_size=2, at_limit="end", max_length=4, max_length_ratio=0
    )
    (found,) = translator.search(["the old dog"], 2)
    again = translator.rescore(["the old dog"] * 2, found)
    assert [one.token_log_probs[3:] for one in found] == [[0.0]] * 2
    assert [one.token_log_probs for one in again] == [
        pytest.approx(one.token_log_probs, abs=1e-6) for one in found
    ]
    assert [one.score for one in again] == pytest.approx([one.score for one in found], abs=1e-6)
