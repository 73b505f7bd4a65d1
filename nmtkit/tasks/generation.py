"""Tasks whose models write text: an answer is what a search finds."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from typing_extensions import override

from nmtkit.tasks.task import Task, TestResult

if TYPE_CHECKING:
    from nmtkit.data.text.blocks import Example
    from nmtkit.inference.inputs import TextModel
    from nmtkit.inference.result import Translation
    from nmtkit.inference.translator import Translator
    from nmtkit.metrics import Options


@dataclass(frozen=True, kw_only=True)
class GenerationTask(Task):
    """A task whose model writes the `tgt` of an example; a model that reads nothing goes on with a beginning of it."""

    references: str = "tgt"

    @override
    def predict(self, system: "TextModel", examples: Sequence["Example"]) -> Iterator[str]:
        return (one.text for one in self._search(system, examples))

    @override
    def judge(
        self, system: "TextModel", examples: Sequence["Example"], names: Sequence[str], options: "Options"
    ) -> TestResult:
        begun = time.monotonic()
        found = self._search(system, examples) if names else []
        seconds, outputs = time.monotonic() - begun, [one.text for one in found]
        return TestResult(
            examples,
            outputs,
            self.score(outputs, examples, names, options),
            seconds,
            cut=sum(one.src_left_out > 0 for one in found),
            tokens=sum(len(one.token_log_probs) for one in found),
        )

    def _search(self, system: "TextModel", examples: Sequence["Example"]) -> list["Translation"]:
        return [best[0] for best in cast("Translator", system).search(self.read(examples))]
