"""GPT-2 (Radford et al. 2019), imported as a language model of kind `transformer_lm`.

The end-of-document token <|endoftext|> is also the first input, as in GPT-2's training.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from torch import Tensor
from typing_extensions import override

from nmtkit.config.tasks.builtin import LANGUAGE_MODELLING
from nmtkit.convert.checkpoint_converter import CheckpointConverter
from nmtkit.convert.external_files import ExternalWeights, read_weights
from nmtkit.convert.huggingface.families import (
    ACTIVATIONS,
    FAMILIES,
    Family,
    PublicWeights,
    renamed,
)
from nmtkit.convert.huggingface.generation import GenerationConfig, read_config
from nmtkit.convert.huggingface.tokenizers import read_tokenizers
from nmtkit.convert.imported_model import ImportedModel
from nmtkit.convert.weight_names import Stored, WeightNames
from nmtkit.core.settings import Depth, Field, Width
from nmtkit.models.language.transformer_lm import TransformerLMConfig

_OUTPUT = "lm_head.weight"
_NAMES = WeightNames(
    {
        "tgt_embedding.weight": "transformer.wte.weight",
        "output.weight": _OUTPUT,
        "tgt_positions.table": "transformer.wpe.weight",
        "decoder.{layer}.self_attention.query_keys_values.{kind}": Stored(
            ["transformer.h.{layer}.attn.c_attn.{kind}"], transposed=True
        ),
        "decoder.{layer}.self_attention.out.{kind}": Stored(
            ["transformer.h.{layer}.attn.c_proj.{kind}"], transposed=True
        ),
        "decoder.{layer}.around_self_attention.norm.{kind}": "transformer.h.{layer}.ln_1.{kind}",
        "decoder.{layer}.feed_forward.inner.{kind}": Stored(
            ["transformer.h.{layer}.mlp.c_fc.{kind}"], transposed=True
        ),
        "decoder.{layer}.feed_forward.out.{kind}": Stored(
            ["transformer.h.{layer}.mlp.c_proj.{kind}"], transposed=True
        ),
        "decoder.{layer}.around_feed_forward.norm.{kind}": "transformer.h.{layer}.ln_2.{kind}",
        "decoder_norm.{kind}": "transformer.ln_f.{kind}",
    }
)


class GPT2Config(GenerationConfig):
    """The settings that are read from `config.json`, under our names; a `Literal` allows only one value."""

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
class GPT2(Family):
    """Converts folders of GPT2LMHeadModel."""

    model_type = "gpt2"

    @override
    def read(self, folder: Path) -> ImportedModel:
        config, _ = read_config(folder, GPT2Config)
        end = config.eos_token_id
        tokenizers, maps = read_tokenizers(folder, (end, end, end), config.vocab_size, ("tgt",))
        converter = CheckpointConverter(
            place=folder / "config.json",
            weights=_with_whole_names(read_weights(folder)),
            names=_NAMES,
            tokenizers=tokenizers,
            vocabularies=maps,
        )
        settings = config.model_dump(include={*TransformerLMConfig.model_fields}) | {
            "feed_forward_size": config.feed_forward_size or 4 * config.hidden_size,
            "activation": ACTIVATIONS.get(config.activation, config.activation),
            "output_bias": True,  # keeps tokens that occur in no text from being generated
        }
        words = _convert_words(config, converter)
        model, tensors = converter.convert(TransformerLMConfig, settings, words)
        search, notes = config.search_settings(folder, maps, set())
        return ImportedModel(
            toolkit="huggingface",
            architecture=self.model_type,
            model=model,
            tensors=tensors,
            tokenizers=tokenizers,
            search=search,
            notes=notes,
            task=LANGUAGE_MODELLING.name,
        )

    @override
    def tensors(self, public: PublicWeights, config: Mapping[str, Any]) -> dict[str, Tensor]:
        return public.tensors(_NAMES)


def _convert_words(config: GPT2Config, converter: CheckpointConverter) -> dict[str, Tensor]:
    """Returns the embedding and the output layer under our names; a tied matrix may have either name in the file."""
    embedding_names = [_NAMES.theirs("tgt_embedding.weight")]
    if config.tie_word_embeddings:
        embedding_names.append(_OUTPUT)
    words = converter.words(converter.present(embedding_names), config.hidden_size)
    is_tied = config.tie_word_embeddings and _OUTPUT not in converter.weights.shapes
    return {
        "tgt_embedding.weight": words,
        "output.weight": words if is_tied else converter.words(_OUTPUT, config.hidden_size),
        "output.bias": converter.output_bias(),
    }


def _with_whole_names(weights: ExternalWeights) -> ExternalWeights:
    """Renames weights as in a model with an output layer, and omits the masks in older folders."""
    names = {}
    for name in weights.shapes:
        if name.endswith((".attn.bias", ".attn.masked_bias")):
            continue
        is_whole = name.startswith("transformer.") or name == _OUTPUT
        names[name if is_whole else f"transformer.{name}"] = name
    return renamed(weights, names)
