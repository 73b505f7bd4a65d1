"""Finds a run, opens its model for inference, and chooses the engine, precision, languages and processes."""

import math
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
from nmtkit.data.tokenizers.embedding_rows import copy_first_input
from nmtkit.data.tokenizers.languages import (
    begins_with_language,
    chosen_languages,
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
from nmtkit.inference.loading.options import (
    DEFAULT_LM_WEIGHT,
    CTranslate2Precision,
    DecodingOptions,
)
from nmtkit.inference.loading.speed import (
    MIN_LINES_FOR_WORKERS,
    SearchSpeedConfig,
    default_precision,
    default_speed_config,
)
from nmtkit.inference.streaming.workers import Workers
from nmtkit.inference.translator import Translator
from nmtkit.layers.linear import Precision, PrecisionChoice, prepare_for_inference
from nmtkit.models.abilities import as_multi_head
from nmtkit.models.base import MODELS, Decoder, Model, as_decoder, as_seq2seq, members_of
from nmtkit.models.language.shallow_fusion import ShallowFusion
from nmtkit.runs.folder import Notify, ignore
from nmtkit.runs.run import InferenceConfig, Run, find_run
from nmtkit.training.checkpoints.weights import count_parameters

CTRANSLATE2 = "ctranslate2"
"""Name of the external engine (see `ENGINES`) and of its Python package."""
CTRANSLATE2_BATCH_TOKENS = {"cpu": 4096, "cuda": 16384}
"""Number of padded source tokens in a batch for CTranslate2. On a CPU, `ExternalEngine.batch_sentences` usually limits
batches further."""


def load_from_options(
    options: DecodingOptions, task: str | None = None, notify: Notify = ignore
) -> TextModel:
    """Finds a trained run and opens it.

    Args:
        options: the run, and how to decode.
        task: the task for which the run must have been trained; None allows any task.
        notify: receives messages about the run, its weights, the device, and differences from the recipe.

    Raises:
        NmtkitError: the run was trained for another task.
    """
    run, why = find_run(
        options.model, task=task, mean=options.ensemble, weights=options.ensemble_weights
    )
    for member in run.members():
        trained_for = member.inference.task
        if task is not None and trained_for != task:
            command = TASKS.get(trained_for).command
            remedy = "use a different run (-m RUN)"
            if command:
                remedy = f"use `nmtkit {command}`, or {remedy}"
            raise NmtkitError(
                f"{member.folder.path} ({why}) was trained for {trained_for}; {remedy}"
            )
    system = open_system(run, options, notify)
    require_languages(system.tokenizers.config)
    if system.languages and _reads_language_tags(run):
        system = replace(system, needs_language=True)
    languages = chosen_languages(system.tokenizers.config)
    if any(languages.values()):
        source_language = languages["src"] or "any language"
        target_language = languages["tgt"] or "its default language"
        notify(f"languages: the model translates from {source_language} to {target_language}")
    device_names = options.device.split(",")
    if len(device_names) == 1:
        device = devices.describe(system.device)
    else:
        device = ", ".join(dict.fromkeys(device_names))
    engine = f", engine {system.engine_name}" if isinstance(system, Translator) else ""
    for member in run.members():
        path = member.weights(options.weights)
        is_of_stage = path.parent.parent == member.folder.checkpoints
        stage = f"{path.parent.name}/" if is_of_stage else ""
        notify(f"model {member.folder.path} ({why}), {stage}{path.name}, on {device}{engine}")
    return system


def _reads_language_tags(run: Run) -> bool:
    """Returns whether every training source began with a language tag."""
    tags_by_file = run.recipe.data.train.tags
    return bool(tags_by_file) and all(
        any(map(language_of_tag, tags.split())) for tags in tags_by_file
    )


def _in_direction(
    model: Model, tokenizers: Tokenizers, options: DecodingOptions
) -> tuple[Tokenizers, str]:
    """Returns tokenizers for the languages in the options, and the tags to put before every source.

    For an imported multilingual model, also makes `model` begin its output with the chosen target language.
    """
    if language_names(tokenizers.config.specials):
        directed = in_direction(tokenizers, options.source_language, options.to)
        decoder = as_decoder(model)
        if options.to is not None and decoder is not None:
            for member in members_of(decoder):
                copy_first_input(member.embedding("tgt"), directed)
        return directed, ""
    if options.source_language is not None:
        raise RecipeError(
            f"--from {options.source_language}: only imported multilingual models have tokens for source languages; "
            "remove this option"
        )
    return tokenizers, "" if options.to is None else language_tag(options.to)


def open_translator(run: Run, options: DecodingOptions, notify: Notify = ignore) -> Translator:
    """Opens a run whose model generates text; see `open_system`."""
    return as_translator(open_system(run, options, notify))


def as_translator(system: TextModel) -> Translator:
    """Returns the system if it is a translator.

    Raises:
        RecipeError: the system's model does not generate text.
    """
    if not isinstance(system, Translator):
        raise RecipeError(
            f"the model {system.name!r} ({system.outline.config.kind}) does not generate text; use a different run"
        )
    return system


def open_system(run: Run, options: DecodingOptions, notify: Notify = ignore) -> TextModel:
    """Opens a run, as a `Translator` if its model generates text.

    `notify` receives messages about differences from the recipe.
    """
    if options.engine != "nmtkit":
        translator = _open_for_ctranslate2(run, options, notify)
        if translator is not None:
            return translator
        options = replace(options, engine="nmtkit")
    chosen_devices = [devices.choose(name) for name in options.device.split(",")]
    device = chosen_devices[0]
    if (options.workers or 1) > 1 and (len(chosen_devices) > 1 or device.type != "cpu"):
        raise NmtkitError(
            f"--workers works only on a single CPU, but --device is {options.device}; remove one of these options"
        )
    if len(chosen_devices) > 1:
        return _open_for_devices(run, options, chosen_devices, notify)
    model, tokenizers, trained = run.open_for_inference(device, options.weights)
    if options.lm is not None or options.lm_weight is not None:
        model = _with_language_model(
            model, tokenizers, options=options, device=device, notify=notify
        )
    tokenizers, tags = _in_direction(model, tokenizers, options)
    decoder = as_decoder(model)
    if decoder is None:
        has_search_options = (
            options.search_settings or options.shortlist or (options.workers or 1) > 1
        )
        if has_search_options or options.precision not in ("auto", "fp32"):
            raise RecipeError(
                f"{run.folder.path}: {trained.model.kind} does not generate text; "
                "remove the search options, --workers and --precision"
            )
        devices.prepare(device, threads=options.threads)
        return TextModel(
            model,
            tokenizers,
            name=trained.name,
            max_source_tokens=options.max_source_tokens or trained.max_source_tokens,
            tags=tags,
            batch_tokens=options.batch_tokens,
            parameters=count_parameters(model),
        )
    shortlist = None
    if options.shortlist is not None:
        shortlist = read_shortlist(Path(options.shortlist), tokenizers).to(device)
    config = _search_config(trained, options, notify)
    if options.layer is not None or options.head is not None:
        multi_head = as_multi_head(decoder)
        if multi_head is None:
            raise RecipeError(
                f"{decoder.config.kind} does not have several attention layers and heads to choose from; remove "
                "--layer and --head"
            )
        multi_head.show(options.layer, "mean" if options.head is None else options.head)
    precision = _requested_precision(decoder, options.precision)
    devices.prepare(device, threads=options.threads)
    output_layers = []
    if shortlist is not None:
        # A shortlist reads individual rows of the output layers, so these layers must not be packed.
        output_layers = [
            getattr(member, "output", None) or member for member in members_of(decoder)
        ]
    # Parameters are counted first, since quantized weights are not parameters.
    parameters = count_parameters(decoder)
    prepare_for_inference(decoder, precision, output_layers)
    names = dict.fromkeys(member.inference.name for member in run.members())
    return Translator(
        decoder,
        tokenizers,
        config,
        name=" + ".join(names),
        reads_articles=TASKS.get(trained.task).monolingual,
        max_source_tokens=options.max_source_tokens or trained.max_source_tokens,
        tags=tags,
        batch_tokens=options.batch_tokens,
        speed=default_speed_config(device, precision),
        parameters=parameters,
        workers=build_workers(options, device),
        shortlist=shortlist,
    )


def _open_for_ctranslate2(run: Run, options: DecodingOptions, notify: Notify) -> Translator | None:
    """Opens a run for decoding with CTranslate2; returns None if nmtkit should decode instead.

    With the engine `auto`, CTranslate2 decodes if it is installed and gives the same results as nmtkit. If it is
    installed but unsuitable, `notify` receives the reason.

    Raises:
        NmtkitError: CTranslate2 cannot decode with these options, but they request it, or a precision that only
            CTranslate2 supports.
    """
    if not issubclass(MODELS.get(run.inference.model.kind), Decoder):
        return None
    is_required = options.engine == CTRANSLATE2 or options.precision in get_args(
        CTranslate2Precision
    )
    if not is_required and find_spec(CTRANSLATE2) is None:
        return None
    kind = ENGINES.get(CTRANSLATE2)
    reason = kind.unsupported_run(run, options)
    if not reason:
        messages: list[str] = []
        trained = run.inference_of(options.weights)
        config = _search_config(trained, options, messages.append)
        outline, tokenizers = run.outline(options.weights)
        language_is_first_input = options.to is not None and begins_with_language(tokenizers)
        tokenizers, tags = _in_direction(outline, tokenizers, options)
        forces_language = forces_first_token(tokenizers)
        reason = kind.unsupported_search(config, forces_language, exact=not is_required)
        if language_is_first_input:
            reason = f"{CTRANSLATE2} cannot change the language of a model whose first input is a language token"
    if not reason:
        device = devices.choose(options.device)
        devices.prepare(device, threads=options.threads)
        precision = "fp32" if options.precision == "auto" else options.precision
        try:
            engine = kind(run, options.weights, device=device, precision=precision)
        except CheckpointError:
            raise
        except NmtkitError as fault:
            reason = str(fault)
    if reason:
        if is_required:
            remedy = "use --engine nmtkit"
            if options.engine != CTRANSLATE2:
                reason = f"precision {options.precision} needs {CTRANSLATE2}: {reason}"
                remedy = f"remove --precision {options.precision}"
            raise NmtkitError(f"{reason}; change this, or {remedy}")
        notify(f"engine nmtkit: {reason}")
        return None
    for message in messages:
        notify(message)
    difference = kind.unsupported_search(config, forces_language, exact=True)
    if difference:
        notify(f"engine {CTRANSLATE2}: {difference}")
    # nmtkit's own copy of the model is loaded only for what CTranslate2 cannot do, such as rescoring.
    has_same_precision = device.type == "cuda" and precision in ("fp16", "bf16")
    nmtkit_options = replace(
        options, engine="nmtkit", precision=precision if has_same_precision else "fp32", workers=1
    )
    return Translator(
        ModelOnDemand(outline, device, lambda: open_translator(run, nmtkit_options).model),
        tokenizers,
        config,
        name=run.inference.name,
        reads_articles=TASKS.get(trained.task).monolingual,
        max_source_tokens=options.max_source_tokens or trained.max_source_tokens,
        tags=tags,
        batch_tokens=options.batch_tokens,
        speed=SearchSpeedConfig(
            precision=precision,
            batch_tokens=CTRANSLATE2_BATCH_TOKENS.get(
                device.type, CTRANSLATE2_BATCH_TOKENS["cuda"]
            ),
            engine=CTRANSLATE2,
        ),
        parameters=count_parameters(outline),
        external_engine=engine,
        falls_back=not is_required,
        notify=notify,
    )


def _with_language_model(
    model: Model,
    tokenizers: Tokenizers,
    *,
    options: DecodingOptions,
    device: torch.device,
    notify: Notify,
) -> ShallowFusion:
    """Combines a model with the language model in the options by shallow fusion."""
    if options.lm is None:
        raise RecipeError("lm_weight requires a language model; specify its run, too (--lm RUN)")
    run, _ = find_run(options.lm)
    path = run.folder.path
    lm, lm_tokenizers, _ = run.open_for_inference(device)
    seq2seq = as_seq2seq(model)
    lm_decoder = as_decoder(lm)
    if seq2seq is None or lm_decoder is None or as_seq2seq(lm) is not None:
        raise RecipeError(
            f"{path}: --lm combines a language model with a model that reads a source; "
            f"{lm.config.kind} cannot be combined with {model.config.kind}"
        )
    if lm_tokenizers.tgt.vocabulary != tokenizers.tgt.vocabulary:
        raise RecipeError(
            f"{path}: the vocabulary of the language model differs from the target vocabulary of the main model; train "
            "the language model with the tokenizer of the main model (set `init_from: {tokenizer: RUN}` in its recipe)"
        )
    weight = DEFAULT_LM_WEIGHT if options.lm_weight is None else options.lm_weight
    notify(f"language model {path}, weight {weight:g}; scores include its contribution")
    return ShallowFusion(seq2seq, lm_decoder, weight)


def _search_config(
    trained: InferenceConfig, options: DecodingOptions, notify: Notify
) -> SearchConfig:
    """Returns the run's search settings with the changes in the options applied."""
    settings = options.search_settings or {}
    config = change_search(trained.search, settings)
    if (
        "beam_size" not in settings
        and isinstance(config, BeamConfig)
        and options.n_best > config.beam_size
    ):
        hypotheses_per_group = math.ceil(options.n_best / config.n_groups)
        beam_size = hypotheses_per_group * config.n_groups
        notify(
            f"using beam size {beam_size} instead of {config.beam_size} because of --n-best {options.n_best}"
        )
        config = config.changed({"beam_size": beam_size})
    reads_source_text = TASKS.get(trained.task).columns[0].name == "src"
    config.reject_unused(settings, reads_source_text)
    # `--samples N --n-best N` asks for all samples, but a recipe with `kind: mbr` would choose among them.
    recipe_chooses_mbr = (
        isinstance(config, MbrConfig) and "mbr" not in settings and "samples" in settings
    )
    if recipe_chooses_mbr and options.n_best == config.n_hypotheses > 1:
        metric = trained.search.metric if isinstance(trained.search, MbrConfig) else "chrf"
        raise RecipeError(
            f"you asked for all {options.n_best} samples, but the recipe's `search.kind: mbr` chooses one of them; add "
            f"--mbr none to get all samples, or --mbr {metric} to have them ranked by MBR"
        )
    return config


def build_workers(options: DecodingOptions, device: torch.device) -> Workers | None:
    """Returns the worker processes for decoding on one device; None if this process decodes on its own."""
    if device.type != "cpu" or options.workers == 1:
        return None
    if options.workers is not None:
        open_worker = None if devices.can_fork() else partial(_open_on_device, options)
        return Workers(["cpu"] * options.workers, open_worker)
    threads = torch.get_num_threads()
    if threads > 1 and devices.can_fork():
        return Workers(["cpu"] * threads, min_lines=MIN_LINES_FOR_WORKERS)
    return None


def _open_for_devices(
    run: Run, options: DecodingOptions, worker_devices: Sequence[torch.device], notify: Notify
) -> Translator:
    """Opens a translator that decodes on several devices, with a process for each."""
    paths = [str(member.folder.path) for member in run.members()]
    worker_options = replace(options, model=paths, workers=1)
    names = [str(device) for device in worker_devices]
    workers = Workers(names, open_translator=partial(_open_on_device, worker_options))
    # This process does not decode; it only tokenizes sources and detokenizes translations.
    parent_options = replace(worker_options, device="cpu", precision="fp32")
    translator = open_translator(run, parent_options, notify)
    return replace(translator, speed=default_speed_config(worker_devices[0]), workers=workers)


def _open_on_device(options: DecodingOptions, device: str) -> Translator:
    return as_translator(load_from_options(replace(options, device=device, workers=1)))


def _requested_precision(
    model: Model, precision: Literal[PrecisionChoice, CTranslate2Precision]
) -> Precision:
    if precision == "auto":
        return default_precision(model)
    if precision in get_args(CTranslate2Precision):
        raise RecipeError(
            f"precision {precision}: nmtkit's own engine supports only fp32, fp16 and bf16; use one of these. Other "
            "precisions are for translating with CTranslate2"
        )
    return cast(Precision, precision)
