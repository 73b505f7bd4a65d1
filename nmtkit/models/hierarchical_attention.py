"""Attention for classification: Yang et al. 2016, "Hierarchical Attention Networks for Document Classification".

`hierarchical_attention` reads the words w_it of each sentence i, and then the sentences:

    h_it = BiGRU(W_e w_it)                                      equations 1-4, section 2.1
    u_it = tanh(W_w h_it + b_w)                                 equation 5
    a_it = exp(u_it . u_w) / sum_t exp(u_it . u_w)              equation 6
    s_i  = sum_t a_it h_it                                      equation 7
    h_i  = BiGRU(s_i)
    u_i  = tanh(W_s h_i + b_s)                                  equation 8
    a_i  = exp(u_i . u_s) / sum_i exp(u_i . u_s)                equation 9
    v    = sum_i a_i h_i                                        equation 10
    p    = softmax(W_c v + b_c)                                 equation 11; its loss, equation 12, is the likelihood

`attention_classifier` takes the whole text for one sentence: v is the s of equation 7. Torch's GRU differs a little
from the one in the paper: see `nmtkit.layers.recurrent`. `tokenizer.sentences` cuts a text into sentences.

Letters: B texts, S their length, N sentences in a text, W words in a sentence, M sequences of any kind, H hidden size.
"""

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from nmtkit.core.settings import Field, Width
from nmtkit.data.batches.batch import Batch, Inputs
from nmtkit.data.tokenizers.vocabulary import PAD
from nmtkit.layers.elementary import Dropout
from nmtkit.layers.kernels import masked_softmax
from nmtkit.layers.recurrent import RecurrentEncoder, init_weights
from nmtkit.models.abilities import ReadsSentences
from nmtkit.models.base import MODELS, Model, ModelConfig, ModelOutput, VocabularySizes
from nmtkit.models.word_mean import words_of


class AttentionConfig(ModelConfig):
    """The default sizes are those of Yang et al. 2016, section 3.3."""

    embedding_size: Width = Field(default=200, ge=1)
    """Numbers per word."""
    hidden_size: Width = Field(default=50, ge=1)
    """Units of each direction of the recurrent layers."""
    attention_size: Width = Field(default=100, ge=1)
    """Numbers in the vectors that attention compares: u, u_w and u_s."""
    dropout: float = Field(default=0.2, ge=0.0, lt=1.0)
    """Probability, on embeddings, and on all that the output layer reads."""


class AttentionClassifierConfig(AttentionConfig):
    """A bidirectional GRU and one attention over all words (Yang et al. 2016, equations 5-7)."""

    kind: Literal["attention_classifier"] = "attention_classifier"
    """Which model."""


class HierarchicalAttentionConfig(AttentionConfig):
    """Attention over words and over sentences (Yang et al. 2016); both levels have the same sizes, as in the paper."""

    kind: Literal["hierarchical_attention"] = "hierarchical_attention"
    """Which model."""


class AttentiveGRU(nn.Module):
    """Reads sequences `(M,W,I)` both ways, and sums up the states of each by attention."""

    def __init__(self, input_size: int, config: AttentionConfig) -> None:
        super().__init__()
        self.encoder = RecurrentEncoder("gru", input_size, config.hidden_size)
        self.key = nn.Linear(2 * config.hidden_size, config.attention_size)
        start = torch.empty(config.attention_size).uniform_(-1, 1) / math.sqrt(config.attention_size)
        self.context = nn.Parameter(start)  # u_w or u_s

    def forward(self, inputs: Tensor, mask: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """The sums `(M,2H)`, and the weights `(M,W)`.

        `mask` `(M,W)` is True where something is to be read, and `attended` where attention may look; of a sequence in
        which that is nowhere both are zero.
        """
        real = mask | (torch.arange(mask.shape[1], device=mask.device) == 0)  # an encoder reads something of each
        states = self.encoder(inputs, real, mask.sum(1), need_cell=False).states  # (M,W,2H)
        weights = masked_softmax(torch.tanh(self.key(states)) @ self.context, attended)
        return torch.matmul(weights.to(states.dtype).unsqueeze(1), states).squeeze(1), weights


@MODELS.register("attention_classifier")
class AttentionClassifier(Model):
    """A bidirectional GRU and one attention over all words; see the head of this file."""

    Config: ClassVar[type[ModelConfig]] = AttentionClassifierConfig
    output_column = "labels"
    has_attention = True

    def __init__(self, config: AttentionConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        self.src_embedding = nn.Embedding(sizes["src"], config.embedding_size)
        self.words = AttentiveGRU(config.embedding_size, config)
        self.dropout = Dropout(config.dropout)
        self.output = nn.Linear(2 * config.hidden_size, sizes["labels"])
        init_weights(self, "xavier")

    def read(self, batch: Batch, need_attention: bool = False) -> tuple[ModelOutput, None]:
        """What each text is summed up to `(B,2H)`, and the weights of its words `(B,S)`; there is no memory."""
        embedded = self.dropout(self.src_embedding(batch.inputs.ids))  # (B,S,E)
        summary, weights = self.words(embedded, batch.inputs.mask, words_of(batch.inputs))
        return ModelOutput(self.dropout(summary), weights if need_attention else None), None


@MODELS.register("hierarchical_attention")
class HierarchicalAttention(ReadsSentences, AttentionClassifier):
    """Attention over the words of each sentence, and over the sentences; see the head of this file."""

    Config = HierarchicalAttentionConfig

    def __init__(self, config: AttentionConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        self.sentences = AttentiveGRU(2 * config.hidden_size, config)
        init_weights(self.sentences, "xavier")

    def read(self, batch: Batch, need_attention: bool = False) -> tuple[ModelOutput, None]:
        """As above; the weight of a word is its own, times that of its sentence: those of a text sum to one.

        On a CPU the M sentences that are there are read. Elsewhere all are, since to find them would make the CPU wait.
        """
        places, ids = _places(batch.inputs), pad(batch.inputs.ids, (1, 0), value=PAD)  # (B,N,W), (B,1+S)
        sentences, every = places[:, :, 0] > 0, torch.arange(places[..., 0].numel(), device=ids.device)
        rows = every[sentences.flatten()] if ids.device.type == "cpu" else every
        texts, places = rows.unsqueeze(1) // places.shape[1], places.flatten(0, 1)[rows]  # (M,1), (M,W)
        embedded = self.dropout(self.src_embedding(ids[texts, places]))  # (M,W,E)
        summaries, of_words = self.words(embedded, places > 0, places > 0)
        padded = summaries.new_zeros(len(every), summaries.shape[1]).index_copy(0, rows, summaries)
        summary, of_sentences = self.sentences(padded.view(*sentences.shape, -1), sentences, sentences)
        attention = None
        if need_attention:
            weights = of_words * of_sentences.flatten()[rows].unsqueeze(1)
            attention = torch.zeros_like(ids, dtype=weights.dtype).index_put((texts, places), weights)[:, 1:]
        return ModelOutput(self.dropout(summary), attention), None


def _places(inputs: Inputs) -> Tensor:
    """`Inputs.sentences` `(B,N,W)`, also where each text is one sentence."""
    if inputs.sentences is not None:
        return inputs.sentences
    words = words_of(inputs)
    return (torch.arange(1, words.shape[1] + 1, device=words.device) * words).unsqueeze(1)
