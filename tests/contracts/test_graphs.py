"""Captured steps give the results of eager steps, whatever the model."""

from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from nmtkit.core.errors import RecipeError
from nmtkit.data.batches.batch import Batch, collate
from nmtkit.decoding import graphs
from nmtkit.decoding.beam_search import BeamSearch
from nmtkit.decoding.engine import Engine
from nmtkit.decoding.hypotheses import Hypothesis, ResultReader
from nmtkit.decoding.search_batch import search_batch
from nmtkit.decoding.settings import BeamConfig
from nmtkit.layers.experts import Experts
from nmtkit.models.base import MODELS, Decoder, VocabularySizes, as_seq2seq
from tests.contracts import recorder
from tests.contracts.pretended_cuda import pretended_cuda
from tests.contracts.recorder import Recorder
from tests.contracts.test_models import SOURCES, batch_of
from tests.contracts.variants import EVERY, build, in_turns
from tests.support.hypotheses import for_model, same
from tests.support.step_by_step import source_of

BLOCKING = {
    "no_repeat_ngram": 2,
    "min_length_ratio": 0.3,
    "forbid_unknown": True,
    "repetition_penalty": 1.4,
}
SEARCHES: list[dict[str, Any]] = [
    {"beam_size": 1},
    {"beam_size": 4},
    {"beam_size": 3, **BLOCKING, "coverage_penalty": 0.2, "stop": "exact"},
    {"beam_size": 3, "coverage_penalty": 1.5, "coverage_kind": "summary"},
]


@pytest.fixture(autouse=True)
def recordable(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        monkeypatch.setattr(graphs, "supports_cuda_graphs", lambda device: True)
        monkeypatch.setattr(graphs, "capture_cuda_graph", recorder.capture_cuda_graph)
    monkeypatch.setattr(graphs, "LENGTH_STEP", 4)  # several graphs for a short search
    torch.set_float32_matmul_precision("highest")


def whole_batch(model: Decoder) -> Batch:
    """Sentences of several lengths, so many that they cannot all have a slot at once; empty where they are prompts."""
    sources = [*SOURCES, *reversed(SOURCES), *[source[:1] for source in SOURCES]]
    return batch_of(model, [[] for _ in sources] if as_seq2seq(model) is None else sources)


def results_of(engine: Engine, whole: Batch, slots: int) -> list[list[Hypothesis]]:
    results = dict(engine.run(source_of(whole, slots)))
    return [results[number] for number in range(whole.size)]


@pytest.mark.parametrize(("name", "searches"), in_turns(SEARCHES, only_first=True))
def test_replayed_steps(name: str, searches: list[dict[str, Any]]) -> None:
    model = build(*EVERY[name]).double().eval()
    if not torch.cuda.is_available() and any(
        isinstance(module, Experts) for module in model.modules()
    ):
        pytest.skip(
            "on a CPU experts ask what was chosen for each, which only a GPU does without waiting"
        )
    whole = whole_batch(model)
    for settings in searches:
        config = for_model({**settings, "max_length": 7}, model)
        expected = search_batch(model, whole, config, config.n_hypotheses, need_attention=True)
        engine = Engine(
            BeamSearch(model, config, config.n_hypotheses, need_attention=True), steps="graph"
        )
        for slots in [3, 4]:  # the second time with the graphs of the first
            same(results_of(engine, whole, slots), expected)
        assert engine.replayed_steps > 0


def test_steps_are_captured_once_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "PATIENCE", 3)
    model = build(*EVERY["transformer"]).double().eval()
    whole = whole_batch(model)
    config = BeamConfig(beam_size=2, max_length=7)
    expected = search_batch(model, whole, config)
    engine = Engine(BeamSearch(model, config))
    same(results_of(engine, whole, 2), expected)
    assert engine.replayed_steps > 0
    never = Engine(BeamSearch(model, config), steps="eager")
    same(results_of(never, whole, 2), expected)
    assert never.replayed_steps == 0


def test_graphs_are_of_cuda_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "supports_cuda_graphs", lambda device: False)
    with pytest.raises(RecipeError, match="CUDA"):
        Engine(BeamSearch(build(*EVERY["transformer"]).eval(), BeamConfig()), steps="graph")


def test_no_results_are_read_on_the_stream_of_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the driver is stood in for; torch has 32 streams of each priority, which it deals out in turn."""
    dealt: Counter[int] = Counter()

    def stream(_: object, priority: int = 0) -> tuple[int, int]:
        dealt[priority] += 1
        return priority, dealt[priority] % 32

    played = {
        "Stream": stream,
        "CUDAGraph": object,
        "graph_pool_handle": object,
        "is_available": lambda: True,
    }
    for name, part in {
        **played,
        "graph": lambda *_, **__: nullcontext(),
        "set_device": lambda _: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, part)
    with pretended_cuda():
        _, capturing, _ = graphs._capture_resources.__wrapped__(0)
    for _ in range(32):
        with ResultReader(torch.device("cuda:0")) as reader:
            assert reader._stream != capturing


# ------------------------------------------------------------------------------------------ operations of a step

VIEWS = {
    "view",
    "_unsafe_view",
    "unsqueeze",
    "squeeze",
    "expand",
    "slice",
    "select",
    "t",
    "transpose",
    "permute",
}
VIEWS |= {
    "detach",
    "alias",
    "as_strided",
    "split",
    "unsafe_split",
    "unbind",
    "_reshape_alias",
    "unfold",
    "new_empty",
}
VIEWS |= {"lift_fresh", "promote_types"}
"""Operations that do nothing: views, and the reservation of memory."""
BASE = {
    "hidden_size": 16,
    "feed_forward_size": 32,
    "heads": 2,
    "encoder_layers": 6,
    "decoder_layers": 6,
}


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "settings", "most"),
    [
        ("transformer", BASE, 160),
        ("transformer", {**BASE, "copying": "head"}, 187),
        ("pointer_generator", {"tie": "none"}, 110),
        ("intra_attention", {"tie": "none"}, 115),
        ("rnnsearch", {"tie": "none"}, 86),
        ("luong", {"tie": "none"}, 85),
        ("rnn_encdec", {"tie": "none"}, 74),
    ],
    ids=str,
)
def test_operations_of_a_step(kind: str, settings: dict[str, Any], most: int) -> None:
    """No step asks for more operations than it did; on a GPU each of them is a launch."""
    torch.manual_seed(0)
    model_class = MODELS.get(kind)
    model = model_class(
        model_class.Config(**settings), VocabularySizes({"src": 500, "tgt": 500}, shared=False)
    ).eval()
    sources = torch.randint(4, 500, (3, 11)).tolist()
    batch = collate(sources, src_extended=sources, n_oov=0)
    search = BeamSearch(model, BeamConfig(beam_size=4))
    state = search.begin(batch)
    for _ in range(5):
        search.step(state)
    with Recorder() as recorded:
        search.step(state)
    made = Counter(func._schema.name.split("::")[1] for func, *_ in recorded.calls)
    assert sum(count for name, count in made.items() if name not in VIEWS) <= most, made
