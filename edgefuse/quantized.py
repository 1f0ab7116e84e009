"""Quantized tensors: what quant/ decides and a backend encodes. Pure data.

Affine quantization as in ONNX QuantizeLinear: q = clamp(round(x / scale) + zero_point, low, high).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

__all__ = ["Quantized", "QuantizedActivation", "QuantizedBias", "QuantizedWeight"]


@dataclass(frozen=True, slots=True)
class QuantizedActivation:
    """Per-tensor parameters of one activation.

    scale: > 0.  zero_point: an integer in [low, high].  low, high: the integer range, (0, 255) or (-128, 127)
    or narrower.  minimum, maximum: the observed range that they come from.
    """

    scale: float
    zero_point: int
    low: int
    high: int
    minimum: float
    maximum: float


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A weight as integers.

    values: int8, the shape of the float weight.  scale: float32 [channels] along `axis`, or [1] per tensor
    (axis None).  Zero point 0.  bits: 8, or 7 where the target saturates pairs of products.
    groups: 1; or the groups of a transposed convolution [I, O/g, ...] whose channels have scales of their
    own: scale is then [O], in the order of the output channels, on no one axis (see `expanded_scale`).
    """

    values: np.ndarray
    scale: np.ndarray
    axis: int | None
    bits: int
    groups: int = 1

    def expanded_scale(self) -> np.ndarray:
        """Return the scale as float32 in a shape that broadcasts over `values`."""
        scale = self.scale.astype(np.float32)
        shape = [1] * self.values.ndim
        if self.axis is None:
            return scale.reshape(shape)
        shape[self.axis] = -1
        if self.groups == 1:
            return scale.reshape(shape)
        shape[0] = self.groups
        rows: np.ndarray = scale.reshape(shape).repeat(self.values.shape[0] // self.groups, axis=0)
        return rows

    def dequantized(self) -> np.ndarray:
        """Return values * scale as float32, the numbers that the integers stand for."""
        scaled: np.ndarray = self.values.astype(np.float32) * self.expanded_scale()
        return scaled


@dataclass(frozen=True, slots=True)
class QuantizedBias:
    """A bias in the integers that a device adds to its accumulators.

    values: int32 (int64 with 16-bit activations) [channels].  scale: float64 [channels], the product of the
    input's scale, the weight's and the node's own factor; values * scale is the bias that is added.
    """

    values: np.ndarray
    scale: np.ndarray

    def dequantized(self) -> np.ndarray:
        """Return values * scale as float64."""
        real: np.ndarray = self.values * self.scale
        return real


@dataclass(frozen=True, slots=True)
class Quantized:
    """Every quantized tensor of a model under one plan.

    activations: by value name.  weights: by (node name, input index), since two nodes may read one float
    weight at different scales.  outputs: value names whose *writer* keeps float (not requantized in place).
    biases: by node name, the float32 [channels] bias that replaces the node's own (zeros where it has none);
    how a node takes it: edgefuse.lowering.apply_biases.
    integer_biases: by node name, what is added to the accumulators where the scheme has integer biases
    (from `biases` where the node stands there, else the node's own); empty elsewhere.
    """

    activations: Mapping[str, QuantizedActivation] = field(default_factory=dict)
    weights: Mapping[tuple[str, int], QuantizedWeight] = field(default_factory=dict)
    scheme: str = ""
    biases: Mapping[str, np.ndarray] = field(default_factory=dict)
    integer_biases: Mapping[str, QuantizedBias] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.weights)
