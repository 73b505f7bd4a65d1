"""What every metric shares: a figure with its signature, its uncertainty, and the options of comparing texts."""

from collections.abc import Sequence
from dataclasses import dataclass

from nmtkit.errors import DataError


@dataclass(frozen=True)
class Score:
    """One figure and how it was made.

    Attributes:
        name: the usual name of the metric, such as "BLEU" or "ROUGE-L".
        value: 0 to 100, except where the metric has no upper end (TER, perplexity).
        signature: `key:value` pairs joined by "|", the version of the program last.
    """

    name: str
    value: float
    signature: str


@dataclass(frozen=True)
class Comparison:
    """The score of one system among several, with what bootstrap resampling says about it.

    Attributes:
        score: the score on the whole test set; its signature also names the number of resamples and the seed.
        mean: mean of the score over the resamples.
        interval: half the width of the 95% confidence interval, in points.
        p_value: chance of so large a difference from the baseline if there were none; None for the baseline.
    """

    score: Score
    mean: float
    interval: float
    p_value: float | None


@dataclass(frozen=True)
class Options:
    """How texts are compared. Defaults are those of sacrebleu, and of the summarization papers for ROUGE.

    Attributes:
        tokenize: tokenizer of BLEU, one of `TOKENIZERS`; "none" for text that is tokenized already.
        lowercase: whether BLEU and chrF ignore case. TER (as tercom) and ROUGE always ignore it.
        stem: whether ROUGE compares Porter stems. The stemmer is made for English.
        sentences: how ROUGE-Lsum finds sentences, one of `SENTENCE_RULES`; see `split_sentences`.
    """

    tokenize: str = "13a"
    lowercase: bool = False
    stem: bool = True
    sentences: str = "auto"


def check_lines(hyps: Sequence[str], refs: Sequence[Sequence[str]]) -> None:
    """Refuses what the libraries would cut to the shorter side in silence, or fail on without a reason.

    Raises:
        DataError: no lines, no references, or different numbers of lines.
    """
    if isinstance(hyps, str) or any(isinstance(ref, str) for ref in (refs, *refs)):
        raise DataError("one text was given where a list of texts is wanted: hyps is a list, and refs a list of lists")
    if not refs:
        raise DataError("there is no reference to score against")
    if not hyps:
        raise DataError("there are no hypotheses to score")
    for number, ref in enumerate(refs, start=1):
        if len(ref) != len(hyps):
            raise DataError(f"the hypotheses have {len(hyps)} lines, but reference {number} has {len(ref)}")
