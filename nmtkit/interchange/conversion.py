"""Converts a trained Transformer for other engines: the same weights in their layout."""

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

import torch
from torch import Tensor, nn

from nmtkit.core.errors import NmtkitError
from nmtkit.data.vocabulary import BOS, EOS, PAD, UNK
from nmtkit.interchange.checkpoint import transformer_names
from nmtkit.models.base import ModelConfig, Seq2Seq, as_headed
from nmtkit.models.transformer import TransformerConfig

LIBRARIES = {"ctranslate2": "ctranslate2", "huggingface": "transformers"}
"""The engines that weights can be converted for, and the library of each."""

huggingface_names = transformer_names(
    "model.encoder.layers",
    "model.decoder.layers",
    {
        "self_attention.query_keys_values": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        "self_attention.out": ["self_attn.out_proj"],
        "around_self_attention.norm": ["self_attn_layer_norm"],
        "cross_attention.query": ["encoder_attn.q_proj"],
        "cross_attention.keys_values": ["encoder_attn.k_proj", "encoder_attn.v_proj"],
        "cross_attention.out": ["encoder_attn.out_proj"],
        "around_cross_attention.norm": ["encoder_attn_layer_norm"],
        "feed_forward.inner": ["fc1"],
        "feed_forward.out": ["fc2"],
        "around_feed_forward.norm": ["final_layer_norm"],
    },
)
"""Names of the weights of layers in `transformers`, by ours."""

_ctranslate2_attributes = transformer_names(
    "encoder.layer",
    "decoder.layer",
    {
        "self_attention.query_keys_values": ["self_attention.linear.0"],
        "self_attention.out": ["self_attention.linear.1"],
        "around_self_attention.norm": ["self_attention.layer_norm"],
        "cross_attention.query": ["attention.linear.0"],
        "cross_attention.keys_values": ["attention.linear.1"],
        "cross_attention.out": ["attention.linear.2"],
        "around_cross_attention.norm": ["attention.layer_norm"],
        "feed_forward.inner": ["ffn.linear_0"],
        "feed_forward.out": ["ffn.linear_1"],
        "around_feed_forward.norm": ["ffn.layer_norm"],
    },
)


def _ctranslate2_attribute(name: str) -> str:
    """Where CTranslate2's specification keeps one of our weights of layers."""
    (path,) = _ctranslate2_attributes(name)
    return path.replace("layer_norm.weight", "layer_norm.gamma").replace("layer_norm.bias", "layer_norm.beta")


def ctranslate2_names(name: str) -> list[str]:
    """The name in CTranslate2's files of one of our weights of layers."""
    return [re.sub(r"[.](\d+)", r"_\1", _ctranslate2_attribute(name)).replace(".", "/")]


def library(engine: str) -> Any:
    """The library of an engine; raises NmtkitError if it is not installed."""
    name = LIBRARIES[engine]
    if find_spec(name) is None:
        needed = "" if name == engine else f", and {engine} needs it"
        raise NmtkitError(
            f"{name} is not installed{needed}: `pip install {name}`, or `pip install 'nmtkit[peers]'` for all engines "
            "to compare with"
        )
    return import_module(name)


def require_convertible(model: ModelConfig, engine: str) -> TransformerConfig:
    """The settings of a model; raises NmtkitError, naming what is missing, if an engine has no counterpart of it."""
    if model.kind != "transformer":
        raise NmtkitError(f"{engine} has no counterpart of a {model.kind}: only a transformer can be carried over")
    config = cast(TransformerConfig, model)
    if config.copies:
        raise NmtkitError(f"{engine} has no counterpart of a transformer that copies (copying: {config.copying})")
    if engine == "huggingface" and not (config.source_end and config.norm_epsilon == 1e-5):
        what = "an epsilon of normalization other than 1e-5" if config.source_end else "a source without its </s>"
        raise NmtkitError(f"{engine} has no counterpart of {what}; take --to ctranslate2 or safetensors")
    return config


def position_table(model: Seq2Seq, weights: Mapping[str, Tensor], side: str, longest: int) -> Tensor:
    """The vectors of positions 0, 1, ... of a side, `(P,H)`."""
    learned = f"{side}_positions.table"
    if learned in weights:
        return weights[learned]
    of_heads = as_headed(model)
    assert of_heads is not None
    return of_heads.positions(longest)[1].cpu()


def plain_weights(model: Seq2Seq) -> dict[str, Tensor]:
    """The weights in float32 on the CPU, tied ones under each of their names."""
    return {name: tensor.detach().cpu().float() for name, tensor in model.state_dict().items()}


def _layer_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: weight for name, weight in weights.items() if name.startswith(("encoder", "decoder"))}


# ------------------------------------------------------------------------------------------------------- Hugging Face


def to_hugging_face(model: Seq2Seq, longest: int) -> Any:
    """The same network in `transformers`, in evaluation mode on the CPU, in float32.

    A pre-norm model becomes an M2M100, a post-norm one a Marian model. Parts that differ are replaced: the table of
    positions, the output layer, which has no bias there, and embeddings that are not shared. It is for use at once: a
    saved file would not have these.

    Args:
        model: a Transformer without copying, as it was trained, not prepared for inference.
        longest: positions of a source or a target.
    """
    config, theirs = require_convertible(model.config, "huggingface"), library("huggingface")
    theirs.logging.set_verbosity_error()
    kinds = {"pre": ("M2M100Config", "M2M100ForConditionalGeneration"), "post": ("MarianConfig", "MarianMTModel")}
    settings, network = (getattr(theirs, name) for name in kinds[config.norm])
    found = network(settings(**hugging_face_settings(model, config, longest))).eval()
    weights = plain_weights(model)
    found.load_state_dict(hugging_face_layers(weights), strict=False)
    for side, name in (("encoder", "src"), ("decoder", "tgt")):
        stack = getattr(found.model, side)
        stack.embed_tokens = deepcopy(stack.embed_tokens)
        stack.embed_tokens.weight = _fixed(weights[f"{name}_embedding.weight"])
        table, places = position_table(model, weights, name, longest), stack.embed_positions
        if config.norm == "pre":  # its first position is behind the one of padding
            before = PAD + 1
            places.weights = torch.cat([table.new_zeros(before, table.shape[1]), table])
        else:
            places.weight = _fixed(table)
    found.lm_head = nn.Linear(config.hidden_size, model.sizes.tgt)
    found.lm_head.weight, found.lm_head.bias = _fixed(weights["output.weight"]), _fixed(weights["output.bias"])
    return found.eval()


def _fixed(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=False)


def hugging_face_settings(model: Seq2Seq, config: TransformerConfig, longest: int) -> dict[str, Any]:
    """The settings of the same network in `transformers`, with the target's vocabulary size for both sides."""
    sides = {"encoder": config.encoder_layers, "decoder": config.decoder_layers}
    of_sides: dict[str, Any] = {}
    for side, layers in sides.items():
        of_sides |= {f"{side}_layers": layers, f"{side}_attention_heads": config.heads}
        of_sides |= {f"{side}_ffn_dim": config.feed_forward_size}
    return {
        **of_sides,
        "vocab_size": model.sizes.tgt,
        "decoder_vocab_size": model.sizes.tgt,
        "d_model": config.hidden_size,
        "max_position_embeddings": longest,
        "activation_function": config.activation,
        "scale_embedding": config.scale_embeddings,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": None,
    }


def hugging_face_layers(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the layers by the names of `transformers`."""
    converted: dict[str, Tensor] = {}
    for name, weight in _layer_weights(weights).items():
        parts = huggingface_names(name)
        converted |= dict(zip(parts, weight.chunk(len(parts)), strict=True))
    return converted


# --------------------------------------------------------------------------------------------------------- CTranslate2


def to_ctranslate2(model: Seq2Seq, src_tokens: Sequence[str], tgt_tokens: Sequence[str], longest: int) -> Any:
    """The same network as a specification of CTranslate2, whose `save(folder)` writes its model files.

    Args:
        model: a Transformer without copying, as it was trained, not prepared for inference.
        src_tokens: the source vocabulary by id.
        tgt_tokens: the target vocabulary by id.
        longest: positions of a source or a target.
    """
    config = require_convertible(model.config, "ctranslate2")
    specs = library("ctranslate2").specs
    found = specs.TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.heads,
        pre_norm=config.norm == "pre",
        activation=getattr(specs.Activation, "SWISH" if config.activation == "silu" else config.activation.upper()),
    )
    weights = plain_weights(model)
    for side, name in (("encoder", "src"), ("decoder", "tgt")):
        stack = getattr(found, side)
        embeddings = stack.embeddings[0] if isinstance(stack.embeddings, list) else stack.embeddings
        embeddings.weight = weights[f"{name}_embedding.weight"].numpy()
        stack.scale_embeddings = config.scale_embeddings
        stack.position_encodings.encodings = position_table(model, weights, name, longest).numpy()
    for name, weight in _layer_weights(weights).items():
        _set(found, _ctranslate2_attribute(name), weight)
    for kind in ("weight", "bias"):
        _set(found, f"decoder.projection.{kind}", weights[f"output.{kind}"])
    found.register_source_vocabulary(list(src_tokens))
    found.register_target_vocabulary(list(tgt_tokens))
    found.config.add_source_eos = config.source_end
    found.config.layer_norm_epsilon = config.norm_epsilon
    found.config.unk_token, found.config.bos_token, found.config.eos_token = (tgt_tokens[i] for i in (UNK, BOS, EOS))
    found.config.decoder_start_token = tgt_tokens[BOS]
    found.validate()
    found.optimize()
    return found


def _set(specification: Any, path: str, value: Tensor) -> None:
    """Sets an attribute by its path, in which numbers are places in lists."""
    *above, last = path.split(".")
    owner = reduce(lambda at, name: at[int(name)] if name.isdigit() else getattr(at, name), above, specification)
    setattr(owner, last, value.contiguous().numpy())
