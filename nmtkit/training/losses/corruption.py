"""Objectives of pretraining that corrupt a text: spans of T5, denoising of BART.

Their task has one text, `tgt`: a line an example, or blocks of running text. The EOS at the end of a text is neither
hidden nor moved; those of the documents within a block are words like others. All rows of a batch are corrupted at
once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from nmtkit.core.errors import DataError
from nmtkit.core.settings import Field, Settings
from nmtkit.data.batches.batch import Batch, CopySource, Inputs, Targets
from nmtkit.data.tokenizers.tokenizer import WORD_START
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, UNK
from nmtkit.training.losses.likelihood import Likelihood
from nmtkit.training.losses.objective import OBJECTIVES

MASK = "<mask>"
"""The special token that stands for hidden words."""
MEAN_SPAN_LENGTH = 3.0
"""Tokens in a hidden span, on average: Raffel et al. 2020, section 3.3.4; lambda of Lewis et al. 2020, section 2.2."""
SENTINEL = "<extra_id_"
"""How the special tokens begin that stand for one hidden span each."""


def texts_of(batch: Batch) -> tuple[Tensor, Tensor]:
    """The ids of the texts to be written `(B,T)`, and how many tokens each has without an EOS at its end, `(B,)`."""
    ids = batch.targets.ids  # (B,T)
    lengths = batch.targets.mask.sum(1)  # (B,)
    last = ids.gather(1, lengths[:, None] - 1).squeeze(1)
    ends_in_eos = last == EOS
    return ids, lengths - ends_in_eos.long()


def whole_texts(batch: Batch) -> Inputs:
    """The targets of a batch as texts to be read: BOS, the text, EOS, `(B,T+1)`; a block of running text after BOS."""
    begin = torch.full_like(batch.targets.ids[:, :1], BOS)
    return inputs_of(torch.cat([begin, batch.targets.ids], 1), 1 + batch.targets.mask.sum(1))


def inputs_of(ids: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Inputs:
    """Inputs of texts `(B,S)` on the CPU, of which so many positions `(B,)` are real; `segments` as in `Inputs`."""
    return Inputs(within(lengths, ids.shape[1]), lengths, ids, segments=segments, copy=CopySource(ids))


def special_id(tokenizers: Tokenizers, token: str = MASK) -> int:
    """The id of a special token of the targets, which the recipe was checked for."""
    return tokenizers.tgt.vocabulary.ids([token])[0]


def within(lengths: Tensor, width: int) -> Tensor:
    """Which of `width` columns are below each length `(B,)`: `(B,width)`, bool."""
    return torch.arange(width) < lengths[:, None]


def pack(pieces: Tensor) -> Inputs:
    """Rows of ids `(B,*)` without what is negative, and with EOS at the end: texts to be read, `(B,S)`."""
    with_end = F.pad(pieces, (0, 1), value=EOS)
    is_token = with_end >= 0
    lengths = is_token.sum(1)  # (B,)
    mask = within(lengths, int(lengths.max()))  # (B,S)
    ids = torch.full(mask.shape, PAD)
    # Row by row from left to right is the order in which a mask reads and writes.
    ids[mask] = with_end[is_token]
    return inputs_of(ids, lengths)


def targets_of(pieces: Tensor) -> Targets:
    """What a model writes, from the arguments of `pack`."""
    text = pack(pieces)
    shifted = F.pad(text.ids, (1, -1), value=BOS).masked_fill(~text.mask, PAD)
    return Targets(shifted, text.ids, text.ids, text.mask)


def choose(eligible: Tensor, counts: Tensor, generator: torch.Generator) -> Tensor:
    """As many of the eligible places `(B,W)` of each row as `counts` `(B,)` says, all subsets being as likely."""
    keys = torch.rand(eligible.shape, generator=generator, dtype=torch.float64)  # (B,W)
    keys.masked_fill_(~eligible, 2.0)
    ordered = F.pad(keys.sort(1).values, (1, 0), value=-1.0)  # (B,W+1): entry n is the n-th smallest
    largest_chosen = ordered.gather(1, counts[:, None])
    return keys <= largest_chosen


@dataclass(frozen=True, kw_only=True)
class Pretraining(Likelihood):
    """The likelihood of what is to be predicted of a corrupted text, in nats a token."""

    replaces_likelihood = True


class SpanCorruptionConfig(Settings):
    """Span corruption (Raffel et al. 2020, sections 3.1.4 and 3.3.4)."""

    rate: float = Field(default=0.15, gt=0, lt=1)
    """Share of the tokens that are hidden, in spans of three tokens on average."""


def random_spans(lengths: Tensor, rate: float, mean_length: float, generator: torch.Generator) -> Tensor:
    """The places to hide in texts of these lengths `(B,)`: `(B,T)`, bool, where T is the largest.

    As in T5: the numbers of hidden tokens and of spans are fixed, `rate` of the tokens and `1 / mean_length` of those.
    Hidden and kept tokens are cut into as many pieces at random, none of them empty, which then alternate, a kept one
    first.
    """
    n_hidden = (lengths * rate).round().long().clamp(min=1)  # (B,) like all numbers of tokens here
    n_hidden = n_hidden.minimum(lengths - 1).clamp(min=0)
    n_kept = lengths - n_hidden
    n_spans = (n_hidden / mean_length).round().long().clamp(min=1)
    n_spans = n_spans.minimum(n_hidden).minimum(n_kept)
    n_cuts = (n_spans - 1).clamp(min=0)

    # First all kept tokens, then all hidden ones, each kind cut into pieces:
    # place   0 1 2 3 4 | 5 6 7        with 5 kept and 3 hidden tokens
    # piece   0 0 1 1 1 | 0 1 1        and two pieces of each
    places = torch.arange(int(lengths.max())).expand(len(lengths), -1)  # (B,T)
    is_hidden = places >= n_kept[:, None]
    is_padding = places >= lengths[:, None]
    may_begin_kept = (places > 0) & ~is_hidden
    may_begin_hidden = (places > n_kept[:, None]) & ~is_padding
    begins = choose(may_begin_kept, n_cuts, generator)
    begins |= choose(may_begin_hidden, n_cuts, generator)
    piece = begins.cumsum(1) - is_hidden * n_cuts[:, None]
    # Sorted by piece, the kept one of each number first, the pieces alternate; odd numbers are hidden.
    order = (2 * piece + is_hidden).masked_fill(is_padding, 2 * places.shape[1])
    return order.sort(1).values % 2 == 1


def hide_spans(ids: Tensor, lengths: Tensor, hidden: Tensor, sentinels: Tensor) -> tuple[Tensor, Tensor]:
    """What is read and what is written if places `hidden` `(B,T)` of texts `(B,T)` are hidden; -1 where nothing is.

    Figure 2 of the paper: of "Thank you for inviting me to your party last week" without the third, fourth and ninth
    word "Thank you <X> me to your party <Y> week" is read, and "<X> for inviting <Y> last <Z>" is written. `sentinels`
    are the ids of <X>, <Y>, ...; DataError if a text needs more of them.
    """
    begins = hidden & ~F.pad(hidden[:, :-1], (1, 0))  # (B,T): the first token of each span
    spans = begins.sum(1)  # (B,)
    most = int(spans.max())
    if most >= len(sentinels):
        raise DataError(
            f"span_corruption: in a text of {int(lengths[spans.argmax()]):,} tokens {most} spans are hidden, "
            f"which takes {most + 1} sentinels, and the tokenizer has {len(sentinels)}: set tokenizer.sentinels to "
            "more, or make texts shorter by batch.block_tokens"
        )
    span = (begins.cumsum(1) - 1).clamp(min=0)  # (B,T): the number of the span
    marks = sentinels[span].masked_fill(~begins, -1)
    is_read = ~hidden & within(lengths, ids.shape[1])
    read = torch.where(begins, marks, ids.masked_fill(~is_read, -1))
    # Each place writes its mark, if a span begins there, and its token, if it is hidden; a last mark ends the text.
    written = torch.stack([marks, ids.masked_fill(~hidden, -1)], 2).flatten(1)  # (B,2T)
    last_marks = sentinels[spans][:, None]
    return read, torch.cat([written, last_marks], 1)


@OBJECTIVES.register("span_corruption")
@dataclass(frozen=True, kw_only=True)
class SpanCorruption(Pretraining):
    """Pretraining as of T5, in place of the likelihood: spans are hidden, and written. Set `tokenizer.sentinels`.

    Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (T5).
    The model reads a text in which spans are replaced by sentinels, and writes the sentinels, each with its span.
    """

    specials = (f"{SENTINEL}0>", f"{SENTINEL}1>")

    Config = SpanCorruptionConfig

    settings: SpanCorruptionConfig

    @override
    def corrupt(self, batch: Batch, generator: torch.Generator, tokenizers: Tokenizers) -> Batch:
        ids, lengths = texts_of(batch)
        hidden = random_spans(lengths, self.settings.rate, MEAN_SPAN_LENGTH, generator)
        names = [name for name in tokenizers.config.special_tokens if name.startswith(SENTINEL)]
        sentinels = torch.tensor(tokenizers.tgt.vocabulary.ids(names))
        read, written = hide_spans(ids[:, : hidden.shape[1]], lengths, hidden, sentinels)
        return replace(batch, inputs=pack(read), targets=targets_of(written))


class DenoisingConfig(Settings):
    """Denoising (Lewis et al. 2020, section 2.2)."""

    rate: float = Field(default=0.3, ge=0, lt=1)
    """Share of the tokens that are hidden, in spans of three tokens on average; 0 hides none."""


def permute_sentences(ids: Tensor, lengths: Tensor, ends: Sequence[int], generator: torch.Generator) -> Tensor:
    """Texts `(B,T)` with their sentences in random order; one ends with a token of `ends`, the last with the text."""
    is_end = torch.isin(ids, torch.tensor(ends))  # (B,T)
    sentence = is_end.cumsum(1) - is_end.long()  # the number of each token's sentence
    sentence_keys = torch.rand(ids.shape, generator=generator, dtype=torch.float64)
    keys = sentence_keys.gather(1, sentence)  # below 1, the same for all tokens of a sentence
    is_padding = ~within(lengths, ids.shape[1])
    order = (keys + is_padding).argsort(stable=True, dim=1)
    return ids.gather(1, order)


def infill(
    ids: Tensor, lengths: Tensor, hidden: Tensor, mean_length: float, mask: int, generator: torch.Generator
) -> Tensor:
    """Texts `(B,T)` with `hidden` `(B,)` of their tokens in spans, each replaced by one `mask`; -1 after their ends.

    The lengths of spans are drawn from a Poisson distribution until they sum up to `hidden`; the last is cut. A span
    of length 0 inserts a mask. Spans and kept tokens stand in an order that is drawn from all orders.
    """
    most_spans = math.ceil(2 * int(hidden.max()) / mean_length) + 20  # more than ever needed
    means = torch.full((len(ids), most_spans), mean_length)
    drawn = torch.poisson(means, generator=generator).long()  # (B,most_spans)
    span_ends = drawn.cumsum(1).minimum(hidden[:, None])  # in hidden tokens
    span_ends[:, -1] = hidden
    span_lengths = span_ends.diff(dim=1, prepend=torch.zeros_like(span_ends[:, :1]))
    span_begins = span_ends - span_lengths
    n_spans = (span_begins < hidden[:, None]).sum(1)  # (B,)

    # The result has a slot for each span and for each token that is kept.
    n_slots = lengths - hidden + n_spans  # (B,)
    is_real = within(n_slots, int(n_slots.max()))  # (B,slots)
    is_span = choose(is_real, n_spans, generator)
    span = (is_span.cumsum(1) - 1).clamp(0, most_spans - 1)  # the number of the span
    tokens_of_slot = torch.where(is_span, span_lengths.gather(1, span), 1)
    last_token = (tokens_of_slot.cumsum(1) - 1).clamp(0, ids.shape[1] - 1)
    filled = torch.where(is_span, mask, ids.gather(1, last_token))
    return filled.masked_fill(~is_real, -1)


@OBJECTIVES.register("denoising")
@dataclass(frozen=True, kw_only=True)
class Denoising(Pretraining):
    """Pretraining as of BART, in place of the likelihood; it needs `tokenizer.specials: [<mask>]`.

    Lewis et al. 2020, "BART: Denoising Sequence-to-Sequence Pre-training for Natural Language ...".
    The model reads a text whose sentences are in another order and whose spans are hidden, and writes it as it was.
    """

    specials = (MASK,)

    Config = DenoisingConfig

    settings: DenoisingConfig

    @override
    def corrupt(self, batch: Batch, generator: torch.Generator, tokenizers: Tokenizers) -> Batch:
        ids, lengths = texts_of(batch)
        vocabulary = tokenizers.tgt.vocabulary
        is_text = within(lengths, ids.shape[1])
        targets = targets_of(ids.masked_fill(~is_text, -1))
        marks = vocabulary.ids([*".!?", *(WORD_START + mark for mark in ".!?")])
        ends = [EOS, *(mark for mark in marks if mark != UNK)]
        ids = permute_sentences(ids, lengths, ends, generator)
        hidden = (lengths * self.settings.rate).round().long()
        read = infill(ids, lengths, hidden, MEAN_SPAN_LENGTH, special_id(tokenizers), generator)
        return replace(batch, inputs=pack(read), targets=targets)
