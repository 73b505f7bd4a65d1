"""Views of a model's attention: word alignments, pictures, and the attention of each head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from nmtkit.core import device as devices
from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.core.registry import Registry
from nmtkit.data.batches.batch import Batch, Targets
from nmtkit.data.text.alignments import SoftAlignment
from nmtkit.data.text.features import Rows
from nmtkit.data.text.sentences import split_sentences
from nmtkit.data.tokenizers.tokenizer import WORD_START
from nmtkit.data.tokenizers.vocabulary import BOS
from nmtkit.data.tokenizers.words import PieceShare, cut_words, display_word_spans, merge_to_words
from nmtkit.inference.inputs import (
    SourceLine,
    TargetLine,
    TextModel,
    make_batch,
    require_list,
    require_pairs,
)
from nmtkit.inference.result import Translation
from nmtkit.models.abilities import (
    MultiHeadModel,
    as_looking_back,
    as_multi_head,
    window_half_width,
)

if TYPE_CHECKING:
    from nmtkit.plots import AttentionPicture, FigureStyle, HeadsPicture, SourceWindow
    from nmtkit.plots.documents import DocumentPicture

EXAMPLE_PICTURES: Registry[type[ExamplePicture]] = Registry(
    "picture", {"features": "nmtkit.zoo.captioning.pictures"}
)
"""Pictures of attention over inputs other than text, by the name of the column that the model reads."""


class ExamplePicture(ABC):
    """A picture of an answer's attention to an example that is not text."""

    @classmethod
    @abstractmethod
    def from_answer(cls, reader: TextModel, rows: Rows, answer: Translation) -> Self:
        """Makes a picture of an example's rows of numbers `(R, F)` and the model's answer.

        Raises:
            NmtkitError: there is nothing to draw.
        """

    @abstractmethod
    def save(self, path: str | Path, style: FigureStyle) -> None:
        """Saves the picture in the format that the file name implies."""


def align(
    reader: TextModel,
    sources: Sequence[str],
    targets: Sequence[str],
    src_words: Sequence[str] | None = None,
    tgt_words: Sequence[str] | None = None,
    first: int = 1,
) -> list[SoftAlignment]:
    """Returns how strongly each target word attends to each source word; `SoftAlignment.links` derives hard links.

    The model reads both sides of each pair. The row of a target token is the attention in the step that generates the
    token (in a Transformer, the attention of the layer that the recipe selects). Words are separated by whitespace,
    regardless of how the tokenizer splits the text. Tokens are merged into words: the columns of a source word's tokens
    are summed, and the rows of a target word's tokens are averaged. EOS has no row or column. If one side of a pair is
    empty, all its weights are zero.

    Args:
        reader: the model.
        sources: source lines.
        targets: a translation of each source.
        src_words: the source lines with additional spaces between words, if whitespace alone does not separate the
            words; see `nmtkit.data.tokenizers.words.cut_words`.
        tgt_words: the target lines with additional spaces between words.
        first: number of the first pair, for messages.
    """
    reader.require_attention("align words")
    require_list(sources=sources, targets=targets, src_words=src_words, tgt_words=tgt_words)
    for what, lines in (
        ("target", targets),
        ("source word", src_words),
        ("target word", tgt_words),
    ):
        require_pairs(sources, lines, what)
    pair_numbers = range(first, first + len(sources))
    not_segmented = [None] * len(sources)
    src = cut_words(
        reader.tokenizers.src,
        lines=sources,
        segmented=src_words or not_segmented,
        places=[f"source line {number}" for number in pair_numbers],
    )
    tgt = cut_words(
        reader.tokenizers.tgt,
        lines=targets,
        segmented=tgt_words or not_segmented,
        places=[f"target line {number}" for number in pair_numbers],
    )
    tags = reader.tag_ids(reader.tags)
    alignments = []
    src_lines = []
    tgt_lines = []
    for source, target in zip(src, tgt, strict=True):
        alignment = SoftAlignment(
            src_words=source.words,
            tgt_words=target.words,
            # Stays zero if a side is empty.
            weights=np.zeros((len(target.words), len(source.words))),  # (T, S)
            src_ids=source.ids_by_word(),
            tgt_ids=target.ids_by_word(),
        )
        alignments.append(alignment)
        has_both_sides = bool(source.ids and target.ids)
        src_lines.append(SourceLine([*tags, *source.ids] if has_both_sides else [], tokens=[]))
        tgt_lines.append(TargetLine(target.ids, target.ids))

    # The inner function is decorated because `no_grad` applies only to the thread that enters it.
    @torch.no_grad()
    def align_batch(numbered_batch: tuple[list[int], Batch]) -> None:
        numbers, batch = numbered_batch
        output, _ = reader.model.read(batch.to(reader.device), need_attention=True)
        assert output.attention is not None
        attention = output.attention.float().cpu().numpy()  # (B, T', S'), tokens
        for weights, number in zip(attention, numbers, strict=True):
            source = src[number]
            target = tgt[number]
            # Leave out the target's EOS and the source's tags.
            weights_of_text = weights[: len(target.ids), len(tags) :]
            merged = merge_to_words(weights_of_text, source.shares, target.shares)  # (T, S), words
            alignments[number] = replace(alignments[number], weights=merged)

    with devices.threads_for(len(src)):
        devices.map_batches(align_batch, reader.batches(src_lines, tgt_lines), reader.device)
    return alignments


def picture(
    reader: TextModel, translation: Translation, number: int, subwords: bool = False
) -> AttentionPicture:
    """Returns a picture of the attention between a translation and its source.

    Args:
        reader: the model.
        translation: a translation with attention.
        number: number of the source line, for messages.
        subwords: whether to show tokens; if False, they are merged into words, with punctuation attached to the
            preceding word.
    """
    from nmtkit.plots import AttentionPicture

    if translation.attention is None:
        raise _no_known_letters(number)
    src_tokens = [*translation.src_tokens, reader.eos_token]
    tgt_tokens = [*translation.tokens, reader.eos_token][: translation.attention.shape[0]]
    weights = translation.attention.astype(np.float64)  # (T, S)
    windows = _windows(reader, translation, len(tgt_tokens))
    p_gen: NDArray[np.float64] | None = None  # (T,)
    copied: frozenset[int] = frozenset()  # rows of copied tokens
    if translation.p_gen is not None and translation.copied is not None:
        p_gen = np.array(translation.p_gen)
        copied = frozenset(
            row for row, origin in enumerate(translation.copied) if origin is not None
        )
    columns: Sequence[str] = src_tokens
    rows: Sequence[str] = tgt_tokens
    if not subwords:
        columns, rows, weights = merge_subwords(src_tokens, tgt_tokens, weights)
        windows = merge_windows(src_tokens, tgt_tokens, windows)
        if p_gen is not None:
            p_gen, copied = merge_gates(tgt_tokens, p_gen.tolist(), copied)
    return AttentionPicture(
        columns,
        rows,
        weights,
        title=reader.name,
        score=translation.score,
        windows=windows,
        p_gen=p_gen,
        copied=copied,
        article=reader.reads_articles,
        left_out=translation.src_left_out,
    )


@torch.no_grad()
def _windows(reader: TextModel, translation: Translation, rows: int) -> list[SourceWindow]:
    """Returns the source window of each attention row; an empty list if the attention is global.

    A search does not return the windows' centres, so the model reads the pair again.
    """
    from nmtkit.plots import SourceWindow

    half_width = window_half_width(reader.model)
    if half_width is None:
        return []
    tags = reader.tag_ids(reader.tags)
    text_tokens = translation.src_tokens[len(tags) :]
    text_ids = reader.tokenizers.src.vocabulary.text_ids(text_tokens)
    source = SourceLine([*tags, *text_ids], translation.src_tokens)
    target = reader.encode_target_tokens(translation.tokens, source, number=1)
    batch = make_batch([source], [target]).to(reader.device)
    output, _ = reader.model.read(batch, need_attention=True)
    assert output.centres is not None  # (1, T)
    windows = []
    for centre in output.centres[0, :rows].tolist():
        windows.append(SourceWindow(centre, centre - half_width, centre + half_width))
    return windows


@torch.no_grad()
def document_pictures(reader: TextModel, texts: Sequence[str]) -> list[DocumentPicture]:
    """Returns a picture of a classifier's attention over each text, titled with the text's most probable label."""
    from nmtkit.plots.documents import DocumentPicture

    reader.require_attention("show attention")
    tokenizer = reader.tokenizers.src
    labels = reader.tokenizers.labels
    assert labels is not None, "a classifier has labels"
    pictures = []
    for number, (text, source) in enumerate(
        zip(texts, reader.encode_sources(texts), strict=True), start=1
    ):
        sentences = split_sentences(text) if tokenizer.config.sentences else [text]
        tokens_by_sentence = [tokens for tokens in map(tokenizer.tokens, sentences) if tokens]
        if source.is_empty or not tokens_by_sentence:
            raise _no_known_letters(number)
        output, memory = reader.model.read(
            make_batch([source]).to(reader.device), need_attention=True
        )
        assert output.attention is not None  # (1, S)
        probability, label = reader.model.predict(output, memory)[0].exp().max(-1)
        weights = output.attention[0].double().cpu().numpy()[: source.length]  # (S,)
        words_by_sentence = []
        weights_by_sentence = []
        first = 0  # index of the sentence's first token in the text
        for tokens in tokens_by_sentence:
            # The model may have truncated the text.
            read_tokens = tokens[: max(0, len(weights) - first)]
            if read_tokens:
                word_starts = [word.start for word in display_word_spans(read_tokens)]
                sentence_weights = weights[first : first + len(read_tokens)]
                words_by_sentence.append(_words(read_tokens))
                # The weight of a word is the sum of its tokens' weights.
                weights_by_sentence.append(np.add.reduceat(sentence_weights, word_starts))
            first += len(tokens) + 1  # plus the end-of-sentence token
        picture = DocumentPicture(
            words_by_sentence,
            weights_by_sentence,
            title=f"{reader.name}: {labels.tokens[int(label)]} ({float(probability):.2f})",
            left_out=source.left_out,
        )
        pictures.append(picture)
    return pictures


@torch.no_grad()
def look_back_pictures(reader: TextModel, texts: Sequence[str]) -> list[AttentionPicture]:
    """Returns a picture of a language model's attention to the earlier words of each text, averaged over layers."""
    from nmtkit.plots import AttentionPicture

    model = as_looking_back(reader.model)
    if model is None:
        kind = reader.outline.config.kind
        raise NmtkitError(
            f"the attention of the language model {reader.name!r} ({kind}) to earlier words cannot be shown; "
            "use an lstmn"
        )
    pictures = []
    for number, source in enumerate(reader.encode_sources(texts), start=1):
        if source.is_empty:
            raise _no_known_letters(number)
        batch = Batch(targets=Targets.of_texts([source.ids])).to(reader.device)
        inputs = [reader.tokenizers.tgt.vocabulary.tokens[BOS], *source.tokens]
        layer_weights = model.history_weights(batch)[0]  # (L, T, T)
        weights = layer_weights.mean(0).double().cpu().numpy()  # (T, T)
        columns, rows, merged = merge_subwords(inputs, inputs, weights)
        picture = AttentionPicture(
            columns, rows, merged, title=reader.name, left_out=source.left_out
        )
        pictures.append(picture)
    return pictures


def require_heads(reader: TextModel, what: str = "multi-head attention layers") -> MultiHeadModel:
    """Returns the model; raises an NmtkitError if it has no layers of multi-head attention."""
    model = as_multi_head(reader.model)
    if model is None:
        kind = reader.outline.config.kind
        raise NmtkitError(
            f"the model {reader.name!r} ({kind}) has no {what} to draw; use a transformer"
        )
    return model


@torch.no_grad()
def head_pictures(
    reader: TextModel, sources: Sequence[str], translations: Sequence[Translation]
) -> list[HeadsPicture]:
    """Returns a picture of each translation's attention in all heads of all layers; see `Translator.head_pictures`."""
    from nmtkit.plots import HeadsPicture

    model = require_heads(reader)
    src = reader.encode_sources(sources)
    tgt = []
    for number, (source, translation) in enumerate(zip(src, translations, strict=True), start=1):
        if not source.ids:
            raise _no_known_letters(number)
        tgt.append(reader.encode_target_tokens(translation.tokens, source, number))
    pictures: dict[int, HeadsPicture] = {}
    for numbers, batch in reader.batches(src, tgt):
        attentions = model.attentions(batch.to(reader.device))
        encoder = torch.stack(attentions.encoder, 1).float().cpu().numpy()  # (B, L, A, S, S)
        decoder = torch.stack(attentions.decoder, 1).float().cpu().numpy()  # (B, L, A, T, T)
        cross = torch.stack(attentions.cross, 1).float().cpu().numpy()  # (B, L, A, T, S)
        for row, number in enumerate(numbers):
            translation = translations[number]
            src_length = len(src[number].ids) + 1  # with EOS
            # A finished translation also has EOS.
            tgt_length = len(translation.tokens) + translation.finished
            pictures[number] = HeadsPicture(
                src_tokens=[*translation.src_tokens, reader.eos_token],
                tgt_tokens=[*translation.tokens, reader.eos_token][:tgt_length],
                encoder=encoder[row, :, :, :src_length, :src_length],
                decoder=decoder[row, :, :, :tgt_length, :tgt_length],
                cross=cross[row, :, :, :tgt_length, :src_length],
                title=reader.name,
                score=translation.score,
                left_out=translation.src_left_out,
            )
    return [pictures[number] for number in range(len(sources))]


def positions(reader: TextModel, max_positions: int) -> tuple[NDArray[np.float32], str]:
    """Returns the first P <= `max_positions` source position embeddings, `(P, H)`, and a title for a picture."""
    kind, vectors = require_heads(reader, "position embeddings").positions(max_positions)
    return vectors.detach().float().cpu().numpy(), f"{reader.name}: {kind} positions"


def _no_known_letters(number: int) -> DataError:
    return DataError(
        f"source line {number} contains no text that the tokenizer can encode, "
        "so there is nothing to draw"
    )


def merge_subwords(
    src_pieces: Sequence[str], tgt_pieces: Sequence[str], weights: NDArray[Any]
) -> tuple[list[str], list[str], NDArray[np.float64]]:
    """Merges the pieces of both sides into words for display (see `display_word_spans`), and merges their attention.

    The columns of a source word's pieces are *summed*, since attending to a word means attending to any of its pieces.
    The rows of a target word's pieces are *averaged*. Rows that sum to one still do.

    Args:
        src_pieces: S' source pieces.
        tgt_pieces: T' target pieces.
        weights: attention `(T', S')`.

    Returns:
        S source words, T target words, and the attention `(T, S)`.
    """
    shape = (len(tgt_pieces), len(src_pieces))
    assert weights.shape == shape, f"weights {weights.shape} for pieces {shape}"
    src_words = _words(src_pieces)
    tgt_words = _words(tgt_pieces)
    merged = merge_to_words(weights, _shares(src_pieces), _shares(tgt_pieces))
    return src_words, tgt_words, merged


def merge_windows(
    src_pieces: Sequence[str], tgt_pieces: Sequence[str], windows: Sequence[SourceWindow]
) -> list[SourceWindow]:
    """Converts windows over pieces into windows over the words of `merge_subwords`.

    There must be a window for each target piece, or none at all. Windows are measured in source pieces, with 0 in the
    middle of the first piece. The pieces of a word share the width of the word's column equally; positions outside
    the text are measured in whole columns. A target word's centre is the mean of its pieces' centres, and its window
    covers all of its pieces' windows.
    """
    from nmtkit.plots import SourceWindow

    if not windows:
        return []
    assert len(windows) == len(tgt_pieces), f"{len(windows)} windows for {len(tgt_pieces)} pieces"
    # Left edges of the words, and the right edge of the last word, in pieces and in words.
    word_starts = [word.start for word in display_word_spans(src_pieces)]
    piece_edges = np.array([*word_starts, len(src_pieces)]) - 0.5
    word_edges = np.arange(len(piece_edges)) - 0.5

    def word_position(piece: float) -> float:
        outside = min(piece - piece_edges[0], 0.0) + max(piece - piece_edges[-1], 0.0)
        return float(np.interp(piece, piece_edges, word_edges) + outside)

    merged = []
    for word in display_word_spans(tgt_pieces):
        word_windows = [windows[piece] for piece in word]
        centre = sum(word_position(window.centre) for window in word_windows) / len(word_windows)
        left = min(word_position(window.left) for window in word_windows)
        right = max(word_position(window.right) for window in word_windows)
        merged.append(SourceWindow(centre, left, right))
    return merged


def merge_gates(
    tgt_pieces: Sequence[str], p_gen: Sequence[float], copied: Iterable[int]
) -> tuple[NDArray[np.float64], frozenset[int]]:
    """Computes p_gen for the words of `merge_subwords`, and determines which of them were copied.

    Only pieces with a letter or a digit count, since a comma after a copied name is usually generated. If a word has no
    such pieces, all of its pieces count. A word's p_gen is the mean over these pieces, and the word counts as copied if
    all of them were copied.

    Args:
        tgt_pieces: target pieces.
        p_gen: generation probability of each piece.
        copied: indices of copied pieces.

    Returns:
        The p_gen of each word `(T,)`, and the indices of copied words.
    """
    assert len(p_gen) == len(tgt_pieces), f"p_gen of {len(p_gen)} for {len(tgt_pieces)} pieces"
    pieces_copied = frozenset(copied)
    words_p_gen = []
    words_copied = []
    for word, pieces in enumerate(display_word_spans(tgt_pieces)):
        counted = []
        for piece in pieces:
            if any(map(str.isalnum, tgt_pieces[piece])):
                counted.append(piece)
        counted = counted or list(pieces)
        mean_p_gen = sum(p_gen[piece] for piece in counted) / len(counted)
        words_p_gen.append(mean_p_gen)
        if pieces_copied.issuperset(counted):
            words_copied.append(word)
    return np.array(words_p_gen), frozenset(words_copied)


def _shares(pieces: Sequence[str]) -> list[PieceShare]:
    return [(word.start, [1.0] * len(word)) for word in display_word_spans(pieces)]


def _words(pieces: Sequence[str]) -> list[str]:
    words = []
    for span in display_word_spans(pieces):
        joined = "".join(pieces[span.start : span.stop])
        word = joined.replace(WORD_START, " ").strip()
        words.append(word or WORD_START)
    return words
