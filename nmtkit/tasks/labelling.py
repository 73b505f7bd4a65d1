"""Tasks whose models give labels: one to an example, or one to each of its tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from nmtkit.tasks.task import Task

if TYPE_CHECKING:
    from torch import Tensor

    from nmtkit.data.text.blocks import Example
    from nmtkit.inference.inputs import TextModel


@dataclass(frozen=True)
class RankedLabel:
    """A label that an example could have."""

    label: str
    probability: float


@dataclass(frozen=True, kw_only=True)
class LabellingTask(Task):
    """A task whose model predicts the `labels` of an example, judged by accuracy."""

    references: str = "labels"
    validation_metrics: tuple[str, ...] = ("accuracy",)
    test_metrics: tuple[str, ...] = ("accuracy",)

    @override
    def predict(self, system: "TextModel", examples: Sequence["Example"]) -> Iterator[str]:
        labels = system.tokenizers.labels
        assert labels is not None, "a task with this column has them"
        for log_probs in self.distributions(system, examples):
            best = log_probs.argmax(-1)  # () or (S,)
            yield " ".join(labels.tokens[label] for label in best.view(-1).tolist())

    def rank(self, system: "TextModel", examples: Sequence["Example"]) -> Iterator[list[RankedLabel]]:
        """All labels for each example, the most probable first; of a task with one label to an example."""
        labels = system.tokenizers.labels
        assert labels is not None, "a task with this column has them"
        for log_probs in self.distributions(system, examples):
            order, probabilities = log_probs.argsort(descending=True, stable=True).tolist(), log_probs.exp().tolist()
            yield [RankedLabel(labels.tokens[one], probabilities[one]) for one in order]

    def distributions(self, system: "TextModel", examples: Sequence["Example"]) -> Iterator["Tensor"]:
        """The log-probabilities of all labels for each example `(V,)`, or for each of its tokens `(S,V)`."""
        import torch

        from nmtkit.core.device import threads_for
        from nmtkit.data.batches.batch_stream import bucket_by_length
        from nmtkit.inference.inputs import make_batch
        from nmtkit.inference.requests import Request

        read = [Request.of(one) for one in self.read(examples)]
        lines = system.encode_sources(
            [one.source for one in read], [one.tags or system.tags for one in read], [one.languages for one in read]
        )
        found: dict[int, Tensor] = {}
        with torch.inference_mode(), threads_for(len(lines)):
            for numbers in bucket_by_length([line.length + 1 for line in lines], system.batch_budget):
                batch = make_batch([lines[number] for number in numbers]).to(system.device)
                log_probs = system.model.predict(*system.model.read(batch)).cpu()  # (B,V) or (B,S,V)
                for number, own in zip(numbers, log_probs, strict=True):
                    found[number] = own[: lines[number].length] if own.dim() > 1 else own  # EOS has no label
        return (found[number] for number in range(len(lines)))
