"""A quantization scheme: which integers a target computes with."""

from __future__ import annotations

from dataclasses import dataclass

from edgefuse.device import Target
from edgefuse.errors import UnsupportedError

__all__ = ["Scheme", "scheme_of"]


@dataclass(frozen=True, slots=True)
class Scheme:
    """How activations and weights become integers.

    activation_low, activation_high: the integer range.  symmetric: zero point 0 in the middle.
    weight_bits: 8 or 7; weights use [-(2^(bits-1) - 1), 2^(bits-1) - 1], zero point 0.
    per_channel: one weight scale for each output channel.
    """

    activation_low: int
    activation_high: int
    symmetric: bool
    weight_bits: int
    per_channel: bool

    @property
    def weight_limit(self) -> int:
        """Return the largest weight integer."""
        return int(2 ** (self.weight_bits - 1) - 1)

    @property
    def name(self) -> str:
        """Return the scheme in short: "static_w7c_a8" is 7-bit weights per channel, 8-bit activations."""
        granularity = "c" if self.per_channel else "t"
        return f"static_w{self.weight_bits}{granularity}_a8{'s' if self.symmetric else ''}"


def scheme_of(target: Target) -> Scheme:
    """Return the scheme of the target's device description; raises UnsupportedError without int8."""
    device = target.device
    if device.int8 == "none":
        raise UnsupportedError(f"{device.name} has no int8: {device.int8_reason}")
    symmetric = device.int8 == "symmetric"
    low, high = (-127, 127) if symmetric else (0, 255)
    bits = int(device.int8_weight_bits) if device.int8_weight_bits is not None else 8
    return Scheme(low, high, symmetric, bits, per_channel=True)
