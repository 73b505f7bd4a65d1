"""`nmtkit plot-attention`: heat-maps, grids, all layers and heads, entropies, positions; and of summaries."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from nmtkit import Translator
from nmtkit.data.tokenizers.vocabulary import EOS
from nmtkit.inference.attention_views import positions
from nmtkit.models.base import MODELS
from tests.cli.untrained_runs import SUMMARIZATION, TRANSFORMER, make_run
from tests.support.commands import WORDS, Command, succeeded

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
    return make_run(
        tmp_path_factory.mktemp("news"),
        "news",
        SUMMARIZATION.replace("min_frequency: 2", ""),
        VOCABULARY,
    )


@pytest.fixture
def plot(console: Command) -> Command:
    return partial(console, "plot-attention")


def test_words_of_the_target_are_shown_in_the_terminal(trained: Path, plot: Command) -> None:
    done = succeeded(plot("-m", trained, stdin=LINES))
    assert "GU" in done.out
    assert "FO" in done.out


def test_visualize_alignment_is_the_same_command(
    trained: Path, plot: Command, console: Command
) -> None:
    shown = plot("-m", trained, stdin=LINES).out
    assert succeeded(console("visualize-alignment", "-m", trained, stdin=LINES)).out == shown
    assert "did you mean 'visualize-alignment'" in console("visualise-alignment").err


def test_subwords_are_shown_if_asked_for(transformer: Path, plot: Command) -> None:
    assert "▁" in succeeded(plot("-m", transformer, "ba ce", "--subwords")).out
    assert "▁" not in succeeded(plot("-m", transformer, "ba ce")).out


@pytest.mark.slow
def test_a_grid_is_one_figure_of_all_sentences(trained: Path, plot: Command) -> None:
    succeeded(plot("-m", trained, "--what", "grid", "-o", "a.svg", "-o", "a.pdf", stdin=LINES))
    assert all(word in Path("a.svg").read_text() for word in (">di<", ">gu<", ">GU<", ">FO<"))
    assert len(re.findall(rb"/Type /Page\b", Path("a.pdf").read_bytes())) == 1


def test_layers_are_a_page_with_every_head(transformer: Path, plot: Command) -> None:
    succeeded(plot("-m", transformer, "--what", "layers", "-o", "a.html", stdin=LINES))
    text = Path("a.html").read_text(encoding="utf-8")
    assert text.count('"layers":{"encoder":3,"decoder":2,"cross":2}') == 3
    assert text.count('"heads":{"encoder":4,"decoder":4,"cross":4}') == 3
    assert '"tgt":["▁GU","▁FO","\\u003c/s\\u003e"]' in text


def table(text: str) -> dict[str, list[list[float]]]:
    """The rows of numbers of a printed table, by the words before them."""
    rows: dict[str, list[list[float]]] = {}
    for line in text.splitlines():
        if row := re.match(r"\s*(\D+?)((\s+[\d.]+)+)\s*$", line):
            rows.setdefault(row[1], []).append([float(number) for number in row[2].split()])
    return rows


def test_entropies_of_heads_are_at_most_uniform(transformer: Path, plot: Command) -> None:
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
    assert entropies["encoder self-attention"][0][-1] == pytest.approx(
        float(np.log(sizes).mean()), abs=1e-3
    )


def test_a_model_with_one_attention_has_one_entropy(trained: Path, plot: Command) -> None:
    words = ["-m", trained, "--what", "entropy", "ba ce di", "DI CE BA"]
    ((layer, value, uniform),) = table(succeeded(plot(*words)).out)["attention over words"]
    assert layer == 1
    assert 0 < value < uniform
    assert uniform == pytest.approx(np.log(4), abs=1e-3)
    succeeded(plot(*words, "-o", "a.svg"))
    assert f">{value:.2f}<" in Path("a.svg").read_text(encoding="utf-8")


def test_a_figure_of_positions_has_their_kind_and_axes(transformer: Path, plot: Command) -> None:
    succeeded(plot("-m", transformer, "--what", "positions", "-o", "a.svg"))
    text = Path("a.svg").read_text(encoding="utf-8")
    assert "sinusoidal positions" in text
    assert ">dimension<" in text


def test_learned_positions_are_as_many_as_the_model_has(transformer: Path) -> None:
    translator = Translator.load(str(transformer), device="cpu")
    config = translator.model.config.changed({"positions": "learned", "max_positions": 20})
    model = MODELS.get("transformer")(config, translator.model.sizes)
    vectors, title = positions(replace(translator, opened=model), 100)
    assert title == "heads: learned (source) positions"
    assert vectors.shape == (20, 32)
    assert np.array_equal(vectors, model.src_positions.table.detach().numpy())


def luong_translator(run: Path, window: str) -> Translator:
    """A translator with the vocabularies of a run and a random model of local attention."""
    translator = Translator.load(str(run), device="cpu")
    luong = MODELS.get("luong")
    config = luong.Config.model_validate(
        {"window": window, "window_size": 1, "hidden_size": 8, "embedding_size": 8}
    )
    return replace(translator, opened=luong(config, translator.model.sizes).eval())


@pytest.mark.parametrize("window", ["local_m", "local_p"])
def test_local_attention_has_windows(transformer: Path, window: str) -> None:
    translator = luong_translator(transformer, window)
    for target in ("GU FO DI", None):
        (picture,) = translator.pictures(["ba ce di fo gu"], [target])
        assert len(picture.windows) == len(picture.tgt_words)
        outside = []
        for drawn in picture.windows:
            outside.append(
                [not drawn.left - 1e-6 <= column <= drawn.right + 1e-6 for column in range(6)]
            )
        assert np.array(outside).any()
        np.testing.assert_array_equal(picture.weights == 0, outside)
        assert all(0 <= drawn.centre <= 6 for drawn in picture.windows)


def test_monotonic_windows_move_one_word_at_a_time(transformer: Path) -> None:
    (picture,) = luong_translator(transformer, "local_m").pictures(["ba ce di fo gu"], ["GU FO DI"])
    assert [drawn.centre for drawn in picture.windows] == [0, 1, 2, 3]
    assert [drawn.left for drawn in picture.windows] == [-1, 0, 1, 2]


def test_layer_and_head_select_the_weights_of_one_head(transformer: Path, plot: Command) -> None:
    """The weights of a head are those of a forward pass; two heads differ."""
    pages = {}
    for layer, head in ((1, 1), (1, 2), (2, 1)):
        chosen = ["--layer", layer, "--head", head, "-o", "one.html"]
        succeeded(plot("-m", transformer, *chosen, "ba ce di", "DI CE BA"))
        shown = re.findall(r">(0\.\d\d|1\.00)</td>", Path("one.html").read_text())
        pages[layer, head] = [float(number) for number in shown]
    assert len({tuple(numbers) for numbers in pages.values()}) == 3
    picture = Translator.load(str(transformer), device="cpu").head_pictures(
        ["ba ce di"], ["DI CE BA"]
    )[0]
    for (layer, head), numbers in pages.items():
        weights = picture.cross[layer - 1, head - 1]  # one piece a word: nothing is merged
        np.testing.assert_allclose(numbers, [w for w in weights.ravel() if w >= 0.005], atol=0.0051)


def test_a_picture_is_drawn_once_for_several_files(trained: Path, plot: Command) -> None:
    style = [
        "--title",
        "",
        "--style",
        "size=3.3",
        "--style",
        "font_size=7",
        "--style",
        "colours=Greys",
    ]
    done = succeeded(plot("-m", trained, "ba ce di", "-o", "a.svg", "-o", "a.html", *style))
    assert all(f"wrote {name}" in done.err for name in ("a.svg", "a.html"))
    assert done.err.count("model ") == 1
    assert "score" not in Path("a.svg").read_text()
    assert f'width="{3.3 * 72:g}pt"' in Path("a.svg").read_text()


# ------------------------------------------------------------------------------------------------------- of summaries


def test_a_picture_has_the_values_of_a_forward_pass(news: Path) -> None:
    translator = Translator.load(str(news), device="cpu")
    (picture,) = translator.pictures([ARTICLE], [SUMMARY])
    end = translator.tokenizers.tgt.vocabulary.tokens[EOS]
    assert picture.is_summary
    assert picture.src_words == [*ARTICLE.split(), end]
    # `nowhere` is not in the article
    assert picture.tgt_words == ["4711", "CE", "Zanzibar", "<unk>", end]
    assert picture.copied == {0, 2}  # words that only copying can write
    (scored,) = translator.rescore([ARTICLE], [SUMMARY], need_attention=True)
    assert scored.attention is not None
    assert scored.p_gen is not None
    assert picture.p_gen is not None
    np.testing.assert_allclose(picture.p_gen, scored.p_gen)
    np.testing.assert_allclose(picture.weights, scored.attention)
    np.testing.assert_allclose(picture.coverage.sum(), 5.0, rtol=1e-5)


def test_a_picture_of_a_cut_article_says_so(news: Path) -> None:
    translator = Translator.load(str(news), device="cpu", max_source_tokens=4)
    (picture,) = translator.pictures([ARTICLE])
    assert picture.src_words[:-1] == ["ba", "ce", "Zanzibar", "di"]
    assert picture.heading.endswith("(the last 2 source tokens were not read)")


def test_a_summary_in_the_terminal_marks_copied_words(news: Path, plot: Command) -> None:
    lines = succeeded(plot("-m", news, ARTICLE, SUMMARY)).out.splitlines()
    assert " ".join([*ARTICLE.split(), "</s>"]) in lines
    rows = [line.split() for line in lines if re.match(r"\s*[01]\.\d\d\s", line)]
    assert [row[1] for row in rows] == ["4711*", "CE", "Zanzibar*", "<unk>", "</s>"]


@pytest.mark.parametrize("options", ["--title news", "--what entropy"])
def test_tokens_that_are_not_read_are_reported(news: Path, plot: Command, options: str) -> None:
    article = " ".join(WORDS[:4] * 3)
    done = succeeded(plot("-m", news, article, SUMMARY, *options.split()))
    assert "figure 1: the source is too long, so its last 4 tokens were not read" in done.err


def test_figures_and_pages_of_summaries_mark_copied_words(news: Path, plot: Command) -> None:
    succeeded(
        plot(
            "-m", news, "-o", "a.svg", "-o", "a.html", stdin=f"{ARTICLE}\t{SUMMARY}\nba ce di fo\n"
        )
    )
    svg, html = (Path(name).read_text(encoding="utf-8") for name in ("a.svg", "a.html"))
    assert all(
        word in svg for word in (">p_gen<", ">coverage<", ">Zanzibar<", "bold words are copied")
    )
    assert html.count('<section class="summary"') == 2
    assert 'class="copied"' in html


@pytest.mark.parametrize(
    ("summary", "files", "advised"),
    [
        pytest.param(" ".join(WORDS[:4] * 12), "-o a.svg", True, id="long"),
        pytest.param(" ".join(WORDS[:4] * 12), "-o a.svg -o a.html", False, id="long with a page"),
        pytest.param(SUMMARY, "-o a.svg", False, id="short"),
    ],
)
def test_a_page_is_recommended_for_a_long_summary(
    news: Path, plot: Command, summary: str, files: str, advised: bool
) -> None:
    done = succeeded(plot("-m", news, ARTICLE, summary, *files.split()))
    assert ("columns and may be hard to read; use -o FILE.html" in done.err) == advised
    assert ("may be hard to read" in done.err) == advised


def test_a_model_without_copying_has_the_same_picture_without_p_gen(news: Path) -> None:
    translator = Translator.load(str(news), device="cpu")
    config = translator.model.config.changed({"copying": False})
    model = MODELS.get("pointer_generator")(config, translator.model.sizes).eval()
    (picture,) = replace(translator, opened=model).pictures([ARTICLE], [SUMMARY])
    assert picture.is_summary
    assert (picture.p_gen, picture.copied) == (None, frozenset())
    assert (
        not replace(translator, opened=model, reads_articles=False)
        .pictures([ARTICLE])[0]
        .is_summary
    )
