"""T5 by its formulas, and at its published sizes."""

import math

import pytest
import torch

from nmtkit.core.settings import parse
from nmtkit.layers.transformer import RelativePositions
from nmtkit.models.base import MODELS, VocabularySizes
from nmtkit.training.checkpoints.weights import count_parameters


def bucket(distance: int, buckets: int, max_distance: int, bidirectional: bool) -> int:
    """Of a distance from query to key: half of them exact, the others by the logarithm."""
    half = buckets // 2 if bidirectional else buckets
    first = half if bidirectional and distance > 0 else 0
    far = abs(distance) if bidirectional else max(0, -distance)
    exact = half // 2
    if far < exact:
        return first + far
    return first + min(
        half - 1,
        exact + int(math.log(far / exact) / math.log(max_distance / exact) * (half - exact)),
    )


@pytest.mark.parametrize("bidirectional", [True, False])
def test_distances_have_the_buckets_of_the_paper(bidirectional: bool) -> None:
    module = RelativePositions(3, 32, 128, bidirectional)
    with torch.no_grad():
        module.weight.copy_(torch.arange(32.0)[:, None] + torch.tensor([0.0, 100.0, 200.0]))
    distances = torch.arange(-400, 401)
    found = module(distances[None, None])[0, :, 0]  # (A,P)
    # At 32, 64 and 128 the logarithm is a whole number that rounding may miss.
    exact = {-64, -32, -16, 16, 32, 64} if bidirectional else {-64, -32}
    for place, distance in enumerate(distances.tolist()):
        wanted = bucket(distance, 32, 128, bidirectional)
        assert abs(found[0, place] - wanted) <= (distance in exact), distance
    assert torch.equal(found[2] - found[0], torch.full((801,), 200.0))


def test_with_the_fewest_buckets_distance_zero_has_a_bucket_of_its_own() -> None:
    module = RelativePositions(heads=1, buckets=4, max_distance=8, bidirectional=True)
    assert module.buckets.tolist() == [bucket(distance, 4, 8, True) for distance in range(-8, 9)]
    assert module.buckets[8] == 0


T5_BASE = {"hidden_size": 768, "feed_forward_size": 3072, "heads": 12, "layers": 12}
PUBLISHED = {
    "T5-small": (
        60_506_624,
        32128,
        {"kind": "t5", "hidden_size": 512, "feed_forward_size": 2048, "heads": 8, "layers": 6},
    ),
    "T5-base": (222_903_552, 32128, {"kind": "t5", **T5_BASE}),
    "T5-base v1.1": (
        247_577_856,
        32128,
        {"kind": "t5", **T5_BASE, "feed_forward_size": 2048, "gated": True},
    ),
    "BART-base": (
        139_420_416,
        50265,
        T5_BASE
        | {
            "kind": "transformer",
            "layers": 6,
            "norm": "post",
            "embedding_norm": True,
            "positions": "learned",
        }
        | {"max_positions": 1026},
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_it_has_as_many_parameters_as_published(name: str) -> None:
    """But for the bias of the output layer, which keeps tokens from being written."""
    wanted, tokens, settings = PUBLISHED[name]
    kind = MODELS.get(settings["kind"])
    tie = "embeddings" if settings.get("gated") else "all"
    config = parse(kind.Config, settings | {"tie": tie}, "test")
    with torch.device("meta"):
        model = kind(config, VocabularySizes({"src": tokens, "tgt": tokens}, shared=True))
    assert count_parameters(model) - tokens == wanted


def test_experts_begin_by_chance_and_copying_with_energies_that_are_divided() -> None:
    """Shazeer et al. 2017, appendix A; of all queries only those of heads make up for what divides no energy."""
    torch.manual_seed(1)
    settings = {
        "hidden_size": 64,
        "heads": 2,
        "head_size": 16,
        "experts": {"every": 1},
        "copying": "learned",
    }
    model = MODELS.get("t5")(
        parse(MODELS.get("t5").Config, settings, "test"), VocabularySizes({"src": 9, "tgt": 9})
    )
    for layer in (*model.encoder, *model.decoder):
        assert not layer.feed_forward.gate.weight.any()
        assert not layer.feed_forward.noise.weight.any()
        assert layer.feed_forward.experts[0].inner.weight.std() > 0.1
    deviations = [weight.std().item() * 8 for weight in model.copy_query.weight.split(32)]
    assert deviations == pytest.approx([1.0, 1.0], rel=0.1)
    assert model.decoder[0].cross_attention.query.weight.std().item() * 8 == pytest.approx(
        0.25, rel=0.1
    )
