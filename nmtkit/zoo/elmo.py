"""ELMo: Peters et al. 2018, "Deep contextualized word representations".

    P(w_t | w_<t) = softmax(A ahead_t-1 + b)        P(w_t | w_>t) = softmax(A back_t+1 + b)        section 3.1
    ELMo_t        = gamma W sum_j softmax(s)_j [ahead_jt; back_jt]    equation 1: added to word vectors by other models

Layer 0, below the LSTMs, consists of word vectors instead of character convolutions; the LSTMs have no projections.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from typing_extensions import override

from nmtkit.core.settings import Depth, Field, Width
from nmtkit.data.batches.batch import ABSENT, Batch
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import BOS, PAD
from nmtkit.layers.elementary import Dropout
from nmtkit.layers.recurrent import (
    build_rnn,
    gather_positions,
    init_weights,
    reversed_positions,
    run_rnn,
)
from nmtkit.models.abilities import Pretrained
from nmtkit.models.base import MODELS, ModelConfig, ModelOutput, VocabularySizes
from nmtkit.models.embeddings import EMBEDDINGS, SourceEmbedding
from nmtkit.training.losses.corruption import Pretraining, length_mask, whole_texts
from nmtkit.training.losses.objective import OBJECTIVES


class ElmoConfig(ModelConfig):
    """Settings of ELMo.

    The defaults suit small corpora; Peters et al. 2018, section 3.4, use 2 layers of 4096 units, projected to 512.
    """

    kind: Literal["elmo"] = "elmo"
    hidden_size: Width = Field(default=256, ge=1)
    """Number of units per layer and direction, and also the size of the embeddings."""
    layers: Depth = Field(default=2, ge=1)
    """Number of layers per direction."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout rate for the inputs and outputs of all layers; 0.1 in the program of Peters et al. 2018, bilm-tf."""


class BiLM(nn.Module):
    """LSTM layers in both directions, with the residual connections of section 3.4."""

    def __init__(self, config: ElmoConfig, vocabulary: int) -> None:
        super().__init__()
        width, layers, both = config.hidden_size, range(config.layers), range(2)
        self.words, self.dropout = nn.Embedding(vocabulary, width), Dropout(config.dropout)
        self.layers = nn.ModuleList(
            nn.ModuleList(build_rnn("lstm", width, width) for _ in both) for _ in layers
        )

    def forward(self, ids: Tensor) -> Tensor:
        """Returns all layers for texts `(B,S)`, padded on the right: `(L+1,B,2,S,H)`."""
        words, turned = self.words(ids), reversed_positions(ids != PAD)
        found = [torch.stack([words, gather_positions(words, turned)])]  # (2,B,S,H)
        for pair in self.layers:
            read = zip(pair.children(), self.dropout(found[-1]), strict=True)
            states = torch.stack([run_rnn(layer, one)[0] for layer, one in read])
            found.append(states if len(found) == 1 else states + found[-1])
        ordered = [torch.stack([ahead, gather_positions(back, turned)], 1) for ahead, back in found]
        return self.dropout(torch.stack(ordered))  # type: ignore[no-any-return]  # modules return Any


@EMBEDDINGS.register("elmo")
class ContextualEmbedding(SourceEmbedding):
    """Adds ELMo vectors to the word vectors of whole texts; the language models in this module are not trained."""

    Config = ElmoConfig
    is_pretrained = True

    def __init__(self, words: nn.Embedding, config: ElmoConfig) -> None:
        super().__init__(words, config)
        size = words.embedding_dim
        self.context = BiLM(config, words.num_embeddings).requires_grad_(False)
        self.s, self.gamma = (
            nn.Parameter(torch.zeros(config.layers + 1)),
            nn.Parameter(torch.full((1,), size**-0.5)),
        )
        self.map = nn.Linear(2 * config.hidden_size, size, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Returns vectors `(B,S,E)` for texts `(B,S)`; the language models read BOS before each text."""
        mixed = torch.tensordot(
            torch.softmax(self.s, 0), self.context(pad(ids, (1, 0), value=BOS)), 1
        )[:, :, 1:]
        added: Tensor = self.gamma * self.map(mixed.transpose(1, 2).flatten(2))
        return super().forward(ids) + added


@MODELS.register("elmo")
class Elmo(Pretrained):
    """The language models of both directions; see the module docstring."""

    Config = ElmoConfig
    output_column = "tgt"
    pretrained_by = ("both_directions",)

    def __init__(self, config: ElmoConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        # the name that other models use
        self.src_embedding = nn.ModuleDict({"context": BiLM(config, sizes["tgt"])})
        self.output = nn.Linear(config.hidden_size, sizes["tgt"])
        init_weights(self, "xavier")

    def read(self, batch: Batch, need_attention: bool = False) -> tuple[ModelOutput, None]:
        """Returns the states that predict each word in both directions, `(B,2,S,H)`; zeros if there is no context."""
        top = (
            self.src_embedding["context"](batch.inputs.ids)[-1]
            * batch.inputs.mask[:, None, :, None]
        )
        return ModelOutput(
            torch.stack([pad(top[:, 0], (0, 0, 1, -1)), pad(top[:, 1], (0, 0, -1, 1))], 1)
        ), None


@OBJECTIVES.register("both_directions")
@dataclass(frozen=True, kw_only=True)
class BothDirections(Pretraining):
    """Predicts each token twice: from the tokens before it, and from the tokens after it (section 3.1)."""

    @override
    def corrupt(self, batch: Batch, generator: torch.Generator, tokenizers: Tokenizers) -> Batch:
        inputs = whole_texts(batch)
        told = pad(inputs.mask[:, 1:], (1, 0)), length_mask(inputs.lengths - 1, inputs.ids.shape[1])
        labels = torch.stack([inputs.ids.masked_fill(~one, -1) for one in told], 1)
        return replace(batch, inputs=inputs, targets=ABSENT, labels=labels)
