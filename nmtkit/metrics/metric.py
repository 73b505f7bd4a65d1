"""What a metric is, the one table of all metrics, and scoring an output by several of them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar, Literal, Self

from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.core.registry import Registry, suggest_names

METRICS: Registry["Metric"] = Registry("metric")

MOST_SAMPLES = 10_000
"""How often a test may draw or shuffle: sacrebleu holds all draws at once."""


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

    @property
    def parts(self) -> str:
        """What the figure is made of, as lines show it behind the figure; empty where it has no parts."""
        return ""


@dataclass(frozen=True)
class Comparison:
    """The score of one system on the whole test set, with what a test of significance says about it, if there was one.

    Attributes:
        score: its signature also names the number of draws and the seed.
        mean: of the score over the draws of a bootstrap; None without one.
        interval: half the width of the 95% confidence interval, in points; None without a bootstrap.
        p_value: chance of so large a difference from the baseline if there were none; None for the baseline.
    """

    score: Score
    mean: float | None = None
    interval: float | None = None
    p_value: float | None = None

    def line(self, width: int = 1) -> str:
        """The score on one line, to be pasted: `NAME|SIGNATURE = VALUE (μ = MEAN ± INTERVAL) PARTS`, as sacrebleu does.

        Args:
            width: digits after the point.
        """
        drawn = "" if not self.mean else f" (μ = {self.mean:.{width}f} ± {self.interval:.{width}f})"
        parts = f" {self.score.parts}" if self.score.parts else ""
        return f"{self.score.name}|{self.score.signature} = {self.score.value:.{width}f}{drawn}{parts}"


@dataclass(frozen=True)
class Options:
    """How texts are compared. Defaults are those of sacrebleu, and of the summarization papers for ROUGE.

    Attributes:
        tokenize: tokenizer of BLEU, one of `TOKENIZERS` or `SPM_TOKENIZERS`; "none" for text that is tokenized already.
        lowercase: whether BLEU and chrF ignore case. TER (as tercom) and ROUGE always ignore it.
        stem: whether ROUGE compares Porter stems. The stemmer is made for English.
        sentences: how ROUGE-Lsum finds sentences, one of `SENTENCE_RULES`; see `split_sentences`.
    """

    tokenize: str = "13a"
    lowercase: bool = False
    stem: bool = True
    sentences: str = "auto"


@dataclass(frozen=True)
class Resampling:
    """A test of significance by random draws: how many, from 1 to `MOST_SAMPLES`, and from which seed.

    sacrebleu takes a seed of 0 for "not fixed", so it is at least 1.

    Raises:
        NmtkitError: a number is out of range.
    """

    n_samples: int = 1000
    seed: int = 12345

    kind: ClassVar[Literal["bs", "ar"]]
    """What sacrebleu and signatures call it."""
    title: ClassVar[str]
    """What people call it."""

    def __post_init__(self) -> None:
        if not 1 <= self.n_samples <= MOST_SAMPLES or self.seed < 1:
            raise NmtkitError(
                f"samples and seed of the {self.title} must be at least 1, the samples at most {MOST_SAMPLES:,}; they "
                f"are {self.n_samples} and {self.seed}"
            )

    def __str__(self) -> str:
        """As signatures tell it."""
        return f"{self.kind}:{self.n_samples}|seed:{self.seed}"


class Bootstrap(Resampling):
    """Paired bootstrap resampling: the test set is drawn anew with replacement (Koehn 2004)."""

    kind = "bs"
    title = "paired bootstrap"


@dataclass(frozen=True)
class Randomization(Resampling):
    """Paired approximate randomization: two systems swap outputs at random (Riezler and Maxwell 2005)."""

    n_samples: int = 10_000

    kind = "ar"
    title = "approximate randomization"


@dataclass(frozen=True)
class Texts:
    """What one system wrote, and what it is compared with.

    Refused is what the libraries would cut to the shorter side in silence, or fail on without a reason.

    Attributes:
        hyps: one text per example.
        refs: `refs[r][i]` is reference `r` of example `i`.
        sources: one text per example, for metrics that need them.

    Raises:
        DataError: no lines, no references, or different numbers of lines.
    """

    hyps: Sequence[str]
    refs: Sequence[Sequence[str]]
    sources: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.hyps, str) or any(isinstance(ref, str) for ref in (self.refs, *self.refs)):
            raise DataError(
                "one text was given where a list of texts is wanted: hyps is a list, and refs a list of lists"
            )
        if not self.refs:
            raise DataError("there is no reference to score against")
        if not self.hyps:
            raise DataError("there are no hypotheses to score")
        others = [(f"reference {number}", ref) for number, ref in enumerate(self.refs, start=1)]
        others += [] if self.sources is None else [("the source", self.sources)]
        for name, lines in others:
            if len(lines) != len(self.hyps):
                raise DataError(f"the hypotheses have {len(self.hyps)} lines, but {name} has {len(lines)}")


@dataclass(frozen=True)
class Metric:
    """One metric: all that the rest of the house knows of it.

    A new metric is one file in this folder, which registers its `Metric` in `METRICS`. One that compares texts is an
    `ExampleMetric`, unless a library does its bootstrap; `score`, validation, `training.best_metric` and the test after
    training then know its name.

    Attributes:
        name: what options and recipes call it.
        title: what tables and figures call it, and its `Score.name`.
        higher_is_better: which of two scores is the better one.
        needs: what it is worked out from.
        family: a name that stands for all metrics of its kind; empty if there is none.
        package: the module that works it out, where nmtkit does not bring it.
        extra: the extra of nmtkit that brings it.
    """

    name: str
    title: str
    higher_is_better: bool = True
    needs: Literal["texts", "texts and sources", "alignments", "terms", "probabilities"] = "texts"
    family: str = ""
    package: str = ""
    extra: str = ""

    @property
    def installed(self) -> bool:
        """Whether this Python has what works it out."""
        return not self.package or find_spec(self.package) is not None


@dataclass(frozen=True)
class TextMetric(Metric, ABC):
    """A metric that compares what a system wrote with references."""

    @classmethod
    @abstractmethod
    def measure(
        cls, kin: Sequence[Self], systems: Sequence[Texts], options: Options, draws: Resampling | None
    ) -> list[list[Comparison]]:
        """Scores several systems by several metrics of one class, which may share their work.

        With `draws` all systems are scored on the same ones; the first system is the baseline. All have the same
        references.

        Returns:
            `[metric][system]`.
        """

    def score(self, texts: Texts, options: Options) -> Score:
        """The score of one system by this metric alone."""
        return self.measure([self], [texts], options, None)[0][0].score

    def note(self, refs: Sequence[Sequence[str]]) -> str:
        """What readers of its figure should know of these references; empty if there is nothing."""
        return ""


def text_metrics() -> dict[str, TextMetric]:
    """The metrics that compare texts, by name."""
    found = {name: METRICS.get(name) for name in METRICS.names()}
    return {name: metric for name, metric in found.items() if isinstance(metric, TextMetric)}


def metric_names(given: Iterable[str]) -> list[str]:
    """Resolves the names a user may give: "rouge" stands for all four, and a repeated name counts once.

    Raises:
        NmtkitError: a name is unknown or of a metric that does not compare texts, or none is given, or a metric's
            package is not installed.
    """
    known = text_metrics()
    kinds = dict.fromkeys(metric.family for metric in known.values() if metric.family)
    families = {kind: [name for name, metric in known.items() if metric.family == kind] for kind in kinds}
    names: list[str] = []
    for name in given:
        if name not in known and name not in families:
            valid = suggest_names(name, (*known, *families))
            if name in METRICS.names():
                raise NmtkitError(f"metric {name!r} compares no texts, it needs {METRICS.get(name).needs}: {valid}")
            raise NmtkitError(f"unknown metric {name!r}: {valid}")
        names += [member for member in families.get(name, [name]) if member not in names]
    for metric in map(known.__getitem__, names):
        if not metric.installed:
            raise NmtkitError(f"metric {metric.name!r} is not installed; get it: pip install 'nmtkit[{metric.extra}]'")
    if not names:
        raise NmtkitError("no metric is named; give at least one, such as bleu")
    return names


def score_texts(
    systems: Sequence[Texts], metrics: Iterable[str], options: Options | None, draws: Resampling | None
) -> list[list[Comparison]]:
    """Scores several systems with every metric named: `[system][metric]`; see `score_all` and `compare`."""
    names, known = metric_names(metrics), text_metrics()
    classes: dict[type[TextMetric], list[TextMetric]] = {}
    for name in names:
        metric = known[name]
        if metric.needs == "texts and sources" and any(texts.sources is None for texts in systems):
            raise NmtkitError(f"metric {name!r} needs the texts that were translated; give them as --source")
        classes.setdefault(type(metric), []).append(metric)
    found: dict[str, list[Comparison]] = {}
    for one, kin in classes.items():
        rows = one.measure(kin, systems, options or Options(), draws)
        found.update(zip((metric.name for metric in kin), rows, strict=True))
    return [[found[name][number] for name in names] for number in range(len(systems))]


def score_all(
    hyps: Sequence[str],
    refs: Sequence[Sequence[str]],
    metrics: Iterable[str],
    options: Options | None = None,
    sources: Sequence[str] | None = None,
) -> list[Score]:
    """Scores one system with every metric named, in that order.

    Raises:
        DataError: no lines, no references, or different numbers of lines.
        NmtkitError: an unknown metric, tokenizer or sentence rule, or no sources where a metric needs them.
    """
    return [cell.score for cell in score_texts([Texts(hyps, refs, sources)], metrics, options, None)[0]]
