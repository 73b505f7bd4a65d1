"""Answers of a trained model to the examples of a task, and the scores of these answers."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from nmtkit.config.tasks.task import GenerationTask, LabellingTask, Task
from nmtkit.core.device import threads_for
from nmtkit.data.batches.batch_stream import bucket_by_length
from nmtkit.data.text.blocks import Example
from nmtkit.inference.inputs import TextModel, make_batch
from nmtkit.inference.requests import Request
from nmtkit.inference.translator import Translator
from nmtkit.metrics import Options, Score, score_all


@dataclass(frozen=True)
class Answers:
    """A model's answers to a list of examples."""

    texts: list[str]
    """The answer to each example; empty if the task has no answers."""
    n_truncated: int = 0
    """Number of sources that were truncated."""
    tokens: int = 0
    """Number of tokens that the search generated, including EOS; 0 if there was no search."""


@dataclass(frozen=True)
class TestResult:
    """A model's answers to a test set, and their scores."""

    examples: Sequence[Example]
    outputs: list[str]
    """The answer to each example; empty if the task has no answers."""
    scores: list[Score]
    """One score per metric; empty if an example lacks its reference."""
    seconds: float
    """Time spent on answering, without opening the model."""
    n_truncated: int = 0
    """Number of sources that were truncated."""
    tokens: int = 0
    """Number of tokens that the search generated, including EOS; 0 if there was no search."""


@dataclass(frozen=True)
class RankedLabel:
    """A label and its probability for an example."""

    label: str
    probability: float


def model_inputs(task: Task, examples: Sequence[Example]) -> list[Any]:
    """Returns the model's input for each example, wrapped in a `Request` if it has tags or languages."""
    column = task.columns[0].name
    lines = []
    for example in examples:
        line = getattr(example, column)
        if example.tags or any(example.languages):
            line = Request(line, tags=example.tags, languages=example.languages)
        lines.append(line)
    return lines


def answer(task: Task, system: TextModel, examples: Sequence[Example]) -> Answers:
    """Returns a model's answers to examples, of which only the task's first column is read.

    Uses `task.predict` if set; otherwise a `GenerationTask` searches, and a `LabellingTask` takes the most probable
    labels. Holds all examples in memory; callers pass large inputs in windows.
    """
    if task.predict is not None:
        return Answers(list(task.predict(system, examples)))
    if isinstance(task, GenerationTask):
        return _search(task, system, examples)
    if isinstance(task, LabellingTask):
        return _label(task, system, examples)
    return Answers([])  # tasks that only have a loss


def _search(task: GenerationTask, system: TextModel, examples: Sequence[Example]) -> Answers:
    # The model of a `GenerationTask` is a decoder, which is always opened as a Translator.
    translator = cast(Translator, system)
    n_best_lists = translator.search(model_inputs(task, examples), need_log_probs=False)
    best = [n_best[0] for n_best in n_best_lists]
    return Answers(
        texts=[translation.text for translation in best],
        n_truncated=sum(translation.src_left_out > 0 for translation in best),
        tokens=sum(len(translation.token_log_probs) for translation in best),
    )


def _label(task: LabellingTask, system: TextModel, examples: Sequence[Example]) -> Answers:
    names = _label_names(system)
    texts = []
    for log_probs in label_log_probs(task, system, examples):
        best = log_probs.argmax(-1)  # () or (S,)
        labels = [names[label] for label in best.view(-1).tolist()]
        texts.append(" ".join(labels))
    return Answers(texts)


def rank_labels(
    task: LabellingTask, system: TextModel, examples: Sequence[Example]
) -> Iterator[list[RankedLabel]]:
    """Yields all labels ranked by probability for each example of a task with one label per example."""
    names = _label_names(system)
    for log_probs in label_log_probs(task, system, examples):
        ranking = log_probs.argsort(descending=True, stable=True).tolist()
        probabilities = log_probs.exp().tolist()
        ranked_labels = []
        for label in ranking:
            ranked_labels.append(RankedLabel(names[label], probabilities[label]))
        yield ranked_labels


def _label_names(system: TextModel) -> Sequence[str]:
    labels = system.tokenizers.labels
    assert labels is not None, "a LabellingTask has a vocabulary of labels"
    return labels.tokens


def label_log_probs(
    task: LabellingTask, system: TextModel, examples: Sequence[Example]
) -> list[Tensor]:
    """Returns each example's log-probabilities of all labels, `(V,)`, or `(S, V)` if each token has a label."""
    requests = [Request.from_line(line) for line in model_inputs(task, examples)]
    lines = system.encode_sources(
        lines=[request.source for request in requests],
        tags=[request.tags or system.tags for request in requests],
        languages=[request.languages for request in requests],
    )
    log_probs_by_line: dict[int, Tensor] = {}
    with torch.inference_mode(), threads_for(len(lines)):
        for numbers in bucket_by_length([line.length + 1 for line in lines], system.batch_budget):
            batch = make_batch([lines[number] for number in numbers]).to(system.device)
            output, memory = system.model.read(batch)
            log_probs = system.model.predict(output, memory).cpu()  # (B, V) or (B, S, V)
            for number, line_log_probs in zip(numbers, log_probs, strict=True):
                if line_log_probs.dim() > 1:
                    line_log_probs = line_log_probs[: lines[number].length]  # EOS has no label
                log_probs_by_line[number] = line_log_probs
    return [log_probs_by_line[number] for number in range(len(lines))]


def answer_and_score(
    task: Task,
    system: TextModel,
    examples: Sequence[Example],
    metrics: Sequence[str],
    metric_options: Options,
) -> TestResult:
    """Returns a model's answers and their scores; without metrics, nothing is answered.

    Loss and perplexity are computed in `nmtkit.experiment.evaluation`.
    """
    start = time.monotonic()
    answers = answer(task, system, examples) if metrics else Answers([])
    seconds = time.monotonic() - start
    return TestResult(
        examples=examples,
        outputs=answers.texts,
        scores=score_answers(task, answers.texts, examples, metrics, metric_options),
        seconds=seconds,
        n_truncated=answers.n_truncated,
        tokens=answers.tokens,
    )


def score_answers(
    task: Task,
    outputs: Sequence[str],
    examples: Sequence[Example],
    metrics: Sequence[str],
    metric_options: Options,
) -> list[Score]:
    """Returns the score of each metric; an empty list if an example lacks its reference.

    `task.references` names the column with the references; it may be empty only if there are no metrics.
    """
    if not metrics:
        return []
    references = [getattr(example, task.references) for example in examples]
    if None in references:
        return []
    sources = None
    if any(column.name == "src" for column in task.columns):
        sources = [example.src for example in examples]
    return score_all(
        hyps=task.comparable(outputs),
        refs=[task.comparable(references)],
        metrics=metrics,
        options=metric_options,
        sources=sources,
    )
