"""A reference that is empty while another one of its line is not is missing: all metrics leave it out."""

import pytest
import sacrebleu

from nmtkit.metrics import Resampling, score_all
from nmtkit.metrics.metric import Options, Texts, score_texts
from nmtkit.metrics.quality import quality
from nmtkit.metrics.systems import notes
from tests.support.unspaced_pairs import unspaced_pairs

HYPS = ["a", "b c d e f", "x y"]
FIRST = ["a b c d", "b c d e f", "x z"]
SECOND = ["", " ", "x y"]
WITH_NONE = [FIRST, [None, None, "x y"]]


def values(hyps: list[str], refs: list[list[str]], name: str) -> float:
    return score_all(hyps, refs, [name])[0].value


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
def test_scores_are_those_of_sacrebleu_without_the_reference(name: str) -> None:
    metric = {"bleu": sacrebleu.BLEU, "chrf": sacrebleu.CHRF, "ter": sacrebleu.TER}[name](
        references=WITH_NONE
    )
    (score,) = score_all(HYPS, [FIRST, SECOND], [name])
    assert score.value == metric.corpus_score(HYPS, None).score
    assert score.signature.startswith("nrefs:var|")


def test_the_brevity_penalty_of_bleu_knows_no_reference_of_length_0() -> None:
    (score,) = score_all(HYPS, [FIRST, SECOND], ["bleu"])
    assert (score.hyp_length, score.ref_length) == (8, 11)  # type: ignore[attr-defined]  # of BLEU's scores only


@pytest.mark.parametrize("name", ["gleu", "rouge1", "rougeLsum", "cider"])
def test_an_example_without_its_second_reference_scores_as_with_one(name: str) -> None:
    """Each line by itself among lines that have words of their own, so that idf is the same."""
    whole = values(HYPS, [FIRST, SECOND], name)
    if name == "cider":
        twice = values(HYPS, [FIRST, [FIRST[0], FIRST[1], "x y"]], name)
        assert whole == pytest.approx(twice)
    else:
        parts = [values([HYPS[0]], [[FIRST[0]]], name), values([HYPS[1]], [[FIRST[1]]], name)]
        parts.append(values([HYPS[2]], [[FIRST[2]], [SECOND[2]]], name))
        assert whole == pytest.approx(sum(parts) / 3)
    (score,) = score_all(HYPS, [FIRST, SECOND], [name])
    assert "nrefs:var" in score.signature


@pytest.mark.parametrize("kind", ["bs", "ar"])
@pytest.mark.parametrize("name", ["bleu", "ter", "rougeL", "cider", "gleu"])
def test_tests_of_significance_leave_it_out_too(name: str, kind: str) -> None:
    systems = [Texts(hyps, [FIRST, SECOND]) for hyps in (HYPS, ["a b", "b c", "x"])]
    rows = score_texts(systems, [name], resampling=Resampling(kind, 20))  # type: ignore[arg-type]  # kind is a str here
    for row, texts in zip(rows, systems, strict=True):
        assert row[0].score.value == pytest.approx(values(list(texts.hyps), [FIRST, SECOND], name))


def test_a_note_says_how_many_and_where() -> None:
    (note,) = notes(["bleu"], [FIRST, SECOND], Options())
    assert note.startswith("2 of 6 references are empty (first on line 1)")
    assert notes(["bleu"], [FIRST, FIRST], Options()) == []
    assert notes(["bleu"], [["a", ""]], Options()) == [], (
        "the only reference of a line is not missing"
    )


def test_an_empty_line_of_all_references_is_an_empty_reference() -> None:
    (score,) = score_all(["a b", ""], [["a b", ""], ["a b", ""]], ["bleu"])
    assert "nrefs:2" in score.signature
    assert score.value == score_all(["a b", ""], [["a b", ""]], ["bleu"])[0].value


def test_the_length_of_summaries_is_compared_with_the_references_that_exist() -> None:
    report = quality(["a b", "c d"], ["a b", "c d"], [["a b", "c d e f"], ["", "c d"]])
    assert report.length_to_reference == pytest.approx(100 * 4 / (2 + 3))


# ---- languages without spaces

CHINESE, JAPANESE, THAI = (
    [pair[1] for pair in unspaced_pairs(language)[:50]] for language in ("zh", "ja", "th")
)


@pytest.mark.parametrize(
    ("lines", "tokenize", "advice"),
    [
        (CHINESE, "13a", "--tokenize zh or char"),
        (CHINESE, "intl", "--tokenize zh or char"),
        (JAPANESE, "13a", "char"),
        (JAPANESE, "zh", "char"),
        (THAI, "13a", "--tokenize char"),
        (THAI, "zh", "--tokenize char"),
    ],
)
@pytest.mark.parametrize("metric", ["bleu", "bleu2", "gleu"])
def test_a_tokenizer_that_cannot_see_the_words_is_named(
    lines: list[str], tokenize: str, advice: str, metric: str
) -> None:
    (note,) = notes([metric, "chrf"], [lines], Options(tokenize=tokenize))
    assert f"tokenizer {tokenize} treats each line as one" in note
    assert advice in note
    assert score_all(lines, [lines], [metric], Options(tokenize="char"))[0].value == pytest.approx(
        100
    )


@pytest.mark.parametrize("metric", ["ter", "cider"])
def test_metrics_of_words_between_spaces_say_so_whatever_the_tokenizer(metric: str) -> None:
    (note,) = notes([metric], [CHINESE], Options(tokenize="char"))
    assert "treats the text between two spaces as one word" in note


@pytest.mark.parametrize(
    ("lines", "tokenize"),
    [
        (CHINESE, "zh"),
        (CHINESE, "char"),
        (THAI, "char"),
        (["我 读 书 。", "他们 喜欢 猫 。"], "13a"),
        (["나는 책을 읽는다"], "13a"),
        (["the cat sat on the mat"], "13a"),
    ],
)
def test_nothing_is_noted_where_the_tokenizer_sees_the_words(
    lines: list[str], tokenize: str
) -> None:
    assert notes(["bleu", "chrf"], [lines], Options(tokenize=tokenize)) == []


def test_lengths_of_text_without_spaces_are_in_words() -> None:
    from nmtkit.metrics import by_length

    buckets = by_length(CHINESE, [CHINESE], CHINESE, edges=(1,))
    assert [bucket.count for bucket in buckets] == [0, 50]


def test_minimum_bayes_risk_by_bleu_sees_characters() -> None:
    from nmtkit.metrics.mbr import sentence_scores

    scores = sentence_scores(["我们今天读书。", "我们今天读米饭。", "猫"], "bleu")
    assert scores[0, 1] > 10 > scores[0, 2]
