"""Converts Transformers for CTranslate2 (Klein et al. 2020)."""

import math
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from nmtkit.convert.engines import (
    library,
    plain_weights,
    position_table,
    positions_needed,
    require_convertible,
)
from nmtkit.convert.vocabulary import write_sentencepiece_models
from nmtkit.convert.weight_names import WeightNames
from nmtkit.core.files import write_errors
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, UNK
from nmtkit.layers.transformer import layer_form_of
from nmtkit.models.base import Seq2Seq

if TYPE_CHECKING:
    from nmtkit.config import Recipe

_ACTIVATIONS: dict[str, int] = {"relu": 0, "gelu_tanh": 1, "silu": 2, "gelu": 3}
"""CTranslate2's numbers for our activations."""
COPIES = 16
"""Number of tokens among which the probability of an unwanted token is split."""

_NAMES = WeightNames(
    {
        "{side}.{layer}.self_attention.query_keys_values.{kind}": "{side}.layer.{layer}.self_attention.linear.0.{kind}",
        "{side}.{layer}.self_attention.out.{kind}": "{side}.layer.{layer}.self_attention.linear.1.{kind}",
        "{side}.{layer}.around_self_attention.norm.{kind}": "{side}.layer.{layer}.self_attention.layer_norm.{kind}",
        "{side}.{layer}.cross_attention.query.{kind}": "{side}.layer.{layer}.attention.linear.0.{kind}",
        "{side}.{layer}.cross_attention.keys_values.{kind}": "{side}.layer.{layer}.attention.linear.1.{kind}",
        "{side}.{layer}.cross_attention.out.{kind}": "{side}.layer.{layer}.attention.linear.2.{kind}",
        "{side}.{layer}.around_cross_attention.norm.{kind}": "{side}.layer.{layer}.attention.layer_norm.{kind}",
        "{side}.{layer}.feed_forward.inner.{kind}": "{side}.layer.{layer}.ffn.linear_0.{kind}",
        "{side}.{layer}.feed_forward.gate.{kind}": "{side}.layer.{layer}.ffn.linear_0_noact.{kind}",
        "{side}.{layer}.feed_forward.out.{kind}": "{side}.layer.{layer}.ffn.linear_1.{kind}",
        "{side}.{layer}.around_feed_forward.norm.{kind}": "{side}.layer.{layer}.ffn.layer_norm.{kind}",
        "{side}_norm.{kind}": "{side}.layer_norm.{kind}",
        "{side}_norm.0.{kind}": "{side}.layer_norm.{kind}",
        "src_embedding_norm.{kind}": "encoder.layernorm_embedding.{kind}",
        "tgt_embedding_norm.{kind}": "decoder.layernorm_embedding.{kind}",
        "output.{kind}": "decoder.projection.{kind}",
    }
)
"""Maps our weights to attributes of CTranslate2's Transformer specification; numbers are list indices."""


def write_ctranslate2(
    model: Seq2Seq, tokenizers: Tokenizers, recipe: "Recipe", folder: Path
) -> None:
    """Writes a folder for `ctranslate2.Translator` with the SentencePiece models of both sides."""
    config = require_convertible(model.config, "ctranslate2")
    specification = to_ctranslate2(
        model=model,
        src_tokens=tokenizers.src.vocabulary.tokens,
        tgt_tokens=tokenizers.tgt.vocabulary.tokens,
        positions=positions_needed(recipe, config),
    )
    with write_errors(folder):
        specification.save(str(folder))
    write_sentencepiece_models(tokenizers, folder)


def to_ctranslate2(
    model: Seq2Seq,
    src_tokens: Sequence[str],
    tgt_tokens: Sequence[str],
    positions: int,
    unwanted: Sequence[int] = (),
) -> Any:
    """Returns the network as a CTranslate2 specification; its `save(folder)` writes it to disk.

    Args:
        model: the model as it was trained, not prepared for inference.
        src_tokens: the source vocabulary.
        tgt_tokens: the target vocabulary.
        positions: number of position embeddings; T5 has none.
        unwanted: ids of target tokens that a search should hardly ever generate; see `_split_tokens`.
    """
    config = require_convertible(model.config, "ctranslate2")
    form = layer_form_of(config)
    t5: Any = model.config if model.config.kind == "t5" else None
    specs = library("ctranslate2").specs
    specification = specs.TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.heads,
        pre_norm=config.norm == "pre",
        activation=specs.Activation(_ACTIVATIONS[config.activation]),
        layernorm_embedding=config.embedding_norm,
        relative_attention_bias=t5 is not None,
        ffn_glu=form.gated,
        rms_norm=form.rms_norm,
    )
    weights = plain_weights(model)
    if unwanted:
        src_tokens, tgt_tokens = _split_tokens(weights, src_tokens, tgt_tokens, unwanted)
    for side, name in (("encoder", "src"), ("decoder", "tgt")):
        stack = getattr(specification, side)
        embeddings = stack.embeddings[0] if isinstance(stack.embeddings, list) else stack.embeddings
        embeddings.weight = weights[f"{name}_embedding.weight"].numpy()
        stack.scale_embeddings = config.scale_embeddings
        if t5 is not None:
            _set_relative_positions(
                stack, weights[f"{name}_positions.weight"], t5.relative_distance
            )
        else:
            stack.position_encodings.encodings = position_table(
                model, weights, name, positions
            ).numpy()
        for layer in stack.layer:
            if not form.scaled:
                layer.self_attention.queries_scale = 1.0
                if side == "decoder":
                    layer.attention.queries_scale = 1.0
    if t5 is not None and t5.scale_output:
        specification.decoder.scale_outputs = config.hidden_size**-0.5
    for name, weight in weights.items():
        if name in _NAMES:
            _set(specification, _NAMES.theirs(name), weight)
    specification.register_source_vocabulary(list(src_tokens))
    specification.register_target_vocabulary(list(tgt_tokens))
    settings = specification.config
    settings.add_source_eos = config.source_end
    settings.layer_norm_epsilon = config.norm_epsilon
    settings.unk_token = tgt_tokens[UNK]
    settings.bos_token = tgt_tokens[BOS]
    settings.eos_token = tgt_tokens[EOS]
    settings.decoder_start_token = tgt_tokens[BOS]
    specification.validate()
    specification.optimize()
    return specification


def copies_of(token: str) -> list[str]:
    """Returns the names of the tokens among which `_split_tokens` splits the probability of a token."""
    return [token] + [f"{token} {number}" for number in range(2, COPIES + 1)]


def _split_tokens(
    weights: dict[str, Tensor],
    src_tokens: Sequence[str],
    tgt_tokens: Sequence[str],
    unwanted: Sequence[int],
) -> tuple[list[str], list[str]]:
    """Splits the probability of each unwanted target token among `COPIES` tokens; returns the new vocabularies.

    A model that was trained with label smoothing gives all tokens of the vocabulary a small probability, so a beam may
    contain an unwanted token. A copy, with a sixteenth of this probability, ranks behind almost all other tokens. The
    probabilities of all other tokens stay the same, because the copies of a token have its probability together: they
    have its weights, and each has the bias b - log(COPIES).

    If both sides share their embeddings, they also share the copies, so that CTranslate2 stores them only once.
    """
    shares_embeddings = src_tokens == tgt_tokens and torch.equal(
        weights["src_embedding.weight"], weights["tgt_embedding.weight"]
    )
    copied_ids = []
    copied_tokens = []
    for token_id in unwanted:
        copies = copies_of(tgt_tokens[token_id])[1:]
        copied_ids += [token_id] * len(copies)
        copied_tokens += copies
    size = len(tgt_tokens)
    bias = weights.get("output.bias", torch.zeros(size))  # (V,)
    bias = torch.cat([bias, bias[copied_ids]])
    bias[[*unwanted, *range(size, len(bias))]] -= math.log(COPIES)
    weights["output.bias"] = bias
    names = ["output.weight", "tgt_embedding.weight"]
    if shares_embeddings:
        names.append("src_embedding.weight")
    for name in names:
        weights[name] = torch.cat([weights[name], weights[name][copied_ids]])
    new_tgt_tokens = [*tgt_tokens, *copied_tokens]
    return (new_tgt_tokens if shares_embeddings else [*src_tokens]), new_tgt_tokens


def _set_relative_positions(stack: Any, table: Tensor, farthest: int) -> None:
    """Sets the relative position biases in all layers of a side, `(buckets,A)`."""
    for layer in stack.layer:
        layer.self_attention.relative_attention_bias = table.numpy()
        layer.self_attention.relative_attention_max_distance = np.dtype("int32").type(farthest)


def _set(specification: Any, path: str, value: Tensor) -> None:
    """Sets an attribute of a specification by its path, in which numbers are list indices."""
    *above, last = path.split(".")
    if above[-1] in ("layer_norm", "layernorm_embedding"):
        last = {"weight": "gamma", "bias": "beta"}[last]
    owner = reduce(
        lambda at, name: at[int(name)] if name.isdigit() else getattr(at, name),
        above,
        specification,
    )
    setattr(owner, last, value.contiguous().numpy())
