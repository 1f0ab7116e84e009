"""Integers and parameters for what a plan keeps in int8.

Weights: symmetric, per output channel, q = clamp(round_half_even(w / s), -limit, limit), s = max|w| / limit.
Activations: affine over the observed range widened to hold zero, so that zero is exact (Jacob et al. 2018,
arXiv 1712.05877, eq. 1 and section 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from edgefuse.errors import InputError
from edgefuse.graph import Model, Node, attribute, constant, input_value, is_float
from edgefuse.plans import Plan
from edgefuse.quant.calibrate import Range
from edgefuse.quant.scheme import Scheme
from edgefuse.quantized import Quantized, QuantizedActivation, QuantizedWeight

__all__ = ["activation_parameters", "output_axis", "quantize_plan", "quantize_weight", "quantized_reads"]


def activation_parameters(found: Range, scheme: Scheme) -> QuantizedActivation:
    """Return scale and zero point for an observed range.

    Symmetric: zero point 0, scale = max|x| / high. Affine: scale = (high - low) / levels with zero exact.
    A tensor that is always zero gets scale 1.
    """
    wide = found.including_zero()
    low, high = scheme.activation_low, scheme.activation_high
    if scheme.symmetric:
        scale = max(-wide.low, wide.high) / high or 1.0
        return QuantizedActivation(scale, 0, low, high, found.low, found.high)
    scale = (wide.high - wide.low) / (high - low) or 1.0
    zero = int(np.clip(round(low - wide.low / scale), low, high))
    return QuantizedActivation(scale, zero, low, high, found.low, found.high)


def output_axis(node: Node) -> int:
    """Return the axis of the weight (input 1) that runs over output channels.

    Conv [O, I/g, ...]: 0.  ConvTranspose [I, O/g, ...]: 1.  MatMul [K, N]: 1.  Gemm: 1, or 0 with transB.
    """
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1
    if node.op_type == "Gemm":
        return 0 if attribute(node, "transB", 0) else 1
    return len(constant(node.inputs[1]).shape) - 1  # type: ignore[union-attr]


def quantize_weight(weight: np.ndarray, axis: int | None, scheme: Scheme) -> QuantizedWeight:
    """Return a float weight as integers; a channel of zeros gets scale 1 (its integers are 0)."""
    limit = scheme.weight_limit
    values = weight.astype(np.float64)
    others = tuple(i for i in range(values.ndim) if i != axis) if axis is not None else None
    largest = np.abs(values).max(axis=others)
    scale = np.where(largest > 0, largest / limit, 1.0).astype(np.float32).reshape(-1)
    shape = [1] * values.ndim
    if axis is not None:
        shape[axis] = -1
    steps = values / scale.astype(np.float64).reshape(shape if axis is not None else [1] * values.ndim)
    integers = np.clip(np.rint(steps), -limit, limit).astype(np.int8)
    return QuantizedWeight(integers, scale, axis, scheme.weight_bits)


def quantized_reads(nodes: Iterable[Node]) -> tuple[list[str], list[tuple[Node, int]]]:
    """Return what a group of these nodes reads in int8: activation names, and (node, index) of its weight.

    The anchor's activation, its weight, and what later nodes of the group read from outside (a residual).
    Biases and other constants of later nodes stay float.
    """
    held = list(nodes)
    inside = {id(v) for node in held for v in node.outputs}
    activations: list[str] = []
    weights: list[tuple[Node, int]] = []
    for position, node in enumerate(held):
        for index, value in enumerate(node.inputs):
            if value is None or id(value) in inside or not is_float(value):
                continue
            if constant(value) is None:
                activations.append(value.name or "")
            elif position == 0 and index == 1:
                weights.append((node, index))
    return list(dict.fromkeys(activations)), weights


def quantize_plan(model: Model, plan: Plan, ranges: Mapping[str, Range], scheme: Scheme) -> Quantized:
    """Return every quantized tensor that the plan's int8 groups need.

    Raises InputError where a tensor was never observed (calibration data did not reach it).
    """
    nodes = {node.name: node for node in model.graph}
    activations: dict[str, QuantizedActivation] = {}
    weights: dict[tuple[str, int], QuantizedWeight] = {}
    for group in plan.groups:
        if group.precision != "int8":
            continue
        names, held = quantized_reads(nodes[name] for name in group.nodes)
        for name in names:
            if name not in ranges:
                raise InputError(
                    f"tensor {name!r} has no range: no calibration sample reached it",
                    hint="use calibration data that is like the data in the field",
                )
            activations[name] = activation_parameters(ranges[name], scheme)
        for node, index in held:
            weight = constant(input_value(node, index))
            assert weight is not None
            axis = output_axis(node) if scheme.per_channel else None
            weights[(node.name or "", index)] = quantize_weight(weight, axis, scheme)
    return Quantized(activations, weights, scheme.name)
