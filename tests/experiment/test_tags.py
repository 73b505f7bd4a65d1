"""Corpora with tags: special tokens before sources, for the language to write or for back-translations."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtkit import config
from nmtkit.config.tasks.builtin import CLASSIFICATION, TRANSLATION
from nmtkit.config.tasks.task import LabellingTask
from nmtkit.core.errors import DataError, RecipeError
from nmtkit.core.settings import parse
from nmtkit.data.batches.batch_stream import BatchConfig, BatchStream
from nmtkit.data.batches.sampled_text import SampledStream
from nmtkit.data.batches.store import Store
from nmtkit.data.text.config import SplitFiles
from nmtkit.data.text.reading import read_pairs
from nmtkit.experiment.evaluation import Validation, evaluate_test_set
from nmtkit.experiment.stages import train_stages
from nmtkit.inference.answering import label_log_probs, model_inputs
from nmtkit.inference.constraints.requests import Request
from nmtkit.inference.inputs import TextModel
from nmtkit.inference.translator import Translator
from nmtkit.metrics import score_all
from nmtkit.runs.run import Run, build_model
from nmtkit.training.events import Evaluated
from tests.support.begun_runs import begin_run
from tests.support.commands import WORDS, write_lines

TAGS = ["<2de>", "<2fr>", "<BT>"]
SETTINGS = {
    "training": {"max_updates": 2, "validate_every": 2},
    "model": {
        "kind": "transformer",
        "hidden_size": 8,
        "heads": 2,
        "feed_forward_size": 8,
        "layers": 1,
    },
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(("de", "fr", "back", "valid")):
        lines = [" ".join((WORDS * 2)[at : at + 4]) for at in range(number, number + 6)]
        write_lines(tmp_path / f"{name}.src", lines)
        write_lines(tmp_path / f"{name}.tgt", [line.upper() for line in lines])
    return tmp_path


def written(folder: Path, **settings: object) -> Path:
    data = {
        "train": [
            {"src": "de.src", "tgt": "de.tgt", "tgt_lang": "de"},
            {"src": ["fr.src"], "tgt": ["fr.tgt"], "tgt_lang": "fr", "weight": 2},
            {"src": "back.src", "tgt": "back.tgt", "tgt_lang": "de", "tag": "<BT>"},
        ],
        "valid": [{"src": "valid.src", "tgt": "valid.tgt", "tgt_lang": "fr"}],
    }
    path = folder / "tagged.yaml"
    tokenizer = {"kind": "word", "vocab_size": 60}
    path.write_text(
        json.dumps({"data": data, "tokenizer": tokenizer, **SETTINGS, **settings}), encoding="utf-8"
    )
    return path


def begun(folder: Path, path: Path) -> Run:
    return begin_run(config.load(path), str(folder / "run"))


def test_a_list_of_corpora_is_one_split(folder: Path) -> None:
    loaded = config.load(written(folder))
    train = loaded.data.train
    assert [Path(path).name for path in train.src] == ["de.src", "fr.src", "back.src"]
    assert train.weights == [1, 2, 1]
    assert train.tags == ["<2de>", "<2fr>", "<2de> <BT>"]
    assert loaded.tokenizer.specials == ["<2de>", "<2fr>", "<BT>"]
    (folder / "again.yaml").write_text(loaded.to_yaml(), encoding="utf-8")
    assert config.load(folder / "again.yaml").data == loaded.data
    assert {example.tags for example in read_pairs(train)} == {*train.tags}


def test_what_is_laid_over_a_list_in_a_folder_keeps_the_rest(folder: Path) -> None:
    """As `--set` does, and the recipe that `check --fix` writes."""
    given = json.loads(written(folder).read_text(encoding="utf-8"))
    (folder / "base.yaml").write_text(
        json.dumps({**given, "data": {"folder": ".", **given["data"]}}), encoding="utf-8"
    )
    own = {"folder": ".", "train": {"src": ["x", "y", "z"]}, "valid": {"src": "v"}}
    (folder / "child.yaml").write_text(
        json.dumps({"extends": "base.yaml", "data": own}), encoding="utf-8"
    )
    data = config.load(folder / "child.yaml", ["data.train.weights=[3, 1, 1]"]).data
    assert (data.train.src, data.train.tgt) == (["x", "y", "z"], ["de.tgt", "fr.tgt", "back.tgt"])
    assert (data.train.weights, data.train.tags) == ([3, 1, 1], ["<2de>", "<2fr>", "<2de> <BT>"])
    assert data.valid is not None
    assert (data.valid.src, data.valid.tags) == (["v"], ["<2fr>"])


def test_a_list_takes_the_place_of_weights_and_tags(folder: Path) -> None:
    """An extended recipe's are of its own corpora."""
    corpora = [{"src": f"{name}.src", "tgt": f"{name}.tgt"} for name in ("fr", "de", "back")]
    child = {
        "extends": written(folder).name,
        "data": {"train": [{**one, "weight": 1} for one in corpora], "valid": corpora[:1]},
    }
    (folder / "child.yaml").write_text(json.dumps(child), encoding="utf-8")
    data = config.load(folder / "child.yaml").data
    assert (data.train.weights, data.train.tags, data.train.directions) == ([], [], [])
    assert [Path(path).name for path in data.train.tgt] == ["fr.tgt", "de.tgt", "back.tgt"]


@pytest.mark.parametrize(
    ("corpora", "fault"),
    [
        ([{"src": "a", "tgt": "b"}, {"src": "c"}], "must set the same keys"),
        (
            [{"jsonl": "a", "src_field": "x"}, {"jsonl": "b", "src_field": "y"}],
            "`src_field` must be the same in all",
        ),
        ([{"src": "a", "tgt": "b", "weights": [2]}], "must set the same keys"),
        (
            [{"src": "a", "tgt": "b", "tgt_lang": False}],
            r"tgt_lang: False is not a string; .* 'no' for Norwegian",
        ),
        ([{"src": "a", "tgt": "b", "tag": None}], "tag: None is not a string"),
        ([{"tgt": "b", "tag": "<x>"}], "these files have no sources"),
        ([{"src": "a", "tgt": "b", "weight": "much"}], "weights.0"),
    ],
)
def test_lists_that_make_no_sense_are_refused(corpora: object, fault: str) -> None:
    with pytest.raises(RecipeError, match=fault):
        parse(SplitFiles, corpora, "train")  # type: ignore[arg-type]  # what a user may write


@pytest.mark.parametrize("kind", ["word", "bpe"])
@pytest.mark.parametrize("model", ["transformer", "pointer_generator"])
def test_every_source_begins_with_its_tags(kind: str, model: str, folder: Path) -> None:
    tokenizer = {
        "kind": kind,
        "vocab_size": 60,
        "sampling": 0.3 if (kind, model) == ("bpe", "transformer") else 0.0,
    }
    settings = {"model": {"kind": model}} if model != "transformer" else {}
    run = begun(folder, written(folder, tokenizer=tokenizer, **settings))
    tokenizers, train = run.load_tokenizers(), run.recipe.data.train
    vocabulary, store = tokenizers.src.vocabulary, Store.open(run.folder.data, "train")
    for number, example in enumerate(read_pairs(train)):
        before = vocabulary.ids(train.tags[example.file].split())
        assert store.ids("src", number).tolist() == [*before, *tokenizers.src.encode(example.src)]
        assert store.ids("tgt", number).tolist() == tokenizers.tgt.encode(str(example.tgt))
        if model == "pointer_generator":
            assert store.ids("src_extended", number).tolist()[: len(before)] == before
            assert len(store.ids("src_extended", number)) == len(store.ids("src", number))
    kinds = partial(SampledStream, tokenizers=tokenizers) if tokenizers.sampling else BatchStream
    stream = kinds(store, BatchConfig(batch_tokens=10_000), 1)
    firsts = sorted(row[0] for row in next(stream).inputs.ids.tolist())
    assert firsts == [4] * 12 + [5] * 6, "tags stay before sources that are cut anew"


def test_links_count_from_behind_the_tags(folder: Path) -> None:
    write_lines(folder / "links", ["0-0 1-1"] * 6)
    corpora = [{"src": "de.src", "tgt": "de.tgt", "alignment": "links", "tgt_lang": "de"}]
    valid = {"src": "valid.src", "tgt": "valid.tgt"}
    tokenizer = {"kind": "whitespace", "vocab_size": 60}
    run = begun(
        folder, written(folder, data={"train": corpora, "valid": valid}, tokenizer=tokenizer)
    )
    assert Store.open(run.folder.data, "train").ids("alignment", 0).tolist() == [1, 0, 2, 1]


def test_a_trained_model_is_told_the_language(folder: Path) -> None:
    run = begun(folder, written(folder))
    assert [*train_stages(run, torch.device("cpu"))]
    plain, german = (Translator.load(folder / "run", device="cpu", to=to) for to in (None, "de"))
    lines = ["ba be", "", "bi bo"]
    asked = [Request(line, tags="<2de>") for line in lines]
    assert [one.ids for one in german.encode_sources(lines)] == [
        one.ids for one in plain.encode_requests(asked, None, plain.config)
    ]
    assert german.encode_sources(lines)[0].ids[0] == 4
    assert german.encode_sources(lines)[1].is_empty
    (example,) = [*read_pairs(run.recipe.data.splits()["valid"])][:1]
    assert model_inputs(TRANSLATION, [example]) == [Request(example.src, tags="<2fr>")]
    with pytest.raises(
        RecipeError, match=r"specify the target language, for example --to de \(available: de, fr\)"
    ):
        plain.translate(lines)
    with pytest.raises(
        DataError, match="has not learned the tag <2nl>; its tags are: <2de>, <2fr>, <BT>"
    ):
        Translator.load(folder / "run", device="cpu", to="nl").translate("ba")


def test_texts_to_label_are_read_behind_their_tags(folder: Path) -> None:
    corpora = [{"src": "de.src", "labels": "de.tgt", "tag": tag} for tag in ("<x>", "<y>")]
    data, training = (
        {"train": corpora, "valid": corpora},
        {"max_updates": 2, "best_metric": "accuracy"},
    )
    model = {"kind": "attention_classifier", "embedding_size": 8, "hidden_size": 8}
    run = begun(
        folder, written(folder, task="classification", data=data, model=model, training=training)
    )
    tokenizers = run.load_tokenizers()
    system = TextModel(build_model(run.recipe, tokenizers).eval(), tokenizers, name="own")
    examples = [*read_pairs(run.recipe.data.train)]
    assert isinstance(CLASSIFICATION, LabellingTask)
    found = [*label_log_probs(CLASSIFICATION, system, examples)]
    for one, log_probs in zip(examples, found, strict=True):
        (alone,) = label_log_probs(
            CLASSIFICATION, replace(system, tags=one.tags), [replace(one, tags="")]
        )
        torch.testing.assert_close(log_probs, alone)
    assert not torch.allclose(found[0], found[6]), "the same text behind another tag"


def test_scores_are_told_by_direction(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lines(folder / "links", ["0-0"] * 6)
    align, aligned = Translator.align, list[tuple[str, int, int]]()

    def noted(reader: Translator, sources: list[str], *given: Any, first: int = 1) -> Any:
        aligned.append((reader.tags, len(sources), first))
        return align(reader, sources, *given, first=first)

    monkeypatch.setattr(Translator, "align", noted)
    corpora = [
        {"src": f"{name}.src", "tgt": f"{name}.tgt", "src_lang": source, "tgt_lang": target}
        for name, source, target in (("de", "en", "de"), ("fr", "en", "fr"), ("valid", "fr", "de"))
    ]
    linked = [{**one, "alignment": "links"} for one in corpora[1:]]
    data = {"train": corpora[:2], "valid": corpora, "test": linked}
    told: list[str] = []
    run = begin_run(
        config.load(written(folder, data=data)), str(folder / "run"), notify=told.append
    )
    assert [line for line in told if "zero-shot" in line] == [
        "no corpus in data.train has the direction fr-de, so it is translated zero-shot"
    ]
    (evaluated,) = (
        event for event in train_stages(run, torch.device("cpu")) if isinstance(event, Evaluated)
    )
    directions = ["bleu en-de", "bleu en-fr", "bleu fr-de"]
    assert [*evaluated.metrics][:6] == ["bleu", "loss", "perplexity", *directions]
    result = evaluate_test_set(run, torch.device("cpu"))
    assert result is not None
    scores = {score.name: score.value for score in result.scores}
    assert [*scores] == [
        "BLEU",
        "chrF2",
        "BLEU en-fr",
        "chrF2 en-fr",
        "BLEU fr-de",
        "chrF2 fr-de",
        "AER",
    ]
    assert aligned == [("<2fr>", 6, 1), ("<2de>", 6, 7)]
    chosen = [n for n, example in enumerate(result.examples) if example.tags == "<2de>"]
    references = [[str(result.examples[n].tgt) for n in chosen]]
    (alone,) = score_all(
        [result.answers.texts[n] for n in chosen],
        references,
        ["chrf"],
        run.recipe.evaluation.options,
    )
    assert scores["chrF2 fr-de"] == alone.value


def test_few_validation_sentences_are_of_all_directions(folder: Path) -> None:
    corpora = [
        {"src": f"{name}.src", "tgt": f"{name}.tgt", "tgt_lang": name}
        for name in ("de", "fr", "nl")
    ]
    for end in ("src", "tgt"):
        write_lines(folder / f"nl.{end}", ["ba"])
    plain = {"train": corpora, "valid": corpora}
    for most, lines in ((4, [1, 2, 7, 13]), (None, [*range(1, 14)])):
        run = begun(folder, written(folder, data=plain, evaluation={"max_sentences": most}))
        chosen = Validation(run.folder.data, run.recipe, run.load_tokenizers()).examples
        assert [one.line for one in chosen] == lines
        run.close()


def test_a_tokenizer_that_is_not_learned_gets_no_tag(folder: Path) -> None:
    plain = {"train": {"src": "de.src", "tgt": "de.tgt"}}
    run = begun(folder, written(folder, data={**plain, "valid": plain["train"]}))
    with pytest.raises(RecipeError, match="the tokenizer has no special token for the tag <2de>"):
        config.load(written(folder, init_from=str(run.folder.path), tokenizer={"kind": "word"}))
