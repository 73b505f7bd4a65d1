"""The mean of word vectors: Joulin et al. 2017, "Bag of Tricks for Efficient Text Classification".

    y = softmax(B (1/n) sum_i A x_i)        section 2; x_i: the words of a text, A: their vectors, B: the output layer

The paper adds n-grams, and for many classes a hierarchical softmax; here is neither.
"""

from typing import Literal

from torch import Tensor, nn

from nmtkit.core.settings import Field, Width
from nmtkit.data.batches.batch import Batch, Inputs
from nmtkit.data.tokenizers.vocabulary import EOS
from nmtkit.layers.elementary import Dropout
from nmtkit.layers.recurrent import init_weights
from nmtkit.models.base import MODELS, Model, ModelConfig, ModelOutput, VocabularySizes


class WordMeanConfig(ModelConfig):
    """The default size is that of Joulin et al. 2017 doubled; they have 10 to 50 numbers a word."""

    kind: Literal["word_mean"] = "word_mean"
    """Which model."""
    hidden_size: Width = Field(default=100, ge=1)
    """Numbers per word: the hidden layer."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Probability, on the mean."""


def words_of(inputs: Inputs) -> Tensor:
    """Where texts have words `(B,S)`: not at the end of a sentence; but a text without any has its EOS."""
    words = inputs.mask & (inputs.ids != EOS)
    words[:, 0] = True
    return words


@MODELS.register("word_mean")
class WordMean(Model):
    """A classifier that knows nothing of the order of words; see the head of this file."""

    Config = WordMeanConfig
    output_column = "labels"

    def __init__(self, config: WordMeanConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        self.src_embedding = nn.Embedding(sizes["src"], config.hidden_size)
        self.dropout = Dropout(config.dropout)
        self.output = nn.Linear(config.hidden_size, sizes["labels"])
        init_weights(self, "xavier")

    def read(self, batch: Batch, need_attention: bool = False) -> tuple[ModelOutput, None]:
        """The means `(B,H)`; there is no memory."""
        words = words_of(batch.inputs).unsqueeze(2)  # (B,S,1)
        total = (self.src_embedding(batch.inputs.ids) * words).sum(1)
        return ModelOutput(self.dropout(total / words.sum(1))), None
