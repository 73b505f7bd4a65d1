"""Shallow fusion of a translation model and a language model.

Gulcehre et al. 2015, "On Using Monolingual Corpora in Neural Machine Translation", section 4.1: in every step each word
is scored by both models (equation 7),

    log p(y_t = k) = log p_TM(y_t = k) + beta log p_LM(y_t = k),

and the search goes on with the best sums, which are no distribution. To the language model a word that only the source
has is unknown: it reads UNK, and a copy of any such word has the probability that it gives to UNK.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from nmtkit.core.errors import RecipeError
from nmtkit.data.tokenizers.vocabulary import UNK
from nmtkit.models.base import Decoder, ModelOutput, Seq2Seq
from nmtkit.models.ensemble import CombinedConfig, EnsembleMemory, EnsembleOutput, SideBySide


class ShallowFusion(SideBySide):
    """A translation model and a language model over the vocabulary of its target; see the head of this file.

    Attention is that of the translation model. No p_gen is shown: what was copied cannot be told from these sums.
    """

    Config = CombinedConfig

    def __init__(self, translation_model: Seq2Seq, language_model: Decoder, weight: float) -> None:
        sizes, copies = (translation_model.sizes["tgt"], language_model.sizes["tgt"]), translation_model.config.copies
        if sizes[0] != sizes[1]:
            raise RecipeError(f"a target vocabulary of {sizes[0]} tokens, and a language model of {sizes[1]}")
        if weight < 0:
            raise RecipeError(f"the weight of a language model is {weight:g}: give 0 or more")
        super().__init__(CombinedConfig(kind="shallow_fusion", copying=copies), [translation_model, language_model])
        self._weight = weight

    def logits(self, readout: ModelOutput, memory: EnsembleMemory) -> Tensor:
        """The sums of equation 7, `(...,X)`."""
        translated, spoken = self._predictions(readout, memory)
        if not self._weight:  # words outside of a shortlist have minus infinity, which zero times would be no number
            return translated
        unknown = spoken[..., UNK, None].expand(*spoken.shape[:-1], translated.shape[-1] - spoken.shape[-1])
        return torch.add(translated, torch.cat([spoken, unknown], -1), alpha=self._weight)

    def predict(self, readout: ModelOutput, memory: EnsembleMemory) -> Tensor:
        """The same: the search adds up these sums."""
        return self.logits(readout, memory)

    def _joined(self, readouts: Sequence[ModelOutput], need_attention: bool) -> EnsembleOutput:
        first = readouts[0]
        return EnsembleOutput(first.features, first.attention, centres=first.centres, members=tuple(readouts))
