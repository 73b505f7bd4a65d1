"""The model card of an exported run: model, training data, scores and use."""

from pathlib import Path
from typing import Any

from nmtkit.checkpoints.weights import count_parameters
from nmtkit.core.errors import DataError
from nmtkit.core.formats import dump_yaml, parse_json
from nmtkit.core.task import TASKS
from nmtkit.core.version import __version__
from nmtkit.models.base import Seq2Seq
from nmtkit.recipe import Recipe
from nmtkit.runs.folder import RunFolder

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
found = translator.translate_batch([TOKENS], max_input_length=0, suppress_sequences=[["<pad>"], ["<s>"]])
print(found[0].hypotheses[0])
```

TOKENS and hypotheses are pieces of the SentencePiece models `source.spm` and `target.spm`; of a model of words there
are none, and TOKENS are words of its vocabulary.""",
    "safetensors": """\
```sh
nmtkit COMMAND -m DIR < TEXT
```""",
}
"""How each format is used."""


def model_card(run: RunFolder, recipe: Recipe, model: Seq2Seq, to: str, licence: str | None = None) -> str:
    """The text of a README.md, with the head that Hugging Face's hub reads.

    Args:
        run: the exported run, whose test scores and counts of pairs are included.
        recipe: of the run.
        model: its model.
        to: the format.
        licence: None: an imported model's own.
    """
    imported, found = _read(run.imported), _read(run.test_scores)
    task = TASKS.get(recipe.task)
    head = {
        "license": licence or imported.get("license") or "unknown",
        "library_name": {"huggingface": "transformers"}.get(to, to if to == "ctranslate2" else "nmtkit"),
        "pipeline_tag": task.name,
    }
    settings = {"model": recipe.model.model_dump(mode="json"), "search": recipe.search.model_dump(mode="json")}
    parts = [
        f"---\n{dump_yaml(head)}---\n\n# {recipe.name}",
        recipe.description,
        f"A {recipe.model.kind} for {task.name} with {count_parameters(model):,} weights, {model.sizes.src:,} source "
        f"and {model.sizes.tgt:,} target tokens. nmtkit {__version__} wrote this folder.",
        "## Use",
        _USE[to].replace("COMMAND", task.command),
        "## Data",
        _data(run, recipe, imported),
        "## Scores",
        _scores(found) or "This model has no scores of a test set.",
        "## Settings",
        f"```yaml\n{dump_yaml(settings)}```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _data(run: RunFolder, recipe: Recipe, imported: dict[str, Any]) -> str:
    if imported:
        return f"Imported from the {imported.get('model_type')} model {imported.get('folder')}; see the card of that."
    counted = _read(run.report).get("splits", {})
    rows = []
    for split, files in recipe.data.splits().items():
        pairs = counted.get(split, {}).get("kept")
        rows.append(f"| {split} | {', '.join(Path(one).name for one in files.texts())} | {_number(pairs)} |")
    return "\n".join(["| split | files | pairs |", "| --- | --- | ---: |", *rows])


def _scores(found: dict[str, Any]) -> str:
    scores = [one for one in found.get("scores") or [] if isinstance(one, dict)]
    head = ["Of the test set:\n", "| metric | value | signature |", "| --- | ---: | --- |"]
    rows = []
    for one in scores:
        signature = str(one["signature"]).replace("|", "\\|")
        rows.append(f"| {one['name']} | {one['value']:.2f} | {signature} |")
    return "\n".join([*head, *rows] if rows else [])


def _number(value: int | None) -> str:
    return "not counted" if value is None else f"{value:,}"


def _read(path: Path) -> dict[str, Any]:
    """The object in a file of the run; empty if it is missing or damaged."""
    try:
        found = parse_json(path.read_bytes(), str(path))
    except (OSError, DataError):
        return {}
    return found if isinstance(found, dict) else {}
