"""The options of opening a trained model, as keywords of `Translator.load` and as one object."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from nmtkit.core.registry import suggest_names
from nmtkit.decoding.settings import SEARCH_FIELDS
from nmtkit.layers.linear import PrecisionChoice
from nmtkit.models.ensemble import Mean

Load = TypeVar("Load", bound=Callable[..., Any])
EngineChoice = Literal["auto", "nmtkit", "ctranslate2"]
CTranslate2Precision = Literal[
    "int8", "fastest", "int16", "int8_float32", "int8_float16", "int8_bfloat16", "float32", "float16", "bfloat16"
]
"""Precisions that only CTranslate2 has, under its names; `fastest` is its `auto`."""

DEFAULT_LM_WEIGHT = 0.2


@dataclass(frozen=True)
class DecodingOptions:
    """Options of loading a trained model: which run, on which device, and how it decodes."""

    model: str | Path | Sequence[str | Path] | None = None
    """The run's folder or its name under `runs/`; None takes `$NMTKIT_MODEL`, else the newest finished run. Several
    search together, as an ensemble."""
    ensemble: Mean = "probabilities"
    """The mean that an ensemble takes, see `nmtkit.models.ensemble`."""
    ensemble_weights: Sequence[float] | None = None
    """How much each run of an ensemble counts; None: all the same."""
    lm: str | Path | None = None
    """The run of a language model that searches beside the model, by shallow fusion: see
    `nmtkit.models.language.shallow_fusion`. Its vocabulary is that of the model's target; scores include its part."""
    lm_weight: float | None = None
    """How much the language model counts, beta; None: `DEFAULT_LM_WEIGHT`."""
    device: str = "auto"
    """Several, separated by commas, get a process each."""
    weights: str = "auto"
    """`auto`, `best`, `last`, `average`, a stage of the recipe, or a file."""
    threads: int | None = None
    """CPU threads; None is torch's choice."""
    precision: Literal[PrecisionChoice, CTranslate2Precision] = "auto"
    """Precision of matrix products. `auto` is fp32 where CTranslate2 searches, and on a CPU; else fp16, or bf16 where a
    number of the model would be too large for fp16."""
    engine: EngineChoice = "auto"
    """What searches. auto: the library CTranslate2, if it is installed and finds the same texts and scores, else nmtkit
    itself; see `nmtkit.convert.ctranslate2_search`. With `ctranslate2` an error says what the library lacks."""
    workers: int | None = None
    """Processes that search on a CPU, each with one core, instead of this one. None: a fork for each core if there are
    many lines and `nmtkit.core.device.can_fork`; see `nmtkit.inference.loading.speed`."""
    batch_tokens: int | None = None
    """Padded source tokens in a batch."""
    search_settings: Mapping[str, object] | None = None
    """Keys of the recipe's `search` group that differ, e.g. `{"beam_size": 1}`; see `change_search`."""
    n_best: int = 1
    """The beam has at least this many hypotheses, unless the settings name its size."""
    max_source_tokens: int | None = None
    """Only so many tokens of a source are read; None as in training, where a recipe for summaries says
    `data.over_long: truncate`, else all."""
    layer: int | None = None
    """The decoder layer of a Transformer whose attention is shown, from 1; None as the recipe says, here and below."""
    head: int | None = None
    """The attention head that is shown, from 1."""
    shortlist: Path | None = None
    """A file of candidates, which searches then keep to; see `nmtkit.decoding.shortlist`."""
    to: str | None = None
    """The language to write, for a multilingual model: the `tgt_lang` of a training corpus, or a token of an imported
    model, such as de_DE or deu_Latn. Default: the language that the model was fine-tuned for."""
    source_language: str | None = None
    """The language of the source, for an imported multilingual model. Default: the language that it was fine-tuned
    for."""


def options_from_keywords(
    run: str | Path | Sequence[str | Path] | None, device: str, weights: str, keywords: Mapping[str, Any]
) -> DecodingOptions:
    """Returns the options for the arguments of `Translator.load`.

    Raises:
        TypeError: a keyword is neither another field of `DecodingOptions` nor a key of the group `search`.
    """
    settings = dict(keywords.get("search_settings") or {})
    options = {}
    names = _keywords()
    for name, value in keywords.items():
        if name not in names:
            raise TypeError(f"Translator.load has no argument {name!r}: {suggest_names(name, names, most=10)}")
        if name in SEARCH_FIELDS or name == "mbr":
            if name in settings:
                raise TypeError(f"{name!r} is also in search_settings: give it once")
            settings[name] = value
        elif name != "search_settings":
            options[name] = value
    return DecodingOptions(model=run, device=device, weights=weights, search_settings=settings, **options)


def _keywords() -> list[str]:
    """Names of the keywords, in their order."""
    names = [field.name for field in fields(DecodingOptions) if field.name not in ("model", "device", "weights")]
    return [*names, *SEARCH_FIELDS, "mbr"]


def with_keywords(load: Load) -> Load:
    """Gives a function that takes any keyword the signature with all of them, for `inspect` and `help`."""
    plain = inspect.signature(load)
    parameters = [one for one in plain.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    options = {field.name: field for field in fields(DecodingOptions)}
    for name in _keywords():
        default = options[name].default if name in options else None  # None: as in the recipe
        if name in options:
            annotation: Any = options[name].type
        else:
            annotation = Literal["chrf", "bleu", "none"] if name == "mbr" else SEARCH_FIELDS[name].annotation
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    load.__signature__ = plain.replace(parameters=parameters)  # type: ignore[attr-defined]  # what inspect looks for
    return load
