"""Show and Tell: an LSTM reads the image once, as if it were the first word (Vinyals et al. 2015, section 3.1).

    x_{-1} = CNN(I)                       eq. 10
    x_t = W_e S_t                         eq. 11
    p_{t+1} = softmax(W LSTM(x_t))        eq. 12

`CNN(I)` is a linear layer over the mean of the image's regions: either a grid computed by
convolutions that are trained jointly, or features from another network. Notation: R regions of size
D.
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
    """Settings shared by all captioners."""

    embedding_size: Width = Field(default=256, ge=1)
    """Size of the word embeddings."""
    hidden_size: Width = Field(default=256, ge=1)
    """Number of LSTM units."""
    dropout: float = Field(default=0.2, ge=0, lt=1)
    """Dropout rate for embeddings, image features and the input of the output layer."""
    cnn: list[Width] = Field(default_factory=list)
    """Number of channels of each 3 x 3 convolution (normalized, followed by a ReLU) that turns images into regions.

    Each convolution except the last halves height and width: [32, 64, 128] produces regions of
    4 x 4 pixels. An empty list means that the input features are already regions.
    """


class PictureEncoder(nn.Module):
    """Computes the regions of images.

    A pixel has three colours and two coordinates, as in CoordConv (Liu et al. 2018). The last halving layer is shifted
    right and down by half its step, and earlier ones left and up, so a region is centred on its own pixels to within
    half a pixel.
    """

    def __init__(self, channels: list[int]) -> None:
        super().__init__()
        self.side = 2 ** (len(channels) - 1)
        sizes = zip(pairwise([5, *channels]), [2] * (len(channels) - 1) + [1], strict=True)
        self.layers = nn.ModuleList(nn.Conv2d(*pair, 3, stride) for pair, stride in sizes)

    def forward(self, pixels: Tensor) -> Tensor:
        """Returns regions `(B,R,D)` in row order from the upper left, for H rows of W pixels `(B,H,3W)` in [0, 1]."""
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
    """Base class of captioners: image regions and a one-layer LSTM, whose input the subclass defines."""

    def __init__(self, config: CaptionerConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        self.encoder = PictureEncoder(config.cnn) if config.cnn else None
        self.region_size = [sizes["features"], *config.cnn][-1]
        self.dropout = Dropout(config.dropout)
        self.tgt_embedding = nn.Embedding(sizes["tgt"], config.embedding_size)

    def regions(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the regions `(B,R,D)`, their mask `(B,R)`, and the mean of the real regions `(B,D)`."""
        values, mask, heights = batch.inputs.features, batch.inputs.mask, batch.inputs.lengths
        values = values.to(self.tgt_embedding.weight.dtype)
        if self.encoder is not None:
            if values.shape[2] % 3 or bool((heights != heights[0]).any()):
                raise DataError(
                    "`model.cnn` requires images of equal size; scale the images, or remove the "
                    "setting if the inputs are features"
                )
            values = self.encoder(values[:, : int(heights[0])].contiguous())
            mask = mask[:, :1].repeat(1, values.shape[1])
        real = mask.unsqueeze(2)
        return values, mask, (values * real).sum(1) / real.sum(1)

    def memory_lengths(self, batch: Batch) -> Tensor:
        """Returns the number of regions per image, `(B,)`."""
        if self.encoder is None:
            return batch.lengths
        columns = -(-batch.inputs.features.shape[2] // (3 * self.encoder.side))
        return (
            batch.lengths.add(self.encoder.side - 1)
            .div(self.encoder.side, rounding_mode="floor")
            .mul(columns)
        )

    def start(self, memory: Any) -> RecurrentState:
        """Returns the state computed by `encode`."""
        return RecurrentState(memory.hidden, memory.cell)


class ShowAndTellConfig(CaptionerConfig):
    """Settings of Show and Tell. The defaults suit small corpora; the paper uses 512 for both sizes."""

    kind: Literal["show_and_tell"] = "show_and_tell"


@MODELS.register("show_and_tell")
class ShowAndTell(Captioner[RecurrentMemory]):
    """The image is the first input of the LSTM; see the module docstring."""

    Config = ShowAndTellConfig
    has_attention = False

    def __init__(self, config: ShowAndTellConfig, sizes: VocabularySizes) -> None:
        super().__init__(config, sizes)
        self.picture = nn.Linear(self.region_size, config.embedding_size)
        self.decoder = build_rnn("lstm", config.embedding_size, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, sizes["tgt"])
        init_weights(self, "xavier")

    def encode(self, batch: Batch) -> RecurrentMemory:
        """Returns the state after x_{-1}."""
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
        """Runs one decoding step for every hypothesis."""
        words = self.dropout(self.tgt_embedding(tokens))
        new = RecurrentState(*rnn_step(self.decoder, words, state.hidden, state.cell))
        return ModelOutput(new.hidden[:, -1]), new

    def unroll(
        self, batch: Batch, memory: RecurrentMemory, need_attention: bool = False
    ) -> ModelOutput:
        """Decodes the whole caption in one call. Padding is on the right, so no real word reads it."""
        words = self.dropout(self.tgt_embedding(batch.targets.shifted))
        return ModelOutput(
            run_rnn(self.decoder, words, layers_first(memory.hidden, memory.cell))[0]
        )

    def logits(self, output: ModelOutput, memory: RecurrentMemory) -> Tensor:
        """Returns the logits `(...,V)`: eq. 12 before the softmax."""
        return project_to_vocabulary(self.output, self.dropout(output.features), memory.shortlist)
