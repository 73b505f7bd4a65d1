"""Noisy-channel reranking: the terms, the choice and the tuned weights, worked out from the formula."""

from dataclasses import replace

import pytest

from nmtkit.inference.reranking import (
    Candidate,
    ChannelWeights,
    rerank,
    score_candidates,
    tune_weights,
)
from nmtkit.inference.result import EMPTY
from nmtkit.inference.translator import Translator
from nmtkit.metrics import Options
from tests.inference.untrained import KNOWN, learned, untrained
from tests.support.prompted_decoders import RecurrentModel


def test_the_terms_are_those_of_each_model_alone() -> None:
    """By each model's own rescoring of one pair; the vocabularies differ, and so do the tokens of a text."""
    direct, channel = (
        untrained("rnnsearch", learned(), 4.0, beam_size=4),
        untrained("transformer", learned(kind="char")),
    )
    words = learned([*KNOWN, "a cat"])
    lm = Translator(RecurrentModel(len(words.tgt.vocabulary)), words, direct.config)
    sources = [KNOWN[0], "", "the dog"]
    found = direct.search(sources, n_best=4)
    scored = score_candidates(sources, found, channel, lm)
    weights = ChannelWeights(channel=0.3, lm=0.2)
    assert scored[1] == [Candidate("", 0.0)]
    for source, several, candidates in zip(sources, found, scored, strict=True):
        for one, candidate in zip(several, candidates, strict=True) if source else ():
            t, s = len(one.token_log_probs), len(channel.tokenizers.tgt.encode(source)) + 1
            (back,), (said,) = channel.rescore([one.text], [source]), lm.rescore([""], [one.text])
            expected = one.log_prob / t + (0.3 * back.log_prob + 0.2 * said.log_prob) / s
            assert candidate.score(weights) == pytest.approx(expected, abs=1e-9)
    without = score_candidates(sources, found, channel, None)
    assert without == [[replace(one, lm=0.0) for one in several] for several in scored]
    empty = [[replace(EMPTY, log_prob=-2.0, token_log_probs=[-2.0]), found[0][0]], [EMPTY]]
    assert [[one.text for one in several] for several in score_candidates([KNOWN[0], ""], empty, channel, lm)] == [
        [found[0][0].text], [""],
    ]  # fmt: skip


def test_the_smallest_best_weights_are_tuned() -> None:
    """The right text needs a channel weight above 1/2 and, in the other line, a language model's above 1/4."""
    lines = [
        [Candidate("a b c d e", -1.0, -3.0, -1.0), Candidate("a b c d f", -2.0, -1.0, -1.0)],
        [Candidate("g h i j k", -1.0, -1.0, -5.0), Candidate("g h i j l", -2.0, -1.0, -1.0)],
        [Candidate("m n o p q", -1.0, -1.0, -1.0), Candidate("m n o p r", -1.5, -1.1, -0.9)],
    ]
    best, score, alone = tune_weights(lines, ["a b c d f", "g h i j l", "m n o p q"], "bleu")
    assert (best, score) == (ChannelWeights(channel=0.7, lm=0.3), pytest.approx(100.0))
    assert alone < 100
    assert [rerank(several, best)[0].text[-1] for several in lines] == ["f", "l", "q"]
    assert [one.text[-1] for one in rerank(lines[0], ChannelWeights(channel=0.5, lm=0.0))] == [
        "e",
        "f",
    ], "as they came"
    assert tune_weights(lines, ["a b c d e", "g h i j k", "m n o p q"], "ter")[0] == ChannelWeights(
        channel=0.0, lm=0.0
    )
    upper = ["A B C D E", "G H I J K", "M N O P Q"]
    best, score, alone = tune_weights(lines, upper, "bleu", Options(lowercase=True))
    assert (best, score, alone) == (
        ChannelWeights(channel=0.0, lm=0.0),
        pytest.approx(100.0),
        score,
    )
