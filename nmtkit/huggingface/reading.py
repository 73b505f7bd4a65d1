"""Finds the family of a folder that `save_pretrained` of `transformers` wrote, and reads how it searches."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from nmtkit.core.errors import shorten
from nmtkit.core.registry import Registry
from nmtkit.core.settings import Beam, Field, Length, parse
from nmtkit.data.tokenizer import MAX_VOCAB_SIZE
from nmtkit.data.vocabulary import UNK
from nmtkit.interchange.external_files import ExternalSettings, ExternalWeights, read_json, unsupported
from nmtkit.interchange.import_weights import ImportedModel
from nmtkit.interchange.importing import READERS, license_of
from nmtkit.interchange.vocabulary import Maps

FAMILIES: Registry[Callable[[Path], ImportedModel]] = Registry("model type")
"""The reader of a folder, by `model_type` in its `config.json`."""


@READERS.register("huggingface")
def read_huggingface(folder: Path) -> ImportedModel:
    """Converts a folder with `config.json`, weights and tokenizers."""
    place = folder / "config.json"
    kind = str(read_json(place, dict).get("model_type"))
    if kind not in FAMILIES:
        raise unsupported(place, f"a model of type {shorten(kind)!r}", f"supported: {', '.join(FAMILIES.names())}")
    return replace(FAMILIES.get(kind)(folder), licence=license_of(folder))


_NO_EFFECT = {"_from_model_config", "bos_token_id", "transformers_version", "use_cache", "output_attentions"}
"""Generation settings that change no text."""
_IDS = {"pad_token_id", "decoder_start_token_id"}
_OF_OLDER: dict[str, Any] = {"do_sample": False, "repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 0}
_OF_OLDER |= {"num_beam_groups": 1, "diversity_penalty": 0.0, "encoder_repetition_penalty": 1.0}
_OF_OLDER |= dict.fromkeys(("suppress_tokens", "begin_suppress_tokens", "exponential_decay_length_penalty"))
"""Generation settings that `config.json` may have where there is no `generation_config.json`, and what is none."""

ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "silu": "silu", "swish": "silu"}
ACTIVATIONS |= dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "gelu_tanh")
"""Our names of activations."""


class GenerationConfig(ExternalSettings):
    """The keys of `config.json` and `generation_config.json` that are read of every model that writes text."""

    vocab_size: int = Field(ge=2, le=MAX_VOCAB_SIZE)
    num_beams: Beam = Field(default=1, ge=1)
    early_stopping: bool | Literal["never"] = False
    length_penalty: float = Field(default=1.0, ge=0.0)
    max_length: Length = Field(default=21, ge=2)
    max_new_tokens: Length | None = Field(default=None, ge=1)
    min_length: Length = Field(default=0, ge=0)
    min_new_tokens: Length = Field(default=0, ge=0)
    no_repeat_ngram_size: int = Field(default=0, ge=0)
    forced_bos_token_id: int | None = Field(default=None, ge=0)
    forced_eos_token_id: int | None = None
    bad_words_ids: list[list[int]] = Field(default=[])
    renormalize_logits: bool = False
    eos_token_id: int = Field(ge=0)

    @property
    def suppressed_tokens(self) -> set[int]:
        """Single tokens that `generate` never writes."""
        return {one[0] for one in self.bad_words_ids if len(one) == 1 and 0 <= one[0] < self.vocab_size}

    def search_settings(self, folder: Path, maps: Maps, never_written: set[int]) -> tuple[dict[str, Any], list[str]]:
        """The search of `generate` in transformers 5 as a recipe's settings, and notes on what has no counterpart."""
        limit = self.max_new_tokens or self.max_length - 1  # max_length counts the decoder's first input
        least = max(self.min_length - 1, self.min_new_tokens)
        search = {
            "beam_size": self.num_beams,
            "stop": {"True": "first_k", "False": "huggingface", "never": "exact"}[str(self.early_stopping)],
            "at_limit": "compete" if self.forced_eos_token_id is None else "end",
            "alpha": self.length_penalty,
            "max_length": limit,
            "max_length_ratio": 0.0,
            "min_length": min(least, limit - 1),
            "no_repeat_ngram": self.no_repeat_ngram_size,
            "forbid_unknown": int(maps[1].rows[UNK]) in self.suppressed_tokens,
        }
        if self.renormalize_logits:
            never_written = never_written | self.suppressed_tokens
        differs = {
            "bad_words_ids": any(len(one) != 1 or one[0] not in never_written for one in self.bad_words_ids),
            "forced_eos_token_id": self.forced_eos_token_id not in (None, self.eos_token_id),
            "min_length": least >= limit,  # then none of their texts ends by itself
        }
        path = next(one for name in ("generation_config", "config") if (one := folder / f"{name}.json").exists())
        generation = read_json(path, dict)
        if path.name == "config.json":
            generation = {key: one for key, one in generation.items() if one != _OF_OLDER.get(key, one)}
        known = {*type(self).model_fields, *_NO_EFFECT, *_IDS}
        ignored = [key for key, is_so in differs.items() if is_so]
        ignored += [key for key, value in generation.items() if value and key not in known]
        notes = []
        if ignored:
            keys = shorten(", ".join(ignored), 200)
            notes.append(f"ignored in {path.name}: {keys}; generate may write other texts")
        if self.max_new_tokens is None and "max_length" not in self.model_fields_set:
            notes.append("the folder sets no max_length, so generate writes 20 tokens at most: raise search.max_length")
        return search, notes


C = TypeVar("C", bound=GenerationConfig)


def read_config(folder: Path, kind: type[C]) -> tuple[C, dict[str, Any]]:
    """The settings of a folder; and what `config.json` holds, whose own on generation count without those of a file."""
    place, path = folder / "config.json", folder / "generation_config.json"
    settings = given = read_json(place, dict)
    if path.exists():
        own = GenerationConfig.model_fields.keys() - {"vocab_size", "eos_token_id"}
        settings = {key: one for key, one in given.items() if key not in own} | read_json(path, dict)
    return parse(kind, settings, str(place)), given


def renamed(
    weights: ExternalWeights, name_of: Callable[[str], str], is_turned: Callable[[str], bool] = lambda name: False
) -> ExternalWeights:
    """The weights by other names, without those whose name is empty; some matrices are turned."""
    names = {name_of(name): name for name in weights.shapes if name_of(name)}
    shapes = {name: weights.shapes[given] for name, given in names.items()}
    return ExternalWeights(
        weights.path,
        {name: shape[::-1] if is_turned(name) else shape for name, shape in shapes.items()},
        lambda name: weights.read(names[name]).t() if is_turned(name) else weights.read(names[name]),
    )
