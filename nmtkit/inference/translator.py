"""Text to text for any model: order kept, n-best, scores, attention, copied words."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

import torch
from typing_extensions import override

from nmtkit.core import device as devices
from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.data.text.features import Rows
from nmtkit.data.tokenizers.languages import forces_first_token
from nmtkit.decoding.batching import Engine, NumberedBatch, StepMode
from nmtkit.decoding.beam_search import TokenClasses
from nmtkit.decoding.hypotheses import Hypothesis, score_given
from nmtkit.decoding.rules import RULES
from nmtkit.decoding.settings import SamplingConfig, SearchConfig, max_lengths
from nmtkit.decoding.shortlist import Shortlist
from nmtkit.inference import attention_views
from nmtkit.inference.inputs import (
    WINDOW,
    SourceLine,
    TargetLine,
    TextModel,
    bucket_width,
    make_batch,
    require_list,
    require_pairs,
)
from nmtkit.inference.loading.engines import ExternalEngine
from nmtkit.inference.loading.options import options_from_keywords, with_keywords
from nmtkit.inference.pipeline import TYPICAL_BEAM, GivenJobs, Job, JobDecoder, JobQueue, JobSource, Lines, Pipeline
from nmtkit.inference.requests import Request, Terminology, unmet_constraints, word_starts
from nmtkit.inference.result import EMPTY, Translation, copied_positions, merge_and_rerank
from nmtkit.inference.unknowns import UnknownReplacer
from nmtkit.inference.workers import WorkerPool, Workers
from nmtkit.layers.linear import pack_weights
from nmtkit.models.abilities import memory_lengths
from nmtkit.models.base import Decoder, Model, members_of

if TYPE_CHECKING:
    from nmtkit.plots import AttentionPicture, HeadsPicture

WORKERS_PER_WINDOW = 8
"""Worker processes that share one window."""
FIRST_LINES = 64
"""Lines of the first window that are searched before the others, so that first results come early."""


@dataclass(frozen=True)
class _Outputs:
    """What is returned for each line, see `Translator.search`."""

    n_best: int
    attention: bool
    copies: bool
    log_probs: bool
    """Whether another library must give the log-probabilities of tokens; nmtkit always does."""


@dataclass(frozen=True, eq=False, repr=False)
class Translator(TextModel):
    """A model, its tokenizers and how to search; `dataclasses.replace` makes another one of it."""

    config: SearchConfig
    replacer: UnknownReplacer | None = None
    """See `replacing_unknown`."""
    workers: Workers | None = None
    """Processes that search for many lines instead of this one; see `Workers.are_for`."""
    shortlist: Shortlist | None = None
    """Candidates that searches keep to, on the model's device."""
    steps: StepMode = "auto"
    """Whether the steps of a search are captured as CUDA graphs."""
    terminology: Terminology | None = None
    """Terms that translations must contain where the source does."""
    external_engine: ExternalEngine | None = None
    """Another library that searches instead of `nmtkit.decoding`."""
    falls_back: bool = True
    """Whether `nmtkit.decoding` searches where the external engine cannot; otherwise that raises an NmtkitError."""
    _engines: dict[_Outputs, Engine] = field(default_factory=dict, init=False)
    """Engines of earlier searches; the steps that they captured serve the next search."""

    @staticmethod
    @with_keywords
    def load(
        run: str | Path | Sequence[str | Path] | None = None,
        device: str = "auto",
        weights: str = "auto",
        **options: Any,
    ) -> "Translator":
        """Opens a trained run.

        `options` are the other fields of `nmtkit.inference.loading.options.DecodingOptions`, which explains them, and
        the keys of the recipe's `search` group (`nmtkit recipe explain search`), such as `beam_size`; what is not given
        is as in the recipe. `inspect.signature` lists all of them.

        Raises:
            TypeError: an option has no such name.
        """
        from nmtkit.inference.loading.opening import as_translator, load_from_options  # which make translators

        return as_translator(load_from_options(options_from_keywords(run, device, weights, options)))

    @overload
    def translate(  # type: ignore[overload-overlap]  # a text is texts of a letter each
        self, lines: str, terms: Mapping[str, str] | None = None
    ) -> str: ...

    @overload
    def translate(self, lines: Iterable[str], terms: Mapping[str, str] | None = None) -> list[str]: ...

    def translate(self, lines: str | Iterable[str], terms: Mapping[str, str] | None = None) -> str | list[str]:
        """The best translation of each line, or of the one line that is given by itself.

        An empty line gives an empty line. Only `search` says what was cut; it also says how cores are used. A model
        without a source goes on with the line, which is then the beginning of the text, and writes from nothing where
        it is empty. `terms` is a glossary for this call, see `with_terms`.
        """
        if terms is not None:
            return self.with_terms(terms).translate(lines)
        if isinstance(lines, str):
            return self.translate([lines])[0]
        require_list(lines=lines)
        return [best[0].text for best in self.search(list(lines), need_log_probs=False)]

    def search(
        self,
        lines: Sequence[str | Rows | Request],
        n_best: int = 1,
        need_attention: bool = False,
        need_copies: bool = False,
        *,
        need_log_probs: bool = True,
    ) -> list[list[Translation]]:
        """The `n_best` translations of every line, at most the beam size, best first; of an empty line an empty one.

        A line is what the model reads: text, or rows of numbers `(R,F)`; or the prompt that it goes on with.
        A request has constraints on the translation. With attention, or `need_copies`, a model that copies says what it
        copied, and its p_gen. Without `need_log_probs` those of tokens may be NaN, which spares CTranslate2 a pass.

        Many lines are searched on all cores, as `nmtkit translate` does: by forks of this process where it can fork,
        else by threads. Scripts need no `if __name__ == "__main__"` for it. Several threads may search.
        """
        require_list(lines=lines)
        requests = [Request.of(line, f"line {number}") for number, line in enumerate(lines, start=1)]
        outputs = _Outputs(n_best, need_attention, need_copies, need_log_probs)
        if len(requests) == 1 and not (self.workers is not None and self.workers.are_for(1)):
            return [self._search_alone(requests[0], outputs)]
        with closing(self._stream_lines(iter([requests]), outputs, len(lines))) as groups:
            return [translations for group in groups for translations in group]

    def _search_alone(self, request: Request, outputs: _Outputs) -> list[Translation]:
        """Searches for one line without the queue and the threads that many lines need."""
        devices.note_thread()
        job = Job(0, self._encode_lines([request])[0])
        if job.source.is_empty:
            return [EMPTY]
        with devices.threads_for(1):
            (decoded,) = self._build_decoder(outputs)(GivenJobs([job]))
            return self._translations(decoded, outputs)

    def stream(
        self,
        windows: Iterable[Sequence[str | Rows | Request]],
        n_best: int = 1,
        need_attention: bool = False,
        need_copies: bool = False,
    ) -> Generator[list[list[Translation]], None, None]:
        """Yields the results of `search` for lines that arrive, in order, in groups as they are finished.

        A few windows are read ahead, by a thread, and no more are in memory. Lines of one window are searched together,
        so they should be all that are there. To be closed if it is not read to its end. A fault of the windows, or a
        request that cannot be met, is raised after what was found for those before it. Without `need_copies` the
        log-probabilities of tokens may be NaN.
        """
        coming = iter(windows)
        first = next(coming, [])
        parts = chain([part for part in (first[:FIRST_LINES], first[FIRST_LINES:]) if part], coming)
        outputs = _Outputs(n_best, need_attention, need_copies, log_probs=need_copies)
        yield from self._stream_lines(parts, outputs, len(first))

    def _stream_lines(
        self, windows: Iterator[Lines], outputs: _Outputs, at_once: int
    ) -> Generator[list[list[Translation]], None, None]:
        """`stream`; `at_once` lines are known to be there at once."""
        decoder = self._build_decoder(outputs)
        write = partial(self._translations, outputs=outputs)
        if self.workers is not None and self.workers.are_for(at_once):
            if self.workers.open is None:
                pack_weights(self.model)  # for all forks
                forked = _writing(decoder, write)
                make: Callable[[str], JobDecoder] = lambda _: forked  # noqa: E731
            else:
                make = partial(_open_decoder, self.workers.open, self.config, self.replacer, outputs)
            with closing(WorkerPool(self.workers, make)) as pool:
                place = torch.device(self.workers.places[0])
                waiting = JobQueue(self, place, len(pool.decoders), self.config.hypotheses)
                pipeline = Pipeline(self._encode_lines, waiting, pool.decoders, write, False, pool.close)
                yield from pipeline.run(windows)
            return
        devices.note_thread()
        on_cpu = self.device.type == "cpu"
        count = torch.get_num_threads() if on_cpu else 1
        if self.external_engine is not None:
            count = self.external_engine.searches
        # Another library fills its batches by itself: narrow beams get no larger ones.
        hypotheses = (
            self.config.hypotheses if self.external_engine is None else max(self.config.hypotheses, TYPICAL_BEAM[0])
        )
        waiting = JobQueue(self, self.device, count, hypotheses)
        pipeline = Pipeline(self._encode_lines, waiting, [decoder] * count, write, on_cpu)
        yield from pipeline.run(windows)

    def _encode_lines(self, lines: Lines) -> list[SourceLine]:
        return self.encode_requests([Request.of(line) for line in lines], self.terminology, self.config)

    @override
    def facts(self) -> list[str]:
        facts = super().facts()
        key = "samples" if isinstance(self.config, SamplingConfig) else "beam_size"
        facts.append(f"{key} {self.config.hypotheses}")
        if self.terminology is not None:
            facts.append(f"{len(self.terminology.entries)} terms")
        return facts

    @property
    @override
    def model(self) -> Decoder:
        return cast(Decoder, super().model)

    def token_classes(self) -> TokenClasses:
        """What the rules of a search must know of tokens."""
        return TokenClasses(
            cache(partial(word_starts, self.tokenizers.tgt, self.device)),
            None if self.config.rule is None else RULES.get(self.config.rule).of(self.tokenizers, self.device),
        )

    def _build_decoder(self, outputs: _Outputs) -> JobDecoder:
        if self.external_engine is None:
            return self._own_decoder(outputs)
        forces_language = forces_first_token(self.tokenizers)
        lacking = self.external_engine.unsupported_search(self.config, forces_language, exact=self.falls_back)
        if not lacking:
            needs = {
                "attention": outputs.attention,
                "unknown words to replace": self.replacer is not None,
                "terms": self.terminology is not None,
            }
            missing = ", no ".join(what for what, is_needed in needs.items() if is_needed)
            lacking = f"{self.external_engine.name} has no {missing}" if missing else ""
        if not lacking:
            return self._other_decoder(self.external_engine, outputs)
        self._require_falls_back(lacking)
        return self._own_decoder(outputs)

    def _require_falls_back(self, lacking: str) -> None:
        if not self.falls_back:
            raise NmtkitError(f"{lacking}; leave that out, or take `--engine auto`")

    def _hypotheses_of(self, outputs: _Outputs) -> int:
        """How many hypotheses of a source a search returns."""
        return max(outputs.n_best, self.config.hypotheses if self.config.chooses_afterwards else 1)

    def _own_decoder(self, outputs: _Outputs) -> JobDecoder:
        key = replace(outputs, log_probs=False)
        engine = self._engines.get(key)
        if engine is None:
            engine = self._engines[key] = Engine(
                self.model,
                self.config,
                self._hypotheses_of(outputs),
                outputs.attention or self.replacer is not None or (outputs.copies and self.outline.config.copies),
                steps=self.steps,
                shortlist=self.shortlist,
                token_classes=self.token_classes(),
            )

        def decode(source: JobSource) -> Iterator[Job]:
            batches = _Batches(self.outline, self.device, source)
            # A CPU takes as long for each row of few as of many, so that no slot need be filled again.
            for number, hypotheses in engine.run(batches, refill=self.device.type != "cpu"):
                job = batches.taken.pop(number)
                job.hypotheses = hypotheses
                yield job

        return decode

    def _other_decoder(self, engine: ExternalEngine, outputs: _Outputs) -> JobDecoder:
        count = self._hypotheses_of(outputs)

        def decode(source: JobSource) -> Iterator[Job]:
            while jobs := source.next_batch():
                sources = [job.source for job in jobs]
                found = engine(sources, self.config, count, outputs.log_probs, exact=self.falls_back)
                lacking = []
                for job, result in zip(jobs, found, strict=True):
                    if isinstance(result, str):
                        self._require_falls_back(result)
                        lacking.append(job)
                    else:
                        job.hypotheses = result
                        yield job
                if lacking:
                    yield from self._own_decoder(outputs)(GivenJobs(lacking))

        return decode

    def _translations(self, job: Job, outputs: _Outputs) -> list[Translation]:
        """The translations of a job that has been decoded."""
        assert job.hypotheses is not None
        source = job.source
        translations = [self.translation(hypothesis, source) for hypothesis in job.hypotheses]
        if self.replacer is not None:
            for number, one in enumerate(translations):
                assert one.attention is not None
                attended = one.attention[:, : len(one.src_tokens)]
                text, replaced = self.replacer.replace(source.text, one.tokens, attended, source.tags)
                translations[number] = replace(one, text=text, replaced=replaced)
        if (request := source.request) is not None:
            translations = [
                replace(one, unmet_constraints=tuple(unmet_constraints(request, self.tokenizers.tgt, one.text)))
                for one in translations
            ]
        if self.config.chooses_afterwards:
            translations = merge_and_rerank(translations, self.config)[: outputs.n_best]
        return translations if outputs.attention else [replace(one, attention=None) for one in translations]

    @property
    @override
    def window(self) -> int:
        place = self.device.type if self.workers is None else torch.device(self.workers.places[0]).type
        several = 1 if self.workers is None else len(self.workers.places)
        return WINDOW.get(place, WINDOW["cuda"]) * max(1, several // WORKERS_PER_WINDOW)

    def replacing_unknown(self, dictionary: Mapping[str, str] | None = None) -> "Translator":
        """A translator that writes source words, or their translations by a dictionary, in place of unknown words.

        See `UnknownReplacer`. `Translation.text` has them, `Translation.replaced` says which, and `Translation.tokens`
        stay the model's. The search may write the unknown word, even if the recipe forbids it.
        """
        self.require_attention("find the source of unknown words by")
        config = self.config.changed({"forbid_unknown": False})
        return replace(self, config=config, replacer=UnknownReplacer(self.tokenizers, dictionary))

    def with_terms(self, terms: Mapping[str, str]) -> "Translator":
        """A translator that writes the target term wherever a source has the source term, both as whole words.

        The terms add to those of `terminology`, and replace its entries for the same source terms. See `Terminology`.
        """
        self.config.reject_constraints()
        entries = {} if self.terminology is None else self.terminology.entries
        translator = replace(self, terminology=Terminology({**entries, **terms}))
        # No engine depends on terms, so that a glossary for each call costs no new one.
        object.__setattr__(translator, "_engines", self._engines)
        return translator

    def cost_of_terms(self, translations: Sequence[Translation]) -> list[float]:
        """How much log-probability the terms of each translation cost, in nats, by a second search without them.

        It is the log-probability of the best translation without terms, minus that of the translation. About 3 nats are
        usual for a word that the model would not have chosen. A much higher cost means that the model does not know the
        term, and that the sentence around it may be damaged.
        """
        requests = [Request.of(one.source if one.request is None else one.request) for one in translations]
        free = [replace(request, must=(), must_not=()) for request in requests]
        found = replace(self, terminology=None).search(free)
        return [best[0].log_prob - forced.log_prob for best, forced in zip(found, translations, strict=True)]

    def translation(self, hypothesis: Hypothesis, source: SourceLine) -> Translation:
        """A hypothesis for a source, as text."""
        ids, log_probs, attention = hypothesis.ids, hypothesis.token_log_probs, hypothesis.attention
        tokenizer, copied = self.tokenizers.tgt, None
        if hypothesis.p_gen is not None and attention is not None and source.extended is not None:
            copied = copied_positions(ids, log_probs, hypothesis.p_gen, attention, source.extended)
        return Translation(
            text=tokenizer.decode([*source.ids, *ids] if source.is_prompt else ids, source.oov),
            score=hypothesis.score,
            log_prob=hypothesis.log_prob,
            tokens=tokenizer.pieces(ids, source.oov),
            token_log_probs=log_probs,
            src_tokens=source.tokens,
            finished=hypothesis.finished,
            attention=attention,
            p_gen=hypothesis.p_gen,
            copied=copied,
            src_left_out=source.left_out,
            source=source.text,
            request=source.request,
        )

    @torch.no_grad()
    def rescore(
        self, sources: Sequence[str], targets: Sequence[str | Translation], need_attention: bool = False, first: int = 1
    ) -> list[Translation]:
        """What the model says of given translations: the same numbers as a search that had found the same tokens.

        A text is cut by the tokenizer, which may cut it otherwise than a search built it; a `Translation` keeps its
        tokens, and its open end if it is not finished. Of a model without a source, targets stand behind prompts. An
        empty target is one that ends at once; a pair of two empty sides is an empty line, of score 0, as in `search`.

        The attention is kept where needed, and then what a model that copies has copied. `first` is the number of the
        first pair, for messages.
        """
        require_list(sources=sources, targets=targets)
        require_pairs(sources, targets)
        src = self.encode_sources(sources)
        tgt = self._encode_given(src, targets, first)
        attend = need_attention or self.config.coverage_penalty > 0
        translations: list[Translation] = [EMPTY for _ in src]
        with devices.threads_for(len(sources)):
            for numbers, batch in self.batches(src, tgt):
                readout, chosen = self.score_targets(batch, attend)
                attention = None if readout.attention is None else readout.attention.float().cpu().numpy()  # (B,T,S)
                gates = None if readout.copy_gate is None else readout.copy_gate[..., 0].float().cpu()  # (B,T)
                lengths = memory_lengths(self.model, batch).tolist()
                ends_at_limit = self.config.limit_rule == "end"
                config = self.config if batch.reads_text else self.config.changed({"max_length_ratio": 0.0})
                limits = max_lengths(config, batch.lengths, None).tolist()
                for row, number in enumerate(numbers):
                    target = targets[number]
                    finished = isinstance(target, str) or target.finished
                    prompt = src[number].ids if src[number].is_prompt else []
                    own = slice(len(prompt), len(prompt) + len(tgt[number].ids) + finished)
                    log_probs, begun = chosen[row, own].double(), [*src[number].prefix]
                    if self.config.certain_prefix and tgt[number].ids[: len(begun)] == begun:
                        log_probs[: len(begun)] = 0.0
                    if ends_at_limit and finished and len(log_probs) == limits[row]:
                        log_probs[-1] = 0.0
                    weights = None if attention is None else attention[row, own, : lengths[row]]
                    hypothesis = Hypothesis(
                        ids=tgt[number].extended,
                        finished=finished,
                        score=score_given(self.config, tgt[number].extended, log_probs, weights, prompt),
                        log_prob=float(log_probs.sum()),
                        token_log_probs=log_probs.tolist(),
                        attention=weights if need_attention else None,
                        p_gen=None if gates is None or not need_attention else gates[row, own].tolist(),
                    )
                    translations[number] = self.translation(hypothesis, src[number])
        return translations

    def _encode_given(
        self, sources: Sequence[SourceLine], targets: Sequence[str | Translation], first: int
    ) -> list[TargetLine]:
        texts = {number: target for number, target in enumerate(targets) if isinstance(target, str)}
        cut = self.encode_targets(list(texts.values()), [sources[number] for number in texts])
        encoded = dict(zip(texts, cut, strict=True))
        for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
            if not isinstance(target, str):
                encoded[number] = self.encode_target_tokens(target.tokens, source, number + first)
            if encoded[number].ids and source.is_empty:
                raise DataError(
                    f"pair {number + first}: its source side is empty and its target side is not; "
                    "take the pair out, or see whether the files belong together"
                )
        return [encoded[number] for number in range(len(targets))]

    align = attention_views.align

    def pictures(
        self, sources: Sequence[str], targets: Sequence[str | None] | None = None, subwords: bool = False
    ) -> "list[AttentionPicture]":
        """The attention of each pair as a picture, of words or of `subwords`, where punctuation stands apart too.

        Without a given translation, of one source or of all, the model's own is drawn.
        """
        self.require_attention("draw")
        translations = self._given_or_searched(sources, targets, need_attention=True)
        return [
            attention_views.picture(self, translation, number, subwords)
            for number, translation in enumerate(translations, start=1)
        ]

    def head_pictures(
        self, sources: Sequence[str], targets: Sequence[str | None] | None = None
    ) -> "list[HeadsPicture]":
        """Where every head of every layer of a Transformer looks, for each pair; tokens are not merged to words.

        Row t of `decoder` and `cross` is the step that *writes* target token t, so that it belongs to that token.
        Without a given translation, of one source or of all, the model's own is read.
        """
        attention_views.require_heads(self)
        return attention_views.head_pictures(self, sources, self._given_or_searched(sources, targets))

    def _given_or_searched(
        self, sources: Sequence[str], targets: Sequence[str | None] | None, need_attention: bool = False
    ) -> list[Translation]:
        require_list(sources=sources, targets=targets)
        require_pairs(sources, targets)
        for side, lines in (("source", sources), ("target", targets or [])):
            for number, line in enumerate(lines, start=1):
                if line is not None and not line.strip():
                    raise DataError(f"{side} line {number} is empty: there is nothing to draw")
        given = {number: target for number, target in enumerate(targets or []) if target is not None}
        own = [number for number in range(len(sources)) if number not in given]
        searched = self.search([sources[number] for number in own], need_attention=need_attention)
        rescored = self.rescore([sources[number] for number in given], list(given.values()), need_attention)
        both = dict(zip((*own, *given), (*(best[0] for best in searched), *rescored), strict=True))
        return [both[number] for number in range(len(sources))]


class _Batches:
    """Gives an engine the jobs of a source as batches."""

    def __init__(self, model: Model, device: torch.device, source: JobSource) -> None:
        self._source = source
        self._is_on_cpu = device.type == "cpu"
        # A model cannot read more positions than it has learned.
        self._most_positions = [getattr(member.config, "max_positions", 0) for member in members_of(model)]
        self.taken: dict[int, Job] = {}
        """Jobs that the engine has, by number."""

    def next_batch(self) -> NumberedBatch | None:
        """Returns the jobs of a new batch."""
        jobs = self._source.next_batch()
        if not jobs:
            return None
        columns = max(job.source.length for job in jobs) + 1
        if not self._is_on_cpu:
            columns = bucket_width(columns, *self._most_positions)  # captured steps serve one width
        return self._batch(jobs, columns)

    def refill(self, slots: int, columns: int) -> NumberedBatch | None:
        """Returns jobs for free slots."""
        jobs = self._source.refill(slots, columns)
        return self._batch(jobs, columns) if jobs else None

    def _batch(self, jobs: Sequence[Job], columns: int) -> NumberedBatch:
        numbers = [job.number for job in jobs]
        self.taken.update(zip(numbers, jobs, strict=True))
        return numbers, make_batch([job.source for job in jobs], width=columns)


def _writing(decoder: JobDecoder, write: Callable[[Job], list[Translation]]) -> JobDecoder:
    """A decoder whose jobs have their translations, which are smaller than the hypotheses."""

    def decode(source: JobSource) -> Iterator[Job]:
        for job in decoder(source):
            job.translations = write(job)
            yield job

    return decode


def _open_decoder(
    open_at: Callable[[str], Translator],
    config: SearchConfig,
    replacer: UnknownReplacer | None,
    outputs: _Outputs,
    place: str,
) -> JobDecoder:
    """The decoder of a process from scratch."""
    translator = replace(open_at(place), config=config, replacer=replacer)
    return _writing(translator._build_decoder(outputs), partial(translator._translations, outputs=outputs))
