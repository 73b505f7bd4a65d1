"""Parts of other runs that a model begins with: which of their weights go where, by name, shape and token.

So an encoder can begin as BERT, a decoder as GPT, or both as BERT: Rothe et al. 2020.
"""

import re
from collections.abc import Iterable, Sequence

import torch

from nmtkit.core.errors import RecipeError
from nmtkit.data.tokenizers import Tokenizers
from nmtkit.models.base import PARTS, Model

_OTHER_SIDE = {"encoder": "decoder", "src_": "tgt_", "decoder": "encoder", "tgt_": "src_"}
_OF_TOKENS = {
    "src_embedding.weight": "src",
    "src_embedding.context.words.weight": "src",
    "tgt_embedding.weight": "tgt",
    "output.weight": "tgt",
    "output.bias": "tgt",
}
"""Weights with a row for each token of a text."""


def take_part(
    model: Model, part: str, source: Model, differences: Sequence[str], tokenizers: Sequence[Tokenizers] = ()
) -> str:
    """Copies one of `PARTS` from another model; says which weights were taken, grown, left at random, and not used.

    A model without this part gives that of the other side: an encoder goes on as a decoder (BERT2BERT). `tokenizers`
    are those of both: rows of embeddings are taken by token. On the meta device they are not needed. Raises a
    RecipeError with shapes, and the `differences` of settings, if nothing fits or something does not.
    """
    given = source.part(part) or {_other_side(name): one for name, one in source.part(_other_side(part)).items()}
    there = {name: one for name, one in model.state_dict(keep_vars=True).items() if name.startswith(PARTS[part])}
    unique = {id(there[name]): name for name in sorted(there, key=lambda name: name in given)}  # tied ones once
    own = {name: there[name] for name in unique.values()}
    taken, grown = [name for name in own if name in given], list[str]()
    faults = [f"{one} is never trained, and not there" for one in own if f"{part}.context." in one and one not in given]
    for name in taken:
        first = int(name in _OF_TOKENS or name.endswith("_positions.table"))  # of these the number of rows may differ
        if own[name].shape[first:] != given[name].shape[first:]:
            faults.append(f"{name} is {[*own[name].shape]}, and there {[*given[name].shape]}")
    if faults or not taken:
        faults = faults[:3] or [f"that {source.config.kind} has none of {', '.join(_grouped(own))}"]
        raise RecipeError(
            f"`init_from.{part}`: its weights do not fit; take another run, or change the settings of the model:",
            *(f"  {fault}" for fault in (*faults, *differences)),
        )
    for name in taken:
        weight, count = own[name], min(len(own[name]), len(given[name]))
        new, old = [*range(count)], [*range(count)]
        if name in _OF_TOKENS and tokenizers:
            words, known = (one.get(_OF_TOKENS[name], next(iter(one.values()))).vocabulary for one in tokenizers)
            new = [row for row, token in enumerate(words.tokens) if token in known]
            old = known.ids(words.tokens[row] for row in new)
        with torch.no_grad():
            weight[new] = given[name][old].to(weight)
        grown += [f"{name} by {len(weight) - len(new):,} of {len(weight):,}"] if len(new) < len(weight) else []
    left, unused = ([name for name in these if name not in those] for these, those in ((own, given), (given, own)))
    said = {"taken": taken, "grown": grown, "left at random": left, "not used": unused}
    return "; ".join(f"{what}: {', '.join(_grouped(names))}" for what, names in said.items() if names)


def _other_side(name: str) -> str:
    """The name that a weight, or a part, has on the other side."""
    return next((new + name.removeprefix(old) for old, new in _OTHER_SIDE.items() if name.startswith(old)), name)


def _grouped(names: Iterable[str]) -> list[str]:
    """Names of weights without the number of their layer, no deeper than a sub-layer."""
    return list(dict.fromkeys(".".join(re.sub(r"\.\d+\.", ".N.", name).split(".")[:3]) for name in names))
