"""The mean of word vectors: Joulin et al. 2017, "Bag of Tricks for Efficient Text Classification".

    y = softmax(B (1/n) sum_i A x_i)        section 2; x_i: the words of a text, A: their vectors, B: the output layer

The paper's n-gram features and hierarchical softmax are not implemented.

Notation: B texts, S tokens in a text, H hidden size.
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
    """Settings of the classifier. The default size is twice the largest in Joulin et al. 2017, who use 10 to 50."""

    kind: Literal["word_mean"] = "word_mean"
    hidden_size: Width = Field(default=100, ge=1)
    """Size of the word vectors and of their mean, the hidden layer."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout rate on the mean of the word vectors."""


def is_word(inputs: Inputs) -> Tensor:
    """Returns a mask `(B, S)` of the words: all real tokens except EOS, and always the first token."""
    words = inputs.mask & (inputs.ids != EOS)  # (B, S)
    # In an empty text, the only token is EOS.
    words[:, 0] = True
    return words


@MODELS.register("word_mean")
class WordMean(Model):
    """A classifier that ignores word order; see the module docstring."""

    Config = WordMeanConfig
    output_column = "labels"

    def __init__(self, config: WordMeanConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        hidden_size = config.hidden_size
        self.src_embedding = nn.Embedding(sizes["src"], hidden_size)
        self.dropout = Dropout(config.dropout)
        self.output = nn.Linear(hidden_size, sizes["labels"])
        init_weights(self, "xavier")

    def read(self, batch: Batch, need_attention: bool = False) -> tuple[ModelOutput, None]:
        """Returns the mean word vector of each text, `(B, H)`. There is no memory."""
        inputs = batch.inputs
        words = is_word(inputs).unsqueeze(2)  # (B, S, 1)
        vectors = self.src_embedding(inputs.ids)  # (B, S, H)
        total = (vectors * words).sum(1)  # (B, H)
        mean = total / words.sum(1)  # (B, H)
        features = self.dropout(mean)  # (B, H)
        return ModelOutput(features), None
