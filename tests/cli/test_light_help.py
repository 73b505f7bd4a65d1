"""Help and completion import nothing heavy, and the choices that help lists are those of the code that it spares."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from nmtkit.cli.commands.inference import pairs
from nmtkit.cli.commands.options import score_options, search_options
from nmtkit.cli.commands.training import weights
from nmtkit.convert.exporting import EXPORTS
from nmtkit.convert.importing import READERS
from nmtkit.data.text import alignments
from nmtkit.data.text.sentences import SENTENCE_RULES
from nmtkit.decoding.settings import MbrConfig
from nmtkit.inference.loading.options import DecodingOptions, EngineChoice
from nmtkit.layers.linear import PrecisionChoice
from nmtkit.metrics import SPM_TOKENIZERS, TOKENIZERS
from nmtkit.metrics import metric as metrics
from tests.tools import recipe_keys

HEAVY = {
    "torch",
    "numpy",
    "pydantic",
    "rich",
    "matplotlib",
    "sacrebleu",
    "sentencepiece",
    "yaml",
    "requests",
}

MODULES_AT_EXIT = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted({name.split(".")[0] for name in sys.modules})), file=sys.stderr))
from nmtkit.cli import main
main()
"""


def test_help_as_a_user_asks_for_it_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MODULES_AT_EXIT, "translate", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--beam-size" in done.stdout
    assert not HEAVY & set(json.loads(done.stderr))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("nmtkit tr", "translate"),
        ("nmtkit train --res", "--resume"),
        ("nmtkit translate --beam", "--beam-size"),
        ("nmtkit recipe ch", "check"),
        ("nmtkit train de", "demo"),
        ("nmtkit translate -m first", "first-run"),
        ("nmtkit translate --mbr c", "chrf"),
        ("nmtkit score --tokenize flores2", "flores200"),
        ("nmtkit recipe explain training.patie", "training.patience"),
        ("nmtkit train demo --set training.patie", "training.patience="),
        ("nmtkit translate --search alph", "alpha="),
    ],
)
def test_completion_imports_nothing_heavy(words: str, expected: str, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "first-run"
    run.mkdir(parents=True)
    (run / "recipe.yaml").write_text("name: first-run\n")
    asked = {
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
        "_NMTKIT_COMPLETE": "bash_complete",
    }
    done = subprocess.run(
        [sys.executable, "-c", MODULES_AT_EXIT],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | asked,
    )
    assert f"plain,{expected}" in done.stdout.splitlines(), done.stdout + done.stderr
    assert not HEAVY & set(json.loads(done.stderr.splitlines()[-1]))


def test_the_list_of_keys_for_completion_is_that_of_the_settings() -> None:
    remedy = "a key of a recipe is new, gone or elsewhere: run `python -m tests.tools.recipe_keys`"
    assert recipe_keys.FILE.read_text(encoding="utf-8") == recipe_keys.written(), remedy


def names_of_metrics(extra: bool) -> list[str]:
    return [metric.name for metric in metrics.text_metrics() if bool(metric.extra) == extra]


@pytest.mark.parametrize(
    ("listed", "source"),
    [
        (search_options.ENGINES, get_args(EngineChoice)),
        (search_options.PRECISIONS, get_args(PrecisionChoice)),
        (
            (*search_options.PRECISIONS, *search_options.PRECISIONS_OF_CTRANSLATE2),
            get_args(get_type_hints(DecodingOptions)["precision"]),
        ),
        (search_options.RISKS, (*get_args(MbrConfig.model_fields["metric"].annotation), "none")),
        (score_options.TOKENIZERS, (*TOKENIZERS, *SPM_TOKENIZERS)),
        (score_options.SENTENCE_RULES, SENTENCE_RULES),
        (score_options.METRICS, names_of_metrics(extra=False)),
        (score_options.EXTRA_METRICS, names_of_metrics(extra=True)),
        ((score_options.MAX_SAMPLES,), (metrics.MAX_SAMPLES,)),
        (pairs.SYMMETRIZATIONS, alignments.SYMMETRIZATIONS),
        (weights.TOOLKITS, READERS.names()),
        (weights.EXPORTS, EXPORTS),
    ],
)
def test_choices_of_options_are_those_of_the_code(
    listed: Sequence[object], source: Sequence[object]
) -> None:
    assert set(listed) == set(source)
    assert len(listed) == len(source)
