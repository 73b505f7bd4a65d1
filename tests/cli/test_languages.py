"""Models of several languages: how commands tell them which one to write."""

from pathlib import Path
from typing import Any

import pytest

from nmtkit import Translator
from nmtkit.inference.constraints.requests import Request
from tests.cli.untrained_runs import ARTICLES, LINES, SUMMARIZATION, TRANSLATION, make_run
from tests.support.commands import Command, lines_in, refused, succeeded, write_lines

TEXT = "train: {src: [a], tgt: [b]}"
CORPORA = "train: [{src: a, tgt: b, tgt_lang: de}, {src: a, tgt: b, tgt_lang: en}]"


COMMANDS = {
    "summarize": ("news", SUMMARIZATION, "summarize articles"),
    "rerank": ("mt", TRANSLATION, "rerank --channel channel --n-best 1 lines"),
}


@pytest.mark.parametrize(
    ("name", "recipe", "line"), [pytest.param(*row, id=name) for name, row in COMMANDS.items()]
)
def test_the_language_to_write_is_asked_for(
    tmp_path: Path, console: Command, name: str, recipe: str, line: str
) -> None:
    make_run(tmp_path, "channel", TRANSLATION)
    write_lines("lines", LINES)
    write_lines("articles", ARTICLES)
    run = make_run(tmp_path, name, recipe.replace(TEXT, CORPORA), ARTICLES + LINES)
    words = [*line.split(), "-m", name, "-o", "out"]
    refused(
        console(*words, "-q"),
        "specify the target language, for example --to de (available: de, en)",
    )
    done = succeeded(console(*words, "--to", "de"))
    assert "--to" not in done.err
    texts = lines_in(Path(line.split()[-1]))
    assert lines_in(Path("out")) == Translator.load(str(run), device="cpu", to="de").translate(
        texts
    )


def test_bench_decode_writes_the_languages_of_the_test_set(
    tmp_path: Path, console: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    search, asked = Translator.search, list[list[str]]()

    def noted(translator: Translator, lines: list[Any], *given: Any, **options: Any) -> Any:
        asked.append([Request.from_line(line).tags for line in lines])
        return search(translator, lines, *given, **options)

    monkeypatch.setattr(Translator, "search", noted)
    for name in ("a", "b"):
        write_lines(name, LINES)
    make_run(
        tmp_path, "mt", TRANSLATION.replace(TEXT, f"{CORPORA}, {CORPORA.replace('train', 'test')}")
    )
    done = succeeded(console("bench", "decode", "-m", "mt", "--rounds", 1, "--device", "cpu"))
    assert "decoding 4 lines" in done.out
    assert asked[-5:] == [["<2de>"] * 2 + ["<2en>"] * 2, ["<2de>"], ["<2de>"], ["<2en>"], ["<2en>"]]
    assert "BLEU" in done.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--init-from mt",
            "mt is multilingual; specify the target language, for example --to de (available: de, en)",
        ),
        ("--init-from mt --to fr", "unknown language 'fr'"),
        ("--init-from plain --to fr", "plain is not a multilingual model; remove these options"),
        ("--to fr", "give the model with --init-from RUN"),
    ],
)
def test_fine_tuning_needs_a_language_that_the_model_writes(
    tmp_path: Path, console: Command, options: str, message: str
) -> None:
    for name in ("a", "b"):
        write_lines(name, LINES)
    make_run(
        tmp_path, "mt", TRANSLATION.replace(TEXT, f"{CORPORA}, {CORPORA.replace('train', 'valid')}")
    )
    make_run(tmp_path, "plain", TRANSLATION)
    train = "train --source a --target b --device cpu --dry-run"
    refused(console(*train.split(), *options.split()), message)
