"""Computes a trained model's answers to the examples of a task, and scores them.

A `system` is an opened model: a `Translator` if the model generates text, otherwise a `TextModel`. Its attribute
`model` is the neural network.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nmtkit.config.tasks.task import GenerationTask, LabellingTask, Task
from nmtkit.core.device import threads_for
from nmtkit.data.batches.batch_stream import bucket_by_length
from nmtkit.data.text.blocks import Example
from nmtkit.inference.constraints.requests import InputLine, Request
from nmtkit.inference.inputs import SourceLine, TextModel, make_batch
from nmtkit.inference.translator import Translator
from nmtkit.metrics import Options, Score, score_all


@dataclass(frozen=True)
class Answers:
    """A model's answers to a list of examples."""

    texts: list[str]
    """The answer to each example; empty if no answers were computed."""
    n_truncated: int = 0
    """Number of sources that were truncated; 0 if the answers come from `task.predict`.

    If the task labels each token, the answers to truncated sources lack labels for the omitted tokens.
    """
    n_tokens: int = 0
    """Number of tokens that the search generated, including EOS; 0 if there was no search."""


@dataclass(frozen=True)
class ScoredAnswers:
    """A model's answers to a test or validation set, and their scores."""

    examples: Sequence[Example]
    answers: Answers
    """The answers to the examples; their `texts` are empty if there are no metrics."""
    scores: list[Score]
    """One score per metric; empty if there are no metrics, or if any example lacks a reference."""
    seconds: float
    """Time spent on answering, excluding the time to open the model."""


@dataclass(frozen=True)
class RankedLabel:
    """A label and its probability for an example."""

    label: str
    probability: float


def model_inputs(task: Task, examples: Sequence[Example]) -> list[InputLine]:
    """Returns the model's input for each example, wrapped in a `Request` if the example has tags or languages."""
    column = task.columns[0].name
    lines: list[InputLine] = []
    for example in examples:
        line = getattr(example, column)
        if example.tags or any(example.languages):
            line = Request(line, tags=example.tags, languages=example.languages)
        lines.append(line)
    return lines


def answer(task: Task, system: TextModel, examples: Sequence[Example]) -> Answers:
    """Returns a model's answers to examples; reads only the task's first column.

    Calls `task.predict` if it is set. Otherwise a `GenerationTask` searches for the best text, and a `LabellingTask`
    chooses the most probable labels. All answers are held in memory, so callers split large inputs into windows.
    """
    if task.predict is not None:
        return Answers(list(task.predict(system, examples)))
    if isinstance(task, GenerationTask):
        return _answer_by_search(task, system, examples)
    if isinstance(task, LabellingTask):
        return _answer_by_labels(task, system, examples)
    return Answers([])  # tasks that only have a loss


def _answer_by_search(
    task: GenerationTask, system: TextModel, examples: Sequence[Example]
) -> Answers:
    assert isinstance(system, Translator), "the model of a GenerationTask is a decoder"
    n_best_lists = system.search(model_inputs(task, examples), need_scores=False)
    # Each list has one translation, which may be empty.
    best = [n_best[0] for n_best in n_best_lists]
    # `token_log_probs` has an entry for each generated token, including EOS, though it may be NaN.
    n_tokens = sum(len(translation.token_log_probs) for translation in best)
    return Answers(
        texts=[translation.text for translation in best],
        n_truncated=sum(translation.src_left_out > 0 for translation in best),
        n_tokens=n_tokens,
    )


def _answer_by_labels(
    task: LabellingTask, system: TextModel, examples: Sequence[Example]
) -> Answers:
    names = _label_names(system)
    sources = _encode_examples(task, system, examples)
    texts = []
    for log_probs in _log_probs_of_sources(system, sources):
        best = log_probs.argmax(-1)  # () or (S,)
        labels = [names[label_id] for label_id in best.view(-1).tolist()]
        texts.append(" ".join(labels))
    return Answers(texts, n_truncated=sum(source.left_out > 0 for source in sources))


def rank_labels(
    task: LabellingTask, system: TextModel, examples: Sequence[Example]
) -> list[list[RankedLabel]]:
    """Returns all labels ranked by probability for each example of a task with one label per example."""
    names = _label_names(system)
    rankings = []
    for log_probs in label_log_probs(task, system, examples):
        assert log_probs.dim() == 1, "the task must have one label per example"
        label_ids = log_probs.argsort(descending=True, stable=True).tolist()
        probabilities = log_probs.exp().tolist()
        ranked_labels = []
        for label_id in label_ids:
            ranked_labels.append(RankedLabel(names[label_id], probabilities[label_id]))
        rankings.append(ranked_labels)
    return rankings


def _label_names(system: TextModel) -> Sequence[str]:
    labels = system.tokenizers.labels
    assert labels is not None, "a LabellingTask has a vocabulary of labels"
    return labels.tokens


def label_log_probs(
    task: LabellingTask, system: TextModel, examples: Sequence[Example]
) -> list[Tensor]:
    """Returns the log-probabilities of the L labels for each example: `(L,)`, or `(S, L)` if each token has a label."""
    return _log_probs_of_sources(system, _encode_examples(task, system, examples))


def _encode_examples(
    task: LabellingTask, system: TextModel, examples: Sequence[Example]
) -> list[SourceLine]:
    requests = [Request.from_line(line) for line in model_inputs(task, examples)]
    return system.encode_sources(
        lines=[request.source for request in requests],
        # An example's tags replace the model's.
        tags=[request.tags or system.tags for request in requests],
        languages=[request.languages for request in requests],
    )


def _log_probs_of_sources(system: TextModel, sources: Sequence[SourceLine]) -> list[Tensor]:
    log_probs_by_index: dict[int, Tensor] = {}
    lengths = [source.length + 1 for source in sources]  # texts end with EOS
    with torch.inference_mode(), threads_for(len(sources)):
        for indices in bucket_by_length(lengths, system.batch_budget):
            batch = make_batch([sources[index] for index in indices]).to(system.device)
            # The same steps as in `Model.forward`.
            output, memory = system.model.read(batch)
            log_probs = system.model.predict(output, memory).cpu()  # (B, L) or (B, S, L)
            for index, source_log_probs in zip(indices, log_probs, strict=True):
                if source_log_probs.dim() > 1:
                    # Drop the rows of EOS and padding, which have no label. The source has no tags, because recipes
                    # with one label per token do not allow any.
                    source_log_probs = source_log_probs[: sources[index].length]
                log_probs_by_index[index] = source_log_probs
    return [log_probs_by_index[index] for index in range(len(sources))]


def answer_and_score(
    task: Task,
    system: TextModel,
    examples: Sequence[Example],
    metrics: Sequence[str],
    metric_options: Options,
) -> ScoredAnswers:
    """Returns a model's answers and their scores. If `metrics` is empty, no answers are computed.

    Loss and perplexity are computed in `nmtkit.experiment.evaluation`.
    """
    start = time.monotonic()
    answers = answer(task, system, examples) if metrics else Answers([])
    seconds = time.monotonic() - start
    return ScoredAnswers(
        examples=examples,
        answers=answers,
        scores=score_answers(
            task=task,
            answers=answers.texts,
            examples=examples,
            metrics=metrics,
            metric_options=metric_options,
        ),
        seconds=seconds,
    )


def score_answers(
    task: Task,
    answers: Sequence[str],
    examples: Sequence[Example],
    metrics: Sequence[str],
    metric_options: Options,
) -> list[Score]:
    """Returns a score for each metric; an empty list if any example lacks a reference, as in some test sets.

    `task.references` names the column with the references. A task without references has no metrics.
    """
    if not metrics:
        return []
    assert task.references, "metrics need references"
    references = [getattr(example, task.references) for example in examples]
    if None in references:
        return []
    sources = None
    has_source_text = any(column.name == "src" for column in task.columns)
    if has_source_text:
        sources = [example.src for example in examples]
    return score_all(
        hyps=task.comparable(answers),
        refs=[task.comparable(references)],
        metrics=metrics,
        options=metric_options,
        sources=sources,
    )
