"""Imports BART (Lewis et al. 2020), mBART (Liu et al. 2020; Tang et al. 2020), and M2M100 (Fan et al. 2021) with NLLB.

They are Marian's relatives. BART normalizes after each sub-layer, the others before it; BART and mBART learn positions
and normalize what the first layers read. NLLB (Costa-jussa et al. 2022) has the form of M2M100.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmtkit.huggingface.marian import POSITIONS, HuggingFaceConfig, convert
from nmtkit.huggingface.reading import FAMILIES, read_config
from nmtkit.huggingface.tokenizers import read_tokenizers
from nmtkit.interchange.export_weights import huggingface_names
from nmtkit.interchange.external_files import read_weights, require_equal
from nmtkit.interchange.import_weights import CheckpointConverter, ImportedModel
from nmtkit.tasks.builtin import SUMMARIZATION, TRANSLATION
from nmtkit.translation.languages import language_tokens

_FORMS: dict[str, dict[str, Any]] = {
    "bart": {"norm": "post", "positions": "learned", "embedding_norm": True},
    "mbart": {"norm": "pre", "positions": "learned", "embedding_norm": True},
    "m2m_100": {"norm": "pre", "positions": "sinusoidal_fairseq"},
}
_FIRST_POSITION = 2
"""Before it their tables of positions have rows that no text reads."""


@FAMILIES.register("bart")
@FAMILIES.register("mbart")
@FAMILIES.register("m2m_100")
def read_bart(folder: Path) -> ImportedModel:
    """Converts a folder of BartForConditionalGeneration, or of its like for mBART, M2M100 and NLLB."""
    place = folder / "config.json"
    config, given = read_config(folder, HuggingFaceConfig)
    kind = str(given["model_type"])
    require_equal(place, config, {f"decoder_{key}": f"encoder_{key}" for key in ("attention_heads", "ffn_dim")})
    special = (config.pad_token_id, config.decoder_start_token_id, config.eos_token_id)
    tokenizers, maps = read_tokenizers(folder, special, config.vocab_size, first=config.forced_bos_token_id)
    converter = CheckpointConverter(place, read_weights(folder), tokenizers, maps)
    form = _FORMS[kind] | {"source_end": not tokenizers.config.affixes.get("src", {}).get("after")}
    tables = {}
    if form["positions"] == "learned":
        for ours, theirs in POSITIONS.items():
            rows = converter.weights.shapes.get(theirs, (0,))[0]
            tables[ours] = converter.tensor(theirs, (rows, config.d_model))[_FIRST_POSITION:]
        form["max_positions"] = min(map(len, tables.values()))
    model, tensors = convert(config, converter, form, tables, _names)
    search, notes = config.search_settings(folder, maps, {*special})
    search["certain_prefix"] = config.forced_bos_token_id is not None or bool(language_tokens(tokenizers))
    task = SUMMARIZATION if kind == "bart" else TRANSLATION
    return ImportedModel("huggingface", kind, model, tensors, tokenizers, search, notes, task.name)


def _names(name: str) -> Sequence[str]:
    side, _, kind = name.partition("_embedding_norm.")
    if kind:
        return [f"model.{'encoder' if side == 'src' else 'decoder'}.layernorm_embedding.{kind}"]
    return huggingface_names(name)
