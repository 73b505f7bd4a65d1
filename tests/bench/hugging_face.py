"""Hugging Face's `generate` with nmtkit's weights; the library is optional: `make bench-hf` installs it."""

from collections.abc import Sequence
from importlib import import_module, util
from typing import Any

import torch
from torch import Tensor, nn

from nmtkit.data.batch import Batch
from nmtkit.data.vocabulary import BOS, EOS, PAD
from nmtkit.layers.transformer import sinusoids
from nmtkit.models.base import Seq2Seq
from nmtkit.models.transformer import TransformerConfig

NAME = "transformers"


def is_installed() -> bool:
    return util.find_spec(NAME) is not None


def version() -> str:
    return str(import_module(NAME).__version__)


def unfit(model: Seq2Seq) -> str | None:
    """Why a model cannot be carried over, if it cannot."""
    if not isinstance(model.config, TransformerConfig):
        return f"a {model.config.kind} has no counterpart there"
    wanted = {"norm": "pre", "tie": "all", "positions": "sinusoidal", "activation": "relu"}
    given = model.config.model_dump(include=set(wanted))
    return None if given == wanted else f"its counterpart there has {wanted}, the model {given}"


def convert(model: Seq2Seq, longest: int) -> Any:
    """The same network as Hugging Face's M2M100, which is a pre-norm Transformer with sinusoids.

    Its own sinusoids are laid out otherwise and its output has no bias: the table is replaced by ours, and the output
    layer by one with a bias, so that both compute the same function.
    """
    config, transformers = model.config, import_module(NAME)
    assert isinstance(config, TransformerConfig)
    transformers.logging.set_verbosity_error()
    theirs = transformers.M2M100ForConditionalGeneration(
        transformers.M2M100Config(
            vocab_size=model.sizes.tgt,
            d_model=config.hidden_size,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            encoder_ffn_dim=config.feed_forward_size,
            decoder_ffn_dim=config.feed_forward_size,
            encoder_attention_heads=config.heads,
            decoder_attention_heads=config.heads,
            max_position_embeddings=longest,
            activation_function="relu",
            scale_embedding=True,
            tie_word_embeddings=True,
            pad_token_id=PAD,
            bos_token_id=BOS,
            eos_token_id=EOS,
            decoder_start_token_id=BOS,
        )
    )
    theirs.lm_head = nn.Linear(config.hidden_size, model.sizes.tgt)
    theirs.lm_head.weight = theirs.model.shared.weight
    theirs.load_state_dict(_renamed(model.state_dict(), config))
    for side in (theirs.model.encoder, theirs.model.decoder):
        table = side.embed_positions.weights
        table[PAD + 1 :] = sinusoids(
            table.shape[0] - PAD - 1, config.hidden_size
        )  # there the first position is PAD + 1
    return theirs.eval()


def _renamed(weights: dict[str, Tensor], config: TransformerConfig) -> dict[str, Tensor]:
    embedding = weights["tgt_embedding.weight"]
    shared = ["model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"]
    taken = dict.fromkeys([*shared, "lm_head.weight"], embedding)
    taken["lm_head.bias"] = weights["output.bias"]
    places = {
        "self_attn.out_proj": "self_attention.out",
        "self_attn_layer_norm": "around_self_attention.norm",
        "fc1": "feed_forward.inner",
        "fc2": "feed_forward.out",
        "final_layer_norm": "around_feed_forward.norm",
    }
    across = {"encoder_attn.out_proj": "cross_attention.out", "encoder_attn_layer_norm": "around_cross_attention.norm"}
    for kind in ("weight", "bias"):
        for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
            taken[f"model.{side}.layer_norm.{kind}"] = weights[f"{side}_norm.{kind}"]
            for number in range(layers):
                to, of = f"model.{side}.layers.{number}", f"{side}.{number}"
                for theirs, ours in {**places, **(across if side == "decoder" else {})}.items():
                    taken[f"{to}.{theirs}.{kind}"] = weights[f"{of}.{ours}.{kind}"]
                packed = weights[f"{of}.self_attention.query_keys_values.{kind}"]
                for letter, part in zip("qkv", packed.chunk(3), strict=True):
                    taken[f"{to}.self_attn.{letter}_proj.{kind}"] = part
                if side == "decoder":
                    taken[f"{to}.encoder_attn.q_proj.{kind}"] = weights[f"{of}.cross_attention.query.{kind}"]
                    packed = weights[f"{of}.cross_attention.keys_values.{kind}"]
                    for letter, part in zip("kv", packed.chunk(2), strict=True):
                        taken[f"{to}.encoder_attn.{letter}_proj.{kind}"] = part
    return taken


def generate(model: Any, batch: Batch, beam_size: int, alpha: float, longest: int) -> list[list[int]]:
    """The best translation of every sentence of a batch, as ids without BOS and EOS.

    Args:
        model: from `convert`.
        batch: sources.
        beam_size: 1 is greedy.
        alpha: exponent of the length by which the log-probability is divided.
        longest: most tokens, EOS counted.
    """
    beam: dict[str, Any] = {"length_penalty": alpha, "early_stopping": True} if beam_size > 1 else {}
    with torch.inference_mode():
        rows = model.generate(
            input_ids=batch.src,
            attention_mask=batch.src_mask.long(),
            num_beams=beam_size,
            do_sample=False,
            max_new_tokens=longest,
            **beam,
        )
    return [_until_end(row[1:]) for row in rows.tolist()]


def _until_end(ids: Sequence[int]) -> list[int]:
    return list(ids[: ids.index(EOS)] if EOS in ids else ids)
