"""Everything that can be asked of a search, in pairs: the engine finds what the plain search finds, or says no.

Of any two features it is written here whether they go together, are two values of one setting, or are refused together
with which message. All that go together stand in some row, which is a search with many features at once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations

import pytest
import torch
from torch import Tensor

from nmtkit.core.errors import RecipeError
from nmtkit.data.batches.batch import Batch
from nmtkit.data.tokenizers.vocabulary import PAD, UNK
from nmtkit.decoding.beam_search import BeamSearch
from nmtkit.decoding.constraints import Constraints
from nmtkit.decoding.engine import Engine
from nmtkit.decoding.rules import TargetTokens
from nmtkit.decoding.settings import BeamConfig, SearchConfig, change_search
from nmtkit.models.base import Seq2Seq, members_of
from nmtkit.models.ensemble import Ensemble
from tests.contracts.test_models import SOURCES, batch_of, model, sentences, shared
from tests.contracts.test_shortlists import SHORTLIST
from tests.contracts.variants import ONE_OF_EACH_THAT_COPIES, VOCABULARY, in_turns
from tests.support.hypotheses import agree, for_model, together
from tests.support.reference_search import EnsembleSentence, Request, Sentence
from tests.support.step_by_step import BatchInSlots, source_of

__all__ = ["model"]  # a fixture

LINES = SOURCES[:3]
STARTS = [4, 5, 6, 9, 10, 14]
"""Tokens that begin a word."""


@dataclass(frozen=True)
class Feature:
    """Something that can be asked of a search."""

    settings: dict[str, object] = field(default_factory=dict)
    """Keys of the search that turn it on."""
    value_of: str = ""
    """The setting that it is one value of; two values of one setting never come together."""
    requests: tuple[dict[str, object], ...] = ()
    """What it asks of the translations of each of `LINES`."""
    slots: int = 99
    """Sentences that are searched at a time."""


def drawing(**settings: object) -> Feature:
    return Feature({"samples": 1, **settings})


FEATURES: dict[str, Feature] = {
    "beam of 1": Feature({"beam_size": 1}, "width"),
    "beam of 4": Feature({"beam_size": 4}, "width"),
    "beam of 10": Feature({"beam_size": 10}, "width"),
    "n-gram blocking": Feature({"no_repeat_ngram": 2}, "n-grams"),
    "least length": Feature({"min_length": 2}, "least length"),
    "least length by the source": Feature({"min_length_ratio": 0.7}, "least length"),
    "no unknown word": Feature({"forbid_unknown": True}),
    "length penalty gnmt": Feature({"length_penalty": "gnmt", "alpha": 0.8}, "length penalty"),
    "length penalty none": Feature({"length_penalty": "none"}, "length penalty"),
    "coverage gnmt": Feature({"coverage_penalty": 0.2}, "coverage"),
    "coverage summary": Feature({"coverage_penalty": 2.0, "coverage_kind": "summary"}, "coverage"),
    "repetition penalty": Feature({"repetition_penalty": 1.5}),
    "exact stop": Feature({"stop": "exact"}, "stop"),
    "as huggingface": Feature({"stop": "huggingface", "at_limit": "end"}, "stop"),
    "unfinished ones compete": Feature({"at_limit": "compete"}, "stop"),
    "best only": Feature({}),
    "diverse groups": Feature({"diversity_groups": 2}),
    "samples": drawing(seed=3),
    "temperature": drawing(temperature=0.6),
    "top-k": drawing(top_k=5),
    "top-p": drawing(top_p=0.8),
    "epsilon": drawing(epsilon=0.05),
    "forced prefix": Feature({}, "prefix", ({"prefix": [7, 13]}, {}, {"prefix": [9]})),
    "required terms": Feature(
        {}, "required", ({"required": [[7, 8], [5]]}, {}, {"required": [[4]]})
    ),
    "terms in order": Feature(
        {},
        "required",
        ({}, {"required": [[9], [4]], "in_order": True}, {"required": [[12, 9]], "in_order": True}),
    ),
    "refused terms": Feature({}, "", ({"refused": [[6], [7, 7]]}, {"refused": [[9, 6], [10]]}, {})),
    "shortlist": Feature({}),
    "ensemble": Feature({}, "members"),
    "ensemble by logs": Feature({}, "members"),
    "one at a time": Feature({}, "slots", slots=1),
    "free slots": Feature({}, "slots", slots=2),
}
DRAWN = [name for name, feature in FEATURES.items() if "samples" in feature.settings]
TERMS = ["required terms", "terms in order", "refused terms"]
WIDTHS = ["beam of 1", "beam of 4", "beam of 10"]
STOPS = ["exact stop", "as huggingface"]
DRAWN_WITHOUT = "has no effect when sampling: remove it"
REFUSED: list[tuple[list[str], list[str], str]] = [
    (DRAWN, ["diverse groups"], f"diversity_groups {DRAWN_WITHOUT}"),
    (DRAWN, WIDTHS, f"beam_size {DRAWN_WITHOUT}"),
    (DRAWN, STOPS, f"stop {DRAWN_WITHOUT}"),
    (DRAWN, ["unfinished ones compete"], f"at_limit {DRAWN_WITHOUT}"),
    (
        [*DRAWN, "diverse groups"],
        TERMS,
        "terms require a single beam: remove samples and diversity_groups",
    ),
    (
        ["diverse groups"],
        ["beam of 1"],
        "a beam of 1 cannot be divided into 2 groups of equal size; set beam_size to a multiple",
    ),
]
"""Features of which none goes with any of some others, and what is said."""

Pair = frozenset[str]
MESSAGES = {
    Pair((one, other)): message
    for several, others, message in REFUSED
    for one in several
    for other in others
}


def go_together(one: str, other: str) -> bool:
    both = FEATURES[one].value_of, FEATURES[other].value_of
    return (both[0] == "" or both[0] != both[1]) and Pair((one, other)) not in MESSAGES


def pairs_of(names: Iterable[str]) -> set[Pair]:
    return {Pair(pair) for pair in combinations(names, 2)}


COMPATIBLE = {pair for pair in pairs_of(FEATURES) if go_together(*pair)}


def rows_that_cover(pairs: set[Pair]) -> list[list[str]]:
    """Sets of features that go together; each begins with a pair that is left, and takes what adds most pairs."""
    left, rows = set(pairs), []
    while left:
        row: list[str] = sorted(min(left, key=sorted))
        while others := [
            name
            for name in FEATURES
            if name not in row and all(go_together(name, one) for one in row)
        ]:
            new = {name: sum(Pair((name, one)) in left for one in row) for name in others}
            best = max(others, key=lambda name: new[name])
            if not new[best]:
                break
            row.append(best)
        left -= pairs_of(row)
        rows.append(row)
    return rows


ROWS = rows_that_cover(COMPATIBLE)


def test_every_pair_stands_in_a_row_or_says_why_not() -> None:
    assert all(go_together(*pair) for row in ROWS for pair in combinations(row, 2))
    assert set.union(*map(pairs_of, ROWS)) == COMPATIBLE
    alternatives = {pair for pair in pairs_of(FEATURES) - COMPATIBLE if pair not in MESSAGES}
    assert all(len({FEATURES[name].value_of for name in pair}) == 1 for pair in alternatives)
    searched = [row for one in IN_TURNS if not one.marks for row in one.values[1]]
    assert all(row in searched for row in ROWS)
    assert len(ROWS) < 20, "in `make test-all` each row is searched by every family"


# ------------------------------------------------------------------------------------------------- what goes together


@dataclass(frozen=True)
class Search:
    """What a row of features makes of a family."""

    config: SearchConfig
    n_best: int
    requests: list[Request]
    """Of each of `LINES`."""
    tokens: TargetTokens
    slots: int

    @classmethod
    def of(cls, row: Iterable[str], model: Seq2Seq) -> "Search":
        """By a model, or an ensemble."""
        features = [FEATURES[name] for name in row]
        settings: dict[str, object] = {"max_length": 4}
        for feature in features:
            settings |= feature.settings
        settings["samples" if "samples" in settings else "beam_size"] = settings.get("beam_size", 4)
        config = for_model(settings, model)
        copies, requests = model.config.copies, []
        for number, source in enumerate(LINES):
            of_line: dict[str, object] = {}
            for feature in features:
                of_line |= feature.requests[number] if feature.requests else {}
            own = {
                key: readable(ids, source, copies) if isinstance(ids, list) else ids
                for key, ids in of_line.items()
            }
            requests.append(Request(**own, starts=STARTS if copies else STARTS[:-1]))
        n_best = 1 if "best only" in row else config.n_hypotheses
        slots = min(feature.slots for feature in features)
        return cls(config, n_best, requests, TargetTokens(partial(flags, STARTS)), slots)

    def batch(self, copies: bool) -> Batch:
        """The lines with what is asked of them."""
        batch, terms = batch_of(shared("transformer"), LINES), None
        longest = max(len(one.prefix) for one in self.requests)
        if any(one.required or one.refused for one in self.requests):
            terms = Constraints(
                positive=of_all([list(one.required) for one in self.requests]),
                in_order=torch.tensor([one.in_order for one in self.requests]),
                negative=of_all([list(one.refused) for one in self.requests]),
                copied_starts=(batch.inputs.copy.extended[..., None] == torch.tensor(STARTS)).any(2)
                if copies
                else None,
            )
        prefix = padded([list(one.prefix) for one in self.requests], longest) if longest else None
        return replace(batch, prefix=prefix, terms=terms)

    def source(self, copies: bool) -> BatchInSlots:
        """The lines, one decoding batch after the other, and for free slots."""
        return source_of(self.batch(copies), self.slots)


def readable(ids: list[object], source: list[int], copies: bool) -> list[object]:
    """Words that only a source has are UNK to a model that does not copy, and to a source that lacks them."""

    def one(token: object) -> object:
        if isinstance(token, list):
            return readable(token, source, copies)
        return UNK if token >= VOCABULARY and not (copies and token in source) else token

    return [one(token) for token in ids]


def padded(rows: Sequence[Sequence[int]], width: int) -> Tensor:
    return torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows])


def of_all(terms: Sequence[Sequence[Sequence[int]]]) -> Tensor:
    """`(B,U,L)`."""
    count = max(1, *map(len, terms))
    length = max([1, *(len(term) for of_one in terms for term in of_one)])
    return torch.stack(
        [padded([*of_one, *[[]] * (count - len(of_one))], length) for of_one in terms]
    ).long()


def flags(tokens: Iterable[int]) -> Tensor:
    """Which words of the vocabulary are among these."""
    return torch.tensor([token in tokens for token in range(VOCABULARY)])


def listed(model: Seq2Seq, search: Search, number: int) -> Tensor:
    """The words of the shortlist for a line, and those that are asked for."""
    request = search.requests[number]
    ids = [[*request.prefix, *(token for term in request.required for token in term)]]
    (candidates,) = SHORTLIST.candidates(
        batch_of(model, [LINES[number]]), model.config.copies, torch.tensor(ids).long()
    )
    return candidates


IN_TURNS = in_turns(ROWS, 3, ONE_OF_EACH_THAT_COPIES)


@torch.no_grad()
@pytest.mark.parametrize(("model", "rows"), IN_TURNS, indirect=["model"])
def test_the_engine_finds_what_the_reference_finds_with_many_features(
    model: Seq2Seq, rows: list[list[str]]
) -> None:
    """Every row is searched by one or two models, and in `make test-all` by all."""
    other = shared("transformer-gelu-without-end")
    ensembles = {
        "ensemble": Ensemble([model, other], "probabilities", [3.0, 1.0]),
        "ensemble by logs": Ensemble([model, other], "log-probabilities"),
    }
    for row in rows:
        whole = next((ensembles[name] for name in row if name in ensembles), model)
        search, copies = Search.of(row, whole), whole.config.copies
        shortlist = SHORTLIST if "shortlist" in row else None
        engine = Engine(
            BeamSearch(
                whole, search.config, search.n_best, shortlist=shortlist, tokens=search.tokens
            )
        )
        hypotheses = dict(engine.run(search.source(copies)))
        for number in range(len(LINES)):
            own = [sentences(one)[number] for one in members_of(whole)]
            if shortlist is not None:
                own = [one.among(listed(whole, search, number)) for one in own]
            sentence: Sentence | EnsembleSentence = (
                together(whole, own) if isinstance(whole, Ensemble) else own[0]
            )
            agree(
                hypotheses[number],
                sentence,
                search.config,
                number,
                search.requests[number],
                search.n_best,
            )


# -------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("pair", MESSAGES, ids=lambda pair: " and ".join(sorted(pair)))
def test_what_does_not_go_together_says_so(pair: Pair) -> None:
    with pytest.raises(RecipeError) as refused:
        search_as_asked(pair)
    assert MESSAGES[pair] in str(refused.value)


def search_as_asked(names: Iterable[str]) -> None:
    """Searches with features as a user who names their settings."""
    model, settings = shared("transformer"), {}
    for name in names:
        settings |= FEATURES[name].settings
    config = change_search(BeamConfig(beam_size=4), settings)
    config.reject_unused(settings)
    search = Search.of([name for name in names if FEATURES[name].requests], model)
    list(Engine(BeamSearch(model, config, tokens=search.tokens)).run(search.source(copies=False)))
