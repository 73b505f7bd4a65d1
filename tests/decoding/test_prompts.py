"""Searches of decoders without a source, which go on with prompts of several lengths in one batch."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from nmtkit.core.errors import DataError, RecipeError
from nmtkit.data.batches.batch import Batch, Targets
from nmtkit.data.tokenizers.vocabulary import EOS
from nmtkit.decoding import graphs
from nmtkit.decoding.beam_search import BeamSearch
from nmtkit.decoding.constraints import Constraints
from nmtkit.decoding.engine import Engine, NumberedBatch, OneBatch
from nmtkit.decoding.hypotheses import Hypothesis
from nmtkit.decoding.rules import TargetTokens
from nmtkit.decoding.search_batch import search_batch
from nmtkit.decoding.settings import BeamConfig, change_search
from nmtkit.decoding.shortlist import Shortlist
from nmtkit.decoding.tracing import trace_search
from nmtkit.layers import kv_cache
from nmtkit.models.base import Decoder, VocabularySizes
from nmtkit.models.language.transformer_lm import TransformerLM, TransformerLMConfig
from tests.contracts import recorder
from tests.support.hypotheses import agree, same
from tests.support.prompted_decoders import (
    MODELS_WITHOUT_SOURCE,
    AttendingModel,
    RecurrentModel,
    prompts,
)
from tests.support.reference_search import Request, Sentence

PROMPTS = [[5, 6, 7, 5, 6], [4], [], [9, 8, 4, 4, 10, 11, 5, 9, 8], [7, 7]]
SETTINGS: list[dict[str, object]] = [
    {"beam_size": 1},
    {"beam_size": 4},
    {"beam_size": 3, "min_length": 4, "length_penalty": "gnmt", "alpha": 0.6},
    {"beam_size": 4, "no_repeat_ngram": 1},
    {"beam_size": 4, "no_repeat_ngram": 2, "stop": "exact", "length_penalty": "none"},
    {"beam_size": 3, "repetition_penalty": 1.5, "stop": "huggingface"},
    {"beam_size": 3, "at_limit": "compete", "length_penalty": "average"},
    {"beam_size": 3, "at_limit": "end"},
    {"beam_size": 4, "diversity_groups": 2},
    {"samples": 3, "temperature": 1.5, "top_k": 6},
]


@cache
def shared(name: str) -> Decoder:
    return MODELS_WITHOUT_SOURCE[name]()


@pytest.fixture(params=MODELS_WITHOUT_SOURCE)
def model(request: pytest.FixtureRequest) -> Decoder:
    """Each of them; tests share it."""
    return shared(request.param)


@cache
def sentence(model: Decoder, prompt: tuple[int, ...]) -> Sentence:
    """What a model says behind a prompt; searches share it."""
    with torch.no_grad():
        return Sentence(model, lambda rows: Batch(targets=Targets.of_texts(rows)), prompt)


def searched(
    model: Decoder, rows: list[list[int]], settings: dict[str, object]
) -> list[list[Hypothesis]]:
    config = change_search(BeamConfig(), {"max_length": 7, **settings})
    return search_batch(model, prompts(*rows), config, config.n_hypotheses)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_each_prompt_goes_on_as_in_the_reference(
    model: Decoder, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference reads every text anew, one prompt at a time; ratios to a source limit nothing."""
    monkeypatch.setattr(kv_cache, "COMPACT_EVERY", 1)
    monkeypatch.setattr(kv_cache, "COMPACT_BELOW", 1.0)
    ratios = {"max_length_ratio": 0.5, "max_length_offset": 0, "min_length_ratio": 3.0}
    results = searched(model, PROMPTS, {**ratios, **settings})
    config = change_search(BeamConfig(), {"max_length": 7, "max_length_ratio": 0.0, **settings})
    for line, (prompt, hypotheses) in enumerate(zip(PROMPTS, results, strict=True)):
        agree(hypotheses, sentence(model, tuple(prompt)), config, line)


def test_limits_count_what_is_written(model: Decoder) -> None:
    results = searched(model, PROMPTS, {"beam_size": 2, "min_length": 6})
    assert {len(one.token_log_probs) for found in results for one in found} == {7}
    assert {len(one.ids) for found in results for one in found} <= {6, 7}


def test_a_prefix_stands_behind_the_prompt(model: Decoder) -> None:
    prefixes, longest = [[9, 4], [], [11, 10], [8], [3]], 2
    prefix = torch.tensor([[*row, *[0] * (longest - len(row))] for row in prefixes])
    config = BeamConfig(beam_size=3, max_length=6)
    results = search_batch(model, prompts(*PROMPTS), config, 3, prefix=prefix)
    whole = config.changed({"max_length_ratio": 0.0})
    for line, (prompt, wanted, found) in enumerate(zip(PROMPTS, prefixes, results, strict=True)):
        agree(found, sentence(model, tuple(prompt)), whole, line, Request(prefix=wanted))
    assert results[0][0].ids[:2] == [9, 4]


def test_terms_are_written_behind_the_prompt(model: Decoder) -> None:
    """Those that the prompt has do not count."""
    starts = torch.ones(12, dtype=torch.bool)
    batch = prompts([5, 6, 7], [4], [6])
    terms = Constraints(
        positive=torch.tensor([[[6, 0]], [[9, 8]], [[6, 0]]]),
        in_order=torch.tensor([False] * 3),
        negative=torch.tensor([[[7]]] * 3),
    )
    config = BeamConfig(beam_size=4, max_length=9, max_length_ratio=0.0)
    results = search_batch(
        model,
        replace(batch, terms=terms),
        config,
        2,
        tokens=TargetTokens(word_starts=lambda: starts),
    )
    for line, (prompt, term) in enumerate([([5, 6, 7], [6]), ([4], [9, 8]), ([6], [6])]):
        request = Request(required=[term], refused=[[7]], starts=set(range(12)))
        agree(results[line], sentence(model, tuple(prompt)), config, line, request, 2)


def test_a_search_from_nothing_is_recorded_and_replayed(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not torch.cuda.is_available():
        monkeypatch.setattr(graphs, "supports_cuda_graphs", lambda device: True)
        monkeypatch.setattr(graphs, "capture_cuda_graph", recorder.capture_cuda_graph)
    nothing, config = prompts([], []), BeamConfig(beam_size=2, max_length=9, min_length=5)
    engine = Engine(BeamSearch(model, config, 2), steps="graph")
    found = dict(engine.run(OneBatch(nothing)))
    assert engine.replayed_steps > 0
    same([found[0], found[1]], search_batch(model, nothing, config, 2))


def test_captured_steps_have_room_for_texts_without_a_source(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits by the length of the source do not hold where there is none."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(graphs, "supports_cuda_graphs", lambda device: True)
        monkeypatch.setattr(graphs, "capture_cuda_graph", recorder.capture_cuda_graph)
    config = BeamConfig(beam_size=2, max_length=45, min_length=42)
    found = dict(Engine(BeamSearch(model, config, 2), steps="graph").run(OneBatch(prompts([], []))))
    same([found[0], found[1]], search_batch(model, prompts([], []), config, 2))


def test_slots_are_filled_again_where_nothing_has_a_prompt(model: Decoder) -> None:
    rows: list[list[int]] = [*([] for _ in range(7)), [4, 5], [6]]
    settings = {"samples": 2, "temperature": 3.0, "max_length": 12}
    waiting, refills = [[7, 8], [0, 1, 2, 3]], [[6], [5], [4]]

    class Source:
        def next_batch(self) -> NumberedBatch | None:
            return self._of(waiting)

        def refill(self, slots: int, columns: int) -> NumberedBatch | None:
            assert columns == 0
            return self._of(refills)

        def _of(self, left: list[list[int]]) -> NumberedBatch | None:
            numbers = left.pop() if left else []
            return (numbers, prompts(*(rows[number] for number in numbers))) if numbers else None

    found = dict(Engine(BeamSearch(model, change_search(BeamConfig(), settings), 2)).run(Source()))
    assert refills == []
    same([found[number] for number in range(9)], searched(model, rows, settings))


def test_a_short_prompt_reaches_the_last_learned_position() -> None:
    """It goes on when longer ones have ended, and the padding behind it takes no positions."""
    model = AttendingModel(most=12)
    forced = torch.tensor([[EOS], [0]])
    config = BeamConfig(beam_size=2, max_length=9, min_length=8, max_length_ratio=0.0)
    long, short = search_batch(model, prompts([4] * 10, [5, 6]), config, prefix=forced)
    assert (long[0].ids, len(short[0].ids)) == ([], 9)
    agree(short, sentence(model, (5, 6)), config, 1, n_best=1)
    with pytest.raises(DataError, match="learned only 12 positions"):
        search_batch(model, prompts([5] * 6), config)


def test_texts_end_where_the_learned_positions_do() -> None:
    settings = {"hidden_size": 8, "heads": 2, "layers": 1, "max_positions": 9}
    torch.manual_seed(1)
    model = (
        TransformerLM(TransformerLMConfig.model_validate(settings), VocabularySizes({"tgt": 12}))
        .double()
        .eval()
    )
    rows, config = [[4] * 6, [], [5]], {"beam_size": 2, "max_length": 20, "min_length": 15}
    found = searched(model, rows, config)
    assert [(len(best.ids), best.finished) for best, _ in found] == [
        (3, False),
        (9, False),
        (8, False),
    ]
    same(found, [searched(model, [row], config)[0] for row in rows])


def test_every_step_is_traced(model: Decoder) -> None:
    config = BeamConfig(beam_size=3, max_length=6, no_repeat_ngram=2)
    trace = trace_search(BeamSearch(model, config, 3), prompts(PROMPTS[0]))
    same([trace.hypotheses[:3]], search_batch(model, prompts(PROMPTS[0]), config, 3))
    assert trace.length_limit == 6
    assert isinstance(model, RecurrentModel) or any(
        one.forbidden_by == "no_repeat_ngram" for step in trace.steps for one in step
    )


def test_a_shortlist_needs_a_source() -> None:
    rows = (
        torch.zeros(13, dtype=torch.long),
        torch.zeros(0, dtype=torch.long),
        torch.ones(12, dtype=torch.bool),
    )
    engine = Engine(BeamSearch(RecurrentModel(), BeamConfig(), shortlist=Shortlist(*rows)))
    with pytest.raises(RecipeError, match="this model does not read one"):
        list(engine.run(OneBatch(prompts([4]))))
