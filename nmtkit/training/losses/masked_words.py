"""Masked words: Devlin et al. 2019, "BERT", section 3.1."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from nmtkit.core.settings import Field, Settings
from nmtkit.data.batches.batch import ABSENT, Batch
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.training.losses.corruption import MASK, Pretraining, special_id, whole_texts
from nmtkit.training.losses.objective import OBJECTIVES

RANDOM_SHARE = 0.5
"""The share of the chosen tokens without <mask> that become a random one; the rest stay as they are."""


class MaskedWordsConfig(Settings):
    """Masked words (Devlin et al. 2019, section 3.1): some are hidden, and the model tells them by those around."""

    rate: float = Field(default=0.15, gt=0, lt=1)
    """The probability of each token to be chosen; special ones never are. Only chosen ones are predicted."""
    mask: float = Field(default=0.8, ge=0, le=1)
    """The share of the chosen tokens that become <mask>; 1 in ELECTRA. Half of the others become a random token."""


@OBJECTIVES.register("masked_words")
@dataclass(frozen=True, kw_only=True)
class MaskedWords(Pretraining):
    """Pretraining as of BERT, in place of the likelihood: hidden words are predicted; `{}` is the paper's.

    The mean negative log-likelihood of a chosen word, in nats, given the text with the chosen words hidden.
    Words are chosen independently of each other, so that a batch may have none.
    """

    specials: ClassVar = (MASK,)

    Config = MaskedWordsConfig

    settings: MaskedWordsConfig

    def corrupt(self, batch: Batch, generator: torch.Generator, tokenizers: Tokenizers) -> Batch:
        """The whole texts with words hidden; labels are the chosen ones, -1 elsewhere."""
        vocabulary = tokenizers.tgt.vocabulary
        settings = self.settings
        inputs = batch.inputs if batch.reads_text else whole_texts(batch)
        shape = inputs.ids.shape  # (B,S)
        choice, treatment = torch.rand((2, *shape), generator=generator)
        random_words = torch.randint(vocabulary.n_specials, len(vocabulary), shape, generator=generator)
        is_chosen = (choice < settings.rate) & (inputs.ids >= vocabulary.n_specials)
        # A chosen word is hidden, replaced by a random one, or left as it is.
        is_hidden = is_chosen & (treatment < settings.mask)
        is_replaced = is_chosen & (treatment < settings.mask + (1 - settings.mask) * RANDOM_SHARE)
        ids = torch.where(is_replaced, random_words, inputs.ids)
        ids = ids.masked_fill(is_hidden, special_id(tokenizers))
        labels = inputs.ids.masked_fill(~is_chosen, -1)
        return replace(batch, inputs=replace(inputs, ids=ids), targets=ABSENT, labels=labels)
