"""`nmtkit plot-attention`: heat-maps, grids, all layers and heads, entropies, positions; and of summaries."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from commands import WORDS, Command, refused, succeeded
from untrained_runs import SUMMARIZATION, TRANSFORMER, make_run

from nmtkit import Translator
from nmtkit.data.tokenizers.vocabulary import EOS
from nmtkit.inference.attention_views import positions
from nmtkit.models.base import MODELS

SENTENCE = " ".join(WORDS)
VOCABULARY = [SENTENCE, SENTENCE.upper()]
LINES = "ba ce di\nfo gu\tGU FO\nba\n"
ARTICLE = "ba ce Zanzibar di 4711 fo"  # two words that the model cannot know
SUMMARY = "4711 CE Zanzibar nowhere"


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("transformer"), "heads", TRANSFORMER, VOCABULARY)


@pytest.fixture(scope="module")
def news(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a pointer-generator: unknown words are copied whatever it has learned."""
    return make_run(tmp_path_factory.mktemp("news"), "news", SUMMARIZATION.replace("min_frequency: 2", ""), VOCABULARY)


@pytest.fixture
def plot(console: Command) -> Command:
    return partial(console, "plot-attention")


def test_in_the_terminal(trained: Path, plot: Command, console: Command) -> None:
    done = succeeded(plot("-m", trained, stdin=LINES))
    assert "GU" in done.out
    assert "FO" in done.out
    assert succeeded(console("visualize-alignment", "-m", trained, stdin=LINES)).out == done.out
    assert "did you mean 'visualize-alignment'" in console("visualise-alignment").err


def test_subwords_are_for_heatmaps_of_words(transformer: Path, plot: Command) -> None:
    assert "▁" in succeeded(plot("-m", transformer, "ba ce", "--subwords")).out
    refused(
        plot("-m", transformer, "ba", "--subwords", "--layers", "-o", "a.html"), "--subwords is for heat-maps of words"
    )


@pytest.mark.slow
def test_grid(trained: Path, plot: Command) -> None:
    succeeded(plot("-m", trained, "--grid", "-o", "a.svg", "-o", "a.pdf", stdin=LINES))
    assert all(word in Path("a.svg").read_text() for word in (">di<", ">gu<", ">GU<", ">FO<"))
    assert len(re.findall(rb"/Type /Page\b", Path("a.pdf").read_bytes())) == 1


def test_layers(transformer: Path, plot: Command) -> None:
    succeeded(plot("-m", transformer, "--layers", "-o", "a.html", stdin=LINES))
    text = Path("a.html").read_text(encoding="utf-8")
    assert text.count('"layers":{"encoder":3,"decoder":2,"cross":2}') == 3
    assert text.count('"heads":{"encoder":4,"decoder":4,"cross":4}') == 3
    assert '"tgt":["▁GU","▁FO","\\u003c/s\\u003e"]' in text


def table(text: str) -> dict[str, list[list[float]]]:
    """The rows of numbers of a printed table, by what stands before them."""
    rows: dict[str, list[list[float]]] = {}
    for line in text.splitlines():
        if row := re.match(r"\s*(\D+?)((\s+[\d.]+)+)\s*$", line):
            rows.setdefault(row[1], []).append([float(number) for number in row[2].split()])
    return rows


def test_entropy_of_heads(transformer: Path, plot: Command) -> None:
    entropies = table(succeeded(plot("-m", transformer, "--what", "entropy", stdin=LINES)).out)
    layers = {"encoder self-attention": 3, "decoder self-attention": 2, "cross-attention": 2}
    assert {name: np.array(rows).shape for name, rows in entropies.items()} == {
        name: (number, 1 + 4 + 1) for name, number in layers.items()
    }
    for rows in entropies.values():
        values, uniform = np.array(rows)[:, 1:-1], np.array(rows)[:, -1:]
        assert (values > 0).all()
        assert (values <= uniform + 1e-3).all()
    # Four, three and two source words and ends of sentence, each looking at all of them alike.
    sizes = np.array([4] * 4 + [3] * 3 + [2] * 2)
    assert entropies["encoder self-attention"][0][-1] == pytest.approx(float(np.log(sizes).mean()), abs=1e-3)


def test_entropy_of_one_attention(trained: Path, plot: Command) -> None:
    words = ["-m", trained, "--what", "entropy", "ba ce di", "DI CE BA"]
    ((layer, value, uniform),) = table(succeeded(plot(*words)).out)["attention over words"]
    assert layer == 1
    assert 0 < value < uniform
    assert uniform == pytest.approx(np.log(4), abs=1e-3)
    succeeded(plot(*words, "-o", "a.svg"))
    assert f">{value:.2f}<" in Path("a.svg").read_text(encoding="utf-8")


def test_positions(transformer: Path, plot: Command) -> None:
    succeeded(plot("-m", transformer, "--what", "positions", "-o", "a.svg"))
    text = Path("a.svg").read_text(encoding="utf-8")
    assert all(word in text for word in ("sinusoidal positions", ">dimension<", ">80<"))  # of a hundred rows
    translator = Translator.load(str(transformer), device="cpu")
    config = translator.model.config.changed({"positions": "learned", "max_positions": 20})
    model = MODELS.get("transformer")(config, translator.model.sizes)
    table, title = positions(replace(translator, model=model), 100)
    assert title == "heads: learned (source) positions"
    assert table.shape == (20, 32)  # as many as there are
    assert np.array_equal(table, model.src_positions.table.detach().numpy())


@pytest.mark.parametrize("window", ["local_m", "local_p"])
def test_local_attention_has_windows(transformer: Path, window: str) -> None:
    translator = Translator.load(str(transformer), device="cpu")
    luong = MODELS.get("luong")
    config = luong.Config.model_validate({"window": window, "window_size": 1, "hidden_size": 8, "embedding_size": 8})
    translator = replace(translator, model=luong(config, translator.model.sizes).eval())
    given, own = (translator.pictures(["ba ce di fo gu"], [target])[0] for target in ("GU FO DI", None))
    for picture in (given, own):
        assert len(picture.windows) == len(picture.tgt_words)
        outside = [
            [not drawn.left - 1e-6 <= column <= drawn.right + 1e-6 for column in range(6)] for drawn in picture.windows
        ]
        assert np.array(outside).any()
        np.testing.assert_array_equal(picture.weights == 0, outside)
        assert all(0 <= drawn.centre <= 6 for drawn in picture.windows)
    if window == "local_m":
        assert [drawn.centre for drawn in given.windows] == [0, 1, 2, 3]
        assert [drawn.left for drawn in given.windows] == [-1, 0, 1, 2]


def test_one_layer_and_head_of_many(transformer: Path, plot: Command) -> None:
    """What the command shows of a head is what a forward says of it; two heads are not alike."""
    pages = {}
    for layer, head in ((1, 1), (1, 2), (2, 1)):
        chosen = ["--layer", layer, "--head", head, "-o", "one.html"]
        succeeded(plot("-m", transformer, *chosen, "ba ce di", "DI CE BA"))
        shown = re.findall(r">(0\.\d\d|1\.00)</td>", Path("one.html").read_text())
        pages[layer, head] = [float(number) for number in shown]
    assert len({tuple(numbers) for numbers in pages.values()}) == 3
    picture = Translator.load(str(transformer), device="cpu").head_pictures(["ba ce di"], ["DI CE BA"])[0]
    for (layer, head), numbers in pages.items():
        weights = picture.cross[layer - 1, head - 1]  # one piece a word: nothing is merged
        np.testing.assert_allclose(numbers, [w for w in weights.ravel() if w >= 0.005], atol=0.0051)


def test_several_files_of_one_picture(trained: Path, plot: Command) -> None:
    style = ["--title", "", "--size", "3.3", "--font-size", "7", "--colours", "Greys"]
    done = succeeded(plot("-m", trained, "ba ce di", "-o", "a.svg", "-o", "a.html", *style))
    assert all(f"wrote {name}" in done.err for name in ("a.svg", "a.html"))
    assert done.err.count("model ") == 1
    assert "score" not in Path("a.svg").read_text()
    assert f'width="{3.3 * 72:g}pt"' in Path("a.svg").read_text()


# ------------------------------------------------------------------------------------------------------- of summaries


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

    translator = Translator.load(str(news), device="cpu", max_source_tokens=4)
    (picture,) = translator.pictures([ARTICLE])
    assert picture.src_words[:-1] == ["ba", "ce", "Zanzibar", "di"]
    assert picture.heading.endswith("(the last 2 source tokens were not read)")


def test_a_summary_in_the_terminal(news: Path, plot: Command) -> None:
    lines = succeeded(plot("-m", news, ARTICLE, SUMMARY)).out.splitlines()
    assert " ".join([*ARTICLE.split(), "</s>"]) in lines
    rows = [re.match(r"([01]\.\d\d) +(\S+?)(\*?) +\S+ 0\.\d\d", line) for line in lines]
    marked = [("4711", "*"), ("CE", ""), ("Zanzibar", "*"), ("<unk>", ""), ("</s>", "")]
    assert [row.group(2, 3) for row in rows if row] == marked


def test_what_is_not_read_is_told_whatever_is_drawn(news: Path, plot: Command) -> None:
    article = " ".join(WORDS[:4] * 3)
    for more in (["--title", "news"], ["--what", "entropy"]):
        done = succeeded(plot("-m", news, article, SUMMARY, *more))
        assert "picture 1: the last 4 source tokens were not read" in done.err


def test_pictures_of_summaries(news: Path, plot: Command) -> None:
    succeeded(plot("-m", news, "-o", "a.svg", "-o", "a.html", stdin=f"{ARTICLE}\t{SUMMARY}\nba ce di fo\n"))
    svg, html = (Path(name).read_text(encoding="utf-8") for name in ("a.svg", "a.html"))
    assert all(word in svg for word in (">p_gen<", ">coverage<", ">Zanzibar<", "bold: copied"))
    assert html.count('<section class="summary"') == 2
    assert 'class="copied" style="--p:' in html


def test_a_page_is_advised_for_a_long_summary(news: Path, plot: Command) -> None:
    summary = " ".join(WORDS[:4] * 12)
    assert "is wide: -o FILE.html" in succeeded(plot("-m", news, ARTICLE, summary, "-o", "a.svg")).err
    assert "is wide" not in succeeded(plot("-m", news, ARTICLE, summary, "-o", "a.svg", "-o", "a.html")).err
    assert "is wide" not in succeeded(plot("-m", news, ARTICLE, SUMMARY, "-o", "a.svg")).err


def test_the_baseline_has_the_same_picture_without_p_gen(news: Path) -> None:
    translator = Translator.load(str(news), device="cpu")
    config = translator.model.config.changed({"copying": False})
    model = MODELS.get("pointer_generator")(config, translator.model.sizes).eval()
    (picture,) = replace(translator, model=model).pictures([ARTICLE], [SUMMARY])
    assert picture.is_summary
    assert (picture.p_gen, picture.copied) == (None, frozenset())
    assert not replace(translator, model=model, articles=False).pictures([ARTICLE])[0].is_summary
