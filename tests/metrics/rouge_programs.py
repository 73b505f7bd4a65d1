"""The difference between ROUGE programs, as recipes/scores.md tells it.

ROUGE-1.5.5, the Perl program of Lin 2004 that most published figures come from, differs from rouge-score in its stems
alone, as far as these data show: it takes an irregular form to its base by WordNet's lists of exceptions ("were" and
"been" to "be"), and has the Porter stemmer in its first form of 1980, where rouge-score has NLTK's extended one.
`LikeRouge155` does the same with the commonest of those irregular forms, typed in here.
"""

import gzip
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from nltk.stem.porter import PorterStemmer
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import DefaultTokenizer, Tokenizer

from nmtkit import metrics

DATA = Path(os.environ.get("NMTKIT_DATA", Path(__file__).parents[3] / "shared" / "data")) / "metric-outputs"

# The irregular forms of more than three letters that occur at least 20 times in the texts under DATA.
IRREGULAR = """
be: been were; say: said; find: found; make: made; medium: media; tell: told; woman: women; leave: left leaving;
child: children; give: given gave; take: taken took; hold: held; come: came; big: biggest bigger; shoot: shot;
see: seen; lose: lost; hear: heard; little: least less; good: best better; know: known knew; fall: fell fallen;
pay: paid; bear: born; go: went gone goes; late: later latest; spend: spent; send: sent; strike: struck; grind:
ground; sell: sold; rise: rose risen; early: earlier; catch: caught; break: broke broken; fight: fought; become:
became becoming; begin: began begun; far: further; think: thought; do: does done; datum: data; build: built;
steal: stolen stole; bring: brought; life: lives; buy: bought; bad: worst; beat: beaten; show: shown; feel:
felt; keep: kept; mean: meant; draw: drew; bacterium: bacteria; write: written wrote; choose: chosen; withdraw:
withdrawn; drive: driven drove; stand: stood; speak: spoken spoke; hide: hidden; grow: grew; throw: thrown;
thief: thieves; flee: fled; wolf: wolves; deal: dealt; freeze: frozen; sweep: swept; stick: stuck; lie: lying;
foot: feet; bind: bound; fly: flew flown; seek: sought; die: dying; tooth: teeth; leaf: leaves; wind: wound;
swear: sworn; busy: busiest
"""
BASES = {
    form: base.strip() for base, forms in (entry.split(":") for entry in IRREGULAR.split(";")) for form in forms.split()
}
"""The base of each irregular form."""


class LikeRouge155(Tokenizer):  # type: ignore[misc]  # rouge-score has no types
    """The words of rouge-score and the stems of ROUGE-1.5.5."""

    def __init__(self) -> None:
        self._words = DefaultTokenizer(use_stemmer=False)
        self._porter = PorterStemmer(mode=PorterStemmer.ORIGINAL_ALGORITHM)
        self._stems = dict(BASES)

    def tokenize(self, text: str) -> list[str]:
        return [word if len(word) <= 3 else self._stem(word) for word in self._words.tokenize(text)]

    def _stem(self, word: str) -> str:
        if word not in self._stems:
            self._stems[word] = self._porter.stem(word)
        return self._stems[word]


class WhiteSpace(Tokenizer):  # type: ignore[misc]  # rouge-score has no types
    """Words are what white space separates."""

    def tokenize(self, text: str) -> list[str]:
        return text.split()


def lines(name: str) -> list[str]:
    """A text file under DATA."""
    with gzip.open(DATA / name, "rt", encoding="utf-8", newline="\n") as stream:
        return [line.rstrip("\n") for line in stream]


def rouge(
    tokenizer: Tokenizer, hyps: Sequence[str], refs: Sequence[str], types: Sequence[str]
) -> npt.NDArray[np.float64]:
    """Precision, recall and F1 (last axis), 0 to 100, of every example (axis 0) and type (axis 1).

    Sentences are cut at tags, where there are any.
    """
    scorer = RougeScorer(list(types), tokenizer=tokenizer)
    found = (scorer.score(tagged(ref), tagged(hyp)) for hyp, ref in zip(hyps, refs, strict=True))
    return 100 * np.array([[scores[name] for name in types] for scores in found])


def tagged(text: str) -> str:
    """The sentences between tags, one on a line."""
    return "\n".join(metrics.split_sentences(text, "tags"))


# ---- xsum-test: figures of ROUGE-1.5.5 over 11,334 one-sentence summaries


def xsum_official(system: str) -> npt.NDArray[np.float64]:
    """Precision, recall and F1 (last axis) of ROUGE-1, 2, 3 and L."""
    text = (DATA / "xsum-test" / f"{system}-test-output.rouge").read_text()
    by_name = {line.split()[0]: line.split(": ")[1].split("/")[:4] for line in text.splitlines()}
    return np.array([by_name[name] for name in ("precision", "recall", "f-score")], dtype=float).T


def xsum(system: str, tokenizer: Tokenizer) -> npt.NDArray[np.float64]:
    """The same by another program."""
    hyps, refs = (lines(f"xsum-test/{name}.txt.gz") for name in (f"{system}-test-output", "gold-test-sentences"))
    return rouge(tokenizer, hyps, refs, ("rouge1", "rouge2", "rouge3", "rougeL")).mean(axis=0)


# ---- realsumm-abs: ROUGE-1.5.5 of 100 documents by 14 systems, each by itself

REALSUMM_TYPES = ("rouge1", "rouge2", "rougeLsum")


@dataclass(frozen=True)
class Pairs:
    """Summaries and references with their published figures, and which of them can be compared with ours."""

    hyps: list[str]
    refs: list[str]
    official: npt.NDArray[np.float64]
    """F1 of REALSUMM_TYPES, (pairs, types)."""
    same_text: npt.NDArray[np.bool_]
    """Whether the published precision and recall can be those of these texts."""
    own_sentences: npt.NDArray[np.bool_]
    """Whether every sentence has tags of its own."""


def realsumm() -> Pairs:
    """All 1,400 pairs.

    A published precision times the number of words must be a whole number of hits, and so must a recall. Where they
    are not, the text that was scored is not the one in the file. Some references have all sentences in one pair of
    tags, with no space between them, and so have all outputs of ptr_generator.
    """
    hyps, refs, official, same_text, own_sentences = [], [], [], [], []
    words = DefaultTokenizer(use_stemmer=False).tokenize
    for line in lines("realsumm-abs/scores.jsonl.gz"):
        document = json.loads(line)
        for name, system in document["systems"].items():
            hyp, ref, scores = system["summary"], document["reference"], system["scores"]
            hits = scores["rouge_1_precision"] * len(words(tagged(hyp)))
            hits_too = scores["rouge_1_recall"] * len(words(tagged(ref)))
            whole = round(hits)
            same_text.append(max(abs(hits - whole), abs(hits_too - whole)) < 0.002)
            own_sentences.append(not re.search(r" \.\w", ref) and not name.startswith("ptr_generator"))
            hyps.append(hyp)
            refs.append(ref)
            official.append([scores[f"rouge_{kind}_f_score"] for kind in "12l"])
    return Pairs(hyps, refs, 100 * np.array(official), np.array(same_text), np.array(own_sentences))


# ---- tf-nmt: a ROUGE-L of its own


def tensorflow_rouge_l() -> float:
    """ROUGE-L as tensorflow/nmt computes it: words by white space, and F with beta = precision / recall.

    Lin 2004, equation 4, the beta of which weighs recall; where it is the quotient, F is nearer to recall the better
    precision is.
    """
    refs = [line.replace("@@ ", "") for line in lines("tf-nmt/deen_ref_bpe.gz")]
    found = rouge(WhiteSpace(), lines("tf-nmt/deen_output.gz"), refs, ["rougeL"])[:, 0] / 100
    precision, recall = found[:, 0], found[:, 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        squared = (precision / recall) ** 2
        scores = (1 + squared) * recall * precision / (recall + squared * precision)
    return 100 * float(np.nan_to_num(scores).mean())
