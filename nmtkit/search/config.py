"""How translations are searched for."""

from typing import Literal

from nmtkit.search.rules import RuleSettings
from nmtkit.search.scoring import CoverageKind, LengthPenalty
from nmtkit.settings import Beam, Field


class SearchConfig(RuleSettings):
    """How translations are searched for."""

    beam_size: Beam = Field(default=5, ge=1)
    """Hypotheses kept for each sentence; 1 is greedy search."""
    length_penalty: LengthPenalty = "average"
    """The divisor of the log-probability, |Y| counting EOS: none 1, average |Y|^alpha, gnmt ((5+|Y|)/6)^alpha."""
    alpha: float = Field(default=1.0, ge=0.0)
    """Strength of the length penalty; 0 is none."""
    coverage_penalty: float = Field(default=0.0, ge=0.0, le=1e6)
    """Strength (beta) of the penalty for badly spread attention; needs a model with attention."""
    coverage_kind: CoverageKind = "gnmt"
    """What it punishes: gnmt source words that got little attention, summary those that got more than one word's."""
    stop: Literal["first_k", "exact"] = "first_k"
    """When a sentence is done: with beam_size ended hypotheses, or when no other could still become better (slow)."""
