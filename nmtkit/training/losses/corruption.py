"""Pretraining objectives that corrupt text: span corruption (T5) and denoising (BART).

These objectives are for tasks with only one side, `tgt`: one line per example, or blocks of running text. The EOS at
the end of a text is neither hidden nor moved; an EOS between the documents of a block counts as a word. All rows of a
batch are corrupted at once.

Notation: B texts, T positions in a text, S positions in a corrupted text.
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
"""Special token that replaces hidden words."""
MEAN_SPAN_LENGTH = 3.0
"""Mean number of tokens in a hidden span (Raffel et al. 2020, section 3.3.4; lambda in Lewis et al. 2020, section
2.2)."""
SENTINEL = "<extra_id_"
"""Common prefix of the special tokens that replace hidden spans."""


def texts_of(batch: Batch) -> tuple[Tensor, Tensor]:
    """Returns the target ids `(B, T)`, and the text lengths `(B,)` without counting a final EOS."""
    ids = batch.targets.ids  # (B, T)
    lengths = batch.targets.mask.sum(1)  # (B,)
    last_ids = ids.gather(1, lengths[:, None] - 1).squeeze(1)  # (B,)
    ends_in_eos = last_ids == EOS  # (B,)
    return ids, lengths - ends_in_eos.long()


def whole_texts(batch: Batch) -> Inputs:
    """Returns the targets as inputs `(B, T+1)`: BOS, text, EOS; a block of running text has no EOS at its end."""
    targets = batch.targets
    begin = torch.full_like(targets.ids[:, :1], BOS)  # (B, 1)
    ids = torch.cat([begin, targets.ids], 1)  # (B, T+1)
    lengths = 1 + targets.mask.sum(1)  # (B,)
    return inputs_of(ids, lengths)


def inputs_of(ids: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Inputs:
    """Converts texts `(B, S)` on the CPU, with `lengths` `(B,)`, to inputs; `segments` as in `Inputs`."""
    mask = length_mask(lengths, ids.shape[1])  # (B, S)
    return Inputs(mask=mask, lengths=lengths, ids=ids, segments=segments, copy=CopySource(ids))


def special_id(tokenizers: Tokenizers, token: str = MASK) -> int:
    """Returns the id of a special target token; validation of the recipe has ensured that it exists."""
    return tokenizers.tgt.vocabulary.ids([token])[0]


def length_mask(lengths: Tensor, width: int) -> Tensor:
    """Returns a mask `(B, width)` that is True in the first `lengths` `(B,)` columns of each row."""
    return torch.arange(width) < lengths[:, None]


def pack(ids: Tensor) -> Inputs:
    """Removes negative ids from rows `(B, *)`, appends EOS, and returns the rows as inputs `(B, S)`."""
    with_eos = F.pad(ids, (0, 1), value=EOS)  # (B, *+1)
    is_token = with_eos >= 0  # (B, *+1)
    lengths = is_token.sum(1)  # (B,)
    mask = length_mask(lengths, int(lengths.max()))  # (B, S)
    packed = torch.full(mask.shape, PAD)  # (B, S)
    # Indexing with a mask reads and writes row by row, from left to right. Both masks select the same number of
    # entries in each row, so the tokens keep their row and their order.
    packed[mask] = with_eos[is_token]
    return inputs_of(packed, lengths)


def targets_of(ids: Tensor) -> Targets:
    """Converts rows of ids to targets; negative ids are removed, and EOS is appended, as in `pack`."""
    text = pack(ids)
    shifted = F.pad(text.ids, (1, -1), value=BOS)  # (B, T): BOS in front, the last column removed
    shifted = shifted.masked_fill(~text.mask, PAD)
    return Targets(shifted=shifted, ids=text.ids, extended=text.ids, mask=text.mask)


def choose(eligible: Tensor, counts: Tensor, generator: torch.Generator) -> Tensor:
    """Chooses `counts` `(B,)` of the eligible positions `(B, W)` in each row; each such subset is equally likely."""
    # Each position gets a random key; the positions with the smallest keys are chosen.
    keys = torch.rand(eligible.shape, generator=generator, dtype=torch.float64)  # (B, W), below 1
    keys.masked_fill_(~eligible, 2.0)
    sorted_keys = keys.sort(1).values  # (B, W)
    # Column n is the n-th smallest key. Column 0 is below all keys, so that a count of 0 chooses nothing.
    thresholds = F.pad(sorted_keys, (1, 0), value=-1.0)  # (B, W+1)
    largest_chosen = thresholds.gather(1, counts[:, None])  # (B, 1)
    return keys <= largest_chosen


@dataclass(frozen=True, kw_only=True)
class Pretraining(Likelihood):
    """Likelihood of the targets that an objective derives from a corrupted text, in nats per token."""

    replaces_likelihood = True


class SpanCorruptionConfig(Settings):
    """Span corruption (Raffel et al. 2020, sections 3.1.4 and 3.3.4)."""

    rate: float = Field(default=0.15, gt=0, lt=1)
    """Share of tokens that are hidden, in spans of three tokens on average (Raffel et al. 2020, section 3.3.3)."""


def random_spans(
    lengths: Tensor, rate: float, mean_length: float, generator: torch.Generator
) -> Tensor:
    """Returns a mask `(B, T)` of the positions to hide in texts of lengths `(B,)`, where T is the largest length.

    As in T5, the numbers of hidden tokens and of spans are not random: a fraction `rate` of the tokens is hidden, with
    one span for every `mean_length` hidden tokens. Visible and hidden tokens are each cut at random into as many
    non-empty pieces as there are spans. The pieces alternate, starting with a visible one.
    """
    n_hidden = (lengths * rate).round().long()  # (B,)
    n_hidden = n_hidden.clamp(min=1)
    n_hidden = n_hidden.minimum(lengths - 1)  # at least one token stays visible
    n_hidden = n_hidden.clamp(min=0)  # an empty text has no tokens to hide
    n_visible = lengths - n_hidden  # (B,)
    n_spans = (n_hidden / mean_length).round().long()  # (B,)
    n_spans = n_spans.clamp(min=1)
    n_spans = n_spans.minimum(n_hidden)  # no hidden piece is empty
    n_spans = n_spans.minimum(n_visible)  # no visible piece is empty
    n_cuts = (n_spans - 1).clamp(min=0)  # (B,)

    # The visible tokens come first, then the hidden ones, each kind cut into pieces. For example, with two pieces each:
    # position    0 1 2 3 4   5 6 7
    # hidden      0 0 0 0 0   1 1 1
    # piece       0 0 1 1 1   0 1 1
    max_length = int(lengths.max())
    positions = torch.arange(max_length).expand(len(lengths), -1)  # (B, T)
    is_hidden = positions >= n_visible[:, None]  # (B, T)
    is_padding = positions >= lengths[:, None]  # (B, T)
    # The first token of each kind begins piece 0, so no cut is needed there.
    can_cut_visible = (positions > 0) & ~is_hidden  # (B, T)
    can_cut_hidden = (positions > n_visible[:, None]) & ~is_padding  # (B, T)
    cuts = choose(can_cut_visible, n_cuts, generator)  # (B, T)
    cuts |= choose(can_cut_hidden, n_cuts, generator)
    # `cumsum` does not restart at the first hidden token, so the cuts in the visible tokens are subtracted.
    piece = cuts.cumsum(1) - is_hidden * n_cuts[:, None]  # (B, T)

    # Visible piece n has key 2n, hidden piece n has key 2n + 1, and padding has an even key above all others. Sorting
    # the keys makes the pieces alternate, and the positions with odd keys are hidden.
    keys = 2 * piece + is_hidden  # (B, T)
    keys = keys.masked_fill(is_padding, 2 * max_length)
    sorted_keys = keys.sort(1).values  # (B, T)
    return sorted_keys % 2 == 1


def hide_spans(
    ids: Tensor, lengths: Tensor, hidden: Tensor, sentinels: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the ids that the model reads and the ids that it generates; -1 means no token.

    Figure 2 of the paper hides words 3, 4 and 9 of "Thank you for inviting me to your party last week". The model
    reads "Thank you <X> me to your party <Y> week" and generates "<X> for inviting <Y> last <Z>".

    Args:
        ids: texts `(B, T)`.
        lengths: text lengths `(B,)`.
        hidden: mask of the positions to hide, `(B, T)`.
        sentinels: ids of <X>, <Y>, ...

    Raises:
        DataError: a text needs more sentinels than there are.
    """
    before = F.pad(hidden[:, :-1], (1, 0))  # (B, T): whether the previous position is hidden
    begins = hidden & ~before  # (B, T)
    n_spans = begins.sum(1)  # (B,)
    max_spans = int(n_spans.max())
    if max_spans >= len(sentinels):
        longest = int(lengths[n_spans.argmax()])
        raise DataError(
            f"span_corruption: hiding {max_spans} spans in a text of {longest:,} tokens requires {max_spans + 1} "
            f"sentinels, but the tokenizer has {len(sentinels)}; raise tokenizer.sentinels, or shorten the texts with "
            "batch.block_tokens"
        )
    span = (begins.cumsum(1) - 1).clamp(min=0)  # (B, T): index of the last span that has begun
    marks = sentinels[span].masked_fill(~begins, -1)  # (B, T)
    is_visible = ~hidden & length_mask(lengths, ids.shape[1])  # (B, T)
    visible = ids.masked_fill(~is_visible, -1)  # (B, T)
    input_ids = torch.where(begins, marks, visible)  # (B, T)
    # Each position writes a sentinel if a span begins there, followed by its token if it is hidden.
    hidden_ids = ids.masked_fill(~hidden, -1)  # (B, T)
    target_ids = torch.stack([marks, hidden_ids], 2).flatten(1)  # (B, 2T)
    last_marks = sentinels[n_spans][:, None]  # (B, 1), at the end of the text
    return input_ids, torch.cat([target_ids, last_marks], 1)


@OBJECTIVES.register("span_corruption")
@dataclass(frozen=True, kw_only=True)
class SpanCorruption(Pretraining):
    """Pretraining as in T5, which replaces the likelihood: the model generates hidden spans.

    Requires `tokenizer.sentinels`.

    Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (T5). The
    model reads a text in which sentinels replace spans, and generates each sentinel followed by its span.
    """

    specials = (f"{SENTINEL}0>", f"{SENTINEL}1>")

    Config = SpanCorruptionConfig

    settings: SpanCorruptionConfig

    @override
    def corrupt(self, batch: Batch, generator: torch.Generator, tokenizers: Tokenizers) -> Batch:
        ids, lengths = texts_of(batch)  # (B, T), (B,)
        hidden = random_spans(
            lengths=lengths,
            rate=self.settings.rate,
            mean_length=MEAN_SPAN_LENGTH,
            generator=generator,
        )  # (B, W), where W is T, or T-1 without the column of the EOS
        ids = ids[:, : hidden.shape[1]]  # (B, W)
        special_tokens = tokenizers.config.special_tokens
        sentinels = [token for token in special_tokens if token.startswith(SENTINEL)]
        sentinel_ids = torch.tensor(tokenizers.tgt.vocabulary.ids(sentinels))  # (sentinels,)
        input_ids, target_ids = hide_spans(
            ids=ids, lengths=lengths, hidden=hidden, sentinels=sentinel_ids
        )  # (B, W), (B, 2W+1)
        return replace(batch, inputs=pack(input_ids), targets=targets_of(target_ids))


class DenoisingConfig(Settings):
    """Denoising (Lewis et al. 2020, section 2.2)."""

    rate: float = Field(default=0.3, ge=0, lt=1)
    """Share of tokens that are masked, in spans of three tokens on average; 0.3 in Lewis et al. 2020, and 0
    masks none."""


def permute_sentences(
    ids: Tensor, lengths: Tensor, ends: Sequence[int], generator: torch.Generator
) -> Tensor:
    """Returns texts `(B, T)` with their sentences in random order.

    Each id in `ends` ends a sentence; the last sentence extends to the end of the text.
    """
    is_end = torch.isin(ids, torch.tensor(ends))  # (B, T)
    sentence = is_end.cumsum(1) - is_end.long()  # (B, T): index of the token's sentence
    sentence_keys = torch.rand(
        ids.shape, generator=generator, dtype=torch.float64
    )  # (B, T), for at most T sentences
    keys = sentence_keys.gather(1, sentence)  # (B, T)
    # Random keys are below 1, so adding 1 keeps the padding at the end.
    keys = keys + ~length_mask(lengths, ids.shape[1])
    # The sort is stable, so the tokens of a sentence, which have the same key, stay in order.
    order = keys.argsort(stable=True, dim=1)  # (B, T)
    return ids.gather(1, order)


def infill(
    ids: Tensor,
    lengths: Tensor,
    hidden: Tensor,
    mean_length: float,
    mask: int,
    generator: torch.Generator,
) -> Tensor:
    """Replaces random spans of texts `(B, T)` with one `mask` each; returns rows of ids, padded with -1.

    In each text, `hidden` `(B,)` tokens are hidden. Span lengths are drawn from a Poisson distribution until they add
    up to `hidden`; the last span is shortened to fit. A span of length 0 inserts a mask. All ways to place the spans
    among the visible tokens are equally probable.
    """
    max_spans = math.ceil(2 * int(hidden.max()) / mean_length) + 20  # practically never too few
    means = torch.full((len(ids), max_spans), mean_length)  # (B, max_spans)
    drawn_lengths = torch.poisson(means, generator=generator).long()  # (B, max_spans)
    # Span ends are counted in hidden tokens. Once a span reaches `hidden`, all later ones are empty and do not count.
    span_ends = drawn_lengths.cumsum(1)  # (B, max_spans)
    span_ends = span_ends.minimum(hidden[:, None])
    span_ends[:, -1] = hidden
    span_begins = F.pad(span_ends[:, :-1], (1, 0))  # (B, max_spans): the end of the previous span
    span_lengths = span_ends - span_begins  # (B, max_spans)
    n_spans = (span_begins < hidden[:, None]).sum(1)  # (B,)

    # The result has a slot for each span and for each visible token.
    n_slots = lengths - hidden + n_spans  # (B,)
    is_slot = length_mask(n_slots, int(n_slots.max()))  # (B, slots)
    is_span = choose(is_slot, n_spans, generator)  # (B, slots)
    span = is_span.cumsum(1) - 1  # (B, slots): index of the span
    span = span.clamp(0, max_spans - 1)  # arbitrary before the first span
    # number of text tokens in each slot
    slot_lengths = torch.where(is_span, span_lengths.gather(1, span), 1)  # (B, slots)
    last_position = (
        slot_lengths.cumsum(1) - 1
    )  # (B, slots): position in the text of the slot's last token
    last_position = last_position.clamp(0, ids.shape[1] - 1)
    last_token = ids.gather(1, last_position)  # (B, slots)
    filled = torch.where(is_span, mask, last_token)  # (B, slots)
    return filled.masked_fill(~is_slot, -1)


@OBJECTIVES.register("denoising")
@dataclass(frozen=True, kw_only=True)
class Denoising(Pretraining):
    """Pretraining as in BART, which replaces the likelihood; requires `tokenizer.specials: [<mask>]`.

    Lewis et al. 2020, "BART: Denoising Sequence-to-Sequence Pre-training for Natural Language ...". The model reads a
    text with permuted sentences and hidden spans, and generates the original text.
    """

    specials = (MASK,)

    Config = DenoisingConfig

    settings: DenoisingConfig

    @override
    def corrupt(self, batch: Batch, generator: torch.Generator, tokenizers: Tokenizers) -> Batch:
        ids, lengths = texts_of(batch)  # (B, T), (B,)
        is_token = length_mask(lengths, ids.shape[1])  # (B, T)
        targets = targets_of(ids.masked_fill(~is_token, -1))

        # Sentences end with one of these punctuation marks. If the mark is a separate word, subword tokenizers put a
        # word-start mark before it.
        marks = [".", "!", "?", WORD_START + ".", WORD_START + "!", WORD_START + "?"]
        mark_ids = tokenizers.tgt.vocabulary.ids(marks)
        ends = [EOS]  # separates the documents in a block
        ends += [mark_id for mark_id in mark_ids if mark_id != UNK]
        ids = permute_sentences(ids, lengths, ends=ends, generator=generator)

        n_hidden = (lengths * self.settings.rate).round().long()  # (B,)
        corrupted = infill(
            ids=ids,
            lengths=lengths,
            hidden=n_hidden,
            mean_length=MEAN_SPAN_LENGTH,
            mask=special_id(tokenizers),
            generator=generator,
        )
        return replace(batch, inputs=pack(corrupted), targets=targets)
