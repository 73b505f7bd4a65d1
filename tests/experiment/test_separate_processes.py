"""Two trainings with the same seed are equal in processes and environments that differ."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cases import daily
from tests.support.commands import ROOT, environment, write_lines
from tests.support.separate_training import Job, differing_files, run_jobs

SMALL = (
    "model={kind: rnnsearch, embedding_size: 8, hidden_size: 12, attention_size: 8, maxout_size: 8, dropout: 0.1}",
    "training={precision: fp32, matmul_precision: highest, threads: 1, lr: 0.005, max_updates: 12, validate_every: 6, "
    "save_every: 4, log_every: 1}",
    "batch.batch_tokens=200",
    "search.beam_size=2",
)
SAMPLED = {
    "bpe": (*SMALL, "tokenizer={kind: bpe, vocab_size: 60, sampling: 0.3}"),
    "unigram": (*SMALL, "tokenizer={kind: unigram, vocab_size: 64, sampling: 0.3}"),
}
WITH_NOISE = {
    "word": (*SMALL, "training.label_smoothing=0.1", "training.ema_decay=0.9"),
    "reinforced": (*SMALL, "training.objectives.reinforce={gamma: 0.5, samples: 2, max_length: 8}"),
    "wordpiece": (*SMALL, "tokenizer={kind: wordpiece, vocab_size: 60}", "tokenizer.joint=false"),
    "experts": (
        *SMALL,
        "model={kind: transformer, encoder_layers: 1, decoder_layers: 1, hidden_size: 8, heads: 2, "
        "feed_forward_size: 16, experts: {every: 1}}",
        "training.objectives.expert_balance=0.1",
    ),
    "weighted": (
        *SMALL,
        "data.train=[{src: train.src, tgt: train.tgt, weight: 1.5}, {src: valid.src, tgt: valid.tgt, weight: 3}]",
        "tokenizer={kind: bpe, vocab_size: 60, sampling: 0.3}",
        "batch.sort_window=100",
    ),
    "own words": (*SMALL, "model={kind: intra_attention, embedding_size: 8, hidden_size: 12}"),
    "char": (*SMALL, "tokenizer={kind: char, vocab_size: 60}"),
}
TEXTS = """\
name: texts
task: language-modelling
data:
  train: {tgt: train.tgt}
  valid: {tgt: valid.tgt}
tokenizer: {kind: bpe, vocab_size: 60, specials: [<mask>], sentinels: 20}
training: {best_metric: perplexity}
"""
PRETRAINED = {
    "denoised": (*SMALL, "training.objectives.denoising={}"),
    "spans": (*SMALL, "training.objectives.span_corruption={}"),
}
ENVIRONMENTS = (
    {"PYTHONHASHSEED": "1", "LC_ALL": "C", "TZ": "Asia/Tokyo"},
    {"PYTHONHASHSEED": "2", "LC_ALL": "C.UTF-8", "TZ": "America/New_York", "PYTHONUTF8": "0"},
    {"PYTHONHASHSEED": "3", "LC_ALL": "POSIX", "TZ": "UTC"},
)


def check_straight_and_resumed(
    folder: Path, cases: dict[str, tuple[str, ...]], recipe: str = "tiny.yaml", processes: int = 3
) -> None:
    """Trains each case without a break and, elsewhere, with a kill after update 7 (the last saved state is of 4).

    Another process goes on from there: a third one, or the first one if there are two.
    """
    straight = [Job(f"straight-{name}", recipe, changes) for name, changes in cases.items()]
    broken = [
        Job(f"broken-{name}", recipe, changes, leave_after=7) for name, changes in cases.items()
    ]
    resumed = [
        Job(f"broken-{name}", recipe, changes, resume=True) for name, changes in cases.items()
    ]
    run_jobs(folder, broken[::-1], killed=True, **ENVIRONMENTS[1])
    if processes == 2:
        run_jobs(folder, [*straight, *resumed], **ENVIRONMENTS[0])
    else:
        run_jobs(folder, straight, **ENVIRONMENTS[0])
        run_jobs(folder, resumed, **ENVIRONMENTS[2])
    differences = {
        name: differing_files(folder / f"straight-{name}", folder / f"broken-{name}")
        for name in cases
    }
    assert differences == {name: [] for name in cases}


@pytest.mark.parametrize(("processes", "kinds"), daily([(2, ["bpe"]), (3, [*SAMPLED])]))
def test_training_with_sampled_tokenization_is_resumed_bit_exactly_by_another_process(
    processes: int, kinds: list[str], small_corpus: Path, tmp_path: Path
) -> None:
    folder = copied(small_corpus, tmp_path)
    check_straight_and_resumed(folder, {kind: SAMPLED[kind] for kind in kinds}, processes=processes)


@pytest.mark.parametrize("count", daily([2, len(ENVIRONMENTS)]))
def test_scores_splits_and_vocabularies_do_not_depend_on_the_hash_seed(count: int) -> None:
    outputs = []
    for variables in ENVIRONMENTS[:count]:
        words = [sys.executable, "-m", "tests.support.separate_results"]
        done = subprocess.run(
            words,
            env=environment(PYTHONPATH=str(ROOT), **variables),
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.append(json.loads(done.stdout))
    for other in outputs[1:]:
        assert [name for name in other if other[name] != outputs[0][name]] == []


@pytest.mark.slow
def test_every_kind_of_noise_is_the_same_in_another_process(
    small_corpus: Path, tmp_path: Path
) -> None:
    folder = copied(small_corpus, tmp_path)
    check_straight_and_resumed(folder, WITH_NOISE)


@pytest.mark.slow
def test_corruption_is_the_same_in_another_process(small_corpus: Path, tmp_path: Path) -> None:
    folder = copied(small_corpus, tmp_path)
    (folder / "texts.yaml").write_text(TEXTS, encoding="utf-8")
    check_straight_and_resumed(folder, PRETRAINED, "texts.yaml")


def copied(corpus: Path, folder: Path) -> Path:
    for path in corpus.iterdir():
        if path.is_file():
            lines = path.read_text(encoding="utf-8").splitlines()
            write_lines(folder / path.name, lines[:10] if path.stem == "test" else lines)
    return folder
