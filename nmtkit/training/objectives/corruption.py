"""What pretraining objectives share: the texts of a batch as they are read, and the ids that stand for hidden words."""

import torch
from torch import Tensor

from nmtkit.data.batch import Batch, Inputs
from nmtkit.data.tokenizers import Tokenizers
from nmtkit.data.vocabulary import BOS

MASK = "<mask>"
"""The special token that stands for a hidden word."""


def whole_texts(batch: Batch) -> Inputs:
    """The targets of a batch as texts to be read: BOS, the text, EOS, `(B,T+1)`; a block of running text after BOS."""
    begin = torch.full_like(batch.targets.ids[:, :1], BOS)
    return inputs_of(torch.cat([begin, batch.targets.ids], 1), 1 + batch.targets.mask.sum(1))


def inputs_of(ids: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Inputs:
    """Inputs of texts `(B,S)` on the CPU, of which so many positions `(B,)` are real; `segments` as in `Inputs`."""
    return Inputs(torch.arange(ids.shape[1]) < lengths[:, None], lengths, ids, segments=segments)


def special_id(tokenizers: Tokenizers, token: str = MASK) -> int:
    """The id of a special token of the targets, which the recipe was checked for."""
    return tokenizers.tgt.vocabulary.ids([token])[0]
