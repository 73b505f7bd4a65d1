"""Made-up attention for the tests of pictures: of summaries, and of the heads of a small Transformer."""

import numpy as np

from nmtkit.plots import AttentionPicture, HeadsPicture

ARTICLE = ["Ravensmoor", "beat", "Westbrook", "4-2", "after", "Tavares", "scored", "twice.", "</s>"]
SUMMARY = ["Tavares", "leads", "Ravensmoor", "home.", "</s>"]
P_GEN = [0.05, 0.9, 0.02, 0.75, 1.0]
WEIGHTS = [
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.8, 0.2, 0.0, 0.0],
    [0.0, 0.5, 0.0, 0.1, 0.0, 0.0, 0.4, 0.0, 0.0],
    [0.6, 0.1, 0.3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    [0.2, 0.3, 0.3, 0.0, 0.1, 0.0, 0.0, 0.1, 0.0],
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.4, 0.6],
]
COVERAGE = [0.8, 0.9, 0.6, 0.1, 0.1, 0.8, 0.6, 0.5, 0.6]


def summary(**changes: object) -> AttentionPicture:
    """Five words about nine, two of them copied."""
    facts: dict[str, object] = {
        "p_gen": np.array(P_GEN),
        "copied": frozenset({0, 2}),
        "title": "news",
        "score": -1.5,
    }
    return AttentionPicture(
        ARTICLE, SUMMARY, np.array(WEIGHTS), **{**facts, "article": True, **changes}
    )  # type: ignore[arg-type]  # tests change one at a time


def long_summary(length: int, words: int, seed: int = 0) -> AttentionPicture:
    """An article of so many words, of which each word of the summary looks at few."""
    draw = np.random.default_rng(seed)
    return AttentionPicture(
        [f"word{i}" for i in range(length)],
        [f"out{i}" for i in range(words)],
        draw.dirichlet(np.full(length, 0.02), size=words),
        p_gen=draw.random(words),
        copied=frozenset(range(0, words, 3)),
        article=True,
    )


# Three encoder layers of two heads, two decoder layers of four.
SRC = ["▁The", "▁cat", "s", "▁sat", "</s>"]
TGT = ["▁Die", "▁Katz", "en", "</s>"]


def softmax(energies: np.ndarray) -> np.ndarray:
    shares = np.exp(energies - energies.max(-1, keepdims=True, initial=-1e9))
    return shares / shares.sum(-1, keepdims=True)


def head_pictures(
    src: list[str] = SRC, tgt: list[str] = TGT, title: str = "made up", seed: int = 0
) -> HeadsPicture:
    draw = np.random.default_rng(seed)
    columns, rows = len(src), len(tgt)
    causal = np.where(np.tril(np.ones((rows, rows), dtype=bool)), 0.0, -np.inf)
    return HeadsPicture(
        src,
        tgt,
        encoder=softmax(draw.normal(0, 2, (3, 2, columns, columns))),
        decoder=softmax(draw.normal(0, 2, (2, 4, rows, rows)) + causal),
        cross=softmax(draw.normal(0, 2, (2, 4, rows, columns))),
        title=title,
        score=-1.25,
    )
