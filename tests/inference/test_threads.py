"""Two Python threads that search at once, with one model and one engine or two: each finds what it finds alone."""

import random
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from threading import Barrier, Thread, current_thread
from types import FrameType
from typing import Any

import pytest
import torch

from nmtkit.decoding import engine as engine_module
from nmtkit.decoding import graphs
from nmtkit.decoding.beam_search import BeamSearch
from nmtkit.decoding.hypotheses import ResultReader
from nmtkit.decoding.settings import BeamConfig
from nmtkit.inference.translator import Translator
from tests.inference.untrained import KNOWN, WORDS, untrained


def case(name: str, shared: bool, device: str, count: int) -> Any:
    """One translator for both threads, or each its own of one model; so many sentences each."""
    marks = [pytest.mark.slow] if count > 100 else []
    if device == "cuda":
        marks += [
            pytest.mark.cuda,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
        ]
    return pytest.param(name, shared, device, count, marks=marks)


CASES = [
    case("transformer", True, "cpu", 8),
    case("transformer", True, "cpu", 1000),
    case("transformer", False, "cpu", 1000),
    case("pointer-generator-coverage", True, "cpu", 1000),
    case("transformer", True, "cuda", 60),
    case("transformer", False, "cuda", 60),
    case("pointer-generator-coverage", True, "cuda", 60),
    case("transformer", True, "cuda", 1000),
]
SEARCH = {"beam_size": 4, "no_repeat_ngram": 2, "min_length": 2, "max_length": 12}


@pytest.fixture(autouse=True)
def turns() -> Iterator[None]:
    """Threads take turns so often that they meet everywhere."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


def sentences(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    words = [word for line in [*KNOWN, "Zyx Abc"] for word in line.split()]
    return [" ".join(draw.choices(words, k=draw.randint(1, 7))) for _ in range(count)]


def translator_on(name: str, device: str) -> Translator:
    translator = untrained(name, WORDS, 4.0, **SEARCH)
    model = translator.model if device == "cpu" else translator.model.float()
    return Translator(model.to(device), WORDS, translator.config)


def one_by_one(translator: Translator, lines: list[str]) -> list[str]:
    return [translator.translate(line) for line in lines]


def few_by_few(translator: Translator, lines: list[str]) -> list[str]:
    return [
        text
        for first in range(0, len(lines), 5)
        for text in translator.translate(lines[first : first + 5])
    ]


@cache
def alone(name: str, device: str, count: int) -> list[list[str]]:
    """What one thread finds."""
    return [one_by_one(translator_on(name, device), sentences(count, seed)) for seed in (1, 2)]


def at_once(*jobs: Callable[[], list[str]]) -> list[list[str]]:
    """The results of jobs in threads that begin together."""
    begin = Barrier(len(jobs))

    def run(job: Callable[[], list[str]]) -> list[str]:
        begin.wait()
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(run, jobs))


@pytest.mark.parametrize(("name", "shared", "device", "count"), CASES)
def test_translators(name: str, shared: bool, device: str, count: int) -> None:
    lines = [sentences(count, seed) for seed in (1, 2)]
    expected = alone(name, device, count)
    assert len({text for own in expected for text in own}) > 10
    first = translator_on(name, device)
    both = [first, first if shared else Translator(first.model, WORDS, first.config)]
    ways = (one_by_one, one_by_one) if count < 100 else (one_by_one, few_by_few)
    jobs = [
        partial(way, translator, own)
        for way, translator, own in zip(ways, both, lines, strict=True)
    ]
    assert at_once(*jobs) == expected


def test_captures_give_way_while_another_thread_keeps_some() -> None:
    engine = engine_module.Engine(
        BeamSearch(translator_on("transformer", "cpu").model, BeamConfig())
    )
    kept: Any = "a captured batch"

    def other(frame: FrameType, event: str, _: object) -> Any:
        """The other thread comes in before each instruction."""
        frame.f_trace_opcodes = True
        if event == "opcode":
            engine._idle_graph_steps[len(engine._idle_graph_steps), 0] = kept
        return other if frame.f_code is engine_module.Engine._check_in.__code__ else None

    before = sys.gettrace()
    sys.settrace(other)
    try:
        for slots in range(graphs.MAX_SHAPES + 1):
            engine._check_in(kept, slots, 1)
    finally:
        sys.settrace(before)
    assert (slots, 1) in engine._idle_graph_steps


def test_the_thread_of_a_search_takes_the_device_of_its_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its events and graphs are those of the thread's own device. Only the driver is stood in for."""
    taken: list[tuple[Thread, torch.device]] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "Stream", lambda *_, **__: None)
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda device: taken.append((current_thread(), device))
    )
    second = torch.device("cuda:1")

    def search() -> Thread:
        with ResultReader(second):
            return current_thread()

    with ThreadPoolExecutor(1) as pool:
        assert [(pool.submit(search).result(), second)] == taken
