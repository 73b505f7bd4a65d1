"""How fast models are trained, beside bare torch (the Transformer), and as a share of what the device can multiply."""

from collections.abc import Callable
from dataclasses import replace
from statistics import median

import torch
from torch.utils.flop_counter import FlopCounterMode

from nmtkit.models.base import ModelConfig
from nmtkit.training.objectives.likelihood import Likelihood
from nmtkit.training.objectives.objective import GradientAccumulator
from nmtkit.training.optimizers import OptimizerConfig, build_optimizer
from tests.bench import summarization
from tests.bench import training as bench

from . import work
from .ceilings import ceiling
from .results import Given, given, middle

ENOUGH = 0.85
"""Share of bare torch's speed that nmtkit must reach."""


def operations(update: Callable[[], object]) -> int:
    """Floating point operations of all matrix products; recurrent layers must go without cuDNN to be seen."""
    without_mkldnn = torch.backends.mkldnn.flags(enabled=False)
    with torch.backends.cudnn.flags(enabled=False), without_mkldnn, FlopCounterMode(display=False) as counter:
        update()
    return int(counter.get_total_flops())


def per_token(config: ModelConfig, how: bench.Arithmetic, of: bench.Work) -> float:
    """Operations for a target token, in the first batch."""
    model, batch = bench.build(config, of.store.tgt_size).to(of.device).train(), next(of.stream())
    tokens, objectives = batch.n_tokens, [Likelihood(smoothing=bench.SMOOTHING)]

    def update() -> None:
        with torch.autocast(of.device.type, torch.bfloat16, enabled=how.autocast == "bf16"):
            GradientAccumulator(model, objectives, {"tokens": tokens}, of.device, 1 << 30).backward(batch)

    return operations(update) / tokens


def figures(
    told: Given, row: bench.Speed | summarization.Speed, name: str, each: float, kind: str, holds: bool | None = None
) -> None:
    """A row of the results; `each` is the operations of a token, `kind` the products that it is held against."""
    speeds = row.tokens_per_second if isinstance(row, bench.Speed) else row.per_second
    achieved = median(speeds) * each / 1e12
    share = achieved * 1e12 / median(ceiling(told.place, kind, told.quick))
    words = f"{middle(speeds, 'tok/s')}, {achieved:.1f} TFLOP/s = {share:.0%} of products in {kind}"
    words += f", {row.peak_mib:,.0f} MiB"
    ratios = row.ratios if isinstance(row, bench.Speed) else []
    if ratios:
        words += f", {middle(ratios, 'of the floor', 2)}"
    values = {"tokens_per_second": speeds, "tflops": achieved, "share": share, "ratios": ratios}
    told.results.add(name, holds, words, **values, peak_mib=row.peak_mib)


def main(told: Given) -> None:
    of, config = work.to_train(told), work.transformer(told)
    each = per_token(config, bench.BF16, of)
    for row in bench.transformer(of, config, [bench.BF16]):
        # Other dropout is other work: only the same can be held to the floor.
        same = row.engine.endswith("as the floor") and not told.quick
        holds = median(row.ratios) >= ENOUGH if same else None
        figures(told, row, f"transformer, {row.engine}, {row.arithmetic}", each, "bf16", holds)

    luong, smaller = work.luong(told), replace(of, batch_tokens=min(of.batch_tokens, 6528))
    each = per_token(luong, bench.BF16, smaller)
    trained = bench.Trained("nmtkit", luong, bench.BF16, smaller, told.scratch / "luong")
    for row in bench.in_turns("luong", bench.BF16, None, [trained], smaller):
        figures(told, row, f"luong, {row.arithmetic}", each, "bf16")

    articles = summarization.articles(1 if told.quick else summarization.TRAINED_TOGETHER, summarization.SOURCE, 1)
    batch = summarization.batch_of(articles, [article[: summarization.TARGET] for article in articles])
    model = summarization.build().to(told.place).train()
    optimizer = build_optimizer(OptimizerConfig(optimizer="adagrad", lr=0.15), dict(model.named_parameters()))
    each = operations(lambda: summarization.update(model, optimizer, batch, told.place)) / batch.n_tokens
    rounds = (1, 1) if told.quick else (of.updates, of.blocks)
    for article in summarization.training(*rounds, torch.get_num_threads(), told.place):
        kind = "fp32" if article.how == "fp32" else "tf32"
        figures(told, article, f"pointer-generator, {article.how}", each, kind)


if __name__ == "__main__":
    main(given("training", __doc__))
