"""Next sentence prediction: Devlin et al. 2019, "BERT", section 3.1, task 2."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from nmtkit.data.batches.batch import ABSENT, Batch, Rows
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD
from nmtkit.layers.elementary import at_least_float32
from nmtkit.models.abilities import auxiliary_logits
from nmtkit.models.base import ModelConfig
from nmtkit.training.losses.corruption import inputs_of, texts_of
from nmtkit.training.losses.objective import OBJECTIVES, InputKind, Objective, ObjectiveInput


@dataclass(frozen=True)
class PairClasses(Rows):
    """Labels: 0 if the second segment belongs to the same text, 1 if it is from a different text."""

    classes: Tensor
    """`(B,)`, int64."""


@OBJECTIVES.register("next_sentence")
@dataclass(frozen=True)
class NextSentence(Objective):
    """Predicts whether the second part is from the same text (class 0) or from another (class 1); mean over texts.

    In the paper, parts are spans of a corpus. Here, each text of the batch (a line or a block) is
    split at a random token, and half of the texts get the second part of a different text, split at
    the same place. A batch with a single text is not changed.
    """

    normalizers: ClassVar = {
        "next_sentence_loss": "sentences",
        "next_sentence_accuracy": "sentences",
    }
    needs: ClassVar[InputKind] = "output"

    @override
    def corrupt(self, batch: Batch, generator: torch.Generator, tokenizers: Tokenizers) -> Batch:
        ids, lengths = texts_of(batch)  # (B,T), (B,)
        own_text = torch.arange(batch.size)  # (B,)
        coin, share = torch.rand((2, batch.size), generator=generator)  # (B,), (B,)
        offset = torch.randint(1, max(2, batch.size), (batch.size,), generator=generator)  # (B,)
        # Segment A is the beginning of the text itself, segment B the end of `b_text`.
        b_text = torch.where(coin < 0.5, (own_text + offset) % batch.size, own_text)  # (B,)
        shorter = lengths.minimum(lengths[b_text])  # (B,)
        cut = (1 + (share * (shorter - 1)).long()).minimum(shorter)[:, None]  # (B,1): tokens of A
        last = lengths[b_text, None] + 2  # (B,1)
        # position   0     1..cut   cut+1   cut+2..last-1   last
        # token      BOS   A        EOS     B               EOS
        position = torch.arange(int(last.max()) + 1)  # (P,)
        joined = torch.where(
            torch.arange(ids.shape[1]) < cut, ids, ids[b_text]
        )  # (B,T): A and B without special tokens
        place_in_joined = position - 1 - (position > cut).long()  # (B,P)
        pairs = joined.gather(1, place_in_joined.clamp(0, ids.shape[1] - 1))  # (B,P)
        pairs = pairs.masked_fill((position == cut + 1) | (position == last), EOS)
        pairs = pairs.masked_fill(position > last, PAD)
        pairs[:, 0] = BOS
        segments = (position > cut + 1) & (position <= last)  # (B,P)
        inputs = inputs_of(pairs, lengths[b_text] + 3, segments.long())
        classes = (b_text != own_text).long()  # (B,)
        return replace(batch, inputs=inputs, targets=ABSENT).with_extra(PairClasses(classes))

    @override
    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        pairs = inputs.device_batch.extra(PairClasses)
        assert pairs is not None, "`corrupt` must create the pairs"
        logits = auxiliary_logits(inputs.model, inputs.device_batch, inputs.output)  # (B,2)
        logits = logits.to(at_least_float32(logits))
        right = (logits.detach().argmax(-1) == pairs.classes).sum(dtype=logits.dtype)
        loss = cross_entropy(logits, pairs.classes, reduction="sum")
        return {"next_sentence_loss": loss, "next_sentence_accuracy": right}

    @classmethod
    @override
    def fault_without(cls, model: ModelConfig, begins_from_run: bool) -> str:
        if begins_from_run:
            return ""
        return (
            "without it, the head that `model.next_sentence: true` adds remains random; set it (1 "
            "in the paper), or set `model.next_sentence` to false"
        )
