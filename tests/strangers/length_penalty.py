"""A length penalty that stops growing at 30 tokens."""

from torch import Tensor

from nmtkit.decoding.scorers import LENGTH_PENALTIES, LengthPenalty


@LENGTH_PENALTIES.register("bounded")
class BoundedLengthPenalty(LengthPenalty):
    def divisors(self, lengths: Tensor) -> Tensor:
        return lengths.double().clamp(max=30).pow(self.alpha)
