"""Integers and parameters for what a plan keeps in int8.

Weights: `edgefuse.quant.weights`. Activations: affine over the observed range widened to hold zero, so that
zero is exact (Jacob et al. 2018, arXiv 1712.05877, eq. 1 and section 3), symmetric where the scheme says so;
an operator with fixed output parameters has those. Tensors that share a scale have the union of their ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from edgefuse.errors import InputError
from edgefuse.graph import Model, Node, Value, constant, is_float
from edgefuse.plans import Plan
from edgefuse.quant.calibrate import Range
from edgefuse.quant.integer_bias import smallest_scale, with_integer_biases
from edgefuse.quant.scheme import Scheme
from edgefuse.quant.scheme_file import FixedOutput
from edgefuse.quant.sharing import scale_groups
from edgefuse.quant.weights import WEIGHTED, output_axis, quantize_node_weight, quantize_weight
from edgefuse.quantized import Quantized, QuantizedActivation, QuantizedWeight

__all__ = [
    "activation_parameters",
    "output_axis",
    "quantize_plan",
    "quantize_weight",
    "quantized_reads",
    "value_parameters",
]


def activation_parameters(found: Range, scheme: Scheme) -> QuantizedActivation:
    """Return scale and zero point for an observed range.

    Symmetric: zero point 0, scale = max|x| / high. Affine: scale = (high - low) / levels with zero exact.
    A tensor that is always zero gets scale 1.
    """
    wide = found.including_zero()
    scale, zero = scheme.grid(wide.low, wide.high)
    low, high = scheme.activation_low, scheme.activation_high
    return QuantizedActivation(float(scale), int(zero), low, high, found.low, found.high)


def value_parameters(value: Value, found: Range, scheme: Scheme) -> QuantizedActivation:
    """Return scale and zero point of one tensor: fixed by the operator that writes it, or from its range."""
    fixed = _fixed(value, scheme)
    if fixed is None:
        return activation_parameters(found, scheme)
    low, high = scheme.activation_low, scheme.activation_high
    return QuantizedActivation(fixed.scale, fixed.zero_point, low, high, found.low, found.high)


def _fixed(value: Value, scheme: Scheme) -> FixedOutput | None:
    producer = value.producer()
    return None if producer is None else scheme.fixed_output(producer.op_type)


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
            elif position == 0 and index == 1 and node.op_type in WEIGHTED:
                weights.append((node, index))
    return list(dict.fromkeys(activations)), weights


def quantize_plan(model: Model, plan: Plan, ranges: Mapping[str, Range], scheme: Scheme) -> Quantized:
    """Return every quantized tensor that the plan's int8 groups need.

    Raises InputError where a tensor was never observed (calibration data did not reach it).
    """
    nodes = {node.name or "": node for node in model.graph}
    names, held = _int8_reads(plan, nodes, ranges)
    for name in names:
        if name not in ranges:
            raise InputError(
                f"tensor {name!r} has no range: no calibration sample reached it",
                hint="use calibration data that is like the data in the field",
            )
    activations = _activations(model, plan, names, ranges, scheme)
    weights: dict[tuple[str, int], QuantizedWeight] = {}
    for node, index in held:
        read = node.inputs[0]
        assert read is not None
        smallest = smallest_scale(node, activations[read.name or ""], scheme)
        weights[(node.name or "", index)] = quantize_node_weight(node, scheme, smallest=smallest)
    return with_integer_biases(model, Quantized(activations, weights, scheme.name), scheme)


def _int8_reads(
    plan: Plan, nodes: Mapping[str, Node], ranges: Mapping[str, Range]
) -> tuple[list[str], list[tuple[Node, int]]]:
    """Return what int8 groups read, and what they write in int8 with a known range; and their weights."""
    names: list[str] = []
    held: list[tuple[Node, int]] = []
    for group in plan.groups:
        if group.precision != "int8":
            continue
        read, weights = quantized_reads(nodes[name] for name in group.nodes)
        names += read
        held += weights
        if group.output.dtype == "int8":
            names += [name for name in group.writes if name in ranges]
    return list(dict.fromkeys(names)), held


def _activations(
    model: Model, plan: Plan, names: Iterable[str], ranges: Mapping[str, Range], scheme: Scheme
) -> dict[str, QuantizedActivation]:
    values = {v.name or "": v for v in model.graph.inputs}
    values.update({v.name or "": v for node in model.graph for v in node.outputs})
    found = {name: value_parameters(values[name], ranges[name], scheme) for name in names}
    for members in scale_groups(model, plan, scheme):
        together = [name for name in members if name in ranges and _fixed(values[name], scheme) is None]
        if not any(name in found for name in together):
            continue
        low, high = min(ranges[n].low for n in together), max(ranges[n].high for n in together)
        shared = activation_parameters(Range(low, high), scheme)
        for name in together:
            if name in found:
                own = ranges[name]
                found[name] = QuantizedActivation(
                    shared.scale, shared.zero_point, shared.low, shared.high, own.low, own.high
                )
    return found
