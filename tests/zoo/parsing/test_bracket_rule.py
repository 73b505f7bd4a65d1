"""Trees from models with random numbers: all are well-formed, whatever the search, and the words are all there."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from nmtkit.core.errors import RecipeError
from nmtkit.data.batches.batch import ABSENT, collate
from nmtkit.data.tokenizers.vocabulary import EOS
from nmtkit.decoding.beam_search import BeamSearch
from nmtkit.decoding.engine import Engine, OneBatch
from nmtkit.decoding.hypotheses import Hypothesis
from nmtkit.decoding.rules import INFINITY, LiveHypotheses, TargetTokens
from nmtkit.decoding.search_batch import search_batch
from nmtkit.decoding.settings import BeamConfig, change_search
from nmtkit.models.base import Memory
from nmtkit.zoo.parsing.brackets import MAX_DEPTH, Brackets, BracketTokens
from nmtkit.zoo.parsing.trees import read_linear
from tests.decoding.table_model import START, TableModel, random_tables

TOKENS = ["<pad>", "<unk>", "<s>", "</s>", "(S", ")S", "(NP", ")NP", "XX", ".", "(lonely", ")lost"]
SENTENCES = 50
BRACKETS = BracketTokens.of_tokens(TOKENS, range(4, len(TOKENS)), [0, 1, 0, 0, *[1] * SENTENCES])
WORDS = [1 + number % 7 for number in range(SENTENCES)]
SEARCHES: list[dict[str, object]] = [
    {"beam_size": 1},
    {"beam_size": 4},
    {"beam_size": 4, "stop": "exact", "max_length": 12},
    {"beam_size": 3, "max_length": 1},
    {"beam_size": 3, "at_limit": "end"},
    {"beam_size": 4, "stop": "huggingface", "at_limit": "compete"},
    {"beam_size": 4, "diversity_groups": 2},
    {"beam_size": 4, "repetition_penalty": 2.0, "forbid_unknown": True},
    {"samples": 4},
    {"samples": 4, "top_k": 2, "temperature": 5.0},
]


def model(seed: int, spread: float) -> TableModel:
    size = max(SENTENCES + START, len(TOKENS))
    tables = random_tables(SENTENCES, 9, size, seed, spread)[..., : len(TOKENS)]
    padded = torch.full((SENTENCES, 9, size, size), -1e4, dtype=torch.float64)
    padded[..., : len(TOKENS)] = tables.log_softmax(-1)
    return TableModel(padded)


def tokens_of(size: int) -> BracketTokens:
    """The same, for a vocabulary with further tokens that are none of a tree."""
    more = size - len(TOKENS)
    kinds, closings = (
        torch.nn.functional.pad(ids, (0, more)) for ids in (BRACKETS.kinds, BRACKETS.closings)
    )
    return replace(BRACKETS, kinds=kinds, closings=closings)


def target_tokens(size: int) -> TargetTokens:
    """The target tokens of a search whose table of brackets is known without tokenizers."""
    return TargetTokens(tables={BracketTokens.from_tokenizers: tokens_of(size)})


def found(seed: int, spread: float, settings: dict[str, object]) -> list[list[Hypothesis]]:
    one = model(seed, spread)
    config = change_search(
        BeamConfig(), {"max_length": 40, "max_length_ratio": 0.0, "rules": ["brackets"], **settings}
    )
    batch = collate(
        [[START + number, *[START] * (count - 1)] for number, count in enumerate(WORDS)]
    )
    tokens = target_tokens(one.sizes["tgt"])
    return search_batch(one, batch, config, config.n_hypotheses, tokens=tokens)


def require_trees(hypotheses: list[list[Hypothesis]]) -> Iterator[Hypothesis]:
    for count, of_sentence in zip(WORDS, hypotheses, strict=True):
        assert of_sentence
        for one in of_sentence:
            assert one.finished
            tree = read_linear(" ".join(TOKENS[token] for token in one.ids), "output")
            assert len(tree.words()) == count
            yield one


@pytest.mark.parametrize("settings", SEARCHES, ids=str)
def test_every_output_is_a_tree_over_the_words(settings: dict[str, object]) -> None:
    seen = list(require_trees(found(1, 3.0, settings)))
    assert len(seen) >= SENTENCES
    if settings.get("max_length", 40) == 40:
        # the rule leaves room for more than the words
        assert max(len(one.ids) for one in seen) > 12


@pytest.mark.slow
@pytest.mark.parametrize("beam_size", [1, 5])
def test_ten_thousand_outputs_are_trees(beam_size: int) -> None:
    outputs = 0
    for seed in range(10_000 // SENTENCES):
        hypotheses = found(
            seed, 0.5 + seed % 10, {"beam_size": beam_size, "max_length": 8 + 16 * (seed % 3)}
        )
        assert list(require_trees(hypotheses))
        outputs += len(hypotheses)
    assert outputs == 10_000


def test_trees_of_a_whole_search_are_those_of_one_sentence_by_itself() -> None:
    together = found(3, 2.0, {"beam_size": 3})
    one = model(3, 2.0)
    config = BeamConfig(max_length=40, max_length_ratio=0.0, rules=["brackets"], beam_size=3)
    tokens = target_tokens(one.sizes["tgt"])
    for number in (0, 6, 20):
        batch = collate([[START + number, *[START] * (WORDS[number] - 1)]])
        engine = Engine(BeamSearch(one, config, 3, tokens=tokens))
        ((_, alone),) = engine.run(OneBatch(batch, [number]), refill=False)
        assert [tuple(each.ids) for each in alone] == [tuple(each.ids) for each in together[number]]


def live(*written: str, words: int, room: int) -> LiveHypotheses:
    """One hypothesis with these tokens, for a source of so many words."""
    return LiveHypotheses(
        position=torch.tensor([len(written)]),
        last_position=torch.tensor([len(written) + room - 1]),
        width=1,
        memory=Memory(torch.ones(1, words, dtype=torch.bool), ABSENT),
        history=torch.tensor([[TOKENS.index(token) for token in written]], dtype=torch.long),
    )


def allowed(*written: str, words: int, room: int = 99) -> set[str]:
    """The tokens that may follow some others."""
    rule = Brackets(BRACKETS, words=torch.tensor([words]))
    log_probs = rule.apply(torch.zeros(1, len(TOKENS) + 3), live(*written, words=words, room=room))
    return {TOKENS[int(place)] for place in torch.nonzero(log_probs[0] > -INFINITY)[:, 0]}


def test_what_may_follow_a_prefix() -> None:
    leaves, opening = {"XX", "."}, {"(S", "(NP"}
    assert allowed(words=2) == opening
    assert allowed("(S", words=2) == leaves | opening
    assert allowed("(S", "(NP", words=2) == leaves | opening
    assert allowed("(S", "(NP", "XX", words=2) == leaves | opening | {")NP"}
    assert allowed("(S", "XX", words=2) == leaves | opening  # the root ends with the last word
    assert allowed("(S", "(NP", "XX", ".", words=2) == {")NP"}
    assert allowed("(S", "(NP", "XX", ".", ")NP", words=2) == {")S"}
    assert allowed("(S", "XX", ")S", words=1) == {"</s>"}


def test_a_bracket_opens_only_where_the_limit_leaves_room_to_close_it() -> None:
    # two words, the two closing brackets and the end
    assert allowed("(S", words=2, room=6) == {"XX", ".", "(S", "(NP"}
    assert allowed("(S", words=2, room=5) == {"XX", "."}
    assert allowed(*["(S"] * MAX_DEPTH, words=2, room=999) == {"XX", "."}


def test_what_the_model_holds_impossible_may_follow_where_nothing_else_does() -> None:
    rule = Brackets(BRACKETS, words=torch.tensor([1]))
    log_probs = rule.apply(torch.full((1, len(TOKENS)), -INFINITY), live(words=1, room=9))
    assert log_probs[0, TOKENS.index("(S")] > -INFINITY == log_probs[0, EOS]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(RecipeError, match="lacks brackets such as"):
        BracketTokens.of_tokens(["<pad>", "<unk>", "<s>", "</s>", "the", "cat"], range(4, 6), [])
    with pytest.raises(ValueError, match="determine a tree's length"):
        BeamConfig(rules=["brackets"], min_length=3)
    prefix: Tensor = torch.tensor([[4]])
    with pytest.raises(RecipeError, match="cannot be combined with a prefix or terms"):
        search_batch(
            model(0, 1.0),
            collate([[START]]),
            BeamConfig(rules=["brackets"]),
            prefix=prefix,
            tokens=target_tokens(len(TOKENS)),
        )
