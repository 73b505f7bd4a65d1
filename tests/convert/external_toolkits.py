"""Folders as Joey NMT and OpenNMT-py write them, with random weights, and what such models compute, plainly."""

import argparse
import math
from collections import OrderedDict
from collections.abc import Callable
from copy import deepcopy
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

from tests.support.random_runs import PAIRS, learned

Weights = dict[str, Tensor]
JOEY = ["<unk>", "<pad>", "<s>", "</s>"]
OPENNMT = ["<unk>", "<blank>", "<s>", "</s>"]
EPSILON = 1e-6


Words = tuple[list[str], list[str]]


def words_of(first: list[str], pieces: bool = False) -> Words:
    """The vocabularies of both sides; they lack some of what the text has."""
    pair = learned(joint=False)
    sides = []
    for side, one in enumerate((pair.src, pair.tgt)):
        found = [word for pair in PAIRS[:60] for word in pair[side].split() if len(word) < 9]
        if pieces:
            found = [piece for piece in one.vocabulary.tokens[4:] if piece[-1:] not in "aberi"]
        sides.append([*first, *dict.fromkeys(found)])
    return sides[0], sides[1]


class Drawn:
    """Random weights of the shapes that are asked for, by their names."""

    def __init__(self, seed: int) -> None:
        self.made: Weights = OrderedDict()
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self, name: str, *shape: int, around: float = 0.0, spread: float = 0.4) -> None:
        self.made[name] = torch.randn(shape, generator=self.generator) * spread + around

    def linear(self, name: str, size_in: int, size_out: int, bias: bool = True) -> None:
        self.draw(f"{name}.weight", size_out, size_in)
        if bias:
            self.draw(f"{name}.bias", size_out)

    def norm(self, name: str, width: int) -> None:
        self.draw(f"{name}.weight", width, around=1.0)
        self.draw(f"{name}.bias", width)


def joey_config(**more: Any) -> dict[str, Any]:
    side = {
        "hidden_size": 16,
        "ff_size": 24,
        "num_heads": 2,
        "num_layers": 2,
        "dropout": 0.1,
        "layer_norm": "pre",
    }
    side |= {"type": "transformer", "embeddings": {"embedding_dim": 16, "scale": True}}
    text = {"lang": "en", "level": "word", "lowercase": False, "voc_limit": 1000}
    config: dict[str, Any] = {
        "joeynmt_version": "2.3.0",
        "data": {"src": dict(text), "trg": {**text, "lang": "de"}, "dataset_type": "plain"},
        "testing": {"beam_size": 4, "beam_alpha": 1.0},
        "training": {"batch_size": 10},
        "model": {"encoder": deepcopy(side), "decoder": deepcopy(side) | {"num_layers": 1}},
    }
    for path, value in more.items():
        *above, last = path.split("__")
        reduce(getitem, above, config)[last] = value
    return config


def joey_recurrent(of_decoder: dict[str, Any]) -> dict[str, Any]:
    config = joey_config()
    side = {
        "rnn_type": "gru",
        "num_layers": 1,
        "embeddings": {"embedding_dim": 12},
        "type": "recurrent",
    }
    side |= {key: of_decoder[key] for key in ("rnn_type", "num_layers") if key in of_decoder}
    left = side | {"hidden_size": 8, "bidirectional": True, "dropout": 0.2}
    right = (
        deepcopy(side)
        | {"hidden_size": 16, "attention": "bahdanau", "init_hidden": "bridge"}
        | of_decoder
    )
    return config | {"model": {"encoder": left, "decoder": right}}


def joey_transformer(config: dict[str, Any], src: int, tgt: int) -> Weights:
    drawn, model = Drawn(3), config["model"]
    width, inner = model["encoder"]["hidden_size"], model["encoder"]["ff_size"]
    for side, rows in (("src", src), ("trg", tgt)):
        drawn.draw(f"{side}_embed.lut.weight", rows, width)
    for side, attentions in (
        ("encoder", ["src_src_att"]),
        ("decoder", ["trg_trg_att", "src_trg_att"]),
    ):
        for number in range(model[side]["num_layers"]):
            at = f"{side}.layers.{number}."
            for attention in attentions:
                for part in ("k_layer", "v_layer", "q_layer", "output_layer"):
                    drawn.linear(f"{at}{attention}.{part}", width, width)
            drawn.linear(f"{at}feed_forward.pwff_layer.0", width, inner)
            drawn.linear(f"{at}feed_forward.pwff_layer.3", inner, width)
            norms = ("layer_norm",) if side == "encoder" else ("x_layer_norm", "dec_layer_norm")
            for norm in (*norms, "feed_forward.layer_norm"):
                drawn.norm(at + norm, width)
        if model[side]["layer_norm"] == "pre":
            drawn.norm(f"{side}.layer_norm", width)
        drawn.made[f"{side}.pe.pe"] = positions(60, width).float()[None]
    drawn.linear("decoder.output_layer", width, tgt, bias=False)
    made = drawn.made
    if model.get("tied_softmax"):
        made["decoder.output_layer.weight"] = made["trg_embed.lut.weight"]
    return made


def write_joey(
    folder: Path,
    config: dict[str, Any],
    draw: Callable[..., Weights] = joey_transformer,
    words: Words | None = None,
) -> tuple[Weights, Words]:
    """A model with weights that are drawn, and its vocabularies."""
    words = words or words_of(JOEY, config["data"]["src"]["level"] == "bpe")
    weights = draw(config, *map(len, words))
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    for name, tokens in zip(("src_vocab.txt", "trg_vocab.txt"), words, strict=True):
        (folder / name).write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
    if config["data"]["src"]["level"] == "bpe":
        pair = learned(joint=False)
        for side, one in (("src", pair.src), ("trg", pair.tgt)):
            (folder / f"{side}.model").write_bytes(one.content())
    state = {
        "model_state": OrderedDict(weights),
        "optimizer_state": {"state": {}, "param_groups": [{"lr": 0.1}]},
    }
    torch.save(
        state | {"scaler_state": None, "stats_state": {"steps": 5, "best_ckpt_score": math.inf}},
        folder / "5.ckpt",
    )
    (folder / "best.ckpt").symlink_to("5.ckpt")
    return weights, words


def opennmt_options(**more: Any) -> dict[str, Any]:
    sizes = (
        "enc_hid_size",
        "dec_hid_size",
        "hidden_size",
        "src_word_vec_size",
        "tgt_word_vec_size",
    )
    found: dict[str, Any] = dict.fromkeys(sizes, 16)
    found |= {
        "transformer_ff": 24,
        "heads": 2,
        "enc_layers": 2,
        "dec_layers": 1,
        "model_type": "text",
    }
    found |= {
        "encoder_type": "transformer",
        "decoder_type": "transformer",
        "dropout": [0.1],
        "norm_eps": EPSILON,
    }
    found |= {
        "position_encoding": True,
        "position_encoding_type": "SinusoidalInterleaved",
        "copy_attn": False,
    }
    found |= {
        "self_attn_type": "scaled-dot",
        "max_relative_positions": 0,
        "add_qkvbias": False,
        "add_ffnbias": True,
    }
    found |= {
        "attention_dropout": [0.1],
        "pos_ffn_activation_fn": "relu",
        "transforms": [],
        "model_task": "seq2seq",
    }
    return found | {"data": {"corpus": {"path_src": "/there", "transforms": []}}} | more


def opennmt_transformer(options: dict[str, Any], src: int, tgt: int) -> Weights:
    drawn, width, bias = Drawn(5), options["enc_hid_size"], options["add_qkvbias"]
    sides = {
        "encoder": (src, "enc_layers", "encoder.transformer"),
        "decoder": (tgt, "dec_layers", OPENNMT_DECODER),
    }
    for side, (rows, layers, stack) in sides.items():
        drawn.draw(f"{side}.embeddings.make_embedding.emb_luts.0.weight", rows, width)
        drawn.made[f"{side}.embeddings.make_embedding.pe.pe"] = positions(60, width).float()[
            :, None
        ]
        for at in (f"{stack}.{number}." for number in range(options[layers])):
            for attention in ("self_attn", "context_attn")[: 1 if side == "encoder" else 2]:
                for part in ("linear_keys", "linear_values", "linear_query", "final_linear"):
                    drawn.linear(f"{at}{attention}.{part}", width, width, bias)
            drawn.linear(
                f"{at}feed_forward.w_1", width, options["transformer_ff"], options["add_ffnbias"]
            )
            drawn.linear(
                f"{at}feed_forward.w_2", options["transformer_ff"], width, options["add_ffnbias"]
            )
            own = ("layer_norm",) if side == "encoder" else ("layer_norm_1", "layer_norm_2")
            for norm in (*own, "feed_forward.layer_norm"):
                drawn.norm(at + norm, width)
        drawn.norm(f"{side}.layer_norm", width)
    drawn.linear("generator.linear" if options["copy_attn"] else "generator", width, tgt)
    if options["copy_attn"]:
        drawn.linear("generator.linear_copy", width, 1)
    return drawn.made


OPENNMT_DECODER = "decoder.transformer_layers"


def write_opennmt(
    path: Path,
    options: dict[str, Any],
    draw: Callable[..., Weights] = opennmt_transformer,
    words: Words | None = None,
) -> tuple[Weights, Words]:
    """A model with weights that are drawn, and its vocabularies."""
    words = words or words_of(OPENNMT, "sentencepiece" in options["transforms"])
    weights = draw(options, *map(len, words))
    path.parent.mkdir(exist_ok=True)
    of_generator = {name: one for name, one in weights.items() if name.startswith("generator.")}
    state: dict[str, Any] = {
        "model": OrderedDict(
            (name, one) for name, one in weights.items() if name not in of_generator
        ),
        "generator": OrderedDict(
            (name[len("generator.") :], one) for name, one in of_generator.items()
        ),
        "vocab": {
            "src": words[0],
            "tgt": words[1],
            "data_task": "seq2seq",
            "decoder_start_token": "<s>",
        },
        "opt": argparse.Namespace(**options),
        "optim": {
            "training_step": 5,
            "decay_step": 5,
            "optimizer": {"state": {}, "param_groups": []},
        },
    }
    torch.save(state, path)
    if "sentencepiece" in options["transforms"]:
        pair = learned(joint=False)
        for side, one in (("src", pair.src), ("tgt", pair.tgt)):
            (path.parent / Path(options[f"{side}_subword_model"]).name).write_bytes(one.content())
    return weights, words


def positions(length: int, width: int) -> Tensor:
    """Vaswani et al. 2017, section 3.5."""
    angles = torch.arange(length).double()[:, None] / 10000 ** (
        torch.arange(0, width, 2).double() / width
    )
    return torch.stack([angles.sin(), angles.cos()], 2).flatten(1)


class Plain:
    """A forward pass over one sentence in float64, without batches, masks of padding or caches."""

    def __init__(self, weights: Weights, heads: int, pre: bool, activation: str) -> None:
        self.weights = {name: one.double() for name, one in weights.items()}
        self.heads, self.pre = heads, pre
        self.activation = {"relu": F.relu, "gelu": F.gelu, "swish": F.silu}[activation]

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(
            x, x.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], EPSILON
        )

    def around(self, x: Tensor, norm: str, f: Any) -> Tensor:
        return x + f(self.norm(x, norm)) if self.pre else self.norm(x + f(x), norm)

    def attend(
        self, x: Tensor, memory: Tensor, names: tuple[str, ...], causal: bool = False
    ) -> Tensor:
        return self.linear(self.look(x, memory, names, causal)[0], names[3])

    def look(
        self, x: Tensor, memory: Tensor, names: tuple[str, ...], causal: bool
    ) -> tuple[Tensor, Tensor]:
        """Contexts before the last map `(Q,H)`, and weights `(A,Q,S)`; names of query, key, value and output."""
        query, key, value = (
            self.linear(given, name).unflatten(1, (self.heads, -1)).transpose(0, 1)
            for given, name in zip((x, memory, memory), names, strict=False)
        )
        energies = query @ key.transpose(1, 2) / math.sqrt(query.shape[2])
        if causal:
            energies = energies.masked_fill(torch.ones_like(energies).triu(1).bool(), -math.inf)
        weights = energies.softmax(-1)
        return (weights @ value).transpose(0, 1).flatten(1), weights

    def feed(self, x: Tensor, norm: str, first: str, last: str) -> Tensor:
        return self.around(
            x, norm, lambda y: self.linear(self.activation(self.linear(y, first)), last)
        )

    def enter(self, ids: list[int], name: str, scale: float) -> Tensor:
        rows = self.weights[name][ids]
        return rows * scale + positions(len(ids), rows.shape[1])


def joey_scores(weights: Weights, config: dict[str, Any], src: list[int], tgt: list[int]) -> Tensor:
    """The log-probabilities of target tokens and of the end, as Joey NMT's Transformer gives them, `(T,)`."""
    side = config["model"]["encoder"]
    net = Plain(
        weights, side["num_heads"], side["layer_norm"] == "pre", side.get("activation", "relu")
    )
    scale = math.sqrt(side["hidden_size"]) if side["embeddings"]["scale"] else 1.0
    unit = ("q_layer", "k_layer", "v_layer", "output_layer")
    x = net.enter([*src, 3], "src_embed.lut.weight", scale)
    for number in range(side["num_layers"]):
        at = f"encoder.layers.{number}."
        own = tuple(f"{at}src_src_att.{part}" for part in unit)
        x = net.around(x, f"{at}layer_norm", lambda y, own=own: net.attend(y, y, own))
        x = net.feed(
            x,
            *(
                f"{at}feed_forward.{part}"
                for part in ("layer_norm", "pwff_layer.0", "pwff_layer.3")
            ),
        )
    memory = net.norm(x, "encoder.layer_norm") if net.pre else x
    x = net.enter([2, *tgt], "trg_embed.lut.weight", scale)
    for number in range(config["model"]["decoder"]["num_layers"]):
        at = f"decoder.layers.{number}."
        own, cross = (
            tuple(f"{at}{kind}.{part}" for part in unit) for kind in ("trg_trg_att", "src_trg_att")
        )
        x = net.around(
            x, f"{at}x_layer_norm", lambda y, own=own: net.attend(y, y, own, causal=True)
        )
        x = net.around(
            x, f"{at}dec_layer_norm", lambda y, cross=cross: net.attend(y, memory, cross)
        )
        x = net.feed(
            x,
            *(
                f"{at}feed_forward.{part}"
                for part in ("layer_norm", "pwff_layer.0", "pwff_layer.3")
            ),
        )
    x = net.norm(x, "decoder.layer_norm") if net.pre else x
    log_probs = net.linear(x, "decoder.output_layer").log_softmax(-1)
    return log_probs[torch.arange(len(tgt) + 1), [*tgt, 3]]


def opennmt_scores(
    weights: Weights, options: dict[str, Any], words: list[list[str]], pair: list[list[str]]
) -> Tensor:
    """The log-probabilities of target tokens and of the end, as OpenNMT-py's Transformer gives them, `(T,)`.

    Where it copies, the weights of source words go to the target's words of the same spelling.
    """
    net = Plain(weights, options["heads"], True, options["pos_ffn_activation_fn"])
    scale = math.sqrt(options["enc_hid_size"])
    unit = ("linear_query", "linear_keys", "linear_values", "final_linear")
    rows = [{word: number for number, word in enumerate(side)} for side in words]
    src, tgt = ([rows[n].get(token, 0) for token in pair[n]] for n in range(2))
    x = net.enter(src, "encoder.embeddings.make_embedding.emb_luts.0.weight", scale)
    feed = tuple(f"feed_forward.{part}" for part in ("layer_norm", "w_1", "w_2"))
    for at in (f"encoder.transformer.{number}." for number in range(options["enc_layers"])):
        own = tuple(f"{at}self_attn.{part}" for part in unit)
        x = net.around(x, f"{at}layer_norm", lambda y, own=own: net.attend(y, y, own))
        x = net.feed(x, *(at + part for part in feed))
    memory = net.norm(x, "encoder.layer_norm")
    x = net.enter([2, *tgt], "decoder.embeddings.make_embedding.emb_luts.0.weight", scale)
    for at in (f"{OPENNMT_DECODER}.{number}." for number in range(options["dec_layers"])):
        own, cross = (
            tuple(f"{at}{kind}.{part}" for part in unit) for kind in ("self_attn", "context_attn")
        )
        x = net.around(
            x, f"{at}layer_norm_1", lambda y, own=own: net.attend(y, y, own, causal=True)
        )
        looked = net.look(net.norm(x, f"{at}layer_norm_2"), memory, cross, False)[1][
            0
        ]  # (T,S), the first head's
        x = net.around(x, f"{at}layer_norm_2", lambda y, cross=cross: net.attend(y, memory, cross))
        x = net.feed(x, *(at + part for part in feed))
    x = net.norm(x, "decoder.layer_norm")
    if not options["copy_attn"]:
        return net.linear(x, "generator").log_softmax(-1)[torch.arange(len(tgt) + 1), [*tgt, 3]]
    logits = net.linear(x, "generator.linear")
    logits[:, 1] = -math.inf
    copying = net.linear(x, "generator.linear_copy").sigmoid()[:, 0]
    found = []
    for place, token in enumerate([*pair[1], "</s>"]):
        copied = sum(
            weight for weight, word in zip(looked[place], pair[0], strict=True) if word == token
        )
        only_copied = token not in rows[1] and token in pair[0]
        generated = 0.0 if only_copied else logits[place].softmax(-1)[rows[1].get(token, 0)]
        found.append(generated * (1 - copying[place]) + copied * copying[place])
    return torch.stack(found).log()
