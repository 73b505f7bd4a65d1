"""Other libraries that can search with the weights of a run, such as CTranslate2."""

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
    """A search by another library, which replaces `nmtkit.decoding` for the runs and settings that it supports.

    Args:
        run: the run whose weights the library opens.
        weights: which weights of the run, see `DecodingOptions.weights`.
        device: where the library computes.
        precision: one of nmtkit's precisions, or a name that the library gives to a type.

    Raises:
        NmtkitError: the library cannot open the weights.
    """

    name: ClassVar[str]
    searches: int
    """Number of searches that may run at the same time."""

    @abstractmethod
    def __init__(self, run: Run, weights: str, device: torch.device, precision: str) -> None: ...

    @classmethod
    @abstractmethod
    def unsupported_run(cls, run: Run, options: DecodingOptions) -> str:
        """Returns why the library cannot search with a run and options; empty if it can.

        The settings of the search are checked by `unsupported_search`.
        """

    @classmethod
    @abstractmethod
    def unsupported_search(cls, config: SearchConfig, forces_language: bool, exact: bool) -> str:
        """Returns what the library lacks for a search; empty if it has everything.

        Args:
            config: the search settings.
            forces_language: whether translations begin with the token of a language.
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
        """Returns the `n_best` hypotheses of every source, or a text with what the library lacks for this source.

        Args:
            sources: lines that are not empty.
            config: the search settings.
            n_best: number of hypotheses per source, best first.
            log_probs: whether the log-probabilities of tokens are needed; otherwise they may be NaN.
            exact: whether scores must equal nmtkit's.
        """


ENGINES: Registry[type[ExternalEngine]] = Registry(
    "engine", {"ctranslate2": "nmtkit.convert.ctranslate2_search"}
)
"""External engines by name."""
