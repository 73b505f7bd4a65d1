"""Show and Tell: an LSTM reads a picture once, as if it were the first word (Vinyals et al. 2015, section 3.1).

    x_{-1} = CNN(I)                       eq. 10
    x_t = W_e S_t                         eq. 11
    p_{t+1} = softmax(W LSTM(x_t))        eq. 12

`CNN(I)` is a map of the mean of the picture's regions: the grid that convolutions make of its pixels, which are trained
along, or features that another network has computed. Letters: R regions, D numbers in each.
"""

from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from nmtkit.core.errors import DataError
from nmtkit.core.settings import Field, Width
from nmtkit.data.batches.batch import Batch
from nmtkit.layers.elementary import Dropout
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.recurrent import build_rnn, init_weights, layers_first, rnn_step, run_rnn
from nmtkit.models.abilities import OwnMemoryLengths
from nmtkit.models.base import MODELS, M, ModelConfig, ModelOutput, Seq2Seq, VocabularySizes
from nmtkit.models.output import project_to_vocabulary
from nmtkit.models.rnn.recurrent import RecurrentMemory, RecurrentState


class CaptionerConfig(ModelConfig):
    """What captioners have in common."""

    embedding_size: Width = Field(default=256, ge=1)
    """Numbers per word."""
    hidden_size: Width = Field(default=256, ge=1)
    """Units of the LSTM."""
    dropout: float = Field(default=0.2, ge=0, lt=1)
    """Probability, on embeddings, on what is read of the picture, and before the output words."""
    cnn: list[Width] = Field(default_factory=list)
    """Channels of the convolutions that make regions of pictures, of 3 x 3 pixels, normalized, with ReLUs. Each but the
    last halves height and width: [32, 64, 128] makes regions of 4 x 4 pixels. []: features are regions already."""


class PictureEncoder(nn.Module):
    """The regions of pictures. A pixel has three colours and its two coordinates, as in Liu et al. 2018 (CoordConv).

    Of the layers that halve, the last looks right and down, by half of its step, and those before it left and up: so a
    region sees the pixels around its own middle, to half a pixel.
    """

    def __init__(self, channels: list[int]) -> None:
        super().__init__()
        self.side = 2 ** (len(channels) - 1)
        sizes = zip(pairwise([5, *channels]), [2] * (len(channels) - 1) + [1], strict=True)
        self.layers = nn.ModuleList(nn.Conv2d(*pair, 3, stride) for pair, stride in sizes)

    def forward(self, pixels: Tensor) -> Tensor:
        """The regions `(B,R,D)`, row by row from the upper left, of H rows of W pixels `(B,H,3W)`, from 0 to 1."""
        states = pixels.view(*pixels.shape[:2], -1, 3).permute(0, 3, 1, 2)  # (B,3,H,W)
        places = torch.meshgrid(
            *(torch.linspace(-1, 1, side) for side in states.shape[2:]), indexing="ij"
        )
        states = torch.cat(
            [states, torch.stack(places).to(states).expand(len(states), -1, -1, -1)], 1
        )
        for layers_left, layer in zip(range(len(self.layers), 0, -1), self.layers, strict=True):
            zeros = (0, 2, 0, 2) if layers_left == 2 else (1, 1, 1, 1)
            states = torch.relu(functional.group_norm(layer(functional.pad(states, zeros)), 1))
        return states.flatten(2).transpose(1, 2)


class Captioner(OwnMemoryLengths, Seq2Seq[M, RecurrentState]):
    """Regions, and an LSTM of one layer; a model says what this reads."""

    def __init__(self, config: CaptionerConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        self.encoder = PictureEncoder(config.cnn) if config.cnn else None
        self.region_size = [sizes["features"], *config.cnn][-1]
        self.dropout = Dropout(config.dropout)
        self.tgt_embedding = nn.Embedding(sizes["tgt"], config.embedding_size)

    def regions(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """The regions `(B,R,D)`, which of them are real `(B,R)`, and the mean of these `(B,D)`."""
        values, mask, heights = batch.inputs.features, batch.inputs.mask, batch.inputs.lengths
        values = values.to(self.tgt_embedding.weight.dtype)
        if self.encoder is not None:
            if values.shape[2] % 3 or bool((heights != heights[0]).any()):
                raise DataError(
                    "`model.cnn` reads pictures of one size: scale them to it; leave it out for features"
                )
            values = self.encoder(values[:, : int(heights[0])].contiguous())
            mask = mask[:, :1].repeat(1, values.shape[1])
        real = mask.unsqueeze(2)
        return values, mask, (values * real).sum(1) / real.sum(1)

    def memory_lengths(self, batch: Batch) -> Tensor:
        """The regions of each picture, `(B,)`."""
        if self.encoder is None:
            return batch.lengths
        columns = -(-batch.inputs.features.shape[2] // (3 * self.encoder.side))
        return (
            batch.lengths.add(self.encoder.side - 1)
            .div(self.encoder.side, rounding_mode="floor")
            .mul(columns)
        )

    def start(self, memory: Any) -> RecurrentState:
        """The state that `encode` has made."""
        return RecurrentState(memory.hidden, memory.cell)


class ShowAndTellConfig(CaptionerConfig):
    """The defaults suit small corpora; the paper has 512 for both sizes."""

    kind: Literal["show_and_tell"] = "show_and_tell"
    """Which model."""


@MODELS.register("show_and_tell")
class ShowAndTell(Captioner[RecurrentMemory]):
    """The picture is the first input of the LSTM; see the head of this file."""

    Config = ShowAndTellConfig
    has_attention = False

    def __init__(self, config: ShowAndTellConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        self.picture = nn.Linear(self.region_size, config.embedding_size)
        self.decoder = build_rnn("lstm", config.embedding_size, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, sizes["tgt"])
        init_weights(self, "xavier")

    def encode(self, batch: Batch) -> RecurrentMemory:
        """The state after x_{-1}."""
        _, mask, mean = self.regions(batch)
        zeros = mean.new_zeros(len(mean), 1, self.output.in_features)
        state = rnn_step(self.decoder, self.dropout(self.picture(mean)), zeros, zeros)
        return RecurrentMemory(mask, batch.inputs.copy, *state)

    def advance(
        self,
        tokens: Tensor,
        state: RecurrentState,
        memory: Any,
        cache: KVCache,
        need_attention: bool = False,
    ) -> tuple[ModelOutput, RecurrentState]:
        """One word of every hypothesis."""
        words = self.dropout(self.tgt_embedding(tokens))
        new = RecurrentState(*rnn_step(self.decoder, words, state.hidden, state.cell))
        return ModelOutput(new.hidden[:, -1]), new

    def unroll(
        self, batch: Batch, memory: RecurrentMemory, need_attention: bool = False
    ) -> ModelOutput:
        """The whole caption in one call. Padding stands on the right, so that no real word reads it."""
        words = self.dropout(self.tgt_embedding(batch.targets.shifted))
        return ModelOutput(
            run_rnn(self.decoder, words, layers_first(memory.hidden, memory.cell))[0]
        )

    def logits(self, output: ModelOutput, memory: RecurrentMemory) -> Tensor:
        """`(...,V)`; eq. 12 before the softmax."""
        return project_to_vocabulary(self.output, self.dropout(output.features), memory.shortlist)
