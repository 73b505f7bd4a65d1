"""Guided alignment in the training loop, and that it teaches what it should."""

import multiprocessing
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from seeds import moved
from tiny_training import TinyStream, run, same_weights, settings, steps, tiny_model

from nmtkit.checkpoints.manager import CheckpointManager
from nmtkit.data.batch import Batch, collate
from nmtkit.models.base import Seq2Seq, VocabularySizes
from nmtkit.models.rnnsearch import RnnSearch, RnnSearchConfig
from nmtkit.models.transformer import Transformer, TransformerConfig
from nmtkit.training import distributed
from nmtkit.training.config import TrainingConfig
from nmtkit.training.events import Event
from nmtkit.training.loop import train
from nmtkit.training.objectives.attention import GuidedAlignmentConfig, alignment_loss

WORDS = 16
SIZES = VocabularySizes(WORDS, WORDS, shared=True)


class Reversing:
    """Batches of sentences and the same backwards; each target word is linked to the source word that it repeats."""

    epoch = 0

    def __init__(self, rows: int = 16, links: bool = True, seed: int = 0) -> None:
        self.rows, self.links, self.seed, self.drawn = rows, links, seed, 0

    def __next__(self) -> Batch:
        draw = np.random.default_rng((moved(self.seed), self.drawn))
        self.drawn += 1
        # No word occurs twice, so that there is one right link.
        src = [draw.permutation(np.arange(4, WORDS))[: draw.integers(3, 9)].tolist() for _ in range(self.rows)]
        links = [[at for i in range(len(row)) for at in (len(row) - 1 - i, i)] for row in src]
        return collate(src, [row[::-1] for row in src], alignment=links if self.links else None)

    def state(self) -> dict[str, int]:
        return {"epoch": 0, "examples": self.drawn}

    def restore(self, state: Mapping[str, int]) -> None:
        self.drawn = state["examples"]


def transformer(**given: Any) -> Transformer:
    torch.manual_seed(moved(1))
    small = {"hidden_size": 32, "feed_forward_size": 64, "encoder_layers": 1, "decoder_layers": 2, "dropout": 0.0}
    return Transformer(TransformerConfig.model_validate(small | given), SIZES)


def fit(folder: Path, model: Seq2Seq, stream: Reversing, resume: bool = False, **given: Any) -> list[Event]:
    basics: dict[str, Any] = {"lr": 0.003, "best_metric": "score", "log_every": 10}
    config = TrainingConfig.model_validate(basics | given)
    return list(
        train(model, stream, config, lambda _: {"score": 1.0}, CheckpointManager(folder), torch.device("cpu"), resume)
    )


@torch.no_grad()
def error_rate(attention: torch.Tensor, batch: Batch) -> float:
    """AER of the best source token of every linked target token: 1 - the share of right links."""
    assert batch.alignment is not None
    linked = batch.alignment.any(-1)
    right = batch.alignment.gather(-1, attention.argmax(-1, keepdim=True))[..., 0]
    return 1 - float(right[linked].float().mean())


TAUGHT: dict[str, Any] = {"max_updates": 90, "lr": 0.01}


@pytest.fixture(scope="module")
def untaught(tmp_path_factory: pytest.TempPathFactory) -> float:
    """The error rate of a head that nobody teaches; by chance it is 0.8."""
    test = next(Reversing(rows=64, seed=9))
    model = transformer(alignment_layer=1, alignment_heads=3)
    fit(tmp_path_factory.mktemp("untaught"), model, Reversing(rows=32), **TAUGHT)
    model.eval()
    return error_rate(model(test, need_attention=True).attention, test)


@pytest.mark.parametrize("loss", ["cross_entropy", pytest.param("squared_error", marks=pytest.mark.slow)])
def test_the_chosen_head_learns_the_links(
    tmp_path: Path, untaught: float, record_property: Callable[[str, object], None], loss: str
) -> None:
    test = next(Reversing(rows=64, seed=9))
    model = transformer(alignment_layer=1, alignment_heads=3)
    fit(tmp_path, model, Reversing(rows=32), guided_alignment={"weight": 12.0, "loss": loss}, **TAUGHT)
    model.eval()
    taught = error_rate(model(test, need_attention=True).attention, test)
    record_property("error rate, less than 0.4", taught)
    record_property("its share of that of an untaught head, less than 0.7", taught / untaught)
    assert taught < 0.4
    assert taught < 0.7 * untaught


def test_only_the_chosen_head_is_taught() -> None:
    """Head 3 of 4 in the first layer: of the matrices that make its weights, the rows of no other have a gradient."""
    batch = next(Reversing())
    assert batch.alignment is not None
    model = transformer(alignment_layer=1, alignment_heads=3)
    torch.autograd.backward(alignment_loss(model(batch, need_attention=True).attention, batch.alignment))
    cross = model.decoder[0].cross_attention
    for gradient in (cross.query.weight.grad, cross.keys_values.weight.grad[:32]):  # of the keys, then the values
        by_head = gradient.view(4, -1)
        assert by_head[2].abs().max() > 0
        assert by_head[[0, 1, 3]].abs().max() == 0
    assert all(parameter.grad is None for parameter in model.decoder[1].parameters())


def test_a_recurrent_model_is_taught_as_well(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    torch.manual_seed(moved(1))
    small = {"embedding_size": 16, "hidden_size": 24, "attention_size": 16, "maxout_size": 16, "dropout": 0.0}
    model = RnnSearch(RnnSearchConfig.model_validate(small), SIZES)
    events = fit(tmp_path, model, Reversing(), max_updates=60, lr=0.03, guided_alignment={"weight": 12.0})
    model.eval()
    test = next(Reversing(rows=64, seed=9))
    error = error_rate(model(test, need_attention=True).attention, test)
    first, *_, last = (step.terms["alignment_loss"] for step in steps(events))
    assert first is not None
    assert last is not None
    record_property("error rate, less than 0.4", error)
    record_property("share of the loss that is left, less than 0.5", last / first)
    assert error < 0.4
    assert last < first / 2


@pytest.mark.slow
def test_all_heads_of_a_layer_teach_one_of_them(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """The taught head goes where the layer's mean looks, whatever that is; without a teacher it does not."""
    test = next(Reversing(rows=64, seed=9, links=False))
    apart = []
    for name, guided in (("free", None), ("guided", {"source": "model", "weight": 4.0})):
        model = transformer(alignment_layer=1, alignment_heads=2)
        fit(tmp_path / name, model, Reversing(links=False), max_updates=60, guided_alignment=guided)
        model.eval()
        with torch.no_grad():
            readout, heads = model.unroll_with_heads(test, model.encode(test))
        assert readout.attention is not None
        assert test.tgt_mask is not None
        same = readout.attention.argmax(-1) == heads.mean(1).argmax(-1)
        apart.append(1 - float(same[test.tgt_mask].float().mean()))
    record_property("looks elsewhere, less than 0.2", apart[1])
    record_property("its share of that of an untaught head, less than 0.7", apart[1] / apart[0])
    assert apart[1] < 0.2
    assert apart[1] < 0.7 * apart[0]


def test_what_is_reported(tmp_path: Path) -> None:
    model, stream = transformer(alignment_heads=1), Reversing()
    events = fit(tmp_path, model, stream, max_updates=1, label_smoothing=0.1, guided_alignment={"weight": 0.4})
    (step,) = steps(events)
    again, batch = transformer(alignment_heads=1), next(Reversing())
    output = again(batch, need_attention=True)
    assert batch.alignment is not None
    assert batch.tgt_mask is not None
    assert batch.tgt_out is not None
    expected = -output.attention[batch.alignment].log().mean()
    assert step.terms["alignment_loss"] == pytest.approx(expected.item(), rel=1e-5)
    log_probs = output.log_probs[batch.tgt_mask]
    nll = -log_probs.gather(-1, batch.tgt_out[batch.tgt_mask][:, None]).mean()
    smoothed = 0.9 * nll - 0.1 * log_probs.mean()
    total = (smoothed + 0.4 * expected).item()
    assert step.terms["nll"] == pytest.approx(nll.item(), rel=1e-5)
    assert step.loss == pytest.approx(total, rel=1e-5)


def test_without_a_guide_nothing_is_reported_and_links_change_nothing(tmp_path: Path) -> None:
    models = []
    for name, links in (("with", True), ("without", False)):
        model = transformer()
        events = fit(tmp_path / name, model, Reversing(links=links), max_updates=5)
        assert all("alignment_loss" not in step.terms for step in steps(events))
        models.append(model)
    assert same_weights(*models)
    _, events = run(tmp_path / "tiny", settings(), tiny_model(), TinyStream())
    assert all("alignment_loss" not in step.terms for step in steps(events))


def test_how_an_update_is_cut_does_not_change_it(tmp_path: Path) -> None:
    """The alignment's loss is a mean over the linked tokens of all micro-batches, not a mean of means."""

    class Halves(Reversing):
        """The same sentences in batches of a third and two thirds, of which one has fewer links a token."""

        def __next__(self) -> Batch:
            part, self.part = getattr(self, "part", 0), 1 - getattr(self, "part", 0)
            if part == 0:
                self.whole = super().__next__()
            index = torch.arange(5) if part == 0 else torch.arange(5, 16)
            return self.whole.select(index)

    models = []
    guided = {"weight": 0.5}
    for name, stream, accumulate in (("whole", Reversing(), 1), ("parts", Halves(), 2)):
        model = transformer().double()
        fit(
            tmp_path / name,
            model,
            stream,
            max_updates=3,
            accumulate=accumulate,
            guided_alignment=guided,
            optimizer="sgd",
        )
        models.append(model)
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


class Shared(Reversing):
    """Every second batch of one sequence: the share of one of two processes."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.drawn = rank

    def __next__(self) -> Batch:
        batch = super().__next__()
        self.drawn += 1
        return batch


GIVEN: dict[str, Any] = {"max_updates": 3, "optimizer": "sgd", "guided_alignment": {"weight": 0.5}, "log_every": 3}


def one_of_two(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    distributed.join(torch.device("cpu"))
    events = fit(Path(folder), transformer().double(), Shared(rank), **GIVEN)
    Path(folder, f"{rank}.txt").write_text(str(steps(events)[0].terms["alignment_loss"]))
    distributed.leave()


@pytest.mark.slow
def test_two_processes_teach_as_one_with_twice_the_batches(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    two = tmp_path / "two"
    two.mkdir()
    processes = [context.Process(target=one_of_two, args=(rank, port, str(two)), daemon=True) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    model = transformer().double()
    events = fit(tmp_path / "one", model, Reversing(), accumulate=2, **GIVEN)
    saved = CheckpointManager(two).load_last()[0]
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(saved[f"weights/{name}"], parameter.detach(), rtol=1e-10, atol=1e-13)
    for rank in range(2):
        told = float((two / f"{rank}.txt").read_text())
        assert told == pytest.approx(steps(events)[0].terms["alignment_loss"], rel=1e-10)


def test_a_resumed_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    guided = {"weight": 0.5, "source": "model"}
    given: dict[str, Any] = {"guided_alignment": guided, "log_every": 2}
    straight = transformer(alignment_heads=2, dropout=0.1)
    whole = fit(tmp_path / "straight", straight, Reversing(), max_updates=6, **given)
    broken = transformer(alignment_heads=2, dropout=0.1)
    fit(tmp_path / "broken", broken, Reversing(), max_updates=4, **given)
    resumed = transformer(alignment_heads=2, dropout=0.1)
    rest = fit(tmp_path / "broken", resumed, Reversing(), resume=True, max_updates=6, **given)
    assert same_weights(straight, resumed)
    assert steps(whole)[-1].terms["alignment_loss"] == steps(rest)[-1].terms["alignment_loss"]


def test_bfloat16_is_close(tmp_path: Path) -> None:
    losses = []
    for precision in ("fp32", "bf16"):
        model = transformer(alignment_heads=2)
        events = fit(tmp_path / precision, model, Reversing(), max_updates=1, precision=precision, guided_alignment={})
        (step,) = steps(events)
        losses.append(step.terms["alignment_loss"])
    assert losses[0] == pytest.approx(losses[1], abs=0.05)


@pytest.mark.parametrize("settings", [{"weight": 0.0}, {"source": "web"}, {"loss": "hinge"}])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        GuidedAlignmentConfig.model_validate(settings)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_teaches_the_same(tmp_path: Path) -> None:
    losses = []
    for place in ("cpu", "cuda"):
        config = TrainingConfig(
            lr=0.003, max_updates=3, log_every=3, best_metric="score", guided_alignment=GuidedAlignmentConfig()
        )
        model, checkpoints = transformer(alignment_heads=2), CheckpointManager(tmp_path / place)
        events = train(model, Reversing(), config, lambda _: {"score": 1.0}, checkpoints, torch.device(place))
        losses.append(steps(list(events))[0].terms["alignment_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
