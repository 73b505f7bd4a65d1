"""Imports GPT-2 (Radford et al. 2019) as a language model of kind `transformer_lm`.

The end of a document, <|endoftext|>, is also the first input here: what GPT-2 read before a document in training.
"""

from pathlib import Path
from typing import Literal

from nmtkit.core.settings import Depth, Field, Width
from nmtkit.data.vocabulary import UNK
from nmtkit.huggingface.reading import ACTIVATIONS, FAMILIES, GenerationConfig, read_config, renamed
from nmtkit.huggingface.tokenizers import read_tokenizers
from nmtkit.interchange.external_files import read_weights
from nmtkit.interchange.import_weights import CheckpointConverter, ImportedModel, transformer_names
from nmtkit.interchange.importing import license_of
from nmtkit.language_models.transformer_lm import TransformerLMConfig
from nmtkit.tasks.language_modelling import LANGUAGE_MODELLING

_NAMES = transformer_names(
    "",
    "h",
    {
        "self_attention.query_keys_values": ["attn.c_attn"],
        "self_attention.out": ["attn.c_proj"],
        "around_self_attention.norm": ["ln_1"],
        "feed_forward.inner": ["mlp.c_fc"],
        "feed_forward.out": ["mlp.c_proj"],
        "around_feed_forward.norm": ["ln_2"],
    },
)


class GPT2Config(GenerationConfig):
    """The keys of `config.json` that are read; those with one value allow no other."""

    n_embd: Width = Field(ge=2)
    n_layer: Depth = Field(ge=1)
    n_head: int = Field(ge=1)
    n_inner: Width | None = None
    n_positions: Width = Field(ge=1)
    activation_function: Literal["gelu_new", "gelu_pytorch_tanh", "gelu", "relu", "silu"] = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    resid_pdrop: float = Field(default=0.1, ge=0.0, lt=1.0)
    attn_pdrop: float = Field(default=0.1, ge=0.0, lt=1.0)
    eos_token_id: int = Field(ge=0)
    scale_attn_weights: Literal[True] = True
    scale_attn_by_inverse_layer_idx: Literal[False] = False
    add_cross_attention: Literal[False] = False


@FAMILIES.register("gpt2")
def read_gpt2(folder: Path) -> ImportedModel:
    """Converts a folder of GPT2LMHeadModel."""
    config, _ = read_config(folder, GPT2Config)
    end, width = config.eos_token_id, config.n_embd
    tokenizers, maps = read_tokenizers(folder, (end, end, end), config.vocab_size, ("tgt",))
    weights = renamed(read_weights(folder), _plain_name, _is_turned)
    converter = CheckpointConverter(folder / "config.json", weights, tokenizers, maps)
    words = converter.words("wte.weight", width)
    is_tied = "lm_head.weight" not in converter.weights.shapes
    own = {
        "tgt_embedding.weight": words,
        "output.weight": words if is_tied else converter.words("lm_head.weight", width),
        "output.bias": converter.output_bias(),
        "tgt_positions.table": converter.tensor("wpe.weight", (config.n_positions, width)),
    }
    own |= {f"decoder_norm.{kind}": converter.tensor(f"ln_f.{kind}", (width,)) for kind in ("weight", "bias")}
    settings = {
        "hidden_size": width,
        "feed_forward_size": config.n_inner or 4 * width,
        "heads": config.n_head,
        "layers": config.n_layer,
        "dropout": config.resid_pdrop,
        "attention_dropout": config.attn_pdrop,
        "norm_epsilon": config.layer_norm_epsilon,
        "max_positions": config.n_positions,
        "activation": ACTIVATIONS[config.activation_function],
        "output_bias": True,  # keeps what no text has from being written
    }
    model, tensors = converter.convert(TransformerLMConfig, settings, own, _NAMES)
    search, notes = config.search_settings(folder, int(maps[1].rows[UNK]), end, set())
    origin = LANGUAGE_MODELLING.name, license_of(folder)
    return ImportedModel("huggingface", "gpt2", model, tensors, tokenizers, search, notes, *origin)


def _plain_name(name: str) -> str:
    """Without what names begin with; empty for the masks that older folders hold."""
    return "" if name.endswith((".attn.bias", ".attn.masked_bias")) else name.removeprefix("transformer.")


def _is_turned(name: str) -> bool:
    """Whether it is the matrix of a Conv1D, `(inputs,outputs)`."""
    return ".c_" in name and name.endswith(".weight")
