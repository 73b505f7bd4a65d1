"""What a model looks at while it writes: alignments of words, pictures of attention, views of every head."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from nmtkit import device as devices
from nmtkit.data.alignments import SoftAlignment, merge
from nmtkit.data.batch import Batch, in_order_batches
from nmtkit.data.words import cut, known_ids
from nmtkit.errors import DataError, NmtkitError
from nmtkit.models.base import HeadedModel, headed
from nmtkit.pictures import AttentionPicture, LayeredPicture, SourceWindow
from nmtkit.task import TASKS
from nmtkit.translation.inputs import (
    SourceLine,
    TargetLine,
    TextModel,
    make_batch,
    refuse_one_text,
    require_pairs,
)
from nmtkit.translation.merging import merge_gates, merge_subwords, merge_windows
from nmtkit.translation.result import Translation
from nmtkit.translation.way import BATCH_TOKENS


def align(
    reader: TextModel,
    sources: Sequence[str],
    targets: Sequence[str],
    src_words: Sequence[str] | None = None,
    tgt_words: Sequence[str] | None = None,
    first: int = 1,
) -> list[SoftAlignment]:
    """How much each word of given translations looks at each source word; see `Translator.align`."""
    reader.require_attention("align words by")
    refuse_one_text(sources=sources, targets=targets, src_words=src_words, tgt_words=tgt_words)
    for what, lines in (("target", targets), ("source word", src_words), ("target word", tgt_words)):
        require_pairs(sources, lines, what)
    numbers = range(first, first + len(sources))
    none = [None] * len(sources)
    src = cut(reader.tokenizers.src, sources, src_words or none, [f"source line {number}" for number in numbers])
    tgt = cut(reader.tokenizers.tgt, targets, tgt_words or none, [f"target line {number}" for number in numbers])
    found = [
        SoftAlignment(source.words, target.words, np.zeros((len(target.words), len(source.words))))
        for source, target in zip(src, tgt, strict=True)
    ]

    @torch.no_grad()  # here and not above: it holds in its own thread only
    def work(part: tuple[list[int], Batch]) -> None:
        numbers, batch = part[0], part[1].to(reader.device)
        attention = reader.model.unroll(batch, reader.model.encode(batch), need_attention=True).attention
        assert attention is not None
        for weights, number in zip(attention.float().cpu().numpy(), numbers, strict=True):  # (T,S)
            source, target = src[number], tgt[number]
            merged = merge(weights[: len(target.ids), : len(source.ids)], source.shares, target.shares)
            found[number] = SoftAlignment(source.words, target.words, merged)

    both = [SourceLine(source.ids if target.ids else [], []) for source, target in zip(src, tgt, strict=True)]
    batches = reader.batches(both, [TargetLine(target.ids, target.ids) for target in tgt])
    devices.on_each(work, batches, reader.device)
    return found


def pictures(reader: TextModel, translations: Sequence[Translation]) -> list[AttentionPicture]:
    """The attention of translations as pictures, subwords merged to words.

    Raises:
        DataError: one has no attention, for the tokenizer knows nothing of its source.
    """
    return [_picture(reader, translation, number) for number, translation in enumerate(translations, start=1)]


def _picture(reader: TextModel, translation: Translation, number: int) -> AttentionPicture:
    if translation.attention is None:
        raise _nothing_known(number)
    src_tokens = [*translation.src_tokens, reader.end]
    tgt_tokens = [*translation.tokens, reader.end][: translation.attention.shape[0]]
    src_words, tgt_words, weights = merge_subwords(src_tokens, tgt_tokens, translation.attention.astype(np.float64))
    p_gen, copied = None, frozenset[int]()
    if translation.p_gen is not None and translation.copied is not None:
        places = (token for token, place in enumerate(translation.copied) if place is not None)
        p_gen, copied = merge_gates(tgt_tokens, translation.p_gen, places)
    return AttentionPicture(
        src_words,
        tgt_words,
        weights,
        title=reader.name,
        score=translation.score,
        windows=merge_windows(src_tokens, tgt_tokens, _windows(reader, translation, len(tgt_tokens))),
        p_gen=p_gen,
        copied=copied,
        article=TASKS.get(reader.task).in_one_language,
        left_out=translation.src_left_out,
    )


@torch.no_grad()
def _windows(reader: TextModel, translation: Translation, rows: int) -> list[SourceWindow]:
    """The window of local attention in each row of a translation's attention; none where it is global.

    A pass of its own, since a search does not keep where the centres were.
    """
    half_width = reader.model.window_half_width
    if half_width is None:
        return []
    src = SourceLine(known_ids(reader.tokenizers.src, translation.src_tokens), translation.src_tokens)
    batch = make_batch([src], [reader.target(translation.tokens, src, 1)]).to(reader.device)
    centres = reader.model.unroll(batch, reader.model.encode(batch), need_attention=True).centres  # (1,T)
    assert centres is not None
    return [SourceWindow(centre, half_width) for centre in centres[0, :rows].tolist()]


def require_heads(reader: TextModel) -> HeadedModel:
    """The model, which is one of layers of attention heads.

    Raises:
        NmtkitError: it is not.
    """
    model = headed(reader.model)
    if model is None:
        raise NmtkitError(
            f"the model {reader.name!r} ({reader.model.config.kind}) has no layers of attention heads to draw; "
            "take a transformer, or draw the one attention that this model has"
        )
    return model


@torch.no_grad()
def layered(reader: TextModel, sources: Sequence[str], translations: Sequence[Translation]) -> list[LayeredPicture]:
    """Where every head of every layer looks while the translations of some sources are read.

    Raises:
        NmtkitError: the model has no layers of attention heads.
        DataError: the tokenizer knows nothing of a source.
    """
    model = require_heads(reader)
    src = reader.sources(sources)
    for number, source in enumerate(src, start=1):
        if not source.ids:
            raise _nothing_known(number)
    pairs = zip(translations, src, strict=True)
    tgt = [reader.target(translation.tokens, one, number) for number, (translation, one) in enumerate(pairs, start=1)]
    drawn: dict[int, LayeredPicture] = {}
    few = partial(in_order_batches, batch_tokens=BATCH_TOKENS["cpu"])  # since all weights of all layers are kept
    for numbers, batch in reader.batches(src, tgt, few):
        found = model.attentions(batch.to(reader.device))
        encoder, decoder, cross = (
            torch.stack(side, 1).float().cpu().numpy() for side in (found.encoder, found.decoder, found.cross)
        )  # (B,L,A,S,S), (B,L,A,T,T), (B,L,A,T,S)
        for row, number in enumerate(numbers):
            translation = translations[number]
            tgt_tokens = [*translation.tokens, *([reader.end] if translation.finished else [])]
            columns, rows = len(src[number].ids) + 1, len(tgt_tokens)
            drawn[number] = LayeredPicture(
                [*translation.src_tokens, reader.end],
                tgt_tokens,
                encoder[row, :, :, :columns, :columns],
                decoder[row, :, :, :rows, :rows],
                cross[row, :, :, :rows, :columns],
                title=reader.name,
                score=translation.score,
            )
    return [drawn[number] for number in range(len(sources))]


def positions(reader: TextModel, most: int) -> tuple[NDArray[np.float32], str]:
    """The first position vectors of the model's source `(P,H)`, at most so many, and a title for them.

    Raises:
        NmtkitError: the model has none.
    """
    model = headed(reader.model)
    if model is None:
        raise NmtkitError(
            f"the model {reader.name!r} ({reader.model.config.kind}) has no position vectors to draw; "
            "name a transformer with -m RUN"
        )
    kind, vectors = model.positions(most)
    return vectors.detach().float().cpu().numpy(), f"{reader.name}: {kind} positions"


def _nothing_known(number: int) -> DataError:
    return DataError(f"source line {number} has no letters that the tokenizer knows: there is nothing to draw")
