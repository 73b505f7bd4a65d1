"""Measures decoding and training speed on this machine for `nmtkit bench`."""

import re
import resource
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from nmtkit import metrics
from nmtkit.config import Recipe
from nmtkit.core import device as devices
from nmtkit.core.device import read_clock
from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.core.machine import machine_facts
from nmtkit.experiment import checks
from nmtkit.experiment.execute import prepare, resolve_batch
from nmtkit.experiment.plan import plan
from nmtkit.experiment.tuning import TrainingSpeedConfig, tune_training
from nmtkit.experiment.workloads import (
    CyclingStream,
    TrainingWorkload,
    synthetic_workload,
    workload_of_run,
)
from nmtkit.inference.constraints.requests import Request
from nmtkit.inference.loading.opening import open_translator
from nmtkit.inference.loading.options import DecodingOptions
from nmtkit.inference.translator import Translator
from nmtkit.runs.folder import Notify, RunFolder
from nmtkit.runs.run import Run, find_run
from nmtkit.training.checkpoints.manager import CheckpointManager
from nmtkit.training.checkpoints.weights import get_weights
from nmtkit.training.optimizers import read_state
from nmtkit.training.parallel import processes
from nmtkit.training.trainer import Trainer

LENGTHS = (25, 25)
"""Lengths of a random source and target in tokens, unless the recipe's limits are lower."""
LINES_ALONE = 50
"""Number of lines decoded one by one to measure latency."""
WARM_UP = 256
"""Number of warm-up lines decoded before the first measurement."""


@dataclass(kw_only=True)
class DecodingSpeed:
    """Measurements of one configuration."""

    seconds: list[float] = field(default_factory=list)
    """Seconds per round for all lines."""
    latencies: list[float] = field(default_factory=list)
    """Seconds for each line decoded on its own, in all rounds."""
    peak_mib: float = 0.0
    translations: Sequence[Any] = ()
    """The best result of each line: a `Translation`, or any object with `text`, `tokens` and `finished`."""
    scores: dict[str, float] = field(default_factory=dict)
    """Scores against the references, if any."""
    config: str = ""
    """Description of the configuration."""
    differing: int = 0
    """Number of outputs that differ from those of the first configuration."""

    @property
    def tokens(self) -> int:
        """Number of tokens in the translations, including EOS."""
        return sum(len(one.tokens) + one.finished for one in self.translations)

    def figures(self) -> dict[str, Any]:
        """Returns the measurements by name, without the translations."""
        values = {
            key: value
            for key, value in vars(self).items()
            if key not in ("translations", "latencies")
        }
        return {
            **values,
            "tokens": self.tokens,
            "sentences_per_second": [len(self.translations) / one for one in self.seconds],
            "tokens_per_second": [self.tokens / one for one in self.seconds],
            "latency_ms_median": 1e3 * median(self.latencies) if self.latencies else None,
            "latency_ms_p95": 1e3 * float(np.quantile(self.latencies, 0.95))
            if self.latencies
            else None,
        }

    def score(self, run: Run, sources: Sequence[str], references: Sequence[str]) -> None:
        """Scores the translations with the recipe's test metrics."""
        recipe, texts = run.recipe, [one.text for one in self.translations]
        scores = metrics.score_all(
            texts, [references], recipe.test_metrics, recipe.evaluation.options, sources
        )
        self.scores = {score.name: score.value for score in scores}


def require_lines(sources: Sequence[str], references: Sequence[str] | None) -> None:
    """Rejects text that cannot be decoded or scored."""
    if not any(line.strip() for line in sources):
        raise DataError("all lines are empty, so there is nothing to translate; use another file")
    if references is not None and len(references) != len(sources):
        raise DataError(
            f"there are {len(sources)} source lines, but {len(references)} references; give one "
            "reference per source line"
        )


def measure_decoding(
    options: DecodingOptions,
    sources: Sequence[str | Request],
    references: Sequence[str] | None,
    rounds: int,
    notify: Notify,
) -> tuple[dict[str, object], list[DecodingSpeed]]:
    """Returns a description of the machine and the decoding speed with the given options.

    If engine `auto` chooses CTranslate2, two alternatives are also measured: nmtkit, and CTranslate2
    in the precision that it considers fastest.
    """
    texts = [Request.from_line(line).text for line in sources]
    require_lines(texts, references)
    run = find_run(options.model)[0]
    translator = open_translator(run, options, notify)
    speeds = [_decoding_speed(translator, sources, rounds)]
    if options.engine == "auto" and translator.external_engine is not None:
        for other in open_other_engines(run, options):
            speeds.append(_decoding_speed(other, sources, rounds))
    first_texts = [one.text for one in speeds[0].translations]
    for speed in speeds:
        speed.differing = sum(
            one.text != text for one, text in zip(speed.translations, first_texts, strict=True)
        )
        if references is not None:
            speed.score(run, texts, references)
    return machine_facts(options.threads or devices.cpu_threads(), translator.device), speeds


def open_other_engines(run: Run, options: DecodingOptions) -> list[Translator]:
    """Opens the engines to compare with CTranslate2 in fp32."""
    own = replace(options, engine="nmtkit", precision="auto")
    fastest = replace(options, engine="ctranslate2", precision="fastest")
    return [open_translator(run, own), open_translator(run, fastest)]


def _decoding_speed(
    translator: Translator, sources: Sequence[str | Request], rounds: int
) -> DecodingSpeed:
    """In every round, decodes all lines, then the first `LINES_ALONE` lines one by one."""
    filled = [line for line in sources if Request.from_line(line).text.strip()]
    place = translator.device
    config = replace(translator.speed_config, batch_tokens=translator.batch_budget)
    speed = DecodingSpeed(config=str(config))
    translator.search(filled[:WARM_UP], need_scores=False)
    for _ in range(rounds):
        reset_peak_memory(place)
        started = read_clock(place)
        hypotheses = translator.search(sources, need_scores=False)
        speed.seconds.append(read_clock(place) - started)
        speed.translations = [ranked[0] for ranked in hypotheses]
        speed.peak_mib = max(speed.peak_mib, peak_memory_mib(place))
        for line in filled[:LINES_ALONE]:
            started = read_clock(place)
            translator.search([line], need_scores=False)
            speed.latencies.append(read_clock(place) - started)
    return speed


@dataclass
class TrainingSpeed:
    """Measurements of a recipe's updates."""

    facts: dict[str, object]
    data: str
    """Description of where the batches come from."""
    config: TrainingSpeedConfig
    updates: int
    """Number of updates per round."""
    tokens: int
    """Target tokens per round in all processes, including EOS but not padding."""
    seconds: list[float] = field(default_factory=list)
    """Seconds per round."""
    peak_mib: float = 0.0
    """Peak memory of an update; see `peak_memory_mib`."""
    parameters: int = 0
    """Number of parameters; shared parameters count once."""
    checkpoint_mib: float = 0.0
    """Size of the full training state: weights, their average if any, and optimizer state."""

    @property
    def tokens_per_second(self) -> list[float]:
        """Tokens per second in each round."""
        return [self.tokens / seconds for seconds in self.seconds]

    def figures(self) -> dict[str, Any]:
        """Returns the measurements by name."""
        per_update = [1e3 * seconds / self.updates for seconds in self.seconds]
        return {
            **asdict(self),
            "tokens_per_second": self.tokens_per_second,
            "ms_per_update": per_update,
        }


def training_workload(
    recipe: Recipe, run_path: str | None, device: torch.device, stack: ExitStack, notify: Notify
) -> tuple[TrainingWorkload, str]:
    """Returns the recipe's workload, and where its batches come from: a run, the recipe's text, or random words.

    Temporary files exist until `stack` is closed; no run is changed.
    """
    folder = RunFolder.at(run_path, recipe.name)
    if folder.has_training():
        try:
            run = Run.open(folder.path)
            checks.require_same_recipe(run, recipe)
            resolve_batch(run, device, notify)
            return workload_of_run(run, device), f"the data of {folder.path}"
        except NmtkitError as fault:
            if run_path is not None:
                raise
            notify(f"the data of {folder.path} cannot be used: {fault}")
    try:
        checks.require_data(recipe)
    except DataError as fault:
        if recipe.batch.is_auto:
            raise
        notify(str(fault))
        src, tgt = recipe.data.truncation or LENGTHS
        data = f"random words ({src} source and {tgt} target words per line), because the recipe's text is missing"
        return synthetic_workload(recipe, (src, tgt), device), data
    scratch = (
        Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nmtkit-bench-"))) / recipe.name
    )
    planned = plan(recipe, device)
    with Run.create(planned.recipe, str(scratch)) as run:
        for _ in prepare(planned, run, notify):
            continue
        resolve_batch(run, device, notify)
        return workload_of_run(run, device), "its text"


def measure_training(
    workload: TrainingWorkload, data: str, updates: int, rounds: int, notify: Notify
) -> TrainingSpeed:
    """Runs the same updates in every round, in the fastest configuration that the recipe allows."""
    chosen = tune_training(workload)
    if chosen.speeds:
        notify(str(chosen))
    config, device = chosen.config, workload.device
    devices.prepare(device, config.matmul_precision, config.threads)
    count = updates * workload.config.accumulate
    batches = workload.first_batches(count)
    stream = CyclingStream(batches)
    trainer = Trainer(workload.build(), stream, workload.config, CheckpointManager(Path()), device)
    trainer.gradients.in_bf16 = config.precision == "bf16"
    tokens = processes.size() * sum(
        batches[number % len(batches)].n_tokens for number in range(count)
    )
    speed = TrainingSpeed(machine_facts(config.threads, device), data, config, updates, tokens)
    for number in range(rounds + 1):
        stream.next = 0
        reset_peak_memory(device)
        started = read_clock(device)
        for _ in range(updates):
            trainer.make_update()
        if number:  # the updates before the first round allocate memory
            speed.seconds.append(read_clock(device) - started)
            speed.peak_mib = max(speed.peak_mib, peak_memory_mib(device))
    speed.parameters = sum(one.numel() for one in trainer.model.parameters())
    kept = [
        *get_weights(trainer.model).values(),
        *(trainer.ema.averages.values() if trainer.ema else ()),
    ]
    state = read_state(trainer.optimizer, trainer.parameters)
    speed.checkpoint_mib = sum(one.nbytes for one in (*kept, *state.values())) / (1 << 20)
    return speed


def reset_peak_memory(device: torch.device) -> None:
    """Resets `peak_memory_mib`; on a CPU, this works only on Linux."""
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]  # there are no statistics before `init`
        torch.cuda.reset_peak_memory_stats(device)
    else:
        devices.trim_malloc()
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_memory_mib(device: torch.device) -> float:
    """Returns the peak memory since `reset_peak_memory`: of tensors on CUDA, otherwise of the whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / (1 << 20)
    with suppress(OSError):
        peak = re.search(
            r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii")
        )
        if peak:
            return int(peak[1]) / 1024
    peak_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak_rss / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Formats the range of the values, such as "1,200-1,350"."""
    return f"{min(values):,.{digits}f}-{max(values):,.{digits}f}"
