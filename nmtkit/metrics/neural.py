"""BERTScore, computed with its own library, which an extra of nmtkit installs.

The metric uses a large pretrained model, which is downloaded on first use and runs on the first CUDA
device or on the CPU.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from nmtkit.core.errors import NmtkitError
from nmtkit.metrics.metric import METRICS, Options, Resampling, Texts
from nmtkit.metrics.significance import ExampleMetric


@dataclass(frozen=True)
class ModelMetric(ExampleMetric):
    """A metric based on a pretrained model: the mean over examples times 100."""

    model: str = field(kw_only=True)
    """Hugging Face model name, or a path."""
    library: str = field(kw_only=True)
    """The pip package that runs the model."""

    @override
    def signature(self, options: Options, n_refs: int, resampling: Resampling | None = None) -> str:
        drawn = f"|{resampling}" if resampling else ""
        return f"nrefs:{n_refs}{drawn}|model:{self.model}|version:{self.library}-{version(self.library)}"

    def loaded(self, load: Callable[[str], Any]) -> Any:
        """Loads the model."""
        try:
            return load(self.model)
        except (ImportError, OSError, KeyError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise NmtkitError(
                f"metric {self.name!r}: cannot load the model {self.model} ({reason}); it is "
                "downloaded on first use, so install the metric with `pip install "
                f"'nmtkit[{self.extra}]'`, and run this command once with an internet connection"
            ) from error


@dataclass(frozen=True)
class BertScore(ModelMetric):
    """F1 of BERTScore: Zhang et al. 2020, "BERTScore: Evaluating Text Generation with BERT", section 3.

    Uses the library's default layer, without idf weights or rescaling. The reference with the
    highest F1 counts.
    """

    @override
    def statistics(self, texts: Texts, options: Options) -> npt.NDArray[np.float64]:
        scorer = self.loaded(_bert_scorer)
        _, _, f1 = scorer.score(list(texts.hyps), texts.references)
        return 100 * np.asarray(f1, dtype=np.float64)[:, None]


@cache
def _bert_scorer(model: str) -> Any:
    from bert_score import BERTScorer

    return BERTScorer(model_type=model)


_bert_metric = partial(BertScore, package="bert_score", extra="bertscore", library="bert-score")
for _metric in (
    # the library's default for most languages
    _bert_metric("bertscore", "BERTScore", model="bert-base-multilingual-cased"),
    _bert_metric(
        "bertscore-en", "BERTScore-en", model="roberta-large"
    ),  # the library's default for English
):
    METRICS.register(_metric.name)(_metric)
