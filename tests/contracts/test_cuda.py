"""Every way through every model on a CUDA device: a pretended one everywhere, a real one where there is one."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nmtkit.core.device import prepare
from nmtkit.data.batches.batch import Batch, Rows
from nmtkit.data.tokenizers.vocabulary import BOS, PAD
from nmtkit.decoding.beam_search import BeamSearch
from nmtkit.decoding.engine import Engine
from nmtkit.decoding.search_batch import search_batch
from nmtkit.decoding.settings import BeamConfig
from nmtkit.layers.transformer import sinusoids
from nmtkit.models.abilities import auxiliary_objective, pretraining_objectives
from nmtkit.models.base import MODELS, Decoder, Model, as_seq2seq
from nmtkit.training import randomness
from tests.contracts.pretended_cuda import CUDA, Fault, PretendedCuda, pretended_cuda
from tests.contracts.test_models import SOURCES, TARGETS, batch_of
from tests.contracts.variants import EVERY, build, by_turns, in_turns
from tests.support.gradients import backward
from tests.support.hypotheses import for_model, same
from tests.support.step_by_step import Walk, source_of, told

LENGTH = 5
"""Of what is searched for; less than the steps after which a search looks at how many sentences are finished."""
AROUND = {"start_search", "_read_flags", "gather", "extended_ids"}
"""The functions of a search that may wait: what sends the limits before its first step, what looks at times at which
sentences are done, and what reads the results."""

BLOCKING = {"no_repeat_ngram": 2, "min_length_ratio": 0.3, "forbid_unknown": True}
SEARCHES: list[dict[str, Any]] = [
    {"beam_size": 1},
    {"beam_size": 3},
    {"beam_size": 3, "stop": "huggingface", "at_limit": "end"},
    {"beam_size": 3, "at_limit": "compete"},
    {"beam_size": 3, **BLOCKING, "coverage_penalty": 0.2, "stop": "exact"},
    {"samples": 3, "top_k": 5, "top_p": 0.9, "epsilon": 0.01},
]


@pytest.fixture
def cuda() -> Iterator[PretendedCuda]:
    with pretended_cuda() as cuda:
        yield cuda


def there(cuda: PretendedCuda, name: str, dtype: torch.dtype = torch.float32) -> Any:
    """A variant on the pretended device, in evaluation mode."""
    model = build(*EVERY[name]).to(dtype).eval()
    cuda.take(model)
    return model


def attends(model: Model) -> bool:
    """Whether there is attention of the words that are written."""
    return model.has_attention and as_seq2seq(model) is not None


def linked(batch: Batch) -> Batch:
    """The batch with a link from every target token to the first of its source, if it has both."""
    if not batch.reads_text or not batch.has_targets:
        return batch
    links = torch.zeros(*batch.targets.mask.shape, batch.inputs.ids.shape[1], dtype=torch.bool)
    links[:, :, 0] = batch.targets.mask
    return replace(batch, alignment=links)


def types_of(rows: Rows) -> dict[str, Any]:
    """The type of every tensor in a state."""

    def of(value: Any) -> Any:
        return (
            [of(one) for one in value]
            if isinstance(value, tuple)
            else getattr(value, "dtype", None)
        )

    return {field.name: of(getattr(rows, field.name)) for field in fields(rows)}


def walk_on(model: Decoder, cuda: PretendedCuda) -> None:
    """Encode, start and three steps of three hypotheses a sentence: nothing waits, no type changes."""
    batch = batch_of(model, SOURCES).to(CUDA)
    cuda.waits.clear()
    with torch.no_grad():
        memory = model.encode(batch)
        walk = Walk(model, memory, 3)
        types = types_of(walk.state)
        tokens = torch.full((3 * batch.size,), BOS, device=CUDA)
        parents = None
        for _ in range(3):
            log_probs, readout = walk.step(tokens, parents)
            assert log_probs.device == readout.features.device == CUDA
            assert types_of(walk.state) == types
            tokens = log_probs.argmax(-1)
            parents = torch.tensor([2, 1, 0], device=CUDA).expand(batch.size, 3)
    assert cuda.waits == []


def on_attention(model: Model, batch: Batch, **weight: float) -> dict[str, Any]:
    """The losses that train the attention of the words that are written; regions have no links."""
    losses: dict[str, Any] = {"coverage_weight": 0.5} if attends(model) else {}
    losses |= {"guided_alignment": weight} if losses and batch.alignment is not None else {}
    return losses | (
        {"hard_attention": {}} if getattr(model.config, "hard_attention", False) else {}
    )


def gradients_on(
    model: Model, batch: Batch, device: torch.device, reinforced: bool = False
) -> dict[str, Tensor]:
    """The gradients of what the model can be trained by, on a batch that is gone through in parts."""
    model.train()
    model.zero_grad()
    part = 4 * 20 * 8  # bytes: several parts
    if reinforced:
        backward(model, batch, 10, part, device, reinforce={"max_length": 3})
    else:
        own: dict[str, Any] = {name: {} for name in pretraining_objectives(type(model))[:1]} or {
            "label_smoothing": 0.1
        }
        head = auxiliary_objective(model.config)
        own |= {head: 1.0} if head else {}
        backward(model, batch, 10, part, device, **own, **on_attention(model, batch))
    model.eval()
    return {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


@pytest.mark.parametrize("name", by_turns(Model, 0, 2))
def test_whole_pass(cuda: PretendedCuda, name: str) -> None:
    model = there(cuda, name)
    given = batch_of(model, SOURCES, TARGETS)
    batch = given.to(CUDA)
    cuda.waits.clear()
    with torch.no_grad():
        for in_bf16 in (False, True):
            with torch.autocast("cuda", torch.bfloat16, enabled=in_bf16):
                whole = told(model, batch)
                kept = model(batch, keep=given.loss_mask)
            assert whole.log_probs.device == kept.device == CUDA
            assert whole.log_probs.dtype == kept.dtype == torch.float32
    assert cuda.waits == []


WAYS = in_turns(
    [(False, False), (True, True), (True, False), (False, True)], only_first=True, contract=Model
)
"""In bfloat16 or not, and with reinforcement, which summaries of a text get, or not."""


@pytest.mark.parametrize(("name", "ways"), WAYS)
def test_training(cuda: PretendedCuda, name: str, ways: list[tuple[bool, bool]]) -> None:
    """Gradients for all parameters, and nothing waits; reinforcement waits once, to read the drawn summaries."""
    model = there(cuda, name)
    batch = linked(batch_of(model, SOURCES[:3], TARGETS[:3]))
    for in_bf16, reinforced in ways:
        reinforced = reinforced and as_seq2seq(model) is not None
        cuda.waits.clear()
        with torch.autocast("cuda", torch.bfloat16, enabled=in_bf16):
            gradients = gradients_on(model, batch, CUDA, reinforced)
        assert {wait.split(":")[0] for wait in cuda.waits} == (
            {"custom_backward"} if reinforced else set()
        )
        if not reinforced:
            assert set(gradients) == {
                name for name, one in model.named_parameters() if one.requires_grad
            }
        for parameter, gradient in gradients.items():
            assert gradient.device == CUDA
            assert gradient.dtype == torch.float32
            assert bool(torch.isfinite(cuda.bring_back(gradient)).all()), parameter


@pytest.mark.parametrize(
    ("name", "dtypes"), in_turns([torch.float32, torch.bfloat16, torch.float16], only_first=True)
)
def test_steps(cuda: PretendedCuda, name: str, dtypes: list[torch.dtype]) -> None:
    for dtype in dtypes:
        walk_on(there(cuda, name, dtype), cuda)


@pytest.mark.parametrize(("name", "searches"), in_turns(SEARCHES, only_first=True))
def test_search(cuda: PretendedCuda, name: str, searches: list[dict[str, Any]]) -> None:
    """Every search waits for nothing before it reads its result, which is that of the CPU."""
    # products of other shapes round alike only if they are exact
    torch.set_float32_matmul_precision("highest")
    model = there(cuda, name)
    given, on_cpu = batch_of(model, SOURCES), build(*EVERY[name]).eval()
    for settings in searches:
        config = for_model({**settings, "max_length": LENGTH}, model)
        n_best = config.n_hypotheses
        batch = given.to(CUDA)
        cuda.waits.clear()
        results = search_batch(model, batch, config, n_best, need_attention=True)
        assert {wait.split(":")[0] for wait in cuda.waits} <= AROUND
        same(results, search_batch(on_cpu, given, config, n_best, need_attention=True), within=1e-5)


@pytest.mark.parametrize("name", ["transformer", "pointer-generator-coverage"])
def test_sentences_that_take_free_slots_are_not_waited_for(cuda: PretendedCuda, name: str) -> None:
    """Sent from a CPU they are on their way while the device still works on the steps before."""
    model, on_cpu = there(cuda, name), build(*EVERY[name]).eval()
    whole = batch_of(on_cpu, SOURCES * 3)
    config = BeamConfig(beam_size=3, max_length_ratio=1.5, max_length_offset=1, **BLOCKING)
    order = list(range(whole.size))
    results = dict(Engine(BeamSearch(model, config), steps="eager").run(source_of(whole, 4, order)))
    waits = Counter(wait.split(":")[0] for wait in cuda.waits)
    assert {*waits} <= {"_read_flags", "read", "gather", "extended_ids"}
    assert waits["_read_flags"] >= 3  # several refills
    same([results[number] for number in order], search_batch(on_cpu, whole, config), within=1e-5)


@pytest.mark.parametrize("given", ["prompt", "prefix"])
def test_what_translations_begin_with_is_read_before_it_is_sent(
    cuda: PretendedCuda, given: str
) -> None:
    model = there(cuda, "transformer")
    begin = torch.tensor([[4, 5, 6], [7, PAD, PAD]])
    batch = replace(batch_of(model, SOURCES[:2]), **{given: begin})
    search_batch(model, batch, BeamConfig(beam_size=2, max_length=LENGTH))
    assert {wait.split(":")[0] for wait in cuda.waits} <= AROUND - {"start_search"}


def test_positions_are_made_before_the_search(cuda: PretendedCuda) -> None:
    """A longer table of sinusoids comes from the CPU; in the middle of a search all steps would wait for it."""
    model = there(cuda, "transformer")
    model.tgt_positions.table = cuda.put(sinusoids(2, 8))
    batch = batch_of(model, SOURCES).to(CUDA)
    cuda.waits.clear()
    search_batch(model, batch, BeamConfig(beam_size=2, max_length=LENGTH, min_length=LENGTH - 2))
    assert [wait for wait in cuda.waits if wait.split(":")[0] not in AROUND] == [
        "reserve: blocking copy to the device"
    ]
    assert len(model.tgt_positions.table) > LENGTH


# --- The contract can fail: each kind of fault, planted into a model that has none. ---


FAULTS: dict[str, tuple[Callable[[Tensor, Tensor], object], str]] = {
    "tensor of the CPU": (
        lambda tokens, features: features + torch.zeros(1, 1),
        "add.Tensor: a tensor of the CPU among those of the device",
    ),
    "array": (lambda tokens, features: tokens.numpy(), "numpy: of a tensor on the device"),
    "item": (lambda tokens, features: tokens.max().item(), "aten._local_scalar_dense.default"),
    "list": (lambda tokens, features: tokens.tolist(), "tolist"),
    "copy to the CPU": (lambda tokens, features: tokens.cpu(), "copy to the CPU"),
    "copy to the device": (
        lambda tokens, features: torch.ones(2).to(tokens.device),
        "blocking copy to the dev",
    ),
    "copy of what is not pinned": (
        lambda tokens, features: torch.ones(2).to(tokens.device, non_blocking=True),
        "blocking copy to the dev",
    ),
    "nonzero": (lambda tokens, features: (tokens >= 0).nonzero(), "aten.nonzero.default"),
    "boolean index": (lambda tokens, features: tokens[tokens >= 0], "aten.index.Tensor"),
}
"""What a step could do to words and features, and what is said of it."""


@pytest.mark.parametrize("fault", [*FAULTS, "drifting type"])
def test_a_planted_fault_is_found(cuda: PretendedCuda, fault: str) -> None:
    drifts = fault == "drifting type"
    model = there(cuda, "pointer-generator-coverage", torch.bfloat16 if drifts else torch.float32)
    right = model.advance

    def advance(_: Decoder, tokens: Tensor, *others: Any) -> Any:
        readout, state = right(tokens, *others)
        if drifts:
            return readout, replace(state, context=state.context.float())
        FAULTS[fault][0](tokens, readout.features)
        return readout, state

    model.advance = MethodType(advance, model)  # type: ignore[method-assign]  # replaced for one test
    with pytest.raises(AssertionError) as failure:
        walk_on(model, cuda)
    assert ("context" if drifts else FAULTS[fault][1]) in str(failure.value)


def test_recurrent_layers_that_cuda_would_not_run(cuda: PretendedCuda) -> None:
    lstm, gru = nn.LSTM(3, 2, batch_first=True), nn.GRU(3, 2, batch_first=True)
    inputs = torch.zeros(4, 5, 3, device=CUDA)
    for layer in (lstm, gru):
        cuda.take(layer)
        with torch.autocast("cuda", torch.bfloat16), pytest.raises(Fault, match="float16"):
            layer(inputs)
        with torch.autocast("cuda", torch.bfloat16), torch.autocast("cuda", enabled=False):
            layer(inputs)
    with pytest.raises(Fault, match="differ in type"):
        gru(inputs, torch.zeros(1, 4, 2, device=CUDA, dtype=torch.bfloat16))
    with pytest.raises(Fault, match="not contiguous"):
        gru(inputs, torch.zeros(4, 1, 4, device=CUDA)[:, :, ::2].transpose(0, 1))


# --- The same numbers in fewer digits: on a CPU everywhere, on a real device where there is one. ---

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.cuda,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
        ],
    ),
]
TOKENS = 10_000_000
"""Of an update, by which its loss is divided. Gradients of models of real size are as small with 100,000 tokens."""


def without_chance(name: str, seed: int) -> Any:
    """A variant with some weights, that draws nothing in training mode."""
    kind, settings = EVERY[name]
    never = {
        key: 0.0
        for key in MODELS.get(kind).Config.model_fields
        if key.endswith(("dropout", "own_words"))
    }
    return build(kind, {**settings, **never}, seed)


def gradients_of(
    model: Model, device: str, in_bf16: bool = False, copies: int = 1
) -> dict[str, Tensor]:
    """The gradients of one batch of an update of `TOKENS` tokens, on the CPU."""
    model.to(device).train().zero_grad()
    batch = linked(batch_of(model, SOURCES * copies, TARGETS * copies))
    given = on_attention(model, batch, weight=1.0)
    torch.manual_seed(1)  # of the places that are drawn
    with torch.autocast(device, torch.bfloat16, enabled=in_bf16):
        backward(
            model,
            batch,
            TOKENS,
            1 << 10,
            torch.device(device),
            links=TOKENS,
            label_smoothing=0.1,
            **given,
        )
    return {
        name: parameter.grad.cpu()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def furthest(near: dict[str, Tensor], exact: dict[str, Tensor]) -> tuple[float, str]:
    """By how much of its norm the gradient of a parameter is off, where that is most; see `test_bfloat16`."""
    assert set(near) == set(exact)
    whole = torch.stack([gradient.norm() for gradient in exact.values()]).norm()
    return max(
        (float((near[name] - gradient).norm() / (gradient.norm() + whole / 10)), name)
        for name, gradient in exact.items()
    )


@torch.no_grad()
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", by_turns(Decoder, 0, 2))
def test_float32_gives_what_float64_gives(name: str, device: str) -> None:
    prepare(torch.device(device), threads=torch.get_num_threads())
    model = build(*EVERY[name]).to(device).eval()
    batch = batch_of(model, SOURCES, TARGETS)
    exact = build(*EVERY[name]).double().eval()(batch, keep=batch.targets.mask)
    log_probs = model(batch.to(device), keep=batch.targets.mask).cpu()
    torch.testing.assert_close(log_probs.double(), exact, rtol=0, atol=1e-4)
    config = BeamConfig(beam_size=3, max_length=LENGTH)
    given = batch_of(model, SOURCES)
    best = search_batch(model, given.to(device), config, need_attention=True)
    assert [len(one) for one in best] == [1] * batch.size
    same(best, search_batch(model.cpu(), given, config, need_attention=True), within=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", by_turns(Model, 0, 2))
def test_deterministic_gradients_are_the_same_each_time(
    name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    model = without_chance(name, 1)
    for in_bf16 in (False, True):
        with randomness.deterministic(torch.device(device), True):
            first, again = (gradients_of(model, device, in_bf16, copies=10) for _ in range(2))
        assert all(torch.equal(gradient, again[parameter]) for parameter, gradient in first.items())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", by_turns(Model, 1, 2))
def test_bfloat16_gives_nearly_the_gradients_of_float32(name: str, device: str) -> None:
    """Within 5 % of the norm of each parameter's; of very small ones, which rounding drowns, of a tenth of all.

    With some weights rounding takes the other piece of a maxout, or moves a word out of a window, and the gradients of
    few words show it: so one of five models is enough. A type with too few digits or too small a range spoils them all.
    """
    offs = []
    for seed in range(1, 6):
        model = without_chance(name, seed)
        exact = gradients_of(model, device)
        near = gradients_of(model, device, in_bf16=True)
        assert all(bool(torch.isfinite(gradient).all()) for gradient in near.values())
        offs.append(furthest(near, exact))
        if offs[-1][0] <= 0.05:
            return
    raise AssertionError(offs)
