"""Evaluation of a run: validation while it trains, the test set after training, comparison with other runs.

Also measures how well a language model predicts text: per token, per word, and by the frequency
of words in the training text. Words are separated by white space in the detokenized text; a word's
log-probability is the sum over its tokens. The end of a line counts as one token and one word, like
<eos> in published WikiText results.
"""

import math
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby, islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from typing_extensions import override

from nmtkit import metrics
from nmtkit.config import Recipe
from nmtkit.config.tasks.task import TASKS
from nmtkit.core import device as devices
from nmtkit.core.errors import DataError
from nmtkit.core.files import atomic_write_text, write_json
from nmtkit.data.batches.batch_stream import BatchConfig
from nmtkit.data.batches.running_text import RunningText
from nmtkit.data.batches.store import Store
from nmtkit.data.text.alignments import SoftAlignment, parse_alignments
from nmtkit.data.text.blocks import Example
from nmtkit.data.text.config import SplitFiles
from nmtkit.data.text.files.lines import read_lines
from nmtkit.data.text.reading import read_pairs
from nmtkit.data.tokenizers.tokenizer import Tokenizer
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.words import word_spans
from nmtkit.decoding.settings import BeamConfig, change_search
from nmtkit.experiment.batches import loss_batches
from nmtkit.experiment.checks import require_test_set, require_validation_files
from nmtkit.inference.answering import ScoredAnswers, answer_and_score, score_answers
from nmtkit.inference.inputs import TextModel
from nmtkit.inference.loading.opening import open_system, open_translator
from nmtkit.inference.loading.options import DecodingOptions
from nmtkit.inference.result import Translation
from nmtkit.inference.translator import Translator
from nmtkit.metrics import perplexity
from nmtkit.models.abilities import reserve_positions
from nmtkit.models.base import Model, as_decoder
from nmtkit.runs.folder import Notify, ignore
from nmtkit.runs.metrics_log import MetricsLog
from nmtkit.runs.run import Run, source_token_limit
from nmtkit.training.events import Step
from nmtkit.training.losses.likelihood import likelihood
from nmtkit.training.parallel import processes

SAMPLES, SAMPLE_CHARACTERS = 4, 200
"""Number of validation examples whose answers are logged, and maximum length of each logged text in characters."""
LONG_WORDS = 30
"""Sources with more words than this count as long in comparisons of runs (Bahdanau et al. 2015, section 5.2.2)."""
WARM_UP = 64
"""Warm-up sentences, translated before the clock starts."""


class Validation:
    """Validation during training: loss on the validation set, and metrics of the decoded answers.

    Several processes share the batches for the loss and the sentences to decode, with the same
    results as a single process.
    """

    def __init__(self, data: Path, recipe: Recipe, tokenizers: Tokenizers) -> None:
        self.recipe = recipe
        self.tokenizers = tokenizers
        # Examples are needed only for metrics; the loss is computed on the stored split.
        most = recipe.evaluation.max_sentences if recipe.validation_metrics else 0
        self.files = require_validation_files(recipe)
        self.examples = _first_examples(self.files, most)
        self.store = Store.open(data, "valid")
        self.samples: list[list[str]] = []
        """Source, reference and answer of the first examples in the last validation."""

    def __call__(self, model: Model) -> dict[str, float]:
        """Returns the values of `Recipe.validation_metrics`, loss and perplexity, and the seconds they took."""
        begun = time.monotonic()
        recipe, settings, task = self.recipe, self.recipe.evaluation, TASKS.get(self.recipe.task)
        one_beam = {"kind": "beam", "beam_size": settings.beam_size}
        if isinstance(recipe.search, BeamConfig):
            one_beam["diversity_groups"] = 1
        config, limit = change_search(recipe.search, one_beam), source_token_limit(recipe)
        decoder = as_decoder(model)
        system = TextModel(model, self.tokenizers, name=recipe.name, max_source_tokens=limit)
        if decoder is not None:
            system = _SharedTranslator(
                decoder, self.tokenizers, config, name=recipe.name, max_source_tokens=limit
            )
        fit, names = _fit(system, self.store, recipe, shared=True), recipe.validation_metrics
        result = answer_and_score(task, system, self.examples, names, settings.options)
        first = zip(self.examples[:SAMPLES], result.answers.texts, strict=False)
        texts = [
            (one.src or f"line {one.line}", getattr(one, task.references) or "", out)
            for one, out in first
        ]
        self.samples = [[str(text)[:SAMPLE_CHARACTERS] for text in sample] for sample in texts]
        named = dict(zip((*names, "loss", "perplexity"), (*result.scores, *fit), strict=True))
        for direction, scores in _scores_by_direction(recipe, self.files, result, names).items():
            named |= {
                f"{name} {direction}": score for name, score in zip(names, scores, strict=True)
            }
        return {name: score.value for name, score in named.items()} | {
            "seconds": time.monotonic() - begun
        }


def _first_examples(files: SplitFiles, most: int | None) -> list[Example]:
    """Returns the first examples in order, with the same number for each direction if possible."""
    if most is None or len({*files.directions}) < 2:
        return list(islice(read_pairs(files), most))
    seen: dict[str, list[Example]] = {}
    for example in read_pairs(files):
        seen.setdefault(files.directions[example.file], []).append(example)
    turns = [one for turn in zip_longest(*seen.values()) for one in turn if one is not None]
    return sorted(turns[:most], key=lambda one: one.line)


class _SharedTranslator(Translator):
    """Decodes every n-th line in each of n processes, and gathers all results."""

    @override
    def search(self, lines: Sequence[Any], *given: Any, **options: Any) -> list[list[Translation]]:
        own = lines[processes.rank() :: processes.size()]
        return processes.gather_dealt(super().search(own, *given, **options))


def _scores_by_direction(
    recipe: Recipe, files: SplitFiles, result: ScoredAnswers, names: Sequence[str]
) -> dict[str, list[metrics.Score]]:
    """Returns the scores of each direction, if there are several directions."""
    found: dict[str, list[metrics.Score]] = {}
    if len({*files.directions}) < 2 or not result.answers.texts:
        return found
    task = TASKS.get(recipe.task)
    for direction in sorted({*files.directions} - {""}):
        numbers = [
            n
            for n, example in enumerate(result.examples)
            if files.directions[example.file] == direction
        ]
        outputs = [result.answers.texts[n] for n in numbers]
        examples = [result.examples[n] for n in numbers]
        scores = (
            score_answers(task, outputs, examples, names, recipe.evaluation.options)
            if numbers
            else []
        )
        if scores:
            found[direction] = scores
    return found


@torch.no_grad()
def _fit(
    system: TextModel, store: Store, recipe: Recipe, shared: bool = False
) -> list[metrics.Score]:
    """Returns the mean loss in nats and the perplexity on a store; processes may share the work."""
    model, own = system.model, []
    first, every = (processes.rank(), processes.size()) if shared else (0, 1)
    for batch in islice(loss_batches(recipe, store, system.tokenizers), first, None, every):
        log_probs = model(batch.to(system.device), keep=batch.loss_mask)
        own.append((float(likelihood(log_probs, batch, model.vocabulary_size)[1]), batch.n_tokens))
    nll, tokens = 0.0, 0
    # in a fixed order, so that the sum is always the same
    for of_batch, count in processes.gather_dealt(own) if shared else own:
        nll, tokens = nll + of_batch, tokens + count
    perplexity = metrics.perplexity(-nll, tokens)
    return [metrics.Score("loss", nll / max(tokens, 1), perplexity.signature), perplexity]


def evaluate_test_set(
    run: Run,
    device: torch.device,
    notify: Notify = ignore,
    threads: int | None = None,
    write: bool = True,
) -> ScoredAnswers | None:
    """Decodes and scores the test set of a run's recipe; returns None if the recipe has no test set.

    With `write`, answers and scores are written into the run's folder. A task without answers is
    scored by loss and perplexity on the stored test set.
    """
    files = run.recipe.data.splits().get("test")
    if files is None:
        return None
    examples = list(read_pairs(files))
    # Training may have used fewer threads because they were faster there; decoding can use more.
    threads = threads or devices.cpu_threads()
    options = DecodingOptions(device=str(device), threads=threads, workers=1)
    recipe, task = run.recipe, TASKS.get(run.recipe.task)
    system = open_system(run, options)
    result = answer_and_score(
        task, system, examples, recipe.test_metrics, recipe.evaluation.options
    )
    if not recipe.test_metrics:
        result = replace(result, scores=_fit(system, Store.open(run.folder.data, "test"), recipe))
    elif write:
        atomic_write_text(
            run.folder.test_output, "".join(text + "\n" for text in result.answers.texts)
        )
    for direction, scores in _scores_by_direction(
        recipe, files, result, recipe.test_metrics
    ).items():
        result.scores.extend(replace(score, name=f"{score.name} {direction}") for score in scores)
    if (
        result.scores
        and files.alignment
        and isinstance(system, Translator)
        and system.model.has_attention
    ):
        result.scores.append(_alignment_error_rate(system, files, examples, notify))
    if result.scores and write:
        summary = [asdict(score) for score in result.scores]
        write_json(
            run.folder.test_scores,
            {
                "scores": summary,
                "seconds": result.seconds,
                "sources_cut": result.answers.n_truncated,
            },
        )
    return result


def _alignment_error_rate(
    translator: Translator, files: SplitFiles, examples: Sequence[Example], notify: Notify
) -> metrics.Score:
    base = files.alignment_base
    gold = []
    for path in files.alignment:
        read = parse_alignments(read_lines(path), path, base or 0)
        gold += read.pairs
        if base is None and (doubt := read.base_warning):
            notify(
                f"note: {path} was read as if words were counted from 0, but {doubt}; if they are "
                "counted from 1, the AER is wrong. In that case, set `data.test.alignment_base: "
                "1`, and measure the AER of this run with `nmtkit align` and `score-alignments`"
            )

    alignments: list[SoftAlignment] = []
    for (tags, languages), group in groupby(examples, key=lambda one: (one.tags, one.languages)):
        some = list(group)
        reader = replace(translator.in_direction(*languages), tags=tags or translator.tags)
        alignments += reader.align(
            [one.src for one in some],
            [str(one.tgt) for one in some],
            [str(one.src_words) for one in some] if files.src_words else None,
            [str(one.tgt_words) for one in some] if files.tgt_words else None,
            first=some[0].line,
        )
    return metrics.aer([one.links() for one in alignments], gold)[0]


@dataclass(frozen=True)
class ComparedRun:
    """The results of a run on its test set."""

    name: str
    seed: int
    checkpoint: str
    """File name of the tested weights."""
    kind: str
    """Kind of the model."""
    parameters: int
    """Number of parameters; shared parameters count once."""
    bleu: metrics.Score
    long_bleu: metrics.Score | None
    n_long: int
    aer: metrics.Score | None
    """Alignment error rate; None without gold alignments or without attention."""
    training_speed: float
    """Target tokens per second in training: the median of the logged values."""
    training_minutes: float
    search_speed: float
    """Target tokens per second in beam search, including EOS."""
    by_length: list[metrics.LengthBucket]
    outputs: list[str]
    """The run's output for each line of the test set."""
    references: list[str]

    def record(self) -> dict[str, Any]:
        """Returns the results for JSON, without the texts."""
        values = asdict(self)
        del values["outputs"], values["references"]
        return values


def compare_run(
    run: Run, device: torch.device, edges: Sequence[int], threads: int | None = None
) -> ComparedRun:
    """Tests a trained run; writes answers and scores into its folder unless it already has them.

    A sentence is long if its source has more than `LONG_WORDS` words. `edges` holds the maximum
    length, in words, of each range of `by_length` except the last. `threads` defaults to one per core.
    """
    files = require_test_set(run.recipe)
    threads = threads or devices.cpu_threads()  # independent of what an earlier run has set
    translator = open_translator(
        run, DecodingOptions(device=str(device), threads=threads, workers=1)
    )
    translator.translate(pair.src for pair in islice(read_pairs(files), WARM_UP))
    result = evaluate_test_set(
        run, device, threads=threads, write=not run.folder.test_scores.exists()
    )
    assert result is not None
    sources, texts = [example.src for example in result.examples], result.answers.texts
    references = [str(example.tgt) for example in result.examples]
    how = run.recipe.evaluation
    long = metrics.by_length(texts, [references], sources, [LONG_WORDS], how.options)[-1]
    scores = {score.name: score for score in result.scores}
    steps = [event for _, event in MetricsLog(run.folder).read() if isinstance(event, Step)]
    return ComparedRun(
        name=run.recipe.name,
        seed=run.recipe.seed,
        checkpoint=run.weights().name,
        kind=run.recipe.model.kind,
        parameters=translator.parameters,
        bleu=scores["BLEU"],
        long_bleu=long.score,
        n_long=long.count,
        aer=scores.get("AER"),
        training_speed=statistics.median(step.tokens_per_second for step in steps)
        if steps
        else 0.0,
        training_minutes=steps[-1].seconds / 60 if steps else 0.0,
        search_speed=result.answers.n_tokens / max(result.seconds, 1e-9),
        by_length=metrics.by_length(texts, [references], sources, edges, how.options),
        outputs=texts,
        references=references,
    )


FREQUENCIES = {
    "0": 0,
    "1": 1,
    "2 to 4": 2,
    "5 to 9": 5,
    "10 to 99": 10,
    "100 to 999": 100,
    "1,000 and more": 1000,
}
"""Ranges of word frequency in the training text, with the lower bound of each."""


@dataclass(frozen=True)
class Fit:
    """The log-probability that a model assigns to units of a text, such as words."""

    unit: str
    count: int
    log_prob: float
    """Sum over all units, in nats."""

    @property
    def figures(self) -> dict[str, float]:
        """Returns nats, bits and perplexity per unit."""
        nats = -self.log_prob / self.count
        return {
            "nats": nats,
            "bits": nats / math.log(2),
            "perplexity": perplexity(self.log_prob, self.count).value,
        }


def fit_text(
    system: Translator,
    lines: Sequence[str],
    config: BatchConfig,
    counts: Counter[str] | None = None,
) -> tuple[list[Fit], list[Fit]]:
    """Measures the fit per token, word and UTF-8 byte (including newlines), and by word frequency.

    Skips empty lines. `config` defines the blocks; `counts` holds the word counts of the training
    text (see `count_words`).
    """
    system.require_language_model()
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise DataError("there is nothing to measure, because all lines are empty")
    tokenizer = system.tokenizers.tgt
    rows = tokenizer.encode_many(lines)
    lengths = np.array([*map(len, rows)])
    if config.block_tokens is None:
        config = config.changed({"block_tokens": int(lengths.max()) + 1, "across_documents": False})
    if not reserve_positions(system.model, config.block_tokens or 0):
        raise DataError(
            f"the model has fewer than {config.block_tokens} positions; use a smaller "
            "--block-tokens"
        )
    config = config.changed({"batch_tokens": system.batch_budget, "batch_size": None})
    log_probs = _log_probs(system, RunningText(lengths, rows.__getitem__, config))
    words = [word for row in rows for word in (*_words(tokenizer, row), ("", 1))]
    of_words = np.add.reduceat(log_probs, np.cumsum([0, *(size for _, size in words[:-1])]))
    sizes = {
        "token": len(log_probs),
        "word": len(words),
        "byte": sum(len(line.encode()) + 1 for line in lines),
    }
    fits = [Fit(unit, size, float(log_probs.sum())) for unit, size in sizes.items()]
    if counts is None:
        return fits, []
    ranges = np.digitize([counts[word] for word, _ in words], [*FREQUENCIES.values()]) - 1
    ranges[[not word for word, _ in words]] = len(FREQUENCIES)
    parts = [
        (name, of_words[ranges == number])
        for number, name in enumerate([*FREQUENCIES, "end of a line"])
    ]
    return fits, [Fit(name, len(part), float(part.sum())) for name, part in parts if len(part)]


def count_words(tokenizer: Tokenizer, rows: Iterable[Sequence[int]]) -> Counter[str]:
    """Counts the words of a text given as ids."""
    return Counter(word for row in rows for word, _ in _words(tokenizer, row))


def _words(tokenizer: Tokenizer, ids: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Returns the words of a line, each with its number of tokens."""
    pieces = tokenizer.pieces(ids)
    return (("".join(pieces[span.start : span.stop]), len(span)) for span in word_spans(pieces))


@torch.inference_mode()
def _log_probs(system: Translator, text: RunningText) -> npt.NDArray[np.float64]:
    """Returns the log-probability of every position of a text."""
    found: dict[int, npt.NDArray[np.float64]] = {}
    for blocks in text.batches(np.arange(len(text))):
        batch = text.load(blocks)
        scored = system.score_targets(batch, attend=False)[1].double()
        found |= {
            n: row[mask].numpy()
            for n, row, mask in zip(blocks.tolist(), scored, batch.targets.mask, strict=True)
        }
    return np.concatenate([found[number] for number in range(len(text))])
