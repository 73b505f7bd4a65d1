"""Length limits of translations, as they follow from the settings of a search and the lengths of the sources."""

from typing import TYPE_CHECKING

from torch import Tensor

from nmtkit.data.batches.batch import Batch
from nmtkit.models.abilities import reserve_positions

if TYPE_CHECKING:
    from nmtkit.decoding.settings import SearchConfig
    from nmtkit.models.base import Decoder


def applicable_limits(config: "SearchConfig", batch: Batch) -> "SearchConfig":
    """Returns the settings; if the batch has no source texts, removes the limits that depend on the source length."""
    if batch.reads_text:
        return config
    return config.model_copy(update={"min_length_ratio": 0.0, "max_length_ratio": 0.0})


def min_lengths(settings: "SearchConfig", src_lengths: Tensor) -> Tensor:
    """Returns the minimum number of tokens of each translation, without EOS, `(B,)`; always less than `max_length`.

    `src_lengths` `(B,)` are the source lengths in tokens, including EOS.
    """
    src_tokens = src_lengths.double() - 1  # (B,)
    by_source = src_tokens * settings.min_length_ratio  # (B,)
    by_source = by_source.floor()  # (B,)
    # Clamped before the conversion, because a number above the largest int64 would become negative.
    by_source = by_source.clamp(max=settings.max_length).long()  # (B,)
    return by_source.clamp(min=settings.min_length, max=settings.max_length - 1)


def max_lengths(
    settings: "SearchConfig", src_lengths: Tensor, required: Tensor | None = None
) -> Tensor:
    """Returns the maximum number of tokens of each translation, including EOS, `(B,)`, at least 1.

    The maximum is raised if the minimum length or required tokens make this necessary.

    Args:
        settings: the search settings.
        src_lengths: number of tokens of each source, including EOS, `(B,)`.
        required: number of tokens, without EOS, that rules require, such as those of a forced prefix, `(B,)`.
    """
    # Single precision, unlike in `min_lengths`. In either precision, rounding gives a different integer than decimal
    # arithmetic for some products. The precision is kept because changing it would change existing results.
    by_source = (src_lengths.float() * settings.max_length_ratio).floor()  # (B,)
    by_source = by_source.clamp(max=settings.max_length).long()  # (B,)
    if settings.max_length_ratio:
        by_source += settings.max_length_offset
    else:
        by_source += settings.max_length
    shortest_limits = min_lengths(settings, src_lengths) + 1  # (B,)
    limits = by_source.maximum(shortest_limits).clamp(max=settings.max_length)  # (B,)

    if required is not None:
        limits = limits.maximum(required + 1)  # (B,): one more token for EOS
    return limits.clamp(min=1)


def length_limits(
    model: "Decoder",
    config: "SearchConfig",
    lengths: Tensor,
    required: Tensor | None,
    prompt_lengths: Tensor | None,
) -> Tensor:
    """Returns the maximum number of tokens of each translation, including EOS, `(B,)`, given the model's positions.

    A limit exceeds the model's number of positions only if rules require more tokens. All tensors are on the CPU.

    Args:
        model: the model, some of whose positions are reserved.
        config: the settings that apply to the batch: see `applicable_limits`.
        lengths: number of tokens of each source, including EOS, `(B,)`.
        required: number of tokens that rules require, `(B,)`; None if they do not require any.
        prompt_lengths: number of tokens of each prompt, `(B,)`; None without prompts.
    """
    limits = max_lengths(config, lengths, required)  # (B,)
    n_positions = int(limits.max())
    if prompt_lengths is not None:
        n_positions += int(prompt_lengths.max())
    if reserve_positions(model, n_positions):
        return limits
    while not reserve_positions(model, n_positions):
        n_positions -= 1
    positions_left: int | Tensor = n_positions
    if prompt_lengths is not None:
        # Each sentence has only the positions after its own prompt.
        positions_left = n_positions - prompt_lengths  # (B,)
    shortest_config = config.model_copy(update={"max_length": 1})
    shortest_limits = max_lengths(shortest_config, lengths, required)  # (B,)
    return limits.clamp(max=positions_left).maximum(shortest_limits)
