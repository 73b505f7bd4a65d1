"""XLNet sees what is before a word in the order and nothing else, and equals the published program."""

import random
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor

from nmtkit.data.batches.batch import Batch, Inputs, Targets
from nmtkit.data.tokenizers.vocabulary import EOS
from nmtkit.models.base import VocabularySizes
from nmtkit.zoo import xlnet
from nmtkit.zoo.xlnet import Order, Permutation, XLNet, XLNetConfig
from tests.support.pretraining_batches import seeded, tokenizers
from tests.support.seeds import moved

V = 11
TINY = XLNetConfig(
    hidden_size=12, feed_forward_size=16, heads=2, layers=2, dropout=0.0, norm_epsilon=1e-12
)


def model(config: XLNetConfig = TINY) -> XLNet:
    """In float64, with large weights, so that an untrained model has opinions."""
    torch.manual_seed(moved(3))
    built = XLNet(config, VocabularySizes({"tgt": V})).double().eval()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return built


def batch(ids: Tensor, ranks: Tensor, asked: Tensor, mask: Tensor | None = None) -> Batch:
    mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
    batch = Batch(Inputs(mask, mask.sum(1), ids), labels=ids.gather(1, asked))
    return batch.with_extra(Order(ranks, asked))


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_word_depends_on_those_before_it_in_the_order_and_on_no_other(norm: str) -> None:
    xlnet = model(TINY.changed({"norm": norm}))
    orders = torch.tensor([*permutations(range(4))])  # (24,4): the rank of each position
    ids = torch.tensor([[5, 6, 7, 8]]).expand(24, -1)
    embedded = xlnet.src_embedding(ids).detach().requires_grad_()
    xlnet.src_embedding.forward = lambda ids: embedded  # type: ignore[method-assign]  # to have its gradient
    output, _ = xlnet.read(batch(ids, orders, torch.arange(4).expand(24, -1)))
    for place in range(4):
        (gradient,) = torch.autograd.grad(
            output.features[:, place].square().sum(), embedded, retain_graph=True
        )
        reached = gradient.abs().amax(-1)  # (24,4)
        before = orders < orders[:, place, None]
        assert torch.equal(reached == 0, ~before), (
            "exactly zero where it is not before, and else never"
        )


def test_the_likelihood_of_the_plain_order_is_that_of_words_told_one_after_the_other() -> None:
    xlnet, ids = model(), torch.tensor([[5, 6, 7, 8, 9, 4]])
    ranks = torch.arange(6)[None]
    together = xlnet(batch(ids, ranks, ranks))[0]  # (6,V)
    for length in range(1, 7):
        beginning = ids[:, :length].clone()
        beginning[:, -1] = 10  # whatever stands there
        alone = xlnet(batch(beginning, ranks[:, :length], ranks[:, length - 1 : length]))[0, 0]
        torch.testing.assert_close(alone, together[length - 1], rtol=1e-10, atol=1e-10)


def test_padding_and_the_other_texts_of_a_batch_change_nothing() -> None:
    xlnet, ids = model(), torch.tensor([[5, 6, 7, 8, 9], [6, 5, 9, 0, 0]])
    ranks = torch.tensor([[0, 2, 0, 1, 0], [1, 0, 2, 0, 0]])
    asked = torch.tensor([[3, 1], [0, 2]])
    both = xlnet(batch(ids, ranks, asked, ids > 0))
    alone = xlnet(batch(ids[1:, :3], ranks[1:, :3], asked[1:]))
    torch.testing.assert_close(both[1:], alone, rtol=1e-10, atol=1e-10)
    whole = batch(ids, ranks, asked, ids > 0)
    content = xlnet.read(replace(whole, extras=()))[0].features
    assert content.shape == (2, 5, 12), "without an order: all positions, which see one another"


def copied(theirs: dict[str, Tensor], xlnet: XLNet) -> None:
    """Puts the weights of XLNetLMHeadModel into ours; the segment encodings stay behind."""
    width = xlnet.config.model_dump()["hidden_size"]
    flat = {name: one.reshape(width, -1) for name, one in theirs.items() if one.dim() == 3}
    ours = {
        "src_embedding.weight": theirs["transformer.word_embedding.weight"],
        "output.weight": theirs["lm_loss.weight"],
        "output.bias": theirs["lm_loss.bias"],
        "asked": theirs["transformer.mask_emb"][0],
    }
    for number in range(len(xlnet.encoder)):
        old, new = f"transformer.layer.{number}.", f"encoder.{number}."
        attention = new + "self_attention."
        ours[attention + "query.weight"] = flat[old + "rel_attn.q"].T
        ours[attention + "keys_values.weight"] = torch.cat(
            [flat[old + f"rel_attn.{name}"].T for name in "kv"]
        )
        ours[attention + "distance.weight"] = flat[old + "rel_attn.r"].T
        ours[attention + "out.weight"] = flat[old + "rel_attn.o"]
        ours[attention + "u"] = theirs[old + "rel_attn.r_w_bias"][:, None]
        ours[attention + "v"] = theirs[old + "rel_attn.r_r_bias"][:, None]
        for kind in ("weight", "bias"):
            ours[f"{new}around_self_attention.norm.{kind}"] = theirs[
                f"{old}rel_attn.layer_norm.{kind}"
            ]
            ours[f"{new}around_feed_forward.norm.{kind}"] = theirs[f"{old}ff.layer_norm.{kind}"]
            ours[f"{new}feed_forward.inner.{kind}"] = theirs[f"{old}ff.layer_1.{kind}"]
            ours[f"{new}feed_forward.out.{kind}"] = theirs[f"{old}ff.layer_2.{kind}"]
    xlnet.load_state_dict(ours)


def test_it_is_the_published_one() -> None:
    transformers = pytest.importorskip("transformers")
    shape = {
        "vocab_size": V,
        "d_model": 12,
        "n_layer": 2,
        "n_head": 2,
        "d_inner": 16,
        "dropout": 0.0,
    }
    torch.manual_seed(moved(1))
    theirs = transformers.XLNetLMHeadModel(transformers.XLNetConfig(**shape)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    ours = XLNet(TINY, VocabularySizes({"tgt": V})).eval()
    copied(theirs.state_dict(), ours)

    ids = torch.tensor([[5, 6, 7, 8, 9, 3], [6, 5, 9, 4, 3, 0]])
    ranks = torch.tensor([[0, 3, 0, 1, 2, 0], [0, 1, 3, 2, 0, 0]])
    asked = torch.tensor([[3, 4, 1], [1, 3, 2]])
    given = batch(ids, ranks, asked, ids > 0)
    hidden = (ranks[:, None, :] >= ranks[:, :, None]) & (ranks[:, None, :] > 0)
    found = theirs(
        input_ids=ids,
        attention_mask=given.inputs.mask.float(),
        perm_mask=hidden.float(),
        target_mapping=torch.nn.functional.one_hot(asked, 6).float(),
        labels=given.labels,
        output_hidden_states=True,
    )
    ends: list[Tensor] = []
    ours.encoder[-1].register_forward_pre_hook(lambda layer, entering: ends.append(entering[0]))
    log_probs = ours(given)
    torch.testing.assert_close(log_probs, found.logits.log_softmax(-1), rtol=1e-5, atol=1e-5)
    mean = -log_probs.gather(-1, given.labels[..., None]).mean()
    torch.testing.assert_close(mean, found.loss, rtol=1e-5, atol=1e-5)
    # of both streams before the first layer, then behind it
    content, query = found.hidden_states[2:4]
    real = given.inputs.mask
    torch.testing.assert_close(ends[0][:, :6][real], content[real], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ends[0][:, 6:], query, rtol=1e-5, atol=1e-5)


def test_the_base_model_has_the_published_size() -> None:
    base = {"hidden_size": 768, "feed_forward_size": 3072, "heads": 12, "layers": 12}
    with torch.device("meta"):
        xlnet = XLNet(XLNetConfig.model_validate(base), VocabularySizes({"tgt": 32_000}))
    count = sum(
        parameter.numel() for name, parameter in xlnet.named_parameters() if name != "output.bias"
    )
    # 116,718,336 in XLNet-base, of which the segment encodings of a layer are 2 x 768 and 768.
    assert count == 116_718_336 - 12 * 3 * 768


def corrupted(texts: list[list[int]]) -> Batch:
    return Permutation().corrupt(Batch(targets=Targets.of_texts(texts)), seeded(), tokenizers())


def test_a_permutation_asks_for_the_last_words_of_a_random_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = random.Random(moved(1))
    texts = [
        [],
        [140],
        *([draw.randrange(4, 140) for _ in range(draw.randint(0, 60))] for _ in range(200)),
    ]
    batch = corrupted(texts)
    for number, text in enumerate(texts):
        assert batch.inputs.ids[number, batch.inputs.mask[number]].tolist() == [*text, EOS]
    assert not batch.has_targets
    order = batch.extra(Order)
    assert order is not None
    ranks, places = order.ranks, order.asked
    for row, text in enumerate(texts):
        count = min(len(text), max(1, len(text) // xlnet.PREDICT_ONE_IN))
        asked = places[row, :count].tolist()
        assert len({*asked}) == count
        assert batch.labels[row].tolist() == [
            *(text[one] for one in asked),
            *[-1] * (places.shape[1] - count),
        ]
        expected = [0] * ranks.shape[1]
        for number, place in enumerate(asked, start=1):
            expected[place] = number
        assert ranks[row].tolist() == expected, "what is not asked for comes first"
    # Any word is asked for, and comes at any rank.
    monkeypatch.setattr(xlnet, "PREDICT_ONE_IN", 2)
    many = corrupted([[140, 139, 138, 137]] * 6000).extra(Order)
    assert many is not None
    for rank in (1, 2):
        found = np.bincount((many.ranks == rank).long().argmax(1).numpy(), minlength=4)[:4]
        assert float(((found - 1500) ** 2 / 1500).sum()) < 16.3  # chi-square, 3 degrees, p = 0.001
