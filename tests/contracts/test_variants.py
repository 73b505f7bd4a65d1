"""The variants that the contracts are asked of have every pair of choices, and every kind and layer there is."""

from functools import cache
from itertools import combinations, product
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from nmtkit.layers.attention import SCORES, WindowKind
from nmtkit.layers.recurrent import BridgeKind
from nmtkit.models.base import MODELS, ModelConfig
from tests.contracts.variants import CHOICES, EVERY, ONE_OF_EACH, VARIANTS, settings_of

Choice = tuple[str, Any]


def read(kind: str, settings: dict[str, Any]) -> ModelConfig:
    return MODELS.get(kind).Config.model_validate({"kind": kind, **settings})


def pairs(kind: str, config: ModelConfig) -> set[tuple[Choice, Choice]]:
    """Of what was chosen; a tie is two choices."""
    made: list[Choice] = [(name, getattr(config, name)) for name in CHOICES[kind] if name != "tie"]
    tie = config.model_dump().get("tie")
    made += [
        ("one embedding", tie in ("embeddings", "all")),
        ("output tied", tie in ("decoder", "all")),
    ]
    return set(combinations(made, 2))


@cache
def admitted(kind: str) -> set[tuple[Choice, Choice]]:
    """The pairs that stand in some combination that the model's own settings do not refuse."""
    admissible: set[tuple[Choice, Choice]] = set()
    for values in product(*CHOICES[kind].values()):
        try:
            config = read(kind, settings_of(kind, dict(zip(CHOICES[kind], values, strict=True))))
        except ValidationError:
            continue
        admissible |= pairs(kind, config)
    return admissible


@pytest.mark.parametrize("kind", CHOICES)
def test_every_pair_of_choices_occurs(kind: str) -> None:
    present = set().union(
        *(pairs(kind, read(*variant)) for variant in VARIANTS.values() if variant[0] == kind)
    )
    assert admitted(kind) <= present
    for name, values in CHOICES[kind].items():
        assert {
            read(*variant).model_dump()[name] for variant in VARIANTS.values() if variant[0] == kind
        } >= set(values)


def test_every_kind_and_every_layer_is_among_them() -> None:
    assert set(CHOICES) == {kind for kind, _ in VARIANTS.values()} == set(MODELS.names())
    assert [VARIANTS[name][0] for name in ONE_OF_EACH] == list(CHOICES)
    configs = [read(*variant).model_dump() for variant in VARIANTS.values()]
    for setting, names in (
        ("score", SCORES.names()),
        ("window", get_args(WindowKind)),
        ("bridge", get_args(BridgeKind)),
    ):
        assert {config[setting] for config in configs if setting in config} >= set(names)
    for setting in ("reverse_source", "attentional_bias"):
        assert {config[setting] for config in configs if setting in config} == {False, True}
    assert {config["source_end"] for config in configs if config["kind"] == "luong"} == {
        False,
        True,
    }
    assert {config["source_end"] for config in configs if config["kind"] == "transformer"} == {
        False,
        True,
    }
    assert len({str(read(*variant)) for variant in EVERY.values()}) == len(EVERY)
