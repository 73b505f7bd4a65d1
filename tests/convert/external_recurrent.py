"""Recurrent models of Joey NMT and OpenNMT-py with random weights, and what they compute, plainly, in float64."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.convert.external_toolkits import Drawn, Weights


def of_cells(
    drawn: Drawn, name: str, cell: str, size_in: int, size: int, layers: int, both: bool = False
) -> None:
    """Draws the weights of a module of torch."""
    kind = nn.LSTM if cell == "lstm" else nn.GRU
    for part, tensor in kind(size_in, size, layers, bidirectional=both).state_dict().items():
        drawn.draw(f"{name}.{part}", *tensor.shape)


def joey_rnn(config: dict[str, Any], src: int, tgt: int) -> Weights:
    drawn, left, right = Drawn(6), config["model"]["encoder"], config["model"]["decoder"]
    width, hidden, memory = (
        left["embeddings"]["embedding_dim"],
        right["hidden_size"],
        2 * left["hidden_size"],
    )
    for side, rows in (("src", src), ("trg", tgt)):
        drawn.draw(f"{side}_embed.lut.weight", rows, width)
    of_cells(
        drawn,
        "encoder.rnn",
        left["rnn_type"],
        width,
        left["hidden_size"],
        left["num_layers"],
        both=True,
    )
    fed = hidden if right.get("input_feeding", True) else 0
    of_cells(drawn, "decoder.rnn", right["rnn_type"], width + fed, hidden, right["num_layers"])
    drawn.linear("decoder.att_vector_layer", hidden + memory, hidden)
    drawn.linear("decoder.output_layer", hidden, tgt, bias=False)
    drawn.linear("decoder.attention.key_layer", memory, hidden, bias=False)
    if right["attention"] == "bahdanau":
        drawn.linear("decoder.attention.query_layer", hidden, hidden, bias=False)
        drawn.linear("decoder.attention.energy_layer", hidden, 1, bias=False)
    if right["init_hidden"] == "bridge":
        drawn.linear("decoder.bridge_layer", memory, hidden)
    return drawn.made


def opennmt_rnn(options: dict[str, Any], src: int, tgt: int) -> Weights:
    drawn, width, hidden = Drawn(7), options["src_word_vec_size"], options["dec_hid_size"]
    both, cell, layers = (
        options["encoder_type"] == "brnn",
        options["rnn_type"].lower(),
        options["dec_layers"],
    )
    for side, rows in (("encoder", src), ("decoder", tgt)):
        drawn.draw(f"{side}.embeddings.make_embedding.emb_luts.0.weight", rows, width)
    of_cells(drawn, "encoder.rnn", cell, width, hidden // (1 + both), layers, both)
    of_cells(drawn, "decoder.rnn", cell, width + hidden * options["input_feed"], hidden, layers)
    if options["input_feed"]:  # cells of their own there
        for name in [name for name in drawn.made if name.startswith("decoder.rnn.")]:
            part, _, layer = name.removeprefix("decoder.rnn.").rpartition("_l")
            drawn.made[f"decoder.rnn.layers.{layer}.{part}"] = drawn.made.pop(name)
    kind, copies = options["global_attention"], options.get("copy_attn", False)
    for name in ("attn", "copy_attn")[: 2 if copies and not options.get("reuse_copy_attn") else 1]:
        if kind == "general":
            drawn.linear(f"decoder.{name}.linear_in", hidden, hidden, bias=False)
        if kind == "mlp":
            drawn.linear(f"decoder.{name}.linear_query", hidden, hidden)
            drawn.linear(f"decoder.{name}.linear_context", hidden, hidden, bias=False)
            drawn.linear(f"decoder.{name}.v", hidden, 1, bias=False)
        drawn.linear(f"decoder.{name}.linear_out", 2 * hidden, hidden, bias=kind == "mlp")
    if options.get("bridge"):
        for number in range(2 if cell == "lstm" else 1):
            drawn.linear(f"encoder.bridge.{number}", hidden // (1 + both), hidden // (1 + both))
    drawn.linear("generator.linear" if copies else "generator", hidden, tgt)
    if copies:
        drawn.linear("generator.linear_copy", hidden, 1)
    return drawn.made


def cells(weights: Weights, pattern: str, cell: str, layers: int, both: bool = False) -> nn.Module:
    """The module of torch, in float64, that has these weights."""
    ends = ("", "_reverse") if both else ("",)
    names = [
        (kind, layer)
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        for layer in range(layers)
    ]
    state = {
        f"{k}_l{n}{end}": weights[pattern.format(kind=k, layer=n) + end]
        for k, n in names
        for end in ends
    }
    sizes = state["weight_ih_l0"].shape[1], state["weight_hh_l0"].shape[1]
    module = (nn.LSTM if cell == "lstm" else nn.GRU)(*sizes, layers, bidirectional=both).double()
    module.load_state_dict(state)
    return module


def last_states(module: nn.Module, words: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The top layer's states `(S,D)`; the last hidden states, and memory cells if any, directions joined `(L,D)`."""
    states, last = module(words)
    return states, [
        one.unflatten(0, (module.num_layers, -1)).flatten(1)
        for one in (last if type(last) is tuple else [last])
    ]


def scores(
    decoder: nn.Module,
    state: list[Tensor],
    words: Tensor,
    tgt: list[int],
    fed: Tensor | None,
    read: Any,
    logits: Any,
) -> Tensor:
    """The log-probabilities `(T,)` of target tokens and of the end; `read` makes the attentional state.

    That is `fed` to the next step, unless it is None. `logits` may give log-probabilities as well.
    """
    found = []
    for word, wanted in zip([2, *tgt], [*tgt, 3], strict=True):
        read_word = words[word if word < len(words) else 0]
        x = read_word if fed is None else torch.cat([read_word, fed])
        x, last = decoder(x[None], tuple(state) if len(state) > 1 else state[0])
        state, attentional = list(last) if type(last) is tuple else [last], read(x[0])
        fed = None if fed is None else attentional
        found.append(logits(attentional).log_softmax(0)[wanted])
    return torch.stack(found)


def joey_rnn_scores(
    weights: Weights, config: dict[str, Any], src: list[int], tgt: list[int]
) -> Tensor:
    """As Joey NMT's recurrent model gives them."""
    given = {name: one.double() for name, one in weights.items()}
    left, right = config["model"]["encoder"], config["model"]["decoder"]
    encoder = cells(
        weights, "encoder.rnn.{kind}_l{layer}", left["rnn_type"], left["num_layers"], both=True
    )
    memory, (last, *_) = last_states(encoder, given["src_embed.lut.weight"][[*src, 3]])
    first = {
        "bridge": lambda: (
            given["decoder.bridge_layer.weight"] @ last[-1] + given["decoder.bridge_layer.bias"]
        ).tanh(),
        "last": lambda: last[-1][: right["hidden_size"]],
        "zero": lambda: torch.zeros(right["hidden_size"]).double(),
    }[right["init_hidden"]]()
    keys = memory @ given["decoder.attention.key_layer.weight"].T

    def read(x: Tensor) -> Tensor:
        energies = keys @ x
        if right["attention"] == "bahdanau":
            sums = (keys + given["decoder.attention.query_layer.weight"] @ x).tanh()
            energies = sums @ given["decoder.attention.energy_layer.weight"][0]
        joined = torch.cat([x, energies.softmax(0) @ memory])
        return (
            given["decoder.att_vector_layer.weight"] @ joined
            + given["decoder.att_vector_layer.bias"]
        ).tanh()

    decoder = cells(weights, "decoder.rnn.{kind}_l{layer}", right["rnn_type"], right["num_layers"])
    state = [first.repeat(right["num_layers"], 1)] * (2 if right["rnn_type"] == "lstm" else 1)
    fed = torch.zeros_like(first) if right.get("input_feeding", True) else None
    words, output = given["trg_embed.lut.weight"], given["decoder.output_layer.weight"]
    return scores(decoder, state, words, tgt, fed, read, lambda attentional: output @ attentional)


def opennmt_rnn_scores(
    weights: Weights,
    options: dict[str, Any],
    src: list[int],
    tgt: list[int],
    copies_of: Sequence[int] = (),
) -> Tensor:
    """As OpenNMT-py's recurrent model gives them; `copies_of`: the source's words as targets, unknown ones beyond."""
    given = {name: one.double() for name, one in weights.items()}
    cell, both, layers = (
        options["rnn_type"].lower(),
        options["encoder_type"] == "brnn",
        options["dec_layers"],
    )
    words = [
        given[f"{side}.embeddings.make_embedding.emb_luts.0.weight"]
        for side in ("encoder", "decoder")
    ]
    memory, state = last_states(
        cells(weights, "encoder.rnn.{kind}_l{layer}", cell, layers, both), words[0][src]
    )

    kind, copies = options["global_attention"], options.get("copy_attn", False)
    if options.get("bridge"):
        maps = [
            (given[f"encoder.bridge.{n}.weight"], given[f"encoder.bridge.{n}.bias"])
            for n in range(len(state))
        ]
        # a map is for one direction, and both have the same
        ends = [one.unflatten(1, (1 + both, -1)) for one in state]
        state = [
            (end @ weight.T + bias).relu().flatten(1)
            for end, (weight, bias) in zip(ends, maps, strict=True)
        ]

    def look(x: Tensor, name: str = "attn") -> Tensor:
        if kind == "mlp":
            query = (
                given[f"decoder.{name}.linear_query.weight"] @ x
                + given[f"decoder.{name}.linear_query.bias"]
            )
            sums = (memory @ given[f"decoder.{name}.linear_context.weight"].T + query).tanh()
            return (sums @ given[f"decoder.{name}.v.weight"][0]).softmax(0)
        return (
            memory @ (given[f"decoder.{name}.linear_in.weight"] @ x if kind == "general" else x)
        ).softmax(0)

    looks: list[Tensor] = []

    def read(x: Tensor) -> Tensor:
        looks.append(look(x))
        attentional = given["decoder.attn.linear_out.weight"] @ torch.cat([looks[-1] @ memory, x])
        if kind == "mlp":
            return attentional + given["decoder.attn.linear_out.bias"]
        return attentional.tanh()

    def copied(x: Tensor) -> Tensor:
        """The logarithm of the mixture; a source word has the id of the same word as a target."""
        found = given["generator.linear.weight"] @ x + given["generator.linear.bias"]
        found[1] = -torch.inf
        gate = (
            given["generator.linear_copy.weight"] @ x + given["generator.linear_copy.bias"]
        ).sigmoid()
        weights = looks[-1] if options.get("reuse_copy_attn") else look(x, "copy_attn")
        generated = functional.pad(
            found.softmax(0) * (1 - gate), (0, max(0, max(copies_of) + 1 - len(found)))
        )
        return generated.index_add(0, torch.tensor(copies_of), weights * gate).log()

    pattern = (
        "decoder.rnn.layers.{layer}.{kind}"
        if options["input_feed"]
        else "decoder.rnn.{kind}_l{layer}"
    )
    fed = torch.zeros(options["dec_hid_size"]).double() if options["input_feed"] else None
    decoder = cells(weights, pattern, cell, layers)
    if copies:
        return scores(decoder, state, words[1], tgt, fed, read, copied)
    weight, bias = given["generator.weight"], given["generator.bias"]
    return scores(decoder, state, words[1], tgt, fed, read, lambda x: weight @ x + bias)
