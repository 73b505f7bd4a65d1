"""Masked language modelling (Devlin et al. 2019, "BERT", section 3.1)."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from nmtkit.core.settings import Field, Settings
from nmtkit.data.batches.batch import ABSENT, Batch
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.training.losses.corruption import MASK, Pretraining, special_id, whole_texts
from nmtkit.training.losses.objective import OBJECTIVES

RANDOM_SHARE = 0.5
"""Share of the chosen but unmasked tokens that are replaced by random tokens; the others stay unchanged."""


class MaskedWordsConfig(Settings):
    """Masked language modelling (Devlin et al. 2019, section 3.1): the model predicts hidden words from the others."""

    rate: float = Field(default=0.15, gt=0, lt=1)
    """Probability that a token is chosen; special tokens never are. Only chosen tokens are predicted."""
    mask: float = Field(default=0.8, ge=0, le=1)
    """Share of chosen tokens that are replaced by <mask> (1 in ELECTRA); of the rest, half become random tokens and
    half stay unchanged."""


@OBJECTIVES.register("masked_words")
@dataclass(frozen=True, kw_only=True)
class MaskedWords(Pretraining):
    """Pretraining as in BERT, which replaces the likelihood: predicts hidden words; `{}` selects the paper's settings.

    The loss is the mean negative log-likelihood of a chosen word, in nats, given the text with hidden words.
    Words are chosen independently of each other, so a batch may have none.
    """

    specials: ClassVar = (MASK,)

    Config = MaskedWordsConfig

    settings: MaskedWordsConfig

    def corrupt(self, batch: Batch, generator: torch.Generator, tokenizers: Tokenizers) -> Batch:
        """Returns whole texts with hidden words; the labels are the chosen words, and -1 elsewhere."""
        vocabulary = tokenizers.tgt.vocabulary
        settings = self.settings
        inputs = batch.inputs if batch.reads_text else whole_texts(batch)
        shape = inputs.ids.shape  # (B, S): texts, positions
        choice, treatment = torch.rand((2, *shape), generator=generator)  # (B, S), (B, S)
        random_words = torch.randint(
            vocabulary.n_specials, len(vocabulary), shape, generator=generator
        )  # (B, S)
        is_word = inputs.ids >= vocabulary.n_specials  # (B, S)
        is_chosen = is_word & (choice < settings.rate)  # (B, S)

        # A chosen word becomes <mask> or a random word, or stays unchanged. `treatment` is uniform:
        # 0         mask             mask + random_share       1
        # |  <mask>  |  random word         |     unchanged    |
        random_share = (1 - settings.mask) * RANDOM_SHARE
        is_hidden = is_chosen & (treatment < settings.mask)  # (B, S)
        is_replaced = is_chosen & (
            treatment < settings.mask + random_share
        )  # (B, S), including the hidden words
        ids = torch.where(is_replaced, random_words, inputs.ids)  # (B, S)
        ids = ids.masked_fill(is_hidden, special_id(tokenizers))
        labels = inputs.ids.masked_fill(~is_chosen, -1)  # (B, S)
        return replace(batch, inputs=replace(inputs, ids=ids), targets=ABSENT, labels=labels)
