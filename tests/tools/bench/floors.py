"""The floor: the Transformer in bare torch, with nothing around it.

It computes what nmtkit's model computes, to the last rounding: `take_weights` copies the model's weights, and the bench
compares the losses before it measures anything.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmtkit.data.batches.batch import Batch
from nmtkit.data.tokenizers.vocabulary import PAD
from nmtkit.models.transformer import TransformerConfig

SMOOTHING = 0.1
LONGEST = 512
ENCODER_LAYER = {
    "around_self_attention.norm.": "norm1.",
    "around_feed_forward.norm.": "norm2.",
    "self_attention.query_keys_values.": "self_attn.in_proj_",
    "self_attention.out.": "self_attn.out_proj.",
    "feed_forward.inner.": "linear1.",
    "feed_forward.out.": "linear2.",
}
"""Names of nmtkit's weights in a layer, with those that torch's encoder layer has."""


@dataclass(frozen=True)
class Loaded:
    """A batch on the floor's device. What would make that device wait was looked up before, on the CPU."""

    src: Tensor
    """`(B,S)`."""
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
    real = batch.targets.ids != PAD
    rows, columns = real.nonzero(as_tuple=True)
    targets = batch.targets.ids[rows, columns]
    return Loaded(
        batch.inputs.ids.to(device),
        batch.targets.shifted.to(device),
        targets.to(device),
        (rows.to(device), columns.to(device)),
        len(targets),
    )


class BareTransformer(nn.Module):
    """torch's own layers: pre-norm, one embedding for source, target and output."""

    positions: Tensor

    def __init__(self, config: TransformerConfig, vocabulary: int, dropout: float) -> None:
        super().__init__()
        width, heads, inner = config.hidden_size, config.heads, config.feed_forward_size
        self.width = width
        self.embedding = nn.Embedding(vocabulary, width)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.dropout = nn.Dropout(dropout)
        encoder_layer = nn.TransformerEncoderLayer(
            width, heads, inner, dropout, batch_first=True, norm_first=True
        )
        decoder_layer = nn.TransformerDecoderLayer(
            width, heads, inner, dropout, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(
            encoder_layer, config.encoder_layers, nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.decoder = nn.TransformerDecoder(
            decoder_layer, config.decoder_layers, nn.LayerNorm(width)
        )
        angles = torch.arange(LONGEST)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
        waves = torch.stack([angles.sin(), angles.cos()], 2).flatten(1)
        self.register_buffer("positions", waves, persistent=False)

    def _enter(self, ids: Tensor) -> Tensor:
        entering: Tensor = self.dropout(
            self.embedding(ids) * math.sqrt(self.width) + self.positions[: ids.shape[1]]
        )
        return entering

    def forward(self, batch: Loaded) -> Tensor:
        """Unnormalised predictions `(M,V)` of all target tokens that are not padding."""
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

    def loss(self, batch: Loaded) -> Tensor:
        """Label-smoothed cross-entropy in nats per target token."""
        return F.cross_entropy(self(batch).float(), batch.targets, label_smoothing=SMOOTHING)

    def take_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copies the weights of nmtkit's model, given by its own names."""
        self.load_state_dict(self.named_here(weights))

    def named_here(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights of nmtkit's model by the names that they have here; not those of experts."""
        encoder_layer = {theirs: ours for ours, theirs in ENCODER_LAYER.items()}
        decoder_layer = {
            **encoder_layer,
            "norm2.": "around_cross_attention.norm.",
            "norm3.": "around_feed_forward.norm.",
            "multihead_attn.out_proj.": "cross_attention.out.",
        }
        taken = {
            "embedding.weight": weights["tgt_embedding.weight"],
            "bias": weights["output.bias"],
        }
        for kind in ("weight", "bias"):
            sides = (
                ("encoder", self.encoder, encoder_layer),
                ("decoder", self.decoder, decoder_layer),
            )
            for side, stack, names in sides:
                taken[f"{side}.norm.{kind}"] = weights[f"{side}_norm.{kind}"]
                for number in range(stack.num_layers):
                    for theirs, ours in names.items():
                        if (name := f"{side}.{number}.{ours}{kind}") in weights:
                            taken[f"{side}.layers.{number}.{theirs}{kind}"] = weights[name]
            for number in range(self.decoder.num_layers):
                parts = [
                    weights[f"decoder.{number}.cross_attention.{p}.{kind}"]
                    for p in ("query", "keys_values")
                ]
                taken[f"decoder.layers.{number}.multihead_attn.in_proj_{kind}"] = torch.cat(parts)
        return taken
