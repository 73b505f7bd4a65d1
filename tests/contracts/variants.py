"""The models that every contract is asked of: each kind with settings chosen so that every pair of choices occurs.

`CHOICES` says what there is to choose; test_variants.py proves that `VARIANTS` has every pair that a model admits. What
is asked of a layer in every combination (each score with each window) is asked in tests/layers. `OTHERS` are more of
the same, for `make test-all`.
"""

from collections.abc import Iterable
from itertools import groupby
from typing import Any, get_args

import pytest
import torch
from daily import daily

import nmtkit.models  # noqa: F401  # fills the registry
from nmtkit.layers.attention import SCORES
from nmtkit.layers.windows import WindowKind
from nmtkit.models.base import MODELS, Seq2Seq, VocabularySizes

VOCABULARY = 13
SIZES = VocabularySizes(VOCABULARY, VOCABULARY, shared=True)

RNN = {"embedding_size": 6, "hidden_size": 8, "maxout_size": 6}
LUONG = {"embedding_size": 6, "hidden_size": 8, "attention_size": 5, "max_positions": 20, "window_size": 1}
BASES: dict[str, dict[str, Any]] = {
    "rnnsearch": {**RNN, "attention_size": 5, "max_positions": 20},
    "rnn_encdec": RNN,
    "luong": LUONG,
    "pointer_generator": {"embedding_size": 6, "hidden_size": 8, "attention_size": 5},
    "intra_attention": {"embedding_size": 6, "hidden_size": 8},
    "transformer": {"hidden_size": 8, "feed_forward_size": 12, "heads": 2, "encoder_layers": 2, "decoder_layers": 2},
}

TIES = ("none", "embeddings", "decoder", "all")
ENCODERS: dict[str, tuple[Any, ...]] = {
    "cell": ("gru", "lstm"),
    "layers": (1, 2),
    "bidirectional": (False, True),
    "encoder_hidden_size": (None, 4),
}
CHOICES: dict[str, dict[str, tuple[Any, ...]]] = {
    "rnnsearch": {
        **ENCODERS,
        "bridge": ("tanh", "zero"),
        "score": ("additive", "scaled_dot", "location", "cosine"),
        "readout_state": ("previous", "current"),
        "tie": TIES,
    },
    "rnn_encdec": {
        **ENCODERS,
        "bridge": ("tanh", "linear", "copy", "zero"),
        "feed_context": (False, True),
        "maxout_size": (6, None),
        "tie": TIES,
    },
    "luong": {
        **ENCODERS,
        "bridge": ("copy", "linear"),
        "score": ("general", "dot"),
        "window": ("global", "local_m", "local_p"),
        "input_feeding": (False, True),
        "tie": TIES,
    },
    "pointer_generator": {
        "cell": ("gru", "lstm"),
        "layers": (1, 2),
        "bidirectional": (False, True),
        "copying": (False, True),
        "coverage": (False, True),
        "tie": TIES,
    },
    "intra_attention": {
        "copying": (False, True),
        "intra_temporal": (False, True),
        "intra_decoder": (False, True),
        "tie": TIES,
    },
    "transformer": {
        "norm": ("pre", "post"),
        "positions": ("sinusoidal", "learned"),
        "copying": ("none", "head", "learned"),
        "alignment_heads": ("mean", 2),
        "activation": ("relu", "gelu"),
        "decoder_layers": (2, 1),
        "tie": TIES,
    },
}
"""What a contract could depend on. A score or a bridge that one kind does not list is chosen by another."""


def settings_of(kind: str, chosen: dict[str, Any]) -> dict[str, Any]:
    """All settings of a small model; where a tie wants two sizes to be equal, they are."""
    settings = {**BASES[kind], **chosen}
    tied = settings.get("tie") in ("decoder", "all")
    if tied and (kind == "luong" or settings.get("maxout_size", 6) is None):
        settings["embedding_size"] = settings["hidden_size"]
    return settings


def named(kind: str, chosen: dict[str, dict[str, Any]]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Variants of one kind of model: those settings that differ from its own defaults, by name."""
    return {name: (kind, settings_of(kind, settings)) for name, settings in chosen.items()}


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **named(
        "rnnsearch",
        {
            "rnnsearch": {},
            "rnnsearch-location-from-zero": {
                "cell": "lstm",
                "layers": 2,
                "bidirectional": False,
                "encoder_hidden_size": 4,
                "bridge": "zero",
                "score": "location",
                "readout_state": "current",
                "tie": "all",
            },
            "rnnsearch-cosine-one-way": {
                "bidirectional": False,
                "encoder_hidden_size": 4,
                "score": "cosine",
                "readout_state": "current",
                "tie": "decoder",
            },
            "rnnsearch-cosine-deep-residual": {
                "cell": "lstm",
                "layers": 2,
                "bridge": "zero",
                "score": "cosine",
                "tie": "embeddings",
                "encoder_layers": 3,
                "residual": True,
            },
            "rnnsearch-scaled-dot-one-way": {
                "cell": "lstm",
                "bidirectional": False,
                "score": "scaled_dot",
                "tie": "all",
            },
            "rnnsearch-scaled-dot-2-layers": {
                "layers": 2,
                "encoder_hidden_size": 4,
                "bridge": "zero",
                "score": "scaled_dot",
                "readout_state": "current",
            },
            "rnnsearch-location-tied": {"score": "location", "tie": "all"},
            "rnnsearch-one-way-2-layers": {
                "cell": "lstm",
                "layers": 2,
                "bidirectional": False,
                "bridge": "zero",
                "readout_state": "current",
            },
            "rnnsearch-one-way-tied": {
                "cell": "lstm",
                "bidirectional": False,
                "encoder_hidden_size": 4,
                "bridge": "zero",
                "tie": "all",
            },
            "rnnsearch-location-backwards": {
                "layers": 2,
                "bidirectional": False,
                "encoder_hidden_size": 4,
                "score": "location",
                "readout_state": "current",
                "reverse_source": True,
            },
        },
    ),
    **named(
        "rnn_encdec",
        {
            "rnn-encdec": {"bridge": "tanh"},
            "rnn-encdec-both-ways-tied": {
                "cell": "lstm",
                "layers": 2,
                "bidirectional": True,
                "encoder_hidden_size": 4,
                "bridge": "tanh",
                "feed_context": False,
                "maxout_size": None,
                "tie": "all",
            },
            "rnn-encdec-reversed-copied": {
                "layers": 2,
                "bridge": "copy",
                "feed_context": False,
                "tie": "all",
                "reverse_source": True,
            },
            "rnn-encdec-both-ways-from-zero": {
                "cell": "lstm",
                "bidirectional": True,
                "encoder_hidden_size": 4,
                "bridge": "zero",
                "maxout_size": None,
            },
            "rnn-encdec-deep-residual": {
                "cell": "lstm",
                "layers": 2,
                "encoder_hidden_size": 4,
                "bridge": "linear",
                "feed_context": False,
                "encoder_layers": 3,
                "residual": True,
            },
            "rnn-encdec-both-ways-linear": {
                "bidirectional": True,
                "bridge": "linear",
                "maxout_size": None,
                "tie": "all",
            },
            "rnn-encdec-both-ways-fed-copy": {
                "bidirectional": True,
                "encoder_hidden_size": 4,
                "bridge": "copy",
                "maxout_size": None,
                "tie": "embeddings",
            },
            "rnn-encdec-2-layers-from-zero": {"layers": 2, "bridge": "zero", "maxout_size": None, "tie": "all"},
            "rnn-encdec-lstm-copied": {
                "cell": "lstm",
                "bridge": "copy",
                "feed_context": False,
                "maxout_size": None,
                "tie": "decoder",
            },
            "rnn-encdec-lstm-2-layers": {
                "cell": "lstm",
                "layers": 2,
                "bidirectional": True,
                "encoder_hidden_size": 4,
                "bridge": "zero",
                "tie": "embeddings",
            },
        },
    ),
    **named(
        "luong",
        {
            "luong": {"cell": "gru"},
            "luong-dot-local-m": {
                "layers": 2,
                "bidirectional": True,
                "encoder_hidden_size": 4,
                "bridge": "linear",
                "score": "dot",
                "window": "local_m",
                "input_feeding": False,
                "tie": "embeddings",
            },
            "luong-local-p-both-ways": {
                "bidirectional": True,
                "bridge": "linear",
                "window": "local_p",
                "tie": "all",
                "attentional_bias": True,
            },
            "luong-dot-local-p-reversed": {
                "cell": "gru",
                "layers": 2,
                "score": "dot",
                "window": "local_p",
                "input_feeding": False,
                "tie": "decoder",
                "reverse_source": True,
            },
            "luong-local-m-residual": {
                "cell": "gru",
                "layers": 2,
                "encoder_hidden_size": 4,
                "bridge": "linear",
                "window": "local_m",
                "tie": "decoder",
                "residual": True,
            },
            "luong-dot-both-ways": {
                "cell": "gru",
                "bidirectional": True,
                "encoder_hidden_size": 4,
                "score": "dot",
                "input_feeding": False,
                "tie": "all",
            },
            "luong-local-m-without-end": {
                "window": "local_m",
                "input_feeding": False,
                "tie": "decoder",
                "source_end": False,
            },
            "luong-dot-2-layers": {
                "layers": 2,
                "bidirectional": True,
                "encoder_hidden_size": 4,
                "bridge": "linear",
                "score": "dot",
                "tie": "decoder",
            },
            "luong-local-p-2-layers": {
                "layers": 2,
                "encoder_hidden_size": 4,
                "bridge": "linear",
                "window": "local_p",
                "input_feeding": False,
                "tie": "embeddings",
            },
        },
    ),
    **named(
        "pointer_generator",
        {
            "pointer-generator": {},
            "pointer-generator-coverage": {"coverage": True, "tie": "none"},
            "pointer-generator-plain-coverage": {
                "cell": "gru",
                "layers": 2,
                "bidirectional": False,
                "copying": False,
                "coverage": True,
                "tie": "all",
            },
            "pointer-generator-plain-one-way": {"cell": "gru", "bidirectional": False, "copying": False, "tie": "none"},
            "pointer-generator-plain-2-layers": {"layers": 2, "copying": False, "tie": "decoder"},
            "pointer-generator-deep-one-way": {
                "layers": 2,
                "bidirectional": False,
                "coverage": True,
                "reverse_source": True,
                "encoder_layers": 3,
                "encoder_hidden_size": 6,
                "residual": True,
            },
            "pointer-generator-gru-tied": {"cell": "gru", "tie": "all"},
        },
    ),
    **named(
        "intra_attention",
        {
            "intra-attention": {},
            "intra-attention-nothing": {
                "copying": False,
                "intra_temporal": False,
                "intra_decoder": False,
                "tie": "none",
            },
            "intra-attention-copying-alone": {"intra_temporal": False, "intra_decoder": False, "tie": "all"},
            "intra-attention-without-copying": {"copying": False, "tie": "embeddings"},
            "intra-attention-temporal-alone": {"copying": False, "intra_decoder": False},
            "intra-attention-not-temporal": {"intra_temporal": False, "tie": "none"},
        },
    ),
    **named(
        "transformer",
        {
            "transformer": {},
            "transformer-copying-head": {"copying": "head", "alignment_heads": 2},
            "transformer-copying-learned": {"norm": "post", "copying": "learned"},
            "transformer-post-norm-positions": {
                "norm": "post",
                "positions": "learned",
                "alignment_heads": 2,
                "activation": "gelu",
                "decoder_layers": 1,
                "tie": "embeddings",
            },
            "transformer-shallow-copying-mean": {
                "positions": "learned",
                "copying": "head",
                "activation": "gelu",
                "decoder_layers": 1,
                "tie": "none",
            },
            "transformer-gelu-without-end": {
                "copying": "learned",
                "activation": "gelu",
                "tie": "embeddings",
                "source_end": False,
            },
            "transformer-shallow-copying-learned": {
                "positions": "learned",
                "copying": "learned",
                "alignment_heads": 2,
                "decoder_layers": 1,
                "tie": "all",
            },
            "transformer-post-norm-copying-mean": {
                "norm": "post",
                "positions": "learned",
                "copying": "head",
                "tie": "embeddings",
                "scale_embeddings": False,
                "alignment_layer": 2,
            },
            "transformer-shallow-copying-head": {
                "copying": "head",
                "alignment_heads": 2,
                "activation": "gelu",
                "decoder_layers": 1,
                "tie": "all",
            },
        },
    ),
}

SCORE_BY_WINDOW = [
    (score, window)
    for score in SCORES.names()
    for window in get_args(WindowKind)
    if score != "location" or window == "global"
]
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "rnnsearch-lstm-2-layers": ("rnnsearch", {**RNN, "cell": "lstm", "layers": 2}),
    "rnnsearch-tied-decoder": ("rnnsearch", {**RNN, "tie": "decoder", "readout_state": "current"}),
    "rnnsearch-tied-all": ("rnnsearch", {**RNN, "tie": "all", "layers": 2}),
    "rnnsearch-one-embedding": ("rnnsearch", {**RNN, "tie": "embeddings"}),
    "rnnsearch-dot": ("rnnsearch", {**RNN, "score": "dot", "encoder_hidden_size": 4}),
    "rnnsearch-scaled-dot-one-way-copied": (
        "rnnsearch",
        {**RNN, "score": "scaled_dot", "cell": "lstm", "layers": 2, "bidirectional": False, "bridge": "copy"},
    ),
    "rnnsearch-general-deep-residual": (
        "rnnsearch",
        {**RNN, "score": "general", "encoder_layers": 3, "residual": True, "bridge": "linear"},
    ),
    "rnnsearch-location-reversed": (
        "rnnsearch",
        {**RNN, "score": "location", "max_positions": 20, "bidirectional": False, "reverse_source": True},
    ),
    "rnnsearch-cosine-from-zero": ("rnnsearch", {**RNN, "score": "cosine", "cell": "lstm", "bridge": "zero"}),
    "rnn-encdec-lstm-3-layers": ("rnn_encdec", {**RNN, "cell": "lstm", "layers": 3}),
    "rnn-encdec-sutskever": (
        "rnn_encdec",
        {**RNN, "cell": "lstm", "layers": 2, "maxout_size": None, "feed_context": False, "reverse_source": True},
    ),
    "rnn-encdec-gru-plain-tied": ("rnn_encdec", {**RNN, "feed_context": False, "tie": "all"}),
    "rnn-encdec-both-ways-residual": (
        "rnn_encdec",
        {**RNN, "bidirectional": True, "encoder_layers": 3, "residual": True, "bridge": "linear"},
    ),
    "rnn-encdec-both-ways-copied": (
        "rnn_encdec",
        {**RNN, "cell": "lstm", "layers": 2, "bidirectional": True, "encoder_hidden_size": 4, "bridge": "copy"},
    ),
    "rnn-encdec-mapped-plain": ("rnn_encdec", {**RNN, "cell": "lstm", "feed_context": False, "bridge": "tanh"}),
    "rnn-encdec-from-zero": ("rnn_encdec", {**RNN, "cell": "lstm", "bridge": "zero"}),
    "transformer-post-norm": ("transformer", {**BASES["transformer"], "norm": "post", "tie": "none"}),
    "transformer-learned-positions": ("transformer", {**BASES["transformer"], "positions": "learned", "tie": "all"}),
    "transformer-one-embedding": ("transformer", {**BASES["transformer"], "tie": "embeddings"}),
    "transformer-shallow-decoder": ("transformer", {**BASES["transformer"], "decoder_layers": 1, "activation": "gelu"}),
    "transformer-copying-mean": (
        "transformer",
        {**BASES["transformer"], "copying": "head", "alignment_layer": 2, "tie": "all"},
    ),
    # All admitted pairs. Neighbours differ in cell or input feeding, so that every window, and every score that is
    # listed several times, meets both kinds of either.
    **{
        f"luong-{score}-{window}": (
            "luong",
            {
                **LUONG,
                "score": score,
                "window": window,
                "cell": "lstm" if number % 2 else "gru",
                "input_feeding": number % 4 < 2,
            },
        )
        for number, (score, window) in enumerate(SCORE_BY_WINDOW)
    },
    "luong-paper": ("luong", {**LUONG, "layers": 3, "reverse_source": True, "window": "local_p", "window_size": 2}),
    "luong-reversed-monotonic": ("luong", {**LUONG, "reverse_source": True, "window": "local_m", "cell": "gru"}),
    "luong-bidirectional": (
        "luong",
        {**LUONG, "layers": 2, "bidirectional": True, "bridge": "tanh", "window": "local_p", "input_feeding": False},
    ),
    "luong-residual-tied": (
        "luong",
        {**LUONG, "layers": 3, "residual": True, "hidden_size": 6, "tie": "all", "bridge": "linear"},
    ),
    "pointer-generator-plain": ("pointer_generator", {**BASES["pointer_generator"], "copying": False}),
    "pointer-generator-lstm-plain-coverage": (
        "pointer_generator",
        {**BASES["pointer_generator"], "copying": False, "coverage": True},
    ),
    "pointer-generator-tied-2-layers": (
        "pointer_generator",
        {**BASES["pointer_generator"], "tie": "all", "layers": 2, "coverage": True},
    ),
    "pointer-generator-gru-tied-decoder": (
        "pointer_generator",
        {**BASES["pointer_generator"], "cell": "gru", "tie": "decoder"},
    ),
    "pointer-generator-one-way-deep": (
        "pointer_generator",
        {
            **BASES["pointer_generator"],
            "bidirectional": False,
            "reverse_source": True,
            "encoder_layers": 3,
            "encoder_hidden_size": 6,
            "residual": True,
        },
    ),
    "intra-attention-one-embedding": ("intra_attention", {**BASES["intra_attention"], "tie": "all"}),
    "intra-attention-no-past": ("intra_attention", {**BASES["intra_attention"], "intra_temporal": False}),
    "intra-attention-own-output": ("intra_attention", {**BASES["intra_attention"], "tie": "none"}),
    "intra-attention-no-earlier-states": ("intra_attention", {**BASES["intra_attention"], "intra_decoder": False}),
    "intra-attention-plain": (
        "intra_attention",
        {
            **BASES["intra_attention"],
            "copying": False,
            "intra_temporal": False,
            "intra_decoder": False,
            "tie": "embeddings",
        },
    ),
}
"""Variants that `make test-all` asks as well."""

EVERY = VARIANTS | OTHERS
ONE_OF_EACH = [next(group) for _, group in groupby(VARIANTS, lambda name: VARIANTS[name][0])]
"""The first variant of each kind."""
ONE_OF_EACH_THAT_COPIES = [*ONE_OF_EACH, "transformer-copying-head", "pointer-generator-plain-coverage"]

SLOW = pytest.mark.slow
ASKED = [*VARIANTS, *(pytest.param(name, marks=SLOW) for name in OTHERS)]
"""For `parametrize`: all names."""
FEW = daily([*ONE_OF_EACH_THAT_COPIES, *sorted(EVERY.keys() - ONE_OF_EACH_THAT_COPIES)], len(ONE_OF_EACH_THAT_COPIES))
"""For `parametrize`: all names, for what hardly depends on a model's choices; `make test` asks one of each kind."""


def in_turns(things: Iterable[Any], each: int = 1, names: Iterable[str] = (), few: bool = False) -> list[Any]:
    """For `parametrize`: each variant with some of the things in its turn; `make test-all` asks it the others too.

    Variants of one kind stand together: with six of them or more, each kind meets everything if there is no more than
    six times `each`.

    Args:
        things: what can be asked of any model.
        each: how many of them a variant is asked.
        names: of models; without any, all variants.
        few: `make test` asks one of each kind only.
    """
    things, names, asked = list(things), list(names), []
    for number, name in enumerate(names or EVERY):
        in_time = names or name in (ONE_OF_EACH_THAT_COPIES if few else VARIANTS)
        turns = [(number * each + more) % len(things) for more in range(each)] if in_time else []
        rest = [thing for turn, thing in enumerate(things) if turn not in turns]
        if turns:
            asked.append(pytest.param(name, [things[turn] for turn in turns], id=name))
        if rest:
            asked.append(pytest.param(name, rest, id=f"{name}-rest", marks=SLOW))
    return asked


def build(kind: str, settings: dict[str, Any], seed: int = 1) -> Seq2Seq:
    """A model with the weights of a seed."""
    torch.manual_seed(seed)
    cls = MODELS.get(kind)
    return cls(cls.Config.model_validate({"kind": kind, **settings}), SIZES)


def enlarged(name: str, seed: int = 1) -> Seq2Seq:
    """A variant in float64, without dropout, with larger weights, so that an untrained model has opinions."""
    model = build(*EVERY[name], seed=seed).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0).add_(0.1 * torch.randn_like(parameter))
    return model
