"""Opening a translator for the commands that use a trained run."""

from nmtkit import console, device, folder
from nmtkit.translator import Translator


def open_translator(
    model: str | None,
    device_name: str,
    weights: str,
    batch_tokens: int | None = None,
    settings: dict[str, object] | None = None,
    threads: int | None = None,
) -> Translator:
    """Finds the run, opens it, and says on stderr which run, which weights and which device it is."""
    run, why = folder.find(model)
    translator = Translator.from_folder(run, device_name, weights, batch_tokens, settings, threads)
    console.say(
        f"model {run.path} ({why}), {run.weights(weights).name}, on {device.describe(translator.device)}", stderr=True
    )
    return translator


def show_heads(translator: Translator, layer: int | None, head: int | None) -> None:
    """Makes a Transformer show the attention of the layer or head that was asked for, if any was."""
    if layer is not None or head is not None:
        translator.model.show(layer, "mean" if head is None else head)
