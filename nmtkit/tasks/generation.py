"""Tasks whose models write text: an answer is what a search finds."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from typing_extensions import override

from nmtkit.tasks.task import Task, TestResult

if TYPE_CHECKING:
    from nmtkit.corpus.blocks import Example
    from nmtkit.corpus.config import SplitFiles
    from nmtkit.metrics import Options, Score
    from nmtkit.translation.inputs import TextModel
    from nmtkit.translation.translator import Translator


@dataclass(frozen=True, kw_only=True)
class GenerationTask(Task):
    """A task whose model writes the `tgt` of an example; a model that reads nothing goes on with a beginning of it."""

    references: str = "tgt"

    @override
    def predict(self, system: "TextModel", examples: Sequence["Example"]) -> Iterator[str]:
        return iter(cast("Translator", system).translate(self._read(examples)))

    def _read(self, examples: Sequence["Example"]) -> list[str]:
        """What the model reads of each example, as the Translator takes it."""
        return [getattr(example, self.columns[0].name) for example in examples]

    @override
    def test(
        self,
        system: "TextModel",
        examples: Sequence["Example"],
        files: "SplitFiles",
        names: Sequence[str],
        options: "Options",
        notify: Callable[[str], None],
    ) -> TestResult:
        """As in `Task`; the alignment error rate comes last, if the test set names gold alignments."""
        if not self.references:
            return super().test(system, examples, files, names, options, notify)
        translator = cast("Translator", system)
        begun = time.monotonic()
        found = [best[0] for best in translator.search(self._read(examples))]
        result = TestResult(
            examples,
            outputs=[one.text for one in found],
            scores=[],
            seconds=time.monotonic() - begun,
            cut=sum(one.src_left_out > 0 for one in found),
            tokens=sum(len(one.token_log_probs) for one in found),
        )
        scores = self.score(result.outputs, examples, names, options)
        if scores and files.alignment and translator.model.has_attention:
            scores.append(_alignment_error_rate(translator, files, examples, notify))
        return replace(result, scores=scores)


def _alignment_error_rate(
    translator: "Translator", files: "SplitFiles", examples: Sequence["Example"], notify: Callable[[str], None]
) -> "Score":
    from nmtkit.corpus.alignments import parse_alignments
    from nmtkit.corpus.text import read_lines
    from nmtkit.metrics import aer

    base = files.alignment_base
    gold = []
    for path in files.alignment:
        read = parse_alignments(read_lines(path), path, base or 0)
        gold += read.pairs
        if base is None and (doubt := read.base_warning):
            notify(
                f"note: {path} was read as counting words from 0, but {doubt}; if it counts from 1, the AER is wrong: "
                "set data.test.alignment_base: 1 (and measure this run with `nmtkit align` and `score-alignments`)"
            )
    alignments = translator.align(
        [example.src for example in examples],
        [str(example.tgt) for example in examples],
        [str(example.src_words) for example in examples] if files.src_words else None,
        [str(example.tgt_words) for example in examples] if files.tgt_words else None,
    )
    return aer([one.links() for one in alignments], gold)[0]
