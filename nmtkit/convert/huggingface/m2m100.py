"""M2M100 (Fan et al. 2021), and NLLB (Costa-jussa et al. 2022), which has the same architecture."""

from typing import Any, ClassVar

from nmtkit.convert.huggingface.encoder_decoder import BART_LIKE_ROWS, BartLike
from nmtkit.convert.huggingface.families import FAMILIES
from nmtkit.convert.weight_names import WeightNames


@FAMILIES.register("m2m_100")
class M2M100(BartLike):
    """Converts folders of M2M100ForConditionalGeneration: pre-norm BART with sinusoidal positions."""

    model_type = "m2m_100"
    names = WeightNames(BART_LIKE_ROWS)
    form: ClassVar[dict[str, Any]] = {"norm": "pre", "positions": "sinusoidal_fairseq"}
