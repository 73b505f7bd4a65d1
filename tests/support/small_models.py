"""Small models, batches for them, and what several tests of models ask of gradients."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nmtkit.core.settings import parse
from nmtkit.data.batches.batch import Batch, collate
from nmtkit.data.tokenizers.vocabulary import UNK
from nmtkit.models.base import MODELS, Seq2Seq, VocabularySizes
from tests.support.gradients import backward

V = 12
SIZES = VocabularySizes({"src": V, "tgt": V}, shared=True)

SMALL: dict[str, dict[str, object]] = {
    "rnnsearch": {"embedding_size": 3, "hidden_size": 4, "attention_size": 5, "maxout_size": 3},
    "rnn_encdec": {"embedding_size": 3, "hidden_size": 4, "maxout_size": 3},
    "luong": {
        "embedding_size": 3,
        "hidden_size": 4,
        "attention_size": 5,
        "window_size": 2,
        "max_positions": 16,
    },
    "gnmt": {"embedding_size": 3, "hidden_size": 4},
    "lstmn_seq2seq": {"embedding_size": 3, "hidden_size": 4},
    "pointer_generator": {"embedding_size": 3, "hidden_size": 4, "attention_size": 5},
    "intra_attention": {"embedding_size": 6, "hidden_size": 8, "dropout": 0.0, "own_words": 0.0},
    "convs2s": {"embedding_size": 3, "hidden_size": 4, "encoder_layers": 2, "decoder_layers": 3},
    "transformer": {
        "hidden_size": 12,
        "feed_forward_size": 20,
        "heads": 3,
        "encoder_layers": 2,
        "decoder_layers": 3,
    },
}


def build(
    kind: str,
    sizes: VocabularySizes = SIZES,
    seed: int = 1,
    scale: float = 1.0,
    noise: float = 0.0,
    **settings: object,
) -> Any:
    """A model in float64, for evaluation.

    Args:
        kind: the model.
        sizes: of its vocabularies.
        seed: draws the weights.
        scale: what all parameters are multiplied by.
        noise: the deviation of what is added to them, so that none is zero, and a forgotten bias or gain shows.
        settings: what differs from `SMALL`.
    """
    torch.manual_seed(seed)
    model_class = MODELS.get(kind)
    model = model_class(
        parse(model_class.Config, {**SMALL[kind], **settings}, "recipe.yaml"), sizes
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale).add_(noise * torch.randn_like(parameter))
    return model.double().eval()


def batch_of(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]] | None = None
) -> Batch:
    """A batch of sentences without EOS; ids from V on are unknown words of their own sentence."""

    def known(rows: Sequence[Sequence[int]]) -> list[list[int]]:
        return [[UNK if word >= V else word for word in row] for row in rows]

    n_oov = max([0, *(word - V + 1 for row in sources for word in row)])
    if targets is None:
        return collate(known(sources), src_extended=sources, n_oov=n_oov)
    return collate(known(sources), known(targets), sources, targets, n_oov)


def finite_gradients(model: Seq2Seq, batch: Batch, **training: Any) -> dict[str, Tensor]:
    """Adds the gradient of a training step; asserts that its sums, and every parameter's gradient, are finite."""
    sums = backward(model, batch, 10, **training)
    assert all(bool(total.isfinite()) for total in sums.values())
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert [
        name for name, grad in gradients.items() if grad is None or not grad.isfinite().all()
    ] == []
    return gradients
