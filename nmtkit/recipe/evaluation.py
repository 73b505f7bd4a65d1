"""The settings `evaluation:` of a recipe."""

from typing import Annotated, Literal

from nmtkit.core.errors import NmtkitError
from nmtkit.core.settings import Beam, Field, Name, Settings, field_validator
from nmtkit.metrics import METRICS, Options, metric_names


class EvaluationConfig(Settings):
    """How the model is judged on the validation set while it trains."""

    beam_size: Beam = Field(default=1, ge=1)
    """Beam size of the validation's search; the final translation uses `search.beam_size`."""
    max_sentences: int | None = Field(default=None, ge=1)
    """Translate only this many validation sentences, the first ones. Default: all. The loss is always of all."""
    tokenize: Literal["13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "none"] = "13a"
    """sacrebleu's tokenization for BLEU; none is for text that is already tokenized."""
    lowercase: bool = False
    """BLEU ignores case."""
    metrics: Annotated[list[Name] | None, METRICS] = None
    """Metrics of validation beside loss and perplexity; names as in `nmtkit score --metrics`. Default: the task's, such
    as bleu, for summaries rouge. The test after training uses them too."""
    batch_tokens: int = Field(default=4096, ge=1)
    """Padded tokens of the longer side in a batch of the validation loss."""

    @property
    def options(self) -> Options:
        """How metrics read the text."""
        return Options(tokenize=self.tokenize, lowercase=self.lowercase)

    @field_validator("metrics")
    @classmethod
    def _metrics(cls, names: list[str] | None) -> list[str] | None:
        try:
            return None if names is None else metric_names(names)
        except NmtkitError as fault:
            raise ValueError(str(fault)) from fault
