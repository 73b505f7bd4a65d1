"""An exponential moving average of the weights: often a better model than the last weights, at no extra training."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from nmtkit.errors import CheckpointError


class Ema:
    """Averages weights w over updates: a <- d a + (1 - d) w.

    The decay of update n is d = min(decay, (1 + n) / (10 + n)), so that the random first weights are soon forgotten in
    a short training.

    Args:
        parameters: name to parameter, each once.
        decay: in (0, 1); 1 / (1 - decay) is about the number of updates averaged over.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        self._parameters = dict(parameters)
        self._decay = decay
        self.averages = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}

    def update(self, number: int) -> None:
        """Takes in the weights as they are after update `number`, from 1."""
        decay = min(self._decay, (1 + number) / (10 + number))
        weights = [parameter.detach() for parameter in self._parameters.values()]
        torch._foreach_lerp_(list(self.averages.values()), weights, 1 - decay)  # one call for all tensors

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the averages as its weights inside, and its own weights again after it."""
        own = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        self._fill(self.averages)
        try:
            yield
        finally:
            self._fill(own)

    def restore(self, averages: Mapping[str, Tensor]) -> None:
        """Takes over averages that were saved; without any they start from the weights as they are now.

        Raises:
            CheckpointError: some are missing, or of other shapes.
        """
        for name, average in self.averages.items():
            saved = averages.get(name) if averages else self._parameters[name].detach()
            if saved is None or saved.shape != average.shape:
                raise CheckpointError(f"the averaged weights are not those of the model: {name!r}")
            average.copy_(saved)

    def _fill(self, values: Mapping[str, Tensor]) -> None:
        # Copying in place keeps the addresses, which compiled and captured code relies on.
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(values[name])
