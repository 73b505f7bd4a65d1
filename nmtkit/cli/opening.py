"""Opening a translator for the commands that use a trained run."""

from collections.abc import Mapping

from nmtkit import console, device
from nmtkit.errors import NmtkitError, RecipeError
from nmtkit.experiment import folder, opening
from nmtkit.models.base import headed
from nmtkit.task import TASKS
from nmtkit.translation.translator import Translator


def open_translator(
    model: str | None,
    device_name: str,
    weights: str,
    batch_tokens: int | None = None,
    settings: dict[str, object] | None = None,
    threads: int | None = None,
    task: str | None = None,
    max_source_tokens: int | None = None,
) -> Translator:
    """Finds the run, opens it, and says on stderr which run, which weights and which device it is.

    Raises:
        NmtkitError: the run cannot be opened, or is of another task than the one that is named.
    """
    run, why = folder.find(model, task=task)
    found = run.load_recipe().task
    if task is not None and found != task:
        raise NmtkitError(
            f"{run.path} ({why}) was trained for {found}: use `nmtkit {TASKS.get(found).command}`, or name another run "
            "with -m RUN"
        )
    translator = opening.open_translator(run, device_name, weights, batch_tokens, settings, threads, max_source_tokens)
    console.say(
        f"model {run.path} ({why}), {_name(run, weights)}, on {device.describe(translator.device)}", stderr=True
    )
    return translator


def _name(run: folder.RunFolder, which: str) -> str:
    """The weights' file, after its stage where training had stages: files of two stages may have one name."""
    path = run.weights(which)
    return f"{path.parent.name}/{path.name}" if path.parent.parent == run.checkpoints else path.name


def widen_beam(translator: Translator, n_best: int, given: Mapping[str, object]) -> None:
    """Makes the beam wide enough for the results asked for, unless its size is among the search settings given."""
    if "beam_size" not in given and n_best > translator.config.beam_size:
        console.say(f"beam size {n_best} instead of {translator.config.beam_size}, for --n-best {n_best}", stderr=True)
        translator.config = translator.config.changed({"beam_size": n_best})


def show_heads(translator: Translator, layer: int | None, head: int | None) -> None:
    """Makes a Transformer show the attention of the layer or head that was asked for, if any was."""
    if layer is not None or head is not None:
        model = headed(translator.model)
        if model is None:
            raise RecipeError(f"{translator.model.config.kind} has one attention, not layers of heads to choose from")
        model.show(layer, "mean" if head is None else head)
