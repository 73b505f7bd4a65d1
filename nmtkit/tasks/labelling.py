"""Tasks whose models give labels: one to an example, or one to each of its tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from nmtkit.tasks.task import Task

if TYPE_CHECKING:
    from nmtkit.corpus.blocks import Example
    from nmtkit.translation.inputs import TextModel


@dataclass(frozen=True, kw_only=True)
class LabellingTask(Task):
    """A task whose model predicts the `labels` of an example, judged by accuracy."""

    references: str = "labels"
    validation_metrics: tuple[str, ...] = ("accuracy",)
    test_metrics: tuple[str, ...] = ("accuracy",)

    @override
    def predict(self, system: "TextModel", examples: Sequence["Example"]) -> Iterator[str]:
        import torch

        from nmtkit.data.batch_stream import bucket_by_length
        from nmtkit.translation.inputs import make_batch

        labels, lines = system.tokenizers.labels, system.encode_sources(self.read(examples))
        assert labels is not None, "a task with this column has them"
        texts = [""] * len(lines)
        with torch.inference_mode():
            for numbers in bucket_by_length([line.length + 1 for line in lines], system.batch_budget):
                batch = make_batch([lines[number] for number in numbers]).to(system.device)
                best = system.model.predict(*system.model.read(batch)).argmax(-1).cpu()  # (B,) or (B,S)
                for number, ids in zip(numbers, best, strict=True):
                    own = ids[: lines[number].length] if ids.dim() else ids[None]  # EOS has no label
                    texts[number] = " ".join(labels.tokens[label] for label in own.tolist())
        return iter(texts)
