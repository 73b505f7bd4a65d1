"""The decode stage: a decoder searches with nmtkit's engine, or with an external one such as CTranslate2."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from nmtkit.core.errors import NmtkitError
from nmtkit.data.tokenizers.languages import forces_first_token
from nmtkit.decoding.beam_search import BeamSearch
from nmtkit.decoding.engine import Engine, NumberedBatch
from nmtkit.decoding.settings import SearchConfig
from nmtkit.inference.inputs import bucket_width, make_batch
from nmtkit.inference.loading.engines import ExternalEngine, ExternalSearch
from nmtkit.inference.result import Translation
from nmtkit.inference.streaming.job_queue import Job, JobDecoder, JobSource, SingleBatch
from nmtkit.inference.streaming.writing import write_job
from nmtkit.inference.unknowns import UnknownReplacer
from nmtkit.models.base import Model, members_of

if TYPE_CHECKING:
    from nmtkit.inference.translator import Translator


@dataclass(frozen=True)
class SearchOutputs:
    """Outputs that a search returns for each line; see `Translator.search`."""

    n_best: int
    attention: bool
    copies: bool
    scores: bool
    """Whether an external engine must compute scores; nmtkit's own search always does."""
    log_probs: bool
    """Whether an external engine must compute token log-probabilities; nmtkit's own search always does."""

    def hypotheses(self, config: SearchConfig) -> int:
        """Returns the number of hypotheses per line that an engine must return: all if they are reranked, as by MBR."""
        if config.needs_all_hypotheses:
            return max(self.n_best, config.n_hypotheses)
        return self.n_best


def build_decoder(translator: Translator, outputs: SearchOutputs) -> JobDecoder:
    """Returns the external engine's decoder if the engine supports the search, otherwise nmtkit's.

    Raises:
        NmtkitError: the engine does not support the search, and the translator does not fall back.
    """
    engine = translator.external_engine
    if engine is None:
        return _nmtkit_decoder(translator, outputs)
    forces_language = forces_first_token(translator.tokenizers)
    reason = engine.unsupported_search(
        translator.config, forces_language, exact=translator.falls_back
    )
    if not reason:
        missing = []
        if outputs.attention:
            missing.append("attention")
        if translator.replacer is not None:
            missing.append("replacing unknown words")
        if translator.glossary is not None:
            missing.append("terms")
        if not missing:
            return _external_decoder(translator, engine, outputs)
        reason = f"{engine.name} does not support {' or '.join(missing)}"
    _require_falls_back(translator, reason)
    translator.report_once(reason, f"engine nmtkit: {reason}")
    return _nmtkit_decoder(translator, outputs)


def _require_falls_back(translator: Translator, reason: str) -> None:
    if not translator.falls_back:
        raise NmtkitError(f"{reason}; change this, or leave --engine and --precision at auto")


# ------------------------------------------------------------------------------------------------------ nmtkit's engine


def _nmtkit_decoder(translator: Translator, outputs: SearchOutputs) -> JobDecoder:
    # nmtkit returns scores and log-probabilities in any case
    key = replace(outputs, scores=False, log_probs=False)
    engine = translator.engines.get(key)
    if engine is None:
        need_copies = outputs.copies and translator.outline.config.copies
        search = BeamSearch(
            translator.model,
            translator.config,
            n_best=outputs.hypotheses(translator.config),
            need_attention=outputs.attention or translator.replacer is not None or need_copies,
            shortlist=translator.shortlist,
            tokens=translator.target_tokens(),
        )
        engine = Engine(search, steps=translator.steps)
        translator.engines[key] = engine

    def decode(source: JobSource) -> Iterator[Job]:
        batches = _Batches(translator.outline, translator.device, source)
        # On a CPU, refilling free slots gains nothing: the time per row does not depend on the number of rows.
        for number, hypotheses in engine.run(batches, refill=translator.device.type != "cpu"):
            job = batches.unfinished.pop(number)
            job.hypotheses = hypotheses
            yield job

    return decode


class _Batches:
    """Collates jobs into batches for an engine; implements `nmtkit.decoding.engine.SentenceSource`."""

    def __init__(self, model: Model, device: torch.device, source: JobSource) -> None:
        self._source = source
        self._is_on_cpu = device.type == "cpu"
        # Batches must not be padded beyond the position embeddings that a member has learned.
        self._position_limits = [
            getattr(member.config, "max_positions", 0) for member in members_of(model)
        ]
        self.unfinished: dict[int, Job] = {}
        """Jobs that the engine is working on, by number."""

    def next_batch(self) -> NumberedBatch | None:
        jobs = self._source.next_batch()
        if not jobs:
            return None
        columns = max(job.source.length for job in jobs) + 1
        if not self._is_on_cpu:
            # Each captured CUDA graph has a fixed width, so the width is rounded up to one of a few values.
            columns = bucket_width(columns, *self._position_limits)
        return self._batch(jobs, columns)

    def refill(self, slots: int, columns: int) -> NumberedBatch | None:
        jobs = self._source.refill(slots, columns)
        return self._batch(jobs, columns) if jobs else None

    def _batch(self, jobs: Sequence[Job], columns: int) -> NumberedBatch:
        for job in jobs:
            self.unfinished[job.number] = job
        numbers = [job.number for job in jobs]
        sources = [job.source for job in jobs]
        return numbers, make_batch(sources, width=columns)


# --------------------------------------------------------------------------------------------------- an external engine


def _external_decoder(
    translator: Translator, engine: ExternalEngine, outputs: SearchOutputs
) -> JobDecoder:
    options = ExternalSearch(
        config=translator.config,
        n_best=outputs.hypotheses(translator.config),
        scores=outputs.scores or translator.config.needs_all_hypotheses,
        log_probs=outputs.log_probs,
        exact=translator.falls_back,
    )

    def decode(source: JobSource) -> Iterator[Job]:
        while True:
            jobs = source.next_batch()
            if not jobs:
                return
            results = engine.search([job.source for job in jobs], options)
            unsupported = []
            for job, result in zip(jobs, results, strict=True):
                if isinstance(result, str):
                    _require_falls_back(translator, result)
                    job.unsupported = result
                    unsupported.append(job)
                else:
                    job.hypotheses = result
                    yield job
            if unsupported:
                yield from _nmtkit_decoder(translator, outputs)(SingleBatch(unsupported))

    return decode


# ------------------------------------------------------------------------------------------------- in a worker process


def with_translations(decoder: JobDecoder, write: Callable[[Job], list[Translation]]) -> JobDecoder:
    """Wraps a worker's decoder so that it returns translations, which are cheaper to send than hypotheses."""

    def decode(source: JobSource) -> Iterator[Job]:
        for job in decoder(source):
            job.translations = write(job)
            yield job

    return decode


def open_decoder(
    open_translator: Callable[[str], Translator],
    config: SearchConfig,
    replacer: UnknownReplacer | None,
    outputs: SearchOutputs,
    device: str,
) -> JobDecoder:
    """Opens a translator in a worker process that is not a fork, and returns its decoder."""
    translator = replace(open_translator(device), config=config, replacer=replacer)
    write = partial(write_job, translator, outputs)
    return with_translations(build_decoder(translator, outputs), write)
