"""Every score learns a task that needs it, in a moment; another score, trained in the same way, does not.

A task shows an attention a query and S vectors, and says how much weight belongs on each. What is learned is the score
itself, and where symbols are shown their embeddings; every example is new.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import pytest
import torch
from daily import daily
from seeds import moved
from torch import Tensor, nn
from torch.nn import functional

from nmtkit.layers.attention import SCORES, Attention, ScoreKind

SENTENCES, SOURCE, SYMBOLS = 64, 8, 12


class Task(nn.Module, ABC):
    """Draws examples; `size` is that of queries and vectors."""

    size = 8

    def __init__(self) -> None:
        super().__init__()
        self.random = torch.Generator().manual_seed(moved(2))

    @abstractmethod
    def draw(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries `(B,Hq)`, vectors `(B,S,Hm)`, and the weights `(B,S)` that are wanted."""

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.random)

    def places(self) -> Tensor:
        return torch.randint(0, SOURCE, (SENTENCES,), generator=self.random)


def one_hot(places: Tensor) -> Tensor:
    return functional.one_hot(places, SOURCE).float()


class Partner(Task):
    """Every symbol has a partner (or two, which share the weight) that it looks for; both have embeddings."""

    size, steps_to_partners = 64, (5,)

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.keys = nn.Embedding(SYMBOLS, self.size), nn.Embedding(SYMBOLS, self.size)

    def draw(self) -> tuple[Tensor, Tensor, Tensor]:
        source = torch.rand(SENTENCES, SYMBOLS, generator=self.random).argsort(1)[:, :SOURCE]
        # The first partner is there for certain, the second one not always.
        asked = (source[:, 0] - self.steps_to_partners[0]) % SYMBOLS
        wanted = sum((source == (asked[:, None] + steps) % SYMBOLS).float() for steps in self.steps_to_partners)
        assert isinstance(wanted, Tensor)
        shuffled = torch.randperm(SOURCE, generator=self.random)
        weights = (wanted / wanted.sum(1, keepdim=True))[:, shuffled]
        return self.queries(asked), self.keys(source[:, shuffled]), weights


class TwoPartners(Partner):
    """In 256 dimensions a product without a scale is all or nothing."""

    size, steps_to_partners = 256, (5, 9)


class Map(Task):
    """The query is one of the vectors, all of length 1, seen through a linear map that is the same in all examples."""

    def __init__(self) -> None:
        super().__init__()
        self.map = self.normal(self.size, self.size)

    def draw(self) -> tuple[Tensor, Tensor, Tensor]:
        vectors, places = functional.normalize(self.normal(SENTENCES, SOURCE, self.size), dim=-1), self.places()
        return vectors[torch.arange(SENTENCES), places] @ self.map, vectors, one_hot(places)


class Nearest(Task):
    """The number nearest to a number. A product grows with its factors: it finds the largest, not the nearest."""

    def draw(self) -> tuple[Tensor, Tensor, Tensor]:
        numbers = 4 * torch.rand(SENTENCES, SOURCE + 1, generator=self.random) - 2
        shown = torch.zeros(SENTENCES, SOURCE + 1, self.size)
        shown[..., 0], shown[..., 1] = numbers, 1.0
        return shown[:, 0], shown[:, 1:], one_hot((numbers[:, 1:] - numbers[:, :1]).abs().argmin(1))


class Place(Task):
    """The query names a place; what stands there is noise."""

    def draw(self) -> tuple[Tensor, Tensor, Tensor]:
        places = self.places()
        return one_hot(places), self.normal(SENTENCES, SOURCE, self.size), one_hot(places)


class Direction(Task):
    """The vector that points where the query points, among vectors of most unequal lengths."""

    def draw(self) -> tuple[Tensor, Tensor, Tensor]:
        directions, places = functional.normalize(self.normal(SENTENCES, SOURCE, self.size), dim=-1), self.places()
        lengths = torch.exp(2 * self.normal(SENTENCES, SOURCE, 1))
        return directions[torch.arange(SENTENCES), places], directions * lengths, one_hot(places)


TASKS: dict[ScoreKind, tuple[type[Task], ScoreKind]] = {
    "dot": (Partner, "location"),
    "scaled_dot": (TwoPartners, "dot"),
    "general": (Map, "dot"),
    "additive": (Nearest, "general"),
    "location": (Place, "additive"),
    "cosine": (Direction, "general"),
}


def solved(name: ScoreKind, kind: type[Task]) -> float:
    """The part of new examples whose largest weight wanted is found, after training; where weights are shared, the part
    of which no weight is off by 0.1."""
    torch.manual_seed(moved(1))
    task = kind()
    attention = Attention(SCORES.get(name)(task.size, task.size, 32, SOURCE))
    mask = torch.ones(SENTENCES, SOURCE, dtype=torch.bool)

    def weigh() -> tuple[Tensor, Tensor]:
        queries, vectors, wanted = task.draw()
        _, weights = attention(queries.unsqueeze(1), attention.project(vectors), vectors, mask)
        return weights.squeeze(1), wanted

    parameters = [*attention.parameters(), *task.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.03) if parameters else None
    for _ in range(120 if optimizer else 0):
        assert optimizer is not None
        weights, wanted = weigh()
        loss = -(wanted * (weights + 1e-9).log()).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        rounds = [weigh() for _ in range(4)]
    weights, wanted = (torch.cat(parts) for parts in zip(*rounds, strict=True))
    if kind is TwoPartners:
        return float(((weights - wanted).abs().amax(1) < 0.1).float().mean())
    return float((weights.argmax(1) == wanted.argmax(1)).float().mean())


def test_every_score_has_a_task() -> None:
    assert set(TASKS) == set(SCORES.names())
    assert len(TASKS) == 6


@pytest.mark.parametrize("name", daily(TASKS, 3))
def test_learns_the_task_that_needs_it(name: ScoreKind, record_property: Callable[[str, object], None]) -> None:
    task, other = TASKS[name]
    ours, others = solved(name, task), solved(other, task)
    record_property("solved, more than 0.85", ours)
    record_property("solved by another score, less than 0.7", others)
    assert ours > 0.85
    assert others < 0.7
