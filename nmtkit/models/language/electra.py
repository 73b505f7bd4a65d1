"""ELECTRA: Clark et al. 2020, "ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators".

Section 2: a small generator G tells masked words as BERT does. In their places words are drawn from its distribution,
and the discriminator D tells of each token whether it is the one that was there:

    D(x, t) = sigmoid(w . gelu(W h_t + b) + c)      the probability that token t was replaced
    loss    = L_MLM(G) + lambda L_Disc(D)           `training.masked_words` and `training.replaced_tokens`

Both have the same embeddings (section 3.2), which a linear map brings to the width of G. Nothing else of G learns
from L_Disc. The discriminator is what stays: its encoder has the names of the one in `models/transformer.py`.
"""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from nmtkit.core.settings import Field
from nmtkit.data.batches.batch import Batch
from nmtkit.models.base import MODELS, ModelOutput, VocabularySizes
from nmtkit.models.language.bert import Bert, BertConfig, EncoderConfig, PretrainedEncoder


class ElectraConfig(EncoderConfig):
    """The defaults suit small corpora; ELECTRA-small is 256, embeddings 128, 1024, 4 heads, 12 layers, generator 0.25.

    Validation's loss and perplexity are the generator's.
    """

    kind: Literal["electra"] = "electra"
    """Which model."""
    generator_size: float = Field(default=0.25, gt=0, le=1)
    """Heads and feed-forward width of the generator as a share of the discriminator's, with as many layers and heads as
    wide. A quarter to a half is best (section 3.2)."""

    @property
    def generator(self) -> BertConfig:
        """The settings of the generator."""
        heads, inner = (max(1, round(self.generator_size * size)) for size in (self.heads, self.feed_forward_size))
        sizes = {"heads": heads, "hidden_size": heads * (self.hidden_size // self.heads), "feed_forward_size": inner}
        sizes["embedding_size"] = self.embedding_size or self.hidden_size
        return BertConfig.model_validate(self.model_dump(exclude={"kind", "generator_size"}) | sizes)

    @property
    def further_head(self) -> str:
        """The discriminator's."""
        return "replaced_tokens"


@MODELS.register("electra")
class Electra(PretrainedEncoder):
    """A discriminator with a generator; what it predicts as a model is what the generator does."""

    Config = ElectraConfig

    def __init__(self, config: ElectraConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        self.dense, self.replaced = nn.Linear(config.hidden_size, config.hidden_size), nn.Linear(config.hidden_size, 1)
        self.generator = Bert(config.generator, sizes)
        for name in ("src_embedding", "src_positions", "segment_embedding", "src_embedding_norm"):
            setattr(self.generator, name, getattr(self, name))
        self.generator.output.words.weight = self.src_embedding.weight

    def read(self, batch: Batch, need_attention: bool = False) -> tuple[ModelOutput, None]:
        """The generator's states of all positions; there is no memory."""
        return self.generator.read(batch)

    def logits(self, output: ModelOutput, memory: None) -> Tensor:
        """The generator's, `(...,V)`."""
        return self.generator.logits(output, memory)

    def further_logits(self, batch: Batch, output: ModelOutput) -> Tensor:
        """The discriminator's for a batch in which words were replaced, `(B,S)`: above 0 is replaced."""
        logits: Tensor = self.replaced(F.gelu(self.dense(self.encode(batch)))).squeeze(-1)
        return logits
