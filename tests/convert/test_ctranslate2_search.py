"""`--engine ctranslate2` searches as nmtkit does, by a conversion that is kept, and refuses the rest by name."""

import json
import math
import multiprocessing
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nmtkit.convert import ctranslate2_search
from nmtkit.convert.ctranslate2_search import CTranslate2Search
from nmtkit.convert.exporting import export_run
from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.data.tokenizers.vocabulary import EOS
from nmtkit.inference.constraints.requests import Request
from nmtkit.inference.result import Translation
from nmtkit.inference.streaming.workers import Workers
from nmtkit.inference.translator import Translator
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.run import Run
from nmtkit.training.checkpoints.weights import read_weights, save_weights
from tests.support.commands import (
    RECIPE,
    Command,
    as_text,
    refused,
    sets,
    succeeded,
    write_lines,
    write_pairs,
)
from tests.support.random_runs import PAIRS, SOURCES, TARGETS, learned, made_run, needs, opened

pytestmark = needs("ctranslate2")
LINES = SOURCES[:30]
BY = ("--engine", "ctranslate2")
SHORT = {"max_length_ratio": 0.5, "max_length_offset": 3}
SEARCHES: list[dict[str, Any]] = [
    {"beam_size": 1},
    {"length_penalty": "none", "beam_size": 4},
    {"alpha": 0.6},
    SHORT,
    SHORT | {"beam_size": 1},
    SHORT | {"beam_size": 5, "at_limit": "compete", "stop": "first_k"},
    {"max_length": 3, "max_length_ratio": 0.0, "beam_size": 5},
]


def ends(run: Path, bias: float) -> None:
    """Makes the random model end its sentences earlier or later."""
    weights, path = read_weights(run / "average.safetensors"), run / "average.safetensors"
    weights["output.bias"][EOS] = bias
    save_weights(path, weights, Run(RunFolder(run)).load_tokenizers().checksum)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "run"
    made_run(path, {"decoder_layers": 2}, learned())
    ends(path, 3.0)
    return path


def by_ctranslate2(run: Path, **more: Any) -> Translator:
    return opened(run, engine="ctranslate2", **more)


def by_nmtkit(run: Path, **more: Any) -> Translator:
    return opened(run, engine="nmtkit", **more)


def facts(found: list[list[Translation]]) -> list[list[Any]]:
    return [[(one.text, one.tokens, one.finished) for one in ranked] for ranked in found]


def test_a_fork_is_refused_instead_of_waiting_forever(run: Path) -> None:
    translator = by_ctranslate2(run)
    translator.translate(LINES[0])
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def translate_in_fork() -> None:
        try:
            sender.send(translator.translate(LINES[0]))
        except NmtkitError as fault:
            sender.send(str(fault))

    fork = multiprocessing.get_context("fork").Process(target=translate_in_fork)
    fork.start()
    answered = receiver.poll(60)
    fork.kill()
    assert answered
    assert (
        "was forked after the model was opened; open the model in each process" in receiver.recv()
    )


def test_it_has_threads_of_its_own_instead_of_forked_workers(run: Path) -> None:
    translator = by_ctranslate2(run)
    expected = translator.search(LINES)
    translator = replace(translator, workers=Workers(["cpu", "cpu"]))
    assert facts(translator.search(LINES)) == facts(expected)


@pytest.mark.parametrize("n_best", [1, 3])
@pytest.mark.parametrize("settings", SEARCHES, ids=str)
def test_it_finds_what_nmtkit_finds_with_the_limit_of_each_line(
    settings: dict[str, Any], n_best: int, run: Path
) -> None:
    own, theirs = (
        opened(run, engine=name, search_settings=settings) for name in ("nmtkit", "ctranslate2")
    )
    count = min(n_best, own.config.n_hypotheses)
    expected, found = (by.search(LINES, count, need_copies=True) for by in (own, theirs))
    assert facts(found) == facts(expected)
    for some, others in zip(found, expected, strict=True):
        for one, other in zip(some, others, strict=True):
            assert (one.score, one.log_prob) == pytest.approx(
                (other.score, other.log_prob), abs=1e-4
            )
            assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=1e-4)
    n_cut = sum(
        not translation.finished
        for ranked in own.search(LINES, own.config.n_hypotheses)
        for translation in ranked
    )
    assert n_cut > 0 or not settings.keys() & {"max_length", "max_length_ratio"}


def test_a_stream_has_no_log_probabilities_of_tokens_that_nobody_asks_for(run: Path) -> None:
    (plain, *_), *_ = by_ctranslate2(run).stream([LINES[:4]])
    assert all(map(math.isnan, plain[0].token_log_probs))
    assert len(plain[0].token_log_probs) == len(plain[0].tokens) + plain[0].finished
    many = by_ctranslate2(run, search_settings={"beam_size": 2})
    assert [
        one[0].text for group in many.stream([9 * LINES]) for one in group
    ] == 9 * many.translate(LINES)


REFUSED = {
    "--length-penalty gnmt:0.6": "length_penalty gnmt (use average or none)",
    "--length-penalty gnmt:0": "length_penalty gnmt (use average or none)",
    "--search coverage_penalty=0.2": "coverage_penalty 0.2",
    "--search stop=exact": "stop exact (use first_k)",
    "--search min_length_ratio=0.5": "min_length_ratio 0.5",
    "--search repetition_penalty=1.2": "repetition_penalty 1.2",
    "--search rules=[brackets]": "rules ['brackets']",
    "--search at_limit=end": "at_limit end (use behind or compete)",
    "--beam-size 4 --search diversity_groups=2": "diversity_groups 2",
    "--samples 2": "kind sampling",
    "-m run": "several models",
    "--lm run": "--lm",
    "--shortlist lines": "--shortlist",
    "--workers 2": "--workers (use --threads)",
    "--replace-unknown": "ctranslate2 does not support replacing unknown words; change this, or",
    "--terms terms": "ctranslate2 does not support terms; change this, or",
    "--prefix": "line 1: ctranslate2 does not support prefixes or terms",
    "--jsonl": "line 1: ctranslate2 does not support prefixes or terms",
    "--interactive": "and --engine",
    "--precision int8_float16": "does not support precision int8_float16 on this cpu device; use fastest or one of",
}


@pytest.mark.parametrize("options", REFUSED)
def test_what_it_lacks_is_refused_by_name(
    options: str, run: Path, console: Command, tmp_path: Path
) -> None:
    (tmp_path / "run").symlink_to(run)
    (tmp_path / "terms").write_text("ba\tBA\n")
    line = '{"source": "ba", "must": ["BA"]}' if options == "--jsonl" else "ba ce\tBA"
    lines = [] if options == "--interactive" else [write_lines(tmp_path / "lines", [line])]
    refused(console("translate", "-m", "run", *BY, *options.split(), *lines), REFUSED[options])


def test_what_is_of_the_engine_is_refused_without_it(
    run: Path, console: Command, tmp_path: Path
) -> None:
    (tmp_path / "run").symlink_to(run)
    asked = console("translate", "-m", "run", "--precision", "int16", "--engine", "nmtkit")
    refused(
        asked,
        "precision int16: nmtkit's own engine supports only fp32, fp16 and bf16; use one of these",
    )
    given = write_lines(tmp_path / "lines", ["ba"])
    rescored = console(
        "rescore", "-m", "run", "--source", given, "--target", given, "--engine", "ctranslate2"
    )
    refused(rescored, "No such option '--engine'")


def test_without_the_library_one_message_names_the_extra(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    missing = r"ctranslate2 is not installed; install it with `pip install 'nmtkit\[fast\]'`"
    with pytest.raises(NmtkitError, match=f"^{missing}; change this, or use --engine nmtkit$"):
        by_ctranslate2(run)
    remedy_of_int8 = "change this, or remove --precision int8"
    with pytest.raises(
        NmtkitError, match=f"^precision int8 needs ctranslate2: {missing}; {remedy_of_int8}$"
    ):
        opened(run, precision="int8")
    with pytest.raises(NmtkitError, match=f"^{missing}$"):
        export_run(Run(RunFolder(run)), "ctranslate2", run / "out")


@pytest.mark.parametrize(
    "precision", ["fp32", "float32", "int8", "int8_float32", "int16", "fastest", "auto"]
)
def test_types_of_numbers_have_the_names_of_both(precision: str, run: Path) -> None:
    if precision == "int16" and "int16" not in pytest.importorskip(
        "ctranslate2"
    ).get_supported_compute_types("cpu"):
        pytest.skip("CTranslate2 has no int16 on this processor")
    theirs = by_ctranslate2(run, precision=precision)
    texts, exact = theirs.translate(LINES), by_nmtkit(run).translate(LINES)
    assert (texts == exact) or "int" in precision or precision == "fastest"
    engine = theirs.external_engine
    assert isinstance(engine, CTranslate2Search)
    wanted = {"fp32": "float32", "auto": "float32", "int8": "int8_float32"}.get(
        precision, precision
    )
    assert wanted in (engine._translator.compute_type, "fastest")


def test_the_last_three_conversions_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "run"
    made_run(path, {}, learned())
    first = by_ctranslate2(path).translate(LINES)
    (kept,) = (path / "ctranslate2").glob("*/model.bin")
    written = kept.stat().st_mtime_ns
    assert by_ctranslate2(path, search_settings={"beam_size": 2}).translate(LINES[:1])
    assert kept.stat().st_mtime_ns == written
    unfinished = path / "ctranslate2" / ".another.1.new"
    unfinished.mkdir()  # by a process that is converting other weights
    abandoned = path / "ctranslate2" / ".another.2.new"
    abandoned.mkdir()
    os.utime(abandoned, (0, 0))
    for number in range(1, 4):
        ends(path, number)
        assert by_ctranslate2(path).translate(LINES) == by_nmtkit(path).translate(LINES) != first
        if number < 3:
            assert kept.exists()
    assert not kept.exists()
    assert len([*(path / "ctranslate2").glob("*/model.bin")]) == 3
    assert unfinished.exists()
    assert not abandoned.exists()


def test_a_library_that_cannot_open_a_model_leaves_the_conversion_alone(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_ctranslate2(run)
    (kept,) = (run / "ctranslate2").glob("*/model.bin")
    written = kept.stat()

    def fail(*given: Any, **more: Any) -> None:
        raise RuntimeError("Library libcublas.so.12 is not found")

    monkeypatch.setattr(pytest.importorskip("ctranslate2"), "Translator", fail)
    with pytest.raises(
        NmtkitError, match=r"^ctranslate2: Library libcublas.so.12 is not found; install what is "
    ):
        by_ctranslate2(run)
    assert kept.stat() == written


def test_two_processes_convert_one_run_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_run(tmp_path / "run", {}, learned())
    convert, number = ctranslate2_search.to_ctranslate2, os.getpid()

    def beside_another(*given: Any, **options: Any) -> Any:
        monkeypatch.setattr(ctranslate2_search, "to_ctranslate2", convert)
        monkeypatch.setattr(os, "getpid", lambda: number + 1)
        by_ctranslate2(tmp_path / "run")  # which ends first
        monkeypatch.setattr(os, "getpid", lambda: number)
        return convert(*given, **options)

    monkeypatch.setattr(ctranslate2_search, "to_ctranslate2", beside_another)
    assert by_ctranslate2(tmp_path / "run").translate(LINES) == by_nmtkit(
        tmp_path / "run"
    ).translate(LINES)
    assert len([*(tmp_path / "run" / "ctranslate2").iterdir()]) == 1


def test_a_damaged_conversion_is_made_anew(tmp_path: Path) -> None:
    made_run(tmp_path / "run", {}, learned())
    before = by_ctranslate2(tmp_path / "run").translate(LINES[:9])
    (kept,) = (tmp_path / "run" / "ctranslate2").glob("*/model.bin")
    whole = kept.read_bytes()
    kept.write_bytes(whole[:999])
    assert by_ctranslate2(tmp_path / "run").translate(LINES[:9]) == before
    assert kept.read_bytes() == whole


def test_a_run_that_cannot_be_written_has_its_conversion_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_run(tmp_path / "run", {}, learned())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make = Path.mkdir

    def refuse(path: Path, *given: Any, **more: Any) -> None:
        if (tmp_path / "run") in path.parents:
            raise PermissionError(13, "Permission denied")
        make(path, *given, **more)

    monkeypatch.setattr(Path, "mkdir", refuse)
    for _ in range(2):
        assert by_ctranslate2(tmp_path / "run").translate(LINES[:9]) == by_nmtkit(
            tmp_path / "run"
        ).translate(LINES[:9])
        (kept,) = (tmp_path / "cache" / "nmtkit" / "ctranslate2").glob("*/*/model.bin")
    assert not (tmp_path / "run" / "ctranslate2").exists()
    written = kept.stat().st_mtime_ns
    by_ctranslate2(tmp_path / "run")
    assert kept.stat().st_mtime_ns == written
    ends(tmp_path / "run", 1.0)
    by_ctranslate2(tmp_path / "run")
    assert len([*(tmp_path / "cache" / "nmtkit" / "ctranslate2").glob("*/*/model.bin")]) == 2
    monkeypatch.setattr(ctranslate2_search, "user_cache", lambda: tmp_path / "run" / "cache")
    ends(tmp_path / "run", 2.0)
    with pytest.raises(NmtkitError, match=r"cannot be written: Permission denied"):
        by_ctranslate2(tmp_path / "run")
    assert opened(tmp_path / "run").external_engine is None


def test_more_positions_than_were_learned(tmp_path: Path) -> None:
    made_run(tmp_path / "run", {"positions": "learned", "max_positions": 64}, learned())
    for engine in ("nmtkit", "auto"):
        with pytest.raises(DataError, match="learned only 64 positions"):
            opened(tmp_path / "run", engine=engine).translate(" ".join(LINES[:30]))
    with pytest.raises(NmtkitError, match=r"ctranslate2 supports only .* of fewer than 64 tokens"):
        by_ctranslate2(tmp_path / "run").translate(" ".join(LINES[:30]))


def test_a_text_that_goes_on_ends_where_learned_positions_do(tmp_path: Path) -> None:
    made_run(tmp_path / "run", {"positions": "learned", "max_positions": 32}, learned())
    ends(tmp_path / "run", -50.0)
    own, auto = (opened(tmp_path / "run", engine=name) for name in ("nmtkit", "auto"))
    for needs_log_probs in (False, True):
        found = auto.search(LINES[:4], need_copies=needs_log_probs)
        assert facts(found) == facts(own.search(LINES[:4]))
        assert {len(one.tokens) for (one,) in found} == {32}


def test_another_model_is_refused(trained: Path) -> None:
    with pytest.raises(NmtkitError, match="ctranslate2 does not support rnnsearch models"):
        by_ctranslate2(trained)


def test_constraints_from_python(run: Path) -> None:
    with pytest.raises(
        NmtkitError, match=r"line 2: ctranslate2 does not support prefixes or terms"
    ):
        by_ctranslate2(run).search(["ba", Request("ba", prefix="BA")])
    with pytest.raises(NmtkitError, match="n_best 4 exceeds beam_size 3"):
        by_ctranslate2(run).search(["ba"], 4)
    with pytest.raises(
        NmtkitError,
        match=r"^ctranslate2 does not support attention; change this, or leave --engine and "
        r"--precision at auto$",
    ):
        by_ctranslate2(run).search(["ba"], need_attention=True)


def test_commands_print_the_same(run: Path, console: Command, tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(run)
    src, ref = (
        write_lines(tmp_path / "src", ["", *LINES[:30]]),
        write_lines(tmp_path / "ref", ["", *TARGETS[:30]]),
    )
    asked = [
        ("evaluate", "-m", "run", "--source", src, "--ref", ref, "--metrics", "bleu,chrf"),
        ("translate", "-m", "run", src),
    ]
    for one in asked:
        own, auto, theirs = (
            succeeded(console(*one, "--engine", name)) for name in ("nmtkit", "auto", "ctranslate2")
        )
        assert theirs.out == auto.out == own.out
        assert "), engine nmtkit\n" in own.err
        assert "), engine ctranslate2, fp32\n" in auto.err
        assert "), engine ctranslate2, fp32\n" in theirs.err
    warned = succeeded(
        console("translate", "-m", "run", src, *BY, "--no-repeat-ngram", "2", "--json")
    )
    assert (
        "engine ctranslate2: with no_repeat_ngram 2, the scores of ctranslate2 differ from those of nmtkit"
        in warned.err
    )
    assert "NaN" not in warned.out


def test_bench_measures_it_beside_nmtkit(run: Path, console: Command, tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(run)
    source, figures = write_lines(tmp_path / "src", LINES[:6]), tmp_path / "figures.json"
    asked = [
        "-m",
        "run",
        "--source",
        source,
        "--rounds",
        "1",
        "--device",
        "cpu",
        "--threads",
        "1",
        "-o",
        figures,
    ]
    done = succeeded(console("bench", "decode", *asked))
    assert "other texts" in done.out
    own, fastest = json.loads(figures.read_text(encoding="utf-8"))["beside"]
    assert own["config"] == "fp32, batches of 4096"
    assert own["differing"] == 0
    assert fastest["config"] == "ctranslate2 fastest, batches of 4096"
    for engine in ("ctranslate2", "nmtkit"):
        succeeded(console("bench", "decode", *asked, "--engine", engine))
        assert json.loads(figures.read_text(encoding="utf-8"))["beside"] == []


@pytest.mark.slow
def test_a_trained_model_writes_the_same(nmtkit: Command, tmp_path: Path) -> None:
    for name in ("train", "valid", "test"):
        write_pairs(tmp_path, name, PAIRS)
    model = "model: {kind: transformer, hidden_size: 32, feed_forward_size: 64, heads: 2, encoder_layers: 2}\n"
    lines = [model if line.startswith("model:") else line + "\n" for line in RECIPE.splitlines()]
    (tmp_path / "tiny.yaml").write_text("".join(lines))
    run = tmp_path / "run"
    succeeded(
        nmtkit("train", tmp_path / "tiny.yaml", "--run", run, *sets("training.max_updates=300"))
    )
    given = as_text(SOURCES)
    own, theirs = (
        succeeded(nmtkit("translate", "-m", run, "--engine", name, stdin=given))
        for name in ("nmtkit", BY[1])
    )
    assert theirs.out == own.out
