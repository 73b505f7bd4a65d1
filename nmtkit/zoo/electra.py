"""ELECTRA: Clark et al. 2020, "ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators".

Section 2: a small generator G predicts masked words, like BERT. The masked words are replaced with samples from G's
distributions, and the discriminator D predicts for each token whether it was replaced:

    D(x, t) = sigmoid(w . gelu(W h_t + b) + c)      the probability that token t was replaced
    loss    = L_MLM(G) + lambda L_Disc(D)           `masked_words` and `replaced_tokens` of `training`

G and D share their embeddings (section 3.2), which a linear layer projects to the width of G. Apart from the
embeddings, nothing in G learns from L_Disc. The discriminator is the result of pretraining: its encoder has the
parameter names of `models/transformer.py`, so its weights can be loaded there.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from typing_extensions import override

from nmtkit.data.batches.batch import Batch
from nmtkit.layers.elementary import at_least_float32
from nmtkit.models.abilities import AuxiliaryHead, auxiliary_logits
from nmtkit.models.base import MODELS, ModelConfig, ModelOutput, VocabularySizes
from nmtkit.models.language.bert import Bert, BertConfig, EncoderConfig, PretrainedEncoder
from nmtkit.training.losses.objective import OBJECTIVES, InputKind, Objective, ObjectiveInput

GENERATOR_SHARE = 0.25
"""Ratio of the generator's number of heads and feed-forward width to those of the discriminator; the number of layers
and the head size are the same. A quarter to a half is best (section 3.2).
"""


class ElectraConfig(EncoderConfig):
    """Settings of ELECTRA. The defaults suit small corpora.

    ELECTRA-small has hidden size 256, embedding size 128, feed-forward size 1024, 4 heads, 12 layers and a generator of
    relative size 0.25. Validation loss and perplexity refer to the generator.
    """

    kind: Literal["electra"] = "electra"

    @property
    def generator(self) -> BertConfig:
        """Returns the settings of the generator."""
        heads, inner = (
            max(1, round(GENERATOR_SHARE * size)) for size in (self.heads, self.feed_forward_size)
        )
        sizes = {
            "heads": heads,
            "hidden_size": heads * (self.hidden_size // self.heads),
            "feed_forward_size": inner,
        }
        sizes["embedding_size"] = self.embedding_size or self.hidden_size
        return BertConfig.model_validate(self.model_dump(exclude={"kind"}) | sizes)


@MODELS.register("electra")
class Electra(AuxiliaryHead, PretrainedEncoder):
    """A discriminator with a generator; the model's predictions are those of the generator."""

    Config = ElectraConfig

    def __init__(self, config: ElectraConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        self.dense, self.replaced = (
            nn.Linear(config.hidden_size, config.hidden_size),
            nn.Linear(config.hidden_size, 1),
        )
        self.generator = Bert(config.generator, sizes)
        for name in ("src_embedding", "src_positions", "segment_embedding", "src_embedding_norm"):
            setattr(self.generator, name, getattr(self, name))
        self.generator.output.words.weight = self.src_embedding.weight

    def read(self, batch: Batch, need_attention: bool = False) -> tuple[ModelOutput, None]:
        """Returns the generator's states at all positions; there is no memory."""
        return self.generator.read(batch)

    def logits(self, output: ModelOutput, memory: None) -> Tensor:
        """Returns the generator's logits, `(...,V)`."""
        return self.generator.logits(output, memory)

    @classmethod
    def auxiliary_objective(cls, config: ElectraConfig) -> str:
        """Returns the objective of the discriminator."""
        return "replaced_tokens"

    def auxiliary_logits(self, batch: Batch, output: ModelOutput) -> Tensor:
        """Returns the discriminator's logits for a corrupted batch, `(B,S)`; above 0 means replaced."""
        logits: Tensor = self.replaced(F.gelu(self.dense(self.encode(batch)))).squeeze(-1)
        return logits


@OBJECTIVES.register("replaced_tokens")
@dataclass(frozen=True)
class ReplacedTokens(Objective):
    """Replaced-token detection, Clark et al. 2020, section 2: the mean of L_Disc over the real tokens of the texts.

    Words are sampled from the distributions that `masked_words` trains. A sampled word equal to the original counts as
    original. Sampling uses torch's random generator, whose state is saved in checkpoints.
    """

    normalizers: ClassVar = {"replaced_loss": "read"}
    needs: ClassVar[InputKind] = "output"

    @override
    def counts(self, batch: Batch) -> dict[str, int]:
        return {"read": int(batch.inputs.mask.sum())}

    @override
    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        batch, read = inputs.device_batch, inputs.device_batch.inputs
        with torch.no_grad():
            drawn = draw_words(
                inputs.model.logits(inputs.output.gather(inputs.batch.loss_mask), None)
            )
        ids = read.ids.masked_scatter(batch.loss_mask, drawn)
        replaced = ids != torch.where(batch.loss_mask, batch.labels, read.ids)  # (B,S)
        logits = auxiliary_logits(
            inputs.model, replace(batch, inputs=replace(read, ids=ids)), inputs.output
        )
        logits = logits.to(at_least_float32(logits))
        each = binary_cross_entropy_with_logits(logits, replaced.to(logits.dtype), reduction="none")
        return {"replaced_loss": (each * read.mask).sum()}

    @classmethod
    @override
    def fault_without(cls, model: ModelConfig, begins_from_run: bool) -> str:
        return (
            f"without it, {model.kind} trains only its generator, and the encoder, which is the "
            "result of pretraining, remains random; set it (50 in the paper)"
        )


def draw_words(logits: Tensor) -> Tensor:
    """Samples a word `(M,)` from each distribution softmax(logits), `(M,V)`, by inverting the cumulative sum."""
    sums = torch.softmax(logits, -1, dtype=at_least_float32(logits)).cumsum(-1)
    draws = torch.rand_like(sums[:, :1]) * sums[:, -1:]
    return torch.searchsorted(sums, draws, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
