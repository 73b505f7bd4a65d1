"""Which weights a training changes, and how fast: frozen ones, rates by layer, layers that join later."""

import re
from collections.abc import Iterable, Sequence

from torch import nn

from nmtkit.core.errors import RecipeError

_LAYER = re.compile(r"(.+?)(?:\.(\d+)\.|_l(\d+)(?:_reverse)?$)")
"""The stack and the number of a layer in the name of one of its weights: `encoder.2.` here, `_l2` in torch's RNNs."""


def freeze(model: nn.Module, names: Sequence[str]) -> None:
    """Takes weights, or the modules that have them, out of training: no gradient of them is computed.

    Raises a RecipeError for a name that the model lacks, and where nothing would be left to train.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name in names:
        frozen = [parameter for full, parameter in parameters.items() if f"{full}.".startswith(f"{name}.")]
        if not frozen:
            there = ", ".join(dict.fromkeys(full.partition(".")[0] for full in parameters))
            raise RecipeError(f"`training.freeze`: the model has no {name!r}; it has {there}, and parts of these")
        for parameter in frozen:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise RecipeError("`training.freeze`: it names all weights, and leaves nothing to train; leave some out")


def layers_below_top(names: Iterable[str]) -> dict[str, int]:
    """How many layers of its stack lie above each of the weights with these names; 0 if it is in no layer.

    Embeddings and positions lie below all layers, and so does an output layer that shares an embedding's matrix.
    """
    found = {name: _LAYER.match(name) for name in names}
    places = {name: (match[1], int(match[2] or match[3])) for name, match in found.items() if match}
    counts = {stack: number + 1 for stack, number in sorted(places.values())}
    below = {name: counts[stack] - 1 - number for name, (stack, number) in places.items()}
    lowest = {name: max(counts.values(), default=0) for name in found if name.startswith(("src_", "tgt_"))}
    return {name: lowest.get(name, below.get(name, 0)) for name in found}
