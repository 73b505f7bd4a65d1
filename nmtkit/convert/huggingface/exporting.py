"""Writes an imported model, fine-tuned or not, as the folder of `transformers` that it was imported from.

`import` keeps the settings and the tokenizer of that folder in the run. Weights get their names and rows back: the
tables of names are those of the import, and the tokenizer has the row of each token.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmtkit.config import Recipe
from nmtkit.convert.export_weights import library
from nmtkit.convert.exporting import EARLY_STOPPING, PUBLIC_EXPORTS
from nmtkit.convert.external_files import read_json
from nmtkit.convert.import_weights import SUPPRESSED_BIAS, SourceNames
from nmtkit.core.errors import NmtkitError, shorten
from nmtkit.core.files import write_errors, write_json
from nmtkit.core.registry import Registry
from nmtkit.data.tokenizers.huggingface_tokenizer import HuggingFaceTokenizer
from nmtkit.data.tokenizers.languages import chosen_languages
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, UNK
from nmtkit.models.base import Model
from nmtkit.runs.folder import RunFolder
from nmtkit.training.checkpoints.tensor_files import write_bare_tensors
from nmtkit.training.checkpoints.weights import get_weights

PUBLIC_FAMILIES: Registry[Callable[["PublicWeights", Mapping[str, Any]], dict[str, Tensor]]] = Registry("model type")
"""Returns the tensors of a model by their public names, by `model_type` in `config.json`."""

_WORDS = ("src_embedding.weight", "tgt_embedding.weight", "output.weight", "output.bias")


class PublicWeights:
    """The weights of an imported model, whose rows of words can be put in the public model's order."""

    def __init__(self, model: Model, tokenizer: HuggingFaceTokenizer, size: int) -> None:
        self.weights: dict[str, Tensor] = {
            name: tensor.detach() for name, tensor in model.state_dict(keep_vars=True).items()
        }
        self._distinct = get_weights(model)
        self.has_separate_output = (
            self.weights["output.weight"].data_ptr() != self.weights["tgt_embedding.weight"].data_ptr()
        )
        self.rows = torch.from_numpy(tokenizer.rows)  # (V,)
        self.size = size
        self.groups = tokenizer.shared_rows()

    def words(self, name: str) -> Tensor:
        """Returns a matrix `(V,H)` with the public model's rows."""
        matrix = self.weights[name]
        for ids in self.groups:
            if not bool((matrix[ids] == matrix[ids[0]]).all()):
                raise NmtkitError(
                    f"{name}: tokens that are one token in the public model have different vectors here, as after "
                    "training with training.shard or an older version; take --to safetensors"
                )
        public = matrix.new_zeros(self.size, matrix.shape[1])
        has_row = self.rows < self.size
        public[self.rows[has_row]] = matrix[has_row]
        return public

    def output_bias(self) -> Tensor:
        """Returns the bias of the output layer `(V,)` with the public model's rows."""
        bias = self.weights["output.bias"]
        public = bias.new_zeros(self.size)
        is_written = (bias > SUPPRESSED_BIAS) & (self.rows < self.size)
        public[self.rows[is_written]] = bias[is_written]
        return public

    def others(self, names: SourceNames, left_out: Sequence[str] = ()) -> dict[str, Tensor]:
        """Returns all weights but those of words by the names that `names` gives them, row upon row."""
        tensors: dict[str, Tensor] = {}
        for name, weight in self._distinct.items():
            if name not in _WORDS and name not in left_out:
                parts = names(name)
                tensors.update(zip(parts, weight.chunk(len(parts)), strict=True))
        return tensors


def read_public_config(run: RunFolder) -> dict[str, Any]:
    """Returns the `config.json` that a model was imported with; raises NmtkitError if the run has none."""
    path = run.public / "config.json"
    if not path.is_file():
        raise NmtkitError(
            f"{run.path}: it was imported by an older version, which did not keep the tokenizer's files: import the "
            "public model again (and fine-tune it again), or take --to safetensors"
        )
    return read_json(path, dict)


@PUBLIC_EXPORTS.register("huggingface")
def write_huggingface(run: RunFolder, model: Model, tokenizers: Tokenizers, recipe: Recipe, folder: Path) -> None:
    """Writes weights, settings and tokenizer for `from_pretrained` of `transformers`."""
    config = read_public_config(run)
    kind = str(config["model_type"])
    if kind not in PUBLIC_FAMILIES:
        raise NmtkitError(f"a model of type {kind} cannot be exported to huggingface; take --to safetensors")
    tokenizer = tokenizers.tgt
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    public = PublicWeights(model, tokenizer, int(config["vocab_size"]))
    tensors = PUBLIC_FAMILIES.get(kind)(public, config)
    with write_errors(folder):
        for path in run.public.iterdir():
            shutil.copyfile(path, folder / path.name)
    rows = tokenizer.rows.tolist()
    settings: dict[str, Any] = {key: value for key, value in config.items() if key != "torch_dtype"}
    settings |= {"dtype": "float32"}
    if tokenizers.config.source_prefix:  # `import` and the pipelines of `transformers` find it here
        settings["task_specific_params"] = {recipe.task: {"prefix": tokenizers.config.source_prefix}}
    if "decoder_start_token_id" in config or kind == "mbart":
        settings["decoder_start_token_id"] = rows[BOS]
    write_json(folder / "config.json", settings)
    write_json(folder / "generation_config.json", _generation(run, config, tokenizers, recipe))
    write_bare_tensors(folder / "model.safetensors", {name: one.contiguous() for name, one in tensors.items()})
    _write_languages(folder / "tokenizer_config.json", tokenizers)


def _generation(run: RunFolder, config: Mapping[str, Any], tokenizers: Tokenizers, recipe: Recipe) -> dict[str, Any]:
    """Returns the settings of `generate`: the imported settings, changed by the recipe's search."""
    path = run.public / "generation_config.json"
    given = read_json(path, dict) if path.is_file() else {}
    search = recipe.search
    tokenizer = tokenizers.tgt
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    rows = tokenizer.rows.tolist()
    limit = "max_new_tokens" if given.get("max_new_tokens") else "max_length"
    settings = given | {
        "do_sample": False,
        "num_beams": search.beam_size,
        "early_stopping": EARLY_STOPPING.get(search.stop, False) if search.beam_size > 1 else False,
        "length_penalty": search.alpha if search.length_penalty == "average" else 0.0,
        "no_repeat_ngram_size": search.no_repeat_ngram,
        "repetition_penalty": search.repetition_penalty,
        "min_length": search.min_length + 1 if search.min_length else 0,
        # max_length counts the decoder's first input
        limit: search.max_length if limit == "max_new_tokens" else search.max_length + 1,
        "pad_token_id": config.get("pad_token_id", rows[PAD]),
        "eos_token_id": rows[EOS],
        "forced_eos_token_id": rows[EOS] if search.at_limit == "end" else None,
    }
    if "src" not in tokenizers:  # as GPT-2
        return settings
    settings["decoder_start_token_id"] = rows[BOS]
    forced = tokenizer.first_tokens()
    if forced:
        settings["forced_bos_token_id"] = rows[tokenizer.vocabulary.ids(forced)[0]]
    never = [*(given.get("bad_words_ids") or [])]
    forbidden = {rows[PAD]} - {rows[EOS]}  # no search here writes padding
    if search.forbid_unknown:
        forbidden.add(rows[UNK])
    never += [[row] for row in sorted(forbidden) if [row] not in never]
    if never:
        settings["bad_words_ids"] = never
    return settings


def _write_languages(path: Path, tokenizers: Tokenizers) -> None:
    """Makes the languages of a fine-tuned model the defaults of its tokenizer."""
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


@PUBLIC_EXPORTS.register("ctranslate2")
def write_ctranslate2(run: RunFolder, model: Model, tokenizers: Tokenizers, recipe: Recipe, folder: Path) -> None:
    """Writes the folder of CTranslate2, by its converter of the folder of `transformers`."""
    library("huggingface")
    converters = library("ctranslate2").converters
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        exported = Path(scratch, "huggingface")
        exported.mkdir()
        write_huggingface(run, model, tokenizers, recipe, exported)
        config = read_json(exported / "config.json", dict)
        # The converter reads these settings, which older versions of transformers wrote.
        config.setdefault("normalize_before", config["model_type"] != "bart")
        config.setdefault("normalize_embedding", config["model_type"] != "m2m_100")
        write_json(exported / "config.json", config)
        try:
            specification = converters.TransformersConverter(str(exported))._load()
            if model.config.kind == "t5":
                # The converter reads this from a setting that transformers 5 changes when it loads the model.
                without = library("ctranslate2").specs.model_spec.OPTIONAL
                scale = float(getattr(model, "output_scale", 1.0))
                specification.decoder.scale_outputs = without if scale == 1.0 else scale
            specification.validate()
            specification.optimize()
            specification.save(str(folder))
        except Exception as fault:  # the library raises many kinds, for models that it does not support
            reason = shorten(" ".join(str(fault).split()), 200)
            raise NmtkitError(f"ctranslate2 cannot convert this model: {reason}; take --to huggingface") from fault
        with write_errors(folder):
            for path in exported.iterdir():
                if path.name not in ("config.json", "model.safetensors"):
                    shutil.copyfile(path, folder / path.name)
