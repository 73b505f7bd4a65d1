"""What a model looks at while it writes: alignments of words, pictures of attention, views of every head."""

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
from nmtkit.data.text.files.lines import split_sentences
from nmtkit.data.tokenizers.tokenizer import WORD_START
from nmtkit.data.tokenizers.vocabulary import BOS
from nmtkit.data.tokenizers.words import PieceShare, cut_words, display_word_spans, merge_to_words
from nmtkit.inference.inputs import SourceLine, TargetLine, TextModel, make_batch, require_list, require_pairs
from nmtkit.inference.result import Translation
from nmtkit.models.abilities import MultiHeadModel, as_looking_back, as_multi_head, window_half_width

if TYPE_CHECKING:
    from nmtkit.plots import AttentionPicture, FigureStyle, HeadsPicture, SourceWindow
    from nmtkit.plots.documents import DocumentPicture

EXAMPLE_PICTURES: Registry[type[ExamplePicture]] = Registry("picture", {"features": "nmtkit.zoo.captioning.pictures"})
"""How attention over something else than text is drawn, by the column that the model reads."""


class ExamplePicture(ABC):
    """The attention of one answer over an example that is no text."""

    @classmethod
    @abstractmethod
    def of(cls, reader: TextModel, rows: Rows, answer: Translation) -> Self:
        """The picture of an answer, which has attention `(T,S)` if the model has, to rows of numbers `(R,F)`.

        Raises:
            NmtkitError: there is nothing to draw.
        """

    @abstractmethod
    def save(self, path: str | Path, style: FigureStyle) -> None:
        """Writes a figure; its format is that of the path."""


def align(
    reader: TextModel,
    sources: Sequence[str],
    targets: Sequence[str],
    src_words: Sequence[str] | None = None,
    tgt_words: Sequence[str] | None = None,
    first: int = 1,
) -> list[SoftAlignment]:
    """How much each word of given translations looks at each source word; its `links()` are the alignment.

    The model reads the pair, and the row of a target token is its attention in the step that writes the token (a
    Transformer shows the layer that its recipe names). Words are what white space separates: the n-th word of the text
    is word n, whatever the tokenizer makes of it. Tokens are merged to words: the columns of a source word's tokens are
    added, the rows of a target word's tokens averaged. EOS has neither row nor column. A pair with an empty side has no
    weights.

    `src_words` and `tgt_words` are the same lines with white space added between words, if words are to be counted
    otherwise (see `nmtkit.data.tokenizers.words.cut_words`). `first` is the number of the first pair, for messages.
    """
    reader.require_attention("align words by")
    require_list(sources=sources, targets=targets, src_words=src_words, tgt_words=tgt_words)
    for what, lines in (("target", targets), ("source word", src_words), ("target word", tgt_words)):
        require_pairs(sources, lines, what)
    numbers = range(first, first + len(sources))
    none = [None] * len(sources)
    src = cut_words(reader.tokenizers.src, sources, src_words or none, [f"source line {number}" for number in numbers])
    tgt = cut_words(reader.tokenizers.tgt, targets, tgt_words or none, [f"target line {number}" for number in numbers])
    tags = reader.tag_ids(reader.tags)
    alignments = [
        SoftAlignment(
            source.words,
            target.words,
            np.zeros((len(target.words), len(source.words))),
            source.ids_by_word(),
            target.ids_by_word(),
        )
        for source, target in zip(src, tgt, strict=True)
    ]

    @torch.no_grad()  # here and not above: it holds in its own thread only
    def align_batch(part: tuple[list[int], Batch]) -> None:
        numbers, batch = part[0], part[1].to(reader.device)
        attention = reader.model.read(batch, need_attention=True)[0].attention
        assert attention is not None
        for weights, number in zip(attention.float().cpu().numpy(), numbers, strict=True):  # (T,S)
            source, target = src[number], tgt[number]
            merged = merge_to_words(weights[: len(target.ids), len(tags) :], source.shares, target.shares)
            alignments[number] = replace(alignments[number], weights=merged)

    both = [SourceLine([*tags, *s.ids] if s.ids and t.ids else [], []) for s, t in zip(src, tgt, strict=True)]
    batches = reader.batches(both, [TargetLine(target.ids, target.ids) for target in tgt])
    with devices.threads_for(len(src)):
        devices.map_batches(align_batch, batches, reader.device)
    return alignments


def picture(reader: TextModel, translation: Translation, number: int, subwords: bool = False) -> AttentionPicture:
    """The attention of a translation, of the source line of this number.

    Tokens are merged to words with the punctuation after them, unless `subwords` are to be shown apart.
    """
    from nmtkit.plots import AttentionPicture

    if translation.attention is None:
        raise _no_known_letters(number)
    src_tokens = [*translation.src_tokens, reader.end]
    tgt_tokens = [*translation.tokens, reader.end][: translation.attention.shape[0]]
    weights = translation.attention.astype(np.float64)  # (T,S)
    windows = _windows(reader, translation, len(tgt_tokens))
    p_gen: NDArray[np.float64] | None = None  # (T,)
    copied: frozenset[int] = frozenset()
    if translation.p_gen is not None and translation.copied is not None:
        p_gen = np.array(translation.p_gen)
        copied = frozenset(token for token, place in enumerate(translation.copied) if place is not None)
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
        article=reader.articles,
        left_out=translation.src_left_out,
    )


@torch.no_grad()
def _windows(reader: TextModel, translation: Translation, rows: int) -> list[SourceWindow]:
    """The window in each row of a translation's attention, for which the pair is read again; none if global."""
    from nmtkit.plots import SourceWindow

    half_width = window_half_width(reader.model)
    if half_width is None:
        return []
    tags = reader.tag_ids(reader.tags)
    ids = [*tags, *reader.tokenizers.src.vocabulary.text_ids(translation.src_tokens[len(tags) :])]
    src = SourceLine(ids, translation.src_tokens)
    batch = make_batch([src], [reader.encode_target_tokens(translation.tokens, src, 1)]).to(reader.device)
    centres = reader.model.read(batch, need_attention=True)[0].centres  # (1,T)
    assert centres is not None
    return [SourceWindow(centre, centre - half_width, centre + half_width) for centre in centres[0, :rows].tolist()]


@torch.no_grad()
def document_pictures(reader: TextModel, texts: Sequence[str]) -> list[DocumentPicture]:
    """What a classifier looks at in each text, under its label and the label's probability."""
    from nmtkit.plots.documents import DocumentPicture

    reader.require_attention("draw")
    tokenizer, labels, pictures = reader.tokenizers.src, reader.tokenizers.labels, []
    assert labels is not None, "a classifier has labels"
    for number, (text, source) in enumerate(zip(texts, reader.encode_sources(texts), strict=True), start=1):
        cut = split_sentences(text) if tokenizer.config.sentences else [text]
        if source.is_empty or not (sentences := [tokens for tokens in map(tokenizer.tokens, cut) if tokens]):
            raise _no_known_letters(number)
        output, memory = reader.model.read(make_batch([source]).to(reader.device), need_attention=True)
        assert output.attention is not None
        probability, best = reader.model.predict(output, memory)[0].exp().max(-1)
        weights = output.attention[0].double().cpu().numpy()[: source.length]
        words, own, first = [], [], 0
        for tokens in sentences:
            if known := tokens[: max(0, len(weights) - first)]:  # of a text that is not read to its end
                begins = [word.start for word in display_word_spans(known)]
                words.append(_words(known))
                own.append(np.add.reduceat(weights[first : first + len(known)], begins))
            first += len(tokens) + 1  # its end mark
        title = f"{reader.name}: {labels.tokens[int(best)]} ({float(probability):.2f})"
        pictures.append(DocumentPicture(words, own, title=title, left_out=source.left_out))
    return pictures


@torch.no_grad()
def look_back_pictures(reader: TextModel, texts: Sequence[str]) -> list[AttentionPicture]:
    """Where a language model looks among the words before each word of a text: the mean of its layers."""
    from nmtkit.plots import AttentionPicture

    model = as_looking_back(reader.model)
    if model is None:
        kind = reader.outline.config.kind
        raise NmtkitError(f"the language model {reader.name!r} ({kind}) has no look back to draw; name an lstmn")
    pictures = []
    for number, source in enumerate(reader.encode_sources(texts), start=1):
        if source.is_empty:
            raise _no_known_letters(number)
        batch = Batch(targets=Targets.of_texts([source.ids])).to(reader.device)
        read = reader.tokenizers.tgt.vocabulary.tokens[BOS], *source.tokens
        weights = model.history_weights(batch)[0].mean(0).double().cpu().numpy()
        columns, rows, merged = merge_subwords(read, read, weights)
        pictures.append(AttentionPicture(columns, rows, merged, title=reader.name, left_out=source.left_out))
    return pictures


def require_heads(reader: TextModel, what: str = "layers of attention heads") -> MultiHeadModel:
    """The model, which is one of layers of attention heads; raises NmtkitError if it is not."""
    model = as_multi_head(reader.model)
    if model is None:
        kind = reader.outline.config.kind
        raise NmtkitError(f"the model {reader.name!r} ({kind}) has no {what} to draw; name a transformer")
    return model


@torch.no_grad()
def head_pictures(reader: TextModel, sources: Sequence[str], translations: Sequence[Translation]) -> list[HeadsPicture]:
    """Where every head of every layer looks while given translations are read; see `Translator.head_pictures`."""
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
        weights = model.attentions(batch.to(reader.device))
        sides = weights.encoder, weights.decoder, weights.cross  # (B,L,A,S,S), (B,L,A,T,T), (B,L,A,T,S)
        encoder, decoder, cross = (torch.stack(side, 1).float().cpu().numpy() for side in sides)
        for row, number in enumerate(numbers):
            translation, columns = translations[number], len(src[number].ids) + 1
            rows = len(translation.tokens) + translation.finished
            pictures[number] = HeadsPicture(
                [*translation.src_tokens, reader.end],
                [*translation.tokens, reader.end][:rows],
                encoder[row, :, :, :columns, :columns],
                decoder[row, :, :, :rows, :rows],
                cross[row, :, :, :rows, :columns],
                title=reader.name,
                score=translation.score,
                left_out=translation.src_left_out,
            )
    return [pictures[number] for number in range(len(sources))]


def positions(reader: TextModel, most: int) -> tuple[NDArray[np.float32], str]:
    """The first position vectors of the model's source `(P,H)`, at most so many, and a title for them."""
    kind, vectors = require_heads(reader, "position vectors").positions(most)
    return vectors.detach().float().cpu().numpy(), f"{reader.name}: {kind} positions"


def _no_known_letters(number: int) -> DataError:
    return DataError(f"source line {number} has no letters that the tokenizer knows: there is nothing to draw")


def merge_subwords(
    src_pieces: Sequence[str], tgt_pieces: Sequence[str], weights: NDArray[Any]
) -> tuple[list[str], list[str], NDArray[np.float64]]:
    """Joins pieces into displayed words (`display_word_spans`): both sides, and the weights `(T,S)` of words.

    Columns (source) of one word are *added*: looking at a word is looking at any of its pieces. Rows (target) of one
    word are *averaged*: the word looks where its pieces look on average. So rows that sum to one still do.
    """
    shape = (len(tgt_pieces), len(src_pieces))
    assert weights.shape == shape, f"weights {weights.shape} for pieces {shape}"
    return _words(src_pieces), _words(tgt_pieces), merge_to_words(weights, _shares(src_pieces), _shares(tgt_pieces))


def merge_windows(
    src_pieces: Sequence[str], tgt_pieces: Sequence[str], windows: Sequence[SourceWindow]
) -> list[SourceWindow]:
    """Windows over pieces become windows over the words that `merge_subwords` makes of the pieces.

    There is a window for each target piece, in source pieces (0 is the middle of the first one), or none at all. A
    piece is as wide as its word's column divided by its pieces, or as a column outside of the text. The centre of a
    target word is the mean of its pieces' centres, and its window spans all that any of them could see.
    """
    from nmtkit.plots import SourceWindow

    if not windows:
        return []
    assert len(windows) == len(tgt_pieces), f"{len(windows)} windows for {len(tgt_pieces)} pieces"
    # Where words begin and end, in pieces.
    edges = [start - 0.5 for start in (*(word.start for word in display_word_spans(src_pieces)), len(src_pieces))]

    def place(piece: float) -> float:
        outside = min(piece - edges[0], 0.0) + max(piece - edges[-1], 0.0)
        return float(np.interp(piece, edges, np.arange(len(edges)) - 0.5) + outside)

    merged = []
    for word in display_word_spans(tgt_pieces):
        own = [windows[piece] for piece in word]
        centre = sum(place(window.centre) for window in own) / len(own)
        left, right = min(place(window.left) for window in own), max(place(window.right) for window in own)
        merged.append(SourceWindow(centre, left, right))
    return merged


def merge_gates(
    tgt_pieces: Sequence[str], p_gen: Sequence[float], copied: Iterable[int]
) -> tuple[NDArray[np.float64], frozenset[int]]:
    """The p_gen `(T,)` of the words that `merge_subwords` makes, and which were copied, from those of their pieces.

    The pieces with a letter or a digit speak for their word, since a comma that joins a copied name is mostly
    generated; in a word without any, all pieces do. The word's p_gen is the mean of theirs, and the word was copied
    if all of them were.
    """
    assert len(p_gen) == len(tgt_pieces), f"p_gen of {len(p_gen)} for {len(tgt_pieces)} pieces"
    pieces_copied = frozenset(copied)
    merged, words_copied = [], []
    for word, pieces in enumerate(display_word_spans(tgt_pieces)):
        speaking = [i for i in pieces if any(map(str.isalnum, tgt_pieces[i]))] or pieces
        merged.append(sum(p_gen[i] for i in speaking) / len(speaking))
        if pieces_copied.issuperset(speaking):
            words_copied.append(word)
    return np.array(merged), frozenset(words_copied)


def _shares(pieces: Sequence[str]) -> list[PieceShare]:
    return [(word.start, [1.0] * len(word)) for word in display_word_spans(pieces)]


def _words(pieces: Sequence[str]) -> list[str]:
    joined = ("".join(pieces[word.start : word.stop]) for word in display_word_spans(pieces))
    return [word.replace(WORD_START, " ").strip() or WORD_START for word in joined]
