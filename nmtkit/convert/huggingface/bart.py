"""BART (Lewis et al. 2020), mBART (Liu et al. 2020), mBART-50 (Tang et al. 2020) and Pegasus (Zhang et al. 2020).

BART normalizes after each sub-layer, the others before it. BART and mBART have learned position embeddings and
normalize the input of the first layers.
"""

from typing import Any, ClassVar

from torch import Tensor
from typing_extensions import override

from nmtkit.config.tasks.builtin import SUMMARIZATION
from nmtkit.convert.checkpoint_converter import CheckpointConverter
from nmtkit.convert.huggingface.encoder_decoder import (
    BART_LIKE_ROWS,
    OUTPUT_BIAS_ROW,
    POSITION_ROWS,
    BartLike,
    BartLikeConfig,
)
from nmtkit.convert.huggingface.families import FAMILIES
from nmtkit.convert.weight_names import Row, Stored, WeightNames
from nmtkit.core.settings import Field

_FIRST_POSITION = 2
"""Number of unused rows at the beginning of position tables."""
_ROWS: dict[str, Row] = {
    **BART_LIKE_ROWS,
    **OUTPUT_BIAS_ROW,
    "src_embedding_norm.{kind}": "model.encoder.layernorm_embedding.{kind}",
    "tgt_embedding_norm.{kind}": "model.decoder.layernorm_embedding.{kind}",
    "src_positions.table": Stored(
        ["model.encoder.embed_positions.weight"], unread_rows=_FIRST_POSITION
    ),
    "tgt_positions.table": Stored(
        ["model.decoder.embed_positions.weight"], unread_rows=_FIRST_POSITION
    ),
}


@FAMILIES.register("bart")
class Bart(BartLike):
    """Converts folders of BartForConditionalGeneration or BartModel."""

    model_type = "bart"
    names = WeightNames(_ROWS)
    form: ClassVar[dict[str, Any]] = {
        "norm": "post",
        "positions": "learned",
        "embedding_norm": True,
    }
    task = SUMMARIZATION.name


class MBartConfig(BartLikeConfig):
    """The settings of mBART. The decoder's first input, the target language, may be unset."""

    decoder_start_token_id: int | None = Field(default=None, ge=0)  # type: ignore[assignment]  # may be None here only


@FAMILIES.register("mbart")
class MBart(BartLike):
    """Converts folders of MBartForConditionalGeneration."""

    model_type = "mbart"
    config_kind = MBartConfig
    names = WeightNames(_ROWS)
    form: ClassVar[dict[str, Any]] = {"norm": "pre", "positions": "learned", "embedding_norm": True}


class PegasusConfig(BartLikeConfig):
    """The settings of Pegasus, whose folders may omit ids."""

    pad_token_id: int = Field(default=0, ge=0)
    eos_token_id: int = Field(default=1, ge=0)
    decoder_start_token_id: int = Field(default=0, ge=0)


@FAMILIES.register("pegasus")
class Pegasus(BartLike):
    """Converts published folders of PegasusForConditionalGeneration."""

    model_type = "pegasus"
    config_kind = PegasusConfig
    names = WeightNames({**BART_LIKE_ROWS, **OUTPUT_BIAS_ROW, **POSITION_ROWS})
    form: ClassVar[dict[str, Any]] = {"norm": "pre", "positions": "sinusoidal_halves"}
    task = SUMMARIZATION.name

    @override
    def positions(
        self, converter: CheckpointConverter, config: BartLikeConfig
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Accepts sinusoidal position embeddings, and embeddings that training has changed."""
        return converter.positions(config.d_model)
