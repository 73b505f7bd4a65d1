"""The Transformer as a whole: both ways through the decoder, beams, tying, alignment, limits, precision."""

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from walk import Walk

from nmtkit.core.errors import DataError, RecipeError
from nmtkit.core.settings import parse
from nmtkit.data.batch import Batch
from nmtkit.layers.transformer import DecoderLayer
from nmtkit.models.base import MODELS, Seq2Seq, VocabularySizes
from nmtkit.models.transformer import Transformer, TransformerConfig, TransformerMemory

V = 23
SHARED = VocabularySizes(V, V, shared=True)


def build(settings: Mapping[str, object] | None = None, sizes: VocabularySizes = SHARED) -> Transformer:
    """A small model in float64, its parameters moved off the round numbers they start with."""
    torch.manual_seed(5)
    small = {"hidden_size": 12, "feed_forward_size": 20, "heads": 3, "encoder_layers": 2, "decoder_layers": 3}
    model = Transformer(parse(TransformerConfig, {**small, **(settings or {})}, "test"), sizes).double().eval()
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model


def sentences(lengths: list[int], tgt_length: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(11)
    src = torch.randint(4, V, (len(lengths), max(lengths)), generator=generator)
    tgt_in = torch.randint(4, V, (len(lengths), tgt_length), generator=generator)
    src_lengths = torch.tensor(lengths)
    mask = torch.arange(max(lengths)) < src_lengths[:, None]
    src = src.masked_fill(~mask, 0)
    tgt_mask = torch.ones_like(tgt_in, dtype=torch.bool)
    return Batch(src, mask, src_lengths, src, tgt_in, tgt_in.roll(-1, 1), tgt_in.roll(-1, 1), tgt_mask)


VARIANTS: list[dict[str, object]] = [
    {},
    {"norm": "post"},
    {"positions": "learned", "max_positions": 8},
    {"activation": "gelu", "tie": "none"},
    {"encoder_layers": 3, "decoder_layers": 1, "tie": "all"},
]


@pytest.mark.parametrize("settings", VARIANTS)
@pytest.mark.parametrize("gradients", [True, False])
def test_whole_pass_equals_step_by_step(settings: dict[str, object], gradients: bool) -> None:
    model, batch = build(settings), sentences([7, 3, 5])
    with torch.set_grad_enabled(gradients):
        memory = model.encode(batch)
        whole = model.unroll(batch, memory, need_attention=True)
        steps = Seq2Seq.unroll(model, batch, memory, need_attention=True)
    assert torch.allclose(whole.features, steps.features, rtol=0, atol=1e-10)
    assert whole.attention is not None
    assert steps.attention is not None
    assert torch.allclose(whole.attention, steps.attention, rtol=0, atol=1e-10)


def test_step_by_step_has_the_same_gradient() -> None:
    model, batch = build(), sentences([4, 6])
    gradients = []
    for unroll in (model.unroll, lambda b, m: Seq2Seq.unroll(model, b, m)):
        model.zero_grad()
        memory = model.encode(batch)
        torch.autograd.backward(model.predict(unroll(batch, memory), memory)[..., 5].sum())
        gradients.append([parameter.grad for parameter in model.parameters()])
    for whole, step in zip(*gradients, strict=True):
        assert whole is not None
        assert step is not None
        assert torch.allclose(whole, step, rtol=0, atol=1e-9)


def walk(model: Transformer, memory: TransformerMemory, words: Tensor, rows: Tensor) -> Tensor:
    """Log-probabilities `(T,N,V)` of words `(T,N)`, after `start` was spread over `rows`."""
    here = Walk(model, memory, len(rows) // len(memory.mask))
    return torch.stack([here.step(tokens)[0] for tokens in words])


@torch.no_grad()
def test_a_beam_reads_one_row_of_memory_as_if_it_were_copied() -> None:
    model, batch, beam = build(), sentences([7, 3, 5]), 4
    memory = model.encode(batch)
    spread = torch.arange(3).repeat_interleave(beam)
    words = torch.randint(4, V, (5, 3 * beam), generator=torch.Generator().manual_seed(2))
    folded = walk(model, memory, words, spread)
    copied = walk(model, memory.select(spread), words, spread)
    alone = walk(model, model.encode(batch.select(spread)), words, torch.arange(3 * beam))
    assert torch.allclose(folded, copied, rtol=0, atol=1e-10)
    assert torch.allclose(folded, alone, rtol=0, atol=1e-10)


@torch.no_grad()
def test_hypotheses_follow_their_parents_and_leave() -> None:
    model, batch = build(), sentences([7, 3])
    memory = model.encode(batch)
    words = torch.randint(4, V, (5, 2), generator=torch.Generator().manual_seed(3))
    straight = walk(model, memory, words, torch.arange(2))

    here = Walk(model, memory, 2)
    for number in range(2):
        here.step(torch.stack([words[number, 0], words[0, 0], words[1, 1], words[number, 1]]))
    log_probs, _ = here.step(words[2].repeat_interleave(2), torch.tensor([[0, 0], [1, 1]]))
    assert torch.allclose(log_probs, straight[2].repeat_interleave(2, 0), rtol=0, atol=1e-10)

    here = here.kept(torch.tensor([1]))  # sentence 0 is finished
    log_probs, _ = here.step(words[3, 1].repeat(2))
    assert torch.allclose(log_probs, straight[3, 1].repeat(2, 1), rtol=0, atol=1e-10)


def test_padding_is_never_read() -> None:
    model, batch = build(), sentences([7, 3])
    found = model(batch, need_attention=True)
    assert batch.tgt_in is not None
    other = replace(batch, src=batch.src.masked_fill(~batch.src_mask, 9), tgt_in=batch.tgt_in.clone())
    assert other.tgt_in is not None
    other.tgt_in[:, 4:] = 9
    changed = model(other)
    assert torch.allclose(found.log_probs[:, :4], changed.log_probs[:, :4], rtol=0, atol=1e-12)
    assert not torch.allclose(found.log_probs[:, 4:], changed.log_probs[:, 4:], rtol=0, atol=1e-6)
    assert found.attention is not None
    assert found.attention[1, :, 3:].abs().max().item() == 0.0


@pytest.mark.parametrize(("layer", "expected"), [(None, 1), (1, 0), (3, 2)])
def test_the_alignment_is_one_layers_attention_over_heads(layer: int | None, expected: int) -> None:
    model, batch = build({"alignment_layer": layer}), sentences([7, 3, 5])
    plain, asked = model(batch), model(batch, need_attention=True)
    assert plain.attention is None
    assert torch.equal(plain.log_probs, asked.log_probs)
    assert asked.attention.shape == (3, 6, 7)
    assert torch.allclose(asked.attention.sum(-1), torch.ones(3, 6, dtype=torch.float64))
    changed = cast(DecoderLayer, model.decoder[expected]).cross_attention.query  # without queries it looks evenly
    nn.init.zeros_(changed.weight)
    nn.init.zeros_(changed.bias)
    even = model(batch, need_attention=True).attention
    assert torch.allclose(even, batch.src_mask[:, None] / batch.src_lengths[:, None, None].double().expand(3, 6, 1))


def test_the_last_but_one_layer_of_one_layer_is_that_layer() -> None:
    assert build({"decoder_layers": 1}).alignment_layer == 0


def test_tying_shares_storage_and_gradient() -> None:
    batch = sentences([7, 3])
    for tie, matrices in (("none", 3), ("decoder", 2), ("all", 1)):
        model = build({"tie": tie})
        named = (model.src_embedding.weight, model.tgt_embedding.weight, model.output.weight)
        assert len({weight.data_ptr() for weight in named}) == matrices
        assert sum(weight.shape == (V, 12) for weight in model.parameters()) == matrices

    separate, tied = build({"tie": "none"}), build({"tie": "all"})
    state = {**tied.state_dict()}
    separate.load_state_dict(state)
    for model in (separate, tied):
        (model(batch).log_probs[..., 7] ** 2).sum().backward()
    parts = [separate.src_embedding.weight.grad, separate.tgt_embedding.weight.grad, separate.output.weight.grad]
    present = [part for part in parts if part is not None]
    assert [bool(part.any()) for part in present] == [True] * 3
    assert tied.output.weight.grad is not None
    assert torch.allclose(tied.output.weight.grad, torch.stack(present).sum(0), atol=1e-10)


def test_one_matrix_for_all_needs_one_vocabulary() -> None:
    with pytest.raises(RecipeError, match=r"model\.tie: `all`.*one vocabulary.*joint"):
        build({"tie": "all"}, VocabularySizes(V, V, shared=False))
    apart = build(sizes=VocabularySizes(V + 4, V, shared=False))
    assert apart(sentences([4, 2])).log_probs.shape == (2, 6, V)


@torch.no_grad()
def test_learned_positions_end_in_a_clear_error() -> None:
    model = build({"positions": "learned", "max_positions": 6})
    assert model(sentences([6, 2])).log_probs.shape == (2, 6, V)
    with pytest.raises(DataError, match="only 6 positions"):
        model.encode(sentences([7, 2]))
    memory = model.encode(sentences([5, 2]))
    here = Walk(model, memory)
    for _ in range(6):
        here.step(torch.tensor([4, 4]))
    with pytest.raises(DataError, match="only 6 positions"):
        here.step(torch.tensor([4, 4]))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"hidden_size": 10, "heads": 4}, "not a multiple of heads"),
        ({"decoder_layers": 2, "alignment_layer": 3}, "does not exist: decoder_layers is 2"),
        ({"dropout": 1.0}, "less than 1"),
        ({"norm": "per"}, "did you mean 'pre'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(RecipeError, match=complaint):
        parse(TransformerConfig, settings, "test")


def test_every_setting_says_what_it_means() -> None:
    assert MODELS.get("transformer") is Transformer
    for name in TransformerConfig.model_fields:
        assert TransformerConfig.meaning(name), name


def test_bfloat16_stays_close() -> None:
    model, batch = build({"hidden_size": 24}), sentences([7, 3, 5])
    model.float()
    plain = model(batch).log_probs
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(batch).log_probs
        rough.sum().backward()
        with torch.no_grad():
            memory = model.encode(batch)
            steps = model.predict(Seq2Seq.unroll(model, batch, memory), memory)
    assert torch.allclose(plain, rough.float(), atol=0.1)
    assert torch.allclose(plain, steps.float(), atol=0.1)
    assert not torch.equal(plain, rough.float())
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_dropout_acts_in_training_only() -> None:
    model, batch = build({"dropout": 0.3, "attention_dropout": 0.3, "activation_dropout": 0.3}), sentences([7, 3])
    assert torch.equal(model(batch).log_probs, model(batch).log_probs)
    model.train()
    assert not torch.equal(model(batch).log_probs, model(batch).log_probs)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_agrees_with_the_cpu() -> None:
    model, batch = build(), sentences([7, 3, 5])
    expected = model(batch, need_attention=True)
    model.cuda()
    found = model(batch.to("cuda"), need_attention=True)
    assert torch.allclose(expected.log_probs, found.log_probs.cpu(), atol=1e-9)
    assert torch.allclose(expected.attention, found.attention.cpu(), atol=1e-9)
    with torch.no_grad():
        on_gpu = batch.to("cuda")
        memory = model.encode(on_gpu)
        steps = Seq2Seq.unroll(model, on_gpu, memory)
    assert torch.allclose(model.predict(steps, memory).cpu(), expected.log_probs, atol=1e-9)


@torch.no_grad()
def test_positions_count_per_sentence() -> None:
    model = build()
    memory = model.encode(sentences([3, 2]))
    here = Walk(model, memory, 2)
    for expected in range(3):
        here.step(torch.tensor([4, 5, 6, 7]))  # follows in the next step
        assert here.cache.position.tolist() == [expected] * 2
