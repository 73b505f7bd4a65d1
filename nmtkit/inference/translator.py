"""`Translator`: decodes with any model that generates text, and rescores given translations.

Results come in the order of the input, as n-best lists with scores and, on request, attention and copied words.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from nmtkit.core import device as devices
from nmtkit.core.errors import DataError
from nmtkit.data.batches.batch import Batch
from nmtkit.data.text.features import Rows
from nmtkit.decoding.engine import Engine, StepMode
from nmtkit.decoding.hypotheses import Hypothesis, ranking_score
from nmtkit.decoding.limits import max_lengths
from nmtkit.decoding.rules import TargetTokens
from nmtkit.decoding.settings import SearchConfig
from nmtkit.decoding.shortlist import Shortlist
from nmtkit.inference import attention_views
from nmtkit.inference.constraints.glossary import Glossary
from nmtkit.inference.constraints.requests import Request
from nmtkit.inference.constraints.words import word_starts
from nmtkit.inference.inputs import (
    WINDOW,
    SourceLine,
    TargetLine,
    TextModel,
    require_list,
    require_pairs,
)
from nmtkit.inference.loading.engines import ExternalEngine
from nmtkit.inference.loading.options import options_from_keywords, with_keywords
from nmtkit.inference.result import EMPTY, Translation, copied_positions
from nmtkit.inference.streaming.decoders import (
    SearchOutputs,
    build_decoder,
    open_decoder,
    with_translations,
)
from nmtkit.inference.streaming.job_queue import TYPICAL_BEAM, JobDecoder, JobQueue
from nmtkit.inference.streaming.pipeline import Lines, Pipeline
from nmtkit.inference.streaming.workers import WorkerPool, Workers
from nmtkit.inference.streaming.writing import write_job
from nmtkit.inference.unknowns import UnknownReplacer
from nmtkit.layers.linear import pack_weights
from nmtkit.models.abilities import memory_lengths
from nmtkit.models.base import Decoder
from nmtkit.runs.folder import Notify, ignore

if TYPE_CHECKING:
    from nmtkit.plots import AttentionPicture, HeadsPicture

WORKERS_PER_WINDOW = 8
"""Number of workers per `WINDOW` lines: with more workers, `Translator.window` is a multiple of `WINDOW`."""
FIRST_LINES = 64
"""Size of the first window of a stream, which is small so that the first results come early."""


@dataclass(frozen=True, eq=False, repr=False)
class Translator(TextModel):
    """A model with its tokenizers and search settings; use `dataclasses.replace` to change a setting in a copy."""

    config: SearchConfig
    replacer: UnknownReplacer | None = None
    """Replaces unknown words in translations; see `replacing_unknown`."""
    workers: Workers | None = None
    """Worker processes, which decode instead of this process if there are many lines; see `Workers.should_use`."""
    shortlist: Shortlist | None = None
    """Limits the target tokens that the search considers for each source; None for no limit. On the model's device."""
    steps: StepMode = "auto"
    """How decoding steps run, e.g. as captured CUDA graphs; see `StepMode`."""
    glossary: Glossary | None = None
    """A glossary. If a source contains one of its terms, the translation must contain the term's translation."""
    external_engine: ExternalEngine | None = None
    """External library that decodes instead of `nmtkit.decoding`; None if there is none."""
    falls_back: bool = True
    """Whether `nmtkit.decoding` takes over searches that the external engine does not support; if not, they fail."""
    notify: Notify = ignore
    """Receives a message when `nmtkit.decoding` takes over from the external engine."""
    _reported: set[str] = field(default_factory=set, init=False)
    """What `notify` has been told about; see `report_once`."""
    engines: dict[SearchOutputs, Engine] = field(default_factory=dict, init=False)
    """Engines of earlier searches, kept so that later searches reuse their captured CUDA graphs."""

    @staticmethod
    @with_keywords
    def load(
        run: str | Path | Sequence[str | Path] | None = None,
        device: str = "auto",
        weights: str = "auto",
        **options: Any,
    ) -> "Translator":
        """Opens a trained run.

        The other fields of `nmtkit.inference.loading.options.DecodingOptions` are also keyword arguments, and so are
        the keys of the recipe's `search` group, such as `beam_size`, which default to the recipe's values (see `nmtkit
        recipe explain search`). `inspect.signature` lists all keywords.

        Which weights were found, and why an engine was or was not chosen, is logged at level INFO by the logger
        `nmtkit`.

        Raises:
            TypeError: a keyword is not the name of an option.
        """
        # Imported here because `opening` imports this module.
        from nmtkit.inference.loading.opening import as_translator, load_from_options

        decoding_options = options_from_keywords(run, device, weights, options)
        notify = logging.getLogger("nmtkit").info
        return as_translator(load_from_options(decoding_options, notify=notify))

    @overload
    def translate(  # type: ignore[overload-overlap]  # a string is also an iterable of strings
        self, lines: str, terms: Mapping[str, str] | None = None
    ) -> str: ...

    @overload
    def translate(
        self, lines: Iterable[str], terms: Mapping[str, str] | None = None
    ) -> list[str]: ...

    def translate(
        self, lines: str | Iterable[str], terms: Mapping[str, str] | None = None
    ) -> str | list[str]:
        """Returns the best translation of each line, or of a single string.

        The translation of an empty line is empty. A language model uses the line as a prompt and continues it; with an
        empty prompt, it generates a text from scratch. `terms` is a glossary for this call; see `with_terms`. Use
        `search` to find out whether sources were truncated; its docstring explains how CPU cores are used.
        """
        if terms is not None:
            return self.with_terms(terms).translate(lines)
        if isinstance(lines, str):
            (text,) = self.translate([lines])
            return text
        require_list(lines=lines)
        n_best_lists = self.search(list(lines), need_scores=False)
        return [n_best[0].text for n_best in n_best_lists]

    def search(
        self,
        lines: Sequence[str | Rows | Request],
        n_best: int = 1,
        need_attention: bool = False,
        need_copies: bool = False,
        *,
        need_scores: bool = True,
    ) -> list[list[Translation]]:
        """Returns the `n_best` translations of every line, best first; an empty line has one empty translation.

        Args:
            lines: the model's inputs: text, rows of numbers `(R, F)`, or prompts for a language model to continue.
                A `Request` adds constraints on the translation.
            n_best: number of translations per line, at most the beam size.
            need_attention: whether to return the attention. A model that copies then also returns its p_gen and the
                positions of copied words, as with `need_copies`.
            need_copies: whether to return p_gen and the positions of copied words.
            need_scores: whether scores and log-probabilities are needed; if not, they may be NaN, which saves
                CTranslate2 a forward pass.

        On a CPU, large inputs are decoded on all cores: in forks of this process if it can fork, otherwise in threads.
        Neither requires an `if __name__ == "__main__"` guard in scripts. The method is thread-safe.
        """
        require_list(lines=lines)
        requests = [
            Request.from_line(line, f"line {number}") for number, line in enumerate(lines, start=1)
        ]
        outputs = SearchOutputs(
            n_best=n_best,
            attention=need_attention,
            copies=need_copies,
            scores=need_scores,
            log_probs=need_scores,
        )
        uses_workers = self.workers is not None and self.workers.should_use(1)
        if len(requests) == 1 and not uses_workers:
            devices.note_thread()
            pipeline = self._pipeline(outputs)
            return [pipeline.run_single(requests[0], partial(build_decoder, self, outputs))]
        translations = []
        with closing(self._stream_lines(iter([requests]), outputs, len(lines))) as groups:
            for group in groups:
                translations += group
        return translations

    def stream(
        self,
        windows: Iterable[Sequence[str | Rows | Request]],
        n_best: int = 1,
        need_attention: bool = False,
        need_copies: bool = False,
        *,
        need_scores: bool = True,
    ) -> Generator[list[list[Translation]], None, None]:
        """Translates lines that arrive in windows; yields the results in input order, in groups as they finish.

        A thread reads a few windows ahead, and only these are held in memory. The lines of a window are decoded
        together, so a window should contain all lines that are available. Close the generator if you do not exhaust it.
        An exception raised by `windows`, or by a request that cannot be fulfilled, is re-raised after the results of
        all earlier lines. Without `need_copies`, token log-probabilities may be NaN; without `need_scores`, scores and
        log-probabilities may be NaN as well.
        """
        remaining = iter(windows)
        first = next(remaining, [])
        # A small first window gives early results.
        parts = [first[:FIRST_LINES], first[FIRST_LINES:]]
        first_windows = [part for part in parts if part]
        outputs = SearchOutputs(
            n_best=n_best,
            attention=need_attention,
            copies=need_copies,
            scores=need_scores or need_copies,
            log_probs=need_copies,
        )
        yield from self._stream_lines(chain(first_windows, remaining), outputs, len(first))

    def _stream_lines(
        self, windows: Iterator[Lines], outputs: SearchOutputs, available: int
    ) -> Generator[list[list[Translation]], None, None]:
        """Translates windows in worker processes if that pays off for `available` lines, otherwise in threads."""
        decoder = build_decoder(self, outputs)
        workers = self.workers
        if self.external_engine is not None:
            workers = None  # the library has threads of its own, which do not survive a fork
        if workers is not None and workers.should_use(available):
            yield from self._stream_by_processes(windows, outputs, decoder=decoder, workers=workers)
        else:
            yield from self._stream_by_threads(windows, outputs, decoder)

    def _stream_by_processes(
        self,
        windows: Iterator[Lines],
        outputs: SearchOutputs,
        decoder: JobDecoder,
        workers: Workers,
    ) -> Iterator[list[list[Translation]]]:
        make_decoder: Callable[[str], JobDecoder]
        if workers.open_translator is None:
            pack_weights(self.model)  # before forking, so that all forks share the packed weights
            forked_decoder = with_translations(decoder, partial(write_job, self, outputs))

            def make_decoder(_device: str) -> JobDecoder:
                return forked_decoder

        else:
            make_decoder = partial(
                open_decoder, workers.open_translator, self.config, self.replacer, outputs
            )
        with closing(WorkerPool(workers, make_decoder)) as pool:
            queue = JobQueue(
                reader=self,
                device=torch.device(workers.devices[0]),
                decoders=len(pool.decoders),
                hypotheses=self.config.n_hypotheses,
            )
            yield from self._pipeline(outputs).run(
                windows, queue, decoders=pool.decoders, in_process=False, stop=pool.close
            )

    def _stream_by_threads(
        self, windows: Iterator[Lines], outputs: SearchOutputs, decoder: JobDecoder
    ) -> Iterator[list[list[Translation]]]:
        devices.note_thread()
        is_on_cpu = self.device.type == "cpu"
        decoders = devices.threads_without_limits() if is_on_cpu else 1
        hypotheses = self.config.n_hypotheses
        max_sentences = None
        spare_decoders = 0
        if self.external_engine is not None:
            decoders = self.external_engine.searches
            # A batch is always ready for the next free search while Python processes results.
            spare_decoders = 1
            max_sentences = self.external_engine.batch_sentences(self.config)
            # `max_sentences` depends on the beam size, so a small beam size does not need a larger batch budget here.
            hypotheses = max(hypotheses, TYPICAL_BEAM[0])
        queue = JobQueue(
            reader=self,
            device=self.device,
            decoders=decoders,
            hypotheses=hypotheses,
            max_sentences=max_sentences,
            spare_decoders=spare_decoders,
        )
        all_decoders = [decoder] * (decoders + spare_decoders)
        yield from self._pipeline(outputs).run(
            windows, queue, decoders=all_decoders, in_process=is_on_cpu
        )

    def _pipeline(self, outputs: SearchOutputs) -> Pipeline:
        """Connects the stages that depend on this translator."""
        return Pipeline(
            encode=partial(self.encode_requests, glossary=self.glossary, config=self.config),
            write=partial(write_job, self, outputs),
        )

    @override
    def facts(self) -> list[str]:
        facts = super().facts()
        facts.append(f"engine {self.engine_name}")
        facts.append(f"{self.config.size_key} {self.config.n_hypotheses}")
        if self.glossary is not None:
            facts.append(f"{len(self.glossary.entries)} terms")
        return facts

    @property
    def engine_name(self) -> str:
        """Name of the engine that decodes; for an external engine, also its precision."""
        if self.external_engine is None:
            return "nmtkit"
        return f"{self.external_engine.name}, {self.speed_config.precision}"

    @property
    @override
    def model(self) -> Decoder:
        return cast(Decoder, super().model)

    def target_tokens(self) -> TargetTokens:
        """Returns the properties of the target tokens that decoding rules need."""
        find_word_starts = partial(word_starts, self.tokenizers.tgt, self.device)
        return TargetTokens(word_starts=cache(find_word_starts), tokenizers=self.tokenizers)

    def report_once(self, subject: str, message: str) -> None:
        """Passes a message to `notify` unless there has been a message on this subject."""
        if subject not in self._reported:
            self._reported.add(subject)
            self.notify(message)

    @override
    def in_direction(self, source: str, target: str) -> Self:
        translator = super().in_direction(source, target)
        if translator is self or self.replacer is None:
            return translator
        replacer = self.replacer.with_tokenizers(translator.tokenizers)
        return replace(translator, replacer=replacer)

    @property
    @override
    def window(self) -> int:
        if self.workers is None:
            return super().window
        device_type = torch.device(self.workers.devices[0]).type
        lines = WINDOW.get(device_type, WINDOW["cuda"])
        windows = len(self.workers.devices) // WORKERS_PER_WINDOW
        return lines * max(1, windows)

    def replacing_unknown(self, dictionary: Mapping[str, str] | None = None) -> "Translator":
        """Returns a translator that replaces unknown words with source words or their dictionary translations.

        See `UnknownReplacer`. `Translation.text` contains the replacements, `Translation.replaced` lists them, and
        `Translation.tokens` still has the tokens that the model generated. The search may generate the unknown word
        even if the recipe forbids it.
        """
        self.require_attention("replace unknown words")
        config = self.config.changed({"forbid_unknown": False})
        return replace(self, config=config, replacer=UnknownReplacer(self.tokenizers, dictionary))

    def with_terms(self, terms: Mapping[str, str]) -> "Translator":
        """Returns a translator with a glossary: if a line has a source term, its translation has the target term.

        Terms match whole words; see `Glossary`. The entries are added to those of `self.glossary`, and override its
        entries for the same source terms.
        """
        self.config.reject_constraints()
        glossary = Glossary(terms)
        if self.glossary is not None:
            glossary = self.glossary.overridden_by(glossary)
        translator = replace(self, glossary=glossary)
        # Engines do not depend on terms; sharing them makes it cheap to use a different glossary in each call. Plain
        # assignment is impossible because the dataclass is frozen.
        object.__setattr__(translator, "engines", self.engines)
        return translator

    def cost_of_terms(self, translations: Sequence[Translation]) -> list[float]:
        """Returns how much log-probability each translation loses because of its terms, in nats.

        A second search finds the best translation without terms. The cost is the log-probability of the best
        translation minus that of the given one. About 3 nats are typical for a word that the model would not choose by
        itself. A much higher cost means that the model does not know the term, and that the rest of the sentence may
        have suffered.
        """
        requests = []
        for translation in translations:
            line = translation.source if translation.request is None else translation.request
            requests.append(replace(Request.from_line(line), must=(), must_not=()))
        results = replace(self, glossary=None).search(requests)
        costs = []
        for unconstrained, translation in zip(results, translations, strict=True):
            costs.append(unconstrained[0].log_prob - translation.log_prob)
        return costs

    def translation(self, hypothesis: Hypothesis, source: SourceLine) -> Translation:
        """Converts a hypothesis to a `Translation` of its source."""
        tokenizer = self.tokenizers.tgt
        copied = None
        if (
            hypothesis.p_gen is not None
            and hypothesis.attention is not None
            and source.extended is not None
        ):
            copied = copied_positions(
                ids=hypothesis.ids,
                log_probs=hypothesis.token_log_probs,
                p_gen=hypothesis.p_gen,
                attention=hypothesis.attention,
                src_extended=source.extended,
            )
        tokens = tokenizer.pieces(hypothesis.ids, source.oov)
        if source.is_prompt:
            text = tokenizer.decode([*source.ids, *hypothesis.ids], source.oov)
        else:
            text = tokenizer.join(tokens)
        return Translation(
            text=text,
            score=hypothesis.score,
            log_prob=hypothesis.log_prob,
            tokens=tokens,
            token_log_probs=hypothesis.token_log_probs,
            src_tokens=source.tokens,
            finished=hypothesis.finished,
            attention=hypothesis.attention,
            p_gen=hypothesis.p_gen,
            copied=copied,
            src_left_out=source.left_out,
            source=source.text,
            request=source.request,
        )

    @torch.no_grad()
    def rescore(
        self,
        sources: Sequence[str],
        targets: Sequence[str | Translation],
        need_attention: bool = False,
        first: int = 1,
    ) -> list[Translation]:
        """Scores given translations as a search would score the same tokens.

        Args:
            sources: source lines; for a language model, prompts that the targets continue.
            targets: a translation of each source. Text is tokenized, not necessarily into the tokens that a search
                would choose. A `Translation` keeps its tokens, and is scored without EOS if it is unfinished. An empty
                target consists only of EOS. If both sides are empty, the score is 0, as for an empty line in `search`.
            need_attention: whether to return the attention, and copied words if the model copies.
            first: number of the first pair, for messages.
        """
        require_list(sources=sources, targets=targets)
        require_pairs(sources, targets)
        src_lines = self.encode_sources(sources)
        tgt_lines = self._encode_targets_to_score(src_lines, targets, first)
        finished = [isinstance(target, str) or target.finished for target in targets]
        with_attention = need_attention or self.config.coverage_penalty > 0
        translations = [EMPTY for _ in src_lines]
        with devices.threads_for(len(sources)):
            for numbers, batch in self.batches(src_lines, tgt_lines):
                readout, log_probs = self.score_targets(batch, with_attention)  # log_probs: (B, T)
                attention: NDArray[np.float32] | None = None
                if readout.attention is not None:
                    attention = readout.attention.float().cpu().numpy()  # (B, T, S)
                p_gen: Tensor | None = None
                if readout.copy_gate is not None and need_attention:
                    p_gen = readout.copy_gate[..., 0].float().cpu()  # (B, T)
                source_lengths = memory_lengths(self.model, batch).tolist()
                length_limits = self._length_limits(batch)
                for row, number in enumerate(numbers):
                    source = src_lines[number]
                    target = tgt_lines[number]
                    # A row of the batch consists of the prompt, the target and, if the target is finished, EOS.
                    prompt = source.ids if source.is_prompt else []
                    positions = slice(len(prompt), len(prompt) + len(target.ids) + finished[number])
                    token_log_probs = log_probs[row, positions].double()  # (T,)
                    # Tokens that the search was forced to choose (a prefix, or EOS at the length limit) cost nothing.
                    prefix = list(source.prefix)
                    if self.config.certain_prefix and target.ids[: len(prefix)] == prefix:
                        token_log_probs[: len(prefix)] = 0.0
                    is_at_limit = finished[number] and len(token_log_probs) == length_limits[row]
                    if is_at_limit and self.config.effective_at_limit == "end":
                        token_log_probs[-1] = 0.0
                    weights = (
                        None
                        if attention is None
                        else attention[row, positions, : source_lengths[row]]
                    )  # (T, S)
                    score = ranking_score(
                        self.config,
                        target.extended,
                        log_probs=token_log_probs,
                        attention=weights,
                        prompt=prompt,
                    )
                    hypothesis = Hypothesis(
                        ids=target.extended,
                        finished=finished[number],
                        score=score,
                        log_prob=float(token_log_probs.sum()),
                        token_log_probs=token_log_probs.tolist(),
                        attention=weights if need_attention else None,
                        p_gen=None if p_gen is None else p_gen[row, positions].tolist(),
                    )
                    translations[number] = self.translation(hypothesis, source)
        return translations

    def _length_limits(self, batch: Batch) -> list[int]:
        """Returns the maximum number of tokens, including EOS, that a search could generate for each sentence."""
        config = self.config
        # Without a source text, the limit does not depend on the length of the input (rows of features, or a prompt).
        if not batch.reads_text:
            config = config.changed({"max_length_ratio": 0.0})
        limits: list[int] = max_lengths(config, batch.lengths).tolist()
        return limits

    def _encode_targets_to_score(
        self, sources: Sequence[SourceLine], targets: Sequence[str | Translation], first: int
    ) -> list[TargetLine]:
        texts = {number: target for number, target in enumerate(targets) if isinstance(target, str)}
        sources_of_texts = [sources[number] for number in texts]
        encoded_texts = self.encode_targets(list(texts.values()), sources_of_texts)
        encoded = dict(zip(texts, encoded_texts, strict=True))
        for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
            pair_number = first + number
            if not isinstance(target, str):
                encoded[number] = self.encode_target_tokens(target.tokens, source, pair_number)
            if encoded[number].ids and source.is_empty:
                raise DataError(
                    f"pair {pair_number}: the source side is empty, but the target side is not; "
                    "remove the pair, or check whether the two files belong together"
                )
        return [encoded[number] for number in range(len(targets))]

    align = attention_views.align

    def pictures(
        self,
        sources: Sequence[str],
        targets: Sequence[str | None] | None = None,
        subwords: bool = False,
    ) -> "list[AttentionPicture]":
        """Returns a picture of the attention for each pair.

        Args:
            sources: source lines.
            targets: a translation of each source, or None to have the model translate it.
            subwords: whether to show tokens; if False, they are merged into words, with punctuation attached to the
                preceding word.
        """
        self.require_attention("show attention")
        translations = self._given_or_searched(sources, targets, need_attention=True)
        pictures = []
        for number, translation in enumerate(translations, start=1):
            picture = attention_views.picture(self, translation, number=number, subwords=subwords)
            pictures.append(picture)
        return pictures

    def head_pictures(
        self, sources: Sequence[str], targets: Sequence[str | None] | None = None
    ) -> "list[HeadsPicture]":
        """Returns each pair's token-level attention in every head of every layer of a Transformer.

        Row t of `decoder` and `cross` is the attention in the step that *generates* target token t. The model
        translates sources whose target is None.
        """
        attention_views.require_heads(self)  # before the search
        translations = self._given_or_searched(sources, targets)
        return attention_views.head_pictures(self, sources, translations)

    def _given_or_searched(
        self,
        sources: Sequence[str],
        targets: Sequence[str | None] | None,
        need_attention: bool = False,
    ) -> list[Translation]:
        """Rescores given targets, and searches for the translations of sources whose target is None."""
        require_list(sources=sources, targets=targets)
        require_pairs(sources, targets)
        targets = targets or [None] * len(sources)
        for side, lines in (("source", sources), ("target", targets)):
            for number, line in enumerate(lines, start=1):
                if line is not None and not line.strip():
                    raise DataError(f"{side} line {number} is empty, so there is nothing to draw")
        to_search = {}
        to_rescore = {}
        for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
            if target is None:
                to_search[number] = source
            else:
                to_rescore[number] = (source, target)
        translations: dict[int, Translation] = {}
        n_best_lists = self.search(list(to_search.values()), need_attention=need_attention)
        for number, n_best in zip(to_search, n_best_lists, strict=True):
            translations[number] = n_best[0]
        rescored = self.rescore(
            sources=[source for source, _ in to_rescore.values()],
            targets=[target for _, target in to_rescore.values()],
            need_attention=need_attention,
        )
        translations.update(zip(to_rescore, rescored, strict=True))
        return [translations[number] for number in range(len(sources))]
