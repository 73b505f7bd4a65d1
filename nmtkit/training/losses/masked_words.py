"""Masked words, and what is trained beside them: the next sentence and replaced tokens.

Devlin et al. 2019, "BERT", section 3.1; Clark et al. 2020, "ELECTRA", section 2.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from nmtkit.core.settings import Field, Settings
from nmtkit.data.batches.batch import ABSENT, Batch
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD
from nmtkit.layers.elementary import at_least_float32
from nmtkit.training.losses.corruption import MASK, Pretraining, inputs_of, special_id, texts_of, whole_texts
from nmtkit.training.losses.objective import OBJECTIVES, InputKind, Objective, ObjectiveInput


class MaskedWordsConfig(Settings):
    """Masked words (Devlin et al. 2019, section 3.1): some are hidden, and the model tells them by those around."""

    rate: float = Field(default=0.15, gt=0, lt=1)
    """The probability of each token to be chosen; special ones never are. Only chosen ones are predicted."""
    mask: float = Field(default=0.8, ge=0, le=1)
    """The share of the chosen tokens that become <mask>; 1 in ELECTRA."""
    random: float = Field(default=0.5, ge=0, le=1)
    """The share of the other chosen tokens that become a random one; the rest stay as they are."""


@OBJECTIVES.register("next_sentence")
@dataclass(frozen=True)
class NextSentence(Objective):
    """Whether the second part of a text is its own (class 0) or that of another text (class 1): a mean over texts.

    The paper's parts are spans of a corpus. Here a text of the batch, a line or a block, is cut in two at a random
    token, and in half of the texts the second part is that of another one, cut at the same place. A batch of one text
    keeps it.
    """

    normalizers: ClassVar = {"next_sentence_loss": "sentences", "next_sentence_accuracy": "sentences"}
    needs: ClassVar[InputKind] = "output"

    def corrupt(self, batch: Batch, generator: torch.Generator, tokenizers: Tokenizers) -> Batch:
        """Texts of two segments, BOS A EOS B EOS, and whether B is of another text."""
        ids, words = texts_of(batch)
        texts, (half, share) = torch.arange(batch.size), torch.rand((2, batch.size), generator=generator)
        moved = torch.randint(1, max(2, batch.size), (batch.size,), generator=generator)
        of = torch.where(half < 0.5, (texts + moved) % batch.size, texts)  # (B,): the text that B is of
        shorter = words.minimum(words[of])
        cut = (1 + (share * (shorter - 1)).long()).minimum(shorter)[:, None]  # the words of A
        joined = torch.where(torch.arange(ids.shape[1]) < cut, ids, ids[of])
        place, last = torch.arange(int(words[of].max()) + 3), words[of, None] + 2
        pairs = joined.gather(1, (place - 1 - (place > cut).long()).clamp(0, ids.shape[1] - 1))
        pairs = pairs.masked_fill((place == cut + 1) | (place == last), EOS).masked_fill(place > last, PAD)
        pairs[:, 0] = BOS
        inputs = inputs_of(pairs, words[of] + 3, ((place > cut + 1) & (place <= last)).long())
        return replace(batch, inputs=inputs, targets=ABSENT, next_sentence=(of != texts).long())

    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        """The cross-entropy in nats, and how often the likelier class is right."""
        logits = inputs.model.further_logits(inputs.device_batch, inputs.output)
        classes = inputs.device_batch.next_sentence
        assert classes is not None, "`corrupt` made them"
        logits = logits.to(at_least_float32(logits))  # (B,2)
        right = (logits.detach().argmax(-1) == classes).sum(dtype=logits.dtype)
        loss = cross_entropy(logits, classes, reduction="sum")
        return {"next_sentence_loss": loss, "next_sentence_accuracy": right}


@OBJECTIVES.register("masked_words")
@dataclass(frozen=True, kw_only=True)
class MaskedWords(Pretraining):
    """The mean negative log-likelihood of a chosen word, in nats, given the text with the chosen words hidden.

    Words are chosen independently of each other, so that a batch may have none.
    """

    specials: ClassVar = (MASK,)

    settings: MaskedWordsConfig

    def corrupt(self, batch: Batch, generator: torch.Generator, tokenizers: Tokenizers) -> Batch:
        """The whole texts with words hidden; labels are the chosen ones, -1 elsewhere."""
        vocabulary, settings, mask = tokenizers.tgt.vocabulary, self.settings, special_id(tokenizers)
        inputs = batch.inputs if batch.reads_text else whole_texts(batch)
        draw, how = torch.rand((2, *inputs.ids.shape), generator=generator)
        others = torch.randint(vocabulary.n_specials, len(vocabulary), inputs.ids.shape, generator=generator)
        chosen = (draw < settings.rate) & (inputs.ids >= vocabulary.n_specials)
        replaced = chosen & (how < settings.mask + (1 - settings.mask) * settings.random)
        ids = torch.where(replaced, others, inputs.ids).masked_fill(chosen & (how < settings.mask), mask)
        labels = inputs.ids.masked_fill(~chosen, -1)
        return replace(batch, inputs=replace(inputs, ids=ids), targets=ABSENT, labels=labels)


@OBJECTIVES.register("replaced_tokens")
@dataclass(frozen=True)
class ReplacedTokens(Objective):
    """Replaced-token detection, Clark et al. 2020, section 2: the mean of L_Disc over the real tokens of the texts.

    Words are drawn from the distributions that `masked_words` trains, in their places. A drawn word that is the one
    that was there counts as original. The draws come from torch's generator, whose state a training saves.
    """

    normalizers: ClassVar = {"replaced_loss": "read"}
    needs: ClassVar[InputKind] = "output"

    def counts(self, batch: Batch) -> dict[str, int]:
        """The real tokens."""
        return {"read": int(batch.inputs.mask.sum())}

    def terms(self, inputs: ObjectiveInput) -> dict[str, Tensor]:
        """The binary cross-entropy of all real tokens, in nats."""
        batch, read = inputs.device_batch, inputs.device_batch.inputs
        with torch.no_grad():
            drawn = draw_words(inputs.model.logits(inputs.output.gather(inputs.batch.loss_mask), None))
        ids = read.ids.masked_scatter(batch.loss_mask, drawn)
        replaced = ids != torch.where(batch.loss_mask, batch.labels, read.ids)  # (B,S)
        logits = inputs.model.further_logits(replace(batch, inputs=replace(read, ids=ids)), inputs.output)
        logits = logits.to(at_least_float32(logits))
        each = binary_cross_entropy_with_logits(logits, replaced.to(logits.dtype), reduction="none")
        return {"replaced_loss": (each * read.mask).sum()}


def draw_words(logits: Tensor) -> Tensor:
    """A word `(M,)` from each of the distributions softmax(logits), `(M,V)`: where a uniform draw falls in its sums."""
    sums = torch.softmax(logits, -1, dtype=at_least_float32(logits)).cumsum(-1)
    draws = torch.rand_like(sums[:, :1]) * sums[:, -1:]
    return torch.searchsorted(sums, draws, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
