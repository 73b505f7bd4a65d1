"""`nmtkit plot-attention` for a model that summarizes and copies."""

import re
from pathlib import Path

import numpy as np
import pytest
from commands import RECIPE, Command, succeeded

from nmtkit import Translator
from nmtkit.data.vocabulary import EOS
from nmtkit.models.base import MODELS
from nmtkit.pictures.panels import MOST_ROWS

MODEL = "model: {kind: pointer_generator, embedding_size: 16, hidden_size: 16}"
ARTICLE = "ba ce Zanzibar di 4711 fo"  # two words that the model cannot know
SUMMARY = "4711 CE Zanzibar nowhere"


@pytest.fixture(scope="module")
def news(corpus: Path, nmtkit: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a pointer-generator that has seen a few batches: unknown words are copied whatever it has learned."""
    folder = tmp_path_factory.mktemp("news") / "run"
    recipe = "task: summarization\n" + re.sub(r"^model: .*$", MODEL, RECIPE, flags=re.MULTILINE)
    recipe = recipe.replace("training:\n", "training:\n  best_metric: loss\n  higher_is_better: false\n")
    (corpus / "news.yaml").write_text(recipe, encoding="utf-8")
    done = nmtkit(
        "train", corpus / "news.yaml", "--run", folder, "--set", "training.max_updates=5", "--set", "data.test=null"
    )
    assert done.code == 0, done
    return folder


def test_a_picture_says_what_a_forward_says(news: Path) -> None:
    translator = Translator.load(str(news), device="cpu")
    (picture,) = translator.pictures([ARTICLE], [SUMMARY])
    end = translator.tokenizers.tgt.vocabulary.tokens[EOS]
    assert picture.is_summary
    assert picture.src_words == [*ARTICLE.split(), end]
    assert picture.tgt_words == ["4711", "CE", "Zanzibar", "<unk>", end]  # what stands nowhere cannot be copied
    assert picture.copied == {0, 2}  # words that only copying can write
    (scored,) = translator.rescore([ARTICLE], [SUMMARY], need_attention=True)
    assert scored.attention is not None
    assert scored.p_gen is not None
    assert picture.p_gen is not None
    np.testing.assert_allclose(picture.p_gen, scored.p_gen)
    np.testing.assert_allclose(picture.weights, scored.attention)
    np.testing.assert_allclose(picture.coverage.sum(), 5.0, rtol=1e-5)


def test_in_the_terminal(news: Path, console: Command) -> None:
    done = succeeded(console("plot-attention", "-m", news, ARTICLE, SUMMARY))
    lines = done.out.splitlines()
    assert " ".join([*ARTICLE.split(), "</s>"]) in lines
    rows = [re.match(r"([01]\.\d\d) +(\S+?)(\*?) +\S+ 0\.\d\d", line) for line in lines]
    assert [row.group(2, 3) for row in rows if row] == [
        ("4711", "*"),
        ("CE", ""),
        ("Zanzibar", "*"),
        ("<unk>", ""),
        ("</s>", ""),
    ]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf", "html"])
def test_every_format(news: Path, console: Command, tmp_path: Path, suffix: str) -> None:
    place = tmp_path / f"a.{suffix}"
    succeeded(console("plot-attention", "-m", news, "-o", place, stdin=f"{ARTICLE}\t{SUMMARY}\nba ce di fo\n"))
    content = place.read_bytes()
    if suffix == "svg":
        assert all(word in content for word in (b">p_gen<", b">coverage<", b">Zanzibar<", b"bold: copied"))
    if suffix == "html":
        assert content.count(b'<section class="summary"') == 2
        assert b'class="copied" style="--p:' in content
    if suffix == "pdf":
        assert len(re.findall(rb"/Type /Page\b", content)) == 2


def test_the_baseline_has_the_same_picture_without_p_gen(news: Path) -> None:
    """A model that cannot copy; what its picture is like does not depend on what it has learned."""
    translator = Translator.load(str(news), device="cpu")
    config = translator.model.config.changed({"copying": False})
    model = MODELS.get("pointer_generator")(config, translator.model.sizes).eval()
    baseline = Translator(model, translator.tokenizers, translator.config, task=translator.task)
    (picture,) = baseline.pictures([ARTICLE], [SUMMARY])
    assert picture.is_summary
    assert picture.p_gen is None
    assert picture.copied == frozenset()
    assert not Translator(model, translator.tokenizers, translator.config).pictures([ARTICLE])[0].is_summary


def test_what_was_not_read_is_told(news: Path) -> None:
    translator = Translator.load(str(news), device="cpu", max_source_tokens=4)
    (picture,) = translator.pictures([ARTICLE])
    assert picture.src_words[:-1] == ["ba", "ce", "Zanzibar", "di"]
    assert picture.heading.endswith("(the last 2 source tokens were not read)")


def test_the_help_tells_how_many_rows_a_long_article_has(console: Command) -> None:
    done = console("plot-attention", "--help")
    assert f"A long article has {MOST_ROWS} rows" in " ".join(done.out.split())
