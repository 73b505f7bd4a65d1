"""The interface to external libraries, such as CTranslate2, that can decode with the weights of a run."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from nmtkit.core.registry import Registry
from nmtkit.decoding.hypotheses import Hypothesis
from nmtkit.decoding.settings import SearchConfig
from nmtkit.inference.inputs import SourceLine
from nmtkit.inference.loading.options import DecodingOptions
from nmtkit.runs.run import Run


@dataclass(frozen=True)
class ExternalSearch:
    """What an external engine searches for."""

    config: SearchConfig
    n_best: int
    """Number of hypotheses per source."""
    scores: bool
    """Whether scores are needed; if not, they may be NaN, and so may log-probabilities."""
    log_probs: bool
    """Whether token log-probabilities are needed; if not, they may be NaN."""
    exact: bool
    """Whether scores must equal nmtkit's."""


class ExternalEngine(ABC):
    """An external library that replaces `nmtkit.decoding` for the runs and settings that it supports.

    Args:
        run: the run whose weights the library loads.
        weights: which of the run's weights to load; see `DecodingOptions.weights`.
        device: the device on which the library computes.
        precision: one of nmtkit's precisions, or the library's name for a precision.

    Raises:
        NmtkitError: the library cannot load the weights.
    """

    name: ClassVar[str]
    searches: int
    """Number of searches that can run concurrently."""

    @abstractmethod
    def __init__(self, run: Run, weights: str, device: torch.device, precision: str) -> None: ...

    @classmethod
    @abstractmethod
    def unsupported_run(cls, run: Run, options: DecodingOptions) -> str:
        """Returns the reason why the library does not support a run with these options; an empty string if it does.

        The search settings are checked by `unsupported_search`.
        """

    @classmethod
    @abstractmethod
    def unsupported_search(cls, config: SearchConfig, forces_language: bool, exact: bool) -> str:
        """Returns the reason why the library does not support a search; an empty string if it does.

        Args:
            config: the search settings.
            forces_language: whether translations begin with a language token.
            exact: whether scores must equal nmtkit's.
        """

    @abstractmethod
    def batch_sentences(self, config: SearchConfig) -> int | None:
        """Returns the number of sentences with which a search is fastest; None if only the number of tokens matters."""

    @abstractmethod
    def search(
        self, sources: Sequence[SourceLine], options: ExternalSearch
    ) -> list[list[Hypothesis] | str]:
        """Returns the best hypotheses for each of several nonempty sources, best first.

        The result for a source may also be the reason why the library cannot decode it.
        """


ENGINES: Registry[type[ExternalEngine]] = Registry(
    "engine", {"ctranslate2": "nmtkit.convert.ctranslate2_search"}
)
"""External engines by name."""
