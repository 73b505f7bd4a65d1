"""Imports T5 (Raffel et al. 2020), T5 v1.1, mT5 (Xue et al. 2021) and Flan-T5 (Chung et al. 2022)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from nmtkit.convert.external_files import read_weights
from nmtkit.convert.huggingface.exporting import PUBLIC_FAMILIES, PublicWeights
from nmtkit.convert.huggingface.marian import LM_HEAD, PairConfig, convert_words
from nmtkit.convert.huggingface.reading import FAMILIES, read_config, read_variants
from nmtkit.convert.huggingface.tokenizers import read_tokenizers
from nmtkit.convert.import_weights import CheckpointConverter, ImportedModel, SourceNames, transformer_names
from nmtkit.core.settings import Depth, Field, Width
from nmtkit.models.t5 import T5Config

_ATTENTION, _CROSS = "layer.0.SelfAttention", "layer.1.EncDecAttention"


def _modules(feed_forward: int, gated: bool) -> dict[str, list[str]]:
    """Their modules of a layer by ours; the feed-forward part is their sub-layer of that number."""
    dense = f"layer.{feed_forward}.DenseReluDense"
    return {
        "self_attention.query_keys_values": [f"{_ATTENTION}.{one}" for one in "qkv"],
        "self_attention.out": [f"{_ATTENTION}.o"],
        "around_self_attention.norm": ["layer.0.layer_norm"],
        "cross_attention.query": [f"{_CROSS}.q"],
        "cross_attention.keys_values": [f"{_CROSS}.k", f"{_CROSS}.v"],
        "cross_attention.out": [f"{_CROSS}.o"],
        "around_cross_attention.norm": ["layer.1.layer_norm"],
        "feed_forward.inner": [f"{dense}.wi_0" if gated else f"{dense}.wi"],
        "feed_forward.gate": [f"{dense}.wi_1"],
        "feed_forward.out": [f"{dense}.wo"],
        "around_feed_forward.norm": [f"layer.{feed_forward}.layer_norm"],
    }


class HuggingFaceT5Config(PairConfig):
    """The keys of `config.json` and `generation_config.json` that are read."""

    d_kv: Width = Field(ge=1)
    d_ff: Width = Field(ge=1)
    num_layers: Depth = Field(ge=1)
    num_decoder_layers: Depth | None = Field(default=None, ge=1)
    num_heads: int = Field(ge=1)
    scale_decoder_outputs: bool = True
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    dropout_rate: float = Field(default=0.1, ge=0.0, lt=1.0)
    layer_norm_epsilon: float = 1e-6
    feed_forward_proj: Literal["relu", "gated-gelu"] = "relu"
    pad_token_id: int = Field(default=0, ge=0)
    eos_token_id: int = Field(default=1, ge=0)
    decoder_start_token_id: int = Field(default=0, ge=0)


@FAMILIES.register("t5")
@FAMILIES.register("mt5")
def read_t5(folder: Path) -> ImportedModel:
    """Converts a folder of T5ForConditionalGeneration or MT5ForConditionalGeneration."""
    config, given = read_config(folder, HuggingFaceT5Config)
    kind = str(given["model_type"])
    special = (config.pad_token_id, config.decoder_start_token_id, config.eos_token_id)
    tokenizers, maps = read_tokenizers(folder, special, config.vocab_size, first=config.forced_bos_token_id)
    converter = CheckpointConverter(folder / "config.json", read_weights(folder), tokenizers, maps)
    gated = config.feed_forward_proj == "gated-gelu"
    names = _names_of_weights(gated)
    settings = {
        "hidden_size": config.d_model,
        "feed_forward_size": config.d_ff,
        "heads": config.num_heads,
        "head_size": config.d_kv,
        "encoder_layers": config.num_layers,
        "decoder_layers": config.num_decoder_layers or config.num_layers,
        "relative_buckets": config.relative_attention_num_buckets,
        "relative_distance": config.relative_attention_max_distance,
        "norm_epsilon": config.layer_norm_epsilon,
        "gated": gated,
        "scale_output": kind == "t5" and config.scale_decoder_outputs and config.tie_word_embeddings,
        "activation": "gelu_tanh" if gated else "relu",
    }
    settings |= dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), config.dropout_rate)
    words = convert_words(config, converter)
    unread = [f"decoder.block.0.{_CROSS}.relative_attention_bias.weight"]  # is in the first files, and nothing reads it
    model, tensors = converter.convert(T5Config, settings, words, names, unread)
    search, notes = config.search_settings(folder, maps, {*special})
    search["certain_prefix"] = config.forced_bos_token_id is not None
    return ImportedModel(
        toolkit="huggingface",
        architecture=kind,
        model=model,
        tensors=tensors,
        tokenizers=tokenizers,
        search=search,
        notes=notes,
        variants=read_variants(folder, HuggingFaceT5Config, maps, {*special}),
    )


@PUBLIC_FAMILIES.register("t5")
@PUBLIC_FAMILIES.register("mt5")
def t5_tensors(public: PublicWeights, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the tensors of a model by their names in `transformers`."""
    tensors = public.others(_names_of_weights(config.get("feed_forward_proj") == "gated-gelu"))
    tensors["shared.weight"] = public.words("src_embedding.weight")
    if public.has_separate_output:
        tensors[LM_HEAD] = public.words("output.weight")
    return tensors


def _names_of_weights(gated: bool) -> SourceNames:
    sides = {
        side: transformer_names("encoder.block", "decoder.block", _modules(number, gated))
        for side, number in (("encoder", 1), ("decoder", 2))
    }

    def names(name: str) -> Sequence[str]:
        side, _, _ = name.partition(".")
        if name.endswith("positions.weight"):
            stack = "encoder" if name.startswith("src") else "decoder"
            return [f"{stack}.block.0.{_ATTENTION}.relative_attention_bias.weight"]
        if side.endswith("_norm"):
            return [f"{side.removesuffix('_norm')}.final_layer_norm.weight"]
        return sides[side](name)

    return names
