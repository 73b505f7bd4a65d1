"""The weights of Hugging Face's Marian models as those of a Transformer here, with our order of the words."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from nmtkit.core.errors import CheckpointError
from nmtkit.core.settings import Beam, Depth, Field, Length, Settings, Width, parse
from nmtkit.core.wording import shortened
from nmtkit.data.tokenizer import MAX_VOCAB_SIZE, TokenizerPair
from nmtkit.data.vocabulary import Vocabulary
from nmtkit.interchange.conversion import HUGGING_FACE, NEVER
from nmtkit.interchange.outside import ForeignWeights
from nmtkit.layers.transformer import sinusoids
from nmtkit.models.transformer import Transformer, TransformerConfig
from nmtkit.runs.saved import sizes_of
from nmtkit.training.weights import weights_of

NORMS: dict[str, Literal["pre", "post"]] = {"marian": "post", "pegasus": "pre"}
"""The architectures that are read, and where they normalize."""

_TOP = {
    "final_logits_bias",
    "lm_head.weight",
    "model.shared.weight",
    *(f"model.{side}.embed_{what}.weight" for side in ("encoder", "decoder") for what in ("tokens", "positions")),
}
"""Their tensors that are of no layer."""


class HuggingFaceConfig(Settings):
    """The keys of `config.json` and `generation_config.json` that say something here; the others are left unread."""

    d_model: Width = Field(ge=2)
    vocab_size: int = Field(ge=2, le=MAX_VOCAB_SIZE)
    decoder_vocab_size: int | None = Field(default=None, ge=2, le=MAX_VOCAB_SIZE)
    encoder_layers: Depth = Field(ge=1)
    decoder_layers: Depth = Field(ge=1)
    encoder_attention_heads: int = Field(ge=1)
    decoder_attention_heads: int = Field(ge=1)
    encoder_ffn_dim: Width = Field(ge=1)
    decoder_ffn_dim: Width = Field(ge=1)
    activation_function: Literal["relu", "gelu", "swish", "silu"]
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    activation_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    scale_embedding: bool = False
    tie_word_embeddings: bool = True
    pad_token_id: int = Field(ge=0)
    eos_token_id: int = Field(ge=0)
    decoder_start_token_id: int = Field(ge=0)
    num_beams: Beam = Field(default=1, ge=1)
    early_stopping: bool | Literal["never"] = False
    length_penalty: float = Field(default=1.0, ge=0.0)
    max_length: Length = Field(default=21, ge=2)
    max_new_tokens: Length | None = Field(default=None, ge=1)
    min_length: Length = Field(default=0, ge=0)
    min_new_tokens: Length = Field(default=0, ge=0)
    no_repeat_ngram_size: int = Field(default=0, ge=0)
    forced_eos_token_id: int | None = None
    bad_words_ids: list[list[int]] = Field(default=[])
    renormalize_logits: bool = False

    @property
    def words_never_written(self) -> set[int]:
        """The rows of single words that `generate` never writes."""
        return {one[0] for one in self.bad_words_ids if len(one) == 1 and 0 <= one[0] < self.vocab_size}

    def search(self, unknown: int) -> tuple[dict[str, Any], list[str]]:
        """How `generate` of transformers 5 searches, as a recipe says it, and the keys of what it does beside that.

        Args:
            unknown: the row of the unknown word.
        """
        limit = self.max_new_tokens or self.max_length - 1  # the other counts the decoder's first input
        found = {
            "beam_size": self.num_beams,
            "stop": {"True": "first_k", "False": "huggingface", "never": "exact"}[str(self.early_stopping)],
            "at_limit": "compete" if self.forced_eos_token_id is None else "end",
            "alpha": self.length_penalty,
            "max_length": limit,
            "max_length_ratio": 0.0,
            "min_length": min(max(self.min_length - 1, self.min_new_tokens), limit - 1),
            "no_repeat_ngram": self.no_repeat_ngram_size,
            "forbid_unknown": unknown in self.words_never_written,
        }
        known = {unknown, self.pad_token_id, self.decoder_start_token_id}
        if self.renormalize_logits:
            known |= self.words_never_written
        left = {
            "bad_words_ids": any(len(one) != 1 or one[0] not in known for one in self.bad_words_ids),
            "forced_eos_token_id": self.forced_eos_token_id not in (None, self.eos_token_id),
        }
        return found, [key for key, there in left.items() if there]


@dataclass(frozen=True)
class Table:
    """The words of one side by our ids, and which row of their matrices each takes."""

    vocabulary: Vocabulary
    rows: Tensor
    """`(V,)`."""
    never: Tensor
    """Our ids that stand for a row which another id has already."""


@dataclass(frozen=True)
class MarianWeights:
    """Their weights as ours; every shape is compared before a tensor is made."""

    kind: str
    config: HuggingFaceConfig
    weights: ForeignWeights
    tokenizers: TokenizerPair
    tables: tuple[Table, Table]

    def done(self) -> tuple[TransformerConfig, dict[str, Tensor]]:
        """The settings, and the weights by our names."""
        embeddings = self._embeddings()
        positions = {side: self._positions(side) for side in ("encoder", "decoder")}
        learned = [side for side, table in positions.items() if table is not None]
        if len(learned) == 1:
            raise self._fault(f"only the {learned[0]} has other positions than sinusoids")
        model = self._model(embeddings, positions["encoder"])
        with torch.device("meta"):
            network = Transformer(model, sizes_of(self.tokenizers))
        found = embeddings | {"output.bias": self._bias(), **self._sides(positions)}
        for name, tensor in weights_of(network).items():
            if name not in found:
                found[name] = self._joined(name, tuple(tensor.shape))
        left = self.weights.shapes.keys() - {one for name in found for one in self._places(name)} - _TOP
        if left:
            raise self._fault(f"{shortened(repr(min(left)))} is not part of such a model")
        own = {name: found[name] for name in weights_of(network)}
        for name, tensor in weights_of(network).items():
            if own[name].shape != tensor.shape:
                raise self._fault(f"{name}: its parts have {list(own[name].shape)} numbers, not {list(tensor.shape)}")
        return model, own

    def _fault(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.weights.path}: {what}; it is damaged, or of another model than config.json says")

    def _tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        given = self.weights.shapes.get(name)
        if given != shape:
            has = f"has shape {list(given)}" if given is not None else "is missing"
            raise self._fault(f"{name!r} {has}, and should have {list(shape)}")
        return self.weights.tensor(name)

    def _embeddings(self) -> dict[str, Tensor]:
        """The three matrices of words, with our rows."""
        config, there = self.config, self.weights.shapes
        src_rows, tgt_rows = config.vocab_size, config.decoder_vocab_size or config.vocab_size
        wanted = {"model.encoder.embed_tokens.weight": src_rows, "model.decoder.embed_tokens.weight": tgt_rows}
        src, tgt = (
            self._tensor(name if name in there else "model.shared.weight", (rows, config.d_model))
            for name, rows in wanted.items()
        )
        output = tgt
        if "lm_head.weight" in there or not config.tie_word_embeddings:
            output = self._tensor("lm_head.weight", (tgt_rows, config.d_model))
        if config.tie_word_embeddings and not torch.equal(output, tgt):
            raise self._fault("config.json says that the output layer is the target's embedding, and they differ")
        of_src, of_tgt = self.tables
        return {
            "src_embedding.weight": src[of_src.rows],
            "tgt_embedding.weight": tgt[of_tgt.rows],
            "output.weight": output[of_tgt.rows],
        }

    def _bias(self) -> Tensor:
        tgt_rows, name = self.config.decoder_vocab_size or self.config.vocab_size, "final_logits_bias"
        bias = self._tensor(name, (1, tgt_rows))[0] if name in self.weights.shapes else torch.zeros(tgt_rows)
        if self.config.renormalize_logits:  # as if they did not exist
            bias[[*self.config.words_never_written]] = NEVER
        bias = bias[self.tables[1].rows]
        bias[self.tables[1].never] = NEVER
        return bias

    def _positions(self, side: str) -> Tensor | None:
        """The table of positions, if it is another than sinusoids."""
        name = f"model.{side}.embed_positions.weight"
        shape = self.weights.shapes.get(name)
        if shape is None:
            return None
        table = self._tensor(name, (shape[0] if shape else 0, self.config.d_model))
        sines = sinusoids(len(table), self.config.d_model, halves=True)
        return None if torch.allclose(table, sines, rtol=0.0, atol=1e-3) else table

    def _sides(self, positions: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
        names = {"encoder": "src_positions.table", "decoder": "tgt_positions.table"}
        return {names[side]: table for side, table in positions.items() if table is not None}

    def _model(self, embeddings: Mapping[str, Tensor], positions: Tensor | None) -> TransformerConfig:
        config, (src, tgt, output) = self.config, embeddings.values()
        one = self.tokenizers.shared and torch.equal(src, tgt)
        ties = {(True, True): "all", (True, False): "embeddings", (False, True): "decoder", (False, False): "none"}
        found: dict[str, Any] = {
            "hidden_size": config.d_model,
            "feed_forward_size": config.encoder_ffn_dim,
            "heads": config.encoder_attention_heads,
            "encoder_layers": config.encoder_layers,
            "decoder_layers": config.decoder_layers,
            "dropout": config.dropout,
            "attention_dropout": config.attention_dropout,
            "activation_dropout": config.activation_dropout,
            "norm": NORMS[self.kind],
            "positions": "sinusoidal_halves" if positions is None else "learned",
            "scale_embeddings": config.scale_embedding,
            "tie": ties[one, torch.equal(tgt, output)],
            "activation": {"swish": "silu"}.get(config.activation_function, config.activation_function),
        }
        if positions is not None:
            interleaved = sinusoids(len(positions), config.d_model)
            plain = torch.allclose(positions, interleaved, rtol=0.0, atol=1e-3)
            found |= {"positions": "sinusoidal"} if plain else {"max_positions": len(positions)}
        return parse(TransformerConfig, found, f"{self.weights.path.parent / 'config.json'}")

    def _places(self, name: str) -> list[str]:
        """Where the parts of one of our weights of the layers stand."""
        side, _, rest = name.partition(".")
        module, _, kind = rest.rpartition(".")
        if side in ("encoder_norm", "decoder_norm"):
            return [f"model.{side.removesuffix('_norm')}.layer_norm.{kind}"]
        number, _, module = module.partition(".")
        return [f"model.{side}.layers.{number}.{place}.{kind}" for place in HUGGING_FACE.get(module, ())]

    def _joined(self, name: str, shape: tuple[int, ...]) -> Tensor:
        places = self._places(name)
        each = (shape[0] // len(places), *shape[1:])
        return torch.cat([self._tensor(place, each) for place in places])
