"""The models and search settings that Hugging Face and CTranslate2 support, and the weights they need."""

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from nmtkit.core.errors import NmtkitError
from nmtkit.decoding.settings import SearchConfig, kind_of_search
from nmtkit.models.abilities import as_multi_head
from nmtkit.models.base import ModelConfig, Seq2Seq
from nmtkit.models.transformer import TransformerConfig

if TYPE_CHECKING:
    from nmtkit.config import Recipe

LIBRARIES = {"ctranslate2": "ctranslate2", "huggingface": "transformers"}
_EXTRAS = {"ctranslate2": "fast", "huggingface": "peers"}
_KINDS = {"ctranslate2": ("transformer", "t5"), "huggingface": ("transformer",)}
"""Kinds of models that can be converted, by engine."""
_STOPS = {"huggingface": ("first_k", "huggingface", "exact"), "ctranslate2": ("first_k",)}
_FEWEST_POSITIONS = 1024
_NEARLY_NONE = 1e-9
"""A CTranslate2 length penalty that does not change any score in float32. Without a penalty,
CTranslate2's search would end before K hypotheses have finished.
"""


def library(engine: str) -> Any:
    """Returns the library of an engine; raises NmtkitError if it is not installed or cannot be imported."""
    name = LIBRARIES[engine]
    problem = "is not installed"
    cause: Exception | None = None
    if find_spec(name) is not None:
        try:
            return import_module(name)
        except (ImportError, OSError) as fault:  # e.g. a system library is missing or not allowed
            problem = f"cannot be imported ({fault})"
            cause = fault
    needed = "" if name == engine else f", but {engine} needs it"
    raise NmtkitError(
        f"{name} {problem}{needed}; install it with `pip install 'nmtkit[{_EXTRAS[engine]}]'`"
    ) from cause


def unconvertible(model: ModelConfig, engine: str) -> str:
    """Returns the reason why a model cannot be converted for an engine; empty if it can be."""
    if model.kind not in _KINDS[engine]:
        return f"{engine} does not support {model.kind} models"
    config = cast(TransformerConfig, model)
    if config.copies:
        return (
            f"{engine} does not support {model.kind} models that copy (copying: {config.copying})"
        )
    if config.experts:
        return f"{engine} does not support mixtures of experts"
    if config.src_embedding:
        return f"{engine} does not support src_embedding"
    if engine == "huggingface" and config.embedding_norm:
        return f"{engine} does not support normalized embeddings (embedding_norm)"
    return ""


def require_convertible(model: ModelConfig, engine: str) -> TransformerConfig:
    """Returns the settings of a Transformer or T5; raises NmtkitError if the engine does not support the model."""
    lacking = unconvertible(model, engine)
    if lacking:
        raise NmtkitError(f"{lacking}; use --to safetensors")
    config = cast(TransformerConfig, model)
    if engine == "huggingface" and not (config.source_end and config.norm_epsilon == 1e-5):
        setting = (
            "a layer normalization epsilon other than 1e-5"
            if config.source_end
            else "sources without a final </s>"
        )
        raise NmtkitError(
            f"{engine} does not support {setting}; use --to ctranslate2 or --to safetensors"
        )
    return config


_TRANSLATED = {
    "kind",
    "beam_size",
    "alpha",
    "coverage_kind",
    "min_length",
    "max_length",
    "max_length_ratio",
    "max_length_offset",
    "no_repeat_ngram",
    "forbid_unknown",
}
"""Keys that every engine supports with any value; `missing_settings` checks the values of all other keys."""


def missing_settings(engine: str, config: SearchConfig) -> dict[str, str]:
    """Returns descriptions of the search settings that an engine does not support, by key."""
    kind = kind_of_search(config)
    if kind != "beam":
        return {"kind": f"kind {kind} (use beam)"}
    supported = {
        "length_penalty": (config.length_penalty in ("average", "none"), "average or none"),
        "coverage_penalty": (not config.coverage_penalty, "0"),
        "stop": (config.effective_stop in _STOPS[engine], "first_k"),
        "min_length_ratio": (not config.min_length_ratio, "0"),
        "repetition_penalty": (config.repetition_penalty == 1.0, "1"),
        "certain_prefix": (not config.certain_prefix, "false"),
        "diversity_groups": (config.n_groups == 1, "1"),
        "rules": (not config.rules, "[]"),
        "at_limit": (
            config.effective_at_limit != "end" or engine != "ctranslate2",
            "behind or compete",
        ),
    }
    missing = {}
    for key, (is_supported, alternative) in supported.items():
        if not is_supported:
            missing[key] = f"{key} {getattr(config, key)} (use {alternative})"
    for key, field in type(config).model_fields.items():
        if (
            key not in supported
            and key not in _TRANSLATED
            and getattr(config, key) != field.default
        ):
            missing[key] = f"{key} {getattr(config, key)}"
    return missing


def require_comparable(engine: str, config: SearchConfig) -> None:
    """Raises NmtkitError, naming all search settings that an engine does not support."""
    missing = missing_settings(engine, config)
    if missing:
        raise NmtkitError(
            f"{engine} cannot run this search; it does not support {'; '.join(missing.values())}"
        )


def renormalizing_settings(config: SearchConfig) -> str:
    """Returns the settings that make CTranslate2 forbid tokens and give their probability to the others.

    nmtkit does not renormalize, so scores and chosen hypotheses differ.
    """
    keys = ("min_length", "no_repeat_ngram", "forbid_unknown")
    return ", ".join(f"{key} {getattr(config, key)}" for key in keys if getattr(config, key))


def ctranslate2_alpha(config: SearchConfig) -> float:
    """Returns the exponent of CTranslate2's length penalty, which divides by a power of the length."""
    alpha = config.alpha if config.length_penalty == "average" else 0.0
    return alpha or _NEARLY_NONE


def ctranslate2_options(config: SearchConfig) -> dict[str, Any]:
    """Returns the options of `translate_batch` that make CTranslate2 decode like nmtkit.

    By default, CTranslate2 generates at least one token, and silently truncates long sources.
    """
    return {
        "beam_size": config.n_hypotheses,
        "length_penalty": ctranslate2_alpha(config),
        "max_decoding_length": config.max_length,
        "min_decoding_length": config.min_length,
        "max_input_length": 0,
        "no_repeat_ngram_size": config.no_repeat_ngram,
        "disable_unk": config.forbid_unknown,
        "return_end_token": True,  # makes older versions include </s> in |Y|, as nmtkit does
    }


def positions_needed(recipe: "Recipe", config: TransformerConfig) -> int:
    """Returns the number of positions that an exported model needs."""
    if config.positions == "learned":
        return config.max_positions
    longest = max(recipe.search.max_length, *recipe.data.limits)
    return max(_FEWEST_POSITIONS, longest + 1)  # one position for </s>


def plain_weights(model: Seq2Seq) -> dict[str, Tensor]:
    """Returns the weights in float32 on the CPU; tied weights appear under each of their names."""
    return {name: tensor.detach().cpu().float() for name, tensor in model.state_dict().items()}


def position_table(model: Seq2Seq, weights: Mapping[str, Tensor], side: str, length: int) -> Tensor:
    """Returns the position embeddings of a side, `(P,H)`."""
    learned = f"{side}_positions.table"
    if learned in weights:
        return weights[learned]
    headed = as_multi_head(model)
    assert headed is not None
    return headed.positions(length)[1].cpu()
