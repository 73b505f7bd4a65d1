import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import get_args

import pytest
import torch

from nmtkit.data.batches.batch import Targets, collate
from nmtkit.data.tokenizers.vocabulary import BOS, EOS
from nmtkit.decoding.search_batch import search_batch
from nmtkit.decoding.settings import BeamConfig
from nmtkit.layers.attention import WindowKind
from nmtkit.models.base import VocabularySizes
from nmtkit.models.rnn.luong import Luong, LuongConfig
from tests.support import small_models
from tests.support.cases import daily
from tests.support.seeds import moved
from tests.support.small_models import batch_of
from tests.support.step_by_step import Walk, told

build = partial(small_models.build, "luong")


@torch.no_grad()
@pytest.mark.parametrize("input_feeding", [True, False])
@pytest.mark.parametrize("window", get_args(WindowKind))
def test_the_step_is_that_of_the_paper(window: WindowKind, input_feeding: bool) -> None:
    """Update with the word (and what was fed), look with the new state: eqs. 5 to 10, in numbers of their own."""
    model = build(cell="gru", window=window, input_feeding=input_feeding)
    source = [4, 5, 6, 7, 8, 4]
    memory = model.encode(batch_of([source]))
    walk = Walk(model, memory)
    encoded, final = model.encoder.forward_layers[0](
        model.src_embedding(torch.tensor([[*source, EOS]]))
    )
    length = len(source) + 1
    hidden, fed = final, torch.zeros(4, dtype=torch.float64)
    torch.testing.assert_close(walk.state.hidden[:, 0], hidden[0])
    for step, token in enumerate((BOS, 5, 8)):
        log_probs, readout = walk.step(torch.tensor([token]))
        word = model.tgt_embedding.weight[token]
        _, hidden = model.decoder(
            (torch.cat([word, fed]) if input_feeding else word)[None, None], hidden
        )
        top = hidden[0, 0]
        energies = [float(top @ model.attention.score.key.weight @ value) for value in encoded[0]]
        centre = float(step)
        if window == "local_p":
            place = model.attention.window.centre @ torch.tanh(
                model.attention.window.hidden.weight @ top
            )
            centre = length / (1 + math.exp(-float(place)))  # eq. 9
        inside = [s for s in range(length) if window == "global" or abs(s - centre) <= 2]
        total = sum(math.exp(energies[s]) for s in inside)
        weights = torch.zeros(length, dtype=torch.float64)
        for s in inside:
            weights[s] = math.exp(energies[s]) / total  # eq. 7
            if window == "local_p":
                weights[s] *= math.exp(-((s - centre) ** 2) / 2)  # eq. 10, sigma = 1
        context = weights @ encoded[0]
        fed = torch.tanh(model.attentional.weight @ torch.cat([context, top]))  # eq. 5
        expected = (model.output.weight @ fed + model.output.bias).log_softmax(0)  # eq. 6
        torch.testing.assert_close(readout.attention, weights[None])
        torch.testing.assert_close(log_probs[0], expected)
        assert walk.state.position.tolist() == [step + 1]
        if window == "global":
            assert readout.centres is None
        else:
            torch.testing.assert_close(
                readout.centres, torch.tensor([centre], dtype=readout.centres.dtype)
            )
        assert (walk.state.fed is None) != input_feeding


@torch.no_grad()
def test_a_reversed_source_is_shown_in_its_own_order() -> None:
    """Padding stays where it is: the encoder reads EOS, then the words from the last; weights, states do not."""
    model = build(reverse_source=True, window="local_m", window_size=1, input_feeding=False)
    batch = batch_of([[4, 5, 6], [7, 8, 4, 5]])
    memory = model.encode(batch)
    for row, source in enumerate(([4, 5, 6, EOS], [7, 8, 4, 5, EOS])):
        read, (hidden, cell) = model.encoder.forward_layers[0](
            model.src_embedding(torch.tensor([source[::-1]]))
        )
        torch.testing.assert_close(memory.values[row, : len(source)], read[0].flip(0))
        torch.testing.assert_close(memory.hidden[row], hidden[0])
        torch.testing.assert_close(memory.cell[row], cell[0])
    assert bool((memory.values[0, 4] == 0).all())
    target = torch.tensor([[BOS, 4, 4, 4, 4, 4, 4]] * 2)
    readout = model.unroll(
        replace(batch, targets=Targets(target, target, target, target >= 0)),
        memory,
        need_attention=True,
    )
    assert readout.centres.tolist() == [[0, 1, 2, 3, 3, 3, 3], [0, 1, 2, 3, 4, 4, 4]]
    assert readout.attention[0, 0].count_nonzero() == 2
    assert bool((readout.attention[0, 0, :2] > 0).all())


@torch.no_grad()
def test_without_input_feeding_the_decoder_is_called_once() -> None:
    calls = []
    for input_feeding in (True, False):
        model = build(input_feeding=input_feeding)
        lengths: list[int] = []
        model.decoder.register_forward_hook(
            lambda module, inputs, output, lengths=lengths: lengths.append(inputs[0].shape[1])
        )
        model(batch_of([[4, 5], [6, 7]], [[4, 5, 6], [7, 8, 4]]))
        calls.append(lengths)
    assert calls == [[1, 1, 1, 1], [4]]


@torch.no_grad()
def test_centres_are_given_with_the_attention() -> None:
    model, batch = build(window="local_p"), batch_of([[4, 5]], [[4]])
    assert told(model, batch, need_attention=False).centres is None
    centres = told(model, batch).centres
    assert centres.shape == (1, 2)
    assert (model.window_half_width, build().window_half_width) == (2, None)
    kept = model.unroll(batch, model.encode(batch), need_attention=True).gather(
        torch.tensor([[False, True]])
    )
    assert torch.equal(kept.centres, centres[:, 1])


@pytest.mark.parametrize(("copying", "half_width"), [("none", 2), ("shared", 2), ("own", None)])
def test_an_attention_to_copy_by_has_no_window(copying: str, half_width: int | None) -> None:
    """Pictures ask for the centres where there is a half-width."""
    model = build(window="local_m", copying=copying)
    output, _ = model.read(batch_of([[4, 5, 6, 7, 8, 9]], [[4, 5]]), need_attention=True)
    assert (model.window_half_width, output.centres is None) == (half_width, half_width is None)
    assert bool((output.attention[0, 0] > 0).all()) == (copying == "own")


def test_the_initialisation_of_the_paper() -> None:
    model = build(initialisation="paper", hidden_size=64, window="local_p")
    for name, parameter in model.named_parameters():
        assert float(parameter.detach().abs().max()) <= 0.1, name
    assert model.decoder.weight_hh_l0.std().item() == pytest.approx(0.2 / math.sqrt(12), rel=0.05)


@pytest.mark.parametrize("tie", ["none", "all"])
def test_output_words_start_apart(tie: str) -> None:
    """Rows of length three, in the one matrix that embeddings and output share as well."""
    model = build(tie=tie, hidden_size=64, embedding_size=64)
    lengths = model.output.weight.detach().norm(dim=1)
    assert lengths.mean().item() == pytest.approx(3.0, rel=0.1)
    assert (model.output.weight is model.src_embedding.weight) == (tie == "all")


def copies(random: torch.Generator, count: int) -> list[list[int]]:
    return torch.randint(4, 9, (count, 9), generator=random).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("window", daily(["local_p", "local_m"]))
def test_a_window_of_five_learns_to_copy_nine_words(
    window: WindowKind, record_property: Callable[[str, object], None]
) -> None:
    """Unseen sentences are copied, and the centre is where the word that is copied stands."""
    updates, peak = 250, 0.01
    torch.manual_seed(moved(3))
    nine_words = VocabularySizes({"src": 9, "tgt": 9}, shared=True)
    sizes = {
        "embedding_size": 32,
        "hidden_size": 32,
        "window_size": 2,
        "dropout": 0.0,
        "bridge": "zero",
    }
    model = Luong(
        LuongConfig.model_validate({**sizes, "window": window, "input_feeding": False}), nine_words
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=peak)
    random = torch.Generator().manual_seed(moved(4))
    for update in range(1, updates + 1):
        sentences = copies(random, 32)
        batch = collate(sentences, sentences)
        loss = -model(batch).gather(2, batch.targets.ids[..., None]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = peak * (1 - update / (updates + 1))
        optimizer.step()
    model.eval()
    unseen = copies(random, 100)
    with torch.no_grad():
        results = search_batch(model, collate(unseen), BeamConfig(beam_size=1))
        output = told(model, collate(unseen, unseen))
    wrong = sum(best.ids != words for (best,), words in zip(results, unseen, strict=True))
    record_property("of 100 sentences wrong, at most 20", wrong)
    assert wrong <= 20
    centres = output.centres[:, :-1]  # the last step writes EOS
    off = (centres - torch.arange(9)).abs()
    record_property(
        "words between centre and word on average, at most 1, for local_m 0", float(off.mean())
    )
    assert float(off.mean()) <= (0.0 if window == "local_m" else 1.0)
