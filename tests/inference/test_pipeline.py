"""Lines that are searched while others arrive: the same answers however they arrive and whoever searches."""

import gc
import os
import pickle
import queue
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtkit.core import device as devices
from nmtkit.core.errors import NmtkitError
from nmtkit.decoding.engine import Engine
from nmtkit.decoding.settings import change_search
from nmtkit.inference import inputs
from nmtkit.inference.constraints.requests import Request
from nmtkit.inference.inputs import SourceLine, bucket_width
from nmtkit.inference.loading.speed import MIN_LINES_FOR_WORKERS
from nmtkit.inference.result import EMPTY, Translation
from nmtkit.inference.streaming import job_queue
from nmtkit.inference.streaming.job_queue import Job, JobDecoder, JobQueue, JobSource
from nmtkit.inference.streaming.pipeline import Pipeline
from nmtkit.inference.streaming.workers import WorkerPool, Workers
from nmtkit.inference.translator import Translator
from tests.inference.untrained import RNN, SMALL, learned, untrained
from tests.support.cases import daily
from tests.support.processes import Server, children

WORDS = ["the", "old", "man", "sees", "a", "dog", ",", "who", "sleeps", "in", "his", "house"]
LINES = [" ".join(WORDS[(7 * n + k) % len(WORDS)] for k in range(n * n % 11)) for n in range(75)]
FORKS = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="forks of what uses threads are for Linux only"
)


def made(name: str = "transformer") -> Translator:
    """Weights are large, so that different lines have different translations."""
    return untrained(name, learned([" ".join(WORDS)]), scale=3, beam_size=3)


def opened(kind: str, place: str) -> Translator:
    """What a process from scratch opens."""
    assert place == "cpu"
    return made(kind)


def refused(place: str) -> Translator:
    raise NmtkitError(f"there is no model for {place}")


def windows(lines: Sequence[str], size: int) -> Iterator[list[str]]:
    for first in range(0, len(lines), size):
        yield list(lines[first : first + size])


def written(job: Job) -> list[Translation]:
    """In place of writing what nobody has decoded."""
    return [EMPTY]


def stages(translator: Translator) -> Pipeline:
    return Pipeline(
        lambda requests: translator.encode_requests(requests, None, translator.config), written
    )


def decoded(jobs: Sequence[Job]) -> list[Job]:
    """In place of decoding."""
    for job in jobs:
        job.hypotheses = []
    return list(jobs)


def encoded(translator: Translator, lines: Sequence[str]) -> list[Job]:
    """A window for the queue."""
    pipeline = stages(translator)
    (jobs,) = pipeline.read([lines])
    return pipeline.encode(jobs)


def outcomes(found: Sequence[Sequence[Translation]]) -> list[list[tuple[str, bool]]]:
    return [[(one.text, one.finished) for one in some] for some in found]


def assert_same(
    found: Sequence[Sequence[Translation]], wanted: Sequence[Sequence[Translation]]
) -> None:
    assert outcomes(found) == outcomes(wanted)
    for some, others in zip(found, wanted, strict=True):
        assert [one.score for one in some] == pytest.approx([one.score for one in others], abs=1e-8)


def fresh(server: Server, work: Callable[..., None], *arguments: object) -> None:
    """Calls it in a process in which no threads have computed, so that it can be forked, or once only in one."""
    given = pickle.dumps((work, arguments))
    code = f"import os, pickle, sys; sys.path[:] = {sys.path}; work, given = pickle.loads({given})"
    with server.begin(first=f"{code}; work(*given); os._exit(0)") as process:
        said = process.stderr.read()
        assert process.wait() == 0, said.decode()


def finds_the_same(kind: str, processes: int, from_scratch: bool) -> None:
    """Each line by itself against windows of several sizes, the best three."""
    torch.set_num_threads(1)
    translator = made(kind)
    alone = [translator.search([line], 3)[0] for line in LINES]
    assert len({text for some in outcomes(alone) for text, _ in some}) > 20
    workers = Workers(["cpu"] * processes, partial(opened, kind) if from_scratch else None)
    torch.set_num_threads(2)
    using = replace(translator, workers=workers if processes else None)
    for size in (30,) if from_scratch else (75, 10):
        groups = list(using.stream(windows(LINES, size), 3, need_copies=True))
        assert len(groups) > 1
        assert_same([one for group in groups for one in group], alone)
    assert devices.can_fork() == bool(processes), (
        "forks were wanted, and threads were used, or the other way round"
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", daily(["transformer", "pointer-generator"]))
def test_threads_find_the_same(kind: str) -> None:
    finds_the_same(kind, 0, False)


@FORKS
@pytest.mark.parametrize(
    ("kind", "processes", "from_scratch"),
    [
        ("pointer-generator", 2, False),
        pytest.param("transformer", 3, False, marks=pytest.mark.slow),
        pytest.param("transformer", 2, True, marks=pytest.mark.slow),
    ],
)
def test_workers_find_the_same(
    server: Server, kind: str, processes: int, from_scratch: bool
) -> None:
    fresh(server, finds_the_same, kind, processes, from_scratch)


def uses_the_cores(run: str) -> None:
    """As a script does, without a word about processes: forks from its first thread alone, else threads."""
    forks: list[int] = []
    os.register_at_fork(after_in_parent=lambda: forks.append(1))
    translator = Translator.load(
        run, "cpu", threads=2, search_settings={"beam_size": 1, "max_length": 3}
    )
    lines = [" ".join(["ba", "ce", "du"][: n % 4]) for n in range(MIN_LINES_FOR_WORKERS)]
    found = translator.translate(lines)
    assert len(forks) == 2
    other = threading.Thread(target=threading.Event().wait, args=(0.2,))
    other.start()
    assert not devices.can_fork(), "beside a thread that may be in the middle of anything"
    other.join()
    assert devices.can_fork()
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(translator.translate, [lines, lines])) == [found, found]
    assert translator.translate(lines) == found
    assert len(forks) == 2


@FORKS
def test_python_uses_the_cores_as_the_command_does(server: Server, trained: Path) -> None:
    fresh(server, uses_the_cores, str(trained))


def test_a_single_line_passes_through_the_same_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a thread; each stage is entered in turn."""
    names = ["read", "encode", "decode", "write"]
    seen: list[str] = []
    for name in names:
        stage = getattr(Pipeline, name)

        def noting(self: Pipeline, *arguments: Any, name: str = name, stage: Any = stage) -> Any:
            seen.append(name)
            return stage(self, *arguments)

        monkeypatch.setattr(Pipeline, name, noting)
    translator = made()
    with monkeypatch.context() as changed:
        changed.delattr("nmtkit.inference.streaming.pipeline.Thread")
        alone = translator.search(["the old man"])
    assert seen == names
    seen.clear()
    (found,) = translator.stream([["the old man"]])
    assert [*dict.fromkeys(seen)] == names
    assert_same(found, alone)


def test_who_types_is_answered_before_the_next_line() -> None:
    """Empty lines as well, which nobody searches; and the threads of an earlier answer may still wait for more."""
    typed: queue.Queue[str] = queue.Queue()

    def lines() -> Iterator[list[str]]:
        while (line := typed.get(timeout=120)) != "end":
            yield [line]

    translator = made()
    groups = translator.stream(lines())
    for line in ("the dog", "", "a man", "", "", "the house"):
        typed.put(line)
        ((found,),) = next(groups)
        assert found.text == translator.translate(line)
    typed.put("end")
    assert list(groups) == []


def test_a_fault_of_the_input_comes_after_what_is_before_it() -> None:
    def broken() -> Iterator[list[str]]:
        yield LINES[:5]
        yield LINES[5:9]
        raise NmtkitError("line 10 is broken")

    found: list[list[Translation]] = []

    def read() -> None:
        for group in made().stream(broken()):
            found.extend(group)

    with pytest.raises(NmtkitError, match="line 10"):
        read()
    assert outcomes(found) == outcomes(made().search(LINES[:9]))


def test_few_windows_are_read_ahead() -> None:
    read = 0

    def endless() -> Iterator[list[str]]:
        nonlocal read
        while True:
            read += 1
            yield LINES[1:4]

    groups = made().stream(endless())
    out = 0
    for _ in range(60):
        out += len(next(groups))
        assert 3 * (read - 1) <= out + 3 * (job_queue.MAX_WINDOWS + 1)
    time.sleep(0.2)
    assert 3 * (read - 1) <= out + 3 * (job_queue.MAX_WINDOWS + 1)
    groups.close()
    before = read
    time.sleep(0.1)
    assert read <= before + 1


def job_of(number: int, characters: int) -> Job:
    job = Job(number, Request("x" * characters))
    job.source = SourceLine([4] * 3, [])
    return job


@pytest.mark.parametrize(
    ("sizes", "fits"),
    [([1, 1, 1], 3), ([1] * 9, 3), ([60, 30, 10, 1], 3), ([60, 30, 11, 1], 2), ([500, 1], 1)],
)
def test_a_queue_is_bounded_by_windows_and_by_characters(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], fits: int
) -> None:
    """A window that is too long by itself waits only until the queue is empty."""
    monkeypatch.setattr(job_queue, "MAX_CHARACTERS", 100)
    waiting = JobQueue(made(), torch.device("cpu"), 1)
    accepted: list[bool] = []

    def put() -> None:
        for number, size in enumerate(sizes):
            accepted.append(waiting.put([job_of(number, size)]))

    thread = threading.Thread(target=put)
    thread.start()
    time.sleep(0.1)
    assert len(accepted) == fits
    while len(accepted) < len(sizes):
        decoded(waiting.next_batch())
        assert waiting.take_finished()
        time.sleep(0.01)
    thread.join()
    assert all(accepted)


def test_a_closed_queue_refuses_jobs() -> None:
    waiting = JobQueue(made(), torch.device("cpu"), 1)
    for number in range(job_queue.MAX_WINDOWS):
        assert waiting.put([job_of(number, 1)])
    closing_thread = threading.Timer(0.1, waiting.close, [True])
    closing_thread.start()
    assert not waiting.put([job_of(job_queue.MAX_WINDOWS, 1)])
    assert waiting.next_batch() == []


def test_the_thread_that_reads_ahead_keeps_no_model() -> None:
    """It may be the last to end, when nothing of torch may be freed any more."""
    goes_on = threading.Event()

    def blocked() -> Iterator[list[str]]:
        yield LINES[1:4]
        goes_on.wait()

    translator = made()
    model, groups = weakref.ref(translator.model), translator.stream(blocked())
    next(groups)
    groups.close()
    del translator, groups
    gc.collect()
    assert model() is None
    goes_on.set()


def test_a_fault_of_one_search_ends_the_others() -> None:
    torch.set_num_threads(2)

    def decode(source: JobSource) -> Iterator[Job]:
        while jobs := source.next_batch():
            if any(job.number > 20 for job in jobs):
                raise RuntimeError("the search broke")
            yield from decoded(jobs)

    translator = made()
    waiting = JobQueue(translator, torch.device("cpu"), 2)
    begun = threading.active_count()
    with pytest.raises(RuntimeError, match="the search broke"):
        list(stages(translator).run(windows(LINES, 30), waiting, [decode] * 2, in_process=True))
    assert threading.active_count() <= begun + 1
    assert torch.get_num_threads() == 2


def test_one_search_waits_for_more_while_another_works() -> None:
    """Else a core would idle from the first gap in the input until all that waits is done."""
    arrived = threading.Event()
    takers: list[str] = []

    def decode(name: str, source: JobSource) -> Iterator[Job]:
        while jobs := source.next_batch():
            takers.append(name)
            if len(takers) == 1:
                assert arrived.wait(120)
                time.sleep(5 * job_queue.IDLE_SECONDS)
            yield from decoded(jobs)

    def lines() -> Iterator[list[str]]:
        yield ["the"] * 16
        time.sleep(3 * job_queue.IDLE_SECONDS)
        yield ["a"] * 16
        arrived.set()

    translator = replace(made(), batch_tokens=1024)
    waiting = JobQueue(translator, torch.device("cpu"), 2)
    decoders = [partial(decode, name) for name in "ab"]
    groups = stages(translator).run(lines(), waiting, decoders, in_process=False)
    found = [one for group in groups for one in group]
    assert len(found) == 32
    assert set(takers) == {"a", "b"}
    assert len(takers) == 4


def loses_a_worker(from_scratch: bool) -> None:
    workers = Workers(["cpu"] * 2, partial(opened, "transformer") if from_scratch else None)
    groups = replace(made(), workers=workers).stream(iter(lambda: LINES, None))
    next(groups)
    victim = children(os.getpid())[0]
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(
        NmtkitError, match=rf"worker \d \(process {victim}, cpu\) was killed by signal SIGKILL"
    ):
        list(groups)
    assert children(os.getpid()) == []


@FORKS
@pytest.mark.parametrize("from_scratch", daily([False, True]))
def test_a_worker_that_is_lost_is_named(server: Server, from_scratch: bool) -> None:
    fresh(server, loses_a_worker, from_scratch)


def memory_is_short(source: JobSource) -> Iterator[Job]:
    raise MemoryError("you tried to allocate 7 bytes")
    yield from ()


def breaks(source: JobSource) -> Iterator[Job]:
    raise ValueError("not foreseen")
    yield from ()


def tells(decoder: JobDecoder, kind: type[Exception], message: str) -> None:
    translator = made()
    with closing(WorkerPool(Workers(["cpu"]), lambda _: decoder)) as pool:
        waiting = JobQueue(translator, torch.device("cpu"), 1)
        groups = stages(translator).run(
            windows(LINES, 30), waiting, pool.decoders, in_process=False, stop=pool.close
        )
        with pytest.raises(kind, match=message):
            list(groups)


@FORKS
def test_a_fault_in_a_worker_is_told(server: Server) -> None:
    short = r"worker 1 \(process \d+, cpu\) is out of memory: you tried .*--batch-tokens"
    fresh(server, tells, memory_is_short, NmtkitError, short)
    fresh(server, tells, breaks, RuntimeError, "ValueError: not foreseen")


def test_few_lines_begin_no_process_and_one_that_cannot_open_the_model_says_why() -> None:
    using = replace(made(), workers=Workers(["cpu"], refused, min_lines=20))
    assert outcomes(using.search(LINES[:19])) == outcomes(made().search(LINES[:19]))
    with pytest.raises(NmtkitError, match="there is no model for cpu"):
        using.search(LINES[:20])


def test_a_process_that_has_computed_in_threads_is_not_forked() -> None:
    devices.map_batches(lambda _: None, [1, 2], torch.device("cpu"))
    torch.set_num_threads(2)
    devices.map_batches(lambda _: None, [1, 2], torch.device("cpu"))
    torch.set_num_threads(1)
    assert not Workers(["cpu"] * 2).should_use(1000)
    assert Workers(["cpu"] * 2, refused).should_use(1000)


def test_few_widths_serve_all_lengths() -> None:
    widths = [bucket_width(columns) for columns in range(1, 400)]
    assert all(width >= columns for columns, width in enumerate(widths, start=1))
    assert sorted(set(widths)) == [
        16,
        20,
        24,
        32,
        40,
        48,
        64,
        80,
        96,
        128,
        160,
        192,
        256,
        320,
        384,
        512,
    ]
    # What has a width fits beside all others of it, see `JobQueue.refill`.
    assert all(
        3 * width <= 4 * columns for columns, width in enumerate(widths, start=1) if columns >= 12
    )


def test_no_line_is_made_wider_than_the_model_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are captured for 20 columns, and this model knows 18 positions."""
    monkeypatch.setitem(
        SMALL, "short", ("luong", {**RNN, "score": "location", "max_positions": 18})
    )
    ((found,),) = made("short").search(["the " * 17])
    assert len(found.src_tokens) == 17


@pytest.mark.slow
@FORKS
def test_samples_do_not_depend_on_what_is_searched_with_them() -> None:
    """Windows, batches and processes decide who is drawn beside whom; line and seed alone decide what."""
    one = made("rnnsearch")
    drawing = replace(
        one, config=change_search(one.config, {"samples": 3, "temperature": 1.3, "top_p": 0.95})
    )
    whole = outcomes(drawing.search(LINES, 3))
    assert len(set(map(str, whole))) > len(LINES) // 2
    for other in (replace(drawing, batch_tokens=7), replace(drawing, workers=Workers(["cpu"] * 2))):
        assert outcomes(other.search(LINES, 3)) == whole
    windows = [LINES[:1], LINES[1:30], LINES[30:]]
    assert outcomes([found for group in drawing.stream(windows, 3) for found in group]) == whole
    again = replace(drawing, config=drawing.config.changed({"seed": 2}))
    assert outcomes(again.search(LINES, 3)) != whole


def test_the_risk_is_of_all_that_was_drawn_and_groups_say_nothing_twice() -> None:
    one = made()
    drawing = replace(one, config=change_search(one.config, {"samples": 8, "mbr": "chrf"}))
    with pytest.raises(NmtkitError, match="n_best is 9, but samples is only 8: raise samples"):
        drawing.search(LINES[3:6], 9)
    every = replace(drawing, config=change_search(drawing.config, {"mbr": "none"})).search(
        LINES[3:6], 8
    )
    for best, several in zip(drawing.search(LINES[3:6], 2), every, strict=True):
        assert len(best) == 2
        assert {found.text for found in best} <= {found.text for found in several}
        assert best[0].score > best[1].score > 0
    groups = replace(one, config=one.config.changed({"beam_size": 6, "diversity_groups": 3}))
    for several in groups.search(LINES[3:6], 6):
        assert len({found.text for found in several}) == len(several) > 0


def test_searches_come_to_the_end_of_a_window_together() -> None:
    translator = replace(made(), batch_tokens=100_000)
    waiting = JobQueue(translator, torch.device("cpu"), 2)
    assert waiting.put(encoded(translator, LINES * 4))
    assert waiting.start_decoders() == 2
    taken = [0, 0]
    waiting.close()
    while part := waiting.next_batch():  # by the decoder that has had less work so far
        taken[taken.index(min(taken))] += sum(len(job.source.ids) for job in part)
    assert sum(taken) == 4 * sum(len(line.split()) for line in LINES)
    assert abs(taken[0] - taken[1]) <= 20 * inputs.MIN_SENTENCES_PER_SEARCH


@pytest.mark.parametrize(("lines", "searches"), [(1, 1), (15, 1), (16, 2)])
def test_every_search_has_one_thread(
    monkeypatch: pytest.MonkeyPatch, lines: int, searches: int
) -> None:
    """Threads that wait for each other make a single line many times as slow on a busy machine."""
    monkeypatch.setattr(devices, "_threads_requested", False)  # as in a process of its own
    translator = made()
    seen = []
    run = Engine.run

    def noting(self: Engine, *arguments: Any, **keywords: Any) -> Any:
        seen.append(torch.get_num_threads())
        return run(self, *arguments, **keywords)

    monkeypatch.setattr(Engine, "run", noting)
    torch.set_num_threads(2)
    filled = [line for line in LINES if line]
    with closing(translator.stream([filled[:lines]])) as groups:
        for _ in groups:
            assert torch.get_num_threads() == 2, (
                "the program that uses the results has its threads back"
            )
    assert seen == [1] * searches
