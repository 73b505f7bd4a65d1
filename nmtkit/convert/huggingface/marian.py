"""Imports Marian models (Junczys-Dowmunt et al. 2018), such as OPUS-MT, and exports our Transformers in this format.

Marian normalizes after each sub-layer. A pre-norm Transformer becomes a Pegasus model with Marian's
tokenizer, since Pegasus is pre-norm.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from nmtkit.config import Recipe
from nmtkit.config.tasks.builtin import TRANSLATION
from nmtkit.config.tasks.task import TASKS
from nmtkit.convert.checkpoint_converter import CheckpointConverter
from nmtkit.convert.engines import (
    plain_weights,
    position_table,
    positions_needed,
    require_convertible,
)
from nmtkit.convert.external_files import ExternalWeights, read_json, read_weights
from nmtkit.convert.huggingface.encoder_decoder import (
    BART_LIKE_ROWS,
    OUTPUT_BIAS_ROW,
    POSITION_ROWS,
    SETTINGS,
    SHARED_EMBEDDING,
    BartLikeConfig,
    convert_bart_like,
    read_bart_like_config,
)
from nmtkit.convert.huggingface.families import FAMILIES, Family
from nmtkit.convert.huggingface.generation import generation_settings
from nmtkit.convert.imported_model import ImportedModel
from nmtkit.convert.vocabulary import (
    Maps,
    VocabularyMap,
    build_tokenizers,
    map_vocabulary,
    write_sentencepiece_models,
)
from nmtkit.convert.weight_names import SUPPRESSED_BIAS, WeightNames
from nmtkit.core.errors import CheckpointError, NmtkitError, shorten
from nmtkit.core.files import write_json
from nmtkit.core.version import __version__
from nmtkit.data.tokenizers.tokenizer import SentencePieceTokenizer
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, SPECIALS, UNK
from nmtkit.decoding.settings import SearchConfig
from nmtkit.models.base import Seq2Seq
from nmtkit.models.transformer import TransformerConfig
from nmtkit.training.checkpoints.tensor_files import write_bare_tensors

NAMES = WeightNames({**BART_LIKE_ROWS, **OUTPUT_BIAS_ROW, **POSITION_ROWS})

_ARCHITECTURES = {
    "pre": ("pegasus", "PegasusForConditionalGeneration"),
    "post": ("marian", "MarianMTModel"),
}
"""Model type and class in `transformers` for pre-norm and post-norm layers."""
_NORMS = {model_type: norm for norm, (model_type, _) in _ARCHITECTURES.items()}


@FAMILIES.register("marian")
class Marian(Family):
    """Converts folders of MarianMTModel, and folders written by `nmtkit export`."""

    model_type = "marian"

    @override
    def read(self, folder: Path) -> ImportedModel:
        """Converts a folder that contains `config.json`, weights, `source.spm`, `target.spm` and `vocab.json`."""
        config, content = read_bart_like_config(folder, BartLikeConfig)
        architecture = str(content["model_type"])
        weights = read_weights(folder)
        tokenizers, maps = _read_tokenizers(folder, config, weights)
        converter = CheckpointConverter(
            place=folder / "config.json",
            weights=weights,
            names=NAMES,
            tokenizers=tokenizers,
            vocabularies=maps,
        )
        positions, tables = converter.positions(config.d_model)
        form = {"norm": _NORMS[architecture], "positions": "sinusoidal_halves", **positions}
        model, tensors = convert_bart_like(config, converter, form, tables)
        never_written = {int(maps[1].rows[UNK]), config.pad_token_id, config.decoder_start_token_id}
        search, notes = config.search_settings(folder, maps, never_written)
        return ImportedModel(
            toolkit="huggingface",
            architecture=architecture,
            model=model,
            tensors=tensors,
            tokenizers=tokenizers,
            search=search,
            notes=[*notes, *_notes_on_tags(folder / "tokenizer_config.json")],
            task=_exported_task(content),
        )


def _notes_on_tags(path: Path) -> list[str]:
    tags = read_json(path, dict).get("additional_special_tokens") if path.exists() else None
    if not tags:
        return []
    names = shorten(", ".join(map(str, tags)), 100)
    return [
        f"additional_special_tokens in {path.name} is ignored, so the tokenizer never produces "
        f"{names}"
    ]


def _exported_task(content: Mapping[str, Any]) -> str:
    """Returns the task in a `config.json` written by `nmtkit export`; translation for other files."""
    origin = content.get("nmtkit")
    task = origin.get("task") if isinstance(origin, dict) else None
    return task if task in TASKS.names() else TRANSLATION.name


# -------------------------------------------------------------------------------------------------------- tokenizers


def _read_tokenizers(
    folder: Path, config: BartLikeConfig, weights: ExternalWeights
) -> tuple[Tokenizers, Maps]:
    """Returns tokenizers for `vocab.json`, which both sides share if there is no `target_vocab.json`."""
    has_target_vocabulary = (folder / "target_vocab.json").exists()
    _require_sizes(folder, config, weights, has_target_vocabulary)
    path = folder / ("target_vocab.json" if has_target_vocabulary else "vocab.json")
    tokens = _read_tokens(path, config.tgt_vocab_size)
    special = (config.pad_token_id, config.decoder_start_token_id, config.eos_token_id)
    padding = _padding_rows(weights) - {*tokens, *special}
    tgt = map_vocabulary(folder, tokens, special, config.tgt_vocab_size, padding)
    src = _source_map(folder, config) if has_target_vocabulary else tgt
    models = [folder / "source.spm", folder / "target.spm"]
    return build_tokenizers("marian", (src, tgt), folder, models), (src, tgt)


def _require_sizes(
    folder: Path, config: BartLikeConfig, weights: ExternalWeights, has_target_vocabulary: bool
) -> None:
    """Rejects vocabulary sizes that contradict the other files."""
    sizes = {config.vocab_size, config.tgt_vocab_size}
    for size in sizes:
        if (size, config.d_model) not in weights.shapes.values():
            fault = (
                f"specifies {size:,} tokens of size {config.d_model}, but no weight has this shape"
            )
            raise CheckpointError(f"{folder / 'config.json'}: {fault}")
    if len(sizes) > 1 and not has_target_vocabulary:
        raise CheckpointError(
            f"{folder / 'config.json'}: specifies two vocabularies, but the folder has only one; "
            "download the whole folder"
        )


def _padding_rows(weights: ExternalWeights) -> set[int]:
    """Returns the rows of tokens that must never be generated, including rows without a token."""
    if "final_logits_bias" not in weights.shapes:
        return set()
    bias = weights.tensor("final_logits_bias").flatten()
    return {*(bias <= SUPPRESSED_BIAS).nonzero().flatten().tolist()}


def _source_map(folder: Path, config: BartLikeConfig) -> VocabularyMap:
    """Returns the source vocabulary if it is not shared with the target."""
    path = folder / "vocab.json"
    tokens = _read_tokens(path, config.vocab_size)
    ids = {token: row for row, token in tokens.items()}
    pad, bos, eos = (ids.get(SPECIALS[special]) for special in (PAD, BOS, EOS))
    if pad is None or eos is None:
        raise CheckpointError(f"{path}: {SPECIALS[PAD]} or {SPECIALS[EOS]} is missing")
    unnamed = {*range(config.vocab_size)} - {*tokens}
    return map_vocabulary(
        folder, tokens, (pad, pad if bos is None else bos, eos), config.vocab_size, unnamed
    )


def _read_tokens(path: Path, size: int) -> dict[int, str]:
    """Returns the tokens of a vocabulary file, indexed by id."""
    tokens: dict[int, str] = {}
    for token, row in read_json(path, dict).items():
        if type(row) is not int or not 0 <= row < size or row in tokens:
            fault = f"token {shorten(repr(token))} has id {shorten(repr(row))}"
            raise CheckpointError(
                f"{path}: {fault}, which is out of range (0 to {size - 1}) or belongs to another "
                "token"
            )
        tokens[row] = token
    return tokens


# ------------------------------------------------------------------------------------------------------------ export


def write_marian(model: Seq2Seq, tokenizers: Tokenizers, recipe: Recipe, folder: Path) -> None:
    """Writes weights, settings and tokenizers for `from_pretrained` of `transformers`."""
    config = require_convertible(model.config, "huggingface")
    _require_pieces(tokenizers)
    positions = positions_needed(recipe, config)
    settings, tensors = to_marian(model, positions)
    # `import` reads the task from this field
    settings["nmtkit"] = {"version": __version__, "recipe": recipe.name, "task": recipe.task}
    write_json(folder / "config.json", settings)
    write_json(folder / "generation_config.json", _generation_config(recipe.search, positions))
    write_bare_tensors(folder / "model.safetensors", tensors)
    write_sentencepiece_models(tokenizers, folder)
    vocabularies = {"vocab.json": tokenizers.src}
    if not tokenizers.shared:
        vocabularies["target_vocab.json"] = tokenizers.tgt
    for file, tokenizer in vocabularies.items():
        write_json(
            folder / file,
            {token: number for number, token in enumerate(tokenizer.vocabulary.tokens)},
        )
    write_json(folder / "tokenizer_config.json", _tokenizer_config(tokenizers, positions))


def _require_pieces(tokenizers: Tokenizers) -> None:
    """Rejects tokenizers that are not SentencePiece models, or that change the case of text."""
    has_pieces = all(
        isinstance(tokenizer, SentencePieceTokenizer) for tokenizer in tokenizers.values()
    )
    if not has_pieces or any(tokenizer.config.lowercase for tokenizer in tokenizers.values()):
        text = "lower-cased text" if has_pieces else "words"
        raise NmtkitError(
            f"huggingface does not support this tokenizer ({text}); use --to safetensors, or train "
            "with a bpe or unigram tokenizer that preserves case"
        )


def to_marian(model: Seq2Seq, positions: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Returns the network in the format of `transformers`: the settings of `config.json`, and float32 weights.

    The model must be as it was trained, not prepared for inference; `positions` is the number of
    positions.
    """
    config = require_convertible(model.config, "huggingface")
    weights = plain_weights(model)
    is_pegasus = config.norm == "pre"
    if is_pegasus:  # Pegasus has a single vocabulary size for both sides
        rows = max(model.sizes["src"], model.sizes["tgt"])
        for name in ("src_embedding.weight", "tgt_embedding.weight", "output.weight"):
            weights[name] = _padded(weights[name], rows, 0.0)
        weights["output.bias"] = _padded(weights["output.bias"], rows, SUPPRESSED_BIAS)
    for side in ("src", "tgt"):
        # Sinusoids are saved too, since `transformers` orders them differently.
        table = position_table(model, weights, side, positions)
        weights[f"{side}_positions.table"] = table[:positions]
    one_embedding = config.tie in ("all", "embeddings")
    # Pegasus ties either all token matrices or none.
    tied_output = config.tie == "all" if is_pegasus else config.tie in ("all", "decoder")
    tensors = {name: tensor.clone() for name, tensor in NAMES.rename(weights).items()}
    if one_embedding or is_pegasus:
        tensors[SHARED_EMBEDDING] = weights["src_embedding.weight"].clone()
    if one_embedding and tied_output:
        del tensors[NAMES.theirs("src_embedding.weight")]
        del tensors[NAMES.theirs("tgt_embedding.weight")]
    if tied_output:
        del tensors[NAMES.theirs("output.weight")]
    settings = _settings(config, positions)
    settings |= {
        "vocab_size": len(weights["src_embedding.weight"]),
        "tie_word_embeddings": tied_output,
    }
    if not is_pegasus:
        settings["decoder_vocab_size"] = len(weights["tgt_embedding.weight"])
        settings["share_encoder_decoder_embeddings"] = one_embedding
    return settings, tensors


def _padded(weight: Tensor, rows: int, value: float) -> Tensor:
    missing = weight.new_full((rows - len(weight), *weight.shape[1:]), value)
    return torch.cat([weight, missing])


def _settings(config: TransformerConfig, positions: int) -> dict[str, Any]:
    model_type, architecture = _ARCHITECTURES[config.norm]
    activation = "gelu_pytorch_tanh" if config.activation == "gelu_tanh" else config.activation
    settings = {
        "model_type": model_type,
        "architectures": [architecture],
        "max_position_embeddings": positions,
        "activation_function": activation,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": None,
        "dtype": "float32",
    }
    for ours, theirs in SETTINGS.items():
        settings |= dict.fromkeys(theirs, getattr(config, ours))
    return settings


def _generation_config(search: SearchConfig, positions: int) -> dict[str, Any]:
    """Returns the closest settings of `generate`, which cannot limit the output relative to the source length."""
    never_written = [PAD, BOS]
    if search.forbid_unknown:
        never_written.append(UNK)
    return generation_settings(search) | {
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": EOS if search.effective_at_limit == "end" else None,
        "bad_words_ids": [[token] for token in never_written],
        "max_length": min(search.max_length, positions) + 1,  # includes the decoder's first input
    }


def _tokenizer_config(tokenizers: Tokenizers, positions: int) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "tokenizer_class": "MarianTokenizer",
        "clean_up_tokenization_spaces": False,
        "separate_vocabs": not tokenizers.shared,
        "model_max_length": positions,
        "pad_token": SPECIALS[PAD],
        "unk_token": SPECIALS[UNK],
        "bos_token": SPECIALS[BOS],
        "eos_token": SPECIALS[EOS],
    }
    tags = tokenizers.src.vocabulary.specials
    if tags:  # otherwise the tokenizer would not recognize them in text
        settings["additional_special_tokens"] = [*tags]
    return settings
