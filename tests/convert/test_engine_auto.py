"""`--engine auto`: CTranslate2 where it finds the same, else nmtkit with one line that says why."""

import io
import json
import logging
import math
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtkit.convert.ctranslate2 import to_ctranslate2
from nmtkit.convert.ctranslate2_search import CTranslate2Search
from nmtkit.convert.engines import library, missing_settings
from nmtkit.core.errors import NmtkitError
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD
from nmtkit.decoding.settings import KINDS, BeamConfig
from nmtkit.inference.constraints.requests import Request
from nmtkit.inference.inputs import ModelOnDemand
from nmtkit.inference.result import Translation
from nmtkit.inference.translator import Translator
from nmtkit.layers.linear import supported_precisions
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.run import Run
from nmtkit.training.checkpoints.weights import read_weights, save_weights
from tests.support.commands import Command, refused, succeeded, write_lines
from tests.support.random_runs import SOURCES, learned, made_run, needs, opened, raw

LINES = SOURCES[:20]
installed = needs("ctranslate2")
MODELS: dict[str, dict[str, Any]] = {
    "pre-norm": {},
    "normalized embeddings": {
        "embedding_norm": True,
        "norm": "post",
        "positions": "learned",
        "max_positions": 300,
    },
    "sinusoids of fairseq": {"positions": "sinusoidal_fairseq", "source_end": False},
    "t5": {"kind": "t5", "head_size": 6, "relative_buckets": 8, "relative_distance": 12},
    "gated t5": {
        "kind": "t5",
        "gated": True,
        "activation": "gelu_tanh",
        "scale_output": False,
        "tie": "none",
    },
}


def set_output_bias(run: Path, **values: float) -> None:
    """Makes special tokens of a random model more or less probable."""
    path = run / "average.safetensors"
    weights = read_weights(path)
    for name, value in values.items():
        weights["output.bias"][{"pad": PAD, "bos": BOS, "eos": EOS}[name]] = value
    save_weights(path, weights, Run(RunFolder(run)).load_tokenizers().checksum)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "run"
    made_run(path, {"decoder_layers": 2}, learned())
    set_output_bias(path, eos=3.0)
    return path


def both(run: Path, **options: Any) -> tuple[Translator, Translator]:
    """The translators with engine nmtkit and auto."""
    return opened(run, engine="nmtkit", **options), opened(run, **options)


def require_equal(found: list[list[Translation]], expected: list[list[Translation]]) -> None:
    assert len(found) == len(expected)
    for some, others in zip(found, expected, strict=True):
        assert [(one.text, one.tokens) for one in some] == [
            (one.text, one.tokens) for one in others
        ]
        assert [one.score for one in some] == pytest.approx([one.score for one in others], rel=1e-4)
        for one, other in zip(some, others, strict=True):
            assert one.token_log_probs == pytest.approx(other.token_log_probs, rel=1e-4, abs=1e-4)


def is_read(translator: Translator) -> bool:
    """Whether the weights for nmtkit's own search are in memory."""
    assert isinstance(translator.opened, ModelOnDemand)
    return translator.opened.is_read


@installed
@pytest.mark.parametrize("settings", MODELS.values(), ids=MODELS)
def test_models_find_the_same_without_a_second_copy_of_their_weights(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    made_run(tmp_path / "run", settings, learned())
    set_output_bias(tmp_path / "run", eos=3.0)
    own, auto = both(tmp_path / "run", search_settings={"beam_size": 4})
    require_equal(auto.search(LINES, 4), own.search(LINES, 4))
    assert isinstance(auto.external_engine, CTranslate2Search)
    assert not is_read(auto)
    assert auto.speed_config.engine == "ctranslate2"
    assert auto.parameters == own.parameters
    assert repr(auto) == repr(own).replace("engine nmtkit", "engine ctranslate2, fp32")


@installed
def test_tokens_that_are_never_written_keep_their_probability(tmp_path: Path) -> None:
    made_run(tmp_path / "run", {}, learned())
    set_output_bias(tmp_path / "run", eos=3.0, pad=-6.0, bos=-6.0)
    own, auto = both(tmp_path / "run")
    require_equal(auto.search(LINES, 3), own.search(LINES, 3))
    set_output_bias(tmp_path / "run", pad=3.0, bos=1.0)
    own, auto = both(tmp_path / "run")
    require_equal(auto.search(LINES, 3), own.search(LINES, 3))
    assert is_read(auto)  # where the search would have ended with padding


@installed
def test_greedy_search_finds_the_same_texts_without_scores(run: Path) -> None:
    own, auto = both(run, search_settings={"beam_size": 1})
    assert auto.translate(LINES) == own.translate(LINES)
    with closing(auto.stream([LINES], need_scores=False)) as groups:
        unscored = [ranked[0] for group in groups for ranked in group]
    assert [one.text for one in unscored] == own.translate(LINES)
    assert all(math.isnan(one.score) for one in unscored if one.source)
    with closing(auto.stream([LINES])) as groups:
        scored = [ranked[0].score for group in groups for ranked in group]
    assert scored == pytest.approx([ranked[0].score for ranked in own.search(LINES)], rel=1e-4)


@installed
def test_the_copies_of_unwanted_tokens_leave_the_others_as_probable(tmp_path: Path) -> None:
    made_run(tmp_path / "run", {"tie": "all"}, learned())
    tokens = opened(tmp_path / "run").tokenizers.tgt.vocabulary.tokens
    model = raw(tmp_path / "run")
    log_probs = {}
    for unwanted in ((), (PAD, BOS)):
        folder = tmp_path / f"converted{len(unwanted)}"
        folder.mkdir()
        to_ctranslate2(model, tokens, tokens, 64, unwanted=unwanted).save(str(folder))
        translator = library("ctranslate2").Translator(str(folder))
        sources = [tokens[5:9], tokens[12:20]]
        targets = [tokens[7:30], [tokens[PAD], tokens[BOS]]]
        log_probs[unwanted] = [one.log_probs for one in translator.score_batch(sources, targets)]
        (vocabulary,) = folder.glob("*vocabulary*")  # both sides still share it
        assert len(json.loads(vocabulary.read_text())) == len(tokens) + 15 * len(unwanted)
    usual, split = log_probs[()], log_probs[PAD, BOS]
    assert split[0] == pytest.approx(usual[0], abs=1e-5)
    n_copies = 16
    assert split[1][:2] == pytest.approx([one - math.log(n_copies) for one in usual[1][:2]])


@installed
def test_what_it_lacks_in_a_call_is_searched_by_nmtkit(run: Path) -> None:
    own, auto = both(run)
    require_equal(auto.search(LINES), own.search(LINES))
    assert not is_read(auto)
    prefix = own.translate(LINES[0]).split()[0]
    mixed = [
        *LINES,
        Request(LINES[0], prefix=prefix),
        Request(LINES[1], must_not=(prefix,)),
        "",
        *LINES,
    ]
    require_equal(auto.search(mixed, 2), own.search(mixed, 2))
    assert is_read(auto)
    for translators in (both(run), [one.with_terms({"ba": "BA"}) for one in both(run)]):
        first, second = (one.search(LINES[:4], need_attention=True) for one in translators)
        require_equal(second, first)
        assert second[0][0].attention is not None
    for own, auto in (both(run),):
        require_equal([auto.rescore(LINES, LINES)], [own.rescore(LINES, LINES)])
        assert (
            auto.align(LINES[:3], LINES[:3])[0].links()
            == own.align(LINES[:3], LINES[:3])[0].links()
        )
        own, auto = own.replacing_unknown(), auto.replacing_unknown()
        require_equal(auto.search(LINES[:4]), own.search(LINES[:4]))


@installed
def test_the_settings_of_a_translator_may_change(run: Path) -> None:
    own, auto = both(run)
    for changes in ({"min_length": 3}, {"length_penalty": "gnmt"}, {"beam_size": 2}):
        config = auto.config.changed(changes)
        require_equal(
            replace(auto, config=config).search(LINES, 2),
            replace(own, config=config).search(LINES, 2),
        )


FALLS_BACK = {
    "--length-penalty gnmt:0.6": "ctranslate2 cannot run this search; it does not support length_penalty gnmt (use",
    "--search stop=exact": "ctranslate2 cannot run this search; it does not support stop exact (use first_k)",
    "--min-length 3": "with min_length 3, the scores of ctranslate2 differ from those of nmtkit",
    "--no-repeat-ngram 2": "with no_repeat_ngram 2, the scores of ctranslate2 differ from those of nmtkit",
    "--search forbid_unknown=true": "with forbid_unknown True, the scores of ctranslate2 differ from those of nmtkit",
    "--samples 2": "ctranslate2 cannot run this search; it does not support kind sampling (use beam)",
    "-m run": "ctranslate2 does not support several models",
    "--workers 2": "ctranslate2 does not support --workers (use --threads)",
    "--precision bf16": "ctranslate2 does not support precision bf16 on this cpu device; use fastest or one of float32",
    "--replace-unknown": "ctranslate2 does not support the replacement of unknown words",
    "--terms terms": "ctranslate2 does not support terms",
    "--prefix": "ctranslate2 does not support prefixes",
}


@installed
@pytest.mark.parametrize(
    "options",
    # two processes that load torch, twice
    [
        pytest.param(one, marks=[pytest.mark.slow] * one.startswith("--workers"))
        for one in FALLS_BACK
    ],
)
def test_one_line_says_why_nmtkit_searches(
    options: str, run: Path, console: Command, tmp_path: Path
) -> None:
    if "bf16" in options:
        if "bf16" not in supported_precisions(torch.device("cpu")):
            pytest.skip("nmtkit has no bf16 on this processor")
        if "bfloat16" in pytest.importorskip("ctranslate2").get_supported_compute_types("cpu"):
            pytest.skip("CTranslate2 has bfloat16 on this processor")
    (tmp_path / "run").symlink_to(run)
    (tmp_path / "terms").write_text("ba\tBA\n")
    lines = write_lines(tmp_path / "lines", ["ba ce\tBA"] if options == "--prefix" else LINES[:5])
    asked = ["translate", "-m", "run", *options.split(), lines]
    own, auto = succeeded(console(*asked, "--engine", "nmtkit")), succeeded(console(*asked))
    assert auto.out == own.out
    said = [line for line in auto.err.splitlines() if "ctranslate2" in line]
    assert len(said) == 1
    assert said[0].startswith(f"engine nmtkit: {FALLS_BACK[options]}")
    assert auto.err == f"{said[0]}\n{own.err}"
    assert ", engine nmtkit\n" in own.err


@installed
def test_lines_of_json_with_constraints_are_searched_by_nmtkit(
    run: Path, console: Command, tmp_path: Path
) -> None:
    (tmp_path / "run").symlink_to(run)
    lines = write_lines(
        tmp_path / "lines", ['{"source": "ba ce"}', '{"source": "ba ce", "prefix": "BA"}']
    )
    asked = ["translate", "-m", "run", "--jsonl", lines]
    own, auto = succeeded(console(*asked, "--engine", "nmtkit")), succeeded(console(*asked))
    assert auto.out == own.out
    assert ", engine ctranslate2, fp32\n" in auto.err
    reason = "line 2: ctranslate2 does not support prefixes or terms"
    assert auto.err.count(f"engine nmtkit for some lines, first: {reason}\n") == 1
    quiet = succeeded(console(*asked, "--quiet"))
    assert (quiet.out, quiet.err) == (own.out, "")


@installed
def test_a_precision_of_ctranslate2_chooses_it_or_is_an_error(
    run: Path, trained: Path, console: Command, tmp_path: Path
) -> None:
    (tmp_path / "run").symlink_to(run)
    lines = write_lines(tmp_path / "lines", LINES[:5])
    done = succeeded(console("translate", "-m", "run", "--precision", "int8", lines))
    assert ", engine ctranslate2, int8\n" in done.err
    done = succeeded(
        console("translate", "-m", "run", "--precision", "int8", "--min-length", "3", lines)
    )
    assert (
        "engine ctranslate2: with min_length 3, the scores of ctranslate2 differ from those of nmtkit\n"
        in done.err
    )
    asked = console("translate", "-m", trained, "--precision", "int8", lines)
    refused(
        asked,
        "precision int8 needs ctranslate2: ctranslate2 does not support rnnsearch models; change this, or remove ",
    )


@installed
def test_another_kind_of_model_says_so(trained: Path, console: Command, tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "lines", LINES[:2])
    done = succeeded(console("translate", "-m", trained, lines))
    assert done.err.startswith("engine nmtkit: ctranslate2 does not support rnnsearch models\n")


@installed
def test_a_library_that_fails_says_so(
    run: Path, monkeypatch: pytest.MonkeyPatch, console: Command
) -> None:
    import ctranslate2

    def fail(*given: Any, **more: Any) -> None:
        raise RuntimeError("Library libcublas.so.12 is not found")

    monkeypatch.setattr(ctranslate2, "Translator", fail)
    done = succeeded(console("translate", "-m", run, stdin="ba\n"))
    assert done.err.startswith(
        "engine nmtkit: ctranslate2: Library libcublas.so.12 is not found; install what is missing, or remove "
    )
    with pytest.raises(NmtkitError, match="libcublas"):
        opened(run, engine="ctranslate2")


@installed
def test_commands_that_do_not_search_convert_nothing(console: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    made_run(run, {}, learned())
    given = write_lines(tmp_path / "lines", LINES[:3])
    for asked in (
        ["rescore", "--source", given, "--target", given],
        ["align", "--source", given, "--target", given],
        ["explain", LINES[0]],
        ["plot-attention", LINES[0]],
    ):
        done = succeeded(console(asked[0], "-m", run, *asked[1:]))
        assert "ctranslate2" not in done.err
    assert not (run / "ctranslate2").exists()


def test_without_the_library_nothing_is_said(
    run: Path, monkeypatch: pytest.MonkeyPatch, console: Command, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    lines = write_lines(tmp_path / "lines", LINES[:5])
    asked = ["translate", "-m", run, lines]
    own, auto = succeeded(console(*asked, "--engine", "nmtkit")), succeeded(console(*asked))
    assert (auto.out, auto.err) == (own.out, own.err)
    assert "ctranslate2" not in auto.err
    assert opened(run).external_engine is None


def test_a_library_that_cannot_be_imported_says_so(
    run: Path, monkeypatch: pytest.MonkeyPatch, console: Command, tmp_path: Path
) -> None:
    package = tmp_path / "broken" / "ctranslate2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('cannot enable executable stack')")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.delitem(sys.modules, "ctranslate2", raising=False)
    lines = write_lines(tmp_path / "lines", LINES[:5])
    reason = "ctranslate2 cannot be imported (cannot enable executable stack); install it with"
    auto = succeeded(console("translate", "-m", run, lines))
    assert auto.err.startswith(f"engine nmtkit: {reason}")
    refused(console("translate", "-m", run, lines, "--engine", "ctranslate2"), reason)
    said = " ".join(succeeded(console("doctor")).out.split())
    assert f"Transformers translate more slowly without it: {reason}" in said


@installed
def test_python_programs_can_log_the_engine_and_why_it_changes(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = io.StringIO()
    logger = logging.getLogger("nmtkit")
    monkeypatch.setattr(logger, "handlers", [logging.StreamHandler(log)])
    logger.setLevel(logging.INFO)
    try:
        translator = Translator.load(run, device="cpu")
        for _ in range(2):
            translator.search(LINES[:3], need_attention=True)
            translator.search([LINES[0], Request(LINES[0], prefix="BA")])
    finally:
        logger.setLevel(logging.NOTSET)
    *_, model, of_call, of_line = log.getvalue().splitlines()
    assert model.endswith(", engine ctranslate2, fp32")
    assert of_call == "engine nmtkit: ctranslate2 does not support attention"
    assert of_line.startswith("engine nmtkit for some lines, first: ")


@installed
@pytest.mark.parametrize("beam_size", [1, 3])
def test_lines_that_reach_a_limit_that_ends_them_are_searched_by_nmtkit(
    beam_size: int, run: Path
) -> None:
    settings = {"beam_size": beam_size, "at_limit": "end", "max_length": 7}
    own, auto = both(run, search_settings=settings)
    found = auto.search(LINES, beam_size)
    require_equal(found, own.search(LINES, beam_size))
    lengths = {max(len(one.tokens) + one.finished for one in ranked) for ranked in found}
    assert min(lengths) < 7 <= max(lengths)
    assert auto.external_engine is not None
    assert is_read(auto)
    with pytest.raises(NmtkitError, match="does not support at_limit end"):
        opened(run, engine="ctranslate2", search_settings=settings)


@installed
def test_the_weight_of_a_language_model_without_one_is_an_error(
    run: Path, console: Command
) -> None:
    done = console("translate", "-m", run, "--search", "lm_weight=0.5", stdin="ba\n")
    refused(done, "lm_weight requires a language model", after_results=True)


def test_doctor_says_what_is_missed_without_the_library(
    monkeypatch: pytest.MonkeyPatch, console: Command
) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    said = " ".join(succeeded(console("doctor")).out.split())
    assert "ctranslate2" in said
    assert "pip install 'nmtkit[fast]'" in said


def test_a_key_of_the_search_that_no_engine_knows_is_not_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class LaterConfig(BeamConfig):
        no_double: bool = False

    monkeypatch.setitem(KINDS, "beam", LaterConfig)
    assert missing_settings("ctranslate2", LaterConfig()) == {}
    assert missing_settings("ctranslate2", LaterConfig(no_double=True)) == {
        "no_double": "no_double True"
    }
