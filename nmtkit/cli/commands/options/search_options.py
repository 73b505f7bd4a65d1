"""Options for commands that use a trained run: the run, the search settings, and speed."""

from typing import Any

import click
import cloup
from typing_extensions import override

from nmtkit.cli import completing, options
from nmtkit.cli.options import Decorator, Number, together
from nmtkit.core.limits import MAX_THREADS

SEARCH: dict[str, tuple[str | None, str]] = {
    "beam_size": ("N", "Beam size; 1 is greedy search. Default: the recipe's."),
    "length_penalty": (
        "KIND[:A]",
        "Length penalty: none, average or gnmt, optionally with its strength A. Default for A: the recipe's.",
    ),
    "min_length": ("TOKENS", "Minimum number of tokens in an output."),
    "max_length": ("TOKENS", "Maximum number of tokens, including EOS."),
    "no_repeat_ngram": ("N", "Never repeat an N-gram; 0 allows repetition."),
    "mbr": (
        "METRIC",
        "Choose the sample with the lowest Bayes risk under METRIC: chrf or bleu; none turns this off.",
    ),
    "samples": ("N", "Sample N outputs instead of running beam search."),
    "temperature": ("T", "Divide log-probabilities by T; values above 1 make samples more random."),
    "top_k": ("K", "Sample from the K most probable tokens (0: all)."),
    "top_p": ("P", "Sample from the smallest set of tokens with total probability P (1: all)."),
    "seed": ("N", "Random seed for sampling. Default: the recipe's, else 1."),
}
"""Metavar and help of the keys in the recipe's `search` group that have their own flags; `--search` can set any key."""
SAMPLING = ("samples", "temperature", "top_k", "top_p", "seed")
RISKS = ("chrf", "bleu", "none")
"""Values of --mbr."""
PRECISIONS = ("auto", "fp32", "fp16", "bf16")
"""Values of --precision."""
PRECISIONS_OF_CTRANSLATE2 = (
    "int8",
    "fastest",
    "int16",
    "int8_float32",
    "int8_float16",
    "int8_bfloat16",
    "float32",
    "float16",
    "bfloat16",
)
"""Values of --precision that only CTranslate2 supports."""
ENGINES = ("auto", "nmtkit", "ctranslate2")
"""Values of --engine."""


class SearchSetting(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """A number within the bounds of a search setting. The settings are imported only when a value is converted."""

    name = "setting"

    def __init__(self, key: str) -> None:
        self.key = key

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from nmtkit.cli.inference.model_options import search_type

        return search_type(self.key).convert(value, param, ctx)


def _type_of(key: str) -> click.ParamType:  # type: ignore[type-arg]  # generic only in newer versions of click
    if key == "length_penalty":
        return click.STRING
    if key == "mbr":
        return click.Choice(RISKS)
    return SearchSetting(key)


def search_flags(*keys: str) -> Decorator:
    """Returns the flags for some search settings; `opens_model` gathers their values."""
    named = [(key, *SEARCH[key]) for key in keys]
    return together(
        *(
            click.option(
                f"--{key.replace('_', '-')}", type=_type_of(key), metavar=metavar, help=meaning
            )
            for key, metavar, meaning in named
        )
    )


checkpoint: Decorator = click.option(
    "--checkpoint",
    "weights",
    default="auto",
    metavar="WHICH",
    help="Checkpoint: best, last, average, a stage or a file. Default: average if it exists, else best.",
)


language: Decorator = together(
    click.option(
        "--from",
        "source_language",
        metavar="LANG",
        help="Source language of an imported multilingual model.",
    ),
    click.option("--to", metavar="LANG", help="Target language of a multilingual model."),
)


def precision(default: str) -> Decorator:
    """Returns the option for the numeric precision of the model."""
    ours = ", ".join(PRECISIONS)
    return click.option(
        "--precision",
        type=click.Choice((*PRECISIONS, *PRECISIONS_OF_CTRANSLATE2)),
        metavar="TYPE",
        default=default,
        help=f"Numeric precision: {ours} (fp16 needs CUDA); with CTranslate2 also int8, int16, fastest and others. "
        f"auto: fp32 with CTranslate2 or on a CPU, else fp16 or bf16. Default: {default}.",
    )


search: Decorator = click.option(
    "--search",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=completing.search_assignments,
    help="Set any key listed by `nmtkit recipe explain search`, e.g. stop=exact; "
    "with several -m, also ensemble=log-probabilities and ensemble_weights=[2,1].",
)
n_best: Decorator = click.option(
    "--n-best",
    type=SearchSetting("beam_size"),
    metavar="N",
    help="Print the N best outputs; widens the beam unless --beam-size is given. Default: 1, or all samples.",
)
format_option: Decorator = click.option(
    "--format",
    "form",
    type=click.Choice(("text", "moses")),
    default="text",
    show_default=True,
    help="Output format. moses: NUMBER (from 0) ||| TEXT ||| FEATURES ||| SCORE.",
)


def _attention_of(name: str, part: str, default: str) -> Decorator:
    about = f"For a Transformer, use the attention of {part}, counted from 1. Default: the recipe's, else {default}."
    return click.option(name, type=Number(1), metavar="N", help=about)


layer: Decorator = _attention_of("--layer", "decoder layer N", "the second-to-last layer")
head: Decorator = _attention_of("--head", "head N of the layer", "the mean of all heads")
shortlist: Decorator = click.option(
    "--shortlist",
    type=options.FILE,
    metavar="FILE",
    help="Score only the target tokens in FILE, which was written by `align --shortlist`.",
)
language_model: Decorator = options.run_option(
    "--lm",
    help="Language model for shallow fusion; --search lm_weight=W sets its weight (default: 0.2).",
)
engine: Decorator = click.option(
    "--engine",
    type=click.Choice(ENGINES),
    metavar="NAME",
    default="auto",
    help="Decoding engine: nmtkit, ctranslate2 or auto. auto: CTranslate2 if it is installed and gives the same "
    "outputs, else nmtkit.",
)
workers: Decorator = click.option(
    "--workers",
    type=Number(1, MAX_THREADS),
    metavar="N",
    help="Number of CPU worker processes, each on one core. Default: one per core for many lines, else none.",
)
batch_tokens: Decorator = click.option(
    "--batch-tokens",
    type=Number(1),
    metavar="N",
    help="Maximum number of padded source tokens per batch. Default: 4,096 (CTranslate2 on a CPU: "
    "1,024; CUDA: 16,384).",
)


def search_groups(*speed: Decorator) -> Decorator:
    """Returns the option groups Search, Sampling and Speed; `speed` contains further options for the group Speed."""
    return together(
        cloup.option_group(
            "Search (default: the recipe's settings)",
            search_flags(*(key for key in SEARCH if key not in ("beam_size", *SAMPLING))),
            language_model,
            search,
        ),
        cloup.option_group("Sampling", search_flags(*SAMPLING)),
        cloup.option_group(
            "Speed", precision("auto"), shortlist, *speed, batch_tokens, options.threads
        ),
    )
