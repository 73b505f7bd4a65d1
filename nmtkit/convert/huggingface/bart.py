"""Imports BART (Lewis et al. 2020), mBART (Liu et al. 2020), M2M100 (Fan et al. 2021) and Pegasus (Zhang et al. 2020).

They are Marian's relatives. BART normalizes after each sub-layer, the others before it; BART and mBART learn positions
and normalize what the first layers read. NLLB (Costa-jussa et al. 2022) has the form of M2M100, and mBART-50 (Tang et
al. 2020) that of mBART.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmtkit.convert.export_weights import huggingface_names
from nmtkit.convert.external_files import read_json, read_weights, require_equal
from nmtkit.convert.huggingface.exporting import PUBLIC_FAMILIES, PublicWeights
from nmtkit.convert.huggingface.marian import LM_HEAD, POSITIONS, HuggingFaceConfig, convert, read_marian
from nmtkit.convert.huggingface.reading import FAMILIES, read_config, read_variants, renamed
from nmtkit.convert.huggingface.tokenizers import read_tokenizers
from nmtkit.convert.import_weights import CheckpointConverter, ImportedModel
from nmtkit.core.settings import Field
from nmtkit.data.tokenizers.languages import language_names
from nmtkit.tasks.builtin import SUMMARIZATION, TRANSLATION

_FORMS: dict[str, dict[str, Any]] = {
    "bart": {"norm": "post", "positions": "learned", "embedding_norm": True},
    "mbart": {"norm": "pre", "positions": "learned", "embedding_norm": True},
    "m2m_100": {"norm": "pre", "positions": "sinusoidal_fairseq"},
    "pegasus": {"norm": "pre", "positions": "sinusoidal_halves"},
}
_SUMMARIZERS = {"bart", "pegasus"}
_FIRST_POSITION = 2
"""Before it their tables of positions have rows that no text reads."""


class PegasusConfig(HuggingFaceConfig):
    """Like Marian's, with ids that folders may leave out."""

    pad_token_id: int = Field(default=0, ge=0)
    eos_token_id: int = Field(default=1, ge=0)
    decoder_start_token_id: int = Field(default=0, ge=0)


class MBartConfig(HuggingFaceConfig):
    """Like Marian's, but the decoder's first input, the language to write, may be left open."""

    decoder_start_token_id: int | None = Field(default=None, ge=0)  # type: ignore[assignment]


@FAMILIES.register("bart")
@FAMILIES.register("mbart")
@FAMILIES.register("m2m_100")
def read_bart(folder: Path) -> ImportedModel:
    """Converts a folder of BartForConditionalGeneration, or of its like for mBART, M2M100 and NLLB."""
    model_type = read_json(folder / "config.json", dict).get("model_type")
    return _read(folder, MBartConfig if model_type == "mbart" else HuggingFaceConfig)


@FAMILIES.register("pegasus")
def read_pegasus(folder: Path) -> ImportedModel:
    """Converts a folder of PegasusForConditionalGeneration, as published or as `nmtkit export` writes it."""
    if (folder / "source.spm").exists():
        return read_marian(folder)
    return _read(folder, PegasusConfig)


def _read(folder: Path, config_kind: type[HuggingFaceConfig]) -> ImportedModel:
    place = folder / "config.json"
    config, content = read_config(folder, config_kind)
    kind = str(content["model_type"])
    require_equal(place, config, {f"decoder_{key}": f"encoder_{key}" for key in ("attention_heads", "ffn_dim")})
    start = config.decoder_start_token_id
    special = (config.pad_token_id, config.eos_token_id if start is None else start, config.eos_token_id)
    tokenizers, maps = read_tokenizers(
        folder=folder, special=special, size=config.vocab_size, first=config.forced_bos_token_id, model_type=kind
    )
    weights = renamed(read_weights(folder), _whole_name)
    converter = CheckpointConverter(place, weights, tokenizers, maps)
    form = dict(_FORMS[kind])
    form["source_end"] = not tokenizers.config.affixes.get("src", {}).get("after")
    tables: dict[str, Tensor] = {}
    if kind == "pegasus":  # whose files may hold the sinusoids, or what has become of them
        positions, tables = converter.positions(POSITIONS, config.d_model)
        form |= positions
    elif form["positions"] == "learned":
        for ours, theirs in POSITIONS.items():
            rows = converter.weights.shapes.get(theirs, (0,))[0]
            tables[ours] = converter.tensor(theirs, (rows, config.d_model))[_FIRST_POSITION:]
        form["max_positions"] = min(map(len, tables.values()))
    model, tensors = convert(config, converter, form, tables, _names)
    begins_with_language = "start" in tokenizers.config.affixes.get("tgt", {})
    never_written = {*special} - ({start} if begins_with_language else set())
    search, notes = config.search_settings(folder, maps, never_written)
    has_languages = bool(language_names(tokenizers.config.specials))
    search["certain_prefix"] = config.forced_bos_token_id is not None or has_languages
    task = SUMMARIZATION if kind in _SUMMARIZERS else TRANSLATION
    return ImportedModel(
        toolkit="huggingface",
        architecture=kind,
        model=model,
        tensors=tensors,
        tokenizers=tokenizers,
        search=search,
        notes=notes,
        task=task.name,
        variants=read_variants(folder, config_kind, maps, never_written),
    )


def _whole_name(name: str) -> str:
    """Returns the name in a model with its output layer; folders of BartModel, such as bart-base, lack the prefix."""
    return name if name.startswith(("model.", LM_HEAD, "final_logits_bias")) else f"model.{name}"


@PUBLIC_FAMILIES.register("bart")
@PUBLIC_FAMILIES.register("mbart")
@PUBLIC_FAMILIES.register("m2m_100")
@PUBLIC_FAMILIES.register("pegasus")
def bart_tensors(public: PublicWeights, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the tensors of a model by their names in `transformers`."""
    tensors = public.others(_names, [*POSITIONS])
    tensors["model.shared.weight"] = public.words("src_embedding.weight")
    if public.has_separate_output:
        tensors[LM_HEAD] = public.words("output.weight")
    if config["model_type"] != "m2m_100":
        tensors["final_logits_bias"] = public.output_bias()[None]
    for ours, theirs in POSITIONS.items():
        if ours in public.weights:
            table = public.weights[ours]
            unread = table.new_zeros(0 if config["model_type"] == "pegasus" else _FIRST_POSITION, table.shape[1])
            tensors[theirs] = torch.cat([unread, table])
    return tensors


def _names(name: str) -> Sequence[str]:
    side, _, kind = name.partition("_embedding_norm.")
    if kind:
        return [f"model.{'encoder' if side == 'src' else 'decoder'}.layernorm_embedding.{kind}"]
    return huggingface_names(name)
