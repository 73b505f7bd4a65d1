"""What a user of the library sees: signatures, names, messages about arguments, and `repr`."""

import inspect
from pathlib import Path

import pytest

from nmtkit import ParagraphTranslator, Summarizer, Translator
from nmtkit.core.errors import RecipeError
from nmtkit.decoding.settings import SEARCH_FIELDS
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.run import Run
from tests.inference.untrained import WORDS, untrained


def test_the_signature_of_load_has_every_option() -> None:
    parameters = inspect.signature(Translator.load).parameters
    assert list(parameters)[:3] == ["run", "device", "weights"]
    assert {"beam_size", "n_best", "to", "precision", "search_settings", *SEARCH_FIELDS} <= set(
        parameters
    )
    assert all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in parameters.values())


def test_an_unknown_argument_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(
        TypeError, match=r"Translator\.load has no argument 'beam': did you mean 'beam_size'\?"
    ):
        Translator.load("runs/mine", beam=3)
    with pytest.raises(TypeError, match="did you mean 'precision'"):
        Translator.load("runs/mine", presision="fp32")
    with pytest.raises(TypeError, match="'beam_size' is also in search_settings"):
        Translator.load("runs/mine", beam_size=3, search_settings={"beam_size": 3})


def test_search_settings_are_arguments_of_load(trained: Path) -> None:
    translator = Translator.load(trained, "cpu", beam_size=2, length_penalty="none")
    assert (translator.config.n_hypotheses, translator.config.length_penalty) == (2, "none")
    older = Translator.load(
        trained, "cpu", search_settings={"beam_size": 2, "length_penalty": "none"}
    )
    assert older.config == translator.config
    with pytest.raises(RecipeError, match="beam_size"):
        Translator.load(trained, "cpu", beam_size=0)


def test_repr_says_what_it_is() -> None:
    translator = untrained("rnnsearch", WORDS, beam_size=4)
    assert repr(translator) == "<Translator rnnsearch, on cpu, engine nmtkit, beam_size 4>"
    assert repr(translator.with_terms({"dog": "house"})).endswith("beam_size 4, 1 terms>")
    several = untrained("rnnsearch", WORDS, samples=5)
    assert "samples 5" in repr(several)
    assert repr(Summarizer(translator, sentences=3)).startswith(
        "Summarizer(translator=<Translator rnnsearch"
    )
    assert "<Translator rnnsearch" in repr(ParagraphTranslator(translator))


def test_repr_names_the_run_and_its_size(trained: Path) -> None:
    shown = repr(Translator.load(trained, "cpu"))
    assert "tiny, rnnsearch, " in shown
    assert " parameters, on cpu" in shown


def test_dir_lists_what_is_meant_for_users() -> None:
    names = {name for name in dir(Translator) if not name.startswith("_")}
    assert names == {
        *(
            "align",
            "cost_of_terms",
            "device",
            "head_pictures",
            "languages",
            "load",
            "max_source_tokens",
        ),
        *(
            "model",
            "name",
            "parameters",
            "pictures",
            "replacing_unknown",
            "reads_articles",
            "rescore",
            "search",
            "stream",
        ),
        *("glossary", "translate", "with_terms"),
    }
    translator = untrained("rnnsearch", WORDS)
    shown = {name for name in dir(translator) if not name.startswith("_")}
    assert shown == names | {"tokenizers", "config"}


def test_a_run_says_where_it_is(tmp_path: Path) -> None:
    assert repr(Run(RunFolder(tmp_path))) == f"<Run {tmp_path}>"
