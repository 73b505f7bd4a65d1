"""`nmtkit plot-attention` beyond the single heat-map: grids, all layers and heads, entropies, positions."""

import os
import re
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
import pytest
from click.testing import CliRunner, Result
from commands import RECIPE, Command, succeeded

from nmtkit import Translator
from nmtkit.cli import cli
from nmtkit.core.errors import NmtkitError
from nmtkit.models.base import MODELS
from nmtkit.translation.attention_views import positions

TRANSFORMER = (
    "model: {kind: transformer, hidden_size: 32, feed_forward_size: 64, heads: 4, encoder_layers: 3, decoder_layers: 2}"
)


@pytest.fixture(scope="module")
def transformer(corpus: Path, nmtkit: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a Transformer that has seen a few batches: the shapes are right, and no head is like another."""
    folder = tmp_path_factory.mktemp("transformer") / "heads"
    recipe = corpus / "heads.yaml"
    recipe.write_text(re.sub(r"^model: .*$", TRANSFORMER, RECIPE, flags=re.MULTILINE), encoding="utf-8")
    succeeded(nmtkit("train", recipe, "--run", folder, "--set", "training.max_updates=10", "--set", "data.test=null"))
    return folder


def plot(*words: object, stdin: str = "") -> Result:
    """The command within this process: loading torch anew for each call would take most of the time."""
    with TemporaryFile() as given:
        given.write(stdin.encode())
        given.seek(0)
        own = os.dup(0)
        os.dup2(given.fileno(), 0)  # commands read the descriptor, not `sys.stdin`
        try:
            return CliRunner().invoke(cli, ["plot-attention", *map(str, words)])
        finally:
            os.dup2(own, 0)
            os.close(own)


LINES = "ba ce di\nfo gu\tGU FO\nba\n"


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf", "html"])
def test_grid(trained: Path, tmp_path: Path, suffix: str) -> None:
    place = tmp_path / f"a.{suffix}"
    done = plot("-m", trained, "--grid", "-o", place, stdin=LINES)
    assert done.exit_code == 0, done.output
    content = place.read_bytes()
    if suffix == "pdf":
        assert len(re.findall(rb"/Type /Page\b", content)) == 1
    if suffix == "html":
        assert b'<main class="grid">' in content
    if suffix == "svg":
        assert all(word in content for word in (b">di<", b">gu<", b">GU<", b">FO<"))


def test_layers(transformer: Path, tmp_path: Path) -> None:
    place = tmp_path / "a.html"
    done = plot("-m", transformer, "--layers", "-o", place, stdin=LINES)
    assert done.exit_code == 0, done.output
    text = place.read_text(encoding="utf-8")
    assert text.count('"layers":{"encoder":3,"decoder":2,"cross":2}') == 3
    assert text.count('"heads":{"encoder":4,"decoder":4,"cross":4}') == 3
    assert '"tgt":["▁GU","▁FO","\\u003c/s\\u003e"]' in text


def test_a_page_of_a_transformer_tells_of_its_layers(transformer: Path, trained: Path, tmp_path: Path) -> None:
    assert "--layers shows every layer" in plot("-m", transformer, "-o", tmp_path / "a.html", "ba ce").output
    assert "--layers" not in plot("-m", transformer, "-o", tmp_path / "a.svg", "ba ce").output
    assert "--layers" not in plot("-m", trained, "-o", tmp_path / "a.html", "ba ce").output


def test_layers_need_a_transformer(trained: Path, tmp_path: Path) -> None:
    done = plot("-m", trained, "--layers", "-o", tmp_path / "a.html", "ba ce di")
    assert isinstance(done.exception, NmtkitError)
    assert "no layers of attention heads" in str(done.exception)
    assert not (tmp_path / "a.html").exists()


def table(text: str) -> dict[str, list[list[float]]]:
    """The rows of numbers of a printed table, by what stands before them."""
    found: dict[str, list[list[float]]] = {}
    for line in text.splitlines():
        name, *numbers = re.split(r"\s{2,}", re.sub(r"(\d) +", r"\1  ", line).strip())
        if numbers and numbers[0].isdigit():
            found.setdefault(name, []).append([float(number) for number in numbers])
    return found


def test_entropy_of_heads(transformer: Path) -> None:
    done = plot("-m", transformer, "--what", "entropy", stdin=LINES)
    assert done.exit_code == 0, done.output
    found = table(done.output)
    shapes = {name: np.array(rows).shape for name, rows in found.items()}
    assert shapes == {
        "encoder self-attention": (3, 1 + 4 + 1),
        "decoder self-attention": (2, 1 + 4 + 1),
        "cross-attention": (2, 1 + 4 + 1),
    }
    for rows in found.values():
        values, uniform = np.array(rows)[:, 1:-1], np.array(rows)[:, -1:]
        assert (values > 0).all()
        assert (values <= uniform + 1e-3).all()
    # Four, three and two source words and ends of sentence, each looking at all of them alike.
    sizes = np.array([4] * 4 + [3] * 3 + [2] * 2)
    assert found["encoder self-attention"][0][-1] == pytest.approx(float(np.log(sizes).mean()), abs=1e-3)


def test_entropy_of_one_attention(trained: Path, tmp_path: Path) -> None:
    done = plot("-m", trained, "--what", "entropy", "ba ce di", "DI CE BA")
    assert done.exit_code == 0, done.output
    ((layer, value, uniform),) = table(done.output)["attention over words"]
    assert layer == 1
    assert 0 < value < uniform
    assert uniform == pytest.approx(np.log(4), abs=1e-3)
    done = plot("-m", trained, "--what", "entropy", "ba ce di", "DI CE BA", "-o", tmp_path / "a.svg")
    assert done.exit_code == 0, done.output
    assert f">{value:.2f}<" in (tmp_path / "a.svg").read_text(encoding="utf-8")


def test_positions(transformer: Path, tmp_path: Path) -> None:
    done = plot("-m", transformer, "--what", "positions", "-o", tmp_path / "a.svg")
    assert done.exit_code == 0, done.output
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert all(word in text for word in ("sinusoidal positions", ">dimension<", ">80<"))  # of a hundred rows


def test_learned_positions(transformer: Path) -> None:
    translator = Translator.load(str(transformer), device="cpu")
    config = translator.model.config.changed({"positions": "learned", "max_positions": 20})
    model = MODELS.get("transformer")(config, translator.model.sizes)
    table, title = positions(replace(translator, model=model), 100)
    assert title == "heads: learned (source) positions"
    assert table.shape == (20, 32)  # as many as there are
    assert np.array_equal(table, model.src_positions.table.detach().numpy())


def test_positions_need_a_transformer(trained: Path, tmp_path: Path) -> None:
    done = plot("-m", trained, "--what", "positions", "-o", tmp_path / "a.png")
    assert isinstance(done.exception, NmtkitError)
    assert "has no position vectors to draw; name a transformer" in str(done.exception)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--layers", "ba"], "-o FILE.html"),
        (["--layers", "-o", "a.png", "ba"], "-o FILE.html"),
        (["--layers", "--grid", "-o", "a.html", "ba"], "leave --grid out"),
        (["--grid", "ba"], "name it with -o FILE"),
        (["--what", "entropy", "--grid", "-o", "a.png", "ba"], "for --what attention only"),
        (["--what", "positions", "--layers", "-o", "a.html"], "for --what attention only"),
        (["--what", "positions", "-o", "a.png", "ba"], "leave SOURCE out"),
        (["--what", "positions"], "name it with -o FILE"),
        (["--layers", "--head", "2", "-o", "a.html", "ba"], "this draws all of them"),
    ],
)
def test_what_does_not_go_together(words: list[str], message: str) -> None:
    """It is told before a model is looked for: there is none here."""
    done = plot(*words)
    assert done.exit_code == 2
    assert message in done.output


def test_a_format_that_is_none(tmp_path: Path) -> None:
    done = plot("--what", "positions", "-o", tmp_path / "a.gif")
    assert isinstance(done.exception, NmtkitError)
    assert "not a picture format" in str(done.exception)


@pytest.mark.parametrize("window", ["local_m", "local_p"])
def test_local_attention_has_windows(transformer: Path, window: str) -> None:
    """Of a model that has not been trained: where its windows are does not depend on what it has learned."""
    translator = Translator.load(str(transformer), device="cpu")
    luong = MODELS.get("luong")
    config = luong.Config.model_validate({"window": window, "window_size": 1, "hidden_size": 8, "embedding_size": 8})
    translator = replace(translator, model=luong(config, translator.model.sizes).eval())
    given = translator.pictures(["ba ce di fo gu"], ["GU FO DI"])[0]
    own = translator.pictures(["ba ce di fo gu"])[0]
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


def test_one_layer_and_head_of_many(transformer: Path, tmp_path: Path) -> None:
    """What the command shows of a head is what a forward says of it; two heads are not alike."""
    pages = {}
    for layer, head in ((1, 1), (1, 2), (2, 1)):
        place = tmp_path / f"{layer}-{head}.html"
        done = plot("-m", transformer, "--layer", layer, "--head", head, "-o", place, "ba ce di", "DI CE BA")
        assert done.exit_code == 0, done.output
        pages[layer, head] = [float(number) for number in re.findall(r">(0\.\d\d|1\.00)</td>", place.read_text())]
    assert len({tuple(numbers) for numbers in pages.values()}) == 3
    picture = Translator.load(str(transformer), device="cpu").head_pictures(["ba ce di"], ["DI CE BA"])[0]
    for (layer, head), numbers in pages.items():
        weights = picture.cross[layer - 1, head - 1]  # one piece a word: nothing is merged
        np.testing.assert_allclose(numbers, [w for w in weights.ravel() if w >= 0.005], atol=0.0051)


def test_a_layer_or_head_that_is_not_there(transformer: Path, trained: Path) -> None:
    for words, message in ((["--layer", "3"], "alignment_layer 3"), (["--head", "5"], "5")):
        done = plot("-m", transformer, *words, "ba ce di")
        assert isinstance(done.exception, NmtkitError)
        assert message in str(done.exception)
    done = plot("-m", trained, "--head", "1", "ba ce di")
    assert "one attention" in str(done.exception)


def test_several_files_of_one_picture(trained: Path, tmp_path: Path) -> None:
    names = [tmp_path / f"a.{suffix}" for suffix in ("svg", "png", "html")]
    outputs = [word for name in names for word in ("-o", name)]
    style = ["--no-title", "--size", "3.3", "--font-size", "7", "--colours", "Greys"]
    done = plot("-m", trained, "ba ce di", *outputs, *style)
    assert done.exit_code == 0, done.output
    assert all(f"wrote {name}" in done.output for name in names)
    assert done.output.count("model ") == 1
    assert "a.html: --size is for .png, .svg and .pdf" in done.output
    assert "score" not in names[0].read_text()
    assert f'width="{3.3 * 72:g}pt"' in names[0].read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--title", "a", "--no-title"], "--title gives the figure a title and --no-title none"),
        (["--size", "wide"], "'wide': give a width, or WIDTHxHEIGHT, from 0.5 to 100 inches"),
        (["--size", "3x4x5"], "give a width"),
        (["--font", "Nowhere"], "font 'Nowhere' is not installed"),
        (["--colours", "white,nowhere"], "'nowhere' is no colour"),
    ],
)
def test_a_look_that_is_none(words: list[str], message: str) -> None:
    done = plot("-m", "nowhere", "ba", *words)
    assert done.exit_code != 0
    assert message in " ".join((done.output + str(done.exception)).split())
