"""Loading the model of a run to translate with it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, cast, get_args

import torch

from nmtkit.config.tasks.task import TASKS
from nmtkit.core import device as devices
from nmtkit.core.errors import CheckpointError, NmtkitError, RecipeError
from nmtkit.data.text.config import language_of_tag, language_tag
from nmtkit.data.tokenizers.languages import (
    begins_with_language,
    chosen_languages,
    copy_first_input,
    forces_first_token,
    in_direction,
    language_names,
    require_languages,
)
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.decoding.settings import BeamConfig, MbrConfig, SearchConfig, change_search
from nmtkit.decoding.shortlist import read_shortlist
from nmtkit.inference.inputs import ModelOnDemand, TextModel
from nmtkit.inference.loading.engines import ENGINES
from nmtkit.inference.loading.options import DEFAULT_LM_WEIGHT, CTranslate2Precision, DecodingOptions
from nmtkit.inference.loading.speed import (
    MIN_LINES_FOR_WORKERS,
    SearchSpeedConfig,
    default_precision,
    default_speed_config,
)
from nmtkit.inference.translator import Translator
from nmtkit.inference.workers import Workers
from nmtkit.layers.linear import Precision, PrecisionChoice, prepare_for_inference
from nmtkit.models.abilities import as_multi_head
from nmtkit.models.base import MODELS, Decoder, Model, as_decoder, as_seq2seq, members_of
from nmtkit.models.language.shallow_fusion import ShallowFusion
from nmtkit.runs.folder import Notify, ignore
from nmtkit.runs.run import InferenceConfig, Run, find_run
from nmtkit.training.checkpoints.weights import count_parameters

OTHER_ENGINE = "ctranslate2"
"""The other library that searches, see `ENGINES`, and the name of its package."""
OTHER_BATCH_TOKENS = {"cpu": 1024, "cuda": 16384}
"""Padded source tokens in one of its batches."""


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


def _reads_language_tags(run: Run) -> bool:
    """Whether every source that a run was trained on begins with the tag of a language."""
    tags = run.recipe.data.train.tags
    return bool(tags) and all(any(map(language_of_tag, words.split())) for words in tags)


def _in_direction(model: Model, tokenizers: Tokenizers, how: DecodingOptions) -> tuple[Tokenizers, str]:
    """Returns the tokenizers for the languages of the options, and the tags before every source."""
    if language_names(tokenizers.config.specials):
        directed = in_direction(tokenizers, how.source_language, how.to)
        decoder = as_decoder(model)
        if how.to is not None and decoder is not None:
            for member in members_of(decoder):
                copy_first_input(member.embedding("tgt"), directed)
        return directed, ""
    if how.source_language is not None:
        raise RecipeError(
            f"--from {how.source_language}: only imported multilingual models have tokens of source languages; "
            "leave it out"
        )
    return tokenizers, "" if how.to is None else language_tag(how.to)


def open_translator(run: Run, how: DecodingOptions, notify: Notify = ignore) -> Translator:
    """As `open_system`, for a run that writes text."""
    return as_translator(open_system(run, how, notify))


def as_translator(system: TextModel) -> Translator:
    """The same; RecipeError if its model writes no text."""
    if not isinstance(system, Translator):
        raise RecipeError(f"the model {system.name!r} ({system.outline.config.kind}) writes no text; name another run")
    return system


def open_system(run: Run, how: DecodingOptions, notify: Notify = ignore) -> TextModel:
    """Opens a run, as a `Translator` if its model writes text; `notify` receives what differs from its recipe."""
    if how.engine != "nmtkit":
        translator = _open_for_ctranslate2(run, how, notify)
        if translator is not None:
            return translator
        how = replace(how, engine="nmtkit")
    places = [devices.choose(name) for name in how.device.split(",")]
    if (how.workers or 1) > 1 and (len(places) > 1 or places[0].type != "cpu"):
        raise NmtkitError(f"--workers is for one CPU, and --device is {how.device}: leave one of them out")
    if len(places) > 1:
        return _for_workers(run, how, places, notify)
    (place,) = places
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
        headed = as_multi_head(model)
        if headed is None:
            raise RecipeError(f"{model.config.kind} has one attention, not layers of heads to choose from")
        headed.show(how.layer, "mean" if how.head is None else how.head)
    precision = _requested_precision(model, how.precision)
    devices.prepare(place, threads=how.threads)
    outputs = [getattr(one, "output", None) or one for one in members_of(model)] if shortlist is not None else []
    parameters = count_parameters(model)  # quantized they are no parameters any more
    prepare_for_inference(model, precision, outputs)
    return Translator(
        model,
        tokenizers,
        config,
        name=" + ".join(dict.fromkeys(one.inference.name for one in run.members())),
        articles=TASKS.get(trained.task).monolingual,
        max_source_tokens=how.max_source_tokens or trained.max_source_tokens,
        tags=tags,
        batch_tokens=how.batch_tokens,
        speed=default_speed_config(place, precision),
        parameters=parameters,
        workers=build_workers(how, place),
        shortlist=shortlist,
    )


def _open_for_ctranslate2(run: Run, how: DecodingOptions, notify: Notify) -> Translator | None:
    """Opens a run whose searches are CTranslate2's; None where our own engine is to search.

    With engine `auto` CTranslate2 searches if it is installed and finds the same; if not, `notify` gets the reason.
    NmtkitError has the reason where CTranslate2 is asked for, by its name or by a precision that it alone has.
    """
    if not issubclass(MODELS.get(run.inference.model.kind), Decoder):
        return None
    is_required = how.engine == OTHER_ENGINE or how.precision in get_args(CTranslate2Precision)
    if not is_required and find_spec(OTHER_ENGINE) is None:
        return None
    kind = ENGINES.get(OTHER_ENGINE)
    reason = kind.unsupported_run(run, how)
    if not reason:
        messages: list[str] = []
        trained = run.inference_of(how.weights)
        config = _search_config(trained, how, messages.append)
        outline, tokenizers = run.outline(how.weights)
        is_first_input = how.to is not None and begins_with_language(tokenizers)
        tokenizers, tags = _in_direction(outline, tokenizers, how)
        forces_language = forces_first_token(tokenizers)
        reason = kind.unsupported_search(config, forces_language, exact=not is_required)
        if is_first_input:
            reason = f"{OTHER_ENGINE} cannot write another language than the run with a model that begins with one"
    if not reason:
        place = devices.choose(how.device)
        devices.prepare(place, threads=how.threads)
        precision = "fp32" if how.precision == "auto" else how.precision
        try:
            other = kind(run, how.weights, place, precision)
        except CheckpointError:
            raise
        except NmtkitError as fault:
            reason = str(fault)
    if reason:
        if is_required:
            asked = "" if how.engine == OTHER_ENGINE else f"precision {how.precision} needs {OTHER_ENGINE}: "
            raise NmtkitError(f"{asked}{reason}; leave that out, or take --engine nmtkit")
        notify(f"engine nmtkit: {reason}")
        return None
    for message in messages:
        notify(message)
    is_exact = not kind.unsupported_search(config, forces_language, exact=True)
    notify(f"engine {OTHER_ENGINE}, {precision}{'' if is_exact else '; what it forbids changes its other scores'}")
    own_precision = precision if place.type == "cuda" and precision in ("fp16", "bf16") else "fp32"
    own = replace(how, engine="nmtkit", precision=own_precision, workers=1)
    return Translator(
        ModelOnDemand(outline, place, lambda: open_translator(run, own).model),
        tokenizers,
        config,
        name=run.inference.name,
        articles=TASKS.get(trained.task).monolingual,
        max_source_tokens=how.max_source_tokens or trained.max_source_tokens,
        tags=tags,
        batch_tokens=how.batch_tokens,
        speed=SearchSpeedConfig(
            precision=precision,
            batch_tokens=OTHER_BATCH_TOKENS.get(place.type, OTHER_BATCH_TOKENS["cuda"]),
            engine=OTHER_ENGINE,
        ),
        parameters=count_parameters(outline),
        external_engine=other,
        falls_back=not is_required,
    )


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
    config = change_search(trained.search, settings)
    if "beam_size" not in settings and isinstance(config, BeamConfig) and how.n_best > config.beam_size:
        wider = -(-how.n_best // config.n_groups) * config.n_groups
        notify(f"beam size {wider} instead of {config.beam_size}, for --n-best {how.n_best}")
        config = config.changed({"beam_size": wider})
    config.reject_unused(settings, TASKS.get(trained.task).columns[0].name == "src")
    is_open = isinstance(config, MbrConfig) and "mbr" not in settings and "samples" in settings
    if is_open and how.n_best == config.n_hypotheses > 1:
        metric = trained.search.metric if isinstance(trained.search, MbrConfig) else "chrf"
        one = f"say --mbr {metric}, or --mbr none for all"
        raise RecipeError(f"`search.kind: mbr` of the recipe chooses one of the samples: {one}")
    return config


def build_workers(how: DecodingOptions, place: torch.device) -> Workers | None:
    """Returns the processes that search on one device; None if this process does."""
    threads = torch.get_num_threads()
    if place.type != "cpu" or how.workers == 1:
        return None
    if how.workers is None:
        gains = threads > 1 and devices.can_fork()
        return Workers(["cpu"] * threads, min_lines=MIN_LINES_FOR_WORKERS) if gains else None
    return Workers(["cpu"] * how.workers, None if devices.can_fork() else partial(_open_on_device, how))


def _for_workers(run: Run, how: DecodingOptions, places: Sequence[torch.device], notify: Notify) -> Translator:
    """A translator whose searches run in a process for each device."""
    how = replace(how, model=[str(one.folder.path) for one in run.members()], workers=1)
    # This process searches no line: it only tokenizes and joins text.
    translator = open_translator(run, replace(how, device="cpu", precision="fp32"), notify)
    workers = Workers([str(place) for place in places], partial(_open_on_device, how))
    return replace(translator, speed=default_speed_config(places[0]), workers=workers)


def _open_on_device(how: DecodingOptions, device: str) -> Translator:
    return as_translator(load_from_options(replace(how, device=device, workers=1)))


def _requested_precision(model: Model, precision: Literal[PrecisionChoice, CTranslate2Precision]) -> Precision:
    if precision == "auto":
        return default_precision(model)
    if precision in get_args(CTranslate2Precision):
        raise RecipeError(
            f"precision {precision}: nmtkit's own search has fp32, fp16 and bf16; search with CTranslate2 "
            "(`--engine auto`, `pip install 'nmtkit[fast]'`), or leave the precision out"
        )
    return cast(Precision, precision)
