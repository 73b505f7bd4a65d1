"""The bench's own engines on a pretended CUDA device: nothing mixes devices, and nothing waits but what must."""

import pytest
import torch

from nmtkit.data.batch import collate
from tests.bench import floors
from tests.bench.search import Network, summarize
from tests.bench.training import TOY
from tests.contracts.pretended_cuda import CUDA, pretended_cuda


def test_the_floor_trains_there_and_never_waits() -> None:
    floor = floors.BareTransformer(TOY, 40, 0.0)
    batch = collate([[5, 6, 7, 8], [9, 10]], [[11, 12], [13, 14, 15, 16, 17]])
    expected = float(floor.loss(floors.load(batch, torch.device("cpu"))).detach())
    with pretended_cuda() as cuda:
        cuda.take(floor)
        loaded = floors.load(batch, CUDA)
        cuda.waits.clear()
        loss = floor.loss(loaded)
        assert loss.device == CUDA
        torch.autograd.backward(loss)
        assert not cuda.waits
        assert float(cuda.bring_back(loss.detach())) == pytest.approx(expected, rel=1e-6)


def test_articles_are_decoded_there() -> None:
    network = Network("pointer_generator", {"coverage": True, "embedding_size": 8, "hidden_size": 8}, 40, 6, 6)
    model, sources = network.build(), [[5, 6, 7, 8], [9], [10, 6, 11, 12, 13, 14]]
    expected = summarize(model, network, sources, 2, torch.device("cpu"))
    with pretended_cuda() as cuda:
        cuda.take(model)
        assert summarize(model, network, sources, 2, CUDA) == expected
