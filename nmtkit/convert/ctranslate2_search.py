"""CTranslate2 as a search engine: the weights of a run are converted once, kept beside the run, and searched there.

With the settings of `require_comparable` it searches as nmtkit does: what ends leaves the beam, and K ended hypotheses
end a search. But tokens that are forbidden leave their probability to the others.
"""

import json
import math
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nmtkit.convert.export_weights import library, require_convertible, to_ctranslate2
from nmtkit.convert.exporting import require_comparable as require_comparable
from nmtkit.core.errors import NmtkitError
from nmtkit.core.files import bytes_checksum, file_sha256, new_folder, write_errors
from nmtkit.core.version import __version__
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD
from nmtkit.decoding.hypotheses import Hypothesis
from nmtkit.decoding.rules import SearchConfig, max_lengths, score_given
from nmtkit.inference.inputs import SourceLine
from nmtkit.runs.saved import SavedRun
from nmtkit.training.checkpoints.tensor_files import open_checkpoint

COMPUTE_TYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fastest": "auto"}
"""Its names of our precisions; all others have one name."""
POSITIONS = 4096  # longer texts are refused
NEARLY_NONE = 1e-9
"""A length penalty that changes no score in float32: without any it would end a search before K hypotheses have."""


class CTranslate2Search:
    """Finds the best hypotheses of sources; the log-probabilities of tokens are NaN unless they are asked for.

    A batch has one limit of length, the largest. The last of the K hypotheses of a source ended in the last step of its
    search; if none is cut or longer than its own limit, that has changed nothing. The others reach their limits, and
    are searched again, together with those of the same limit. Fewer than K hypotheses have ended there, so that it may
    wait for 2K, and then returns all of them, not the best K.
    """

    def __init__(self, run: SavedRun, which: str, device: torch.device, precision: str, threads: int) -> None:
        package, kind = library("ctranslate2"), device.type
        model = require_convertible(run.inference.model, "ctranslate2")
        self._most = model.max_positions if model.positions == "learned" else 1 << 31
        if kind not in ("cpu", "cuda") or (kind == "cuda" and not package.get_cuda_device_count()):
            raise NmtkitError(f"engine ctranslate2 sees no device {kind}: take --device cpu, or another engine")
        known, wanted = package.get_supported_compute_types(kind), COMPUTE_TYPES.get(precision, precision)
        if wanted not in ("auto", *known):
            others = ", ".join(sorted(known))
            raise NmtkitError(f"engine ctranslate2 has no precision {precision} on this {kind}: take fastest, {others}")
        tokenizers = run.load_tokenizers()
        self._src, self._tgt = tokenizers.src.vocabulary, tokenizers.tgt.vocabulary
        place, threads = self._converted(run, which), threads if kind == "cpu" else 1
        how = {"device_index": device.index or 0, "inter_threads": threads, "intra_threads": 1}
        remedy = f"remove {place} if it is damaged"
        self._translator = self._call(remedy, package.Translator, str(place), kind, compute_type=wanted, **how)

    def _converted(self, run: SavedRun, which: str) -> Path:
        """The folder of the converted model; it is made, in place of those of other weights, if need be."""
        path, src, tgt = run.weights(which), self._src.tokens, self._tgt.tokens
        with open_checkpoint(path) as (_, header):
            facts = [header.sums or file_sha256(path), run.inference.model.model_dump(mode="json"), __version__]
        place = run.folder.ctranslate2 / bytes_checksum(json.dumps([*facts, src, tgt], sort_keys=True).encode())
        if not place.is_dir():
            model: Any = run.open_for_inference(torch.device("cpu"), which)[0]  # a Transformer
            try:
                with new_folder(place, "remove it") as beside, write_errors(place):
                    to_ctranslate2(model, src, tgt, POSITIONS).save(str(beside))
            except NmtkitError:
                if not place.is_dir():  # else another process has made it meanwhile
                    raise
            for other in place.parent.iterdir():
                if place.name not in other.name:  # as those have that are being made
                    shutil.rmtree(other, ignore_errors=True)
        return place

    def __call__(
        self, sources: Sequence[SourceLine], config: SearchConfig, n_best: int, log_probs: bool
    ) -> list[list[Hypothesis]]:
        """The `n_best` of every source; raises NmtkitError for what it does not have."""
        require_comparable("ctranslate2", config)
        for request in (source.request for source in sources if source.is_asked):
            where = "a text" if request is None else request.where
            raise NmtkitError(f"{where}: engine ctranslate2 has no prefixes and terms; take another engine")
        if n_best > config.beam_size:
            raise NmtkitError(f"n_best {n_best} is more than beam_size {config.beam_size}: raise it, or lower n_best")
        most = self._most - log_probs  # what is scored again reads one more
        lengths = torch.tensor([source.length + 1 for source in sources])
        limits = max_lengths(config, lengths, None).clamp(max=most).tolist()
        found, again = self._search(sources, config, max(limits)), defaultdict(list)
        for number, (hypotheses, limit) in enumerate(zip(found, limits, strict=True)):
            if not all(one.finished and len(one.ids) < limit for one in hypotheses):
                again[limit].append(number)
        behind = config.at_limit == "behind"
        for limit, numbers in again.items():
            cut = self._search([sources[n] for n in numbers], config, limit, patience=min(2, config.beam_size))
            for number, hypotheses in zip(numbers, cut, strict=True):
                found[number] = sorted(hypotheses, key=lambda one: (behind and not one.finished, -one.score))
        best = [hypotheses[:n_best] for hypotheses in found]
        return self._with_log_probs(sources, best, config) if log_probs else best

    def _search(
        self, sources: Sequence[SourceLine], config: SearchConfig, limit: int, patience: int = 1
    ) -> list[list[Hypothesis]]:
        """What it finds with one limit for all."""
        alpha = (config.alpha if config.length_penalty == "average" else 0.0) or NEARLY_NONE
        results = self._call(
            "take smaller batches, shorter texts or another engine",
            self._translator.translate_batch,
            [self._src.tokens_of(source.ids) for source in sources],
            beam_size=config.beam_size,
            patience=patience,
            num_hypotheses=patience * config.beam_size,
            length_penalty=alpha,
            max_decoding_length=limit,
            min_decoding_length=config.min_length,
            max_input_length=0,  # it would cut long lines in silence
            no_repeat_ngram_size=config.no_repeat_ngram,
            disable_unk=config.forbid_unknown,
            suppress_sequences=[[self._tgt.tokens[PAD]], [self._tgt.tokens[BOS]]],
            return_end_token=True,  # |Y| then counts it
            return_scores=True,
        )

        def hypothesis(written: list[str], score: float) -> Hypothesis:
            ids, length = self._tgt.ids(written), len(written)
            finished, log_prob = ids[-1:] == [EOS], score * length**alpha
            return Hypothesis(ids[: length - finished], finished, score, log_prob, [math.nan] * length, None)

        return [[hypothesis(*one) for one in zip(of.hypotheses, of.scores, strict=True)] for of in results]

    def _with_log_probs(
        self, sources: Sequence[SourceLine], found: Sequence[Sequence[Hypothesis]], config: SearchConfig
    ) -> list[list[Hypothesis]]:
        """The same with the model's own log-probabilities, which do not know what was forbidden."""
        pairs = [(source.ids, one.ids) for source, ranked in zip(sources, found, strict=True) for one in ranked]
        src, tgt = [self._src.tokens_of(ids) for ids, _ in pairs], [self._tgt.tokens_of(ids) for _, ids in pairs]
        options = {"max_batch_size": 32, "max_input_length": 0}
        coming = iter(self._call("take another engine", self._translator.score_batch, src, tgt, **options))

        def rescored(one: Hypothesis) -> Hypothesis:
            own = next(coming).log_probs[: len(one.token_log_probs)]  # without EOS where it was cut
            score = score_given(config, one.ids, torch.tensor(own), None)
            return replace(one, token_log_probs=own, log_prob=sum(own), score=score)

        return [[rescored(one) for one in ranked] for ranked in found]

    def _call(self, remedy: str, function: Any, *given: Any, **options: Any) -> Any:
        try:
            return function(*given, **options)
        except (RuntimeError, ValueError) as fault:
            raise NmtkitError(f"engine ctranslate2: {fault}; {remedy}") from fault
