"""The settings of a search, and the length limits that follow from them."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from torch import Tensor
from typing_extensions import override

from nmtkit.core.errors import RecipeError, shorten
from nmtkit.core.registry import suggest_names
from nmtkit.core.settings import Beam, BeforeValidator, Field, Length, Settings, model_validator, parse, registry_name
from nmtkit.data.tokenizers.vocabulary import PAD
from nmtkit.decoding.rules import RULES
from nmtkit.decoding.scorers import COVERAGE_PENALTIES, LENGTH_PENALTIES, CoveragePenalty, LengthPenalty

Stop = Literal["first_k", "exact", "huggingface"]
AtLimit = Literal["behind", "compete", "end"]
if TYPE_CHECKING:
    RuleName = str
    LengthPenaltyName = str
    CoveragePenaltyName = str
else:
    RuleName = registry_name(RULES)
    LengthPenaltyName = registry_name(LENGTH_PENALTIES)
    CoveragePenaltyName = registry_name(COVERAGE_PENALTIES)


class SearchConfig(Settings):
    """What every kind of search has: limits, rules and scores. The kinds are `BeamConfig` and those after it."""

    min_length: Length = Field(default=0, ge=0)
    """The fewest tokens of a hypothesis, EOS not counted. Until then EOS is forbidden; the program of See et al. throws
    away what ends too early."""
    min_length_ratio: float = Field(default=0.0, ge=0.0)
    """At least this many tokens for each source token, EOS not counted. The larger of this and min_length holds, as far
    as max_length allows."""
    max_length: Length = Field(default=256, ge=1)
    """The most tokens of a hypothesis, EOS counted; a model's learned positions limit it, too. In beam search at_limit
    says what becomes of one that reaches it."""
    max_length_ratio: float = Field(default=2.0, ge=0.0)
    """At most this many tokens for each source token, plus max_length_offset. The smaller of this and max_length holds;
    with 0, max_length alone."""
    max_length_offset: Length = Field(default=30, ge=0)
    """Tokens that max_length_ratio allows on top."""
    no_repeat_ngram: int = Field(default=0, ge=0)
    """No hypothesis repeats an n-gram of this many tokens, nor one of its prompt. 3 is trigram blocking; 0 is off."""
    repetition_penalty: float = Field(default=1.0, ge=1.0, le=100.0)
    """The log-probability of a token that the hypothesis, or its prompt, already has is multiplied by this for the
    ranking. 1 is off."""
    forbid_unknown: bool = False
    """Never write the unknown word."""
    rule: RuleName | None = None
    """A registered rule, which holds in addition to the others. brackets: write well-formed trees in linear form, with
    one placeholder for each word of the source; the length limit is raised if a tree needs more. It is the rule of the
    task parsing."""
    certain_prefix: bool = False
    """A forced prefix has a probability of 1 in the score (forced_bos_token_id of Hugging Face)."""

    length_penalty: LengthPenaltyName = "average"
    """The log-probability is divided by: none 1, average |Y|^alpha, gnmt ((5+|Y|)/6)^alpha. |Y| counts EOS."""
    alpha: float = Field(default=1.0, ge=0.0)
    """Strength of the length penalty; 0 is none."""
    coverage_penalty: float = Field(default=0.0, ge=0.0, le=1e6)
    """Strength (beta) of the coverage penalty. The model needs attention."""
    coverage_kind: CoveragePenaltyName = "gnmt"
    """gnmt: source words with little attention cost, once the hypothesis has ended. summary: source words with more
    than one word's attention cost, in every step."""

    @property
    def hypotheses(self) -> int:
        """Hypotheses of each sentence at a time, K."""
        raise NotImplementedError

    @property
    def groups(self) -> int:
        """Groups of hypotheses that are searched apart."""
        return 1

    @property
    def effective_stop(self) -> Stop:
        """When a sentence is done."""
        return "first_k"

    @property
    def limit_rule(self) -> AtLimit:
        """What becomes of hypotheses that reach the length limit."""
        return "behind"

    @property
    def chooses_afterwards(self) -> bool:
        """Whether the best are chosen among all hypotheses."""
        return False

    def length_penalty_scorer(self) -> LengthPenalty:
        """Returns what divides the log-probabilities of hypotheses."""
        return LENGTH_PENALTIES.get(self.length_penalty)(self.alpha)

    def coverage_penalty_scorer(self) -> CoveragePenalty | None:
        """Returns what lowers the scores of hypotheses that cover the source badly; None without such a penalty."""
        if not self.coverage_penalty:
            return None
        return COVERAGE_PENALTIES.get(self.coverage_kind)(self.coverage_penalty)

    @model_validator(mode="after")
    def _settings_fit_together(self) -> "SearchConfig":
        if self.min_length >= self.max_length:
            raise ValueError(
                f"min_length {self.min_length} leaves no room below max_length {self.max_length} (which counts the end "
                "of the sentence): lower min_length or raise max_length"
            )
        fault = "" if self.rule is None else RULES.get(self.rule).fault(self)
        if fault:
            raise ValueError(f"{self.rule}: {fault}")
        return self

    def reject_unused(self, given: Collection[str], reads_text: bool = True) -> None:
        """Raises a RecipeError for a key in `given` that has no effect with these settings, or in this model."""
        of_text = "models that read a text, and this one reads none: give min_length or max_length"
        purposes = [
            (["alpha"], self.length_penalty != "none", "a length penalty, and there is none: give length_penalty too"),
            (["max_length_ratio", "max_length_offset", "min_length_ratio"], reads_text, of_text),
            (["max_length_offset"], self.max_length_ratio > 0, "a limit by the source: give max_length_ratio too"),
            (["coverage_kind"], self.coverage_penalty > 0, "a coverage penalty: give coverage_penalty too"),
        ]
        for keys, has_effect, purpose in purposes:
            unused = [key for key in keys if key in given and not has_effect]
            if unused:
                raise RecipeError(f"{unused[0]} is for {purpose}")

    def reject_constraints(self) -> None:
        """Raises a RecipeError if this search cannot keep to constraints."""
        if self.rule is not None:
            raise RecipeError(f"the rule {self.rule} alone decides what is written: leave terms and prefixes out")
        if self.groups > 1 or isinstance(self, SamplingConfig):
            raise RecipeError("terms need one beam: leave out samples and diversity_groups")


class BeamConfig(SearchConfig):
    """Beam search."""

    kind: Literal["beam"] = "beam"
    """How outputs are found: beam search, sampling, or mbr, the sample with the least Bayes risk."""
    beam_size: Beam = Field(default=5, ge=1)
    """Hypotheses kept for each sentence; 1 is greedy search."""
    stop: Stop = "first_k"
    """When a sentence is done. first_k: with beam_size ended hypotheses. exact: when no other hypothesis can become
    better (slow). huggingface, as `generate` does: with beam_size ended hypotheses, once no other has a better score at
    its present length."""
    at_limit: AtLimit = "behind"
    """What becomes of hypotheses that reach max_length. behind: they are returned unfinished, behind all that ended.
    compete: they are returned unfinished, ranked with those that ended. end: their last token is EOS, with a
    probability of 1 (forced_eos_token_id of Hugging Face)."""
    diversity_groups: Beam = Field(default=1, ge=1)
    """Diverse beam search: number of groups in the beam. Each avoids the words of the groups before it."""

    @property
    @override
    def hypotheses(self) -> int:
        return self.beam_size

    @property
    @override
    def groups(self) -> int:
        return self.diversity_groups

    @property
    @override
    def effective_stop(self) -> Stop:
        # A greedy search ends with its first ended hypothesis, except where `exact` looks for a better one.
        return self.stop if self.beam_size > 1 or self.stop == "exact" else "first_k"

    @property
    @override
    def limit_rule(self) -> AtLimit:
        return self.at_limit

    @property
    @override
    def chooses_afterwards(self) -> bool:
        return self.diversity_groups > 1

    @model_validator(mode="after")
    def _groups_of_one_size(self) -> "BeamConfig":
        if self.beam_size % self.diversity_groups:
            raise ValueError(
                f"diversity_groups: {self.diversity_groups} groups of one size do not make a beam of {self.beam_size}; "
                "set beam_size to a multiple"
            )
        return self


class SamplingConfig(SearchConfig):
    """Sampling from the model's distribution."""

    kind: Literal["sampling"] = "sampling"
    samples: Beam = Field(default=1, ge=1)
    """Number of outputs to draw for each sentence."""
    temperature: float = Field(default=1.0, ge=0.01, le=100.0)
    """Divisor of the log-probabilities. Below 1, likely words become likelier."""
    top_k: int = Field(default=0, ge=0)
    """Draw from the k likeliest words only. 0 is all."""
    top_p: float = Field(default=1.0, ge=0.001, le=1.0)
    """Draw from the fewest likeliest words whose probabilities reach this sum. 1 is all."""
    epsilon: float = Field(default=0.0, ge=0.0, le=1.0)
    """Draw words of at least this probability only. 0 is all."""
    seed: int = Field(default=1, ge=0)
    """Seed and line number decide what is drawn, whatever the batch."""

    @property
    @override
    def hypotheses(self) -> int:
        return self.samples


class MbrConfig(SamplingConfig):
    """Minimum Bayes risk: the sample that is most like all others (Eikema and Aziz 2020).

    Its score is its expected utility, the mean of `metric` against all samples.
    """

    kind: Literal["mbr"] = "mbr"  # type: ignore[assignment]  # another kind
    samples: Beam = Field(default=16, ge=1)
    """Number of outputs to draw for each sentence, of which one is chosen."""
    metric: Literal["chrf", "bleu"] = "chrf"
    """By which samples are compared: chrF or BLEU of sentences."""

    @property
    @override
    def chooses_afterwards(self) -> bool:
        return True


KINDS: dict[str, type[SearchConfig]] = {"beam": BeamConfig, "sampling": SamplingConfig, "mbr": MbrConfig}
SEARCH_FIELDS = {key: field for settings in KINDS.values() for key, field in settings.model_fields.items()}
"""The keys of all kinds of searches."""
_NEEDS = {
    "beam": "beam search, and samples are drawn without: leave one of the two out",
    "sampling": "sampling: give samples too, 1 for one translation of each line",
    "mbr": "minimum Bayes risk: give mbr too",
}


def kind_of_search(search: SearchConfig) -> str:
    """The name of its kind."""
    return next(name for name, settings in KINDS.items() if type(search) is settings)


def with_kind(keys: Mapping[str, Any], kind: str = "") -> dict[str, Any]:
    """Returns keys of a search with the kind that they choose; without it if they leave it as it is.

    `samples` chooses sampling, and `beam_size` beam search, as options and earlier recipes have them. Two keys are no
    settings themselves: `mbr` is a metric for minimum Bayes risk, or none, and `samples: 0` is beam search. `kind` is
    the present one, empty if it is not known.
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
    """Returns the keys of a search with changes; if its kind changes, only the keys stay that the new one has."""
    kind = search.get("kind", "beam")
    new_kind = changes.get("kind", kind)
    kept = dict(search)
    if new_kind != kind and isinstance(new_kind, str) and new_kind in KINDS:
        kept = {key: value for key, value in search.items() if key in KINDS[new_kind].model_fields}
    return {**kept, **changes}


def change_search(search: SearchConfig, changes: Mapping[str, Any]) -> SearchConfig:
    """Returns a search with other values of some keys, which may choose another kind; see `with_kind`.

    Raises:
        RecipeError: a key or a value is not valid, or a key belongs to another kind of search.
    """
    changes = with_kind(changes, kind_of_search(search))
    merged = merge_search(search.model_dump(), changes)
    chosen = str(merged["kind"])
    if chosen not in KINDS:
        raise RecipeError(f"kind {shorten(repr(chosen))} is no search: {suggest_names(chosen, KINDS)}")
    settings = KINDS[chosen]
    for key in changes:
        if key not in settings.model_fields and key in SEARCH_FIELDS:
            kind = next(name for name, other in KINDS.items() if key in other.model_fields)
            raise RecipeError(f"{key} is for {_NEEDS[kind]}")
    return parse(settings, merged, "option")


def _with_default_kind(given: Any) -> Any:
    return {"kind": "beam", **given} if isinstance(given, Mapping) else given


AnySearch = Annotated[
    Annotated[BeamConfig | SamplingConfig | MbrConfig, Field(discriminator="kind")], BeforeValidator(_with_default_kind)
]
"""The type of a setting that is a search of some kind; without `kind` it is beam search."""


def min_lengths(settings: SearchConfig, src_lengths: Tensor) -> Tensor:
    """The fewest tokens, EOS not counted, by source lengths, EOS included, `(B,)`; below `max_length`."""
    by_source = ((src_lengths.double() - 1) * settings.min_length_ratio).floor()  # (B,)
    # Clamped before it is converted: what is larger than any int64 would become negative.
    by_source = by_source.clamp(max=settings.max_length).long()
    return by_source.clamp(min=settings.min_length, max=settings.max_length - 1)


def max_lengths(
    settings: SearchConfig, src_lengths: Tensor, prefix: Tensor | None, room: Tensor | None = None
) -> Tensor:
    """The most tokens of a hypothesis, EOS included, by source lengths, EOS included: `(B,)`, at least 1.

    A forced prefix `(B,P)`, padded with PAD, is never cut, nor are the minimum length and the tokens of positive
    constraints `room` `(B,)`: they raise the limit where it leaves no room for them.
    """
    by_source = (src_lengths.float() * settings.max_length_ratio).floor()  # (B,)
    by_source = by_source.clamp(max=settings.max_length).long()
    by_source += settings.max_length_offset if settings.max_length_ratio else settings.max_length
    fewest = min_lengths(settings, src_lengths) + 1
    limits = by_source.maximum(fewest).clamp(max=settings.max_length)
    forced = torch.ones_like(limits)
    if prefix is not None:
        forced += (prefix > PAD).sum(1)  # NEW_WORD is negative
    if room is not None:
        forced = forced + room
    return limits.maximum(forced)
