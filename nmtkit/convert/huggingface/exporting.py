"""Exports an imported model, fine-tuned or not, in the `transformers` format that it was imported from.

`import` keeps the settings and tokenizer of the imported folder in the run. The tables of names used
by the import, and the tokenizer's row of each token, restore the weights' original names and rows.
"""

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nmtkit.config import Recipe
from nmtkit.convert.engines import library
from nmtkit.convert.external_files import read_json
from nmtkit.convert.huggingface.families import FAMILIES, PublicWeights
from nmtkit.convert.huggingface.generation import generation_settings
from nmtkit.core.errors import NmtkitError, shorten
from nmtkit.core.files import write_errors, write_json
from nmtkit.data.tokenizers.huggingface_tokenizer import LANGUAGE, HuggingFaceTokenizer
from nmtkit.data.tokenizers.languages import chosen_languages
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, UNK
from nmtkit.models.base import Model
from nmtkit.runs.folder import RunFolder
from nmtkit.training.checkpoints.tensor_files import write_bare_tensors


def write_public_huggingface(
    run: RunFolder, model: Model, tokenizers: Tokenizers, recipe: Recipe, folder: Path
) -> None:
    """Writes weights, settings and tokenizer for `from_pretrained` of `transformers`."""
    config = _read_public_config(run)
    model_type = str(config["model_type"])
    tokenizer = tokenizers.tgt
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    public = PublicWeights(model, tokenizer, int(config["vocab_size"]))
    tensors = FAMILIES.get(model_type)().tensors(public, config)
    with write_errors(folder):
        for path in run.public.iterdir():
            shutil.copyfile(path, folder / path.name)
    settings: dict[str, Any] = {key: value for key, value in config.items() if key != "torch_dtype"}
    settings["dtype"] = "float32"
    if (
        tokenizers.config.source_prefix
    ):  # `import` and the pipelines of `transformers` read the prefix here
        settings["task_specific_params"] = {
            recipe.task: {"prefix": tokenizers.config.source_prefix}
        }
    if "decoder_start_token_id" in config or model_type == "mbart":
        settings["decoder_start_token_id"] = int(tokenizer.rows[BOS])
    write_json(folder / "config.json", settings)
    write_json(
        folder / "generation_config.json", _generation_config(run, config, tokenizers, recipe)
    )
    write_bare_tensors(
        folder / "model.safetensors",
        {name: tensor.contiguous() for name, tensor in tensors.items()},
    )
    _write_languages(folder / "tokenizer_config.json", tokenizers)


def _read_public_config(run: RunFolder) -> dict[str, Any]:
    """Returns the `config.json` of the import; raises NmtkitError if the run has none."""
    path = run.public / "config.json"
    if not path.is_file():
        raise NmtkitError(
            f"{run.path}: was imported by an older version of nmtkit, which did not keep the "
            "tokenizer files; import the public model again (and fine-tune it again), or use --to "
            "safetensors"
        )
    return read_json(path, dict)


def _generation_config(
    run: RunFolder, config: Mapping[str, Any], tokenizers: Tokenizers, recipe: Recipe
) -> dict[str, Any]:
    """Returns the settings of `generate`: those of the import, overridden by the recipe's search."""
    path = run.public / "generation_config.json"
    imported = read_json(path, dict) if path.is_file() else {}
    search = recipe.search
    tokenizer = tokenizers.tgt
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    rows = tokenizer.rows.tolist()
    settings = imported | generation_settings(search)
    settings["do_sample"] = False
    settings["repetition_penalty"] = search.repetition_penalty
    if imported.get("max_new_tokens"):
        settings["max_new_tokens"] = search.max_length
    else:
        settings["max_length"] = search.max_length + 1  # includes the decoder's first input
    settings["pad_token_id"] = config.get("pad_token_id", rows[PAD])
    settings["eos_token_id"] = rows[EOS]
    settings["forced_eos_token_id"] = rows[EOS] if search.effective_at_limit == "end" else None
    if "src" not in tokenizers:  # for example GPT-2
        return settings
    settings["decoder_start_token_id"] = rows[BOS]
    first_tokens = tokenizer.first_tokens()
    if first_tokens:
        settings["forced_bos_token_id"] = rows[tokenizer.vocabulary.ids(first_tokens)[0]]
    never_written = {rows[PAD]} - {rows[EOS]}  # nmtkit never generates padding
    if search.forbid_unknown:
        never_written.add(rows[UNK])
    bad_words = [*(imported.get("bad_words_ids") or [])]
    bad_words += [[row] for row in sorted(never_written) if [row] not in bad_words]
    if bad_words:
        settings["bad_words_ids"] = bad_words
    return settings


def _write_languages(path: Path, tokenizers: Tokenizers) -> None:
    """Makes the fine-tuning languages the tokenizer's defaults."""
    chosen = chosen_languages(tokenizers.config)
    if not any(chosen.values()) or not path.is_file():
        return
    settings = read_json(path, dict)
    for side, key in (("src", "src_lang"), ("tgt", "tgt_lang")):
        language = chosen[side]
        if language is not None:
            settings[key] = language.strip("_")  # M2M100 calls __de__ de
    with write_errors(path):
        path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_public_ctranslate2(
    run: RunFolder, model: Model, tokenizers: Tokenizers, recipe: Recipe, folder: Path
) -> None:
    """Writes a CTranslate2 folder with CTranslate2's converter for `transformers` folders."""
    transformers = library("huggingface")
    converters = library("ctranslate2").converters
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        exported = Path(scratch, "huggingface")
        exported.mkdir()
        write_public_huggingface(run, model, tokenizers, recipe, exported)
        config = read_json(exported / "config.json", dict)
        # The converter reads these settings, which older versions of transformers wrote.
        config.setdefault("normalize_before", config["model_type"] != "bart")
        config.setdefault("normalize_embedding", config["model_type"] not in ("m2m_100", "pegasus"))
        write_json(exported / "config.json", config)
        try:
            specification = converters.TransformersConverter(str(exported))._load()
            if model.config.kind == "t5":
                # The converter reads this from a setting that transformers 5 changes when it loads the model.
                without = library("ctranslate2").specs.model_spec.OPTIONAL
                scale = float(getattr(model, "output_scale", 1.0))
                specification.decoder.scale_outputs = without if scale == 1.0 else scale
            # The converter omits the epsilon, so CTranslate2 would use the default.
            specification.config.layer_norm_epsilon = model.config.model_dump()["norm_epsilon"]
            if "src" in tokenizers:
                names = _row_names(
                    transformers.AutoTokenizer.from_pretrained(exported), int(config["vocab_size"])
                )
                specification._vocabularies = {"source": [names], "target": [names]}
                tokenizer = tokenizers.tgt
                assert isinstance(tokenizer, HuggingFaceTokenizer)
                rows = tokenizer.rows.tolist()
                specification.config.unk_token = names[rows[UNK]]
                specification.config.bos_token = names[rows[BOS]]
                specification.config.eos_token = names[rows[EOS]]
                # If the target language of an mBART-25 is not chosen, the target prefix is the decoder's first input.
                begins_with_prefix = tokenizer.config.affixes.get("tgt", {}).get("start") == [
                    LANGUAGE
                ]
                specification.config.decoder_start_token = (
                    None if begins_with_prefix else names[rows[BOS]]
                )
            specification.validate()
            specification.optimize()
            specification.save(str(folder))
        except Exception as fault:  # the library raises many kinds of errors for unsupported models
            reason = shorten(" ".join(str(fault).split()), 200)
            raise NmtkitError(
                f"ctranslate2 cannot convert this model: {reason}; use --to huggingface"
            ) from fault
        with write_errors(folder):
            for path in exported.iterdir():
                if path.name not in ("config.json", "model.safetensors"):
                    shutil.copyfile(path, folder / path.name)


def _row_names(tokenizer: Any, size: int) -> list[str]:
    """Returns a unique name for each row of a public model.

    The converter reads the names in row order. It gives rows without a token the names of T5's
    sentinels, and has no names for rows whose token belongs to another row.
    """
    names = []
    for row in range(size):
        name = tokenizer.convert_ids_to_tokens(row)
        has_token = name is not None and tokenizer.convert_tokens_to_ids(name) == row
        names.append(name if has_token else f"<unused {row}>")
    return names
