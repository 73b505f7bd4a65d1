"""The models that every contract is asked of: `variants.yaml`, read.

What is asked of a layer in every combination (each score with each window) is asked in tests/layers.
"""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from daily import daily

import nmtkit.models  # noqa: F401  # fills the registry
from nmtkit.models.base import MODELS, Seq2Seq, VocabularySizes

VOCABULARY = 13
SIZES = VocabularySizes({"src": VOCABULARY, "tgt": VOCABULARY}, shared=True)

KINDS: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(
    Path(__file__).with_name("variants.yaml").read_text("utf-8")
)
CHOICES = {kind: of_kind["choices"] for kind, of_kind in KINDS.items()}
"""Of each kind, what there is to choose: values by setting."""


def settings_of(kind: str, chosen: dict[str, Any]) -> dict[str, Any]:
    """All settings of a small model; where a tie wants two sizes to be equal, they are."""
    settings = {**KINDS[kind]["base"], **chosen}
    tied = settings.get("tie") in ("decoder", "all")
    if tied and (kind == "luong" or settings.get("maxout_size", 6) is None):
        settings["embedding_size"] = settings["hidden_size"]
    return settings


def listed(part: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Kind and settings by name, for all kinds."""
    return {
        name: (kind, settings_of(kind, chosen))
        for kind, of_kind in KINDS.items()
        for name, chosen in of_kind[part].items()
    }


VARIANTS, OTHERS = listed("variants"), listed("others")
EVERY = VARIANTS | OTHERS
ONE_OF_EACH = [next(group) for _, group in groupby(VARIANTS, lambda name: VARIANTS[name][0])]
"""The first variant of each kind."""
ONE_OF_EACH_THAT_COPIES = [*ONE_OF_EACH, "transformer-copying-head", "pointer-generator-plain-coverage"]

SLOW = pytest.mark.slow
ASKED = [*VARIANTS, *(pytest.param(name, marks=SLOW) for name in OTHERS)]
"""For `parametrize`: all names."""
FEW = daily([*ONE_OF_EACH_THAT_COPIES, *sorted(EVERY.keys() - ONE_OF_EACH_THAT_COPIES)], len(ONE_OF_EACH_THAT_COPIES))
"""For `parametrize`: all names, for what hardly depends on a model's choices; `make test` asks one of each kind."""


def in_turns(things: Iterable[Any], each: int = 1, names: Iterable[str] = (), few: bool = False) -> list[Any]:
    """For `parametrize`: each variant with `each` of the things in its turn; `make test-all` asks it the others too.

    Variants of one kind stand together: with six of them or more, each kind meets everything if there is no more than
    six times `each`. Without names all variants are asked; if `few`, `make test` asks one of each kind only.
    """
    things, names, params = list(things), list(names), []
    for number, name in enumerate(names or EVERY):
        in_time = names or name in (ONE_OF_EACH_THAT_COPIES if few else VARIANTS)
        turns = [(number * each + more) % len(things) for more in range(each)] if in_time else []
        rest = [thing for turn, thing in enumerate(things) if turn not in turns]
        if turns:
            params.append(pytest.param(name, [things[turn] for turn in turns], id=name))
        if rest:
            params.append(pytest.param(name, rest, id=f"{name}-rest", marks=SLOW))
    return params


def build(kind: str, settings: dict[str, Any], seed: int = 1) -> Seq2Seq:
    """A model with the weights of a seed."""
    torch.manual_seed(seed)
    cls = MODELS.get(kind)
    return cls(cls.Config.model_validate({"kind": kind, **settings}), SIZES)


def enlarged(name: str, seed: int = 1) -> Seq2Seq:
    """A variant in float64, without dropout, with larger weights, so that an untrained model has opinions."""
    model = build(*EVERY[name], seed=seed).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0).add_(0.1 * torch.randn_like(parameter))
    return model
