"""The models that every contract is asked of: `variants.yaml`, read.

What is asked of a layer in every combination (each score with each window) is asked in tests/layers.
"""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from numpy.typing import NDArray

from nmtkit.models.base import MODELS, Decoder, Model, Seq2Seq, VocabularySizes
from nmtkit.zoo.captioning.show_and_tell import Captioner
from tests.support.cases import daily

VOCABULARY = 13
REGIONS = 8
"""The most words of a source that a captioner can tell apart by their places."""

KINDS: dict[str, dict[str, dict[str, Any]]] = yaml.load(
    Path(__file__).with_name("variants.yaml").read_text("utf-8"),
    getattr(yaml, "CSafeLoader", yaml.SafeLoader),
)
CHOICES = {kind: of_kind["choices"] for kind, of_kind in KINDS.items()}
"""Of each kind, what there is to choose: values by setting."""


def settings_of(kind: str, chosen: dict[str, Any]) -> dict[str, Any]:
    """All settings of a small model; where a tie wants two sizes to be equal, they are."""
    settings = {**KINDS[kind]["base"], **chosen}
    tied = settings.get("tie") in ("decoder", "all")
    if tied and (
        kind in ("luong", "gnmt", "lstmn_seq2seq") or settings.get("maxout_size", 6) is None
    ):
        settings["embedding_size"] = settings["hidden_size"]
    return settings


def listed(part: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Kind and settings by name, for all kinds."""
    return {
        name: (kind, settings_of(kind, chosen))
        for kind, of_kind in KINDS.items()
        for name, chosen in of_kind.get(part, {}).items()
    }


VARIANTS, OTHERS = listed("variants"), listed("others")
EVERY = VARIANTS | OTHERS
SLOW = pytest.mark.slow
Contract = type[Model] | type[Decoder] | type[Seq2Seq]
"""What a question needs of a model; it is not asked of others."""


def with_contract(contract: Contract, names: Iterable[str]) -> list[str]:
    """Those of the names whose models have a contract; of `Seq2Seq` those that read a text."""
    found = [name for name in names if issubclass(MODELS.get(EVERY[name][0]), contract)]
    return [
        name
        for name in found
        if contract is not Seq2Seq or not issubclass(MODELS.get(EVERY[name][0]), Captioner)
    ]


ONE_OF_EACH = [next(group) for _, group in groupby(VARIANTS, lambda name: VARIANTS[name][0])]
"""The first variant of each kind."""
FIRST = [*ONE_OF_EACH, "transformer-copying-head", "pointer-generator-plain-coverage"]
"""Beside them those that copy, or do not, otherwise."""
ONE_OF_EACH_THAT_COPIES = with_contract(Seq2Seq, FIRST)
"""Those that read a text."""


def asked(contract: Contract) -> list[Any]:
    """For `parametrize`: all names of models with a contract."""
    return [
        *with_contract(contract, VARIANTS),
        *(pytest.param(name, marks=SLOW) for name in with_contract(contract, OTHERS)),
    ]


def few(contract: Contract) -> list[Any]:
    """The same for what hardly depends on a model's choices; `make test` asks one of each kind."""
    first = with_contract(contract, FIRST)
    return daily([*first, *sorted({*with_contract(contract, EVERY)} - {*first})], len(first))


def by_turns(contract: Contract, part: int, parts: int) -> list[Any]:
    """Of the names of `few` those that `make test` asks are shared out to several tests, of which this is one."""
    first = with_contract(contract, FIRST)
    own = first[part::parts]
    return daily([*own, *sorted({*with_contract(contract, EVERY)} - {*own})], len(own))


def in_turns(
    things: Iterable[Any],
    each: int = 1,
    names: Iterable[str] = (),
    only_first: bool = False,
    contract: Contract = Decoder,
) -> list[Any]:
    """For `parametrize`: each variant with `each` of the things in its turn; `make test-all` asks it the others too.

    Variants of one kind stand together: with six of them or more, each kind meets everything if there is no more than
    six times `each`. Without names all variants with the contract are asked; with `only_first`, `make test` asks one of
    each kind only.
    """
    things, names, params = list(things), list(names), []
    for number, name in enumerate(names or with_contract(contract, EVERY)):
        in_time = names or name in (FIRST if only_first else VARIANTS)
        turns = [(number * each + more) % len(things) for more in range(each)] if in_time else []
        rest = [thing for turn, thing in enumerate(things) if turn not in turns]
        if turns:
            params.append(pytest.param(name, [things[turn] for turn in turns], id=name))
        if rest:
            params.append(pytest.param(name, rest, id=f"{name}-rest", marks=SLOW))
    return params


def sizes_of(cls: type[Model]) -> VocabularySizes:
    """Of a text that is read, and one that is written or labels; of one text alone where a model needs no other.

    A captioner reads features, see `as_regions`.
    """
    if issubclass(cls, Captioner):
        return VocabularySizes({"features": VOCABULARY + REGIONS, "tgt": VOCABULARY})
    reads_another = issubclass(cls, Seq2Seq) or cls.output_column == "labels"
    columns = ["src" if reads_another else cls.output_column, cls.output_column]
    return VocabularySizes(dict.fromkeys(columns, VOCABULARY), shared=True)


def as_regions(words: list[int]) -> NDArray[np.float32]:
    """A region for each word, which tells the word and its place."""
    told = np.eye(VOCABULARY, dtype=np.float32)[words]
    return np.concatenate([told, np.eye(len(words), REGIONS, dtype=np.float32)], 1)


def build(kind: str, settings: dict[str, Any], seed: int = 1) -> Any:
    """A model with the weights of a seed."""
    torch.manual_seed(seed)
    cls = MODELS.get(kind)
    return cls(cls.Config.model_validate({"kind": kind, **settings}), sizes_of(cls))


def enlarged(name: str, seed: int = 1) -> Any:
    """A variant in float64, without dropout, with larger weights, so that an untrained model has opinions."""
    model = build(*EVERY[name], seed=seed).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0).add_(0.1 * torch.randn_like(parameter))
    return model
