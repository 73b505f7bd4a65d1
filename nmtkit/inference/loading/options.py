"""Options for loading a trained model, as keywords of `Translator.load` and as a dataclass."""

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
    "int8",
    "fastest",
    "int16",
    "int8_float32",
    "int8_float16",
    "int8_bfloat16",
    "float32",
    "float16",
    "bfloat16",
]
"""Precisions that only CTranslate2 supports. They have CTranslate2's names, except for `fastest`, which CTranslate2
calls `auto`."""

DEFAULT_LM_WEIGHT = 0.2


@dataclass(frozen=True)
class DecodingOptions:
    """Options for loading a trained model: the run, the device, and how to decode."""

    model: str | Path | Sequence[str | Path] | None = None
    """The run's folder, or its name under `runs/`. None selects `$NMTKIT_MODEL` if that is set, otherwise the newest
    finished run. Several runs form an ensemble."""
    ensemble: Mean = "probabilities"
    """How an ensemble averages its members; see `nmtkit.models.ensemble`."""
    ensemble_weights: Sequence[float] | None = None
    """Weight of each run in an ensemble; None for equal weights."""
    lm: str | Path | None = None
    """Run of a language model for shallow fusion; see `nmtkit.models.language.shallow_fusion`. The language model must
    share the model's target vocabulary. Scores include its contribution."""
    lm_weight: float | None = None
    """Weight beta of the language model; None for `DEFAULT_LM_WEIGHT`."""
    device: str = "auto"
    """Name of the device, or several names separated by commas; each of several devices gets its own process."""
    weights: str = "auto"
    """Which weights to load: `auto`, `best`, `last`, `average`, a stage of the recipe, or a file."""
    threads: int | None = None
    """Number of CPU threads; None for torch's default."""
    precision: Literal[PrecisionChoice, CTranslate2Precision] = "auto"
    """Precision of matrix products. `auto` selects fp32 on a CPU and for CTranslate2; otherwise fp16, or bf16 if the
    model's values overflow fp16."""
    engine: EngineChoice = "auto"
    """The engine that decodes. `auto` selects CTranslate2 if it is installed and gives the same texts and scores as
    nmtkit, otherwise nmtkit; see `nmtkit.convert.ctranslate2_search`. With `ctranslate2`, it is an error if CTranslate2
    does not support the search."""
    workers: int | None = None
    """Number of processes that decode on a CPU, each on one core. None starts a fork for each core if there are many
    lines and this process can fork (`nmtkit.core.device.can_fork`); see `nmtkit.inference.loading.speed`."""
    batch_tokens: int | None = None
    """Number of padded source tokens in a batch; None for the default in `nmtkit.inference.loading.speed`."""
    search_settings: Mapping[str, object] | None = None
    """Settings that override the recipe's `search` group, e.g. `{"beam_size": 1}`; see `change_search`."""
    n_best: int = 1
    """Minimum beam size, unless `search_settings` sets the beam size."""
    max_source_tokens: int | None = None
    """Maximum number of source tokens that the model reads. None selects the limit that applied in training if the
    recipe has `data.over_long: truncate`, as for summaries; otherwise there is no limit."""
    layer: int | None = None
    """Transformer decoder layer whose attention is shown, counted from 1; None for the recipe's setting."""
    head: int | None = None
    """Attention head that is shown, counted from 1; None for the recipe's setting."""
    shortlist: Path | None = None
    """File with the target tokens to which the search is restricted; see `nmtkit.decoding.shortlist`."""
    to: str | None = None
    """Target language of a multilingual model: the `tgt_lang` of a training corpus, or a language token of an imported
    model, such as de_DE or deu_Latn. Default: the language that the model was fine-tuned for."""
    source_language: str | None = None
    """Source language of an imported multilingual model. Default: the language that it was fine-tuned for."""


def options_from_keywords(
    run: str | Path | Sequence[str | Path] | None,
    device: str,
    weights: str,
    keywords: Mapping[str, Any],
) -> DecodingOptions:
    """Converts the arguments of `Translator.load` to `DecodingOptions`.

    Raises:
        TypeError: a keyword is neither a field of `DecodingOptions` nor a key of the recipe's `search` group, or it is
            also a key of `search_settings`.
    """
    settings = dict(keywords.get("search_settings") or {})
    options = {}
    names = _keywords()
    for name, value in keywords.items():
        if name not in names:
            raise TypeError(
                f"Translator.load has no argument {name!r}: {suggest_names(name, names, most=10)}"
            )
        if name in SEARCH_FIELDS or name == "mbr":
            if name in settings:
                raise TypeError(f"{name!r} is also in search_settings; give it only once")
            settings[name] = value
        elif name != "search_settings":
            options[name] = value
    return DecodingOptions(
        model=run, device=device, weights=weights, search_settings=settings, **options
    )


def _keywords() -> list[str]:
    """Returns the names of the keywords that `**options` accepts, in the order of the signature."""
    names = [
        field.name
        for field in fields(DecodingOptions)
        if field.name not in ("model", "device", "weights")
    ]
    return [*names, *SEARCH_FIELDS, "mbr"]


def with_keywords(load: Load) -> Load:
    """Decorator that replaces `**options` in a signature with the actual keywords, for `inspect` and `help`."""
    signature = inspect.signature(load)
    parameters = []
    for parameter in signature.parameters.values():
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            parameters.append(parameter)
    options = {option.name: option for option in fields(DecodingOptions)}
    for name in _keywords():
        default = None  # the recipe's setting
        annotation: Any
        if name in options:
            default = options[name].default
            annotation = options[name].type
        elif name == "mbr":
            annotation = Literal["chrf", "bleu", "none"]
        else:
            annotation = SEARCH_FIELDS[name].annotation
        parameters.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )
        )
    load.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by `inspect`
    return load
