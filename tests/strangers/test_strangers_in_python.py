"""What is made outside of nmtkit, after it was loaded, takes part by its name: the guide's model, and a task."""

import importlib.util
import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from nmtkit import config
from nmtkit.config.tasks.builtin import TRANSLATION
from nmtkit.config.tasks.task import TASKS
from nmtkit.core.errors import RecipeError
from nmtkit.core.registry import Registry
from nmtkit.data.batches.batch import ABSENT, collate
from nmtkit.data.tokenizers.vocabulary import EOS
from nmtkit.decoding.rules import RULES, TargetTokens
from nmtkit.decoding.scorers import LENGTH_PENALTIES
from nmtkit.decoding.search_batch import search_batch
from nmtkit.decoding.settings import BeamConfig, change_search
from nmtkit.experiment.evaluation import evaluate_test_set
from nmtkit.experiment.stages import train_stages
from nmtkit.layers.attention import SCORES
from nmtkit.models.base import MODELS, VocabularySizes
from nmtkit.training.events import Evaluated, Step
from nmtkit.training.losses.objective import OBJECTIVES, ObjectiveInput
from tests.decoding.table_model import START, TableModel, random_tables
from tests.support.begun_runs import begin_run

CPU = torch.device("cpu")
HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "nmtkit" / "guide" / "extending.md"


def shown(heading: str) -> str:
    """The first block of Python below a heading of the guide's page."""
    page = PAGE.read_text(encoding="utf-8")
    block = re.search(rf"^## {heading}$.*?^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert block is not None
    return block[1]


@contextmanager
def added_model(folder: Path) -> Iterator[ModuleType]:
    """The file that "Adding a model" in the guide shows, written and imported; forgotten at the end."""
    (folder / "bag.py").write_text(shown("Adding a model"), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("bag", folder / "bag.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules["bag"] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        MODELS._members.pop("bag", None)
        del sys.modules["bag"]


@contextmanager
def registered(registry: Registry[Any], name: str, member: Any) -> Iterator[None]:
    """For as long as this lasts; other tests go through all members of a registry."""
    registry.register(name)(member)
    try:
        yield
    finally:
        del registry._members[name]


def test_the_guides_model_reads_and_searches(tmp_path: Path) -> None:
    with added_model(tmp_path) as bags:
        model = bags.Bag(
            bags.BagConfig(hidden_size=8), VocabularySizes({"src": 20, "tgt": 20}, shared=True)
        ).eval()
        sources = [[5, 6, 7], [8]]
        n_best = search_batch(model, collate(sources), BeamConfig(beam_size=3, max_length=4))
        batch = collate(sources, [best.ids for best, *_ in n_best])
        with torch.no_grad():
            log_probs = model(batch)
        torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(log_probs.shape[:2]))
        for (best, *_), walked, wanted in zip(n_best, log_probs, batch.targets.ids, strict=True):
            expected = torch.tensor(best.token_log_probs)
            torch.testing.assert_close(
                walked.gather(1, wanted[:, None])[: len(expected), 0], expected
            )


def test_a_model_that_came_later_is_named(corpus: Path, tmp_path: Path) -> None:
    bag = ["model={kind: bag, hidden_size: 8}"]
    with pytest.raises(RecipeError, match=r"`model.kind`: unknown name 'bag'"):
        config.load(corpus / "tiny.yaml", bag)
    with added_model(tmp_path) as bags:
        with pytest.raises(
            RecipeError, match=r"unknown key `model.hiden_size`; did you mean 'hidden_size'\?"
        ):
            config.load(corpus / "tiny.yaml", ["model={kind: bag, hiden_size: 8}"])
        assert (
            "bag"
            in config.Recipe.model_json_schema()["properties"]["model"]["discriminator"]["mapping"]
        )
        loaded = config.load(corpus / "tiny.yaml", bag)
        assert loaded.model == bags.BagConfig(hidden_size=8)


def test_a_task_that_came_later_is_trained_validated_and_tested(
    corpus: Path, tmp_path: Path
) -> None:
    turning = [
        "task=turning",
        "training.best_metric=chrf",
        "model={kind: rnnsearch, hidden_size: 8}",
    ]
    with pytest.raises(RecipeError, match="there is no task 'turning'"):
        config.load(corpus / "tiny.yaml", turning)
    metrics = {"validation_metrics": ("chrf",), "test_metrics": ("chrf", "ter")}
    task = replace(
        TRANSLATION, name="turning", command="turn", done="turned", result="turned line", **metrics
    )
    with registered(TASKS, "turning", task):
        quick = ["training.max_updates=2", "training.validate_every=2", "search.max_length=8"]
        run = begin_run(
            config.load(corpus / "tiny.yaml", [*quick, *turning]), str(tmp_path / "run")
        )
        (evaluated,) = (event for event in train_stages(run, CPU) if isinstance(event, Evaluated))
        assert evaluated.metrics.keys() == {"chrf", "loss", "perplexity", "seconds"}
        result = evaluate_test_set(run, CPU)
        assert result is not None
        assert [score.name for score in result.scores] == ["chrF2", "TER"]
        assert "turning" in config.Recipe.model_json_schema()["properties"]["task"]["enum"]


IN_THE_GUIDE = (
    "classifier",
    "attention_score",
    "attention_entropy",
    "unlikelihood",
    "decoding_rule",
    "length_penalty",
)


@pytest.mark.parametrize("stranger", IN_THE_GUIDE)
def test_the_guide_shows_the_file(stranger: str) -> None:
    code = (HERE / f"{stranger}.py").read_text(encoding="utf-8")
    assert f"```python\n{code}```" in PAGE.read_text(encoding="utf-8")


@contextmanager
def score_and_losses() -> Iterator[dict[str, Any]]:
    """Executes an attention score and two losses from outside; yields their names, which are forgotten at the end."""
    names: dict[str, Any] = {"__name__": "strangers"}
    try:
        for stranger in ("attention_score", "attention_entropy", "unlikelihood"):
            exec(
                compile((HERE / f"{stranger}.py").read_text(encoding="utf-8"), stranger, "exec"),
                names,
            )
        yield names
    finally:
        SCORES._members.pop("euclid", None)
        OBJECTIVES._members.pop("entropy_attention", None)
        OBJECTIVES._members.pop("unlikelihood", None)


def test_the_guides_attention_score_and_losses_train(corpus: Path, tmp_path: Path) -> None:
    settings = [
        *("model.score=euclid", "training.objectives={entropy_attention: 0.1, unlikelihood: 0.5}"),
        *(
            "training.max_updates=2",
            "training.validate_every=2",
            "training.log_every=1",
            "search.max_length=4",
        ),
    ]
    with score_and_losses():
        run = begin_run(config.load(corpus / "tiny.yaml", settings), str(tmp_path / "run"))
        steps = [event for event in train_stages(run, CPU) if isinstance(event, Step)]
    for step in steps:
        nll, entropy, unlikelihood = (
            step.terms[name] for name in ("nll", "attention_entropy", "unlikelihood")
        )
        assert 0 < entropy < 4
        assert unlikelihood > 0
        assert step.loss == pytest.approx(nll + 0.1 * entropy + 0.5 * unlikelihood, rel=1e-4)


def test_the_guides_unlikelihood_is_its_formula_in_parts() -> None:
    batch = collate([[4, 5], [6]], [[4, 5, 4, 6], [7, 7]])
    log_probs = torch.randn(8, 9, generator=torch.Generator().manual_seed(1)).log_softmax(-1)
    expected, row = 0.0, 0
    for text in ([4, 5, 4, 6, EOS], [7, 7, EOS]):
        for step, word in enumerate(text):
            expected -= sum(
                math.log1p(-math.exp(log_probs[row, other])) for other in {*text[:step]} - {word}
            )
            row += 1
    with score_and_losses() as names:
        loss = names["Unlikelihood"]()
        found = 0.0
        for part in (slice(0, 3), slice(3, 8)):
            inputs = ObjectiveInput(
                model=ABSENT,
                batch=batch,
                device_batch=batch,
                vocabulary_size=8,
                output=ABSENT,
                log_probs=log_probs[part],
                part=part,
            )
            found += float(loss.terms(inputs)["unlikelihood"])
    assert found == pytest.approx(expected, rel=1e-5)


@contextmanager
def decoding_rule() -> Iterator[dict[str, Any]]:
    """Executes a decoding rule from outside; yields its names, which are forgotten at the end."""
    names: dict[str, Any] = {"__name__": "strangers"}
    try:
        exec(
            compile(
                (HERE / "decoding_rule.py").read_text(encoding="utf-8"), "decoding_rule", "exec"
            ),
            names,
        )
        yield names
    finally:
        RULES._members.pop("closed-quotes", None)


@pytest.mark.parametrize(
    "settings", [{"beam_size": 4}, {"beam_size": 3, "stop": "exact"}, {"samples": 4}], ids=str
)
def test_the_guides_decoding_rule_holds(settings: dict[str, object]) -> None:
    tables = random_tables(20, 6, START + 20, 1, 3.0)
    is_quote = torch.arange(tables.shape[-1]) % 3 == 2
    assert not is_quote[EOS]
    batch = collate([[START + number] for number in range(20)])
    search = {"max_length": 8, "max_length_ratio": 0.0, **settings}

    def quotes(rules: list[str], tokens: TargetTokens) -> list[int]:
        config = change_search(BeamConfig(), {**search, "rules": rules})
        found = search_batch(TableModel(tables), batch, config, config.n_hypotheses, tokens=tokens)
        return [
            int(is_quote[one.ids].sum())
            for of_sentence in found
            for one in of_sentence
            if one.finished
        ]

    with decoding_rule() as names:
        tokens = TargetTokens(tables={names["find_quotes"]: is_quote})
        under_rule = quotes(["closed-quotes"], tokens)
        free = quotes([], tokens)
    assert max(under_rule) >= 2
    assert all(count % 2 == 0 for count in under_rule)
    assert any(count % 2 for count in free)


def test_the_guides_decoding_rule_is_named_in_recipes(corpus: Path, tmp_path: Path) -> None:
    quick = ["training.max_updates=1", "training.validate_every=1", "search.max_length=8"]
    with pytest.raises(RecipeError, match=r"`search.rules.0`: not a valid value"):
        config.load(corpus / "tiny.yaml", ["search.rules=[closed-quotes]"])
    with decoding_rule():
        recipe = config.load(corpus / "tiny.yaml", [*quick, "search.rules=[closed-quotes]"])
        with begin_run(recipe, str(tmp_path / "run")) as run:
            assert [*train_stages(run, CPU)]
            assert evaluate_test_set(run, CPU) is not None


def test_the_guides_length_penalty_ranks(corpus: Path) -> None:
    tables = random_tables(20, 6, START + 20, 1, 3.0)
    batch = collate([[START + number] for number in range(20)])
    settings = {
        "max_length": 40,
        "max_length_ratio": 0.0,
        "length_penalty": "bounded",
        "alpha": 0.5,
    }
    with pytest.raises(RecipeError, match=r"`?length_penalty`?: not a valid value"):
        change_search(BeamConfig(), settings)
    try:
        exec(
            compile(
                (HERE / "length_penalty.py").read_text(encoding="utf-8"), "length_penalty", "exec"
            ),
            {},
        )
        config.load(corpus / "tiny.yaml", ["search.length_penalty=bounded"])
        search = change_search(BeamConfig(), settings)
        best = [hypotheses[0] for hypotheses in search_batch(TableModel(tables), batch, search)]
    finally:
        LENGTH_PENALTIES._members.pop("bounded", None)
    lengths = [len(hypothesis.token_log_probs) for hypothesis in best]
    assert max(lengths) > 30 > min(lengths)
    for hypothesis, length in zip(best, lengths, strict=True):
        assert hypothesis.score == pytest.approx(hypothesis.log_prob / min(length, 30) ** 0.5)
