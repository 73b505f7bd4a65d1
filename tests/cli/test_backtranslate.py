"""`nmtkit backtranslate`: a corpus that recipes name with its tag."""

from pathlib import Path

from nmtkit import config
from tests.support.commands import Command, lines_in, refused, succeeded


def test_back_translations_are_a_corpus_for_recipes(
    trained: Path, corpus: Path, console: Command
) -> None:
    mono = corpus / "test.tgt"
    done = succeeded(
        console("backtranslate", "-m", trained, mono, "-o", "back", "--max-ratio", "2")
    )
    sources, targets = lines_in(Path("back/src.txt")), lines_in(Path("back/tgt.txt"))
    assert len(sources) == len(targets) > 0
    assert {*targets} <= {*lines_in(mono)}
    assert f"back: {len(sources)} pairs from {len(lines_in(mono))} lines" in done.err
    named = done.err.splitlines()[-1].partition("data.train: ")[2]
    assert named == "- {src: back/src.txt, tgt: back/tgt.txt, tag: <BT>}"
    pair = f"{{src: {corpus}/train.src, tgt: {corpus}/train.tgt}}"
    settings = "model: {kind: rnnsearch}\ntraining: {max_updates: 1}\n"
    Path("both.yaml").write_text(f"data:\n  train:\n  - {pair}\n  {named}\n{settings}")
    loaded = config.load("both.yaml")
    assert loaded.data.train.tags == ["", "<BT>"]
    assert loaded.tokenizer.specials == ["<BT>"]
    refused(
        console("backtranslate", "-m", trained, mono, "-o", "back", "--max-ratio", "2"),
        "back: this corpus is complete, with",
    )
    refused(
        console("backtranslate", "-m", trained, mono, "-o", "back"),
        "a different max_ratio: 2.0, not 3.0",
    )
    done = succeeded(
        console(
            "backtranslate", "-m", trained, mono, "-o", "there", "--forward", "--max-ratio", "2"
        )
    )
    assert done.err.splitlines()[-1].endswith("- {src: there/src.txt, tgt: there/tgt.txt}")
    assert lines_in(Path("there/tgt.txt")) == sources


def test_backtranslate_is_resumed_only_with_the_same_models(
    trained: Path, corpus: Path, console: Command
) -> None:
    one = ["backtranslate", corpus / "test.tgt", "-o", "back", "-m", trained]
    both = [*one, "-m", trained]
    succeeded(console(*both))
    refused(console(*one), "was started with a different checkpoint file: ['")
    for setting, message in {
        "ensemble=log-probabilities": "a different ensemble: None, not 'log-probabilities'",
        "ensemble_weights=[2, 1]": "a different ensemble_weights: None, not '[2.0, 1.0]'",
    }.items():
        refused(console(*both, "--search", setting), f"was started with {message}")
