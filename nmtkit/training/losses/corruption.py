"""Objectives of pretraining that corrupt a text: spans of T5, denoising of BART, permutations of XLNet.

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
from nmtkit.data.batches.batch import ABSENT, Batch, CopySource, Inputs, Targets
from nmtkit.data.tokenizers.tokenizer import WORD_START
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, UNK
from nmtkit.training.losses.likelihood import Likelihood
from nmtkit.training.losses.objective import OBJECTIVES

MASK = "<mask>"
"""The special token that stands for hidden words."""
SENTINEL = "<extra_id_"
"""How the special tokens begin that stand for one hidden span each."""


def texts_of(batch: Batch) -> tuple[Tensor, Tensor]:
    """The ids of the texts to be written `(B,T)`, and how many tokens each has without an EOS at its end, `(B,)`."""
    ids, lengths = batch.targets.ids, batch.targets.mask.sum(1)
    last = ids.gather(1, lengths[:, None] - 1).squeeze(1)
    return ids, lengths - (last == EOS).long()


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
    there = F.pad(pieces >= 0, (0, 1), value=True)
    lengths = there.sum(1)
    mask = within(lengths, int(lengths.max()))
    ids = torch.full(mask.shape, PAD)
    # Row by row from left to right is the order in which a mask reads and writes.
    ids[mask] = F.pad(pieces, (0, 1), value=EOS)[there]
    return inputs_of(ids, lengths)


def targets_of(pieces: Tensor) -> Targets:
    """What a model writes, from the arguments of `pack`."""
    text = pack(pieces)
    shifted = F.pad(text.ids, (1, -1), value=BOS).masked_fill(~text.mask, PAD)
    return Targets(shifted, text.ids, text.ids, text.mask)


def choose(eligible: Tensor, counts: Tensor, generator: torch.Generator) -> Tensor:
    """As many of the eligible places `(B,W)` of each row as `counts` `(B,)` says, all subsets being as likely."""
    keys = torch.rand(eligible.shape, generator=generator, dtype=torch.float64).masked_fill_(~eligible, 2.0)
    largest = F.pad(keys.sort(1).values, (1, 0), value=-1.0).gather(1, counts[:, None])
    return keys <= largest


@dataclass(frozen=True, kw_only=True)
class Pretraining(Likelihood):
    """The likelihood of what is to be predicted of a corrupted text, in nats a token."""

    replaces_likelihood = True


class SpanCorruptionConfig(Settings):
    """Span corruption (Raffel et al. 2020, sections 3.1.4 and 3.3.4)."""

    rate: float = Field(default=0.15, gt=0, lt=1)
    """Share of the tokens that are hidden."""
    mean_length: float = Field(default=3.0, ge=1)
    """Tokens in a hidden span, on average."""


def random_spans(lengths: Tensor, rate: float, mean_length: float, generator: torch.Generator) -> Tensor:
    """The places to hide in texts of these lengths `(B,)`: `(B,T)`, bool, where T is the largest.

    As in T5: the numbers of hidden tokens and of spans are fixed, `rate` of the tokens and `1 / mean_length` of those.
    Hidden and kept tokens are cut into as many pieces at random, none of them empty, which then alternate, a kept one
    first.
    """
    hidden = (lengths * rate).round().long().clamp(min=1).minimum(lengths - 1).clamp(min=0)
    kept = lengths - hidden
    spans = (hidden / mean_length).round().long().clamp(min=1).minimum(hidden).minimum(kept)
    # Places of kept tokens, then of hidden ones: each is numbered by its piece, and the numbers are sorted.
    places = torch.arange(int(lengths.max())).expand(len(lengths), -1)
    is_hidden, cuts = places >= kept[:, None], (spans - 1).clamp(min=0)
    begins = choose((places > 0) & ~is_hidden, cuts, generator)
    begins |= choose((places > kept[:, None]) & (places < lengths[:, None]), cuts, generator)
    pieces = begins.cumsum(1) - is_hidden * cuts[:, None]
    order = (2 * pieces + is_hidden).masked_fill(places >= lengths[:, None], 2 * places.shape[1])
    return order.sort(1).values % 2 == 1


def hide_spans(ids: Tensor, lengths: Tensor, hidden: Tensor, sentinels: Tensor) -> tuple[Tensor, Tensor]:
    """What is read and what is written if places `hidden` `(B,T)` of texts `(B,T)` are hidden; -1 where nothing is.

    Figure 2 of the paper: of "Thank you for inviting me to your party last week" without the third, fourth and ninth
    word "Thank you <X> me to your party <Y> week" is read, and "<X> for inviting <Y> last <Z>" is written. `sentinels`
    are the ids of <X>, <Y>, ...; DataError if a text needs more of them.
    """
    begins = hidden & ~F.pad(hidden[:, :-1], (1, 0))
    spans = begins.sum(1)
    if (most := int(spans.max())) >= len(sentinels):
        raise DataError(
            f"training.span_corruption: in a text of {int(lengths[spans.argmax()]):,} tokens {most} spans are hidden, "
            f"which takes {most + 1} sentinels, and the tokenizer has {len(sentinels)}: set tokenizer.sentinels to "
            "more, or make texts shorter by batch.block_tokens"
        )
    marks = sentinels[(begins.cumsum(1) - 1).clamp(min=0)].masked_fill(~begins, -1)
    read = torch.where(begins, marks, ids.masked_fill(hidden | ~within(lengths, ids.shape[1]), -1))
    written = torch.stack([marks, ids.masked_fill(~hidden, -1)], 2).flatten(1)
    return read, torch.cat([written, sentinels[spans][:, None]], 1)


@OBJECTIVES.register("span_corruption")
@dataclass(frozen=True, kw_only=True)
class SpanCorruption(Pretraining):
    """Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (T5).

    The model reads a text in which spans are replaced by sentinels, and writes the sentinels, each with its span.
    """

    specials = (f"{SENTINEL}0>", f"{SENTINEL}1>")

    settings: SpanCorruptionConfig

    @override
    def corrupt(self, batch: Batch, generator: torch.Generator, tokenizers: Tokenizers) -> Batch:
        ids, lengths = texts_of(batch)
        hidden = random_spans(lengths, self.settings.rate, self.settings.mean_length, generator)
        names = [name for name in tokenizers.config.special_tokens if name.startswith(SENTINEL)]
        sentinels = torch.tensor(tokenizers.tgt.vocabulary.ids(names))
        read, written = hide_spans(ids[:, : hidden.shape[1]], lengths, hidden, sentinels)
        return replace(batch, inputs=pack(read), targets=targets_of(written))


class DenoisingConfig(Settings):
    """Denoising (Lewis et al. 2020, section 2.2)."""

    rate: float = Field(default=0.3, ge=0, lt=1)
    """Share of the tokens that are hidden; 0 hides none."""
    mean_length: float = Field(default=3.0, ge=1)
    """Tokens in a hidden span, on average (lambda of the Poisson distribution of lengths)."""
    permute_sentences: bool = True
    """Put the sentences of a text in a random order. A sentence ends with a token . ! or ? and with a document."""


def permute_sentences(ids: Tensor, lengths: Tensor, ends: Sequence[int], generator: torch.Generator) -> Tensor:
    """Texts `(B,T)` with their sentences in random order; one ends with a token of `ends`, the last with the text."""
    is_end = torch.isin(ids, torch.tensor(ends))
    sentences = is_end.cumsum(1) - is_end.long()
    keys = torch.rand(ids.shape, generator=generator, dtype=torch.float64).gather(1, sentences)
    return ids.gather(1, (keys + ~within(lengths, ids.shape[1])).argsort(stable=True, dim=1))


def infill(
    ids: Tensor, lengths: Tensor, hidden: Tensor, mean_length: float, mask: int, generator: torch.Generator
) -> Tensor:
    """Texts `(B,T)` with `hidden` `(B,)` of their tokens in spans, each replaced by one `mask`; -1 after their ends.

    The lengths of spans are drawn from a Poisson distribution until they sum up to `hidden`; the last is cut. A span
    of length 0 inserts a mask. Spans and kept tokens stand in an order that is drawn from all orders.
    """
    most = math.ceil(2 * int(hidden.max()) / mean_length) + 20  # spans, more than ever needed
    drawn = torch.poisson(torch.full((len(ids), most), mean_length), generator=generator).long()
    ends = drawn.cumsum(1).minimum(hidden[:, None])
    ends[:, -1] = hidden
    spans = ends.diff(dim=1, prepend=torch.zeros_like(ends[:, :1]))
    counts = (ends - spans < hidden[:, None]).sum(1)
    slots = lengths - hidden + counts
    real = within(slots, int(slots.max()))
    is_span = choose(real, counts, generator)
    steps = torch.where(is_span, spans.gather(1, (is_span.cumsum(1) - 1).clamp(0, most - 1)), 1)
    kept = ids.gather(1, (steps.cumsum(1) - 1).clamp(0, ids.shape[1] - 1))
    return torch.where(is_span, mask, kept).masked_fill(~real, -1)


@OBJECTIVES.register("denoising")
@dataclass(frozen=True, kw_only=True)
class Denoising(Pretraining):
    """Lewis et al. 2020, "BART: Denoising Sequence-to-Sequence Pre-training for Natural Language ...".

    The model reads a text whose sentences are in another order and whose spans are hidden, and writes it as it was.
    """

    specials = (MASK,)

    settings: DenoisingConfig

    @override
    def corrupt(self, batch: Batch, generator: torch.Generator, tokenizers: Tokenizers) -> Batch:
        ids, lengths = texts_of(batch)
        vocabulary = tokenizers.tgt.vocabulary
        targets = targets_of(ids.masked_fill(~within(lengths, ids.shape[1]), -1))
        if self.settings.permute_sentences:
            marks = vocabulary.ids(mark + end for mark in (WORD_START, "") for end in ".!?")
            ids = permute_sentences(ids, lengths, [EOS, *(mark for mark in marks if mark != UNK)], generator)
        hidden = (lengths * self.settings.rate).round().long()
        read = infill(ids, lengths, hidden, self.settings.mean_length, special_id(tokenizers), generator)
        return replace(batch, inputs=pack(read), targets=targets)


class PermutationConfig(Settings):
    """Permutation language modelling (Yang et al. 2019, section 2)."""

    predict_one_in: int = Field(default=6, ge=1)
    """One token in so many is predicted, the last ones of the order (K of section 2.3: 6 or 7)."""


@OBJECTIVES.register("permutation")
@dataclass(frozen=True, kw_only=True)
class Permutation(Pretraining):
    """Yang et al. 2019, "XLNet: Generalized Autoregressive Pretraining for Language Understanding", equations 3 and 5.

    The last tokens of a random order are predicted, each from those before it in the order. Those that are not
    predicted, and EOS, see one another, as in the authors' program.
    """

    settings: PermutationConfig

    @override
    def corrupt(self, batch: Batch, generator: torch.Generator, tokenizers: Tokenizers) -> Batch:
        ids, lengths = texts_of(batch)
        inputs = pack(ids.masked_fill(~within(lengths, ids.shape[1]), -1))
        width = inputs.ids.shape[1]
        keys = torch.rand(inputs.ids.shape, generator=generator, dtype=torch.float64)
        order = (keys + ~within(lengths, width)).argsort(1)
        counts = (lengths // self.settings.predict_one_in).clamp(min=1).minimum(lengths)
        turns = torch.arange(int(counts.max())).expand(len(ids), -1)  # (B,Q)
        asked = turns < counts[:, None]
        places = order.gather(1, (lengths - counts)[:, None] + turns * asked)
        ranks = torch.zeros(len(ids), width + 1, dtype=torch.long)
        ranks.scatter_(1, places.masked_fill(~asked, width), turns + 1)
        labels = inputs.ids.gather(1, places).masked_fill(~asked, -1)
        inputs = replace(inputs, order=(ranks[:, :width].contiguous(), places))
        return replace(batch, inputs=inputs, targets=ABSENT, labels=labels)


@OBJECTIVES.register("both_directions")
@dataclass(frozen=True, kw_only=True)
class BothDirections(Pretraining):
    """ELMo, Peters et al. 2018, section 3.1: each token is predicted from those before it, and from those behind it."""

    @override
    def corrupt(self, batch: Batch, generator: torch.Generator, tokenizers: Tokenizers) -> Batch:
        inputs = whole_texts(batch)
        told = F.pad(inputs.mask[:, 1:], (1, 0)), within(inputs.lengths - 1, inputs.ids.shape[1])
        labels = torch.stack([inputs.ids.masked_fill(~one, -1) for one in told], 1)
        return replace(batch, inputs=inputs, targets=ABSENT, labels=labels)
