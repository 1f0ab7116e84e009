"""A quantization scheme: which integers a target computes with.

It comes from three places: the family's `scheme.toml` (arithmetic, rounding, which operators share a scale),
the device (how many bits weights may use), and the caller (which of the weight modes).

| weights | integers | when |
|---|---|---|
| 8 | [-127, 127] | sums of products do not saturate |
| 7 | [-63, 63] | u8 x s8 products are added in pairs in int16: 2 x 255 x 64 = 32640 fits, so 64 is the last
             safe integer; 63 is the largest of the symmetric 7-bit range |
| pair | [-127, 127], and every pair's same-sign sum is at most 128 | as 7, with the full range where a pair
             leaves room: 255 x 128 = 32640 fits int16, 255 x 129 does not |
"""

from __future__ import annotations

import hashlib
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from edgefuse.device import Target
from edgefuse.errors import InputError, UnsupportedError, UsageError
from edgefuse.quant.scheme_file import BiasKind, FixedOutput, Rounding, read_scheme

__all__ = ["PAIR_SUM_LIMIT", "PAIR_SUM_STEPS", "SMALLEST_SCALE", "WEIGHT_MODES", "Scheme", "scheme_of"]

WEIGHT_MODES = ("8", "7", "pair")
# Two products of one sign, 255 x (w0 + w1), must stay within int16.
PAIR_SUM_LIMIT = 32767 // 255
# What a pair may sum to before rounding, in steps: each of the two rounds up by half a step at most.
PAIR_SUM_STEPS = 127.4
# Devices hold scales in float32 and some flush what is below its smallest normal number to 0.
SMALLEST_SCALE = 2.0**-126


@dataclass(frozen=True, slots=True)
class Scheme:
    """How activations and weights become integers.

    activation_low, activation_high: the integer range.  symmetric: zero point 0 in the middle.
    weight_bits: 8 or 7; weights use [-(2^(bits-1) - 1), 2^(bits-1) - 1], zero point 0.
    per_channel: one weight scale for each output channel, but for operators in `per_tensor_weights`.
    pair_aware: 8-bit scales raised until no pair of neighbouring input channels can saturate int16.
    rounding: of float to integer; requantization: of an accumulator to an int8 output.
    bias: integers at scale (input x weight), or float.
    shared_groups: a grouped ConvTranspose has one scale a channel for all its groups.
    depthwise_saturates: depthwise weights follow the 7-bit and pair rules too.
    saturates_pairs: the device adds two products in int16.  same_scale: operators whose int8 inputs and
    outputs have one scale.  fixed_outputs: (operator, parameters) pairs.
    """

    activation_low: int
    activation_high: int
    symmetric: bool
    weight_bits: int
    per_channel: bool
    pair_aware: bool = False
    rounding: Rounding = "half_even"
    requantization: Rounding = "half_even"
    bias: BiasKind = "float"
    per_tensor_weights: tuple[str, ...] = ()
    shared_groups: bool = False
    depthwise_saturates: bool = True
    saturates_pairs: bool = False
    same_scale: tuple[str, ...] = ()
    fixed_outputs: tuple[tuple[str, FixedOutput], ...] = ()

    @property
    def weight_limit(self) -> int:
        """Return the largest weight integer: 127, or 63 for 7 bits."""
        return int(2 ** (self.weight_bits - 1) - 1)

    @property
    def activation_bits(self) -> int:
        """Return 8 or 16, the width that holds the activations' integers."""
        return 8 if self.activation_high - self.activation_low < 256 else 16

    @property
    def name(self) -> str:
        """Return the scheme in short: "static_w7c_a8" is 7-bit weights per channel, 8-bit activations.

        "w8p" is pair-aware; "t" in place of "c" per tensor; "s" at the end symmetric activations.
        """
        granularity = "c" if self.per_channel else "t"
        weights = f"w{self.weight_bits}{'p' if self.pair_aware else ''}{granularity}"
        return f"static_{weights}_a{self.activation_bits}{'s' if self.symmetric else ''}"

    @property
    def digest(self) -> str:
        """Return the sha256 of every field: two schemes with one digest make the same integers."""
        return hashlib.sha256(repr(astuple(self)).encode()).hexdigest()

    def is_per_channel(self, op_type: str) -> bool:
        """Return whether the weights of the operator have one scale for each output channel."""
        return self.per_channel and op_type not in self.per_tensor_weights

    def fixed_output(self, op_type: str) -> FixedOutput | None:
        """Return the parameters that the operator's output always has, or None."""
        return dict(self.fixed_outputs).get(op_type)

    def grid(self, low: Any, high: Any) -> tuple[Any, Any]:
        """Return (scale, zero point) as float64 for ranges [low, high] that hold 0, elementwise.

        Symmetric: zero point 0, scale = max|x| / high. Affine: scale = (high - low) / steps, the zero point
        rounded so that 0 is exact (Jacob et al. 2018, arXiv 1712.05877, section 3). An empty range has scale
        1; no scale is below SMALLEST_SCALE.
        """
        low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
        first, last = self.activation_low, self.activation_high
        scale = np.maximum(-low, high) / last if self.symmetric else (high - low) / (last - first)
        scale = np.where(scale > 0, np.maximum(scale, SMALLEST_SCALE), 1.0)
        if self.symmetric:
            return scale, np.zeros_like(scale)
        return scale, np.clip(np.rint(first - low / scale), first, last)


def scheme_of(target: Target, weight: str | None = None, *, activation_bits: int = 8) -> Scheme:
    """Return the scheme of a target.

    weight: "8", "7" or "pair"; None takes "8", or on a device whose sums of products saturate what the
    family's scheme.toml says of its kernels ("7" or "pair").
    activation_bits: 8, or 16 where the family has it.
    Raises UnsupportedError for a device without int8 or a family without that width; UsageError for an
    unknown mode; InputError where the family's scheme.toml and the device contradict each other.
    """
    device = target.device
    if device.int8 == "none":
        raise UnsupportedError(f"{device.name} has no int8: {device.int8_reason}")
    bits = int(device.int8_weight_bits) if device.int8_weight_bits is not None else 8
    rules = read_scheme(target.family).for_runtime(target.runtime.name)
    mode = weight or ("8" if bits >= 8 else rules.saturating_weights)
    if mode not in WEIGHT_MODES:
        raise UsageError(f"unknown weight mode {mode!r}", expected=" or ".join(WEIGHT_MODES), got=mode)
    held = rules.activations.get(str(activation_bits))
    if held is None:
        raise UnsupportedError(
            f"{device.name} has no {activation_bits}-bit activations",
            expected=" or ".join(f"{known} bits" for known in rules.activations),
        )
    if rules.activations["8"].symmetric != (device.int8 == "symmetric"):
        raise InputError(
            f"{target.family}/scheme.toml and the device {device.name} contradict each other",
            expected=f'int8 = "{device.int8}", as the device says',
            got=f"symmetric = {rules.activations['8'].symmetric}",
        )
    return Scheme(
        held.low,
        held.high,
        held.symmetric,
        weight_bits=7 if mode == "7" else 8,
        per_channel=rules.per_channel,
        pair_aware=mode == "pair",
        rounding=rules.rounding,
        requantization=rules.requantization,
        bias=held.bias,
        per_tensor_weights=rules.per_tensor_weights,
        shared_groups=rules.grouped_transposed == "shared",
        depthwise_saturates=rules.depthwise_saturates,
        saturates_pairs=bits < 8,
        same_scale=rules.same_scale,
        fixed_outputs=tuple(sorted(held.fixed_outputs.items())),
    )
