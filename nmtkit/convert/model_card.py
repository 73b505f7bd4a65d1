"""Writes the model card of an exported run: a README.md with the metadata for the Hugging Face Hub."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nmtkit.config import Recipe
from nmtkit.config.tasks.task import TASKS
from nmtkit.convert.engines import ctranslate2_options
from nmtkit.core.errors import DataError
from nmtkit.core.formats import dump_yaml, parse_json
from nmtkit.core.version import __version__
from nmtkit.data.tokenizers.huggingface_tokenizer import HuggingFaceTokenizer
from nmtkit.data.tokenizers.languages import chosen_languages, sides_without_language
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.decoding.settings import SearchConfig
from nmtkit.models.base import Model
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.run import source_token_limit
from nmtkit.training.checkpoints.weights import count_parameters

_LIBRARIES = {"huggingface": "transformers", "ctranslate2": "ctranslate2", "safetensors": "nmtkit"}

_USE = {
    "huggingface": """\
```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("DIR")
model = AutoModelForSeq2SeqLM.from_pretrained("DIR")
batch = tokenizer(["TEXT"], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))
```

`generate` uses the search settings in `generation_config.json`. It cannot limit the output relative
to the source length.""",
    "ctranslate2": """\
```python
import ctranslate2

translator = ctranslate2.Translator("DIR")
results = translator.translate_batch(
    [TOKENS],
OPTIONS
    suppress_sequences=[["<pad>"], ["<s>"]],
)
print([token for token in results[0].hypotheses[0] if token != "</s>"])
```

TOKENS and hypotheses are pieces of the SentencePiece models `source.spm` and `target.spm`. A
word-level model has no such files; its TOKENS are words of the vocabulary.""",
    "safetensors": """\
```sh
nmtkit COMMAND -m DIR FILE
```""",
}
_PUBLIC_TRANSLATOR_USE = """\
```python
import ctranslate2
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("DIR")
translator = ctranslate2.Translator("DIR")
tokens = tokenizer.convert_ids_to_tokens(tokenizer("TEXT").input_ids)
results = translator.translate_batch(
    [tokens],
OPTIONS
    suppress_sequences=[[tokenizer.pad_token]],
)
ids = tokenizer.convert_tokens_to_ids(results[0].hypotheses[0])
print(tokenizer.decode(ids, skip_special_tokens=True))
```
"""
_PUBLIC_GENERATOR_USE = """\
```python
import ctranslate2
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("DIR")
generator = ctranslate2.Generator("DIR")
prompt = [tokenizer.eos_token_id, *tokenizer("TEXT").input_ids]
results = generator.generate_batch(
    [tokenizer.convert_ids_to_tokens(prompt)],
OPTIONS
    include_prompt_in_result=False,
)
ids = [*prompt, *results[0].sequences_ids[0]]
print(tokenizer.decode(ids, skip_special_tokens=True))
```
"""
_DIFFERENCES = (
    "These options reproduce the recipe's search. Beam search may still find different texts, because "
    "CTranslate2 gives the probability of forbidden tokens to the other tokens, and ends a text "
    "directly after its prefix only if that is the best continuation."
)


def model_card(
    run: RunFolder,
    recipe: Recipe,
    model: Model,
    tokenizers: Tokenizers,
    program: str,
    licence: str | None,
) -> str:
    """Returns the card of a run that was exported in the format of `program`.

    `licence` defaults to the licence of the imported model.
    """
    imported = read_object(run.imported)
    task = TASKS.get(recipe.task)
    head = {
        "license": licence or imported.get("license") or "unknown",
        "library_name": _LIBRARIES[program],
        "pipeline_tag": task.name,
    }
    settings = {
        "model": recipe.model.model_dump(mode="json"),
        "search": recipe.search.model_dump(mode="json"),
    }
    parts = [
        f"---\n{dump_yaml(head)}---\n\n# {recipe.name}",
        recipe.description,
        f"A {recipe.model.kind} model for {task.name} with {count_parameters(model):,} weights and "
        f"{_sizes(tokenizers)} tokens, exported by nmtkit {__version__}.",
        "## Use",
        *_use(recipe, tokenizers, program),
        "## Data",
        _data(run, recipe, imported),
        "## Scores on the test set",
        _scores(run),
        "## Settings",
        f"```yaml\n{dump_yaml(settings)}```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _sizes(tokenizers: Tokenizers) -> str:
    sides = {"src": "source", "tgt": "target"}
    sizes = [
        f"{len(tokenizer.vocabulary):,} {sides[column]}" for column, tokenizer in tokenizers.items()
    ]
    return " and ".join(sizes)


def _use(recipe: Recipe, tokenizers: Tokenizers, program: str) -> list[str]:
    """Returns paragraphs that explain how to use the model with the program."""
    if program == "safetensors":
        return [_USE[program].replace("COMMAND", TASKS.get(recipe.task).command)]
    is_public = tokenizers.config.kind == "huggingface"
    options = _lines_of(ctranslate2_options(recipe.search))
    use = (
        _public_use(recipe.search, tokenizers, program)
        if is_public
        else _USE[program].replace("OPTIONS", options)
    )
    paragraphs = [use]
    tags = [] if is_public else tokenizers.src.vocabulary.specials
    if tags:
        paragraphs.append(
            f"A source may begin with one of these tags: {', '.join(f'`{tag}`' for tag in tags)}."
        )
    limit = source_token_limit(recipe)
    if limit:
        paragraphs.append(
            f"The model reads at most the first {limit} tokens of a source; truncate longer "
            "sources."
        )
    if program == "ctranslate2" and not is_public and tokenizers.src.config.lowercase:
        paragraphs.append("Lower-case the text before you split it into TOKENS.")
    return paragraphs


def _lines_of(options: Mapping[str, Any], comments: Mapping[str, str] | None = None) -> str:
    lines = []
    for key, value in options.items():
        line = f"    {key}={value!r},"
        if comments is not None and key in comments:
            line += f"  # {comments[key]}"
        lines.append(line)
    return "\n".join(lines)


def _public_use_in_ctranslate2(search: SearchConfig, tokenizers: Tokenizers) -> str:
    options = ctranslate2_options(search)
    if "src" not in tokenizers:
        del options["max_input_length"]
        options["max_length"] = options.pop("max_decoding_length")
        options["min_length"] = options.pop("min_decoding_length")
        return _PUBLIC_GENERATOR_USE.replace("OPTIONS", _lines_of(options)) + "\n" + _DIFFERENCES
    tokenizer = tokenizers.tgt
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    prefix = tokenizer.public_names(tokenizer.first_tokens())
    comments = {}
    sentences = _DIFFERENCES
    if "tgt" in sides_without_language(tokenizers.config):
        example = _example_target(tokenizer)
        prefix = tokenizer.public_names([example])
        comments["target_prefix"] = "the target language"
        sentences += (
            f" `target_prefix` sets the target language. `{example}` is only an example: use "
            f"any of the {len(tokenizer.languages)} languages in `tokenizer.all_special_tokens`."
        )
    if prefix:
        options["target_prefix"] = [prefix]
    program = _PUBLIC_TRANSLATOR_USE.replace("OPTIONS", _lines_of(options, comments))
    return program + "\n" + sentences


def _example_target(tokenizer: HuggingFaceTokenizer) -> str:
    """Returns the target language of the example: French if the model supports it, else its first language."""
    french = [name for name in tokenizer.languages if name.strip("_").startswith("fr")]
    return (french or tokenizer.languages)[0]


def _public_use(search: SearchConfig, tokenizers: Tokenizers, program: str) -> str:
    """Explains how to use an exported model that was imported with a Hugging Face tokenizer."""
    if program == "ctranslate2":
        use = _public_use_in_ctranslate2(search, tokenizers)
    else:
        kind = "AutoModelForSeq2SeqLM" if "src" in tokenizers else "AutoModelForCausalLM"
        use = _USE["huggingface"].replace("AutoModelForSeq2SeqLM", kind)
    parts = [use]
    chosen = chosen_languages(tokenizers.config)
    if chosen:
        parts.append(
            f"In the last training run, sources were in {chosen['src'] or 'several languages'} and "
            f"targets in {chosen['tgt'] or 'several languages'}."
        )
        if chosen["src"] is None:
            parts.append("Set `tokenizer.src_lang` to the language of the source text.")
    if tokenizers.config.source_prefix:
        parts.append(f"Put {tokenizers.config.source_prefix!r} before every source.")
    return "\n\n".join(parts)


def _data(run: RunFolder, recipe: Recipe, imported: dict[str, Any]) -> str:
    if imported:
        return (
            f"Imported from the {imported.get('model_type')} model {imported.get('folder')}; see "
            "its model card."
        )
    counts = read_object(run.report).get("splits", {})
    lines = []
    for split, files in recipe.data.splits().items():
        names = ", ".join(Path(path).name for path in files.texts())
        pairs = counts.get(split, {}).get("kept")
        count = "" if pairs is None else f", {pairs:,} pairs"
        lines.append(f"* {split}: {names}{count}")
    return "\n".join(lines)


def _scores(run: RunFolder) -> str:
    scores = read_object(run.test_scores).get("scores") or []
    lines = [
        f"* {score['name']} {score['value']:.2f} (`{score['signature']}`)"
        for score in scores
        if isinstance(score, dict)
    ]
    return "\n".join(lines) or "This model has no scores."


def read_object(path: Path) -> dict[str, Any]:
    """Returns the object in a file of the run; empty if the file is missing or damaged."""
    try:
        content = parse_json(path.read_bytes(), str(path))
    except (OSError, DataError):
        return {}
    return content if isinstance(content, dict) else {}
