"""Continuing prompts with a GPT-2 of random weights, here and by `transformers.generate` with the same weights.

Every text goes on for the same number of tokens, each the likeliest one, so that all engines take the same steps. Words
are drawn at random: a word is as dear as another.
"""

import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch

from nmtkit.cli import terminal
from nmtkit.core.device import prepare
from nmtkit.data.batches.batch import Batch
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD
from nmtkit.decoding.search_batch import search_batch
from nmtkit.decoding.settings import BeamConfig
from nmtkit.layers.linear import Precision, prepare_for_inference, supported_precisions
from nmtkit.models.base import VocabularySizes
from nmtkit.models.language.transformer_lm import TransformerLM, TransformerLMConfig

from .timing import summary, time_in_turns

SEED = 1


@dataclass(frozen=True)
class Shape:
    """A GPT-2, and what it is asked for."""

    width: int = 768
    layers: int = 12
    heads: int = 12
    vocabulary: int = 50_257
    prompt: int = 32
    """Tokens; the model reads BOS before them."""
    output: int = 64
    """Tokens."""

    def build(self) -> TransformerLM:
        torch.manual_seed(SEED)
        sizes = {
            "hidden_size": self.width,
            "feed_forward_size": 4 * self.width,
            "heads": self.heads,
        }
        config = TransformerLMConfig.model_validate({**sizes, "layers": self.layers})
        model = TransformerLM(config, VocabularySizes({"tgt": self.vocabulary})).eval()
        with torch.no_grad():  # else the likeliest word is the one just read
            model.tgt_positions.table.mul_(10.0)
        return model

    def prompts(self, count: int) -> torch.Tensor:
        """Ids `(B,P)` without BOS."""
        draw = torch.Generator().manual_seed(SEED)
        return torch.randint(4, self.vocabulary, (count, self.prompt), generator=draw)


SHAPES = {"gpt2": Shape(), "toy": Shape(32, 2, 2, 200, 4, 6)}


def published(model: TransformerLM, shape: Shape) -> Any:
    """The same model in `transformers`."""
    import transformers

    sizes = {
        "vocab_size": shape.vocabulary,
        "n_embd": shape.width,
        "n_layer": shape.layers,
        "n_head": shape.heads,
    }
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, bos_token_id=BOS, eos_token_id=EOS)
    ).eval()
    weights = {
        "transformer.wte": model.tgt_embedding.weight,
        "transformer.wpe": model.tgt_positions.table,
    }
    named = {f"{name}.weight": weight for name, weight in weights.items()}
    modules = {"transformer.ln_f": model.decoder_norm}
    for number, layer in enumerate(model.decoder):
        place = f"transformer.h.{number}"
        modules |= {
            f"{place}.ln_1": layer.around_self_attention.norm,
            f"{place}.ln_2": layer.around_feed_forward.norm,
            f"{place}.attn.c_attn": layer.self_attention.query_keys_values,
            f"{place}.attn.c_proj": layer.self_attention.out,
            f"{place}.mlp.c_fc": layer.feed_forward.inner,
            f"{place}.mlp.c_proj": layer.feed_forward.out,
        }
    for name, module in modules.items():
        named |= {f"{name}.weight": module.weight.t(), f"{name}.bias": module.bias}
    theirs.load_state_dict(named, strict=False)
    return theirs


def continued_here(model: TransformerLM, shape: Shape, prompts: torch.Tensor) -> list[list[int]]:
    limits = {"max_length": shape.output, "min_length": shape.output - 1}
    found = search_batch(model, Batch(prompt=prompts), BeamConfig(beam_size=1, **limits))
    return [best.ids for (best,) in found]


@torch.inference_mode()
def continued_there(model: Any, shape: Shape, prompts: torch.Tensor) -> list[list[int]]:
    given = torch.cat([torch.full_like(prompts[:, :1], BOS), prompts], 1)
    limits = {"max_new_tokens": shape.output, "min_new_tokens": shape.output, "do_sample": False}
    found = model.generate(given, attention_mask=torch.ones_like(given), pad_token_id=PAD, **limits)
    rows: list[list[int]] = found[:, given.shape[1] :].tolist()
    return rows


def measure(
    shape: Shape, batches: list[int], rounds: int, threads: int, place: torch.device, against: bool
) -> list[dict[str, Any]]:
    """Each batch by each engine in each precision, in turns; with `against`, by transformers as well."""
    prepare(place, "highest", threads)
    exact = shape.build().to(place)
    engines: dict[str, tuple[Callable[..., list[list[int]]], Any]] = {}
    names: list[Precision] = ["fp32", "bf16"] if "bf16" in supported_precisions(place) else ["fp32"]
    for precision in names:
        model = deepcopy(exact)
        prepare_for_inference(model, precision)
        engines[f"nmtkit, {precision}"] = continued_here, model
        if against:
            theirs = published(exact, shape).to(
                place, torch.float32 if precision == "fp32" else torch.bfloat16
            )
            engines[f"transformers, {precision}"] = continued_there, theirs
    rows = []
    for count in batches:
        prompts = shape.prompts(count).to(place)
        cpu_seconds: dict[str, list[float]] = {name: [] for name in engines}
        jobs = {
            name: partial(_clocked, cpu_seconds[name], run, model, shape, prompts)
            for name, (run, model) in engines.items()
        }
        timings = time_in_turns(jobs, rounds, place)
        expected = timings["nmtkit, fp32"].results[-1]
        for name, timing in timings.items():
            same = sum(map(list.__eq__, timing.results[-1], expected))
            row = {
                "engine": name,
                "batch": count,
                "tokens_per_second": timing.per_second(count * shape.output),
            }
            rows.append({**row, "cpu_seconds": cpu_seconds[name][1:], "same": same})
    return rows


def _clocked(
    seconds: list[float], run: Callable[..., list[list[int]]], *given: Any
) -> list[list[int]]:
    begun = time.process_time()
    found = run(*given)
    seconds.append(time.process_time() - begun)
    return found


def show(rows: list[dict[str, Any]], shape: Shape) -> None:
    cells = []
    for row in rows:
        theirs = [
            one
            for one in rows
            if one["engine"] == "transformers, fp32" and one["batch"] == row["batch"]
        ]
        speeds = [
            median(row["tokens_per_second"]) / median(one["tokens_per_second"]) for one in theirs
        ]
        cpu = [median(one["cpu_seconds"]) / median(row["cpu_seconds"]) for one in theirs]
        cells.append(
            [
                row["engine"],
                str(row["batch"]),
                summary(row["tokens_per_second"], ""),
                *([f"{speeds[0]:.2f}", f"{cpu[0]:.2f}"] if theirs else ["-", "-"]),
                f"{row['same']} of {row['batch']}",
            ]
        )
    title = f"prompts of {shape.prompt} tokens, {shape.output} more, greedy, {shape.layers} layers of {shape.width}"
    columns = ["engine", "batch", "tokens/s", "x transformers fp32", "x its CPU time", "same texts"]
    terminal.table(title, columns, cells)
