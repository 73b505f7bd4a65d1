"""A small Transformer's attention, made up: three encoder layers of two heads, two decoder layers of four."""

import numpy as np

from nmtkit.pictures import HeadsPicture

SRC = ["▁The", "▁cat", "s", "▁sat", "</s>"]
TGT = ["▁Die", "▁Katz", "en", "</s>"]


def softmax(energies: np.ndarray) -> np.ndarray:
    shares = np.exp(energies - energies.max(-1, keepdims=True, initial=-1e9))
    return shares / shares.sum(-1, keepdims=True)


def head_pictures(src: list[str] = SRC, tgt: list[str] = TGT, title: str = "made up", seed: int = 0) -> HeadsPicture:
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
