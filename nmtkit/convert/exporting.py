"""Exports a run: a folder for Hugging Face or CTranslate2, or a run without its training, each with a model card."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmtkit.config import Recipe
from nmtkit.convert.export_weights import require_convertible, to_ctranslate2, to_hugging_face
from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.core.files import atomic_write_text, new_folder, write_errors, write_json
from nmtkit.core.formats import dump_yaml, parse_json
from nmtkit.core.registry import Registry
from nmtkit.core.version import __version__
from nmtkit.data.text.config import FILE_KINDS
from nmtkit.data.tokenizers.huggingface_tokenizer import HuggingFaceTokenizer
from nmtkit.data.tokenizers.languages import chosen_languages
from nmtkit.data.tokenizers.sentencepiece_model import with_number_rules
from nmtkit.data.tokenizers.tokenizer import SentencePieceTokenizer
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, SPECIALS, UNK
from nmtkit.decoding.rules import SearchConfig
from nmtkit.models.base import Model, Seq2Seq
from nmtkit.models.transformer import TransformerConfig
from nmtkit.runs.folder import Notify, RunFolder, ignore
from nmtkit.runs.saved import SavedRun, source_token_limit
from nmtkit.tasks.task import TASKS
from nmtkit.training.checkpoints.tensor_files import write_bare_tensors
from nmtkit.training.checkpoints.weights import count_parameters, get_weights, save_weights

_FEWEST_POSITIONS = 1024

EARLY_STOPPING: dict[str, bool | str] = {"first_k": True, "huggingface": False, "exact": "never"}
"""`early_stopping` of `transformers` for our `stop`, where it has a counterpart."""
_STOPS = {"huggingface": tuple(EARLY_STOPPING), "ctranslate2": ("first_k",)}

_USE = {
    "huggingface": """\
```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("DIR")
model = AutoModelForSeq2SeqLM.from_pretrained("DIR")
batch = tokenizer(["TEXT"], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))
```

`generate` searches as `generation_config.json` says. It has no limits by the length of the source.""",
    "ctranslate2": """\
```python
import ctranslate2

translator = ctranslate2.Translator("DIR")
results = translator.translate_batch([TOKENS], max_input_length=0, suppress_sequences=[["<pad>"], ["<s>"]])
print(results[0].hypotheses[0])
```

TOKENS and hypotheses are pieces of the SentencePiece models `source.spm` and `target.spm`; of a model of words there
are none, and TOKENS are words of its vocabulary.""",
    "safetensors": """\
```sh
nmtkit COMMAND -m DIR FILE
```""",
}


def export_run(
    run: SavedRun, to: str, folder: Path, weights: str = "auto", licence: str | None = None, notify: Notify = ignore
) -> None:
    """Writes a trained run into a new or empty folder, in one of the formats `EXPORTS`, with a model card.

    `weights` are as of `SavedRun.weights`; the default of the card's `licence` is an imported model's own. `notify`
    gets a warning if the other program cannot search as the recipe says.
    """
    with new_folder(folder, "name another folder") as beside:
        model, tokenizers, recipe = run.open_model(torch.device("cpu"), weights)
        is_public = tokenizers.config.kind == "huggingface"
        if to != "safetensors" and is_public:
            PUBLIC_EXPORTS.get(to)(run.folder, model, tokenizers, recipe, beside)
        else:
            EXPORTS[to](model, tokenizers, recipe, beside)
        if to == "safetensors":
            if report := _read_object(run.folder.report):
                write_json(beside / run.folder.report.name, report | {"files": {}})
            with write_errors(folder):
                for part in filter(Path.is_file, (run.folder.imported, run.folder.test_scores)):
                    shutil.copyfile(part, beside / part.name)
                if run.folder.public.is_dir():
                    shutil.copytree(run.folder.public, beside / run.folder.public.name)
        else:
            try:
                # A language is forced as a first token, which certain_prefix is for.
                search = recipe.search.changed({"certain_prefix": False}) if is_public else recipe.search
                require_comparable(to, search, alone=True)
            except NmtkitError as fault:
                notify(f"warning: {fault}; with the same weights its texts may differ")
            if limit := source_token_limit(recipe):
                notify(f"warning: {to} reads all of a source, and nmtkit its first {limit} tokens; cut longer ones")
        atomic_write_text(beside / "README.md", _model_card(run.folder, recipe, model, tokenizers, to, licence))


def require_comparable(engine: str, config: SearchConfig, alone: bool = False) -> None:
    """Raises NmtkitError for search settings that an engine does not have, naming all of them.

    `alone`: nobody chooses among what it finds.
    """
    supported = {
        "length_penalty": (config.length_penalty in ("average", "none") or not config.alpha, "average or none"),
        "coverage_penalty": (not config.coverage_penalty, "0"),
        "stop": (config.rule in _STOPS[engine], "first_k"),
        "min_length_ratio": (not config.min_length_ratio, "0"),
        "word_reward": (not config.word_reward, "0"),
        "repetition_penalty": (config.repetition_penalty == 1.0, "1"),
        "certain_prefix": (not config.certain_prefix, "false"),
        "patience": (config.patience == 1.0, "1"),
        "no_repeat_except": (not config.no_repeat_except, "none"),
        "samples": (not config.samples, "0"),
        "diversity_groups": (config.diversity_groups == 1, "1"),
        "brackets": (not config.brackets, "false"),
        "mbr": (config.mbr == "none" or not alone, "none"),
        "at_limit": (config.at_limit != "end" or engine != "ctranslate2", "behind or compete"),
    }
    missing = [f"{key} {getattr(config, key)} (take {other})" for key, (has, other) in supported.items() if not has]
    if missing:
        raise NmtkitError(f"{engine} has no search like this one: it lacks {'; '.join(missing)}")


def _hugging_face(model: Seq2Seq, tokenizers: Tokenizers, recipe: Recipe, folder: Path) -> None:
    config = require_convertible(model.config, "huggingface")
    pieces = all(isinstance(one, SentencePieceTokenizer) for one in tokenizers.values())
    if not pieces or any(one.config.lowercase for one in tokenizers.values()):
        text = "text that was turned into lower case" if pieces else "words"
        raise NmtkitError(
            f"huggingface has no tokenizer like this one, of {text}; take --to safetensors, or train with a tokenizer "
            "of kind bpe or unigram that leaves case as it is"
        )
    longest = _longest(recipe, config)
    settings, tensors = to_hugging_face(model, longest)
    write_json(folder / "config.json", settings | {"nmtkit": _origin(recipe)})
    write_json(folder / "generation_config.json", _generation_config(recipe.search, longest))
    write_bare_tensors(folder / "model.safetensors", tensors)
    _write_pieces(tokenizers, folder)
    tables = {"vocab.json": tokenizers.src} | ({} if tokenizers.shared else {"target_vocab.json": tokenizers.tgt})
    for file, one in tables.items():
        write_json(folder / file, {word: number for number, word in enumerate(one.vocabulary.tokens)})
    special = dict(zip(("pad_token", "unk_token", "bos_token", "eos_token"), SPECIALS, strict=True))
    tokenizer_settings: dict[str, Any] = {
        "tokenizer_class": "MarianTokenizer",
        "clean_up_tokenization_spaces": False,
        "separate_vocabs": not tokenizers.shared,
        "model_max_length": longest,
    }
    if tags := tokenizers.src.vocabulary.specials:  # else a text could not name them
        tokenizer_settings["additional_special_tokens"] = [*tags]
    write_json(folder / "tokenizer_config.json", tokenizer_settings | special)


def _origin(recipe: Recipe) -> dict[str, Any]:
    """For `import`; other programs ignore it."""
    return {"version": __version__, "recipe": recipe.name, "task": recipe.task}


def _longest(recipe: Recipe, config: TransformerConfig) -> int:
    if config.positions == "learned":
        return config.max_positions
    return max(_FEWEST_POSITIONS, 1 + max(recipe.search.max_length, *recipe.data.limits))  # one for </s>


def _generation_config(search: SearchConfig, longest: int) -> dict[str, Any]:
    """Settings of `generate` closest to the recipe's; it has no limits by the length of the source."""
    never = [PAD, BOS, *([UNK] if search.forbid_unknown else [])]
    return {
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": EOS if search.at_limit == "end" else None,
        "bad_words_ids": [[word] for word in never],
        "num_beams": search.beam_size,
        "max_length": min(search.max_length, longest) + 1,  # theirs counts the decoder's first input
        "min_length": search.min_length + 1 if search.min_length else 0,
        "early_stopping": EARLY_STOPPING.get(search.stop, False) if search.beam_size > 1 else False,
        "length_penalty": search.alpha if search.length_penalty == "average" else 0.0,
        "no_repeat_ngram_size": search.no_repeat_ngram,
    }


def _write_pieces(tokenizers: Tokenizers, folder: Path) -> None:
    for name, one in (("source.spm", tokenizers.src), ("target.spm", tokenizers.tgt)):
        with write_errors(folder / name):
            if isinstance(one, SentencePieceTokenizer):
                content = one.content()
                if one.config.normalization == "nfkc_numbers":  # elsewhere the model must normalize text by itself
                    content = with_number_rules(content)
                (folder / name).write_bytes(content)


def _ctranslate2(model: Seq2Seq, tokenizers: Tokenizers, recipe: Recipe, folder: Path) -> None:
    config = require_convertible(model.config, "ctranslate2")
    src, tgt = tokenizers.src.vocabulary.tokens, tokenizers.tgt.vocabulary.tokens
    spec = to_ctranslate2(model, src, tgt, _longest(recipe, config))
    cut = tokenizers.src.config.model_dump(include={"kind", "lowercase", "normalization"})
    cut["specials"] = [*tokenizers.src.vocabulary.specials]
    spec.config.add_attribute("nmtkit", _origin(recipe) | {"tokenizer": cut})
    with write_errors(folder):
        spec.save(str(folder))
    _write_pieces(tokenizers, folder)


def _safetensors(model: Model, tokenizers: Tokenizers, recipe: Recipe, folder: Path) -> None:
    """A run of weights, tokenizers and recipe; the folders of its text and of other runs are private and left out."""
    data, splits, init, vectors = recipe.data, {}, recipe.init_from, recipe.pretrained_embeddings
    for split, files in data.splits().items():
        names = {kind: [Path(path).name for path in getattr(files, kind)] for kind in FILE_KINDS}
        splits[split] = files.model_copy(update=names)
    changes: dict[str, Any] = {"data": data.model_copy(update={"folder": "", **splits}), "stages": []}
    if init is not None:
        names_of_runs = {key: Path(run).resolve().name for key, run in init.runs.items()}
        names_of_runs["checkpoint"] = Path(init.checkpoint).name
        changes["init_from"] = init.model_copy(update={**names_of_runs, "test": None})
    if vectors is not None:
        names_of_vectors: dict[str, Any] = {side: Path(path).name for side, path in vectors.files().items()}
        changes["pretrained_embeddings"] = vectors.model_copy(update=names_of_vectors)
    recipe = recipe.model_copy(update=changes)
    write_untrained_run(RunFolder(folder), recipe, tokenizers, get_weights(model), "exported")


def write_untrained_run(
    run: RunFolder, recipe: Recipe, tokenizers: Tokenizers, weights: Mapping[str, Tensor], reason: str
) -> None:
    """Writes a run of weights, tokenizers and recipe that was not trained in this folder, for the reason given."""
    tokenizers.save(run.vocabulary)
    save_weights(run.average, weights, tokenizers.checksum)
    write_json(run.result, {"reason": reason, "updates": 0, "best": None, "kept": []})
    atomic_write_text(run.recipe, recipe.to_yaml())
    SavedRun(run).save_inference()


def _model_card(
    run: RunFolder, recipe: Recipe, model: Model, tokenizers: Tokenizers, to: str, licence: str | None
) -> str:
    """The text of a README.md, with the head that Hugging Face's hub reads."""
    imported, measured = _read_object(run.imported), _read_object(run.test_scores)
    scores = [one for one in measured.get("scores") or [] if isinstance(one, dict)]
    shown = (f"* {one['name']} {one['value']:.2f} (`{one['signature']}`)" for one in scores)
    task, sides = TASKS.get(recipe.task), {"src": "source", "tgt": "target"}
    tokens = " and ".join(f"{len(one.vocabulary):,} {sides[column]}" for column, one in tokenizers.items())
    head = {
        "license": licence or imported.get("license") or "unknown",
        "library_name": {"huggingface": "transformers", "safetensors": "nmtkit"}.get(to, to),
        "pipeline_tag": task.name,
    }
    is_public = tokenizers.config.kind == "huggingface"
    tags = () if to == "safetensors" or is_public else tokenizers.src.vocabulary.specials
    limit = None if to == "safetensors" else source_token_limit(recipe)
    settings = {"model": recipe.model.model_dump(mode="json"), "search": recipe.search.model_dump(mode="json")}
    parts = [
        f"---\n{dump_yaml(head)}---\n\n# {recipe.name}",
        recipe.description,
        f"A model of kind {recipe.model.kind} for {task.name}, with {count_parameters(model):,} weights and {tokens} "
        f"tokens. nmtkit {__version__} wrote this folder.",
        "## Use",
        _public_use(to, tokenizers) if is_public and to != "safetensors" else _USE[to].replace("COMMAND", task.command),
        f"Before a source may stand: {', '.join(f'`{tag}`' for tag in tags)}." if tags else "",
        f"It was made to read the first {limit} tokens of a source; cut longer ones." if limit else "",
        "TOKENS are of text in lower case."
        if to == "ctranslate2" and not is_public and tokenizers.src.config.lowercase
        else "",
        "## Data",
        _data(run, recipe, imported),
        "## Scores of the test set",
        "\n".join(shown) or "This model has none.",
        "## Settings",
        f"```yaml\n{dump_yaml(settings)}```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _public_use(to: str, tokenizers: Tokenizers) -> str:
    """Returns how to use an exported model that has the tokenizer it was imported with."""
    kind = "AutoModelForSeq2SeqLM" if "src" in tokenizers else "AutoModelForCausalLM"
    parts = [_USE["huggingface"].replace("AutoModelForSeq2SeqLM", kind)]
    if to == "ctranslate2":
        parts = [
            """\
```python
import ctranslate2
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("DIR")
translator = ctranslate2.Translator("DIR")
tokens = tokenizer.convert_ids_to_tokens(tokenizer("TEXT").input_ids)
results = translator.translate_batch([tokens], target_prefix=[PREFIX], suppress_sequences=[["<pad>"]])
ids = tokenizer.convert_tokens_to_ids(results[0].hypotheses[0])
print(tokenizer.decode(ids, skip_special_tokens=True))
```

A language model is a `ctranslate2.Generator`. PREFIX is a list of the tokens that every text begins with, or None."""
        ]
        tokenizer = tokenizers.tgt
        first = tokenizer.first_tokens() if isinstance(tokenizer, HuggingFaceTokenizer) else []
        parts = [parts[0].replace("PREFIX]", f"{first or None}]").replace("PREFIX is", f"{first or None} is")]
    chosen = chosen_languages(tokenizers.config)
    if chosen:
        parts.append(
            f"It was last trained to read {chosen['src'] or 'several languages'} and to write "
            f"{chosen['tgt'] or 'several languages'}."
        )
    if tokenizers.config.source_prefix:
        parts.append(f"Put {tokenizers.config.source_prefix!r} before every source.")
    return "\n\n".join(parts)


def _data(run: RunFolder, recipe: Recipe, imported: dict[str, Any]) -> str:
    if imported:
        return f"Imported from the {imported.get('model_type')} model {imported.get('folder')}; see the card of that."
    counted, lines = _read_object(run.report).get("splits", {}), []
    for split, files in recipe.data.splits().items():
        pairs = counted.get(split, {}).get("kept")
        names = ", ".join(Path(one).name for one in files.texts())
        lines.append(f"* {split}: {names}" + ("" if pairs is None else f", {pairs:,} pairs"))
    return "\n".join(lines)


def _read_object(path: Path) -> dict[str, Any]:
    """The object in a file of the run; empty if it is missing or damaged."""
    try:
        content = parse_json(path.read_bytes(), str(path))
    except (OSError, DataError):
        return {}
    return content if isinstance(content, dict) else {}


PUBLIC_EXPORTS: Registry[Callable[[RunFolder, Any, Tokenizers, Recipe, Path], None]] = Registry("format")
"""Writers of models that were imported with a tokenizer of Hugging Face, by format."""

EXPORTS: dict[str, Callable[[Any, Tokenizers, Recipe, Path], None]] = {
    "huggingface": _hugging_face,
    "ctranslate2": _ctranslate2,
    "safetensors": _safetensors,
}
