"""The interface to external libraries, such as CTranslate2, that can decode with the weights of a run."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch

from nmtkit.core.registry import Registry
from nmtkit.decoding.hypotheses import Hypothesis
from nmtkit.decoding.settings import SearchConfig
from nmtkit.inference.inputs import SourceLine
from nmtkit.inference.loading.options import DecodingOptions
from nmtkit.runs.run import Run


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
    def __call__(
        self,
        sources: Sequence[SourceLine],
        config: SearchConfig,
        n_best: int,
        log_probs: bool,
        exact: bool,
    ) -> list[list[Hypothesis] | str]:
        """Returns the `n_best` hypotheses for each source, or the reason why the library does not support the source.

        Args:
            sources: nonempty lines.
            config: the search settings.
            n_best: number of hypotheses per source; they are returned best first.
            log_probs: whether token log-probabilities are needed; if not, they may be NaN.
            exact: whether scores must equal nmtkit's.
        """


ENGINES: Registry[type[ExternalEngine]] = Registry(
    "engine", {"ctranslate2": "nmtkit.convert.ctranslate2_search"}
)
"""External engines by name."""
