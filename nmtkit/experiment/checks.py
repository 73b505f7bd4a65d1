"""What can be known of a recipe before anything is begun: its files, its sizes, whether its stages fit."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from nmtkit.data.embeddings import check_size
from nmtkit.data.vocabulary import SPECIALS
from nmtkit.errors import DataError, RecipeError
from nmtkit.models.base import MODELS, Seq2Seq, VocabularySizes
from nmtkit.recipe import Recipe
from nmtkit.training.weights import weights_of


def dry_run(recipe: Recipe) -> list[tuple[str, str]]:
    """Builds the recipe's model without memory for its weights, and looks for its files; what and value of each.

    Raises:
        RecipeError: a stage's model does not fit the one before.
    """
    require_fitting_stages(recipe)
    sizes = _most_tokens(recipe)
    last = list(recipe.by_stage().values())[-1]
    parameters = sum(weight.numel() for weight in weights_of(_without_memory(last)).values())
    tokens = f"{sizes.src:,}" if sizes.src == sizes.tgt else f"{sizes.src:,} and {sizes.tgt:,}"
    rows = [("model", recipe.model.kind), ("parameters", f"{parameters:,} with {tokens} tokens in a vocabulary")]
    rows.append(("size", f"{parameters * 4 / 2**20:,.0f} MiB in fp32"))
    training = recipe.training
    rows.append(("optimizer", f"{training.optimizer}, learning rate {training.lr}, schedule {training.schedule.kind}"))
    rows.append(("batch", f"{recipe.batch.batch_tokens:,} padded tokens x {training.accumulate}"))
    for number, stage in enumerate(recipe.stages, start=1):
        changes = ", ".join(f"{key} {value}" for key, value in _flat(stage.changes()))
        rows.append((f"stage {number}", f"{stage.name}: {changes or 'changes nothing'}"))
    for name, files in recipe.data.splits().items():
        for path in files.paths():
            rows.append((f"data.{name}", path if os.path.exists(path) else f"{path} (not here)"))
    vectors = recipe.pretrained_embeddings.files() if recipe.pretrained_embeddings else {}
    for side, path in vectors.items():
        rows.append((f"pretrained_embeddings.{side}", path if os.path.isfile(path) else f"{path} (not here)"))
    return rows


def _flat(changes: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """The single values in nested groups by their dotted keys."""
    for key, value in changes.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def require_data(recipe: Recipe) -> None:
    """Looks for the recipe's files before anything is begun.

    Raises:
        DataError: all that are missing, in one message.
    """
    missing = [path for path in recipe.data.paths() if not os.path.exists(path)]
    if missing:
        places = f"{recipe.data.folder} and the current folder" if recipe.data.folder else "the current folder"
        listed = "".join(f"\n  {path}" for path in missing)
        folder = Path(recipe.data.folder)
        fetched = f"fetch them (nmtkit fetch {folder.name}), " if folder.parent.name == "corpora" else ""
        raise DataError(
            f"recipe {recipe.name}: these files are not there (looked in {places}); {fetched}"
            f"name them under `data`, or their folder with --set data.folder=DIR:{listed}"
        )


def require_fitting_stages(recipe: Recipe) -> None:
    """Makes sure that every stage can begin with the weights of the one before, before anything is begun.

    Raises:
        RecipeError: a weight that both models have is of another shape in the later one.
    """
    before: dict[str, torch.Size] = {}
    for name, one in recipe.by_stage().items():
        now = {weight: tensor.shape for weight, tensor in weights_of(_without_memory(one)).items()}
        faults = [weight for weight in now if weight in before and before[weight] != now[weight]]
        if faults:
            raise RecipeError(
                f"recipe {recipe.name}, stage {name}: its `model` settings change the size of {faults[0]!r} from "
                f"{list(before[faults[0]])} to {list(now[faults[0]])}; a stage goes on with the weights of the one "
                "before, so sizes must stay"
            )
        before = now


def require_memory(recipe: Recipe) -> None:
    """Makes sure that this machine can hold the weights, before anything is begun: the kernel would kill the process.

    Raises:
        RecipeError: it cannot, whatever the text is.
    """
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for one in recipe.by_stage().values():
        weights = weights_of(_without_memory(one, _fewest_tokens(one))).values()
        needed = sum(weight.numel() for weight in weights) * 4
        if needed > there:
            raise RecipeError(
                f"recipe {recipe.name}: the weights of its model take {needed / 2**30:,.0f} GiB, and this machine has "
                f"{there / 2**30:,.0f} GiB of memory; make it smaller: fewer layers, smaller sizes (`model`) or a "
                "smaller vocabulary (`tokenizer.vocab_size`)"
            )


def _without_memory(recipe: Recipe, sizes: VocabularySizes | None = None) -> Seq2Seq:
    """The recipe's model with the shapes of its weights and no memory for them; by default with most tokens."""
    with torch.device("meta"):
        return MODELS.get(recipe.model.kind)(recipe.model, sizes or _most_tokens(recipe))


def _most_tokens(recipe: Recipe) -> VocabularySizes:
    """The vocabularies as large as the recipe allows; text may have fewer words."""
    how = recipe.tokenizer
    return VocabularySizes(how.vocab_size, how.tgt_vocab_size or how.vocab_size, how.joint)


def _fewest_tokens(recipe: Recipe) -> VocabularySizes:
    """The vocabularies as small as text can make them: a vocabulary of words or characters has only what occurs."""
    fewest = len(SPECIALS)
    return (
        _most_tokens(recipe)
        if recipe.tokenizer.kind in ("bpe", "unigram")
        else VocabularySizes(fewest, fewest, recipe.tokenizer.joint)
    )


def require_embeddings(recipe: Recipe) -> None:
    """Looks whether the recipe's word vectors are there and of the model's size, before anything is begun.

    Raises:
        DataError: they are not.
    """
    setting = embedding_setting(recipe)
    size = recipe.model.model_dump()[setting.removeprefix("model.")]
    for path in (recipe.pretrained_embeddings.files() if recipe.pretrained_embeddings else {}).values():
        check_size(path, size, setting)


def embedding_setting(recipe: Recipe) -> str:
    """The key of a model's settings that says how many numbers a word has."""
    has_own = "embedding_size" in type(recipe.model).model_fields
    return "model.embedding_size" if has_own else "model.hidden_size"
