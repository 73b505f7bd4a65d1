"""Models of several languages: how commands tell them which one to write."""

from pathlib import Path
from typing import Any

import pytest
from commands import Command, lines_in, refused, succeeded, write_lines
from untrained_runs import ARTICLES, LINES, SUMMARIZATION, TRANSLATION, make_run

from nmtkit import Translator
from nmtkit.inference.requests import Request

TEXT = "train: {src: [a], tgt: [b]}"
CORPORA = "train: [{src: a, tgt: b, tgt_lang: de}, {src: a, tgt: b, tgt_lang: en}]"


def told(run: Path, lines: list[str]) -> list[str]:
    """What a run writes in German."""
    return Translator.load(str(run), device="cpu", to="de").translate(lines)


def test_every_command_that_asks_for_a_language_takes_it(tmp_path: Path, console: Command) -> None:
    make_run(tmp_path, "channel", TRANSLATION)
    write_lines("lines", LINES)
    write_lines("articles", ARTICLES)
    for name, recipe, words in (
        ("news", SUMMARIZATION, ["summarize", "articles"]),
        ("mt", TRANSLATION, ["rerank", "--channel", "channel", "--n-best", "1", "lines"]),
    ):
        run = make_run(tmp_path, name, recipe.replace(TEXT, CORPORA), ARTICLES + LINES)
        refused(
            console(*words, "-q", "-m", name, "-o", "out"), "name the language to write: --to de (it writes de, en)"
        )
        done = succeeded(console(*words, "-m", name, "-o", "out", "--to", "de"))
        assert "--to" not in done.err
        assert lines_in(Path("out")) == told(run, lines_in(Path(words[-1])))


def test_a_test_set_is_measured_behind_its_tags(
    tmp_path: Path, console: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    search, asked = Translator.search, list[list[str]]()

    def noted(translator: Translator, lines: list[Any], *given: Any, **options: Any) -> Any:
        asked.append([Request.of(line).tags for line in lines])
        return search(translator, lines, *given, **options)

    monkeypatch.setattr(Translator, "search", noted)
    for name in ("a", "b"):
        write_lines(name, LINES)
    make_run(tmp_path, "mt", TRANSLATION.replace(TEXT, f"{CORPORA}, {CORPORA.replace('train', 'test')}"))
    done = succeeded(console("bench", "decode", "-m", "mt", "--rounds", 1, "--alone", 1, "--device", "cpu"))
    assert "decoding 4 lines" in done.out
    assert asked[-3:] == [["<2de>"] * 2 + ["<2en>"] * 2] * 2 + [["<2de>"]]
    assert "BLEU" in done.out


def test_fine_tuning_a_model_of_several_languages_needs_one(tmp_path: Path, console: Command) -> None:
    for name in ("a", "b"):
        write_lines(name, LINES)
    make_run(tmp_path, "mt", TRANSLATION.replace(TEXT, f"{CORPORA}, {CORPORA.replace('train', 'valid')}"))
    make_run(tmp_path, "plain", TRANSLATION)
    train = ("train", "--source", "a", "--target", "b", "--device", "cpu", "--dry-run", "--init-from")
    refused(console(*train, "mt"), "mt is multilingual: name the language to write: --to de (de, en)")
    refused(console(*train, "mt", "--to", "fr"), "no language 'fr'")
    refused(console(*train, "plain", "--to", "fr"), "plain is not a multilingual model; leave them out")
    refused(console("train", "--source", "a", "--target", "b", "--to", "fr"), "name it with --init-from RUN")
