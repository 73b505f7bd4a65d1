"""The tree of a search: the numbers of the search itself, for models that copy too."""

from dataclasses import replace

import pytest

from nmtkit.core.errors import DataError
from nmtkit.decoding.settings import BeamConfig
from nmtkit.inference.search_trees import describe_search, search_tree
from tests.inference.untrained import COPYING, LINES, copying


@pytest.mark.parametrize("name", COPYING)
def test_the_tree_finds_what_the_search_finds(name: str) -> None:
    translator = copying(name)
    for line in (LINES[0], LINES[5]):
        tree, found = search_tree(translator, line)
        (searched,) = translator.search([line], translator.config.n_hypotheses, need_attention=True)
        assert [one.tokens for one in found] == [one.tokens for one in searched]
        assert [one.copied for one in found] == [one.copied for one in searched]
        assert [one.score for one in found] == pytest.approx(
            [one.score for one in searched], abs=1e-12
        )
        for result, one in zip(tree.results, found, strict=True):
            path = [
                tree.steps[step][number] for step, number in tree.path(result.step, result.number)
            ]
            assert [node.token for node in path] == one.tokens + ["</s>"] * one.finished
            assert [node.token_log_prob for node in path] == pytest.approx(
                one.token_log_probs, abs=1e-12
            )
            assert (path[-1].score, path[-1].log_prob) == (
                result.score,
                pytest.approx(result.log_prob),
            )
            assert (result.text, result.score) == (one.text, one.score)
    assert any(node.token in ("▁Zyx", "▁Abc") for step in tree.steps for node in step)


@pytest.mark.parametrize(
    "search", [{"samples": 4}, {"diversity_groups": 2}, {"at_limit": "compete"}]
)
def test_what_ends_early_leaves_the_paths_of_the_others(search: dict[str, object]) -> None:
    translator = copying("pointer-generator", **{"min_length": 0, "max_length": 20, **search})
    for line in (LINES[0], LINES[5]):
        tree, found = search_tree(translator, line)
        for result, one in zip(tree.results, found, strict=True):
            path = [
                tree.steps[step][number].token
                for step, number in tree.path(result.step, result.number)
            ]
            assert path == one.tokens + ["</s>"] * one.finished


def test_fates_and_margins() -> None:
    tree, _ = search_tree(copying("pointer-generator", beam_size=3, no_repeat_ngram=1), LINES[0])
    fates = [[node.fate for node in step] for step in tree.steps]
    assert all(
        step == sorted(step, key=["kept", "ended", "pruned", "blocked"].index) for step in fates
    )
    assert {fate for step in fates for fate in step} == {"kept", "ended", "pruned", "blocked"}
    for step in tree.steps:
        kept = [node for node in step if node.fate == "kept"]
        assert [node.margin for node in kept[-1:]] == [0.0]
        assert len([node for node in step if node.fate != "blocked"]) <= 6
        for node in step:
            assert node.margin is not None
            assert (
                (node.margin >= 0)
                if node.fate in ("kept", "ended")
                else (node.margin <= 0 or node.rule)
            )
            assert bool(node.rule) == (node.fate == "blocked") == (node.score is None)


def test_margins_of_samples_are_relative_to_the_least_probable_one() -> None:
    tree, _ = search_tree(copying("pointer-generator", samples=4), LINES[0])
    for step in tree.steps:
        kept = [node for node in step if node.fate == "kept"]
        lowest = min((node.log_prob for node in kept), default=None)
        for node in kept:
            assert node.margin == node.log_prob - lowest
        assert all(node.margin >= 0 for node in step if node.fate == "ended")


def test_why_it_ended() -> None:
    translator = copying("intra-attention")
    for search, reason in (
        ({"min_length": 8, "max_length": 9}, "length limit of 9 tokens"),
        (
            {"stop": "exact", "min_length": 0, "max_length": 200},
            "no other hypothesis could become better",
        ),
        (
            {"beam_size": 1, "min_length": 0, "no_repeat_ngram": 1},
            "1 hypothesis ended, reaching the beam size of 1",
        ),
    ):
        tree, found = search_tree(
            replace(translator, config=translator.config.changed(search)), LINES[0]
        )
        assert reason in tree.stopped
        assert len(tree.results) == len(found) > 0


def test_the_settings_in_words() -> None:
    config = BeamConfig(beam_size=2, length_penalty="gnmt", alpha=0.6, no_repeat_ngram=3)
    assert describe_search(config) == "beam size 2, length penalty gnmt:0.6, no_repeat_ngram 3"


def test_nothing_to_search_for() -> None:
    with pytest.raises(DataError, match="line 3 contains no text"):
        search_tree(copying("intra-attention"), "  ", "line 3")
