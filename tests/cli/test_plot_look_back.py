"""`plot-attention` of a language model: attention to the words before."""

from pathlib import Path

import numpy as np
import pytest

from nmtkit.inference.attention_views import look_back_pictures
from nmtkit.inference.loading.opening import load_from_options
from nmtkit.inference.loading.options import DecodingOptions
from tests.cli.untrained_runs import LANGUAGE_MODEL, TRANSLATION, make_run
from tests.support.commands import Command, refused, succeeded

TEXT = "The old man sees the dog."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("look-back")
    make_run(folder, "mine", TRANSLATION)
    plain = LANGUAGE_MODEL.replace("runs/mine", f"{folder}/runs/mine")
    make_run(folder, "gpt", plain)
    given = "{kind: transformer_lm, hidden_size: 8, feed_forward_size: 8, heads: 2, layers: 1}"
    assert given in plain
    make_run(folder, "lstmn", plain.replace(given, "{kind: lstmn, hidden_size: 8}"))
    return folder


def test_each_word_attends_to_the_words_before_it(folder: Path, console: Command) -> None:
    system = load_from_options(DecodingOptions(str(folder / "runs" / "lstmn")))
    (picture,) = look_back_pictures(system, [TEXT])
    assert picture.src_words == picture.tgt_words
    assert list(picture.src_words)[1:] == ["The", "old", "man", "sees", "the", "dog."]
    assert not picture.weights[0].any()
    assert (picture.weights[1:].sum(1) > 0.99).all()
    # the last word has two tokens, which see each other
    assert not np.triu(picture.weights[:-1, :-1]).any()
    drawn = folder / "looks.svg"
    succeeded(
        console("plot-attention", "-m", str(folder / "runs" / "lstmn"), TEXT, "-o", str(drawn))
    )
    assert "dog." in drawn.read_text()
    assert (
        "dog."
        in succeeded(console("plot-attention", "-m", str(folder / "runs" / "lstmn"), TEXT)).out
    )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        pytest.param(
            "lstmn",
            "Mann.",
            "TARGET and --what layers require a model that reads a source",
            id="a target sentence",
        ),
        pytest.param(
            "gpt",
            "",
            "to earlier words cannot be shown; use an lstmn",
            id="a model without a look back",
        ),
    ],
)
def test_pictures_that_a_language_model_does_not_have_are_refused(
    folder: Path, console: Command, name: str, options: str, message: str
) -> None:
    refused(
        console("plot-attention", "-m", folder / "runs" / name, TEXT, *options.split()), message
    )
