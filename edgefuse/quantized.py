"""Quantized tensors: what quant/ decides and a backend encodes. Pure data.

Affine quantization as in ONNX QuantizeLinear: q = clamp(round(x / scale) + zero_point, low, high).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

__all__ = ["Quantized", "QuantizedActivation", "QuantizedWeight"]


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
    """

    values: np.ndarray
    scale: np.ndarray
    axis: int | None
    bits: int

    def dequantized(self) -> np.ndarray:
        """Return values * scale as float32, the numbers that the integers stand for."""
        shape = [1] * self.values.ndim
        if self.axis is not None:
            shape[self.axis] = -1
        scaled: np.ndarray = self.values.astype(np.float32) * self.scale.reshape(shape).astype(np.float32)
        return scaled


@dataclass(frozen=True, slots=True)
class Quantized:
    """Every quantized tensor of a model under one plan.

    activations: by value name.  weights: by (node name, input index), since two nodes may read one float
    weight at different scales.  outputs: value names whose *writer* keeps float (not requantized in place).
    biases: by node name, the float32 [channels] bias that replaces the node's own (zeros where it has none);
    how a node takes it: edgefuse.lowering.apply_biases.
    """

    activations: Mapping[str, QuantizedActivation] = field(default_factory=dict)
    weights: Mapping[tuple[str, int], QuantizedWeight] = field(default_factory=dict)
    scheme: str = ""
    biases: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.weights)
