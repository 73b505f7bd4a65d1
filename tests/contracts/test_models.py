"""The contract of a model (see nmtkit/models/base.py), asked of every registered model in all its variants."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtkit.data.batches.batch import Batch, Inputs, Targets, collate
from nmtkit.data.tokenizers.vocabulary import EOS, UNK
from nmtkit.decoding.beam_search import BeamSearch
from nmtkit.decoding.engine import Engine
from nmtkit.decoding.search_batch import search_batch
from nmtkit.decoding.settings import BeamConfig, SearchConfig, change_search
from nmtkit.decoding.tracing import TracedContinuation, trace_search
from nmtkit.layers import kv_cache
from nmtkit.layers.attention import Attention
from nmtkit.models.abilities import auxiliary_logits, auxiliary_objective, pretraining_objectives
from nmtkit.models.base import MODELS, Decoder, Memory, Model, ModelConfig, as_decoder, as_seq2seq
from nmtkit.training.checkpoints.weights import SkipInit, assign_weights, get_weights
from nmtkit.zoo.captioning.show_and_tell import Captioner
from nmtkit.zoo.next_sentence import PairClasses
from nmtkit.zoo.xlnet import Order
from tests.contracts.variants import (
    EVERY,
    ONE_OF_EACH,
    VARIANTS,
    VOCABULARY,
    as_regions,
    asked,
    build,
    enlarged,
    few,
    in_turns,
)
from tests.support import reference_search
from tests.support.cases import daily
from tests.support.hypotheses import agree, for_model, same
from tests.support.prompted_decoders import prompts
from tests.support.seeds import moved
from tests.support.step_by_step import Walk, source_of, told

LEARNERS: dict[str, dict[str, object]] = {
    "rnnsearch": {"embedding_size": 48, "hidden_size": 48, "attention_size": 48, "maxout_size": 48},
    "rnn_encdec": {"embedding_size": 64, "hidden_size": 64, "maxout_size": 64},
    "luong": {"embedding_size": 48, "hidden_size": 48},
    "gnmt": {"embedding_size": 48, "hidden_size": 48, "layers": 3},
    "lstmn_seq2seq": {"embedding_size": 48, "hidden_size": 64},
    "pointer_generator": {"embedding_size": 48, "hidden_size": 48},
    "intra_attention": {"embedding_size": 48, "hidden_size": 64},
    "show_and_tell": {"embedding_size": 64, "hidden_size": 64},
    "show_attend_tell": {"embedding_size": 48, "hidden_size": 48, "attention_size": 48},
    "convs2s": {"embedding_size": 48, "hidden_size": 48, "encoder_layers": 2, "decoder_layers": 2},
    "transformer": {
        "hidden_size": 48,
        "feed_forward_size": 96,
        "heads": 4,
        "encoder_layers": 1,
        "decoder_layers": 1,
    },
    "t5": {
        "hidden_size": 48,
        "feed_forward_size": 96,
        "heads": 4,
        "head_size": 12,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "tie": "none",
    },
    "transformer_lm": {"hidden_size": 48, "feed_forward_size": 96, "heads": 4, "layers": 2},
    "rnn_lm": {"hidden_size": 64, "layers": 1},
    "pointer_sentinel": {"hidden_size": 64, "layers": 1},
    "lstmn": {"hidden_size": 128, "layers": 1},
    "snail": {"embedding_size": 48, "filters": 24, "reach": 8, "attention_size": 48},
    "ntm": {"embedding_size": 48, "hidden_size": 64, "memory_slots": 12, "memory_width": 24},
}
"""One size of each model that learns a small task in seconds."""

COPIERS: dict[str, tuple[str, dict[str, object]]] = {
    "pointer_generator": ("pointer_generator", {}),
    "intra_attention": ("intra_attention", {}),
    "luong-shared": ("luong", {"copying": "shared"}),
    "luong-own": ("luong", {"copying": "own"}),
    "transformer-head": ("transformer", {"copying": "head", "alignment_heads": 1}),
    "transformer-learned": ("transformer", {"copying": "learned"}),
    "t5": ("t5", {"copying": "learned"}),
}
"""The learners that can copy, and what they are told besides."""

SMALL_ENOUGH = 1e-10
"""Two ways to one number in float64 may differ by no more than this."""

# Ids from VOCABULARY on are unknown words, numbered within their sentence; models that cannot copy read and write UNK.
SOURCES = [[5, 13, 7, 14, 13, 9], [4], [12, 11, 13], [13, 5, 14, 6, 7, 15, 8], [13]]
TARGETS = [[9, 14, 7], [4, 10, 11, 12, 6, 5], [13, 6], [], [13, 13]]


@pytest.mark.parametrize("name", asked(Model))
def test_a_model_to_be_filled_draws_nothing_and_lacks_nothing(name: str) -> None:
    drawn = build(*EVERY[name])
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with SkipInit():
        filled = type(drawn)(drawn.config, drawn.sizes)
    assert torch.equal(torch.get_rng_state(), before)
    assert not all(map(torch.equal, drawn.parameters(), filled.parameters()))
    assign_weights(filled, get_weights(drawn), Path())
    for one, other in (
        (drawn.named_parameters, filled.named_parameters),
        (drawn.named_buffers, filled.named_buffers),
    ):
        assert dict(one()).keys() == dict(other()).keys()
        assert all(torch.equal(value, dict(other())[name]) for name, value in one())


def known(rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """Sentences as a vocabulary has them."""
    return [[UNK if word >= VOCABULARY else word for word in row] for row in rows]


def batch_of(
    model: Model, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]] | None = None
) -> Batch:
    """A batch of sentences without EOS, as a model takes them.

    A decoder that reads no text goes on with the sources; given targets stand alone. A model that writes nothing reads
    the sources and says something at every other place of them; or one thing of each, and their sentences have two
    words.
    """
    n_oov = max([0, *(word - VOCABULARY + 1 for row in sources for word in row)])
    tgt = None if targets is None else known(targets)
    if "features" in model.sizes:
        return collate(None, tgt, features=[as_regions(row) for row in known(sources)])
    if as_seq2seq(model) is not None:
        return collate(known(sources), tgt, sources, targets, n_oov)
    if as_decoder(model) is not None:
        return prompts(*known(sources)) if tgt is None else Batch(targets=Targets.of_texts(tgt))
    if model.output_column == "labels":
        texts = [
            [
                one
                for n, word in enumerate(row)
                for one in ([EOS, word] if n and n % 2 == 0 else [word])
            ]
            for row in known(sources)
        ]
        return Batch(Inputs.of_texts(texts), labels=torch.tensor([row[0] for row in texts]))
    inputs = Inputs.of_texts(known(sources))
    places = torch.arange(inputs.mask.shape[1]).repeat(len(sources), 1)
    every_other = inputs.mask & (places % 2 == 0)
    labels = inputs.ids.masked_fill(~every_other, -1)
    if "both_directions" in pretraining_objectives(type(model)):
        labels = torch.stack([labels, labels], 1)
    batch = Batch(inputs, labels=labels).with_extra(PairClasses(torch.arange(len(sources)) % 2))
    # they come last, from left to right
    return batch.with_extra(Order((places + 1) * every_other, places))


def with_more_padding(batch: Batch, columns: int) -> Batch:
    """The batch with more columns of padding than it needs; features have rows in their place."""

    def wider(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            return pad(tensor, (0, 0, 0, columns))
        return pad(tensor, (0, columns)) if tensor.dim() >= 2 else tensor

    return batch.mapped(wider)


def columns(model: Decoder, batch: Batch) -> int:
    """X of a model that copies, V of another."""
    return VOCABULARY + (batch.n_oov if model.config.copies else 0)


def log_probs_of_targets(
    model: Model, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor]:
    """Those of each target and its EOS `(B,T)`, 0 behind it, and which they are; a copied word has its extended id.

    A decoder that reads no text has the source before the target.
    """
    prompted = as_seq2seq(model) is None
    given = [
        [*source, *target] if prompted else target
        for source, target in zip(sources, targets, strict=True)
    ]
    batch = batch_of(model, sources, given)
    log_probs = (
        model(batch).gather(2, batch.loss_targets(model.config.copies)[:, :, None]).squeeze(2)
    )
    places = torch.arange(max(map(len, targets)) + 1)
    counts = torch.tensor([len(target) + 1 for target in targets])[:, None]
    begins = torch.tensor([len(source) if prompted else 0 for source in sources])[:, None]
    own = log_probs.gather(1, (begins + places).clamp(max=log_probs.shape[1] - 1))
    return own.masked_fill(places >= counts, 0.0), places < counts


@cache
def shared(name: str) -> Any:
    return enlarged(name)


@cache
@torch.no_grad()
def sentences(model: Decoder) -> list[reference_search.Sentence]:
    """`SOURCES`, and what a model says of their prefixes; searches of several tests share it."""
    of_text = as_seq2seq(model) is not None
    return [
        reference_search.Sentence(
            model,
            lambda rows, own=source: batch_of(model, [own] * len(rows), rows),
            () if of_text else known([source])[0],
        )
        for source in SOURCES
    ]


@pytest.fixture(params=asked(Decoder))
def model(request: pytest.FixtureRequest) -> Iterator[Decoder]:
    """Every decoder, enlarged; tests share it, and who would change it takes a copy."""
    yield from unchanged(shared(request.param))


@pytest.fixture(params=asked(Model))
def any_model(request: pytest.FixtureRequest) -> Iterator[Model]:
    """Every model, as the fixture before."""
    yield from unchanged(shared(request.param))


def unchanged(model: Model) -> Iterator[Model]:
    """A model, which must be the same afterwards."""
    before = [(value.data_ptr(), value._version) for value in model.state_dict().values()]
    yield model
    assert before == [(value.data_ptr(), value._version) for value in model.state_dict().values()]
    model.zero_grad()


def close(one: Tensor, other: Tensor) -> None:
    """Compares quickly; where it fails, torch says where."""
    if one.shape != other.shape or not torch.allclose(one, other, rtol=0, atol=SMALL_ENOUGH):
        torch.testing.assert_close(one, other, rtol=0, atol=SMALL_ENOUGH)


def walked(model: Decoder, memory: Memory, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities `(N,T,X)` and attention `(N,T,S)` of a walk over tokens `(N,T)`, one step at a time."""
    walk = Walk(model, memory, len(tokens) // len(memory.mask))
    log_probs, attention = [], []
    for word in tokens.unbind(1):
        step, readout = walk.step(word)
        log_probs.append(step)
        attention.append(readout.attention)
    looks = [look for look in attention if look is not None]
    assert len(looks) == (len(log_probs) if model.has_attention else 0)
    return torch.stack(log_probs, 1), torch.stack(looks, 1) if looks else None


def test_every_registered_model_is_in_the_table() -> None:
    assert {kind for kind, _ in VARIANTS.values()} == set(MODELS.names())
    assert {kind for kind in MODELS.names() if issubclass(MODELS.get(kind), Decoder)} == set(
        LEARNERS
    )
    copying = {VARIANTS[name][0] for name in VARIANTS if shared(name).config.copies}
    assert copying == {kind for kind, _ in COPIERS.values()}
    for name in MODELS.names():
        assert issubclass(MODELS.get(name).Config, ModelConfig)
        assert MODELS.get(name).Config.model_fields["kind"].default == name


@torch.no_grad()
def test_whole_pass_equals_the_walk(model: Decoder) -> None:
    batch = batch_of(model, SOURCES, TARGETS)
    whole = told(model, batch)
    memory = model.encode(batch)
    log_probs, attention = walked(model, memory, batch.targets.shifted)
    assert log_probs.dtype == torch.float64
    assert whole.log_probs.shape == (*batch.targets.shifted.shape, columns(model, batch))
    close(whole.log_probs, log_probs)
    assert whole.copy_gate is not None or not model.config.copies
    if model.has_attention:
        close(whole.attention, attention)
    else:
        assert whole.attention is None


@torch.no_grad()
def test_kept_positions_are_those_of_the_whole_pass(any_model: Model) -> None:
    batch = batch_of(any_model, SOURCES, TARGETS)
    close(any_model(batch, keep=batch.loss_mask), any_model(batch)[batch.loss_mask])


@torch.no_grad()
def test_padding_changes_nothing(any_model: Model) -> None:
    model, tight = any_model, batch_of(any_model, SOURCES, TARGETS)
    loose = with_more_padding(tight, 3)
    ids, wider = (
        [one for one in batch.tensors() if not one.is_floating_point()] for batch in (tight, loose)
    )
    assert {one.shape[-1] + 3 for one in ids if one.dim() >= 2} == {
        one.shape[-1] for one in wider if one.dim() >= 2
    }
    one, other, mask = told(model, tight), told(model, loose), tight.loss_mask
    kept = pad(mask, (0, 3)) if mask.dim() > 1 else mask
    close(one.log_probs[mask], other.log_probs[kept])
    if model.has_attention:
        close(one.attention[mask], other.attention[kept][:, : tight.inputs.mask.shape[1]])
    if one.centres is not None:
        close(one.centres[mask], other.centres[kept])
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        single = batch_of(model, [source], [target])
        alone = model(single)[single.loss_mask]
        together = one.log_probs[row][mask[row]]
        close(together[:, : columns(model, single)], alone)
        # unknown words of other sentences
        assert bool((together[:, columns(model, single) :] == -math.inf).all())


@torch.no_grad()
def test_hypotheses_of_a_sentence_equal_sentences_of_their_own(model: Decoder) -> None:
    beam = 3
    batch = batch_of(model, SOURCES)
    rows = torch.arange(len(SOURCES)).repeat_interleave(beam)
    tokens = torch.randint(4, columns(model, batch), (len(rows), 4))
    folded, spread = (
        model.encode(batch),
        model.encode(batch_of(model, [SOURCES[row] for row in rows])),
    )
    one, other = walked(model, folded, tokens), walked(model, spread, tokens)
    close(one[0], other[0])
    if model.has_attention:
        close(one[1], other[1])


@torch.no_grad()
def test_permuted_rows_give_permuted_outputs(model: Decoder) -> None:
    beam = 3
    batch = batch_of(model, SOURCES)
    walk = Walk(model, model.encode(batch), beam)
    tokens = torch.randint(4, columns(model, batch), (len(SOURCES) * beam,))
    for _ in range(2):  # so that the rows of a sentence differ
        walk.step(tokens)
        tokens = tokens.flip(0)
    straight = walk.kept()
    expected, then = straight.step(tokens)[0], straight.step(tokens)[0]
    rows = torch.arange(len(tokens)).view(-1, beam)

    parents = torch.stack([torch.randperm(beam) for _ in SOURCES])
    within = rows.gather(1, parents).flatten()
    permuted = walk.kept()
    close(permuted.step(tokens[within], parents)[0], expected[within])
    close(permuted.step(tokens[within])[0], then[within])

    sentences = torch.tensor([2, 0, 3, 4, 1])
    across = rows[sentences].flatten()
    permuted = walk.kept(sentences)
    close(permuted.step(tokens[across])[0], expected[across])
    close(permuted.step(tokens[across])[0], then[across])


@torch.no_grad()
def test_distributions_sum_to_one(any_model: Model) -> None:
    model, batch = any_model, batch_of(any_model, SOURCES, TARGETS)
    output = told(model, batch)
    close(output.log_probs.logsumexp(-1), torch.zeros_like(output.log_probs[..., 0]))
    if model.has_attention:
        weights = output.attention
        if output.centres is not None:
            distances = (
                torch.arange(batch.inputs.mask.shape[1]) - output.centres[:, :, None]
            )  # (B,T,S)
            assert bool((weights[distances.abs() > model.window_half_width] == 0).all())
            # its Gaussian comes after the softmax
            if model.config.model_dump()["window"] == "local_p":
                weights = weights * torch.exp(
                    distances.square() / (2 * (model.window_half_width / 2) ** 2)
                )
        close(weights.sum(-1), torch.ones_like(weights[..., 0]))
        assert bool((output.attention >= 0).all())
        real = batch.inputs.mask if weights.dim() == 2 else batch.inputs.mask[:, None]
        hidden = ~real.expand_as(output.attention)
        assert bool((output.attention[hidden] == 0).all())


def test_every_parameter_gets_a_gradient(any_model: Model) -> None:
    batch = batch_of(any_model, SOURCES, TARGETS)
    wanted = batch.loss_targets(any_model.config.copies)[batch.loss_mask]
    for module in any_model.modules():
        module.training = isinstance(module, Attention)  # a hard one draws places
    output, memory = any_model.read(batch)
    any_model.eval()
    loss = (
        -any_model.predict(output.gather(batch.loss_mask), memory).gather(1, wanted[:, None]).sum()
    )
    loss = loss if output.path is None else loss - output.path[batch.loss_mask].sum()
    if auxiliary_objective(any_model.config):
        loss = loss + auxiliary_logits(any_model, batch, output).square().sum()
    loss.backward()
    untouched = [
        name
        for name, parameter in any_model.named_parameters()
        # of experts: only a model in training mode draws noise
        if not name.endswith(".noise.weight")
        and parameter.requires_grad
        and (parameter.grad is None or float(parameter.grad.abs().max()) < SMALL_ENOUGH)
    ]
    assert untouched == []


def test_ties_share_what_they_say(model: Decoder) -> None:
    tie, tgt = getattr(model.config, "tie", "none"), model.tgt_embedding.weight
    src = (
        model.embedding("src").weight
        if as_seq2seq(model) is not None and "features" not in model.sizes
        else None
    )
    assert (src is tgt) == (tie in ("embeddings", "all"))
    if model.output is not None:  # one that is made of the embedding has none of its own
        assert (model.output.weight is tgt) == (tie in ("decoder", "all"))
        assert model.output.weight is tgt or model.output.weight is not src


@torch.no_grad()
@pytest.mark.parametrize("name", asked(Model))
def test_bfloat16_autocast_stays_near(name: str) -> None:
    """Products keep two or three digits; the log-probabilities are in float32 all the same, and still sum to one."""
    model = build(*EVERY[name]).eval()
    batch = batch_of(model, SOURCES, TARGETS)
    exact = model(batch)
    with torch.autocast("cpu", torch.bfloat16):
        near = model(batch)
    assert near.dtype == torch.float32
    torch.testing.assert_close(near.logsumexp(-1), torch.zeros(near.shape[:-1]), rtol=0, atol=1e-5)
    torch.testing.assert_close(near, exact, rtol=0, atol=0.1)


@pytest.mark.parametrize(("model", "beams"), in_turns([1, 3], only_first=True), indirect=["model"])
def test_together_and_in_slots_that_are_free_equals_alone(
    model: Decoder, beams: list[int], request: pytest.FixtureRequest
) -> None:
    """One of each kind is searched to the limit that its sources set where nobody sets one; few by `make test`."""
    name, is_slow = (
        request.node.callspec.params["model"],
        bool(request.node.get_closest_marker("slow")),
    )
    is_long = (
        name in (ONE_OF_EACH if is_slow else ("transformer", "t5", "rnnsearch"))
        and as_seq2seq(model) is not None
    )
    short = {} if is_long else {"max_length": 12, "max_length_ratio": 1.0, "max_length_offset": 6}
    for beam_size in beams:
        alone_and_together(model, change_search(BeamConfig(), {"beam_size": beam_size, **short}))


def alone_and_together(model: Decoder, config: SearchConfig) -> None:
    how = {"n_best": config.n_hypotheses, "need_attention": model.has_attention}
    alone = [search_batch(model, batch_of(model, [source]), config, **how)[0] for source in SOURCES]
    same(search_batch(model, batch_of(model, SOURCES), config, **how), alone)
    in_slots = dict(
        Engine(BeamSearch(model, config, **how)).run(
            source_of(batch_of(model, SOURCES), 2, order=[4, 2, 0, 1, 3])
        )
    )
    same([in_slots[number] for number in range(len(SOURCES))], alone)


RULES: list[dict[str, object]] = [
    {"beam_size": 1},
    {"beam_size": 4},
    {
        "beam_size": 3,
        "no_repeat_ngram": 2,
        "min_length": 3,
        "forbid_unknown": True,
        "length_penalty": "gnmt",
    },
    {"beam_size": 2, "stop": "exact", "length_penalty": "none", "coverage_penalty": 0.2},
    {"beam_size": 3, "coverage_penalty": 2.0, "coverage_kind": "summary", "stop": "exact"},
    {"beam_size": 4, "diversity_groups": 4, "stop": "exact", "coverage_kind": "summary"},
    {
        "beam_size": 3,
        "stop": "huggingface",
        "at_limit": "end",
        "no_repeat_ngram": 2,
        "repetition_penalty": 1.2,
    },
    {"beam_size": 4, "at_limit": "compete"},
    {"beam_size": 3, "at_limit": "compete", "length_penalty": "gnmt", "min_length": 1},
]
DRAWS: list[dict[str, object]] = [
    {"samples": 4, "top_k": 5, "top_p": 0.8, "length_penalty": "none", "min_length": 2},
    {
        "samples": 10,
        "epsilon": 0.05,
        "repetition_penalty": 1.5,
        "no_repeat_ngram": 2,
        "coverage_penalty": 0.2,
    },
]


@torch.no_grad()
@pytest.mark.parametrize(("model", "rules"), in_turns([*RULES, *DRAWS]), indirect=["model"])
def test_the_engine_finds_what_the_reference_finds(
    model: Decoder, rules: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference reads every prefix as a given target, one sentence and one step at a time."""
    monkeypatch.setattr(kv_cache, "COMPACT_EVERY", 1)
    monkeypatch.setattr(kv_cache, "COMPACT_BELOW", 1.0)  # whatever nobody sees is forgotten at once
    for settings in rules:
        config = for_model({**settings, "max_length": 6}, model)
        results = search_batch(model, batch_of(model, SOURCES[:3]), config, config.n_hypotheses)
        for line, (sentence, hypotheses) in enumerate(
            zip(sentences(model)[:3], results, strict=True)
        ):
            agree(hypotheses, sentence, config, line)


@torch.no_grad()
@pytest.mark.parametrize("beam", daily([4, 1]))
def test_a_prompt_is_read_as_its_steps_are_walked(model: Decoder, beam: int) -> None:
    """Prompts of several lengths, and three words behind each by every hypothesis, are as in a given target."""
    batch, lengths = batch_of(model, SOURCES, TARGETS), torch.tensor([len(row) for row in TARGETS])
    memory, prompts = model.encode(batch), batch.targets.shifted[:, :-1]
    cache = kv_cache.KVCache(batch.size, 1, prompts.device)
    output, state = model.prefill(prompts, model.start(memory), memory, cache, lengths)
    read = model.predict(output, memory)
    given = model.predict(model.unroll(batch, memory), memory)
    for row, length in enumerate(lengths.tolist()):
        close(read[row, :length], given[row, :length])
    cache.end_prompts(lengths, beam)
    words = torch.tensor([[4, 5, 6, 7], [8, 9, 4, 5]])[:, :beam]
    last = batch.targets.shifted.gather(1, lengths[:, None])[:, 0]
    for tokens, children in [(last, beam), *((row.repeat(batch.size), 1) for row in words)]:
        output, state = model.advance(tokens, state, memory, cache)
        found = model.predict(output, memory)
        parents = torch.arange(len(tokens)).repeat_interleave(children)
        cache.next_step(parents, beam)
        state = state.select(parents)
    for row, target in enumerate(TARGETS):
        whole = batch_of(
            model, [SOURCES[row]] * beam, [[*target, *behind] for behind in words.T.tolist()]
        )
        alone = model(whole)[:, -1]
        close(found[row * beam : (row + 1) * beam, : alone.shape[1]], alone)


@torch.no_grad()
@pytest.mark.parametrize("model", ["transformer", "intra-attention"], indirect=True)
def test_slots_that_nobody_sees_are_forgotten(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the ancestors of K hypotheses are seen, and the search is as if all were kept."""
    config = change_search(BeamConfig(), {"beam_size": 4, "max_length": 40, "min_length": 39})
    read: list[int] = []
    whole = kv_cache.KVCache.read

    def noted(self: kv_cache.KVCache, layer: int) -> Tensor:
        entries = whole(self, layer)
        read.append(entries.shape[1] - self.length * self.beam)
        return entries

    monkeypatch.setattr(kv_cache.KVCache, "read", noted)
    monkeypatch.setattr(kv_cache, "COMPACT_BELOW", 1.0)
    forgetful = search_batch(model, batch_of(model, SOURCES), config, 4)
    assert read[0] == 0
    assert min(read) < 0
    monkeypatch.setattr(kv_cache, "COMPACT_BELOW", 0.0)
    read.clear()
    same(forgetful, search_batch(model, batch_of(model, SOURCES), config, 4))
    assert set(read) == {0}


@pytest.mark.parametrize("model", few(Decoder), indirect=True)
@torch.no_grad()
def test_a_traced_search_is_the_search(model: Decoder) -> None:
    """Every log-probability that it tells of, of blocked words too, is that of a whole pass over the prefix."""
    config = change_search(BeamConfig(), {**RULES[2], "max_length": 6})
    batch = batch_of(model, SOURCES[:1])
    trace = trace_search(BeamSearch(model, config, config.n_hypotheses), batch)
    (hypotheses,) = search_batch(model, batch, config, config.n_hypotheses)
    assert trace.hypotheses == hypotheses
    grouped = trace_search(
        BeamSearch(model, config.changed({"beam_size": 4, "diversity_groups": 2}), 4), batch
    )
    assert {one.group for step in grouped.steps for one in step if not one.forbidden_by} == {0, 1}
    slots: list[list[int]] = [[]]
    traced: list[tuple[list[int], TracedContinuation]] = []
    for step in trace.steps:
        here = [([*slots[one.parent], one.token], one) for one in step]
        kept = [(one.beam_index, path) for path, one in here if one.beam_index is not None]
        slots, traced = [path for _, path in sorted(kept)], traced + here
    given, _ = log_probs_of_targets(model, SOURCES[:1] * len(traced), [path for path, _ in traced])
    for (path, one), row in zip(traced, given, strict=True):
        assert one.token_log_prob == pytest.approx(float(row[len(path) - 1]), abs=1e-9)
        assert one.log_prob == pytest.approx(float(row[: len(path)].sum()), abs=1e-9)
    ended = sorted((one.ranking_score for _, one in traced if one.ended), reverse=True)
    assert ended[: len(hypotheses)] == [one.score for one in hypotheses if one.finished]
    assert any(one.forbidden_by for _, one in traced)
    prompt = sentences(model)[0].prompt
    for path, one in (([*prompt, *path], one) for path, one in traced):
        if one.forbidden_by == "no_repeat_ngram":
            assert path[-2:] in [path[at : at + 2] for at in range(len(path) - 2)]
        elif one.forbidden_by:
            assert one.token == {"min_length": EOS, "forbid_unknown": UNK}[one.forbidden_by]


@pytest.mark.parametrize("model", few(Decoder), indirect=True)
@torch.no_grad()
def test_scoring_a_translation_gives_the_score_of_the_search(model: Decoder) -> None:
    """The searches above are compared with given targets for every model."""
    config = BeamConfig(
        beam_size=3, length_penalty="none", max_length=10, max_length_ratio=1.0, max_length_offset=3
    )
    results = search_batch(model, batch_of(model, SOURCES), config, n_best=2)
    pairs = [
        (source, best) for source, several in zip(SOURCES, results, strict=True) for best in several
    ]
    assert len(pairs) == 2 * len(SOURCES)
    given, _ = log_probs_of_targets(
        model, [source for source, _ in pairs], [best.ids for _, best in pairs]
    )
    for (_, best), row in zip(pairs, given, strict=True):
        scored = row[: len(best.ids) + int(best.finished)]
        assert math.isclose(float(scored.sum()), best.score, abs_tol=1e-5)
        torch.testing.assert_close(
            torch.tensor(best.token_log_probs).double(), scored, rtol=0, atol=1e-5
        )


ENOUGH = 0.05
"""A model that makes mistakes in no more than this share of unseen sentences has learned its task."""


def learn(
    model: Decoder, sentence: Callable[[], list[int]], answer: Callable[[list[int]], list[int]]
) -> int | None:
    """Trains on sentences drawn anew until the task is learned, as sentences never seen in training show.

    Gives the updates that it took, and None if 600 were too few; over many seeds and pretended machines none needed
    more than 350.
    """
    updates, warmup, peak = 600, 50, 5e-3

    def ends(sources: list[list[int]]) -> list[list[int]]:
        """What stands before the answer needs an end to be told from it."""
        return sources if as_seq2seq(model) is not None else [[*source, UNK] for source in sources]

    optimizer = torch.optim.Adam(model.parameters(), lr=peak, betas=(0.9, 0.98))
    unseen = [long for long in (sentence() for _ in range(400)) if len(long) >= 3]
    assert len(unseen) > 150
    kept_from_training = set(map(tuple, unseen))
    # longer is wrong
    config = BeamConfig(beam_size=1, max_length=max(len(answer(source)) for source in unseen) + 2)

    def mistakes() -> int:
        model.eval()
        with torch.no_grad():
            results = search_batch(model, batch_of(model, ends(unseen)), config)
        return sum(
            best.ids != answer(source) for source, (best,) in zip(unseen, results, strict=True)
        )

    assert mistakes() == len(unseen)
    for update in range(1, updates + 1):
        model.train()
        sources = [
            source
            for source in (sentence() for _ in range(64))
            if tuple(source) not in kept_from_training
        ]
        log_probs, mask = log_probs_of_targets(
            model, ends(sources), [answer(source) for source in sources]
        )
        loss = -log_probs.sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = (
            peak * min(1.0, update / warmup) * (1.0 - update / (updates + 1))
        )
        optimizer.step()
        if update % 25 == 0 and mistakes() <= ENOUGH * len(unseen):
            return update
    return None


@pytest.mark.parametrize("kind", daily(LEARNERS))
def test_learns_to_reverse(kind: str, record_property: Callable[[str, object], None]) -> None:
    """Sentences of one to four words, said backwards; every sentence asked for was never seen in training.

    The regions of a picture have no order: they are sorted.
    """
    model = build(kind, {**LEARNERS[kind], "dropout": 0.0}, seed=moved(3))
    random = torch.Generator().manual_seed(moved(4))

    def sentence() -> list[int]:
        length = int(torch.randint(1, 5, (), generator=random))
        return torch.randint(4, VOCABULARY, (length,), generator=random).tolist()

    updates = learn(
        model, sentence, sorted if isinstance(model, Captioner) else lambda source: source[::-1]
    )
    record_property("updates until learned, at most 600", updates)
    assert updates is not None


@pytest.mark.parametrize("name", daily(COPIERS))
def test_learns_to_copy_unknown_words(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    """Sentences of one to four words, half of them unknown, said again: an unknown word can only be pointed at."""
    kind, settings = COPIERS[name]
    model = build(kind, {**LEARNERS[kind], **settings, "dropout": 0.0}, seed=moved(3))
    assert model.config.copies
    random = torch.Generator().manual_seed(moved(5))

    def sentence() -> list[int]:
        length = int(torch.randint(1, 5, (), generator=random))
        words = torch.randint(4, VOCABULARY, (length,), generator=random).tolist()
        unknown = torch.rand(length, generator=random).lt(0.5).tolist()
        numbers = iter(range(VOCABULARY, VOCABULARY + length))
        return [next(numbers) if new else word for word, new in zip(words, unknown, strict=True)]

    updates = learn(model, sentence, lambda source: source)
    record_property("updates until learned, at most 600", updates)
    assert updates is not None
