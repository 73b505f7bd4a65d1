"""Floating-point operations, counted from shapes, against formulas written by hand."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from nmtkit import config
from nmtkit.experiment import costs
from nmtkit.experiment.bench import TrainingSpeed, measure_training
from nmtkit.experiment.costs import _Operations, operations_a_token
from nmtkit.experiment.tuning import TrainingSpeedConfig
from nmtkit.experiment.workloads import synthetic_workload
from nmtkit.training.parallel import processes

CPU = torch.device("cpu")


def test_a_transformer_costs_six_for_each_weight_and_its_attention() -> None:
    """Forward 2 for each weight of a matrix, and 4 S H for each word that attends to S words; backward twice that."""
    sizes = [
        "hidden_size=8",
        "feed_forward_size=16",
        "heads=2",
        "encoder_layers=1",
        "decoder_layers=1",
        "tie=none",
    ]
    settings = [*(f"model.{one}" for one in sizes), "batch.batch_tokens=64", "training.lr=0.1"]
    workload = synthetic_workload(config.load("compare-transformer", settings), (9, 7), CPU)
    matrices = {
        name: one.numel() for name, one in workload.build().named_parameters() if one.dim() == 2
    }
    of_source = sum(
        n
        for name, n in matrices.items()
        if name.startswith("encoder") or "cross_attention.keys" in name
    )
    of_target = sum(n for name, n in matrices.items() if name.startswith(("decoder", "output")))
    of_target -= matrices["decoder.0.cross_attention.keys_values.weight"]
    src, tgt, hidden = 10, 8, 8  # with EOS
    forward = (
        2 * src * of_source + 2 * tgt * of_target + 4 * hidden * (src * src + tgt * tgt + tgt * src)
    )
    assert operations_a_token(workload) == 3 * forward / tgt


def test_a_fused_lstm_counts_as_its_products() -> None:
    layer, inputs = nn.LSTM(3, 5), torch.randn(7, 2, 3, requires_grad=True)
    with _Operations() as operations:
        layer(inputs)[0].sum().backward()
    assert operations.total == 3 * 2 * 7 * 2 * 4 * 5 * (3 + 5)


def test_epochs_are_not_told_of_a_text_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were 0, and of a recipe with max_epochs alone it was said that patience ends it."""
    monkeypatch.setattr(costs, "operations_a_token", lambda workload: 1.0)
    loaded = config.load(
        "compare-transformer", ["training.max_updates=10", "training.max_minutes=null"]
    )
    workload = synthetic_workload(loaded, (9, 7), CPU)
    speed = TrainingSpeed({}, "", TrainingSpeedConfig("fp32", "highest", 1), 1, 64, [2.0])
    assert dict(costs.planned(workload, speed))["updates"] == "10 of 2.00 s each"
    assert (
        dict(costs.planned(replace(workload, updates_an_epoch=4.0), speed))["updates"]
        == "10 of 2.00 s each, 2.5 epochs"
    )
    epochs = replace(
        workload, config=workload.config.changed({"max_updates": None, "max_epochs": 3})
    )
    assert "limited by max_epochs" in dict(costs.planned(epochs, speed))["updates"]


def test_an_update_has_the_tokens_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [
        "hidden_size=8",
        "feed_forward_size=16",
        "heads=2",
        "encoder_layers=1",
        "decoder_layers=1",
    ]
    exact = ["precision=fp32", "matmul_precision=highest", "threads=1"]
    settings = [
        *(f"model.{one}" for one in sizes),
        *(f"training.{one}" for one in exact),
        "batch.batch_tokens=64",
    ]
    workload = synthetic_workload(config.load("compare-transformer", settings), (9, 7), CPU)
    alone = measure_training(workload, "", 1, 1, print).tokens
    monkeypatch.setattr(processes, "size", lambda: 2)
    assert measure_training(workload, "", 1, 1, print).tokens == 2 * alone


def test_an_update_without_its_text_has_no_more_sentences_than_a_batch() -> None:
    workload = synthetic_workload(
        config.load("compare-transformer", ["batch.batch_size=3"]), (9, 7), CPU
    )
    assert workload.first_batches(1)[0].size == 3
