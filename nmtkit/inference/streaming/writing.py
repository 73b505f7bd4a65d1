"""The write stage: converts the hypotheses of a line to translations."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nmtkit.inference.constraints.terms import unmet_constraints
from nmtkit.inference.inputs import SourceLine
from nmtkit.inference.result import Translation, merge_and_rerank
from nmtkit.inference.streaming.job_queue import Job

if TYPE_CHECKING:
    from nmtkit.inference.streaming.decoders import SearchOutputs
    from nmtkit.inference.translator import Translator


def write_job(translator: Translator, outputs: SearchOutputs, job: Job) -> list[Translation]:
    """Converts a decoded job's hypotheses to translations, best first."""
    assert job.hypotheses is not None
    if job.unsupported:
        # Reported here and not by the decoder, because this function runs in the caller's thread.
        translator.report_once("lines", f"engine nmtkit for some lines, first: {job.unsupported}")
    source = job.source
    translations = []
    for hypothesis in job.hypotheses:
        translation = translator.translation(hypothesis, source)
        if translator.replacer is not None:
            translation = _with_unknown_replaced(translator, translation, source)
        if source.request is not None:
            unmet = unmet_constraints(source.request, translator.tokenizers.tgt, translation.text)
            translation = replace(translation, unmet_constraints=tuple(unmet))
        translations.append(translation)
    if translator.config.needs_all_hypotheses:
        translations = merge_and_rerank(translations, translator.config)[: outputs.n_best]
    if not outputs.attention:
        for number, translation in enumerate(translations):
            if translation.attention is not None:
                translations[number] = replace(translation, attention=None)
    return translations


def _with_unknown_replaced(
    translator: Translator, translation: Translation, source: SourceLine
) -> Translation:
    # The replacer tokenizes the line again, so it needs the tokenizers for the languages of the line.
    replacer = translator.in_direction(*source.languages).replacer
    assert replacer is not None
    assert translation.attention is not None
    source_length = len(translation.src_tokens)
    text, replaced = replacer.replace_unknowns(
        line=source.text,
        tokens=translation.tokens,
        attention=translation.attention[:, :source_length],  # (T, S), without the column of EOS
        n_tags=source.tags,
    )
    return replace(translation, text=text, replaced=replaced)
