"""ROUGE of languages that are not written in Latin letters, and that of Latin text as rouge-score gives it."""

import pytest
from rouge_score.rouge_scorer import RougeScorer

from nmtkit.metrics import Options, score_all
from nmtkit.metrics.metric import text_metrics
from nmtkit.metrics.quality import quality, term_recall

TEXTS = {
    "Greek": ("ο γέρος διαβάζει ένα βιβλίο", "ο γέρος διαβάζει το βιβλίο", 4 / 5),
    "Russian": ("старик читает книгу", "Старик читает газету.", 2 / 3),
    "Hindi": ("बूढ़ा किताब पढ़ता है", "बूढ़ा अख़बार पढ़ता है", 3 / 4),
    "Korean": ("노인은 책을 읽는다", "노인은 신문을 읽는다", 2 / 3),
    "Chinese": ("老人读书", "老人读报", 3 / 4),
    "Thai": ("กขคง", "กขคจ", 3 / 4),
}


@pytest.mark.parametrize(("hyp", "ref", "share"), TEXTS.values(), ids=TEXTS)
def test_rouge_of_other_scripts_compares_their_words(hyp: str, ref: str, share: float) -> None:
    for score in score_all([hyp], [[ref]], ["rouge1", "rougeL", "rougeLsum"]):
        assert score.value == pytest.approx(100 * share)
        assert "|tok:unicode|" in score.signature
    assert score_all([hyp], [[ref]], ["rouge1"], Options(words="a-z0-9"))[0].value == 0
    assert "tok:unicode" in text_metrics(["rouge1"])[0].note([[ref]], Options())


def test_rouge_of_latin_text_is_that_of_rouge_score_to_the_last_digit() -> None:
    hyp, ref = (
        "Le garçon a mangé 3 pommes rouges et des gâteaux",
        "Le garçon mange trois pommes, et des gâteaux!",
    )
    expected = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True).score(ref, hyp)
    for score in score_all([hyp], [[ref]], [*expected]):
        name = f"rouge{score.name.removeprefix('ROUGE-')}"
        assert score.value == 100 * expected[name].fmeasure
        assert "|tok:a-z0-9|" in score.signature


def test_unicode_words_can_be_asked_for() -> None:
    options = Options(words="unicode")
    (score,) = score_all(["schöne Gärten"], [["schone Garten"]], ["rouge1"], options)
    assert score.value == 0
    (plain,) = score_all(["the cats were running"], [["the cat ran"]], ["rouge1"], options)
    assert (
        plain.value == score_all(["the cats were running"], [["the cat ran"]], ["rouge1"])[0].value
    )


def test_sentences_of_chinese_end_without_a_space() -> None:
    (score,) = score_all(["他读书。猫睡觉。"], [["猫睡觉。他读书。"]], ["rougeLsum"])
    assert score.value == pytest.approx(100)


def test_the_report_on_quality_and_terms_know_words_without_spaces() -> None:
    report = quality(["老人读书"], ["老人在家读书"])
    assert report.words == 4
    assert report.novel[0] == 0
    assert term_recall(["老人在北京读书"], [["北京", "上海"]]).value == 50
    assert term_recall(["von 3.5 auf 4"], [["3.5", "5"]]).value == 50
