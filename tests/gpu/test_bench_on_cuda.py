"""The bench's own engines on a pretended CUDA device: nothing mixes devices, and nothing waits but what must."""

import pytest
import torch

from nmtkit.data.batch import collate
from tests.bench import floors
from tests.bench.search import Network, summarize
from tests.bench.training import RNNSEARCH, SMALL
from tests.contracts.pretended_cuda import CUDA, pretended_cuda

SMALLER = {"hidden_size": 8, "feed_forward_size": 12, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
RNN = {"hidden_size": 8, "embedding_size": 6, "attention_size": 5, "maxout_size": 4}
FLOORS = [
    (floors.BareTransformer(SMALL.changed(SMALLER), 40, 0.0), 0),
    # Packing sorts the sentences on the CPU and sends their order; unpacking reads it back.
    (floors.BareRnnSearch(RNNSEARCH.changed(RNN), 40, 0.0), 2),
]


@pytest.mark.parametrize(("floor", "waits"), FLOORS, ids=["transformer", "rnnsearch"])
def test_a_floor_trains_there_and_hardly_waits(floor: floors.Floor, waits: int) -> None:
    batch = collate([[5, 6, 7, 8], [9, 10]], [[11, 12], [13, 14, 15, 16, 17]])
    expected = float(floor.loss(floors.load(batch, torch.device("cpu"))).detach())
    with pretended_cuda() as cuda:
        cuda.take(floor)
        loaded = floors.load(batch, CUDA)
        assert loaded.src_lengths.device.type == "cpu"
        cuda.waits.clear()
        loss = floor.loss(loaded)
        assert loss.device == CUDA
        torch.autograd.backward(loss)
        assert len(cuda.waits) <= waits, cuda.waits
        assert float(cuda.bring_back(loss.detach())) == pytest.approx(expected, rel=1e-6)


def test_articles_are_decoded_there() -> None:
    network = Network("pointer_generator", {"coverage": True, "embedding_size": 8, "hidden_size": 8}, 40, 6, 6)
    model, sources = network.build(), [[5, 6, 7, 8], [9], [10, 6, 11, 12, 13, 14]]
    expected = summarize(model, network, sources, 2, torch.device("cpu"))
    with pretended_cuda() as cuda:
        cuda.take(model)
        assert summarize(model, network, sources, 2, CUDA) == expected
