"""Imports GPT-2 (Radford et al. 2019) as a language model of kind `transformer_lm`.

The end of a document, <|endoftext|>, is also the first input here: what GPT-2 read before a document in training.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from nmtkit.convert.external_files import read_weights
from nmtkit.convert.huggingface.exporting import PUBLIC_FAMILIES, PublicWeights
from nmtkit.convert.huggingface.reading import ACTIVATIONS, FAMILIES, GenerationConfig, read_config, renamed
from nmtkit.convert.huggingface.tokenizers import read_tokenizers
from nmtkit.convert.import_weights import CheckpointConverter, ImportedModel, transformer_names
from nmtkit.core.settings import Depth, Field, Width
from nmtkit.models.language.transformer_lm import TransformerLMConfig
from nmtkit.tasks.builtin import LANGUAGE_MODELLING

_MODULES = {
    "self_attention.query_keys_values": ["attn.c_attn"],
    "self_attention.out": ["attn.c_proj"],
    "around_self_attention.norm": ["ln_1"],
    "feed_forward.inner": ["mlp.c_fc"],
    "feed_forward.out": ["mlp.c_proj"],
    "around_feed_forward.norm": ["ln_2"],
}
_OUTPUT = "lm_head.weight"


class GPT2Config(GenerationConfig):
    """The keys of `config.json` that are read, by our names; those with one value allow no other."""

    hidden_size: Width = Field(alias="n_embd")
    feed_forward_size: Width | None = Field(default=None, alias="n_inner")
    heads: int = Field(alias="n_head")
    layers: Depth = Field(alias="n_layer")
    max_positions: Width = Field(alias="n_positions")
    activation: str = Field(default="gelu_new", alias="activation_function")
    norm_epsilon: float = Field(default=1e-5, alias="layer_norm_epsilon")
    dropout: float = Field(default=0.1, alias="resid_pdrop")
    attention_dropout: float = Field(default=0.1, alias="attn_pdrop")
    tie_word_embeddings: bool = True
    scale_attn_weights: Literal[True] = True
    scale_attn_by_inverse_layer_idx: Literal[False] = False
    add_cross_attention: Literal[False] = False


@FAMILIES.register("gpt2")
def read_gpt2(folder: Path) -> ImportedModel:
    """Converts a folder of GPT2LMHeadModel."""
    config, _ = read_config(folder, GPT2Config)
    end, width = config.eos_token_id, config.hidden_size
    tokenizers, maps = read_tokenizers(folder, (end, end, end), config.vocab_size, ("tgt",))
    weights = renamed(read_weights(folder), _plain_name, lambda name: ".c_" in name and name.endswith("weight"))
    converter = CheckpointConverter(folder / "config.json", weights, tokenizers, maps)
    tied_names = ["wte.weight", _OUTPUT] if config.tie_word_embeddings else ["wte.weight"]
    words = converter.words(converter.present(tied_names), width)
    is_tied = config.tie_word_embeddings and _OUTPUT not in weights.shapes
    own = {
        "tgt_embedding.weight": words,
        "output.weight": words if is_tied else converter.words(_OUTPUT, width),
        "output.bias": converter.output_bias(),
        "tgt_positions.table": converter.tensor("wpe.weight", (config.max_positions, width)),
    }
    own |= {f"decoder_norm.{kind}": converter.tensor(f"ln_f.{kind}", (width,)) for kind in ("weight", "bias")}
    settings = config.model_dump(include={*TransformerLMConfig.model_fields}) | {
        "feed_forward_size": config.feed_forward_size or 4 * width,
        "activation": ACTIVATIONS.get(config.activation, config.activation),
        "output_bias": True,  # keeps what no text has from being written
    }
    names = transformer_names("", "h", _MODULES)
    model, tensors = converter.convert(TransformerLMConfig, settings, own, names)
    search, notes = config.search_settings(folder, maps, set())
    return ImportedModel("huggingface", "gpt2", model, tensors, tokenizers, search, notes, LANGUAGE_MODELLING.name)


@PUBLIC_FAMILIES.register("gpt2")
def gpt2_tensors(public: PublicWeights, _config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the tensors of a model by their names in `transformers`."""
    further = ("tgt_positions.table", "decoder_norm.weight", "decoder_norm.bias")
    tensors = {}
    for name, tensor in public.others(transformer_names("", "h", _MODULES), further).items():
        is_turned = ".c_" in name and name.endswith("weight")
        tensors[f"transformer.{name}"] = tensor.t() if is_turned else tensor
    tensors["transformer.wte.weight"] = public.words("tgt_embedding.weight")
    tensors["transformer.wpe.weight"] = public.weights["tgt_positions.table"]
    for kind in ("weight", "bias"):
        tensors[f"transformer.ln_f.{kind}"] = public.weights[f"decoder_norm.{kind}"]
    if public.has_separate_output:
        tensors["lm_head.weight"] = public.words("output.weight")
    return tensors


def _plain_name(name: str) -> str:
    """Without what names begin with; empty for the masks that older folders hold."""
    return "" if name.endswith((".attn.bias", ".attn.masked_bias")) else name.removeprefix("transformer.")
