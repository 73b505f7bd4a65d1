"""Metrics against hand-worked numbers and against published figures."""

import itertools
import math
import os
from typing import Any

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer

from nmtkit import metrics
from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.data.text.alignments import parse_alignments
from nmtkit.metrics import Options, Resampling, Texts, significance
from nmtkit.metrics.metric import score_texts, text_metrics


def score(name: str, hyps: list[str], refs: list[list[str]], **options: Any) -> Any:
    return metrics.score_all(hyps, refs, [name], Options(**options))[0]


# ---- BLEU

SIX, FIVE = "a b c d e f", "a b c d e"


@pytest.mark.parametrize(
    ("hyps", "refs", "expected"),
    [
        # Clipped matches of orders 1 to 4: 5 of 6 ("the" counts once), 3 of 5, 2 of 4, 1 of 3; no brevity penalty.
        (
            ["the cat sat on the mat"],
            [["the cat sat on a mat"]],
            (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25,
        ),
        # All precisions are 1; 4 words against 6.
        (["a b c d"], [[SIX]], math.exp(1 - 6 / 4)),
        # Counts are pooled: matches 4 + 2, 3 + 1, 2 + 0, 1 + 0 of 8, 6, 4, 2.
        (["a b c d", "e f x y"], [["a b c d", "e f g h"]], (6 / 8 * 4 / 6 * 2 / 4 * 1 / 2) ** 0.25),
        # Of several references the closest length counts, 5.
        ([FIVE], [["a b c d e f g"], [FIVE]], 1.0),
        ([FIVE], [["a b c d e f g"]], math.exp(1 - 7 / 5)),
    ],
    ids=["clipped", "brevity", "pooled", "two references", "one reference"],
)
def test_bleu_by_hand(hyps: list[str], refs: list[list[str]], expected: float) -> None:
    bleu = score("bleu", hyps, refs)
    assert bleu.name == "BLEU"
    assert bleu.value == pytest.approx(100 * expected, abs=1e-9)
    assert bleu.signature.startswith(
        f"nrefs:{len(refs)}|case:mixed|eff:no|tok:13a|smooth:exp|version:"
    )


def test_bleu_options() -> None:
    hyp, ref = ["The cat, it sat."], [["the cat , it sat ."]]
    assert score("bleu", hyp, ref, lowercase=True).value == pytest.approx(100.0)
    # Case kept: 5 of 6, 4 of 5, 3 of 4, 2 of 3.
    assert score("bleu", hyp, ref).value == pytest.approx(
        100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25
    )
    unsplit = score("bleu", hyp, ref, tokenize="none", lowercase=True)
    assert unsplit.value < 50
    assert "tok:none" in unsplit.signature
    assert "case:lc" in unsplit.signature
    # Characters: 3 of 4, 2 of 3, 1 of 2, and no match of 1, which mteval smooths to 1/2.
    bleu = score("bleu", ["abcx"], [["abcd"]], tokenize="char")
    assert bleu.value == pytest.approx(100 * (3 / 4 * 2 / 3 * 1 / 2 * 1 / 2) ** 0.25)
    assert score("bleu", ["我爱你们"], [["我爱你们"]], tokenize="zh").value == pytest.approx(100.0)


def test_bleu_of_shorter_n_grams() -> None:
    # As above: 5 of 6, 3 of 5, 2 of 4. The second output, "a cat", has 2 of 2 and 0 of 1, and is 4 words too short.
    systems = [["the cat sat on the mat"] * 2, ["a cat"] * 2]
    texts = [Texts(hyps, [["the cat sat on a mat"] * 2]) for hyps in systems]
    names, penalty = ["bleu1", "bleu2", "bleu3"], math.exp(1 - 6 / 2)
    for resampling in (None, Resampling("bs", 20)):
        first, second = score_texts(texts, names, None, resampling)
        assert [cell.score.name for cell in first] == ["BLEU-1", "BLEU-2", "BLEU-3"]
        values = [
            100 * 5 / 6,
            100 * (5 / 6 * 3 / 5) ** (1 / 2),
            100 * (5 / 6 * 3 / 5 * 2 / 4) ** (1 / 3),
        ]
        assert [cell.score.value for cell in first] == pytest.approx(values)
        assert second[0].score.value == pytest.approx(100 * penalty * 2 / 2)
        assert second[1].score.value < second[0].score.value
        assert [cell.p_value is None for cell in second] == [resampling is None] * 3


# ---- chrF and TER


def test_chrf_by_hand() -> None:
    # Order 1: 2 of 2 and 2 of 3; order 2: 1 of 1 and 1 of 2; the hypothesis has no higher order.
    precision, recall = 1.0, (2 / 3 + 1 / 2) / 2
    chrf = score("chrf", ["ab"], [["abc"]])
    assert chrf.name == "chrF2"
    assert chrf.value == pytest.approx(
        100 * 5 * precision * recall / (4 * precision + recall), abs=1e-9
    )
    assert score("chrf", ["AB"], [["ab"]]).value == 0
    assert score("chrf", ["AB"], [["ab"]], lowercase=True).value == pytest.approx(100)
    # Characters without spaces: order 1 has 1 of 2 and 1 of 2, order 2 has 0 of 1; words: 1 of 2, then 0 of 1.
    chrf = score("chrf++", ["a b"], [["a c"]])
    assert chrf.name == "chrF2++"
    assert chrf.value == pytest.approx(100 * (1 / 2 + 0 + 1 / 2 + 0) / 4, abs=1e-9)


@pytest.mark.parametrize(
    ("hyp", "refs", "edits_per_word"),
    [
        ("the cat sat", ["the dog sat down"], 2 / 4),  # one substitution, one insertion
        ("b c d a", ["a b c d"], 1 / 4),  # one block moved
        ("a b c d", ["a"], 3.0),  # three deletions of one word: above 100
        ("The Cat", ["the cat"], 0.0),  # case is ignored
        ("a b", ["x y z q", "a b"], 0.0),  # the best reference counts
        ("a x", ["q r s t", "a b"], 1 / 3),  # over the average length, (2 + 4) / 2 words
    ],
)
def test_ter_by_hand(hyp: str, refs: list[str], edits_per_word: float) -> None:
    assert score("ter", [hyp], [[ref] for ref in refs]).value == pytest.approx(
        100 * edits_per_word, abs=1e-9
    )


# ---- ROUGE


def _rouge(hyp: str, *refs: str, stem: bool = False, sentences: str = "auto") -> dict[str, float]:
    options = Options(stem=stem, sentences=sentences)
    return {
        one.name: one.value
        for one in metrics.score_all([hyp], [[ref] for ref in refs], ["rouge"], options)
    }


TWO_SENTENCES = "w1 w3 w8 w9 w5. w1 w2 w6 w7 w8."
TAGGED = "<t> w1 w3 w8 w9 w5 </t> <t> w1 w2 w6 w7 w8 </t>"


@pytest.mark.parametrize(
    ("hyp", "sentences", "words"),
    [
        ("w1 w3 w8 w9 w5\nw1 w2 w6 w7 w8", "auto", 4),
        (TWO_SENTENCES, "auto", 4),
        (TAGGED, "auto", 4),
        (TWO_SENTENCES, "newline", 3),
    ],
)
def test_rouge_lsum_is_the_union_over_sentences(hyp: str, sentences: str, words: int) -> None:
    # Lin 2004, section 3.2: the union of the two common subsequences holds w1 w2 w3 w5, 4 of 5 words.
    # As one sentence the longest common subsequence is w1 w3 w5.
    found = _rouge(hyp, "w1 w2 w3 w4 w5", sentences=sentences)
    assert found["ROUGE-Lsum"] == pytest.approx(100 * 2 * words / (5 + 10))
    assert found["ROUGE-L"] == pytest.approx(100 * 2 * 3 / (5 + 10))


def test_rouge_takes_the_best_reference_for_each_example_and_type() -> None:
    # Unigrams favour the reversed reference (3 of 3), bigrams the other (1 of 2 and 1 of 2).
    found = _rouge("a b c", "c b a", "a b x")
    assert (found["ROUGE-1"], found["ROUGE-2"]) == (pytest.approx(100), pytest.approx(50))
    # Against "a" the recall is 1 and F1 2 / 4; against "a b c d e f" F1 is 2 * 3 / 9.
    one = score("rouge1", ["a b c"], [["a"], ["a b c d e f"]])
    assert (one.precision, one.recall) == (pytest.approx(100), pytest.approx(50))
    assert one.signature.startswith("nrefs:2|multi:best-f1|")


def test_rouge_is_the_mean_over_examples() -> None:
    one, longest = (
        score(name, ["a b c d", "a"], [["a b x", "a b"]]) for name in ("rouge1", "rougeL")
    )
    assert one.precision == longest.precision == pytest.approx(100 * (2 / 4 + 1 / 1) / 2)
    assert one.recall == longest.recall == pytest.approx(100 * (2 / 3 + 1 / 2) / 2)
    assert one.value == pytest.approx(100 * (2 * 2 / 7 + 2 * 1 / 3) / 2)
    assert one.signature.startswith(
        "nrefs:1|agg:mean-f1|stem:porter|sents:auto|tok:a-z0-9|version:rouge-score-"
    )


@pytest.mark.parametrize("stem", [False, True])
def test_rouge_is_that_of_rouge_score_itself(stem: bool) -> None:
    random = np.random.default_rng(5)
    words = [
        "The",
        "cats",
        "cat's",
        "running",
        "ran",
        "generalization",
        "U.S.",
        "3.5",
        "naïve",
        "skies",
        "dying",
        "-",
    ]
    texts = [" ".join(random.choice(words, size=size)) for size in random.integers(0, 12, size=60)]
    hyps, refs = texts[:30], texts[30:]
    plain = RougeScorer(list(metrics.ROUGE_METRICS), use_stemmer=stem)
    for hyp, ref in zip(hyps, refs, strict=True):
        expected = plain.score(ref, hyp)
        for name in metrics.ROUGE_METRICS:
            ours = score(name, [hyp], [[ref]], stem=stem, sentences="newline")
            found = (ours.precision, ours.recall, ours.value)
            assert found == pytest.approx(
                tuple(100 * value for value in expected[name]), abs=1e-9
            ), (hyp, ref, name)


@pytest.mark.parametrize(
    ("text", "rule", "expected"),
    [
        ("One. Two! Three", "auto", ["One.", "Two!", "Three"]),
        (
            'He said "no." She (too?) left. End',
            "auto",
            ['He said "no."', "She (too?)", "left.", "End"],
        ),
        ("3.5 is a number", "auto", ["3.5 is a number"]),
        ("One. Two\nThree. Four", "auto", ["One. Two", "Three. Four"]),
        ("<t> One . </t> <t> two . three </t>", "auto", ["One .", "two . three"]),
        ("<s>a</s> <s>b</s>", "auto", ["a", "b"]),
        ("one <q> two. three", "auto", ["one", "two. three"]),
        ("One. Two", "newline", ["One. Two"]),
        ("<t> One. Two </t>", "newline", ["<t> One. Two </t>"]),
        ("One. Two\nthree", "tags", ["One. Two\nthree"]),
        ("<t> a. </t> <t> b </t>", "tags", ["a.", "b"]),
        ("One. Two\nthree", "punctuation", ["One.", "Two", "three"]),
        ("", "auto", []),
    ],
)
def test_split_sentences(text: str, rule: str, expected: list[str]) -> None:
    assert metrics.split_sentences(text, rule) == expected


def test_lead_is_the_first_sentences_on_one_line() -> None:
    article = "One ended. Two did, too! Three?\tFour."
    assert metrics.lead(article, 3) == "One ended. Two did, too! Three?"
    assert metrics.lead(article, 9) == "One ended. Two did, too! Three? Four."
    assert metrics.lead("<t> one . </t> <t> two . </t>", 1) == "one ."
    assert metrics.lead("one\ntwo\nthree", 2) == "one two"
    assert metrics.lead("", 3) == ""
    with pytest.raises(NmtkitError, match="at least 1 sentence, not 0"):
        metrics.lead(article, 0)


def test_lines_with_letters_that_rouge_drops_are_noted() -> None:
    note = text_metrics(["rougeL"])[0].note(
        [["plain, text!", "schön", "“quotes” – only", "日本"]], Options()
    )
    assert note.startswith("2 of 4 reference lines")
    assert text_metrics(["rougeL"])[0].note([["plain"]], Options()) == ""


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    with pytest.raises(
        NmtkitError, match="unknown sentence rule 'newlines': did you mean 'newline'"
    ):
        score("rouge1", ["a"], [["a"]], sentences="newlines")
    with pytest.raises(NmtkitError, match="unknown tokenizer 'int': did you mean 'intl'"):
        score("bleu", ["a"], [["a"]], tokenize="int")


# ---- one call for several metrics


def test_score_all_keeps_the_order_asked_for_and_passes_the_options_on() -> None:
    hyps, refs = ["The cats sat on the mat"], [["the cat sat on the mat"]]
    options = Options(tokenize="none", lowercase=True, stem=False, sentences="newline")
    assert metrics.score_all(hyps, refs, ["rougeL", "ter", "bleu", "chrf", "rouge1"], options) == [
        score("rougeL", hyps, refs, stem=False, sentences="newline"),
        score("ter", hyps, refs),
        score("bleu", hyps, refs, tokenize="none", lowercase=True),
        score("chrf", hyps, refs, lowercase=True),
        score("rouge1", hyps, refs, stem=False, sentences="newline"),
    ]


def test_metric_names() -> None:
    names = metrics.metric_names(["rouge2", "bleu", "rouge", "bleu"])
    assert names == ["rouge2", "bleu", "rouge1", "rougeL", "rougeLsum"]
    for given, message in (
        (["blue"], "unknown metric 'blue': did you mean 'bleu'"),
        ([], "no metric given"),
        (["aer"], "metric 'aer' needs alignments instead of texts"),
    ):
        with pytest.raises(NmtkitError, match=message):
            metrics.metric_names(given)


def test_the_table_says_of_each_metric_what_it_is() -> None:
    names = metrics.METRICS.names()
    assert {
        *(metric.name for metric in text_metrics()),
        "aer",
        "loss",
        "perplexity",
        "term-recall",
    } <= set(names)
    lower = {name for name in names if not metrics.METRICS.get(name).higher_is_better}
    assert lower == {"ter", "aer", "loss", "perplexity"}
    for metric in text_metrics():
        name = metric.name
        assert metrics.METRICS.get(name) is metric
        if not metric.installed:
            with pytest.raises(
                NmtkitError, match=rf"{name}' is not installed; .*nmtkit\[{metric.extra}\]"
            ):
                metrics.score_all(["a b"], [["a c"]], [name])
        elif not metric.extra:
            output, reference = (
                ("a b", "a c") if metric.family != "brackets" else ("(S XX )S", "(S XX )S")
            )
            assert metrics.score_all([output], [[reference]], [name])[0].name == metric.title


@pytest.mark.parametrize("name", [metric.name for metric in text_metrics()])
def test_every_metric_refuses_lines_that_do_not_pair(name: str) -> None:
    for hyps, refs, message in (
        (
            ["a", "b"],
            [["a", "b"], ["a", "b", "c"]],
            "hypotheses have 2 lines, but reference 2 has 3",
        ),
        (["a"], list[list[str]](), "no reference"),
        (list[str](), [list[str]()], "no hypotheses"),
    ):
        with pytest.raises(DataError, match=message):
            metrics.score_all(hyps, refs, [name])
    with pytest.raises(DataError, match="hypotheses have 1 lines, but reference 1 has 2"):
        score_texts([Texts(hyps, [["a", "b"]]) for hyps in (["a", "b"], ["a"])], [name])


# ---- significance


PLACES = ("Rome", "Oslo", "Bonn", "Riga", "Cork", "Nice")
REF = [f"the quick brown fox jumps over the lazy dog of {place}" for place in PLACES]
GOOD = [line.replace("lazy", "idle") for line in REF]
BAD = [line.replace("brown", "red").replace("over", "at").replace("the", "a") for line in REF]
ALL = ["bleu", "chrf", "ter", "rouge1", "rouge2", "rougeL", "rougeLsum"]


def compared(
    systems: list[list[str]],
    refs: list[str],
    names: list[str],
    n_samples: int = 50,
    seed: int = 12345,
) -> list[list[metrics.Comparison]]:
    return score_texts(
        [Texts(hyps, [refs]) for hyps in systems], names, None, Resampling("bs", n_samples, seed)
    )


def test_a_bootstrap_gives_the_plain_scores_and_a_seeded_answer() -> None:
    systems = [GOOD, BAD]
    rows = compared(systems, REF, ALL, seed=7)
    for hyps, row in zip(systems, rows, strict=True):
        plain = metrics.score_all(hyps, [REF], ALL)
        assert [cell.score.name for cell in row] == [one.name for one in plain]
        assert [cell.score.value for cell in row] == pytest.approx([one.value for one in plain])
        assert all("bs:50|seed:7" in cell.score.signature for cell in row)
    assert [cell.p_value for cell in rows[0]] == [None] * len(ALL)
    # Every draw has nearly the same gap, so none exceeds its mean by the gap itself: the smallest p there is.
    assert [cell.p_value for cell in rows[1]] == [pytest.approx(1 / 51)] * len(ALL)
    assert compared(systems, REF, ALL, seed=7) == rows
    mixed = [GOOD[:3] + BAD[3:], BAD[:3] + REF[3:]]
    first, second = (compared(mixed, REF, ALL, seed=seed) for seed in (7, 8))
    assert first != second
    equal = compared([GOOD, list(GOOD)], REF, ALL)
    assert [cell.p_value for cell in equal[1]] == [1.0] * len(ALL)


def test_rouge_bootstrap_approaches_the_exact_distribution() -> None:
    # F1 per example: baseline 1, 0, 0, 1/2; system 1, 1, 1/2, 0. All 4^4 draws are equally likely.
    refs = ["a b", "a b", "a b", "a b"]
    systems = [["a b", "x y", "x y", "a x"], ["a b", "a b", "a x", "x y"]]
    base, new = np.array([100, 0, 0, 50.0]), np.array([100, 100, 50.0, 0])
    draws = np.array(list(itertools.product(range(4), repeat=4)))
    gaps = np.abs(new[draws].mean(axis=1) - base[draws].mean(axis=1))
    exact = np.mean(gaps - gaps.mean() > 25.0)
    assert 0.02 < exact < 0.5

    cell = compared(systems, refs, ["rouge1"], 4000)[1][0]
    assert cell.p_value == pytest.approx(exact, abs=0.03)
    assert cell.mean == pytest.approx(62.5, abs=1.5)


def test_rouge_interval_is_that_of_the_normal_distribution() -> None:
    # 400 examples, half of them right: the standard error is 100 * sqrt(1/2 * 1/2 / 400) = 2.5 points.
    hyps = ["a", "b"] * 200
    cell = compared([hyps], ["a"] * 400, ["rouge1"], 2000)[0][0]
    assert cell.interval == pytest.approx(1.96 * 2.5, abs=0.3)


def test_bootstrap_draws_in_parts_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(1).random((2, 3, 10))
    whole = significance.drawn_means(values, Resampling("bs", 25, seed=3))
    assert whole.shape == (25, 2, 3)
    monkeypatch.setattr(significance, "_CHUNK", 40)  # four draws at a time
    assert significance.drawn_means(values, Resampling("bs", 25, seed=3)) == pytest.approx(whole)


def test_a_bootstrap_leaves_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "99")
    rows = compared([GOOD], REF, ["bleu"], 5, seed=7)
    assert "seed:7" in rows[0][0].score.signature
    assert os.environ["SACREBLEU_SEED"] == "99"
    monkeypatch.delenv("SACREBLEU_SEED")
    compared([GOOD], REF, ["bleu"], 5)
    assert "SACREBLEU_SEED" not in os.environ


def test_tests_of_significance_refuse_numbers_out_of_range() -> None:
    for numbers in ((0, 1), (10_001, 1), (10, 0)):
        with pytest.raises(NmtkitError, match="requires 1 to 10,000 samples"):
            Resampling("bs", *numbers)


# ---- by length


def test_by_length_sorts_by_the_words_of_the_given_lines() -> None:
    hyps = ["a b c d", "a b c d e", "x", "a b c d"]
    refs = [["a b c d", "a b c d e", "y", "a b c d e f"]]
    sources = ["1 2", "1 2 3", "", "1 2 3 4 5 6 7"]
    buckets = metrics.by_length(hyps, refs, sources, edges=[2, 4, 6])
    sizes = [(bucket.low, bucket.high, bucket.count) for bucket in buckets]
    assert sizes == [(0, 2, 2), (3, 4, 1), (5, 6, 0), (7, None, 1)]
    expected = [
        score("bleu", hyps, refs) if hyps else None
        for hyps, refs in (
            (["a b c d", "x"], [["a b c d", "y"]]),
            (["a b c d e"], [["a b c d e"]]),
            ([], [[]]),
            (["a b c d"], [["a b c d e f"]]),
        )
    ]
    assert [bucket.score for bucket in buckets] == expected


def test_by_length_refuses_what_does_not_fit() -> None:
    with pytest.raises(DataError, match="hypotheses have 1 lines, but the source has 2"):
        metrics.by_length(["a"], [["a"]], ["a", "b"])


# ---- terms


@pytest.mark.parametrize(
    ("summary", "terms", "others"),
    [
        ("Amawaki scored.", ["Amawaki"], ["amawaki", "Amawaki scores"]),
        ("Amawaki's goal", ["Amawaki"], []),
        ("the Amawakis", [], ["Amawaki"]),
        ("won 2-1 at home", ["2-1"], ["1"]),
        ("won 12-1 at home", [], ["2-1"]),
        ("rose to $28.80.", ["28.80"], ["28", "8.80"]),
        ("46,861 spectators", ["46,861"], []),
        ("in 1911, 5 people", ["5"], []),
        ("at St. Mary's hall", ["St Mary"], ["Mary hall"]),
        ("", [], ["Amawaki"]),
    ],
)
def test_a_term_stands_as_whole_tokens(summary: str, terms: list[str], others: list[str]) -> None:
    for term in (*terms, *others):
        assert metrics.term_recall([summary], [[term]]).value == (100 if term in terms else 0), term


def test_term_recall_is_a_share_over_the_corpus() -> None:
    summaries, terms = ["rome and Oslo", "Bonn", "7 of 7"], [["Rome", "Oslo", "Rome"], [], ["7"]]
    recall = metrics.term_recall(summaries, terms)
    assert recall.name == "term recall"
    assert recall.value == pytest.approx(100 * 2 / 3)
    assert recall.signature.startswith("terms:3|examples:2|case:mixed|version:nmtkit-")
    assert metrics.term_recall(summaries, terms, lowercase=True).value == 100


def test_term_recall_refuses_what_cannot_be_found() -> None:
    for summaries, terms, message in (
        (["a"], [["a"], ["b"]], "1 summaries, but 2 lists"),
        (["a"], [[]], "nothing to search for"),
        (["a", "b"], [["a"], ["--"]], "example 2: the term '--' contains no letters or digits"),
    ):
        with pytest.raises(DataError, match=message):
            metrics.term_recall(summaries, terms)


# ---- alignments


def test_aer_by_hand() -> None:
    # Och and Ney 2003: |A| = 4, |S| = 3, sure links found 2, possible links found 3.
    gold = parse_alignments(["0-0 1-1 1?2", "0-1 0p0"], "gold.txt").pairs
    predicted = [frozenset({(0, 0), (1, 2), (2, 2)}), frozenset({(0, 1)})]
    error, precision, recall = metrics.aer(predicted, gold)
    assert error.name == "AER"
    assert error.value == pytest.approx(100 * (1 - (2 + 3) / (4 + 3)))
    assert precision.value == pytest.approx(100 * 3 / 4)
    assert recall.value == pytest.approx(100 * 2 / 3)
    assert error.signature.startswith("pairs:2|links:4|sure:3|possible:5|version:nmtkit-")


def test_aer_of_perfect_and_of_empty_alignments() -> None:
    gold = parse_alignments(["0-0 1?1", ""], "gold.txt").pairs
    perfect = metrics.aer([alignment.possible for alignment in gold], gold)
    assert [score.value for score in perfect] == [0, 100, 100]
    empty = metrics.aer([frozenset(), frozenset()], gold)
    assert [score.value for score in empty] == [100, 0, 0]
    with pytest.raises(DataError, match="undefined"):
        metrics.aer([frozenset()], gold[1:])
    with pytest.raises(DataError, match="1 sentence pairs have a predicted alignment, but 2"):
        metrics.aer([frozenset()], gold)


# ---- perplexity


def test_perplexity() -> None:
    assert metrics.perplexity(-3 * math.log(4), 3).value == pytest.approx(4)
    assert metrics.perplexity(0.0, 5).value == 1
    assert metrics.perplexity(-1e6, 1).value == math.inf
    with pytest.raises(DataError, match="no tokens"):
        metrics.perplexity(0.0, 0)
