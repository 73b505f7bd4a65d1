"""Loading the model of a run to translate with it."""

import inspect
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch

from nmtkit.autotune import cache
from nmtkit.autotune.cache import TuningResult
from nmtkit.autotune.searching import fits_fp16, quantize_as_before, search_workload_key, tune_search
from nmtkit.autotune.timing import time_limit
from nmtkit.core import device as devices
from nmtkit.core.errors import NmtkitError, RecipeError
from nmtkit.core.registry import suggest_names
from nmtkit.data.text.config import language_of_tag, language_tag
from nmtkit.data.tokenizers.languages import (
    chosen_languages,
    copy_first_input,
    in_direction,
    language_names,
    require_languages,
)
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.decoding.engine import StepMode, require_graph_support
from nmtkit.decoding.rules import SearchConfig
from nmtkit.decoding.shortlist import read_shortlist
from nmtkit.inference.inputs import SearchSpeedConfig, TextModel, default_speed_config
from nmtkit.inference.translator import Translator
from nmtkit.inference.workers import Workers
from nmtkit.layers.inference import Precision, PrecisionChoice
from nmtkit.models.base import Model, as_decoder, as_headed, as_seq2seq
from nmtkit.models.ensemble import Mean
from nmtkit.models.language.shallow_fusion import ShallowFusion
from nmtkit.runs.folder import Notify, ignore
from nmtkit.runs.saved import InferenceConfig, SavedRun, find_run
from nmtkit.tasks.task import TASKS
from nmtkit.training.checkpoints.weights import count_parameters

EngineChoice = Literal[StepMode, "ctranslate2"]
OtherPrecision = Literal[
    "fastest", "int16", "int8_float32", "int8_float16", "int8_bfloat16", "float32", "float16", "bfloat16"
]
"""What CTranslate2 has besides ours, under its names; `fastest` is its `auto`."""
MIN_LINES_FOR_WORKERS = 256
"""Lines that must be there at once for processes to be worth their beginning."""

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
    precision: Literal[PrecisionChoice, OtherPrecision] = "auto"
    """Precision of matrix products. `auto` on a CPU: fp32, or what was measured here to find the same texts in less
    time; on CUDA fp16, or bf16 where a number of the model would be too large for fp16."""
    engine: EngineChoice = "auto"
    """The steps of a search on CUDA: captured as graphs once that pays (auto), at once (graph), or never (eager).
    ctranslate2: this library searches instead; see `nmtkit.convert.ctranslate2_search`."""
    workers: int | None = None
    """Processes that search on a CPU, each with one core, instead of this one with all threads. None: a fork per
    thread, if there are enough lines, that is the fastest here, and `nmtkit.core.device.can_fork`."""
    batch_tokens: int | None = None
    """Padded source tokens in a batch."""
    search_settings: Mapping[str, object] | None = None
    """Keys of the recipe's `search` group that differ, e.g. `{"beam_size": 1}`."""
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


def load_translator(
    run: str | Path | Sequence[str | Path] | None = None, device: str = "auto", weights: str = "auto", **options: Any
) -> Translator:
    """Opens a trained run.

    `options` are the other fields of `DecodingOptions`, which explains them, and the keys of the recipe's `search`
    group (`nmtkit recipe explain search`), such as `beam_size`; what is not given is as in the recipe.
    `inspect.signature` lists all of them.

    Raises:
        TypeError: an option has no such name.
    """
    settings = dict(options.pop("search_settings", None) or {})
    names = _option_names()
    for name in list(options):
        if name not in names:
            raise TypeError(f"Translator.load has no argument {name!r}: {suggest_names(name, names, most=10)}")
        if name in SearchConfig.model_fields:
            if name in settings:
                raise TypeError(f"{name!r} is also in search_settings: give it once")
            settings[name] = options.pop(name)
    how = DecodingOptions(model=run, device=device, weights=weights, search_settings=settings, **options)
    return as_translator(load_from_options(how))


def _option_names() -> list[str]:
    names = [field.name for field in fields(DecodingOptions) if field.name not in ("model", "device", "weights")]
    return [*names, *SearchConfig.model_fields]


def _load_signature() -> inspect.Signature:
    """The signature of `load_translator` with all of its options."""
    plain = inspect.signature(load_translator)
    parameters = [one for one in plain.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    of_loading = {field.name: field for field in fields(DecodingOptions)}
    for name in _option_names():
        if name in of_loading:
            default, annotation = of_loading[name].default, of_loading[name].type
        else:
            default, annotation = None, SearchConfig.model_fields[name].annotation  # None: as in the recipe
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    return plain.replace(parameters=parameters)


load_translator.__signature__ = _load_signature()  # type: ignore[attr-defined]  # what inspect and help look for
Translator.load = load_translator


def load_from_options(how: DecodingOptions, task: str | None = None, notify: Notify = ignore) -> TextModel:
    """Finds a trained run and opens it; `task` is what it must be trained for, None anything.

    `notify` receives the run, its weights and the device, and what differs from the recipe.
    """
    run, why = find_run(how.model, task=task, mean=how.ensemble, weights=how.ensemble_weights)
    for one in run.members():
        trained_for = one.inference.task
        if task is not None and trained_for != task:
            command = TASKS.get(trained_for).command
            use = f"use `nmtkit {command}`, or name" if command else "name"
            raise NmtkitError(f"{one.folder.path} ({why}) was trained for {trained_for}: {use} another run with -m RUN")
    system = open_system(run, how, notify)
    require_languages(system.tokenizers.config)
    if system.languages and _reads_language_tags(run):
        system = replace(system, needs_language=True)
    chosen = chosen_languages(system.tokenizers.config)
    if any(chosen.values()):
        notify(f"languages: it reads {chosen['src'] or 'any'} and writes {chosen['tgt'] or 'its own'}")
    names = dict.fromkeys(how.device.split(","))
    place = ", ".join(names) if "," in how.device else devices.describe(system.device)
    for one in run.members():
        path = one.weights(how.weights)
        stage = f"{path.parent.name}/" if path.parent.parent == one.folder.checkpoints else ""
        notify(f"model {one.folder.path} ({why}), {stage}{path.name}, on {place}")
    return system


def _reads_language_tags(run: SavedRun) -> bool:
    """Whether every source that a run was trained on begins with the tag of a language."""
    tags = run.recipe.data.train.tags
    return bool(tags) and all(any(map(language_of_tag, words.split())) for words in tags)


def _in_direction(model: Model, tokenizers: Tokenizers, how: DecodingOptions) -> tuple[Tokenizers, str]:
    """Returns the tokenizers for the languages of the options, and the tags before every source."""
    if language_names(tokenizers.config.specials):
        directed = in_direction(tokenizers, how.source_language, how.to)
        decoder = as_decoder(model)
        if how.to is not None and decoder is not None:
            for member in decoder.models():
                copy_first_input(member.embedding("tgt"), directed)
        return directed, ""
    if how.source_language is not None:
        raise RecipeError(
            f"--from {how.source_language}: only imported multilingual models have tokens of source languages; "
            "leave it out"
        )
    return tokenizers, "" if how.to is None else language_tag(how.to)


def open_translator(run: SavedRun, how: DecodingOptions, notify: Notify = ignore) -> Translator:
    """As `open_system`, for a run that writes text."""
    return as_translator(open_system(run, how, notify))


def as_translator(system: TextModel) -> Translator:
    """The same; RecipeError if its model writes no text."""
    if not isinstance(system, Translator):
        raise RecipeError(f"the model {system.name!r} ({system.model.config.kind}) writes no text; name another run")
    return system


def open_system(run: SavedRun, how: DecodingOptions, notify: Notify = ignore) -> TextModel:
    """Opens a run, as a `Translator` if its model writes text; `notify` receives what differs from its recipe."""
    if how.engine == "ctranslate2":
        return _open_for_ctranslate2(run, how, notify)
    places = [devices.choose(name) for name in how.device.split(",")]
    if (how.workers or 1) > 1 and (len(places) > 1 or places[0].type != "cpu"):
        raise NmtkitError(f"--workers is for one CPU, and --device is {how.device}: leave one of them out")
    if len(places) > 1:
        return _for_workers(run, how, places, notify)
    (place,) = places
    require_graph_support(how.engine, place, how.shortlist is not None)
    opened, tokenizers, trained = run.open_for_inference(place, how.weights)
    if how.lm is not None or how.lm_weight is not None:
        opened = _with_language_model(opened, tokenizers, how, place, notify)
    tokenizers, tags = _in_direction(opened, tokenizers, how)
    model = as_decoder(opened)
    if model is None:
        if how.search_settings or how.shortlist or (how.workers or 1) > 1 or how.precision not in ("auto", "fp32"):
            needs = "what a search needs, --workers and --precision"
            raise RecipeError(f"{run.folder.path}: {trained.model.kind} writes no text: leave out {needs}")
        devices.prepare(place, threads=how.threads)
        return TextModel(
            opened,
            tokenizers,
            name=trained.name,
            max_source_tokens=how.max_source_tokens or trained.max_source_tokens,
            tags=tags,
            batch_tokens=how.batch_tokens,
            parameters=count_parameters(opened),
        )
    shortlist = None if how.shortlist is None else read_shortlist(Path(how.shortlist), tokenizers).to(place)
    config = _search_config(trained, how, notify)
    if how.layer is not None or how.head is not None:
        headed = as_headed(model)
        if headed is None:
            raise RecipeError(f"{model.config.kind} has one attention, not layers of heads to choose from")
        headed.show(how.layer, "mean" if how.head is None else how.head)
    precision = _requested_precision(model, how.precision)
    key = search_workload_key(trained.model, model.sizes["tgt"], config.beam_size, how.threads, place, precision)
    known = cache.get(key, SearchSpeedConfig) if len(model.models()) == 1 else None
    speed_config = known.config if known else default_speed_config(place, "fp32" if precision == "auto" else precision)
    devices.prepare(place, threads=how.threads)
    outputs = [getattr(one, "output", None) or one for one in model.models()] if shortlist is not None else []
    parameters = count_parameters(model)  # quantized they are no parameters any more
    quantize_as_before(model, speed_config.precision, place, outputs)
    return Translator(
        model,
        tokenizers,
        config,
        name=" + ".join(dict.fromkeys(one.inference.name for one in run.members())),
        articles=TASKS.get(trained.task).monolingual,
        max_source_tokens=how.max_source_tokens or trained.max_source_tokens,
        tags=tags,
        batch_tokens=how.batch_tokens,
        steps=how.engine,
        speed=speed_config,
        parameters=parameters,
        workers=build_workers(how, place, speed_config),
        shortlist=shortlist,
    )


def _open_for_ctranslate2(run: SavedRun, how: DecodingOptions, notify: Notify) -> Translator:
    """A translator whose searches are CTranslate2's, on a CPU in batches of 32 to 64; refuses by name what it lacks."""
    from nmtkit.convert.ctranslate2_search import CTranslate2Search, require_comparable

    lacking = [f"--{name}" for name in ("lm", "shortlist", "layer", "head") if getattr(how, name) is not None]
    lacking += ["several models"] * (len(run.members()) > 1) + ["several devices"] * ("," in how.device)
    if lacking := lacking + ["--workers (take --threads)"] * ((how.workers or 1) > 1):
        raise NmtkitError(f"engine {how.engine} has no {', no '.join(lacking)}: leave that out, or take another engine")
    own = open_translator(run, replace(how, engine="auto", precision="auto", workers=1), notify)
    require_comparable(how.engine, own.config)
    on_cpu, precision = own.device.type == "cpu", cast(Precision, how.precision)
    if how.precision == "auto":
        precision = "fp32" if on_cpu else own.speed_config.precision
    other = CTranslate2Search(run, how.weights, own.device, precision, torch.get_num_threads())
    forbids = own.config.min_length or own.config.no_repeat_ngram or own.config.forbid_unknown
    notify(f"engine {how.engine}, {precision}" + "; what it forbids changes its other scores" * bool(forbids))
    speed = SearchSpeedConfig(precision, 1024 if on_cpu else 16384, on_cpu, how.engine)
    return replace(own, speed=speed, other=other)


def _with_language_model(
    model: Model, own: Tokenizers, how: DecodingOptions, place: torch.device, notify: Notify
) -> ShallowFusion:
    """The model and the language model that the options name, in shallow fusion."""
    if how.lm is None:
        raise RecipeError("lm_weight is the weight of a language model: name its run with --lm RUN as well")
    run, _ = find_run(how.lm)
    opened, others, _ = run.open_for_inference(place)
    reader, speaker, path = as_seq2seq(model), as_decoder(opened), run.folder.path
    if reader is None or speaker is None or as_seq2seq(speaker) is not None:
        kinds = f"{opened.config.kind} cannot stand beside {model.config.kind}"
        raise RecipeError(f"{path}: --lm names a language model, for a model that reads a source; {kinds}")
    if others.tgt.vocabulary != own.tgt.vocabulary:
        raise RecipeError(
            f"{path}: its vocabulary differs from the target vocabulary of the model, so its ids mean other "
            "words: train the language model with the model's tokenizer (in its recipe `init_from: {tokenizer: RUN}`)"
        )
    weight = DEFAULT_LM_WEIGHT if how.lm_weight is None else how.lm_weight
    notify(f"language model {path}, weight {weight:g}; scores include its part")
    return ShallowFusion(reader, speaker, weight)


def _search_config(trained: InferenceConfig, how: DecodingOptions, notify: Notify) -> SearchConfig:
    settings = how.search_settings or {}
    config = trained.search.changed(settings)
    if "beam_size" not in settings and not config.samples and how.n_best > config.beam_size:
        wider = -(-how.n_best // config.diversity_groups) * config.diversity_groups
        notify(f"beam size {wider} instead of {config.beam_size}, for --n-best {how.n_best}")
        config = config.changed({"beam_size": wider})
    config.reject_unused(settings, TASKS.get(trained.task).columns[0].name == "src")
    mbr = config.mbr
    if mbr != "none" and "mbr" not in settings and "samples" in settings and how.n_best == config.samples > 1:
        raise RecipeError(f"search.mbr, {mbr}, chooses one of the samples: say --mbr {mbr}, or --mbr none for all")
    return config


def build_workers(how: DecodingOptions, place: torch.device, config: SearchSpeedConfig) -> Workers | None:
    """The processes that search on one device."""
    threads = torch.get_num_threads()
    if place.type != "cpu" or how.workers == 1:
        return None
    if how.workers is None:
        worth = threads > 1 and config.one_a_core and devices.can_fork()
        return Workers(["cpu"] * threads, least=MIN_LINES_FOR_WORKERS) if worth else None
    return Workers(["cpu"] * how.workers, None if devices.can_fork() else partial(_open_on_device, how))


def _for_workers(run: SavedRun, how: DecodingOptions, places: Sequence[torch.device], notify: Notify) -> Translator:
    """A translator whose searches run in a process for each device."""
    how = replace(how, model=[str(one.folder.path) for one in run.members()], workers=1)
    # This process searches no line: it only tokenizes and joins text.
    translator = open_translator(run, replace(how, device="cpu", precision="fp32"), notify)
    vocabulary, beam = translator.model.sizes["tgt"], translator.config.beam_size
    settings = translator.model.config, vocabulary, beam, how.threads, places[0]
    on_cuda = how.precision == "auto" and places[0].type == "cuda"
    precisions = ("fp16", "bf16") if on_cuda else (how.precision,)  # as `_requested_precision` says in each process
    tuned = (cache.get(search_workload_key(*settings, one), SearchSpeedConfig) for one in precisions)
    known = next(filter(None, tuned), None)
    workers = Workers([str(place) for place in places], partial(_open_on_device, how))
    return replace(translator, speed=known.config if known else default_speed_config(places[0]), workers=workers)


def _open_on_device(how: DecodingOptions, device: str) -> Translator:
    return as_translator(load_from_options(replace(how, device=device, workers=1)))


def _requested_precision(model: Model, precision: Literal[PrecisionChoice, OtherPrecision]) -> PrecisionChoice:
    """`auto` where measuring decides, which is on a CPU."""
    if precision in get_args(OtherPrecision):
        raise RecipeError(f"precision {precision} is of engine ctranslate2; take fp32, fp16, bf16, int8 or auto")
    precision, device = cast(PrecisionChoice, precision), next(model.parameters()).device
    if precision != "auto" or device.type == "cpu":
        return precision
    if device.type != "cuda":
        return "fp32"
    return "fp16" if fits_fp16(model) else "bf16"


def open_autotuned(
    run: SavedRun,
    how: DecodingOptions,
    lines: Sequence[str],
    planned_seconds: float,
    notify: Notify = ignore,
    again: bool = False,
) -> tuple[Translator, TuningResult[SearchSpeedConfig]]:
    """Opens a run in the fastest configuration of this machine, for which it is prepared; see `tune_search`."""
    how = replace(how, workers=1)
    default = open_translator(run, how)
    if default.other is not None:
        return default, TuningResult("search", default.speed_config, "sentences/s")
    opened: dict[str, Translator] = {default.speed_config.precision: default}

    def configured(config: SearchSpeedConfig) -> Translator:
        if config.precision not in opened:
            opened[config.precision] = open_translator(run, replace(how, precision=config.precision))
        return replace(opened[config.precision], speed=config)

    def search(config: SearchSpeedConfig, sample: Sequence[str], most: float) -> list[str]:
        translator = configured(config)
        with time_limit(most, translator.model):
            return translator.translate(sample)

    vocabulary, beam, device = default.model.sizes["tgt"], default.config.beam_size, default.device
    precision = how.precision if device.type == "cpu" else default.speed_config.precision
    key = search_workload_key(default.model.config, vocabulary, beam, how.threads, device, precision)
    filled = [line for line in lines if line.strip()]
    result = tune_search(search, filled, device, key, planned_seconds, again)
    for sentence in result.sentences():
        notify(sentence)
    return configured(result.config), result


def beside_ctranslate2(
    run: SavedRun, own: Translator, result: TuningResult[SearchSpeedConfig], lines: Sequence[str], notify: Notify
) -> TuningResult[SearchSpeedConfig]:
    """A result of `open_autotuned` with the speed of CTranslate2 on the same lines, and how many texts differ."""
    how = DecodingOptions(device=str(own.device), engine="ctranslate2")
    if not result.speed or not result.lines:
        return result
    try:
        others = [open_translator(run, replace(how, precision=one)) for one in ("auto", "fastest")]
    except NmtkitError as fault:
        notify(f"ctranslate2 is not compared: {fault}")
        return result
    filled = [line for line in lines if line.strip()]
    sample = filled[:: len(filled) // result.lines][: result.lines]
    seconds, texts = dict[str, float](), dict[str, list[str]]()
    for one in 2 * [own, *others]:
        name, begun = str(one.speed_config), time.monotonic()
        texts[name] = one.translate(sample)
        seconds[name] = min(time.monotonic() - begun, seconds.get(name, math.inf))
    mine, *theirs = seconds
    speeds = {name: result.speed * seconds[mine] / seconds[name] for name in theirs}
    differing = {name: sum(map(str.__ne__, texts[name], texts[mine])) for name in theirs}
    return replace(result, speeds=result.speeds | speeds, differing=result.differing | differing)
