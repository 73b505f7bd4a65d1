"""Converts the settings of `generate` (transformers 5) to our search settings and back."""

from pathlib import Path
from typing import Any, Literal, TypeVar

from nmtkit.config.tasks.builtin import SUMMARIZATION, TRANSLATION
from nmtkit.convert.external_files import ExternalSettings, read_json
from nmtkit.convert.imported_model import TaskVariant
from nmtkit.convert.vocabulary import Maps
from nmtkit.core.errors import CheckpointError, shorten
from nmtkit.core.formats import KeyPath
from nmtkit.core.settings import Beam, Field, Length, parse
from nmtkit.data.tokenizers.tokenizer import MAX_VOCAB_SIZE
from nmtkit.data.tokenizers.vocabulary import UNK
from nmtkit.decoding.settings import BeamConfig, SearchConfig

EARLY_STOPPING: dict[str, bool | str] = {"first_k": True, "huggingface": False, "exact": "never"}
"""The value of `early_stopping` for each of our `stop` values that has a counterpart."""

_NO_EFFECT = {
    "_from_model_config",
    "bos_token_id",
    "decoder_start_token_id",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "return_dict_in_generate",
    "transformers_version",
    "use_cache",
}
"""Generation settings that do not affect the output, and ids that are read as model settings."""
_SAMPLING = {"temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff"}
"""Generation settings without effect unless `do_sample` is true."""
_NEUTRAL: dict[str, Any] = {
    "begin_suppress_tokens": None,
    "diversity_penalty": 0.0,
    "do_sample": False,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "exponential_decay_length_penalty": None,
    "forced_decoder_ids": None,
    "num_beam_groups": 1,
    "num_return_sequences": 1,
    "repetition_penalty": 1.0,
    "suppress_tokens": None,
}
"""Generation settings that are not (fully) supported, with the values that turn them off."""

_VARIANTS = "task_specific_params"
_VARIANT_TASKS = (SUMMARIZATION.name, TRANSLATION.name)
_VARIANT_SETTINGS = {
    "early_stopping",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "min_length",
    "min_new_tokens",
    "no_repeat_ngram_size",
    "num_beams",
    "repetition_penalty",
}
"""The settings that are read from a task in `task_specific_params`."""
_PENALTY_NOTE = (
    "repetition_penalty multiplies log-probabilities, as in generate's beam search; generate's "
    "greedy search multiplies logits, so its output may differ"
)
_LENGTH_NOTE = (
    "the folder does not set max_length, so the output is limited to 20 tokens, as in generate; "
    "use --max-length 200, or set search.max_length in the run's recipe.yaml"
)


class GenerationConfig(ExternalSettings):
    """The settings that are read from `config.json` and `generation_config.json` of every model that generates text."""

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
    repetition_penalty: float = Field(default=1.0, gt=0.0)
    eos_token_id: int = Field(ge=0)

    @property
    def tgt_vocab_size(self) -> int:
        """Returns the number of tokens that the model can generate."""
        return self.vocab_size

    @property
    def suppressed_tokens(self) -> set[int]:
        """Single tokens that `generate` never outputs."""
        tokens = {words[0] for words in self.bad_words_ids if len(words) == 1}
        return {token for token in tokens if 0 <= token < self.vocab_size}

    def search_settings(
        self, folder: Path, maps: Maps, never_written: set[int]
    ) -> tuple[dict[str, Any], list[str]]:
        """Returns the search of `generate` as recipe settings, and notes on differences."""
        # max_length includes the decoder's first input
        max_tokens = self.max_new_tokens or self.max_length - 1
        min_tokens = max(self.min_length - 1, self.min_new_tokens)
        stops = {value: stop for stop, value in EARLY_STOPPING.items()}
        search = {
            "beam_size": self.num_beams,
            "stop": stops[self.early_stopping],
            "at_limit": "compete" if self.forced_eos_token_id is None else "end",
            "alpha": self.length_penalty,
            "max_length": max_tokens,
            "max_length_ratio": 0.0,
            "min_length": min(min_tokens, max_tokens - 1),
            "no_repeat_ngram": self.no_repeat_ngram_size,
            "forbid_unknown": int(maps[1].rows[UNK]) in self.suppressed_tokens,
        }
        if 1.0 < self.repetition_penalty <= 100.0:
            search["repetition_penalty"] = self.repetition_penalty
        if self.renormalize_logits:
            never_written = never_written | self.suppressed_tokens
        ignored = self._ignored(folder, never_written)
        if min_tokens >= max_tokens:  # then `generate` truncates all outputs
            ignored.append("min_length")
        notes = []
        if ignored:
            keys = shorten(", ".join(ignored), 200)
            notes.append(
                f"these settings in {generation_file(folder).name} are ignored: {keys}; the output "
                "of generate may differ"
            )
        if "repetition_penalty" in search:
            notes.append(_PENALTY_NOTE)
        if self.max_new_tokens is None and "max_length" not in self.model_fields_set:
            notes.append(_LENGTH_NOTE)
        return search, notes

    def _ignored(self, folder: Path, never_written: set[int]) -> list[str]:
        """Returns the generation settings of a folder that affect the output but are not supported."""
        path = generation_file(folder)
        generation = read_json(path, dict)
        ignored = []
        for words in self.bad_words_ids:
            if len(words) != 1 or words[0] not in never_written:
                ignored.append("bad_words_ids")
                break
        if self.forced_eos_token_id not in (None, self.eos_token_id):
            ignored.append("forced_eos_token_id")
        if self.repetition_penalty != 1.0 and not 1.0 < self.repetition_penalty <= 100.0:
            ignored.append("repetition_penalty")
        read = {*type(self).model_fields, *_NO_EFFECT}
        if not generation.get("do_sample"):
            read |= _SAMPLING
        for key, value in generation.items():
            if key in read or not value or value == _NEUTRAL.get(key):
                continue
            if path.name == "config.json" and key not in _NEUTRAL:
                continue  # this is a setting of the model
            ignored.append(key)
        return ignored


C = TypeVar("C", bound=GenerationConfig)


def generation_settings(search: SearchConfig) -> dict[str, Any]:
    """Returns the settings of `generate` that depend only on the search, not on the model."""
    beams = search.beam_size if isinstance(search, BeamConfig) else 1
    return {
        "num_beams": beams,
        "early_stopping": EARLY_STOPPING.get(search.effective_stop, False) if beams > 1 else False,
        "length_penalty": search.alpha if search.length_penalty == "average" else 0.0,
        "no_repeat_ngram_size": search.no_repeat_ngram,
        # includes the decoder's first input
        "min_length": search.min_length + 1 if search.min_length else 0,
    }


def generation_file(folder: Path) -> Path:
    """Returns the file with the settings of `generate`, which is `config.json` in older folders."""
    path = folder / "generation_config.json"
    return path if path.exists() else folder / "config.json"


def read_config(folder: Path, kind: type[C], variant: str = "") -> tuple[C, dict[str, Any]]:
    """Returns a folder's settings and the content of `config.json`.

    Generation settings in `config.json` apply only if there is no `generation_config.json`. The
    settings of the `variant`, a task in `task_specific_params`, override those in either file.
    Errors name the file that contains the value.
    """
    place = folder / "config.json"
    content = read_json(place, dict)
    settings = dict(content)
    places: dict[KeyPath, str] = {}
    path = generation_file(folder)
    if path != place:
        generation = read_json(path, dict)
        for key in GenerationConfig.model_fields.keys() - {"vocab_size", "eos_token_id"}:
            settings.pop(key, None)
        settings |= generation
        places = {(key,): str(path) for key in generation}
    if variant:
        parameters = content[_VARIANTS][variant]
        settings |= {key: value for key, value in parameters.items() if key in _VARIANT_SETTINGS}
        places |= {(key,): f"{place}: {_VARIANTS}.{variant}" for key in parameters}
    ends = settings.get("eos_token_id")
    if isinstance(ends, list) and len(ends) == 1:
        settings["eos_token_id"] = ends[0]
    config = parse(kind, settings, str(place), places)
    for key in kind.model_fields:
        token = getattr(config, key)
        if key.endswith("_token_id") and token is not None and token >= config.tgt_vocab_size:
            where = places.get((key,), str(place))
            raise CheckpointError(
                f"{where}: `{key}` is {token}, but the vocabulary has only "
                f"{config.tgt_vocab_size:,} tokens"
            )
    return config, content


def read_variants(
    folder: Path, kind: type[GenerationConfig], maps: Maps, never_written: set[int]
) -> dict[str, TaskVariant]:
    """Returns the tasks in `task_specific_params` of `config.json` that nmtkit supports.

    T5, for example, was trained for several tasks, each with its own prefix. `maps` and
    `never_written` are as in `search_settings`.
    """
    place = folder / "config.json"
    named = read_json(place, dict).get(_VARIANTS) or {}
    variants: dict[str, TaskVariant] = {}
    for name, parameters in named.items() if isinstance(named, dict) else ():
        task = next((task for task in _VARIANT_TASKS if name.startswith(task)), None)
        if task is None or not isinstance(parameters, dict):
            continue
        prefix = parameters.get("prefix") or ""
        if not isinstance(prefix, str):
            raise CheckpointError(
                f"{place}: `{_VARIANTS}.{name}.prefix` must be a string, not "
                f"{shorten(repr(prefix))}"
            )
        config, _ = read_config(folder, kind, name)
        search, notes = config.search_settings(folder, maps, never_written)
        ignored = sorted(parameters.keys() - _VARIANT_SETTINGS - {"prefix"})
        if ignored:
            notes.append(
                f"these settings in {place.name} are ignored: "
                f"{', '.join(f'{_VARIANTS}.{name}.{key}' for key in ignored)}"
            )
        variants[name] = TaskVariant(task, search, notes, prefix)
    return variants
