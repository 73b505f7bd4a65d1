"""GPT and GPT-2: their equations in numpy, what they must not see, and the published models with the same weights."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from nmtkit.data.batches.batch import Batch, Targets
from nmtkit.data.tokenizers.vocabulary import BOS
from nmtkit.models.base import VocabularySizes
from nmtkit.models.language.transformer_lm import TransformerLM, TransformerLMConfig
from tests.support.formulas import Array, layer_norm, linear, multi_head, softmax

V, H, HEADS, LAYERS = 12, 8, 2, 2
TINY = {
    "hidden_size": H,
    "feed_forward_size": 12,
    "heads": HEADS,
    "layers": LAYERS,
    "max_positions": 16,
}
TEXTS = [[5, 9, 4, 9, 11, 7], [6, 4]]


def tiny(norm: str, **settings: Any) -> TransformerLM:
    torch.manual_seed(1)
    config = TransformerLMConfig.model_validate({**TINY, "norm": norm, "dropout": 0.0, **settings})
    model = TransformerLM(config, VocabularySizes({"tgt": V})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def given(*texts: list[int]) -> Batch:
    return Batch(targets=Targets.of_texts(texts))


def feed_forward(layer: Any, states: Array) -> Array:
    inner = linear(layer.inner, states)
    # Hendrycks and Gimpel 2016, section 2
    gelu = 0.5 * inner * (1 + np.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)))
    return linear(layer.out, gelu)


def by_hand(model: TransformerLM, words: list[int]) -> Array:
    """Log-probabilities `(T,V)`: Radford et al. 2018, equation 2; Radford et al. 2019, section 2.3."""
    embeddings = model.tgt_embedding.weight.detach().numpy()
    states = embeddings[words] + model.tgt_positions.table.detach().numpy()[: len(words)]
    pre, seen = (
        model.config.model_dump()["norm"] == "pre",
        np.tril(np.ones((len(words), len(words)), dtype=bool)),
    )
    for layer in model.decoder:
        for around, part in (
            (layer.around_self_attention, layer.self_attention),
            (layer.around_feed_forward, layer.feed_forward),
        ):
            entering = layer_norm(around.norm, states) if pre else states
            if part is layer.feed_forward:
                result = feed_forward(part, entering)
            else:
                query, keys, values = np.split(linear(part.query_keys_values, entering), 3, -1)
                result = linear(part.out, multi_head(query, keys, values, HEADS, seen)[0])
            states = states + result if pre else layer_norm(around.norm, states + result)
    states = layer_norm(model.decoder_norm, states) if pre else states
    return np.log(softmax(states @ embeddings.T))


@torch.no_grad()
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_model_is_its_equations(norm: str) -> None:
    model = tiny(norm)
    np.testing.assert_allclose(
        model(given(TEXTS[0]))[0].numpy(), by_hand(model, [BOS, *TEXTS[0]]), atol=1e-12
    )


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_no_loss_depends_on_what_follows(norm: str) -> None:
    """The gradient of each word's loss is exactly zero in the vectors of that word and all behind it."""
    # no word twice, so that rows are positions
    model, words = tiny(norm, tie="none"), [BOS, 4, 5, 6, 7, 8]
    log_probs = model(given(words[1:]))[0]
    for place in range(len(words)):
        model.zero_grad()
        log_probs[place, 9].backward(retain_graph=True)
        reached = model.tgt_embedding.weight.grad.abs().sum(1)[words] > 0
        assert reached.tolist() == [at <= place for at in range(len(words))]


@torch.no_grad()
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_hidden_states_logits_and_loss_are_those_of_the_published_model(norm: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(2)
    sizes = {"vocab_size": V, "n_positions": 16, "n_embd": H, "n_layer": LAYERS, "n_head": HEADS}
    if norm == "pre":
        theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, n_inner=12)).eval()
    else:  # its inner width is always four times the width
        theirs = transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**sizes)).eval()
    for parameter in theirs.parameters():
        parameter.add_(0.2 * torch.randn_like(parameter))
    ours = tiny(norm, feed_forward_size=12 if norm == "pre" else 4 * H).float()
    body = theirs.transformer
    words, places, last = (
        (body.wte, body.wpe, body.ln_f)
        if norm == "pre"
        else (body.tokens_embed, body.positions_embed, None)
    )
    state = {
        "tgt_embedding.weight": words.weight,
        "output.weight": words.weight,
        "tgt_positions.table": places.weight,
    }
    state |= (
        {} if last is None else {"decoder_norm.weight": last.weight, "decoder_norm.bias": last.bias}
    )
    for number, layer in enumerate(body.h):
        pairs = {
            "self_attention.query_keys_values": layer.attn.c_attn,
            "self_attention.out": layer.attn.c_proj,
            "around_self_attention.norm": layer.ln_1,
            "feed_forward.inner": layer.mlp.c_fc,
            "feed_forward.out": layer.mlp.c_proj,
            "around_feed_forward.norm": layer.ln_2,
        }
        for name, module in pairs.items():
            # they hold products the other way
            weight = module.weight if module.weight.dim() == 1 else module.weight.T
            state |= {
                f"decoder.{number}.{name}.weight": weight,
                f"decoder.{number}.{name}.bias": module.bias,
            }
    ours.load_state_dict(state)
    batch = given(TEXTS[0])
    ids = batch.targets.shifted
    told = theirs(ids, labels=ids, output_hidden_states=True)
    output, memory = ours.read(batch)
    close = {"rtol": 0.0, "atol": 1e-5}
    torch.testing.assert_close(output.features, told.hidden_states[-1], **close)
    torch.testing.assert_close(ours.logits(output, memory), told.logits, **close)
    loss = -ours.predict(output, memory)[:, :-1].gather(2, ids[:, 1:, None]).mean()
    torch.testing.assert_close(loss, told.loss, **close)


def test_layers_that_end_a_branch_begin_smaller_by_the_root_of_their_number() -> None:
    """Radford et al. 2019, section 2.3: by 1 / sqrt(N), N residual layers."""
    config = TransformerLMConfig(hidden_size=96, feed_forward_size=384, layers=8, heads=4)
    model = TransformerLM(config, VocabularySizes({"tgt": 500}))
    layer = model.decoder[5]
    for ends, other in (
        (layer.feed_forward.out, layer.feed_forward.inner),
        (layer.self_attention.out, layer.self_attention.query_keys_values),
    ):
        assert float(other.weight.detach().std()) == pytest.approx(0.02, rel=0.05)
        assert float(ends.weight.detach().std()) == pytest.approx(0.02 / math.sqrt(16), rel=0.05)
