"""Captured steps give the results of eager steps, whatever the model."""

from collections import Counter
from contextlib import nullcontext
from itertools import product
from typing import Any

import pytest
import recorder
import torch
from comparing import for_model, same
from pretended_cuda import pretended_cuda
from recorder import Recorder
from test_models import SOURCES, batch_of
from variants import EVERY, FIRST, build, in_turns, with_contract
from walk import source_of

from nmtkit.core.errors import RecipeError
from nmtkit.data.batches.batch import Batch, collate
from nmtkit.decoding import engine as engines
from nmtkit.decoding import graphs
from nmtkit.decoding.decoding_batch import DecodingBatch
from nmtkit.decoding.engine import Engine, StepMode, beam_search
from nmtkit.decoding.hypotheses import Hypothesis
from nmtkit.decoding.rules import SearchConfig
from nmtkit.decoding.step_log import ResultReader
from nmtkit.layers.experts import Experts
from nmtkit.models.base import MODELS, Decoder, Seq2Seq, VocabularySizes, as_seq2seq

BLOCKING = {"no_repeat_ngram": 2, "min_length_ratio": 0.3, "forbid_unknown": True, "repetition_penalty": 1.4}
SEARCHES: list[dict[str, Any]] = [
    {"beam_size": 1},
    {"beam_size": 4},
    {"beam_size": 3, **BLOCKING, "coverage_penalty": 0.2, "stop": "exact"},
    {"beam_size": 3, "coverage_penalty": 1.5, "coverage_kind": "summary", "word_reward": 0.2, "patience": 1.5},
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


@pytest.mark.parametrize(("name", "ways"), in_turns(list(product(["graph", "tape"], SEARCHES)), only_first=True))
def test_replayed_steps(name: str, ways: list[tuple[str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(*EVERY[name]).double().eval()
    whole = whole_batch(model)
    supports_cuda_graphs = graphs.supports_cuda_graphs
    for kind, settings in ways:
        if (
            kind == "graph"
            and not torch.cuda.is_available()
            and any(isinstance(one, Experts) for one in model.modules())
        ):
            continue  # on a CPU they find what is chosen for each, which only there waits for nobody
        monkeypatch.setattr(
            graphs, "supports_cuda_graphs", supports_cuda_graphs if kind == "graph" else lambda device: False
        )
        config = for_model({**settings, "max_length": 7}, model)
        expected = beam_search(model, whole, config, config.hypotheses, need_attention=True)
        steps: StepMode = "graph" if kind == "graph" else "auto"
        engine = Engine(model, config, config.hypotheses, need_attention=True, steps=steps)
        for slots in [3, 4]:  # the second time with the graphs of the first
            same(results_of(engine, whole, slots), expected)
        assert engine.replayed_steps > 0


@pytest.mark.parametrize("name", with_contract(Seq2Seq, FIRST))
def test_replayed_starts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentences of lengths that came before begin on a tape, whatever their words."""
    monkeypatch.setattr(graphs, "supports_cuda_graphs", lambda device: False)
    model = build(*EVERY[name]).double().eval()
    config = for_model({"beam_size": 2, "max_length": 3}, model)
    engine = Engine(model, config, need_attention=True)
    for word in range(4, 8):
        batch = batch_of(model, [[word, 4, 13 - word, word]])
        expected = beam_search(model, batch, config, need_attention=True)
        same(results_of(engine, batch, 1), expected)
    assert any(engine._starts.values()) == engine._tapes_starts
    assert engine._tapes_starts or name != "transformer"


@pytest.mark.parametrize(("room", "made"), [(engines.STARTS_ROOM, 8), (1, 1)])
def test_tapes_of_starts_do_not_give_way(room: int, made: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many lengths come by turns, each is recorded once, while there is room."""
    monkeypatch.setattr(graphs, "supports_cuda_graphs", lambda device: False)
    monkeypatch.setattr(engines, "STARTS_ROOM", room)
    model = build(*EVERY["transformer"]).double().eval()
    config, engine = SearchConfig(beam_size=2, max_length=2), Engine(model, SearchConfig(beam_size=2, max_length=2))
    before: list[object] = []
    for turn in range(4):
        for length in range(1, 9):
            batch = collate([[4 + (turn + place) % 8 for place in range(length)]], width=24)
            same(results_of(engine, batch, 1), beam_search(model, batch, config))
        kept = {key: one for key, one in engine._starts.items() if one is not None}
        tapes = [kept[key] for key in sorted(kept, key=str)]
        assert turn < 3 or (len(tapes) == made and all(one is other for one, other in zip(tapes, before, strict=True)))
        before = tapes


def test_steps_are_captured_once_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "PATIENCE", 3)
    model = build(*EVERY["transformer"]).double().eval()
    whole = whole_batch(model)
    config = SearchConfig(beam_size=2, max_length=7)
    expected = beam_search(model, whole, config)
    engine = Engine(model, config)
    same(results_of(engine, whole, 2), expected)
    assert engine.replayed_steps > 0
    never = Engine(model, config, steps="eager")
    same(results_of(never, whole, 2), expected)
    assert never.replayed_steps == 0


def test_graphs_are_of_cuda_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "supports_cuda_graphs", lambda device: False)
    with pytest.raises(RecipeError, match="CUDA"):
        Engine(build(*EVERY["transformer"]).eval(), SearchConfig(), steps="graph")


def test_no_results_are_read_on_the_stream_of_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the driver is stood in for; torch has 32 streams of each priority, which it deals out in turn."""
    dealt: Counter[int] = Counter()

    def stream(_: object, priority: int = 0) -> tuple[int, int]:
        dealt[priority] += 1
        return priority, dealt[priority] % 32

    played = {"Stream": stream, "CUDAGraph": object, "graph_pool_handle": object, "is_available": lambda: True}
    for name, part in {**played, "graph": lambda *_, **__: nullcontext(), "set_device": lambda _: None}.items():
        monkeypatch.setattr(torch.cuda, name, part)
    with pretended_cuda():
        _, capturing, _ = graphs._capturing_on.__wrapped__(0)
    for _ in range(32):
        with ResultReader(torch.device("cuda:0")) as reader:
            assert reader._stream != capturing


# ------------------------------------------------------------------------------------------ operations of a step

VIEWS = {"view", "_unsafe_view", "unsqueeze", "squeeze", "expand", "slice", "select", "t", "transpose", "permute"}
VIEWS |= {"detach", "alias", "as_strided", "split", "unsafe_split", "unbind", "_reshape_alias", "unfold", "new_empty"}
VIEWS |= {"lift_fresh", "promote_types"}
"""Operations that do nothing: views, and the reservation of memory."""
BASE = {"hidden_size": 16, "feed_forward_size": 32, "heads": 2, "encoder_layers": 6, "decoder_layers": 6}


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
    model = model_class(model_class.Config(**settings), VocabularySizes({"src": 500, "tgt": 500}, shared=False)).eval()
    sources = torch.randint(4, 500, (3, 11)).tolist()
    batch = collate(sources, src_extended=sources, n_oov=0)
    decoding = DecodingBatch.begin(model, batch, SearchConfig(beam_size=4), 1)
    for _ in range(5):
        decoding.step(need_attention=False)
    with Recorder() as recorded:
        decoding.step(need_attention=False)
    made = Counter(func._schema.name.split("::")[1] for func, *_ in recorded.calls)
    assert sum(count for name, count in made.items() if name not in VIEWS) <= most, made
