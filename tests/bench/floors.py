"""The floors: the same two networks in bare torch, with nothing around them.

Each computes what nmtkit's model of that name computes, to the last rounding: `take_weights` copies the model's
weights, and the bench compares the losses before it measures anything.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from nmtkit.data.batch import Batch
from nmtkit.data.vocabulary import PAD
from nmtkit.models.rnnsearch import RnnSearchConfig
from nmtkit.models.transformer import TransformerConfig

SMOOTHING = 0.1
LONGEST = 512


@dataclass(frozen=True)
class Loaded:
    """A batch on the floor's device. What would make that device wait was looked up before, on the CPU."""

    src: Tensor
    """`(B,S)`."""
    src_lengths: Tensor
    """`(B,)`, on the CPU, where packing needs it."""
    tgt_in: Tensor
    """`(B,T)`."""
    targets: Tensor
    """The M real target tokens."""
    places: tuple[Tensor, Tensor]
    """Their rows and columns, `(M,)` each."""
    tokens: int
    """M."""


def load(batch: Batch, device: torch.device) -> Loaded:
    """Makes a batch that is on the CPU ready."""
    assert batch.tgt_in is not None
    assert batch.tgt_out is not None
    real = batch.tgt_out != PAD
    rows, columns = real.nonzero(as_tuple=True)
    targets = batch.tgt_out[rows, columns]
    return Loaded(
        batch.src.to(device),
        batch.src_lengths,
        batch.tgt_in.to(device),
        targets.to(device),
        (rows.to(device), columns.to(device)),
        len(targets),
    )


class Floor(nn.Module, ABC):
    """A network whose forward pass gives the unnormalised predictions for all target tokens that are not padding."""

    @abstractmethod
    def forward(self, batch: Loaded) -> Tensor:
        """`(M,V)`."""

    @abstractmethod
    def take_weights(self, weights: dict[str, Tensor]) -> None:
        """Copies the weights of nmtkit's model, given by its own names."""

    def loss(self, batch: Loaded) -> Tensor:
        """Label-smoothed cross-entropy in nats per target token."""
        return F.cross_entropy(self(batch).float(), batch.targets, label_smoothing=SMOOTHING)


class BareTransformer(Floor):
    """torch's own layers: pre-norm, one embedding for source, target and output."""

    positions: Tensor

    def __init__(self, config: TransformerConfig, vocabulary: int, dropout: float) -> None:
        super().__init__()
        width, heads, inner = config.hidden_size, config.heads, config.feed_forward_size
        self.width = width
        self.embedding = nn.Embedding(vocabulary, width)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.dropout = nn.Dropout(dropout)
        encoder_layer = nn.TransformerEncoderLayer(width, heads, inner, dropout, batch_first=True, norm_first=True)
        decoder_layer = nn.TransformerDecoderLayer(width, heads, inner, dropout, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(
            encoder_layer, config.encoder_layers, nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.decoder = nn.TransformerDecoder(decoder_layer, config.decoder_layers, nn.LayerNorm(width))
        angles = torch.arange(LONGEST)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
        waves = torch.stack([angles.sin(), angles.cos()], 2).flatten(1)
        self.register_buffer("positions", waves, persistent=False)

    def _enter(self, ids: Tensor) -> Tensor:
        entering: Tensor = self.dropout(self.embedding(ids) * math.sqrt(self.width) + self.positions[: ids.shape[1]])
        return entering

    def forward(self, batch: Loaded) -> Tensor:
        padding, width = batch.src == PAD, batch.tgt_in.shape[1]
        later = torch.ones(width, width, dtype=torch.bool, device=padding.device).triu(1)
        memory = self.encoder(self._enter(batch.src), src_key_padding_mask=padding)
        states = self.decoder(
            self._enter(batch.tgt_in),
            memory,
            tgt_mask=later,
            memory_key_padding_mask=padding,
            tgt_is_causal=False,  # a hint; without any torch reads the mask, which makes a GPU wait
        )
        return F.linear(states[batch.places], self.embedding.weight, self.bias)

    def take_weights(self, weights: dict[str, Tensor]) -> None:
        shared = {
            "self_attn.in_proj_": "self_attention.query_keys_values.",
            "self_attn.out_proj.": "self_attention.out.",
            "norm1.": "around_self_attention.norm.",
            "linear1.": "feed_forward.inner.",
            "linear2.": "feed_forward.out.",
        }
        own = {
            "encoder": {"norm2.": "around_feed_forward.norm."},
            "decoder": {
                "norm2.": "around_cross_attention.norm.",
                "norm3.": "around_feed_forward.norm.",
                "multihead_attn.out_proj.": "cross_attention.out.",
            },
        }
        taken = {"embedding.weight": weights["tgt_embedding.weight"], "bias": weights["output.bias"]}
        for kind in ("weight", "bias"):
            for side, stack in (("encoder", self.encoder), ("decoder", self.decoder)):
                taken[f"{side}.norm.{kind}"] = weights[f"{side}_norm.{kind}"]
                for number in range(stack.num_layers):
                    for theirs, ours in {**shared, **own[side]}.items():
                        taken[f"{side}.layers.{number}.{theirs}{kind}"] = weights[f"{side}.{number}.{ours}{kind}"]
            for number in range(self.decoder.num_layers):
                parts = [weights[f"decoder.{number}.cross_attention.{p}.{kind}"] for p in ("query", "keys_values")]
                taken[f"decoder.layers.{number}.multihead_attn.in_proj_{kind}"] = torch.cat(parts)
        self.load_state_dict(taken)


class BareRnnSearch(Floor):
    """A packed bidirectional GRU, and a loop of attention and GRU cell over the target's words."""

    def __init__(self, config: RnnSearchConfig, vocabulary: int, dropout: float) -> None:
        super().__init__()
        words, hidden, compared = config.embedding_size, config.hidden_size, config.attention_size
        self.src_embedding = nn.Embedding(vocabulary, words)
        self.tgt_embedding = nn.Embedding(vocabulary, words)
        self.encoder = nn.GRU(words, hidden, batch_first=True, bidirectional=True)
        self.first = nn.Linear(hidden, hidden)
        self.query = nn.Linear(hidden, compared, bias=False)
        self.key = nn.Linear(2 * hidden, compared)
        self.energy = nn.Parameter(torch.zeros(compared))
        self.cell = nn.GRUCell(words + 2 * hidden, hidden)
        self.pieces = nn.Linear(hidden + words + 2 * hidden, 2 * config.maxout_size)
        self.output = nn.Linear(config.maxout_size, vocabulary)
        self.dropout = nn.Dropout(dropout)

    def forward(self, batch: Loaded) -> Tensor:
        is_word = batch.src != PAD
        packed = pack_padded_sequence(
            self.dropout(self.src_embedding(batch.src)), batch.src_lengths, batch_first=True, enforce_sorted=False
        )
        states, last = self.encoder(packed)
        memory = self.dropout(pad_packed_sequence(states, batch_first=True)[0])  # (B,S,2H)
        keys = self.key(memory)
        state = torch.tanh(self.first(last[1]))
        words = self.dropout(self.tgt_embedding(batch.tgt_in))
        read, seen = [], []
        for step in range(batch.tgt_in.shape[1]):
            energies = torch.tanh(self.query(state)[:, None] + keys) @ self.energy  # (B,S)
            weights = energies.masked_fill(~is_word, -math.inf).softmax(1)
            context = torch.bmm(weights[:, None], memory)[:, 0]
            read.append(state)
            seen.append(context)
            state = self.cell(torch.cat([words[:, step], context], 1), state)
        at = batch.places
        features = torch.cat([torch.stack(read, 1)[at], words[at], torch.stack(seen, 1)[at]], 1)
        one, other = self.pieces(features).chunk(2, 1)
        predictions: Tensor = self.output(self.dropout(torch.maximum(one, other)))
        return predictions

    def take_weights(self, weights: dict[str, Tensor]) -> None:
        prefixes = {
            "src_embedding.": "src_embedding.",
            "tgt_embedding.": "tgt_embedding.",
            "first.": "bridge.hidden.",
            "query.": "attention.score.query.",
            "key.": "attention.score.key.",
            "energy": "attention.score.energy",
            "cell.": "decoder.cells.0.",
            "pieces.": "readout.pieces.",
            "output.": "output.",
        }
        taken = {
            theirs + name.removeprefix(ours): tensor
            for theirs, ours in prefixes.items()
            for name, tensor in weights.items()
            if name.startswith(ours)
        }
        for way, ending in (("forward", ""), ("backward", "_reverse")):
            for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
                taken[f"encoder.{name}{ending}"] = weights[f"encoder.{way}_layers.0.{name}"]
        self.load_state_dict(taken)
