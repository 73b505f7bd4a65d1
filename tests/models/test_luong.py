import math
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import pytest
import torch
from daily import daily
from seeds import moved
from torch import Tensor
from walk import Walk

from nmtkit.core.errors import DataError, RecipeError
from nmtkit.core.settings import parse
from nmtkit.data.batch import Batch
from nmtkit.data.vocabulary import BOS, EOS
from nmtkit.layers.attention import SCORES, WindowKind
from nmtkit.models.base import VocabularySizes
from nmtkit.models.luong import Luong, LuongConfig
from nmtkit.search.engine import beam_search
from nmtkit.search.rules import SearchConfig

SIZES = VocabularySizes(9, 9, shared=True)
SMALL = {"embedding_size": 3, "hidden_size": 4, "attention_size": 5, "window_size": 2, "max_positions": 16}


def build(settings: dict[str, object]) -> Luong:
    torch.manual_seed(1)
    return Luong(LuongConfig.model_validate({**SMALL, **settings}), SIZES).double().eval()


def batch_of(sources: list[list[int]], targets: list[list[int]] | None = None) -> Batch:
    """Sentences of one length, so that nothing is padded."""
    src = torch.tensor([[*source, EOS] for source in sources])
    lengths = torch.full((len(sources),), src.shape[1])
    batch = Batch(src, torch.ones_like(src, dtype=torch.bool), lengths, src)
    if targets is None:
        return batch
    out = torch.tensor([[*target, EOS] for target in targets])
    return replace(
        batch,
        tgt_in=torch.tensor([[BOS, *target] for target in targets]),
        tgt_out=out,
        tgt_extended=out,
        tgt_mask=torch.ones_like(out, dtype=torch.bool),
    )


@torch.no_grad()
@pytest.mark.parametrize("input_feeding", [True, False])
@pytest.mark.parametrize("window", get_args(WindowKind))
def test_the_step_is_that_of_the_paper(window: WindowKind, input_feeding: bool) -> None:
    """Update with the word (and what was fed), look with the new state: eqs. 5 to 10, in numbers of their own."""
    model = build({"cell": "gru", "window": window, "input_feeding": input_feeding})
    source = [4, 5, 6, 7, 8, 4]
    memory = model.encode(batch_of([source]))
    walk = Walk(model, memory)
    encoded, final = model.encoder.forward_layers[0](model.src_embedding(torch.tensor([[*source, EOS]])))
    length = len(source) + 1
    hidden, fed = final, torch.zeros(4, dtype=torch.float64)
    torch.testing.assert_close(walk.state.hidden[:, 0], hidden[0])
    for step, token in enumerate((BOS, 5, 8)):
        log_probs, readout = walk.step(torch.tensor([token]))
        word = model.tgt_embedding.weight[token]
        _, hidden = model.decoder((torch.cat([word, fed]) if input_feeding else word)[None, None], hidden)
        top = hidden[0, 0]
        energies = [float(top @ model.attention.score.key.weight @ value) for value in encoded[0]]
        centre = float(step)
        if window == "local_p":
            place = model.attention.window.centre @ torch.tanh(model.attention.window.hidden.weight @ top)
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
            torch.testing.assert_close(readout.centres, torch.tensor([centre], dtype=readout.centres.dtype))
        assert (walk.state.fed is None) != input_feeding


@torch.no_grad()
def test_a_reversed_source_is_shown_in_its_own_order() -> None:
    """Padding stays where it is: the encoder reads EOS, then the words from the last; weights, states do not."""
    model = build({"reverse_source": True, "window": "local_m", "window_size": 1, "input_feeding": False})
    src = torch.tensor([[4, 5, 6, EOS, 0], [7, 8, 4, 5, EOS]])
    mask = src != 0
    memory = model.encode(Batch(src, mask, mask.sum(1), src))
    for row, source in enumerate(([4, 5, 6, EOS], [7, 8, 4, 5, EOS])):
        read, (hidden, cell) = model.encoder.forward_layers[0](model.src_embedding(torch.tensor([source[::-1]])))
        torch.testing.assert_close(memory.values[row, : len(source)], read[0].flip(0))
        torch.testing.assert_close(memory.hidden[row], hidden[0])
        torch.testing.assert_close(memory.cell[row], cell[0])
    assert bool((memory.values[0, 4] == 0).all())
    target = torch.tensor([[BOS, 4, 4, 4, 4, 4, 4]] * 2)
    readout = model.unroll(replace(Batch(src, mask, mask.sum(1), src), tgt_in=target), memory, need_attention=True)
    assert readout.centres.tolist() == [[0, 1, 2, 3, 3, 3, 3], [0, 1, 2, 3, 4, 4, 4]]
    assert readout.attention[0, 0].count_nonzero() == 2
    assert bool((readout.attention[0, 0, :2] > 0).all())


@torch.no_grad()
def test_without_input_feeding_the_decoder_is_called_once() -> None:
    calls = []
    for input_feeding in (True, False):
        model = build({"input_feeding": input_feeding})
        seen: list[int] = []
        model.decoder.register_forward_hook(lambda module, inputs, output, seen=seen: seen.append(inputs[0].shape[1]))
        model(batch_of([[4, 5], [6, 7]], [[4, 5, 6], [7, 8, 4]]))
        calls.append(seen)
    assert calls == [[1, 1, 1, 1], [4]]


@torch.no_grad()
def test_attention_is_given_only_where_asked_for() -> None:
    model = build({"window": "local_p"})
    batch = batch_of([[4, 5]], [[4]])
    silent, full = model(batch), model(batch, need_attention=True)
    assert silent.attention is None
    assert silent.centres is None
    assert full.attention.shape == (1, 2, 3)
    assert full.centres.shape == (1, 2)
    assert model.window_half_width == 2
    assert build({}).window_half_width is None
    kept = model.unroll(batch, model.encode(batch), need_attention=True).gather(torch.tensor([[False, True]]))
    assert torch.equal(kept.centres, full.centres[:, 1])


def test_dropout_acts_in_training_only() -> None:
    model = build({"dropout": 0.5})
    batch = batch_of([[4, 5]], [[4]])
    assert torch.equal(model(batch).log_probs, model(batch).log_probs)
    model.train()
    assert not torch.equal(model(batch).log_probs, model(batch).log_probs)


def test_the_initialisation_of_the_paper() -> None:
    model = build({"initialisation": "paper", "hidden_size": 64, "window": "local_p"})
    for name, parameter in model.named_parameters():
        assert float(parameter.detach().abs().max()) <= 0.1, name
    assert model.decoder.weight_hh_l0.std().item() == pytest.approx(0.2 / math.sqrt(12), rel=0.05)


@pytest.mark.parametrize("tie", ["none", "all"])
def test_output_words_start_apart(tie: str) -> None:
    """Rows of length three, in the one matrix that embeddings and output share as well."""
    model = build({"tie": tie, "hidden_size": 64, "embedding_size": 64})
    lengths = model.output.weight.detach().norm(dim=1)
    assert lengths.mean().item() == pytest.approx(3.0, rel=0.1)
    assert (model.output.weight is model.src_embedding.weight) == (tie == "all")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {"score": "dot", "bidirectional": True, "bridge": "tanh"},
            "decoder states of 4 numbers .* encoder states of 8",
        ),
        (
            {"score": "scaled_dot", "encoder_hidden_size": 3, "bridge": "tanh"},
            "set encoder_hidden_size to 4, or set score to",
        ),
        ({"score": "location", "window": "local_m"}, "nothing reads the source to choose; set window to global"),
        ({"score": "location", "window": "local_p"}, "nothing reads the source to choose; set window to global"),
        ({"reverse_source": True, "bidirectional": True, "bridge": "tanh"}, "reads the source both ways"),
        ({"bidirectional": True}, "bridge: copy"),
        ({"residual": True}, "an encoder of one layer has none to connect"),
        ({"tie": "decoder"}, "hidden_size 4 must equal embedding_size 3"),
        ({"window_size": 0}, "greater than or equal to 1"),
        ({"window": "local"}, "local_m"),
        ({"score": "concat"}, "additive"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(RecipeError, match=reason):
        parse(LuongConfig, {**SMALL, **settings}, "recipe.yaml")


def test_every_other_pair_of_score_and_window_is_admitted() -> None:
    admitted = 0
    for score in SCORES.names():
        for window in get_args(WindowKind):
            if score != "location" or window == "global":
                build({"score": score, "window": window})
                admitted += 1
    assert admitted == 16


def test_halves_of_both_directions_make_a_dot_product_possible() -> None:
    settings = {"score": "dot", "bidirectional": True, "encoder_hidden_size": 2, "layers": 2, "cell": "lstm"}
    model = build(settings)
    assert model.encode(batch_of([[4, 5]])).values.shape == (1, 3, 4)
    assert model(batch_of([[4, 5]], [[4]])).log_probs.shape == (1, 2, 9)


def test_a_location_score_knows_so_many_positions() -> None:
    model = build({"score": "location"})
    model.encode(batch_of([[4] * 15]))
    with pytest.raises(DataError, match="knows only 16 positions"):
        model.encode(batch_of([[4] * 16]))


def test_tying_all_needs_one_vocabulary() -> None:
    with pytest.raises(RecipeError, match=r"set tokenizer\.joint to true"):
        Luong(LuongConfig(tie="all"), VocabularySizes(7, 9, shared=False))


def copies(random: torch.Generator, count: int) -> list[list[int]]:
    return torch.randint(4, SIZES.src, (count, 9), generator=random).tolist()


@pytest.mark.parametrize("window", daily(["local_p", "local_m"]))
def test_a_window_of_five_learns_to_copy_nine_words(
    window: WindowKind, record_property: Callable[[str, object], None]
) -> None:
    """Unseen sentences are copied, and the centre is where the word that is copied stands."""
    updates, peak = 250, 0.01
    torch.manual_seed(moved(3))
    sizes = {"embedding_size": 32, "hidden_size": 32, "window_size": 2, "dropout": 0.0, "bridge": "zero"}
    model = Luong(LuongConfig.model_validate({**sizes, "window": window, "input_feeding": False}), SIZES)
    optimizer = torch.optim.Adam(model.parameters(), lr=peak)
    random = torch.Generator().manual_seed(moved(4))
    for update in range(1, updates + 1):
        sentences = copies(random, 32)
        batch = batch_of(sentences, sentences)
        assert batch.tgt_out is not None
        loss = -model(batch).log_probs.gather(2, batch.tgt_out[..., None]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = peak * (1 - update / (updates + 1))
        optimizer.step()
    model.eval()
    unseen = copies(random, 100)
    with torch.no_grad():
        found = beam_search(model, batch_of(unseen), SearchConfig(beam_size=1))
        output = model(batch_of(unseen, unseen), need_attention=True)
    wrong = sum(best.ids != words for (best,), words in zip(found, unseen, strict=True))
    record_property("of 100 sentences wrong, at most 20", wrong)
    assert wrong <= 20
    centres: Tensor = output.centres[:, :-1]  # the last step writes EOS
    off = (centres - torch.arange(9)).abs()
    record_property("words between centre and word on average, at most 1, for local_m 0", float(off.mean()))
    assert float(off.mean()) <= (0.0 if window == "local_m" else 1.0)
