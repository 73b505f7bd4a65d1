"""Attention for classification: Yang et al. 2016, "Hierarchical Attention Networks for Document Classification".

`hierarchical_attention` encodes each sentence i from its words w_it, and then the text from its sentences:

    h_it = BiGRU(W_e w_it)                                      equations 1-4, section 2.1
    u_it = tanh(W_w h_it + b_w)                                 equation 5
    a_it = exp(u_it . u_w) / sum_t exp(u_it . u_w)              equation 6
    s_i  = sum_t a_it h_it                                      equation 7
    h_i  = BiGRU(s_i)
    u_i  = tanh(W_s h_i + b_s)                                  equation 8
    a_i  = exp(u_i . u_s) / sum_i exp(u_i . u_s)                equation 9
    v    = sum_i a_i h_i                                        equation 10
    p    = softmax(W_c v + b_c)                                 equation 11; equation 12 is the likelihood

`attention_classifier` treats the whole text as one sentence, so v is s of equation 7. `nmtkit.layers.recurrent`
describes how torch's GRU differs from the one in the paper. The setting `tokenizer.sentences` determines how texts are
split into sentences.

Notation: B texts, S tokens in a text, N sentences in a text, W words in a sentence, M sequences (sentences or texts),
E embedding size, H hidden size of one direction, I input size, A attention size.
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
from nmtkit.models.word_mean import is_word


class AttentionConfig(ModelConfig):
    """Settings that both classifiers share. The default sizes are those of Yang et al. 2016, section 3.3."""

    embedding_size: Width = Field(default=200, ge=1)
    """Size of word vectors."""
    hidden_size: Width = Field(default=50, ge=1)
    """Number of units in each direction of the recurrent layers."""
    attention_size: Width = Field(default=100, ge=1)
    """Size of the vectors u, u_w and u_s, whose dot products are the attention energies."""
    dropout: float = Field(default=0.2, ge=0.0, lt=1.0)
    """Dropout rate on embeddings and on the input of the output layer."""


class AttentionClassifierConfig(AttentionConfig):
    """A bidirectional GRU and attention over all words (Yang et al. 2016, equations 5-7)."""

    kind: Literal["attention_classifier"] = "attention_classifier"


class HierarchicalAttentionConfig(AttentionConfig):
    """Attention over words and over sentences (Yang et al. 2016); both levels have the same sizes, as in the paper."""

    kind: Literal["hierarchical_attention"] = "hierarchical_attention"


class AttentiveGRU(nn.Module):
    """Encodes sequences `(M, W, I)` with a bidirectional GRU, and sums each sequence's states, weighted by attention.

    Used for words (equations 1-7) and for sentences (equations 8-10).
    """

    def __init__(self, input_size: int, config: AttentionConfig) -> None:
        super().__init__()
        attention_size = config.attention_size
        self.encoder = RecurrentEncoder("gru", input_size, config.hidden_size)
        self.key = nn.Linear(2 * config.hidden_size, attention_size)
        context = torch.empty(attention_size)  # (A,)
        context.uniform_(-1, 1)
        self.context = nn.Parameter(context / math.sqrt(attention_size))  # u_w or u_s

    def forward(self, inputs: Tensor, mask: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the weighted sums `(M, 2H)` and the attention weights `(M, W)`.

        `mask` `(M, W)` is True at real positions, and `attended` `(M, W)` at positions that can be attended to. If a
        sequence has no position that can be attended to, its sum and its weights are zero.
        """
        # The encoder needs at least one position in each sequence, even in the empty sentences of a padded text.
        positions = torch.arange(mask.shape[1], device=mask.device)  # (W,)
        encoder_mask = mask | (positions == 0)  # (M, W)
        lengths = mask.sum(1)  # (M,)
        encoded = self.encoder(inputs, encoder_mask, lengths, need_cell=False)
        states = encoded.states  # (M, W, 2H), h
        keys = torch.tanh(self.key(states))  # (M, W, A), u of equation 5 or 8
        energies = keys @ self.context  # (M, W)
        weights = masked_softmax(energies, attended)  # (M, W), a of equation 6 or 9
        row_weights = weights.to(states.dtype).unsqueeze(1)  # (M, 1, W)
        sums = torch.matmul(row_weights, states)  # (M, 1, 2H), equation 7 or 10
        return sums.squeeze(1), weights


@MODELS.register("attention_classifier")
class AttentionClassifier(Model):
    """A bidirectional GRU and attention over all words; see the module docstring."""

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
        """Returns the vector of each text, `(B, 2H)`, with word weights `(B, S)`. There is no memory."""
        inputs = batch.inputs
        embedded = self.src_embedding(inputs.ids)  # (B, S, E)
        embedded = self.dropout(embedded)  # (B, S, E)
        text_vectors, weights = self.words(
            embedded, inputs.mask, is_word(inputs)
        )  # (B, 2H), (B, S)
        features = self.dropout(text_vectors)  # (B, 2H)
        attention = weights if need_attention else None
        return ModelOutput(features, attention), None


@MODELS.register("hierarchical_attention")
class HierarchicalAttention(ReadsSentences, AttentionClassifier):
    """Attention over the words of each sentence, and over the sentences; see the module docstring."""

    Config = HierarchicalAttentionConfig

    def __init__(self, config: AttentionConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        self.sentences = AttentiveGRU(2 * config.hidden_size, config)
        init_weights(self.sentences, "xavier")

    def read(self, batch: Batch, need_attention: bool = False) -> tuple[ModelOutput, None]:
        """Returns the vector of each text, `(B, 2H)`, with word weights `(B, S)`. There is no memory.

        The weight of a word is its weight in the sentence times the weight of the sentence, so the weights of a text
        sum to one.
        """
        # Word positions are counted from 1, and 0 is padding, so PAD is inserted as token 0 of each text.
        inputs = batch.inputs
        positions = _word_positions(inputs)  # (B, N, W)
        ids = pad(inputs.ids, (1, 0), value=PAD)  # (B, 1+S)
        first_words = positions[:, :, 0]  # (B, N)
        is_sentence = first_words > 0  # (B, N)
        texts, sentences_per_text = is_sentence.shape
        all_rows = texts * sentences_per_text
        rows = torch.arange(all_rows, device=ids.device)  # (B*N,)
        # On a CPU, only the M real sentences are encoded. On other devices, all B*N sentences are encoded, because
        # finding the real ones would make the CPU wait for the device.
        if ids.device.type == "cpu":
            rows = rows[is_sentence.flatten()]  # (M,)
        text_of_row = rows.unsqueeze(1) // sentences_per_text  # (M, 1)
        positions = positions.flatten(0, 1)[rows]  # (M, W)

        # Equations 1-7: one vector per sentence.
        word_mask = positions > 0  # (M, W)
        words = ids[text_of_row, positions]  # (M, W)
        embedded = self.src_embedding(words)  # (M, W, E)
        embedded = self.dropout(embedded)  # (M, W, E)
        sentence_vectors, word_weights = self.words(
            embedded, word_mask, word_mask
        )  # (M, 2H), (M, W)

        # Equations 8-10: one vector per text.
        vector_size = sentence_vectors.shape[1]
        padded = sentence_vectors.new_zeros(all_rows, vector_size)  # (B*N, 2H)
        padded = padded.index_copy(0, rows, sentence_vectors)  # (B*N, 2H)
        padded = padded.view(texts, sentences_per_text, vector_size)  # (B, N, 2H)
        text_vectors, sentence_weights = self.sentences(
            padded, is_sentence, is_sentence
        )  # (B, 2H), (B, N)

        attention = None
        if need_attention:
            weights_of_rows = sentence_weights.flatten()[rows]  # (M,)
            weights = word_weights * weights_of_rows.unsqueeze(1)  # (M, W)
            attention = torch.zeros_like(ids, dtype=weights.dtype)  # (B, 1+S)
            attention = attention.index_put((text_of_row, positions), weights)  # (B, 1+S)
            attention = attention[:, 1:]  # (B, S), without the column of the inserted PAD
        features = self.dropout(text_vectors)  # (B, 2H)
        return ModelOutput(features, attention), None


def _word_positions(inputs: Inputs) -> Tensor:
    """Returns `Inputs.sentences` `(B, N, W)`, or the positions of all words as a single sentence, `(B, 1, S)`."""
    if inputs.sentences is not None:
        return inputs.sentences
    words = is_word(inputs)  # (B, S)
    positions = torch.arange(1, words.shape[1] + 1, device=words.device)  # (S,)
    word_positions = positions * words  # (B, S)
    return word_positions.unsqueeze(1)
