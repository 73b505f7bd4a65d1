"""Rows of an imported model's embeddings that special tokens share.

These functions are not in `languages.py`, because processes that only encode text import that module and need no torch.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from nmtkit.data.tokenizers.huggingface_tokenizer import LANGUAGE, HuggingFaceTokenizer
from nmtkit.data.tokenizers.tokenizer import Tokenizer
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import BOS


def copy_first_input(embedding: nn.Embedding, tokenizers: Tokenizers) -> None:
    """If the decoder's first input is a language, copies the embedding of this language to BOS."""
    start = tokenizers.config.affixes.get("tgt", {}).get("start", [])
    if start and start != [LANGUAGE]:
        (language,) = tokenizers.tgt.vocabulary.ids(start)
        with torch.no_grad():
            embedding.weight[BOS] = embedding.weight[language]


def tie_shared_rows(weight: nn.Parameter, tokenizer: Tokenizer | None) -> None:
    """Keeps rows identical during training if their tokens, such as BOS and EOS, share a row in the public model.

    Every row in such a group gets the sum of the group's gradients, i.e. the gradient of the public model's shared row.
    """
    if not isinstance(tokenizer, HuggingFaceTokenizer) or not weight.requires_grad:
        return
    groups = [torch.tensor(ids) for ids in tokenizer.shared_rows()]
    if groups:
        hook = partial(_sum_rows, groups)
        weight.register_hook(hook)  # type: ignore[no-untyped-call]  # untyped in torch


def _sum_rows(groups: Sequence[Tensor], gradient: Tensor) -> Tensor:
    summed = gradient.clone()  # (V, E)
    for ids in groups:
        rows = ids.to(gradient.device)  # (G,)
        summed[rows] = gradient[rows].sum(0)
    return summed
