"""Shallow fusion of a translation model and a language model.

Gulcehre et al. 2015, "On Using Monolingual Corpora in Neural Machine Translation", section 4.1: in each step, both
models score each word (equation 7),

    log p(y_t = k) = log p_TM(y_t = k) + beta log p_LM(y_t = k),

and the search ranks hypotheses by these sums, which are not normalized. The language model reads a copied unknown word
as UNK, and scores it with the probability of UNK.

Notation: as in `models/base.py`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import override

from nmtkit.core.errors import RecipeError
from nmtkit.data.tokenizers.vocabulary import UNK
from nmtkit.models.base import Decoder, ModelOutput, Seq2Seq
from nmtkit.models.ensemble import CombinedConfig, EnsembleMemory, EnsembleOutput, JointDecoder


class ShallowFusion(JointDecoder):
    """A translation model and a language model over the same target vocabulary; see the module docstring.

    Attention comes from the translation model. There is no p_gen, since the sums do not separate copying from
    generating.
    """

    Config = CombinedConfig

    def __init__(self, translation_model: Seq2Seq, language_model: Decoder, weight: float) -> None:
        translation_size = translation_model.sizes["tgt"]
        language_size = language_model.sizes["tgt"]
        if translation_size != language_size:
            raise RecipeError(
                f"the translation model has a target vocabulary of {translation_size} tokens, but the language model "
                f"has one of {language_size}; train both with the same target vocabulary"
            )
        if weight < 0:
            raise RecipeError(
                f"the weight of the language model is {weight:g}, but it must not be negative"
            )
        config = CombinedConfig(kind="shallow_fusion", copying=translation_model.config.copies)
        super().__init__(config, [translation_model, language_model])
        self._weight = weight

    def logits(self, output: ModelOutput, memory: EnsembleMemory) -> Tensor:
        """Returns the sums of equation 7, `(..., X)`."""
        translation_log_probs, language_log_probs = self._predictions(
            output, memory
        )  # (..., X), (..., V)
        # For words outside a shortlist the log-probability is minus infinity, and zero times minus infinity is NaN.
        if self._weight == 0:
            return translation_log_probs
        size_with_copies = translation_log_probs.shape[-1]
        unknown_words = size_with_copies - language_log_probs.shape[-1]
        unk_log_probs = language_log_probs[..., UNK, None]  # (..., 1)
        leading_axes = unk_log_probs.shape[:-1]
        copy_log_probs = unk_log_probs.expand(*leading_axes, unknown_words)  # (..., X-V)
        language_log_probs = torch.cat([language_log_probs, copy_log_probs], -1)  # (..., X)
        return torch.add(translation_log_probs, language_log_probs, alpha=self._weight)

    def predict(self, output: ModelOutput, memory: EnsembleMemory) -> Tensor:
        """Returns the same sums as `logits`, since the search adds them up without normalizing them."""
        return self.logits(output, memory)

    @override
    def _join(self, outputs: Sequence[ModelOutput], need_attention: bool) -> EnsembleOutput:
        translation_output = outputs[0]
        return EnsembleOutput(
            features=translation_output.features,
            attention=translation_output.attention,
            centres=translation_output.centres,
            members=tuple(outputs),
        )
