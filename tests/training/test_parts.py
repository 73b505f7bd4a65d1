"""The output layer in parts gives the gradient of the whole."""

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch

from nmtkit.core.settings import parse
from nmtkit.data.batches.batch import Batch, Inputs, collate
from nmtkit.models.abilities import pretraining_objectives
from nmtkit.models.base import MODELS, VocabularySizes, as_decoder
from nmtkit.training.losses.attention import AlignmentLoss, alignment_loss, coverage_loss
from nmtkit.training.losses.likelihood import likelihood
from nmtkit.zoo.xlnet import Order
from tests.support.cases import daily
from tests.support.gradients import assert_same_gradients, backward, gradients
from tests.support.step_by_step import told

SMALL = {
    "rnnsearch": {
        "embedding_size": 6,
        "hidden_size": 5,
        "attention_size": 4,
        "maxout_size": 6,
        "tie": "decoder",
    },
    "luong": {
        "embedding_size": 5,
        "hidden_size": 5,
        "window": "local_p",
        "window_size": 1,
        "tie": "decoder",
    },
    "rnn_encdec": {"embedding_size": 6, "hidden_size": 5, "maxout_size": 4},
    "gnmt": {"embedding_size": 6, "hidden_size": 5, "layers": 3},
    "lstmn_seq2seq": {"embedding_size": 6, "hidden_size": 5, "layers": 2},
    "pointer_generator": {"embedding_size": 6, "hidden_size": 5, "attention_size": 4},
    "intra_attention": {"embedding_size": 6, "hidden_size": 6, "own_words": 0.0},
    "convs2s": {"embedding_size": 6, "hidden_size": 5, "layers": 2},
    "show_and_tell": {"embedding_size": 6, "hidden_size": 5, "cnn": [4, 3]},
    "show_attend_tell": {"embedding_size": 6, "hidden_size": 5, "attention_size": 4, "cnn": [4, 3]},
    "transformer": {"hidden_size": 8, "feed_forward_size": 12, "heads": 2, "tie": "all"},
    "t5": {
        "hidden_size": 8,
        "feed_forward_size": 12,
        "heads": 2,
        "encoder_layers": 1,
        "decoder_layers": 1,
    },
    "transformer_lm": {"hidden_size": 8, "feed_forward_size": 12, "heads": 2, "layers": 1},
    "rnn_lm": {"hidden_size": 5, "layers": 1},
    "pointer_sentinel": {"hidden_size": 5, "layers": 1, "window": 2},
    "lstmn": {"hidden_size": 5, "layers": 1},
    "snail": {"embedding_size": 5, "filters": 2, "reach": 3, "blocks": 1, "attention_size": 3},
    "ntm": {"embedding_size": 5, "hidden_size": 4, "memory_slots": 4, "memory_width": 3},
    "bert": {"hidden_size": 8, "feed_forward_size": 12, "heads": 2, "layers": 1},
    "electra": {"hidden_size": 8, "feed_forward_size": 12, "heads": 2, "layers": 1},
    "xlnet": {"hidden_size": 8, "feed_forward_size": 12, "heads": 2, "layers": 1},
    "elmo": {"hidden_size": 5, "layers": 2},
    "word_mean": {"hidden_size": 5},
    "attention_classifier": {"embedding_size": 6, "hidden_size": 5, "attention_size": 4},
    "hierarchical_attention": {"embedding_size": 6, "hidden_size": 5, "attention_size": 4},
}
LINKS = [[0, 0, 2, 1, 1, 1], [], [0, 3, 0, 0]]  # 4 target tokens have links
LINKED = collate([[5, 6, 7], [8, 9], [4]], [[7, 6], [5], [9, 9, 8, 4]], alignment=LINKS)
# 10 target tokens, EOS counted
BATCH = collate([[5, 6, 7], [8, 9], [4]], [[7, 6], [5], [9, 9, 8, 4]])
PICTURES = [np.random.default_rng(number).random((5, 21), dtype=np.float32) for number in range(3)]
SEEN = collate(None, [[7, 6], [5], [9, 9, 8, 4]], features=PICTURES)
"""Pictures of 5 x 7 pixels, and 10 target tokens."""
READ = Inputs.of_texts([[5, 6, 7], [8, 9], [4]])
PLACES = torch.arange(4).repeat(3, 1)
LABELLED = Batch(READ, labels=READ.ids.masked_fill(~READ.mask, -1)).with_extra(
    Order((PLACES + 1) * READ.mask, PLACES)
)
"""For models that write nothing."""


def build(name: str, settings: dict[str, object] | None = None) -> Any:
    torch.manual_seed(3)
    kind = MODELS.get(name)
    config = parse(
        kind.Config, {"kind": name, "dropout": 0.0, **SMALL[name], **(settings or {})}, "test"
    )
    sizes = (
        {"features": 21, "tgt": 10}
        if "cnn" in SMALL[name]
        else {"src": 10, "tgt": 10, "labels": 10}
    )
    return kind(config, VocabularySizes(sizes, shared=True)).double()


WAYS = [(1, 0.0), (3, 0.1), (10, 0.1), (1000, 0.0)]
ASKED = [(name, *WAYS[(n + more) % 4]) for more in range(4) for n, name in enumerate(sorted(SMALL))]
"""Of each model, rows and smoothing: `make test` asks two of them in their turn."""


@pytest.mark.parametrize(("name", "rows", "smoothing"), daily(ASKED, 2 * len(SMALL)))
def test_gradient_in_parts_is_that_of_the_whole(name: str, rows: int, smoothing: float) -> None:
    """Without smoothing a model that copies computes the mixture of the wanted words alone."""
    whole = build(name)
    batch = LABELLED if as_decoder(whole) is None else SEEN if "features" in whole.sizes else BATCH
    if "both_directions" in pretraining_objectives(type(whole)):
        batch = replace(batch, labels=torch.stack([batch.labels, batch.labels], 1))
    if whole.output_column == "labels":
        batch = replace(LABELLED, labels=torch.tensor([4, 0, 7]))  # one of each text
    total, nll = likelihood(whole(batch, keep=batch.loss_mask), batch, 10, smoothing)
    torch.autograd.backward(total / 10)

    parted = build(name)
    sums = backward(parted, batch, 10, rows * 4 * 10, label_smoothing=smoothing)
    assert sums["loss"].item() == pytest.approx(total.item(), rel=1e-12)
    assert sums["nll"].item() == pytest.approx(nll.item(), rel=1e-12)
    assert_same_gradients(gradients(parted), gradients(whole))


@pytest.mark.parametrize("rows", [1, 3, 1000])
@pytest.mark.parametrize(
    ("name", "settings", "losses"),
    [
        *(
            (name, settings, {"guided_alignment": {"loss": loss, "weight": 0.3}})
            for loss in get_args(AlignmentLoss)
            for name, settings in (
                ("transformer", {}),
                ("transformer", {"alignment_heads": 2}),
                ("luong", {}),
            )
        ),
        ("rnnsearch", {}, {"guided_alignment": {"weight": 0.3}}),
        ("rnnsearch", {}, {"coverage_weight": 0.7}),
        ("pointer_generator", {"coverage": True}, {"coverage_weight": 0.7}),
        ("show_attend_tell", {}, {"doubly_stochastic": 0.7}),
        ("luong", {"source_end": False}, {"doubly_stochastic": 0.7}),
    ],
    ids=str,
)
def test_losses_of_attention_add_exactly_their_gradient(
    name: str, settings: dict[str, object], losses: dict[str, Any], rows: int
) -> None:
    """The output layer reads the attention in parts, the loss whole: together the gradient of one formula."""
    whole = build(name, settings)
    batch = SEEN if "features" in whole.sizes else LINKED
    output = told(whole, batch, batch.targets.mask)
    total, nll = likelihood(output.log_probs, batch, 10, 0.1)
    if "doubly_stochastic" in losses:
        term, scale = "doubly_stochastic_loss", 0.7 / 3
        # regions, or words without </s>
        places = [12, 12, 12] if "features" in whole.sizes else [3, 2, 1]
        loss = sum(
            (1 - row[:length, :last].sum(0)).square().sum()
            for row, length, last in zip(output.attention, [3, 2, 5], places, strict=True)
        )
    elif "coverage_weight" in losses:
        term, loss, scale = (
            "coverage_loss",
            coverage_loss(output.attention, LINKED.targets.mask),
            0.7 / 10,
        )
    else:
        kind = losses["guided_alignment"].get("loss", "cross_entropy")
        term, loss, scale = (
            "alignment_loss",
            alignment_loss(output.attention, LINKED.alignment, kind),
            0.3 / 4,
        )
    torch.autograd.backward(total / 10 + scale * loss)

    parted = build(name, settings)
    sums = backward(parted, batch, 10, rows * 4 * 10, links=4, label_smoothing=0.1, **losses)
    expected = {term: loss.item(), "loss": total.item(), "nll": nll.item()}
    assert {name: value.item() for name, value in sums.items()} == pytest.approx(
        expected, rel=1e-12
    )
    assert_same_gradients(gradients(parted), gradients(whole))


def test_the_models_own_alignment_is_a_constant_target() -> None:
    whole = build("transformer", {"alignment_heads": 2})
    memory = whole.encode(LINKED)
    readout, heads = whole.unroll_with_heads(LINKED, memory)
    assert heads.shape == (3, 2, 5, 4)
    assert torch.equal(readout.attention, heads[:, 1])
    links = torch.zeros(3, 5, 4, dtype=torch.bool)
    lengths = [2, 1, 4]  # target words, EOS not counted
    for row, length in enumerate(lengths):
        for position in range(length):
            links[row, position, int(heads[row, :, position].sum(0).argmax())] = True
    log_probs = whole.predict(readout.gather(LINKED.targets.mask), memory)
    alignment = alignment_loss(readout.attention, links)
    total, _ = likelihood(log_probs, LINKED, 10, 0.1)
    torch.autograd.backward(total / 10 + 0.3 * alignment / 7)

    own = build("transformer", {"alignment_heads": 2})
    guided = {"source": "model", "weight": 0.3}
    sums = backward(own, BATCH, 10, 40, links=7, label_smoothing=0.1, guided_alignment=guided)
    assert sums["alignment_loss"].item() == pytest.approx(alignment.item(), rel=1e-12)
    assert_same_gradients(gradients(own), gradients(whole))


def test_every_model_was_asked() -> None:
    assert set(SMALL) == set(MODELS.names())
