"""Converts the weights of a Transformer to the names and layout of Hugging Face or CTranslate2."""

import re
from collections.abc import Mapping, Sequence
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

import torch
from torch import Tensor

from nmtkit.convert.import_weights import SUPPRESSED_BIAS, transformer_names
from nmtkit.core.errors import NmtkitError
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, UNK
from nmtkit.models.base import ModelConfig, Seq2Seq, as_headed
from nmtkit.models.transformer import TransformerConfig

LIBRARIES = {"ctranslate2": "ctranslate2", "huggingface": "transformers"}
_EXTRAS = {"ctranslate2": "ctranslate2", "huggingface": "peers"}

_ARCHITECTURES = {"pre": ("pegasus", "PegasusForConditionalGeneration"), "post": ("marian", "MarianMTModel")}
"""Model type and class of `transformers`, by where layers normalize."""

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


CTRANSLATE2_ACTIVATIONS: dict[str, int] = {"relu": 0, "gelu_tanh": 1, "silu": 2, "gelu": 3}
"""Its numbers of our activations."""


def _ctranslate2_attribute(name: str) -> str:
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
        raise NmtkitError(f"{name} is not installed{needed}: `pip install 'nmtkit[{_EXTRAS[engine]}]'`")
    return import_module(name)


def require_convertible(model: ModelConfig, engine: str) -> TransformerConfig:
    """The settings of a model; raises NmtkitError, naming what is missing, if an engine has no counterpart of it."""
    if model.kind != "transformer":
        raise NmtkitError(f"{engine} has no {model.kind} model: only a transformer can be exported to it")
    config = cast(TransformerConfig, model)
    if config.copies:
        raise NmtkitError(f"{engine} has no transformer that copies (copying: {config.copying}); take safetensors")
    if config.experts:
        raise NmtkitError(f"{engine} has no mixture of experts; take safetensors")
    if config.embedding_norm or config.elmo:
        what = "words in context (elmo)" if config.elmo else "normalized embeddings (embedding_norm)"
        raise NmtkitError(f"{engine} has no counterpart of {what}; take safetensors")
    if engine == "huggingface" and not (config.source_end and config.norm_epsilon == 1e-5):
        setting = "an epsilon of normalization other than 1e-5" if config.source_end else "a source without its </s>"
        raise NmtkitError(f"{engine} has no counterpart of {setting}; take --to ctranslate2 or safetensors")
    return config


def position_table(model: Seq2Seq, weights: Mapping[str, Tensor], side: str, longest: int) -> Tensor:
    """The vectors of positions 0, 1, ... of a side, `(P,H)`."""
    learned = f"{side}_positions.table"
    if learned in weights:
        return weights[learned]
    headed = as_headed(model)
    assert headed is not None
    return headed.positions(longest)[1].cpu()


def plain_weights(model: Seq2Seq) -> dict[str, Tensor]:
    """The weights in float32 on the CPU, tied ones under each of their names."""
    return {name: tensor.detach().cpu().float() for name, tensor in model.state_dict().items()}


def _layer_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: weight for name, weight in weights.items() if name.startswith(("encoder", "decoder"))}


def to_hugging_face(model: Seq2Seq, longest: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The same network in `transformers`: its settings, as `config.json` has them, and its weights in float32.

    The model must be as it was trained, not prepared for inference; `longest` is the number of positions.
    """
    config, weights = require_convertible(model.config, "huggingface"), plain_weights(model)
    pre_norm = config.norm == "pre"
    src, tgt, output = (weights[f"{name}.weight"] for name in ("src_embedding", "tgt_embedding", "output"))
    bias = weights["output.bias"][:, None]
    rows = max(model.sizes["src"], model.sizes["tgt"]) if pre_norm else 0  # Pegasus has one size for both sides
    src, tgt, output = (_padded(matrix, rows, 0.0) for matrix in (src, tgt, output))
    one_matrix, tied = config.tie in ("all", "embeddings"), config.tie in ("all", "decoder")
    if pre_norm:  # what ties anything in Pegasus ties everything
        tied = config.tie == "all"
    tensors = {"final_logits_bias": _padded(bias, rows, SUPPRESSED_BIAS).t().clone()}
    for name, weight in _layer_weights(weights).items():
        parts = huggingface_names(name)
        tensors |= dict(zip(parts, weight.chunk(len(parts)), strict=True))
    for side, name in (("encoder", "src"), ("decoder", "tgt")):
        # Saved since `transformers` orders sinusoids differently.
        table = position_table(model, weights, name, longest)
        tensors[f"model.{side}.embed_positions.weight"] = table[:longest].clone()
    if one_matrix or pre_norm:
        tensors["model.shared.weight"] = src.clone()
    if not (one_matrix and tied):
        tensors["model.encoder.embed_tokens.weight"] = src.clone()
        tensors["model.decoder.embed_tokens.weight"] = tgt.clone()
    if not tied:
        tensors["lm_head.weight"] = output.clone()
    sizes: dict[str, Any] = {"vocab_size": len(src), "tie_word_embeddings": tied}
    if not pre_norm:
        sizes |= {"decoder_vocab_size": len(tgt), "share_encoder_decoder_embeddings": one_matrix}
    return _hugging_face_settings(config, longest) | sizes, tensors


def _hugging_face_settings(config: TransformerConfig, longest: int) -> dict[str, Any]:
    model_type, architecture = _ARCHITECTURES[config.norm]
    settings = {
        "model_type": model_type,
        "architectures": [architecture],
        "d_model": config.hidden_size,
        "max_position_embeddings": longest,
        "activation_function": {"gelu_tanh": "gelu_pytorch_tanh"}.get(config.activation, config.activation),
        "scale_embedding": config.scale_embeddings,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": None,
        "dtype": "float32",
    }
    settings |= config.model_dump(include={"dropout", "attention_dropout", "activation_dropout"})
    for side in ("encoder", "decoder"):
        settings[f"{side}_layers"] = getattr(config, f"{side}_layers")
        settings |= {f"{side}_attention_heads": config.heads, f"{side}_ffn_dim": config.feed_forward_size}
    return settings


def _padded(matrix: Tensor, rows: int, value: float) -> Tensor:
    return torch.cat([matrix, matrix.new_full((max(0, rows - len(matrix)), matrix.shape[1]), value)])


def to_ctranslate2(model: Seq2Seq, src_tokens: Sequence[str], tgt_tokens: Sequence[str], longest: int) -> Any:
    """The same network for CTranslate2, whose `save(folder)` writes it; arguments as of `to_hugging_face`."""
    config = require_convertible(model.config, "ctranslate2")
    specs = library("ctranslate2").specs
    spec = specs.TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.heads,
        pre_norm=config.norm == "pre",
        activation=specs.Activation(CTRANSLATE2_ACTIVATIONS[config.activation]),
    )
    weights = plain_weights(model)
    for side, name in (("encoder", "src"), ("decoder", "tgt")):
        stack = getattr(spec, side)
        embeddings = stack.embeddings[0] if isinstance(stack.embeddings, list) else stack.embeddings
        embeddings.weight = weights[f"{name}_embedding.weight"].numpy()
        stack.scale_embeddings = config.scale_embeddings
        stack.position_encodings.encodings = position_table(model, weights, name, longest).numpy()
    for name, weight in _layer_weights(weights).items():
        _set(spec, _ctranslate2_attribute(name), weight)
    for kind in ("weight", "bias"):
        _set(spec, f"decoder.projection.{kind}", weights[f"output.{kind}"])
    spec.register_source_vocabulary(list(src_tokens))
    spec.register_target_vocabulary(list(tgt_tokens))
    spec.config.add_source_eos = config.source_end
    spec.config.layer_norm_epsilon = config.norm_epsilon
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = (tgt_tokens[i] for i in (UNK, BOS, EOS))
    spec.config.decoder_start_token = tgt_tokens[BOS]
    spec.validate()
    spec.optimize()
    return spec


def _set(specification: Any, path: str, value: Tensor) -> None:
    """Sets an attribute by its path, in which numbers are places in lists."""
    *above, last = path.split(".")
    owner = reduce(lambda at, name: at[int(name)] if name.isdigit() else getattr(at, name), above, specification)
    setattr(owner, last, value.contiguous().numpy())
