"""Settings of a search, and the length limits that result from them."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor
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
from nmtkit.data.tokenizers.vocabulary import PAD
from nmtkit.decoding.rules import RULES
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
    RuleName = registry_name(RULES)
    LengthPenaltyName = registry_name(LENGTH_PENALTIES)
    CoveragePenaltyName = registry_name(COVERAGE_PENALTIES)


class SearchConfig(Settings):
    """Settings that all kinds of search have: limits, rules and scores.

    The kinds are `BeamConfig`, `SamplingConfig` and `MbrConfig`.
    """

    size_key: ClassVar[Literal["beam_size", "samples"]] = "beam_size"
    """Key of the setting for the number of hypotheses."""
    accepts_constraints: ClassVar[bool] = True
    """Whether this kind of search supports required terms; only a single beam does."""

    min_length: Length = Field(default=0, ge=0)
    """Minimum number of tokens of a hypothesis, without EOS. Until it is reached EOS is forbidden; the program of See
    et al. instead discards hypotheses that end too early."""
    min_length_ratio: float = Field(default=0.0, ge=0.0)
    """Minimum number of tokens per source token, without EOS. The larger of this minimum and min_length applies, but
    max_length takes precedence."""
    max_length: Length = Field(default=256, ge=1)
    """Maximum number of tokens of a hypothesis, including EOS; the learned positions of a model are a limit, too. In
    beam search at_limit decides what happens to hypotheses that reach it."""
    max_length_ratio: float = Field(default=2.0, ge=0.0)
    """Maximum number of tokens per source token, plus max_length_offset. The smaller of this maximum and max_length
    applies; with 0 only max_length does."""
    max_length_offset: Length = Field(default=30, ge=0)
    """Number of tokens that are added to the maximum by max_length_ratio."""
    no_repeat_ngram: int = Field(default=0, ge=0)
    """No hypothesis repeats an n-gram of this many tokens, nor one of its prompt. 3 is trigram blocking; 0 is off."""
    repetition_penalty: float = Field(default=1.0, ge=1.0, le=100.0)
    """Factor on the log-probability of a token that the hypothesis, or its prompt, already contains; affects the
    ranking only. 1 is off."""
    forbid_unknown: bool = False
    """Never write the unknown-word token."""
    rule: RuleName | None = None
    """A registered rule that applies in addition to the other rules. brackets: write well-formed trees in linear form,
    with one placeholder for each word of the source; the length limit is raised if a tree needs more tokens. The task
    parsing uses it."""
    certain_prefix: bool = False
    """Count a forced prefix with a probability of 1 in the score (forced_bos_token_id of Hugging Face)."""

    length_penalty: LengthPenaltyName = "average"
    """Divisor of the log-probability. none: 1. average: |Y|^alpha. gnmt: ((5+|Y|)/6)^alpha. |Y| includes EOS."""
    alpha: float = Field(default=1.0, ge=0.0)
    """Strength of the length penalty; 0 is none."""
    coverage_penalty: float = Field(default=0.0, ge=0.0, le=1e6)
    """Strength (beta) of the coverage penalty. The model needs attention."""
    coverage_kind: CoveragePenaltyName = "gnmt"
    """gnmt: penalizes source words with little attention, once the hypothesis has ended. summary: penalizes source
    words with more than one word's attention, in every step."""

    @property
    def n_hypotheses(self) -> int:
        """Number of hypotheses per sentence, K."""
        raise NotImplementedError

    @property
    def n_groups(self) -> int:
        """Number of groups in diverse beam search, each with its own beam."""
        return 1

    @property
    def effective_stop(self) -> Stop:
        """The condition that ends the search for a sentence; defined for all kinds of search."""
        return "first_k"

    @property
    def effective_at_limit(self) -> AtLimit:
        """The treatment of hypotheses that reach the length limit; defined for all kinds of search."""
        return "behind"

    @property
    def needs_all_hypotheses(self) -> bool:
        """Whether the output is chosen from all hypotheses of a finished search, regardless of `n_best`."""
        return False

    def build_length_penalty(self) -> LengthPenalty:
        """Returns the length penalty."""
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
                f"min_length {self.min_length} leaves no room below max_length {self.max_length} (which counts the end "
                "of the sentence): lower min_length or raise max_length"
            )
        fault = "" if self.rule is None else RULES.get(self.rule).fault(self)
        if fault:
            raise ValueError(f"{self.rule}: {fault}")
        return self

    def reject_unused(self, keys: Collection[str], reads_text: bool = True) -> None:
        """Raises a RecipeError if one of the keys has no effect with these settings or with this model."""
        source_limits = ["max_length_ratio", "max_length_offset", "min_length_ratio"]
        text_models = (
            "models that read a text, and this one reads none: give min_length or max_length"
        )
        # Keys, whether they have an effect, and the end of the error message "KEY is for ...".
        conditions = [
            (
                ["alpha"],
                self.length_penalty != "none",
                "a length penalty, and there is none: give length_penalty too",
            ),
            (source_limits, reads_text, text_models),
            (
                ["max_length_offset"],
                self.max_length_ratio > 0,
                "a limit by the source: give max_length_ratio too",
            ),
            (
                ["coverage_kind"],
                self.coverage_penalty > 0,
                "a coverage penalty: give coverage_penalty too",
            ),
        ]
        for conditional_keys, has_effect, purpose in conditions:
            if has_effect:
                continue
            for key in conditional_keys:
                if key in keys:
                    raise RecipeError(f"{key} is for {purpose}")

    def reject_constraints(self) -> None:
        """Raises a RecipeError if this search does not support constraints."""
        if self.rule is not None:
            raise RecipeError(
                f"the rule {self.rule} decides every token: remove terms and prefixes"
            )
        if self.n_groups > 1 or not self.accepts_constraints:
            raise RecipeError("terms need a single beam: remove samples and diversity_groups")


class BeamConfig(SearchConfig):
    """Beam search."""

    kind: Literal["beam"] = "beam"
    """How outputs are found: by beam search, by sampling, or by mbr, which chooses the sample with the least Bayes
    risk."""
    beam_size: Beam = Field(default=5, ge=1)
    """Number of hypotheses in the beam of each sentence; 1 is greedy search."""
    stop: Stop = "first_k"
    """When the search of a sentence ends. first_k: once beam_size hypotheses have ended. exact: once no unfinished
    hypothesis can become better (slow). huggingface, as in `generate`: once beam_size hypotheses have ended and no
    unfinished one has a better score at its present length."""
    at_limit: AtLimit = "behind"
    """What happens to hypotheses that reach max_length. behind: they are returned unfinished, ranked after all that
    ended. compete: they are returned unfinished, ranked together with those that ended. end: their last token becomes
    EOS, with a probability of 1 (forced_eos_token_id of Hugging Face)."""
    diversity_groups: Beam = Field(default=1, ge=1)
    """Diverse beam search: number of groups in the beam. Each group avoids the words of the groups before it."""

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
        # A greedy search ends with its first finished hypothesis, unless `exact` continues to look for a better one.
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
                f"diversity_groups: {self.diversity_groups} groups of equal size do not make a beam of "
                f"{self.beam_size}; set beam_size to a multiple"
            )
        return self


class SamplingConfig(SearchConfig):
    """Sampling from the model's distribution."""

    size_key = "samples"
    accepts_constraints = False

    kind: Literal["sampling"] = "sampling"
    samples: Beam = Field(default=1, ge=1)
    """Number of outputs to draw for each sentence."""
    temperature: float = Field(default=1.0, ge=0.01, le=100.0)
    """Divisor of the log-probabilities. Below 1, likely words become more likely."""
    top_k: int = Field(default=0, ge=0)
    """Draw only from the k most likely words. 0 is all."""
    top_p: float = Field(default=1.0, ge=0.001, le=1.0)
    """Draw only from the most likely words, as few as reach this total probability. 1 is all."""
    epsilon: float = Field(default=0.0, ge=0.0, le=1.0)
    """Draw only words of at least this probability. 0 is all."""
    seed: int = Field(default=1, ge=0)
    """Seed of the random numbers. The outputs for a line depend on the seed and the line number, not on its batch."""

    @property
    @override
    def n_hypotheses(self) -> int:
        return self.samples


class MbrConfig(SamplingConfig):
    """Minimum Bayes risk decoding: the sample that is most similar to all others.

    Its score is its expected utility, the mean of `metric` against all samples. Eikema and Aziz 2020, "Is MAP Decoding
    All You Need? The Inadequacy of the Mode in Neural Machine Translation".
    """

    kind: Literal["mbr"] = "mbr"  # type: ignore[assignment]  # pydantic lets a subclass replace a field
    samples: Beam = Field(default=16, ge=1)
    """Number of outputs to draw for each sentence, of which one is chosen."""
    metric: Literal["chrf", "bleu"] = "chrf"
    """The sentence metric that compares samples: chrF or BLEU."""

    @property
    @override
    def needs_all_hypotheses(self) -> bool:
        return True


KINDS: dict[str, type[SearchConfig]] = {
    "beam": BeamConfig,
    "sampling": SamplingConfig,
    "mbr": MbrConfig,
}
SEARCH_FIELDS = {
    key: field for settings in KINDS.values() for key, field in settings.model_fields.items()
}
"""The settings of all kinds of search, by key."""
_PURPOSES = {
    "beam": "beam search, and sampling does not use it: remove one of the two",
    "sampling": "sampling: give samples too, 1 for one translation of each line",
    "mbr": "minimum Bayes risk: give mbr too",
}
"""End of the error message "KEY is for ...", by kind of search."""


def kind_of_search(search: SearchConfig) -> str:
    """Returns a search's kind, as recipes name it."""
    return next(name for name, settings in KINDS.items() if type(search) is settings)


def with_kind(keys: Mapping[str, Any], kind: str = "") -> dict[str, Any]:
    """Returns the keys with the kind of search that they choose; without a kind if they do not change it.

    `samples` chooses sampling, and `beam_size` chooses beam search, as in options and older recipes. This also accepts
    two forms that are not settings: `mbr` is the metric of minimum Bayes risk, or "none", and `samples: 0` chooses beam
    search. `kind` is the current kind, or "" if unknown.
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
    """Applies changes to the keys of a search. If its kind changes, drops the keys that the new kind does not have."""
    old_kind = search.get("kind", "beam")
    new_kind = changes.get("kind", old_kind)
    merged = dict(search)
    # an invalid kind is reported later
    is_valid_kind = isinstance(new_kind, str) and new_kind in KINDS
    if new_kind != old_kind and is_valid_kind:
        new_fields = KINDS[new_kind].model_fields
        merged = {key: value for key, value in search.items() if key in new_fields}
    merged.update(changes)
    return merged


def change_search(search: SearchConfig, changes: Mapping[str, Any]) -> SearchConfig:
    """Returns a search with changes to some of its keys, which may choose another kind: see `with_kind`.

    Raises:
        RecipeError: a key or a value is invalid, or a key belongs to another kind of search.
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
            raise RecipeError(f"{key} is for {_PURPOSES[kind_of_key]}")
    return parse(settings, merged, "option")


def _with_default_kind(search: Any) -> Any:
    if not isinstance(search, Mapping):
        return search
    return {"kind": "beam", **search}


AnySearch = Annotated[
    Annotated[BeamConfig | SamplingConfig | MbrConfig, Field(discriminator="kind")],
    BeforeValidator(_with_default_kind),
]
"""Type of a setting that holds a search of any kind; without `kind` it is beam search."""


def min_lengths(settings: SearchConfig, src_lengths: Tensor) -> Tensor:
    """Returns the minimum number of tokens of each translation, without EOS, `(B,)`; always below `max_length`.

    `src_lengths` `(B,)` include EOS.
    """
    src_tokens = src_lengths.double() - 1  # (B,)
    by_source = src_tokens * settings.min_length_ratio  # (B,)
    by_source = by_source.floor()
    # Clamped before the conversion: a number above the largest int64 would become negative.
    by_source = by_source.clamp(max=settings.max_length).long()
    return by_source.clamp(min=settings.min_length, max=settings.max_length - 1)


def max_lengths(
    settings: SearchConfig,
    src_lengths: Tensor,
    prefix: Tensor | None,
    required: Tensor | None = None,
) -> Tensor:
    """Returns the maximum number of tokens of each translation, including EOS, `(B,)`, at least 1.

    The limit is raised if necessary for the minimum length, a forced prefix or required tokens.

    Args:
        settings: the search settings.
        src_lengths: number of tokens of each source, including EOS, `(B,)`.
        prefix: the forced prefix of each translation `(B,P)`, padded with PAD.
        required: number of tokens, without EOS, that constraints or a rule require `(B,)`.
    """
    # Single precision, unlike in `min_lengths`. Neither precision rounds all products as decimal arithmetic would, and
    # existing results depend on the rounding here.
    by_source = (src_lengths.float() * settings.max_length_ratio).floor()  # (B,)
    by_source = by_source.clamp(max=settings.max_length).long()
    if settings.max_length_ratio:
        by_source += settings.max_length_offset
    else:
        by_source += settings.max_length
    shortest_limits = min_lengths(settings, src_lengths) + 1  # (B,)
    limits = by_source.maximum(shortest_limits).clamp(max=settings.max_length)  # (B,)

    needed = torch.ones_like(limits)  # (B,): EOS
    if prefix is not None:
        needed += (prefix > PAD).sum(1)  # NEW_WORD is negative
    if required is not None:
        needed = needed + required
    return limits.maximum(needed)
