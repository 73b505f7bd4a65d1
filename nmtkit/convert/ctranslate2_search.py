"""CTranslate2 as a decoding engine: a run's weights are converted once and cached.

CTranslate2 is configured to decode like nmtkit: finished hypotheses leave the beam, and the search ends when
there are K of them.
"""

import json
import math
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from typing_extensions import override

from nmtkit.convert.ctranslate2 import copies_of, to_ctranslate2
from nmtkit.convert.engines import (
    ctranslate2_alpha,
    ctranslate2_options,
    library,
    missing_settings,
    renormalizing_settings,
    unconvertible,
)
from nmtkit.core import device as devices
from nmtkit.core.errors import NmtkitError
from nmtkit.core.files import bytes_checksum, file_sha256, new_folder, user_cache, write_errors
from nmtkit.core.version import __version__
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, Vocabulary
from nmtkit.decoding.hypotheses import Hypothesis, ranking_score
from nmtkit.decoding.limits import max_lengths
from nmtkit.decoding.settings import SearchConfig
from nmtkit.inference.inputs import SourceLine
from nmtkit.inference.loading.engines import ENGINES, ExternalEngine, ExternalSearch
from nmtkit.inference.loading.options import DecodingOptions
from nmtkit.models.base import ModelConfig
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.run import Run
from nmtkit.training.checkpoints.tensor_files import open_checkpoint

COMPUTE_TYPES = {
    "auto": "float32",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fastest": "auto",
}
"""CTranslate2's names for precisions, where they differ from nmtkit's."""
POSITIONS = 4096
"""Number of position embeddings in a converted model with sinusoidal positions."""
FORMAT = 4
"""Version of the output of `to_ctranslate2`; a new version invalidates earlier conversions."""
GREEDY_SENTENCES = 64
BEAM_SENTENCES = 32
"""Number of sentences in a batch on a CPU, for greedy search and for beam search.

For Transformers of 2+2 layers of 128 and 3+3 layers of 256, batches of 256 sentences take 6 to 25% more CPU time.
"""
CACHE = "ctranslate2"
"""Folder in the user's cache for converted models of runs whose own folders are read-only."""
CONVERSIONS = 3
"""Number of conversions of a run that are kept: usually those of the average, the best and the last weights."""
_ABANDONED_SECONDS = 24 * 60 * 60
"""Age at which an unfinished conversion is removed, because the process that was writing it must have been killed."""
_FILE_SIZES = "sizes.json"
"""File in a converted model with the sizes of its other files."""
_NOT_USABLE = "ctranslate2 assigns probability to padding or BOS"
_AT_LIMIT = "a translation reaches its length limit, and ctranslate2 does not support at_limit end"


@dataclass(frozen=True)
class _Ranked:
    """The library's result for a source, best first."""

    hypotheses: list[list[str]]
    """Tokens of each hypothesis, including EOS."""
    scores: list[float] | None
    """Score of each hypothesis; None if scores were not requested."""


@ENGINES.register("ctranslate2")
class CTranslate2Search(ExternalEngine):
    """Finds the best hypotheses for sources; scores and log-probabilities may be NaN unless requested.

    A batch is searched with the largest length limit of its sources. The search of a source ends
    when K of its hypotheses have ended. If all of them end within the source's own limit, the larger
    limit made no difference. Otherwise, the source may have to be searched again with its own limit,
    together with other sources that have the same limit. Fewer than K hypotheses end within this
    limit, so the second search may wait for 2K hypotheses, and returns all of them, not only the
    best K.

    With `at_limit: end`, nmtkit ends hypotheses at the limit at no cost. CTranslate2 cannot, so results that reach the
    limit cannot be used.

    Padding and BOS must not be generated, but if CTranslate2 suppresses tokens, it gives their probability to the other
    tokens, so scores are no longer exact. If they must be, both tokens end a hypothesis instead, and the result for
    this source cannot be used. The converted model makes this very rare: see `_split_tokens` in
    `nmtkit.convert.ctranslate2`.
    """

    name = "ctranslate2"

    def __init__(self, run: Run, weights: str, device: torch.device, precision: str) -> None:
        threads = torch.get_num_threads()
        self._is_on_cpu = device.type == "cpu"
        self.searches = threads if self._is_on_cpu else 1
        self._positions = _positions(run.inference.model)
        # settings of the last search, and its length limits by source length
        self._known_limits: tuple[SearchConfig | None, dict[int, int]] = None, {}
        tokenizers = run.load_tokenizers()
        self._src = tokenizers.src.vocabulary
        self._tgt = tokenizers.tgt.vocabulary
        self._eos = self._tgt.tokens[EOS]
        self._never_generated = [
            copy for token in (PAD, BOS) for copy in copies_of(self._tgt.tokens[token])
        ]
        options = {
            "device": device.type,
            "device_index": device.index or 0,
            "compute_type": COMPUTE_TYPES.get(precision, precision),
            "inter_threads": self.searches,
            "intra_threads": 1,
        }
        try:
            self._translator = _open(run, weights, (self._src, self._tgt), options)
            self._process_id = os.getpid()
        finally:
            torch.set_num_threads(threads)  # the library changes the number of OpenMP threads

    @classmethod
    @override
    def unsupported_run(cls, run: Run, options: DecodingOptions) -> str:
        reason = _missing_options(run, options) or unconvertible(run.inference.model, "ctranslate2")
        if reason:
            return reason
        try:
            package = library("ctranslate2")
        except NmtkitError as fault:
            return str(fault)
        return _missing_precision(package, options.device, options.precision)

    @classmethod
    @override
    def unsupported_search(cls, config: SearchConfig, forces_language: bool, exact: bool) -> str:
        if forces_language:
            different = _differs_behind_language(config, exact)
            if different:
                return different
        missing = missing_settings("ctranslate2", config)
        missing.pop("certain_prefix", None)  # a forced language token always has probability 1
        if exact:
            # `nmtkit.decoding` takes over sources that reach their length limit.
            missing.pop("at_limit", None)
        if missing:
            return (
                "ctranslate2 cannot run this search; it does not support "
                f"{'; '.join(missing.values())}"
            )
        changing = renormalizing_settings(config)
        if changing and exact:
            return f"with {changing}, the scores of ctranslate2 differ from those of nmtkit"
        return ""

    @override
    def batch_sentences(self, config: SearchConfig) -> int | None:
        if not self._is_on_cpu:
            return None
        return GREEDY_SENTENCES if config.n_hypotheses == 1 else BEAM_SENTENCES

    @override
    def search(
        self, sources: Sequence[SourceLine], options: ExternalSearch
    ) -> list[list[Hypothesis] | str]:
        # a forked process lacks the library's threads and would wait forever
        if os.getpid() != self._process_id:
            raise NmtkitError(
                "engine ctranslate2: this process was forked after the model was opened; open the "
                'model in each process, or use engine="nmtkit"'
            )
        config = options.config
        if options.n_best > config.n_hypotheses:
            raise NmtkitError(
                f"n_best {options.n_best} exceeds beam_size {config.n_hypotheses}; raise beam_size "
                "or lower n_best"
            )
        results: list[list[Hypothesis] | str] = []
        supported: list[int] = []
        for number, (source, limit) in enumerate(
            zip(sources, self._limits(sources, config), strict=True)
        ):
            reason = self._lacking_for(source, limit, config, options.exact)
            results.append(reason)
            if not reason:
                supported.append(number)
        if not supported:
            return results
        supported_sources = [sources[number] for number in supported]
        found = self._search_all(supported_sources, options)
        if options.log_probs:
            found = self._with_log_probs(supported_sources, found, config)
        for number, result in zip(supported, found, strict=True):
            results[number] = result
        return results

    def _limits(self, sources: Sequence[SourceLine], config: SearchConfig) -> list[int]:
        """Returns the maximum hypothesis length for each source, in tokens including EOS.

        The limits are cached by source length, because computing them takes 5% of the time needed
        for a single line.
        """
        config_before, known = self._known_limits
        if config_before is not config:
            known = {}
            self._known_limits = config, known
        new = {source.length for source in sources}.difference(known)
        if new:
            lengths = torch.tensor([length + 1 for length in new])
            known.update(zip(new, max_lengths(config, lengths).tolist(), strict=True))
        return [known[source.length] for source in sources]

    def _lacking_for(
        self, source: SourceLine, limit: int, config: SearchConfig, exact: bool
    ) -> str:
        """Returns the reason why the library does not support a source, or an empty string."""
        if source.request is not None:
            return f"{source.request.place}: ctranslate2 does not support prefixes or terms"
        if self._positions is not None and max(source.length + 1, limit) >= self._positions:
            return (
                f"ctranslate2 supports only sources and translations of fewer than "
                f"{self._positions} tokens, including EOS"
            )
        return _differs_behind_language(config, exact) if source.prefix else ""

    def _search_all(
        self, sources: Sequence[SourceLine], options: ExternalSearch
    ) -> list[list[Hypothesis] | str]:
        """Returns each source's hypotheses within its length limit, or the reason why they cannot be used.

        All sources are first searched with the largest limit. Up to a source's own limit, this search
        takes the same steps as a search with that limit, so hypotheses that end within the limit are
        correct. If they are not enough, the source is searched again.
        """
        config = options.config
        n_best = options.n_best
        limits = self._limits(sources, config)
        found: list[list[Hypothesis] | str] = []
        cut_by_limit: dict[int, list[int]] = defaultdict(list)
        largest = max(limits)
        ranks_cut_last = config.effective_at_limit == "behind"
        # The library ranks hypotheses truncated at the largest limit among the finished ones. This is wrong if
        # truncated hypotheses must rank last, unless there is only one hypothesis.
        is_right_if_cut = not ranks_cut_last or config.n_hypotheses == 1
        results = self._search(sources, options, largest)
        for number, (result, limit) in enumerate(zip(results, limits, strict=True)):
            if not self._is_usable(result):
                found.append(_NOT_USABLE)
                continue
            if config.effective_at_limit == "end" and not all(
                self._has_ended(tokens, limit - 1) for tokens in result.hypotheses
            ):
                found.append(_AT_LIMIT)
                continue
            finished_ranks = []
            for rank, tokens in enumerate(result.hypotheses):
                if self._has_ended(tokens, limit):
                    finished_ranks.append(rank)
            all_ranks = range(len(result.hypotheses))
            if len(finished_ranks) == len(all_ranks) or (limit == largest and is_right_if_cut):
                found.append(self._hypotheses(result, config, all_ranks[:n_best]))
            elif ranks_cut_last and len(finished_ranks) >= n_best:
                # Hypotheses that are not in the list score lower, and truncated ones rank below all others.
                found.append(self._hypotheses(result, config, finished_ranks[:n_best]))
            else:
                found.append(_NOT_USABLE)  # until it has been searched again
                cut_by_limit[limit].append(number)
        patience = min(2, config.n_hypotheses)
        for limit, numbers in cut_by_limit.items():
            cut_sources = [sources[number] for number in numbers]
            results = self._search(cut_sources, options, limit, patience)
            for number, result in zip(numbers, results, strict=True):
                if not self._is_usable(result):
                    continue
                ranked = self._hypotheses(result, config, range(len(result.hypotheses)))
                if config.n_hypotheses > 1:
                    ranked.sort(
                        key=lambda hypothesis: (
                            ranks_cut_last and not hypothesis.finished,
                            -hypothesis.score,
                        )
                    )
                found[number] = ranked[:n_best]
        return found

    def _search(
        self, sources: Sequence[SourceLine], options: ExternalSearch, limit: int, patience: int = 1
    ) -> list[_Ranked]:
        """Returns the library's results with one length limit for all sources: at least K hypotheses per source.

        Padding and BOS end a hypothesis if scores must be exact; otherwise they are suppressed. See the class.
        """
        config = options.config
        library_options = ctranslate2_options(config)
        library_options["max_decoding_length"] = limit
        if options.exact:
            library_options["end_token"] = [self._eos, *self._never_generated]
        else:
            library_options["suppress_sequences"] = [[token] for token in self._never_generated]
        if any(source.prefix for source in sources):
            library_options["target_prefix"] = [
                self._tgt.tokens_of(source.prefix) for source in sources
            ]
        results = _call(
            "use smaller batches, shorter texts or `--engine nmtkit`",
            self._translator.translate_batch,
            [self._src.tokens_of(source.ids) for source in sources],
            patience=patience,
            num_hypotheses=patience * config.n_hypotheses,
            # Beam search needs scores in any case. Greedy search is 5% faster without them.
            return_scores=options.scores or config.n_hypotheses > 1,
            **library_options,
        )
        # Each access to an attribute of the library's results copies all of its values.
        return [
            _Ranked(hypotheses=result.hypotheses, scores=result.scores or None)
            for result in results
        ]

    def _is_usable(self, result: _Ranked) -> bool:
        """Returns whether no padding, BOS or EOS has disturbed the search for a source.

        If padding or BOS ends a hypothesis, its place in the beam is free for another. If a step has so many candidates
        that end that too few others remain, CTranslate2 continues some of the former, so they have EOS in the middle.
        """
        return not any(
            tokens and (tokens[-1] in self._never_generated or self._eos in tokens[:-1])
            for tokens in result.hypotheses
        )

    def _has_ended(self, tokens: Sequence[str], limit: int) -> bool:
        """Returns whether a hypothesis ended with EOS within the limit, which includes EOS."""
        return len(tokens) <= limit and bool(tokens) and tokens[-1] == self._eos

    def _hypotheses(
        self, result: _Ranked, config: SearchConfig, ranks: Iterable[int]
    ) -> list[Hypothesis]:
        """Returns the hypotheses of a source that have the given ranks in the library's result."""
        alpha = ctranslate2_alpha(config)
        hypotheses = []
        for rank in ranks:
            ids = self._tgt.ids(result.hypotheses[rank])
            score = math.nan if result.scores is None else result.scores[rank]
            finished = ids[-1:] == [EOS]
            hypotheses.append(
                Hypothesis(
                    ids=ids[: len(ids) - finished],
                    finished=finished,
                    score=score,
                    log_prob=score * len(ids) ** alpha,
                    token_log_probs=[math.nan] * len(ids),
                    attention=None,
                )
            )
        return hypotheses

    def _with_log_probs(
        self,
        sources: Sequence[SourceLine],
        found: Sequence[list[Hypothesis] | str],
        config: SearchConfig,
    ) -> list[list[Hypothesis] | str]:
        """Replaces the log-probabilities with the model's own, as if no tokens had been suppressed."""
        pairs: list[tuple[SourceLine, Hypothesis]] = []
        for source, ranked in zip(sources, found, strict=True):
            if not isinstance(ranked, str):
                pairs += [(source, hypothesis) for hypothesis in ranked]
        src = [self._src.tokens_of(source.ids) for source, _ in pairs]
        tgt = [self._tgt.tokens_of(hypothesis.ids) for _, hypothesis in pairs]
        options = {"max_batch_size": 32, "max_input_length": 0}
        scored = _call("use `--engine nmtkit`", self._translator.score_batch, src, tgt, **options)
        rescored = []
        for (source, hypothesis), result in zip(pairs, scored, strict=True):
            # A truncated hypothesis has no EOS.
            log_probs = result.log_probs[: len(hypothesis.token_log_probs)]
            log_probs[: len(source.prefix)] = [0.0] * len(source.prefix)
            score = ranking_score(config, hypothesis.ids, torch.tensor(log_probs), None)
            rescored.append(
                replace(hypothesis, token_log_probs=log_probs, log_prob=sum(log_probs), score=score)
            )
        remaining = iter(rescored)
        results: list[list[Hypothesis] | str] = []
        for ranked in found:
            if isinstance(ranked, str):
                results.append(ranked)
            else:
                results.append([next(remaining) for _ in ranked])
        return results


# ------------------------------------------------------------------------------------------------- supported searches


def _positions(model: ModelConfig) -> int | None:
    """Returns the number of position embeddings, or None if the length is not limited."""
    kind = getattr(model, "positions", "")
    if kind == "relative":
        return None
    return getattr(model, "max_positions", POSITIONS) if kind == "learned" else POSITIONS


def _differs_behind_language(config: SearchConfig, exact: bool) -> str:
    """Returns how decoding with a forced language token differs from nmtkit's, or an empty string.

    In CTranslate2, the token has probability 1, and a hypothesis may end directly after it only if
    that is the best continuation, which changes a search with several hypotheses.
    """
    if not config.certain_prefix:
        return (
            "ctranslate2 gives a forced language token probability 1, but certain_prefix is false"
        )
    if exact and config.n_hypotheses > 1:
        return (
            "ctranslate2 and nmtkit search differently after a forced language token unless "
            "beam_size is 1"
        )
    return ""


def _missing_options(run: Run, how: DecodingOptions) -> str:
    options = {
        "several models": len(run.members()) > 1,
        "several devices": "," in how.device,
        "--workers (use --threads)": (how.workers or 1) > 1,
        "--lm": how.lm is not None or how.lm_weight is not None,
        "--shortlist": how.shortlist is not None,
        "--layer": how.layer is not None,
        "--head": how.head is not None,
    }
    missing = [name for name, is_asked in options.items() if is_asked]
    return f"ctranslate2 does not support {', '.join(missing)}" if missing else ""


def _missing_precision(package: Any, device: str, precision: str) -> str:
    kind = devices.choose(device).type
    if kind not in ("cpu", "cuda") or (kind == "cuda" and not package.get_cuda_device_count()):
        return f"ctranslate2 finds no device of type {kind}"
    known = package.get_supported_compute_types(kind)
    if COMPUTE_TYPES.get(precision, precision) in ("auto", *known):
        return ""
    return (
        f"ctranslate2 does not support precision {precision} on this {kind} device; use "
        f"fastest or one of {', '.join(sorted(known))}"
    )


# ------------------------------------------------------------------------------------------------------ conversion

_Sides = tuple[Vocabulary, Vocabulary]


def _open(run: Run, which: str, sides: _Sides, options: dict[str, Any]) -> Any:
    """Opens the converted model; if it is damaged, converts the run again."""
    package = library("ctranslate2")
    place = _converted(run, which, sides)
    if _is_damaged(place):
        shutil.rmtree(place, ignore_errors=True)
        place = _converted(run, which, sides)
    remedy = f"install what is missing, or remove {place} if the message is about a file in it"
    return _call(remedy, package.Translator, str(place), **options)


def _is_damaged(place: Path) -> bool:
    """Returns whether files of a converted model are missing or incomplete."""
    try:
        sizes = json.loads((place / _FILE_SIZES).read_text(encoding="utf-8"))
        return any((place / name).stat().st_size != size for name, size in sizes.items())
    except (OSError, ValueError):
        return True


def _converted(run: Run, which: str, sides: _Sides) -> Path:
    """Returns the folder of the converted model, in the run or the user's cache; converts the model if necessary."""
    path = run.weights(which)
    with open_checkpoint(path) as (_, header):
        sums = header.checksums or file_sha256(path)
    model = run.inference.model.model_dump(mode="json")
    facts = [sums, model, __version__, FORMAT, *(side.tokens for side in sides)]
    key = bytes_checksum(json.dumps(facts, sort_keys=True).encode())
    places = [folder / key for folder in _folders(run.folder)]
    for place in places:
        if place.is_dir():
            with suppress(OSError):  # the run may be read-only
                os.utime(place)
            return place
    converted: Any = run.open_for_inference(torch.device("cpu"), which)[0]  # a Transformer
    specification = to_ctranslate2(
        converted, sides[0].tokens, sides[1].tokens, POSITIONS, unwanted=[PAD, BOS]
    )
    in_run, in_cache = places
    try:
        return _save(specification, in_run)
    except NmtkitError as fault:
        if not isinstance(fault.__cause__, OSError):
            raise
    return _save(specification, in_cache)


def _save(specification: Any, place: Path) -> Path:
    """Writes a converted model and removes old conversions; safe with concurrent processes."""
    try:
        with new_folder(place, "remove it") as beside, write_errors(place):
            specification.save(str(beside))
            sizes = {path.name: path.stat().st_size for path in beside.iterdir()}
            (beside / _FILE_SIZES).write_text(json.dumps(sizes), encoding="utf-8")
    except NmtkitError:
        if not place.is_dir():
            raise
    _remove_old(place.parent)
    return place


def _remove_old(folder: Path) -> None:
    """Removes conversions other than the `CONVERSIONS` last used ones, and unfinished ones of killed processes."""
    finished = []
    for path in folder.iterdir():
        with suppress(OSError):  # another process may have removed it
            last_use = path.stat().st_mtime
            if not path.name.startswith("."):
                finished.append((last_use, path))
            elif time.time() - last_use > _ABANDONED_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
    for _, path in sorted(finished, reverse=True)[CONVERSIONS:]:
        shutil.rmtree(path, ignore_errors=True)


def _folders(run: RunFolder) -> tuple[Path, Path]:
    """Returns the folders for a run's conversions: one in the run, and one in the user's cache."""
    name = bytes_checksum(os.path.realpath(run.path).encode())
    return run.ctranslate2, user_cache() / CACHE / name


def _call(remedy: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    try:
        return function(*arguments, **options)
    except (RuntimeError, ValueError) as fault:
        raise NmtkitError(f"ctranslate2: {fault}; {remedy}") from fault
