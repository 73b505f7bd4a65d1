"""Our figures beside those that were published for the same outputs, made by other programs.

What is left between them is measured in `recipes/scores.md`.
"""

import numpy as np
import numpy.typing as npt
import pytest
from rouge_programs import (
    DATA,
    REALSUMM_TYPES,
    LikeRouge155,
    lines,
    realsumm,
    rouge,
    tensorflow_rouge_l,
    xsum,
    xsum_official,
)
from rouge_score.tokenizers import DefaultTokenizer

from nmtkit import metrics

published = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"no folder {DATA}; name the folder that holds metric-outputs in NMTKIT_DATA"
)


def _official() -> list[dict[str, str]]:
    header, *rows = (DATA / "wmt17-ende" / "official-scores.tsv").read_text(encoding="utf-8").splitlines()
    return [dict(zip(header.split("\t"), row.split("\t"), strict=True)) for row in rows]


def _wmt17(system: str) -> list[str]:
    return lines(f"wmt17-ende/{system}.txt.gz")


@published
def test_bleu_of_wmt17_is_that_of_mteval() -> None:
    refs = [_wmt17("reference.de")]
    official = _official()
    assert len(official) == 9
    for row in official:
        found = metrics.bleu(_wmt17(row["system"]), refs).value
        assert found == pytest.approx(float(row["bleu_mteval-v13a"]), abs=0.00501), row["system"]
    best = official[0]
    found = metrics.bleu(_wmt17(best["system"]), refs, tokenize="intl").value
    assert found == pytest.approx(float(best["bleu_mteval-v14_intl"]), abs=0.00501)


@published
def test_chrf_of_wmt17_is_that_of_the_official_script() -> None:
    (row,) = [row for row in _official() if row["chrF_official"]]
    hyps, refs = _wmt17(row["system"]), [_wmt17("reference.de")]
    assert metrics.chrf(hyps, refs).value == pytest.approx(float(row["chrF_official"]), abs=5.01e-5)
    # sacrebleu leaves out orders that a sentence is too short for; the official script smooths them: 0.0015 apart.
    assert metrics.chrf(hyps, refs, word_order=2).value == pytest.approx(float(row["chrF++_official"]), abs=0.002)


@published
@pytest.mark.slow
def test_ter_of_wmt17_is_that_of_tercom() -> None:
    refs = [_wmt17("reference.de")]
    for row in _official():
        found = metrics.ter(_wmt17(row["system"]), refs).value / 100
        assert found == pytest.approx(float(row["ter_tercom7.25"]), abs=0.000501), row["system"]


@published
@pytest.mark.slow
def test_significance_of_wmt17_is_that_of_moses() -> None:
    official = _official()
    rows = metrics.compare(
        [(row["system"], _wmt17(row["system"])) for row in official], [_wmt17("reference.de")], ["bleu"]
    )
    assert rows[0][0].p_value is None
    for row, (cell,) in zip(official[1:], rows[1:], strict=True):
        p_moses = float(row["p_bleu_moses_bootstrap2000_vs_LIUM"])
        assert cell.p_value is not None
        assert (cell.p_value < 0.05) == (p_moses < 0.05), row["system"]
        # The draws differ, and small differences leave p wide open.
        assert cell.p_value == pytest.approx(p_moses, abs=0.015 if p_moses < 0.05 else 0.15), row["system"]


def _multeval(figure: str) -> tuple[list[str], list[list[str]], float]:
    gold = float((DATA / "multeval" / f"hyps.baseline.opt0.{figure}.gold").read_text())
    refs = [lines("multeval/refs.test2010.lc.tok.en.0.gz")]
    return lines("multeval/hyps.lc.tok.en.baseline.opt0.gz"), refs, gold


@published
def test_bleu_is_that_of_multeval() -> None:
    hyps, refs, gold = _multeval("bleu")
    assert metrics.bleu(hyps, refs, tokenize="none").value == pytest.approx(gold, abs=0.00501)


@published
@pytest.mark.slow
def test_ter_is_that_of_multeval_but_for_one_edit() -> None:
    hyps, refs, gold = _multeval("ter")
    assert metrics.ter(hyps, refs).value / 100 == pytest.approx(gold, abs=2e-5)  # of 62,774 words one is 1.6e-5


@published
def test_bleu_and_rouge_of_tensorflow_nmt() -> None:
    hyps = lines("tf-nmt/deen_output.gz")
    refs = [[line.replace("@@ ", "") for line in lines("tf-nmt/deen_ref_bpe.gz")]]
    assert metrics.bleu(hyps, refs, tokenize="none").value == pytest.approx(22.5855, abs=0.001)
    # Its script counts one word in each of the three empty lines, and has a weight of its own in ROUGE-L.
    assert hyps.count("") == 3
    filled = [line or "EMPTY" for line in hyps]
    assert metrics.bleu(filled, refs, tokenize="none").value == pytest.approx(22.5855084573, abs=1e-9)
    assert tensorflow_rouge_l() == pytest.approx(50.8429782599, abs=1e-9)


@published
@pytest.mark.slow
@pytest.mark.parametrize("system", ["lead", "ptgen"])
def test_rouge_of_xsum_with_the_stems_of_rouge_155(system: str) -> None:
    # Precision, recall and F1 of ROUGE-1, -2, -3 and -L: all twelve figures to the last digit given, or one beside it.
    assert xsum(system, LikeRouge155()) == pytest.approx(xsum_official(system), abs=0.0151)


@published
def test_rouge_of_single_summaries_is_that_of_rouge_155() -> None:
    pairs = realsumm()
    assert len(pairs.hyps) == 1400
    assert pairs.same_text.sum() == 1254
    # In another tokenization a text has other words; run-together sentences were scored one by one.
    same, split = pairs.same_text, pairs.same_text & pairs.own_sentences

    def equal(f1: npt.NDArray[np.float64]) -> list[float]:
        hits = np.abs(f1 - pairs.official) < 0.01
        return [*hits[same, :2].mean(axis=0), hits[split, 2].mean()]

    google, irregular = (
        rouge(tokenizer, pairs.hyps, pairs.refs, REALSUMM_TYPES)[:, :, 2]
        for tokenizer in (DefaultTokenizer(use_stemmer=True), LikeRouge155())
    )
    assert equal(google) == pytest.approx([0.794, 0.959, 0.785], abs=0.001)
    assert equal(irregular) == pytest.approx([0.985, 0.998, 0.967], abs=0.001)

    ours = metrics.rouge(pairs.hyps, [pairs.refs], types=REALSUMM_TYPES, sentences="tags")
    assert [score.value for score in ours] == pytest.approx(list(google.mean(axis=0)), abs=1e-9)
