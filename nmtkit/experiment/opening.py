"""Opening the model of a run to translate with it."""

from collections.abc import Mapping, Sequence

from nmtkit import device as devices
from nmtkit.experiment import folder as folders
from nmtkit.experiment.tuning import Found, look_up, searching
from nmtkit.recipe import Recipe
from nmtkit.task import TASKS
from nmtkit.translation.translator import Translator
from nmtkit.translation.way import SearchWay


def load(
    run: str | None = None,
    device: str = "auto",
    weights: str = "auto",
    batch_tokens: int | None = None,
    search_settings: Mapping[str, object] | None = None,
    max_source_tokens: int | None = None,
) -> Translator:
    """Opens a trained run.

    Args:
        run: its folder or its name under `runs/`; None takes `$NMTKIT_MODEL`, else the newest finished run.
        device: `auto`, `cpu`, `cuda`, `cuda:1`, ...
        weights: `auto`, `best`, `last`, `average`, or a file.
        batch_tokens: padded source tokens in a batch.
        search_settings: keys of the recipe's `search` group that differ, e.g. `{"beam_size": 1}`.
        max_source_tokens: only so many tokens of a source are read; None as in training, where a recipe for
            summaries says `data.over_long: truncate`, else all.

    Raises:
        NmtkitError: no such run, weights, device or setting; the message says what there is.
    """
    folder, _ = folders.find(run)
    return open_translator(folder, device, weights, batch_tokens, search_settings, max_source_tokens=max_source_tokens)


Translator.load = load


def open_translator(
    folder: folders.RunFolder,
    device: str = "auto",
    weights: str = "auto",
    batch_tokens: int | None = None,
    search_settings: Mapping[str, object] | None = None,
    threads: int | None = None,
    max_source_tokens: int | None = None,
) -> Translator:
    """As `load`, for a run already found; `threads` is the number of CPU threads, None for torch's choice."""
    place = devices.choose(device)
    model, tokenizers, recipe = folder.open_model(place, weights)
    config = recipe.search.changed(search_settings or {})
    limit = max_source_tokens or source_limit(recipe)
    known = look_up(searching.work(recipe, model.sizes.tgt, config.beam_size, threads, place), SearchWay)
    way = known.way if known else None
    translator = Translator(model, tokenizers, config, batch_tokens, recipe.name, limit, recipe.task, way)
    devices.prepare(place, translator.way.matmul_precision, threads)
    return translator


def find_way(
    translator: Translator,
    recipe: Recipe,
    lines: Sequence[str],
    planned_seconds: float,
    threads: int | None = None,
    again: bool = False,
) -> Found[SearchWay]:
    """Finds how this machine searches quickest with a model, which it does from now on; see `experiment.tuning`.

    Args:
        translator: with the model.
        recipe: of the model.
        lines: some that the model is for.
        planned_seconds: measuring takes a twentieth of it at most.
        threads: as of `open_translator`.
        again: measure even where something was found before.
    """

    def take(way: SearchWay) -> None:
        translator.way = way
        devices.prepare(translator.device, way.matmul_precision, threads)

    def texts(way: SearchWay, some: Sequence[str]) -> list[str]:
        take(way)
        return translator.translate(some)

    sizes = translator.model.sizes
    work = searching.work(recipe, sizes.tgt, translator.config.beam_size, threads, translator.device)
    found = searching.find(texts, lines, translator.device, work, planned_seconds, again)
    take(found.way)
    return found


def source_limit(recipe: Recipe) -> int | None:
    """How many tokens of a source a recipe's model reads at most; None where it reads all.

    A model of summaries that was trained on the beginnings of articles reads the beginnings.
    """
    cuts = recipe.data.cuts
    return cuts[0] if cuts is not None and TASKS.get(recipe.task).reads_beginnings else None
