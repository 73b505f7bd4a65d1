"""The captioners' equations, worked out with plain tensors in float64."""

import numpy as np
import pytest
import torch
from torch import Tensor

from nmtkit.core.errors import DataError, RecipeError
from nmtkit.core.settings import parse
from nmtkit.data.batches.batch import Batch, collate
from nmtkit.decoding.search_batch import search_batch
from nmtkit.decoding.settings import BeamConfig
from nmtkit.models.base import VocabularySizes
from nmtkit.models.ensemble import Ensemble
from nmtkit.zoo.captioning.show_and_tell import Captioner, PictureEncoder, ShowAndTell
from nmtkit.zoo.captioning.show_attend_tell import ShowAttendTell

SIZES = {"embedding_size": 3, "hidden_size": 4}
V, F = 9, 6
REGIONS = [
    np.random.default_rng(seed).random((rows, F), dtype=np.float32)
    for seed, rows in enumerate((5, 2))
]
PIXELS = [
    np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8) for seed in range(3)
]
TARGETS = [[4, 8, 5], [7]]


def build(
    cls: type[Captioner], features: int = F, **settings: object
) -> tuple[Captioner, dict[str, Tensor]]:
    """A model with larger weights, none of them zero, and these by name."""
    torch.manual_seed(2)
    config = parse(cls.Config, {**SIZES, **settings}, "test")
    model = cls(config, VocabularySizes({"features": features, "tgt": V})).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5).add_(0.2 * torch.randn_like(weight))
    return model, dict(model.state_dict())


def lstm(weights: dict[str, Tensor], x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Eqs. 4 to 9 of Vinyals et al.; torch's order of gates is input, forget, cell, output."""
    of = {
        name.split(".")[-1].removesuffix("_l0"): one
        for name, one in weights.items()
        if name.startswith("decoder.")
    }
    w, b, u, d = (of[name] for name in ("weight_ih", "bias_ih", "weight_hh", "bias_hh"))
    i, f, g, o = (w @ x + b + u @ h + d).chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def linear(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return weights[f"{name}.weight"] @ x + weights.get(f"{name}.bias", torch.zeros(1))


def checked(model: Captioner, row: int, expected: list[Tensor], looks: list[Tensor]) -> None:
    """Compares the log-probabilities, and where the model looks, with those of an example, of two in a batch."""
    batch = collate(None, TARGETS, features=REGIONS)
    output, memory = model.read(batch, need_attention=True)
    found = model.predict(output, memory)[row, : len(expected)]
    torch.testing.assert_close(found, torch.stack(expected).log_softmax(-1), rtol=0, atol=1e-12)
    for look, own in zip(looks, output.attention[row] if looks else [], strict=False):
        torch.testing.assert_close(own[: len(look)], look, rtol=0, atol=1e-12)
        assert bool((own[len(look) :] == 0).all())


@pytest.mark.parametrize("row", [0, 1])
@torch.no_grad()
def test_show_and_tell_reads_the_picture_as_its_first_word(row: int) -> None:
    model, own = build(ShowAndTell)
    regions = torch.from_numpy(REGIONS[row]).double()
    h = c = torch.zeros(4, dtype=torch.float64)
    h, c = lstm(own, linear(own, "picture", regions.mean(0)), h, c)  # eq. 10
    expected = []
    for word in [2, *TARGETS[row]]:  # BOS first
        h, c = lstm(own, own["tgt_embedding.weight"][word], h, c)  # eqs. 11 and 12
        expected.append(linear(own, "output", h))
    checked(model, row, expected, [])


@pytest.mark.parametrize("row", [0, 1])
@torch.no_grad()
def test_show_attend_and_tell_looks_and_then_updates(row: int) -> None:
    model, own = build(ShowAttendTell, attention_size=5)
    regions = torch.from_numpy(REGIONS[row]).double()
    mean = regions.mean(0)
    h, c = (
        torch.tanh(linear(own, "bridge.hidden", mean)),
        torch.tanh(linear(own, "bridge.cell", mean)),
    )
    expected, looks = [], []
    for word in [2, *TARGETS[row]]:
        compared = [
            torch.tanh(
                linear(own, "attention.score.query", h) + linear(own, "attention.score.key", region)
            )
            for region in regions
        ]
        # eqs. 4, 5
        alpha = torch.softmax(
            torch.stack([own["attention.score.energy"] @ one for one in compared]), 0
        )
        # eq. 13, with beta of h_{t-1}
        context = torch.sigmoid(linear(own, "gate", h)) * (alpha @ regions)
        embedded = own["tgt_embedding.weight"][word]
        h, c = lstm(own, torch.cat([embedded, context]), h, c)
        deep = embedded + linear(own, "readout", torch.cat([h, context]))
        expected.append(linear(own, "output", deep))  # eq. 7
        looks.append(alpha)
    checked(model, row, expected, looks)


def of_pictures(pictures: list[np.ndarray], width: int | None = None) -> Batch:
    return collate(None, features=[one.reshape(len(one), -1) for one in pictures], width=width)


@torch.no_grad()
def test_regions_of_pictures_are_a_grid_of_convolutions() -> None:
    """5 x 7 pixels make 3 x 4 regions, row by row; each sees its own pixels, their places, and those beside them.

    The layer that halves sees zeros at the right and below, the other one on all sides.
    """
    model, own = build(ShowAttendTell, 21, attention_size=5, cnn=[4, 2])
    batch = of_pictures(PIXELS, width=8)
    regions, mask, _ = model.regions(batch)
    assert regions.shape == (3, 12, 2)
    assert mask.all()
    assert model.memory_lengths(batch).tolist() == [12, 12, 12]
    places = np.stack(np.meshgrid(np.linspace(-1, 1, 5), np.linspace(-1, 1, 7), indexing="ij"), 2)
    seen = torch.from_numpy(np.concatenate([PIXELS[1] / 255, places], 2)).permute(
        2, 0, 1
    )  # (5,H,W)
    for layer, (step, zeros) in enumerate([(2, (0, 2, 0, 2)), (1, (1, 1, 1, 1))]):
        weight, bias = own[f"encoder.layers.{layer}.weight"], own[f"encoder.layers.{layer}.bias"]
        around, rows = torch.nn.functional.pad(seen, zeros), []
        for y in range(0, 3 * step, step):
            windows = [around[:, y : y + 3, x : x + 3] for x in range(0, 4 * step, step)]
            rows.append([(weight * window).sum((1, 2, 3)) + bias for window in windows])
        made = torch.stack([torch.stack(row, 1) for row in rows], 1)  # (C,3,4)
        seen = ((made - made.mean()) / (made.var(correction=0) + 1e-5).sqrt()).clamp(min=0)
    torch.testing.assert_close(regions[1], seen.flatten(1).T, rtol=0, atol=1e-6)


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
def test_a_region_sees_as_far_on_either_side_of_its_middle(
    layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To one pixel, for the layers that halve cannot do better."""
    # which sees all
    monkeypatch.setattr("torch.nn.functional.group_norm", lambda states, groups: states)
    encoder, pixels = PictureEncoder([1] * layers), torch.ones(1, 64, 3 * 64, requires_grad=True)
    for weight in encoder.parameters():
        torch.nn.init.ones_(weight)
    number = 32 // encoder.side  # of a region in the middle
    encoder(pixels)[0, number * (64 // encoder.side + 1)].sum().backward()
    rows, columns = pixels.grad.view(64, 64, 3).sum(2).nonzero(as_tuple=True)
    for seen in (rows, columns):
        before, after = (
            number * encoder.side - int(seen.min()),
            int(seen.max()) + 1 - (number + 1) * encoder.side,
        )
        assert abs(before - after) <= 1


@torch.no_grad()
def test_a_search_tells_of_all_regions_and_pictures_have_one_size() -> None:
    """Two at a time in a beam, and one alone; there are more regions (3 x 4) than rows of pixels (5)."""
    model, _ = build(ShowAttendTell, 21, attention_size=5, cnn=[4, 2])
    config = BeamConfig(beam_size=3, max_length=6, min_length=3)
    together = search_batch(model, of_pictures(PIXELS), config, need_attention=True)
    for picture, (best,) in zip(PIXELS, together, strict=True):
        ((alone,),) = search_batch(
            model, of_pictures([picture], width=9), config, need_attention=True
        )
        assert best.ids == alone.ids
        assert best.attention.shape == (len(best.token_log_probs), 12)
        np.testing.assert_allclose(best.attention.sum(1), 1, atol=1e-6)
        np.testing.assert_allclose(best.attention, alone.attention, atol=1e-6)
    for wrong in ([*PIXELS, PIXELS[0][:4]], [one[:, :, :2] for one in PIXELS]):
        with pytest.raises(DataError, match="requires images of equal size"):
            model.encode(of_pictures(wrong))


@torch.no_grad()
def test_models_that_see_different_regions_write_together_but_show_nothing() -> None:
    both = Ensemble(
        [build(ShowAttendTell, features=21, cnn=channels)[0] for channels in ([4], [4, 4])]
    )
    batch, config = of_pictures(PIXELS), BeamConfig(beam_size=2, max_length=4)
    assert len(search_batch(both, batch, config)) == 3
    with pytest.raises(RecipeError, match="different numbers of regions"):
        search_batch(both, batch, config, need_attention=True)


def test_a_captioner_with_convolutions_is_for_features_alone() -> None:
    config = parse(ShowAndTell.Config, {**SIZES, "cnn": [4]}, "test")
    with pytest.raises(
        RecipeError,
        match="needs the column 'features', but the examples have only these columns: src, tgt",
    ):
        ShowAndTell(config, VocabularySizes({"src": V, "tgt": V}))
