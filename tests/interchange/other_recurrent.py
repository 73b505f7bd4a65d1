"""Recurrent models of Joey NMT and OpenNMT-py with random weights, and what they compute, plainly, in float64."""

import math
from typing import Any

import torch
from other_toolkits import Drawn, Weights
from torch import Tensor, nn


def of_cells(drawn: Drawn, name: str, cell: str, size_in: int, size: int, layers: int, both: bool = False) -> None:
    """Draws the weights of a module of torch."""
    kind = nn.LSTM if cell == "lstm" else nn.GRU
    for part, tensor in kind(size_in, size, layers, bidirectional=both).state_dict().items():
        drawn.draw(f"{name}.{part}", *tensor.shape)


def joey_rnn(config: dict[str, Any], src: int, tgt: int) -> Weights:
    drawn, left, right = Drawn(6), config["model"]["encoder"], config["model"]["decoder"]
    width, hidden, memory = left["embeddings"]["embedding_dim"], right["hidden_size"], 2 * left["hidden_size"]
    for side, rows in (("src", src), ("trg", tgt)):
        drawn.draw(f"{side}_embed.lut.weight", rows, width)
    of_cells(drawn, "encoder.rnn", left["rnn_type"], width, left["hidden_size"], left["num_layers"], both=True)
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
    both, cell, layers = options["encoder_type"] == "brnn", options["rnn_type"].lower(), options["dec_layers"]
    for side, rows in (("encoder", src), ("decoder", tgt)):
        drawn.draw(f"{side}.embeddings.make_embedding.emb_luts.0.weight", rows, width)
    of_cells(drawn, "encoder.rnn", cell, width, hidden // (1 + both), layers, both)
    of_cells(drawn, "decoder.rnn", cell, width + hidden * options["input_feed"], hidden, layers)
    if options["input_feed"]:  # cells of their own there
        for name in [name for name in drawn.made if name.startswith("decoder.rnn.")]:
            part, _, layer = name.removeprefix("decoder.rnn.").rpartition("_l")
            drawn.made[f"decoder.rnn.layers.{layer}.{part}"] = drawn.made.pop(name)
    if options["global_attention"] == "general":
        drawn.linear("decoder.attn.linear_in", hidden, hidden, bias=False)
    drawn.linear("decoder.attn.linear_out", 2 * hidden, hidden, bias=False)
    drawn.linear("generator", hidden, tgt)
    return drawn.made


class PlainCells:
    """Recurrent layers, written out cell by cell."""

    def __init__(self, weights: Weights, pattern: str, cell: str) -> None:
        self.weights, self.pattern, self.cell = weights, pattern, cell

    def step(self, x: Tensor, state: tuple[Tensor, Tensor], layer: int, more: str = "") -> tuple[Tensor, Tensor]:
        """Hidden state and memory cell after one word; torch's own definitions of its LSTM and GRU."""
        names = (self.pattern.format(kind=kind, layer=layer) + more for kind in ("weight_ih", "bias_ih"))
        again = (self.pattern.format(kind=kind, layer=layer) + more for kind in ("weight_hh", "bias_hh"))
        (w, b), (u, c) = ([self.weights[name].double() for name in both] for both in (names, again))
        read, kept = w @ x + b, u @ state[0] + c
        if self.cell == "gru":
            (r, z, n), (ru, zu, nu) = read.chunk(3), kept.chunk(3)
            reset, update = (r + ru).sigmoid(), (z + zu).sigmoid()
            return (1 - update) * (n + reset * nu).tanh() + update * state[0], state[1]
        into, forget, new, out = (read + kept).chunk(4)
        memory = forget.sigmoid() * state[1] + into.sigmoid() * new.tanh()
        return out.sigmoid() * memory.tanh(), memory

    def read(self, words: Tensor, size: int, layers: int, both: bool) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """The top layer's states `(S,D)`, and each layer's last hidden state and memory cell."""
        ends = []
        for layer in range(layers):
            ways = []
            for more in ("", "_reverse")[: 1 + both]:
                state, states = (torch.zeros(size).double(),) * 2, []
                for x in words.flip(0) if more else words:
                    state = self.step(x, state, layer, more)
                    states.append(state[0])
                ways.append((torch.stack(states[::-1] if more else states), state))
            words = torch.cat([states for states, _ in ways], 1)
            ends.append((torch.cat([end[0] for _, end in ways]), torch.cat([end[1] for _, end in ways])))
        return words, ends


def joey_rnn_scores(weights: Weights, config: dict[str, Any], src: list[int], tgt: list[int]) -> Tensor:
    """The log-probabilities of target tokens and of the end, as Joey NMT's recurrent model gives them, `(T,)`."""
    given = {name: one.double() for name, one in weights.items()}
    left, right = config["model"]["encoder"], config["model"]["decoder"]
    encoder = PlainCells(weights, "encoder.rnn.{kind}_l{layer}", left["rnn_type"])
    memory, ends = encoder.read(given["src_embed.lut.weight"][[*src, 3]], left["hidden_size"], left["num_layers"], True)
    first = {
        "bridge": lambda: (
            given["decoder.bridge_layer.weight"] @ ends[-1][0] + given["decoder.bridge_layer.bias"]
        ).tanh(),
        "last": lambda: ends[-1][0][: right["hidden_size"]],
        "zero": lambda: torch.zeros(right["hidden_size"]).double(),
    }[right["init_hidden"]]()
    cells = PlainCells(weights, "decoder.rnn.{kind}_l{layer}", right["rnn_type"])
    states = [(first, first)] * right["num_layers"]
    fed, found = torch.zeros_like(first), []
    keys = memory @ given["decoder.attention.key_layer.weight"].T
    for word, wanted in zip([2, *tgt], [*tgt, 3], strict=True):
        x = given["trg_embed.lut.weight"][word]
        x = torch.cat([x, fed]) if right.get("input_feeding", True) else x
        for layer, state in enumerate(states):
            states[layer] = cells.step(x, state, layer)
            x = states[layer][0]
        energies = keys @ x
        if right["attention"] == "bahdanau":
            sums = (keys + given["decoder.attention.query_layer.weight"] @ x).tanh()
            energies = sums @ given["decoder.attention.energy_layer.weight"][0]
        joined = torch.cat([x, energies.softmax(0) @ memory])
        layer_of = "decoder.att_vector_layer"
        fed = (given[f"{layer_of}.weight"] @ joined + given[f"{layer_of}.bias"]).tanh()
        found.append((given["decoder.output_layer.weight"] @ fed).log_softmax(0)[wanted])
    return torch.stack(found)


def opennmt_rnn_scores(weights: Weights, options: dict[str, Any], src: list[int], tgt: list[int]) -> Tensor:
    """As `joey_rnn_scores`, for OpenNMT-py."""
    given = {name: one.double() for name, one in weights.items()}
    cell, both, hidden = options["rnn_type"].lower(), options["encoder_type"] == "brnn", options["dec_hid_size"]
    encoder = PlainCells(weights, "encoder.rnn.{kind}_l{layer}", cell)
    words = {side: given[f"{side}.embeddings.make_embedding.emb_luts.0.weight"] for side in ("encoder", "decoder")}
    memory, states = encoder.read(words["encoder"][src], hidden // (1 + both), options["dec_layers"], both)
    pattern = "decoder.rnn.layers.{layer}.{kind}" if options["input_feed"] else "decoder.rnn.{kind}_l{layer}"
    cells = PlainCells(weights, pattern, cell)
    fed, found = torch.zeros(hidden).double(), []
    for word, wanted in zip([2, *tgt], [*tgt, 3], strict=True):
        x = words["decoder"][word]
        x = torch.cat([x, fed]) if options["input_feed"] else x
        for layer, state in enumerate(states):
            states[layer] = cells.step(x, state, layer)
            x = states[layer][0]
        query = given["decoder.attn.linear_in.weight"] @ x if options["global_attention"] == "general" else x
        joined = torch.cat([(memory @ query).softmax(0) @ memory, x])
        fed = (given["decoder.attn.linear_out.weight"] @ joined).tanh()
        found.append((given["generator.weight"] @ fed + given["generator.bias"]).log_softmax(0)[wanted])
    assert math.isfinite(float(fed.sum()))
    return torch.stack(found)
