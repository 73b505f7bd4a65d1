"""Settings of a search."""

from collections.abc import Collection, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from typing_extensions import override

from nmtkit.core.errors import RecipeError, shorten
from nmtkit.core.registry import suggest_names
from nmtkit.core.settings import (
    Beam,
    BeforeValidator,
    Field,
    Length,
    Settings,
    model_validator,
    parse,
    registry_name,
)
from nmtkit.decoding.rules import FIRST_RULES, LAST_RULES, RULES
from nmtkit.decoding.scorers import (
    COVERAGE_PENALTIES,
    LENGTH_PENALTIES,
    CoveragePenalty,
    LengthPenalty,
)

Stop = Literal["first_k", "exact", "huggingface"]
AtLimit = Literal["behind", "compete", "end"]
if TYPE_CHECKING:
    RuleName = str
    LengthPenaltyName = str
    CoveragePenaltyName = str
else:
    RuleName = registry_name(RULES, without=(*FIRST_RULES, *LAST_RULES))
    LengthPenaltyName = registry_name(LENGTH_PENALTIES)
    CoveragePenaltyName = registry_name(COVERAGE_PENALTIES)


class SearchConfig(Settings):
    """Settings common to all kinds of search: limits, rules and scores.

    The kinds are `BeamConfig`, `SamplingConfig` and `MbrConfig`.
    """

    size_key: ClassVar[Literal["beam_size", "samples"]] = "beam_size"
    """Key of the setting for the number of hypotheses."""
    accepts_constraints: ClassVar[bool] = True
    """Whether this kind of search supports constraints. Beam search supports them only with a single group."""

    min_length: Length = Field(default=0, ge=0)
    """Minimum number of tokens in a hypothesis, without EOS. EOS is forbidden until the minimum is reached, whereas the
    program of See et al. 2017 discards hypotheses that end too early."""
    min_length_ratio: float = Field(default=0.0, ge=0.0)
    """Minimum number of tokens per source token, without EOS. The larger of this minimum and min_length applies, but
    max_length takes precedence over both."""
    max_length: Length = Field(default=256, ge=1)
    """Maximum number of tokens in a hypothesis, including EOS. The number of learned position embeddings in a model is
    also a limit. In beam search, at_limit decides what happens to hypotheses that reach the limit."""
    max_length_ratio: float = Field(default=2.0, ge=0.0)
    """Maximum number of tokens per source token; max_length_offset is added to the product. The smaller of the result
    and max_length applies. 0 turns this maximum off."""
    max_length_offset: Length = Field(default=30, ge=0)
    """Number of tokens added to the maximum that results from max_length_ratio."""
    no_repeat_ngram: int = Field(default=0, ge=0)
    """Length of the n-grams that a hypothesis may not repeat, including those in its prompt. 3 means trigram blocking.
    0 turns n-gram blocking off."""
    repetition_penalty: float = Field(default=1.0, ge=1.0, le=100.0)
    """Factor by which the log-probability of a token is multiplied if the hypothesis or its prompt already contains the
    token. The penalty affects the choice of tokens and the ranking, but not the log-probabilities in the output. 1
    turns it off."""
    forbid_unknown: bool = False
    """Never generate the unknown-word token."""
    rules: list[RuleName] = Field(default_factory=list)
    """Registered rules that apply in addition to those with settings of their own, in this order. brackets: only
    generate well-formed trees in linear form, with one placeholder for each source word; the length limit is raised if
    a tree needs more tokens. The parsing task uses this rule."""
    certain_prefix: bool = False
    """Treat the tokens of a forced prefix as having probability 1 when scoring, like Hugging Face's
    forced_bos_token_id."""

    length_penalty: LengthPenaltyName = "average"
    """Divisor of the log-probability in the score. none: 1. average: |Y|^alpha. gnmt: ((5+|Y|)/6)^alpha. |Y| is the
    number of tokens, including EOS."""
    alpha: float = Field(default=1.0, ge=0.0)
    """Strength of the length penalty; 0 turns it off."""
    coverage_penalty: float = Field(default=0.0, ge=0.0, le=1e6)
    """Strength (beta) of the coverage penalty, which requires a model with attention; 0 turns it off."""
    coverage_kind: CoveragePenaltyName = "gnmt"
    """Kind of coverage penalty. gnmt: when a hypothesis is complete, penalizes source words that received too little
    attention. summary: at every step, penalizes source words whose total attention so far exceeds 1."""

    @property
    def n_hypotheses(self) -> int:
        """Number of hypotheses per sentence, K."""
        raise NotImplementedError

    @property
    def n_groups(self) -> int:
        """Number of groups in diverse beam search, each of which has its own beam."""
        return 1

    @property
    def effective_stop(self) -> Stop:
        """The setting `stop` as it applies to this search; `first_k` for kinds of search without the setting."""
        return "first_k"

    @property
    def effective_at_limit(self) -> AtLimit:
        """The setting `at_limit` as it applies to this search; `behind` for kinds of search without the setting."""
        return "behind"

    @property
    def needs_all_hypotheses(self) -> bool:
        """Whether the outputs are chosen from all hypotheses of a finished search, regardless of `n_best`."""
        return False

    def build_length_penalty(self) -> LengthPenalty:
        """Builds the length penalty that `length_penalty` names, with the strength `alpha`."""
        penalty_class = LENGTH_PENALTIES.get(self.length_penalty)
        return penalty_class(self.alpha)

    def build_coverage_penalty(self) -> CoveragePenalty | None:
        """Returns the coverage penalty, or None if its strength is 0."""
        if not self.coverage_penalty:
            return None
        penalty_class = COVERAGE_PENALTIES.get(self.coverage_kind)
        return penalty_class(self.coverage_penalty)

    @model_validator(mode="after")
    def _settings_fit_together(self) -> "SearchConfig":
        if self.min_length >= self.max_length:
            raise ValueError(
                f"min_length ({self.min_length}) must be less than max_length ({self.max_length}), which includes the "
                "end of the sentence: lower min_length or raise max_length"
            )
        for name in self.rules:
            fault = RULES.get(name).fault(self)
            if fault:
                raise ValueError(f"{name}: {fault}")
        return self

    def reject_unused(self, keys: Collection[str], reads_text: bool = True) -> None:
        """Raises a RecipeError if one of the keys has no effect with these settings or with this model."""
        source_limits = ["max_length_ratio", "max_length_offset", "min_length_ratio"]
        no_source = "for a model that does not read text: set min_length or max_length instead"
        # Each condition: the keys, whether they have an effect, and the end of the message "KEY has no effect ...".
        conditions = [
            (
                ["alpha"],
                self.length_penalty != "none",
                "without a length penalty: set length_penalty too",
            ),
            (source_limits, reads_text, no_source),
            (
                ["max_length_offset"],
                self.max_length_ratio > 0,
                "without a limit that depends on the source: set max_length_ratio too",
            ),
            (
                ["coverage_kind"],
                self.coverage_penalty > 0,
                "without a coverage penalty: set coverage_penalty too",
            ),
        ]
        for conditional_keys, has_effect, reason in conditions:
            if has_effect:
                continue
            for key in conditional_keys:
                if key in keys:
                    raise RecipeError(f"{key} has no effect {reason}")

    def reject_constraints(self) -> None:
        """Raises a RecipeError if this search does not support constraints."""
        if self.n_groups > 1 or not self.accepts_constraints:
            raise RecipeError("terms require a single beam: remove samples and diversity_groups")


class BeamConfig(SearchConfig):
    """Settings of beam search."""

    kind: Literal["beam"] = "beam"
    """Kind of search. beam: beam search. sampling: draws samples. mbr: draws samples, and chooses the one with the
    lowest Bayes risk."""
    beam_size: Beam = Field(default=5, ge=1)
    """Number of hypotheses in the beam of each sentence; 1 is greedy search."""
    stop: Stop = "first_k"
    """When the search for a sentence ends. first_k: once beam_size hypotheses have ended. exact: once no unfinished
    hypothesis can overtake the best finished ones (slow). huggingface: once beam_size hypotheses have ended and no
    unfinished one has a better score at its current length, as in Hugging Face's `generate`."""
    at_limit: AtLimit = "behind"
    """What happens to hypotheses that reach max_length. behind: they are returned unfinished and ranked after all
    hypotheses that ended. compete: they are returned unfinished and ranked together with those that ended. end: their
    last token becomes EOS, with probability 1, like Hugging Face's forced_eos_token_id."""
    diversity_groups: Beam = Field(default=1, ge=1)
    """Number of equally large groups into which diverse beam search divides the beam. In each step, a group avoids
    words that earlier groups have chosen."""

    @property
    @override
    def n_hypotheses(self) -> int:
        return self.beam_size

    @property
    @override
    def n_groups(self) -> int:
        return self.diversity_groups

    @property
    @override
    def effective_stop(self) -> Stop:
        # A greedy search ends with its first finished hypothesis, except that `exact` continues to look for a better
        # one.
        is_greedy = self.beam_size == 1
        if is_greedy and self.stop != "exact":
            return "first_k"
        return self.stop

    @property
    @override
    def effective_at_limit(self) -> AtLimit:
        return self.at_limit

    @property
    @override
    def needs_all_hypotheses(self) -> bool:
        return self.diversity_groups > 1

    @model_validator(mode="after")
    def _groups_have_equal_size(self) -> "BeamConfig":
        if self.beam_size % self.diversity_groups:
            raise ValueError(
                f"diversity_groups: a beam of {self.beam_size} cannot be divided into {self.diversity_groups} groups "
                "of equal size; set beam_size to a multiple of diversity_groups"
            )
        return self


class SamplingConfig(SearchConfig):
    """Settings of sampling from the model's distribution.

    Samples that ended are ranked before those that were cut at the length limit. The scores use the model's own
    probabilities, before temperature and truncation.
    """

    size_key = "samples"
    accepts_constraints = False

    kind: Literal["sampling"] = "sampling"
    samples: Beam = Field(default=1, ge=1)
    """Number of outputs to draw for each sentence."""
    temperature: float = Field(default=1.0, ge=0.01, le=100.0)
    """Divisor of the log-probabilities. Values below 1 make likely words even more likely."""
    top_k: int = Field(default=0, ge=0)
    """Draw only from the k most likely words. 0 turns this off."""
    top_p: float = Field(default=1.0, ge=0.001, le=1.0)
    """Draw only from the smallest set of most likely words whose total probability reaches this value. 1 turns this
    off."""
    epsilon: float = Field(default=0.0, ge=0.0, le=1.0)
    """Draw only words with at least this probability. 0 turns this off."""
    seed: int = Field(default=1, ge=0)
    """Seed for the random numbers. The outputs for a line depend on the seed and the line number, but not on the
    batch."""

    @property
    @override
    def n_hypotheses(self) -> int:
        return self.samples


class MbrConfig(SamplingConfig):
    """Settings of minimum Bayes risk decoding, which chooses the sample that is most similar to all samples on average.

    The score of a sample is its expected utility, the mean of `metric` against all samples. Eikema and Aziz 2020, "Is
    MAP Decoding All You Need? The Inadequacy of the Mode in Neural Machine Translation".
    """

    kind: Literal["mbr"] = "mbr"  # type: ignore[assignment]  # pydantic lets a subclass replace a field
    samples: Beam = Field(default=16, ge=1)
    """Number of samples to draw for each sentence, one of which is chosen."""
    metric: Literal["chrf", "bleu"] = "chrf"
    """The sentence-level metric that compares samples: chrF or BLEU."""

    @property
    @override
    def needs_all_hypotheses(self) -> bool:
        return True


KINDS: dict[str, type[SearchConfig]] = {
    "beam": BeamConfig,
    "sampling": SamplingConfig,
    "mbr": MbrConfig,
}
SEARCH_FIELDS = dict(
    chain.from_iterable(settings.model_fields.items() for settings in KINDS.values())
)
"""The settings of all kinds of search, by key."""
_REQUIREMENTS = {
    "beam": "when sampling: remove it, or use beam search instead of sampling",
    "sampling": "without sampling: set samples too, for example to 1 for one translation of each line",
    "mbr": "without minimum Bayes risk decoding: set mbr too",
}
"""End of the error message "KEY has no effect ...", by the kind of search that the key belongs to."""


def kind_of_search(search: SearchConfig) -> str:
    """Returns the name of a search's kind, as in recipes."""
    return next(name for name, settings in KINDS.items() if type(search) is settings)


def with_kind(keys: Mapping[str, Any], kind: str = "") -> dict[str, Any]:
    """Returns the keys together with the `kind` of search that they select, if they select one.

    `samples` selects sampling, and `beam_size` selects beam search, as in options and older recipes. Two forms that are
    not settings are also accepted: `mbr` is the metric of minimum Bayes risk decoding, or "none" to turn it off, and
    `samples: 0` selects beam search.

    Args:
        keys: settings of a search.
        kind: the current kind of the search, or "" if it is not known.
    """
    chosen = dict(keys)
    metric = chosen.pop("mbr", None)
    samples = chosen.get("samples")
    if "kind" in chosen:
        return chosen
    if metric not in (None, "none"):
        return {**chosen, "kind": "mbr", "metric": metric}
    if samples == 0 and not isinstance(samples, bool):
        del chosen["samples"]
        return {**chosen, "kind": "beam"}
    if samples is not None:
        keeps_mbr = kind == "mbr" and metric is None
        return {**chosen, "kind": "mbr" if keeps_mbr else "sampling"}
    if metric == "none" and kind == "mbr":
        return {**chosen, "kind": "sampling"}
    if "beam_size" in chosen and kind:
        return {**chosen, "kind": "beam"}
    return chosen


def merge_search(search: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a search after changes. If its kind changes, drops settings that the new kind lacks."""
    old_kind = search.get("kind", "beam")
    new_kind = changes.get("kind", old_kind)
    merged = dict(search)
    # An invalid kind is reported later.
    is_valid_kind = isinstance(new_kind, str) and new_kind in KINDS
    if new_kind != old_kind and is_valid_kind:
        new_fields = KINDS[new_kind].model_fields
        merged = {key: value for key, value in search.items() if key in new_fields}
    merged.update(changes)
    return merged


def change_search(search: SearchConfig, changes: Mapping[str, Any]) -> SearchConfig:
    """Returns a search with some settings changed, which may also change its kind: see `with_kind`.

    Raises:
        RecipeError: a key or a value is invalid, or a key belongs to a different kind of search.
    """
    changes = with_kind(changes, kind_of_search(search))
    merged = merge_search(search.model_dump(), changes)
    kind = str(merged["kind"])
    if kind not in KINDS:
        raise RecipeError(
            f"kind: {shorten(repr(kind))} is not a kind of search: {suggest_names(kind, KINDS)}"
        )
    settings = KINDS[kind]
    for key in changes:
        if key not in settings.model_fields and key in SEARCH_FIELDS:
            kind_of_key = next(name for name, other in KINDS.items() if key in other.model_fields)
            raise RecipeError(f"{key} has no effect {_REQUIREMENTS[kind_of_key]}")
    return parse(settings, merged, "option")


def _with_default_kind(search: Any) -> Any:
    if not isinstance(search, Mapping):
        return search
    return {"kind": "beam", **search}


AnySearch = Annotated[
    Annotated[BeamConfig | SamplingConfig | MbrConfig, Field(discriminator="kind")],
    BeforeValidator(_with_default_kind),
]
"""Type of a setting that contains a search of any kind. Without `kind`, it is beam search."""
