"""Biases as the integers that a device adds to its accumulators, and weight scales that let them fit.

q = round_half_even(b / s), s = input scale x weight scale x the node's own factor (alpha of a Gemm).

A channel whose weights are all but zero has a tiny weight scale, and its bias then needs more than 32 bits:
saturated, it is silently wrong (a bias of 5.0 at a scale of 2e-12). So the weight scale is raised until the
bias fits in half of the accumulator's range; the other half is left to the products. The weights that lose
levels by it are those that the bias drowns.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgefuse.errors import InternalError
from edgefuse.graph import Model, Node, attribute
from edgefuse.lowering import bias_of
from edgefuse.quant.scheme import SMALLEST_SCALE, Scheme
from edgefuse.quant.weights import weight_rule
from edgefuse.quantized import Quantized, QuantizedActivation, QuantizedBias, QuantizedWeight

__all__ = ["integer_bias", "smallest_scale", "with_integer_biases"]

_LARGEST = {"int32": 2**30, "int64": 2**38}
_DTYPE = {"int32": np.int32, "int64": np.int64}


def smallest_scale(node: Node, read: QuantizedActivation, scheme: Scheme) -> np.ndarray:
    """Return the smallest weight scale of each channel (or of the tensor, [1]) that the node's bias allows.

    float64, in the order of `QuantizedWeight.scale`. The product with the input's scale is a normal float32.
    """
    least = np.full(1, SMALLEST_SCALE / min(read.scale, 1.0))
    factor = abs(_factor(node))
    held = bias_of(node)
    if scheme.bias == "float" or held is None or not factor:
        return least
    needed = np.abs(held[1].astype(np.float64)) / (read.scale * factor * _LARGEST[scheme.bias])
    rule = weight_rule(node, scheme)
    if rule.axis is None:
        needed = needed.max(keepdims=True)
    elif rule.groups > 1 and rule.shared:
        needed = needed.reshape(rule.groups, -1).max(axis=0)
    largest: np.ndarray = np.maximum(needed, least)
    return largest


def integer_bias(
    node: Node, bias: np.ndarray, read: QuantizedActivation, weight: QuantizedWeight, scheme: Scheme
) -> QuantizedBias:
    """Return a float bias [channels] as integers.

    Raises InternalError where it does not fit: the weight was quantized without `smallest_scale`.
    """
    scale = weight.scale.astype(np.float64)
    if weight.axis is not None and weight.groups == 1 and len(scale) < len(bias):
        scale = np.tile(scale, len(bias) // len(scale))  # one scale a channel for all groups
    scale = np.broadcast_to(_factor(node) * read.scale * scale, bias.shape).copy()
    values = np.rint(bias.astype(np.float64) / scale)
    kind = _DTYPE["int64" if scheme.bias == "int64" else "int32"]
    if np.abs(values).max(initial=0.0) > np.iinfo(kind).max:
        raise InternalError(f"the bias of node {node.name!r} does not fit in {np.dtype(kind)}")
    return QuantizedBias(values.astype(kind), scale)


def with_integer_biases(model: Model, quantized: Quantized, scheme: Scheme) -> Quantized:
    """Return `quantized` with its integer biases made anew; unchanged where the scheme's biases are float.

    Call it after `biases` or weights change. Keys are those of `biases` (edgefuse.lowering.bias_of). Nodes
    whose bias is computed or differs between rows have none: it is added in float. The bias of an Add behind
    a MatMul is one of these only where the Add is in the MatMul's group.
    """
    if scheme.bias == "float":
        return quantized
    nodes = {node.name: node for node in model.graph}
    found: dict[str, QuantizedBias] = {}
    for (name, index), weight in quantized.weights.items():
        node = nodes[name]
        held, value = bias_of(node), node.inputs[0]
        if index != 1 or held is None or value is None or not _factor(node):
            continue
        holder, bias = held
        read = quantized.activations[value.name or ""]
        found[holder] = integer_bias(node, quantized.biases.get(holder, bias), read, weight, scheme)
    return replace(quantized, integer_biases=found)


def _factor(node: Node) -> float:
    return float(attribute(node, "alpha", 1.0)) if node.op_type == "Gemm" else 1.0
