"""The user's own quantization on a target: kept exactly where its integers can, re-expressed where not.

A grid (scale, zero point) is kept exactly where the target's integers hold the same steps: int8 and uint8 are
one grid, shifted. A target with zero point 0 only keeps what is centred; another grid of it is widened until
it is, and the rounding noise grows by 20 log10(new scale / old scale) dB. Weights keep their integers, unless
the target adds two products in int16 (then a channel whose pairs could overflow gets a larger scale), or has
one scale a tensor, or no zero point for weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from edgefuse.graph import Model, Node, Value, constant, input_value, source_name
from edgefuse.graph.edit import GRID_KEY
from edgefuse.plans import Plan
from edgefuse.quant.calibrate import Range
from edgefuse.quant.grids import Grid, ImportedWeight
from edgefuse.quant.integer_bias import smallest_scale, with_integer_biases
from edgefuse.quant.quantize import activation_parameters, quantized_reads
from edgefuse.quant.scheme import Scheme
from edgefuse.quant.sharing import scale_groups
from edgefuse.quant.strip_quantizers import Stripped
from edgefuse.quant.value_bounds import MOVES_VALUES
from edgefuse.quant.weights import (
    WeightRule,
    largest_pair_sum,
    output_axis,
    quantize_by_rule,
    weight_rule,
)
from edgefuse.quantized import Quantized, QuantizedActivation, QuantizedWeight

__all__ = [
    "ImportedQuantization",
    "Kept",
    "find_imported",
    "grid_on_target",
    "imported_ranges",
    "keep_imported",
    "unranged_nodes",
    "weight_on_target",
]

# |q| <= 64: two products with an unsigned byte stay within int16 (see Scheme).
_PAIR_SAFE = 64
# They only rename or reorder: a grid of the result is one of the input.
_PERMUTES = frozenset(
    "DepthToSpace Flatten Identity Reshape SpaceToDepth Squeeze Transpose Unsqueeze".split()
)
_ANCHORS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
# How exactly float32 arithmetic of a pass (a BatchNorm folded in) may leave integer * scale.
_RELATIVE = 2e-6
# Elements whose zeros are compared first: two different weights rarely agree in them.
_PROBED = 512


@dataclass(frozen=True, slots=True)
class ImportedQuantization:
    """The quantization that a model brought with it, on the prepared model.

    ranges: the grid of each float tensor that has one, by value name.  weights: by (node name, input index).
    pairs: activations whose Q/DQ pair was taken out; clips: how many of these left a Clip behind.
    notes: what the user should know.
    """

    ranges: Mapping[str, Grid] = field(default_factory=dict)
    weights: Mapping[tuple[str, int], ImportedWeight] = field(default_factory=dict)
    pairs: int = 0
    clips: int = 0
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ranges)


@dataclass(frozen=True, slots=True)
class Kept:
    """What became of the user's quantization under one plan.

    quantized: as `quantize_plan` returns it, with the user's own integers.  activations, weights: how many
    were kept exactly.  coarser_db: by value name, growth of the rounding noise in dB of a grid that was
    re-expressed (inf: nothing of it could be used).  weights_db: by user's node name, SQNR of a weight that
    was re-expressed against the user's.
    """

    quantized: Quantized
    activations: int
    weights: int
    coarser_db: Mapping[str, float] = field(default_factory=dict)
    weights_db: Mapping[str, float] = field(default_factory=dict)

    def notes(self) -> list[str]:
        """Return what the report says, one line each."""
        lines = [
            f"ranges: the model's own (QAT): {self.activations} of {self.activations + len(self.coarser_db)} "
            f"activations and {self.weights} of {self.weights + len(self.weights_db)} weights keep their "
            "integers exactly"
        ]
        if self.coarser_db:
            name = max(self.coarser_db, key=lambda key: self.coarser_db[key])
            lines.append(
                f"{len(self.coarser_db)} activations re-expressed in the target's integers: rounding noise "
                f"{self.coarser_db[name]:+.1f} dB at worst ({name!r})"
            )
        if self.weights_db:
            name = min(self.weights_db, key=lambda key: self.weights_db[key])
            lines.append(
                f"{len(self.weights_db)} weights re-expressed in the target's integers: "
                f"{self.weights_db[name]:.1f} dB of the model's own at worst ({name!r})"
            )
        return lines


def find_imported(model: Model, stripped: Stripped) -> ImportedQuantization:
    """Return the quantization on `model`, which `strip_quantizers` and then any passes have changed.

    Grids stand where the passes carried them, and on what only moves the values of such a tensor. A weight is
    found by its numbers: integers times one factor a channel, so that a BatchNorm folded into it changes the
    scale and not the integers. The labels are taken off the model.
    """
    labels = dict(_tagged(model))
    ranges = {name: stripped.grids[label] for name, label in labels.items() if label in stripped.grids}
    for value in _values(model):
        value.metadata_props.pop(GRID_KEY, None)
    _spread(model, ranges)
    weights: dict[tuple[str, int], ImportedWeight] = {}
    for node in model.graph:
        array = constant(input_value(node, 1)) if node.op_type in _ANCHORS else None
        if array is None or array.dtype.kind != "f":
            continue
        own = _recover(node, array.astype(np.float32, copy=False), stripped.weights)
        if own is not None:
            weights[(node.name or "", 1)] = own
    return ImportedQuantization(ranges, weights, stripped.pairs, stripped.clips, tuple(stripped.notes()))


def _values(model: Model) -> Iterable[Value]:
    yield from model.graph.inputs
    for node in model.graph:
        yield from node.outputs


def _tagged(model: Model) -> Iterable[tuple[str, str]]:
    for value in _values(model):
        label = value.metadata_props.get(GRID_KEY)
        if label is not None and value.name:
            yield value.name, label


def _spread(model: Model, ranges: dict[str, Grid]) -> None:
    """Give a grid to what only moves the values of a tensor that has one, and back through a permutation."""
    nodes = list(model.graph)
    for node in nodes:
        source = node.inputs[0] if node.inputs else None
        if node.op_type in MOVES_VALUES and source is not None and source.name in ranges:
            for value in node.outputs:
                if value.name:
                    ranges.setdefault(value.name, ranges[source.name])
    for node in reversed(nodes):
        source = node.inputs[0] if node.inputs else None
        if node.op_type in _PERMUTES and source is not None and source.name and constant(source) is None:
            grid = ranges.get(node.outputs[0].name or "")
            if grid is not None:
                ranges.setdefault(source.name, grid)


def _recover(node: Node, array: np.ndarray, known: Iterable[ImportedWeight]) -> ImportedWeight | None:
    """Return the integers whose multiples, one factor a channel, are `array`, in its layout; or None."""
    step = max(1, array.size // _PROBED)
    zeros = array.reshape(-1)[::step] == 0
    for weight in known:
        for values, axis in _layouts(weight, array.shape):
            if not np.array_equal(values.reshape(-1)[::step] == 0, zeros):
                continue
            same = ImportedWeight(values, weight.scale, axis, weight.name)
            if np.array_equal(same.dequantized(), array):
                return same
            found = _rescaled(same, array, output_axis(node))
            if found is not None:
                return found
    return None


def _layouts(weight: ImportedWeight, shape: tuple[int, ...]) -> Iterable[tuple[np.ndarray, int | None]]:
    """Yield the integers in `shape` with the axis of their scales: as they are, and with the two last axes
    of a matrix exchanged."""
    if weight.values.shape == shape:
        yield weight.values, weight.axis
    elif weight.values.size == math.prod(shape) and len(shape) != weight.values.ndim:
        squeezed = [i for i, d in enumerate(weight.values.shape) if d != 1]
        if [weight.values.shape[i] for i in squeezed] == [d for d in shape if d != 1] and weight.axis is None:
            yield weight.values.reshape(shape), None
    if weight.values.ndim == 2 and weight.values.shape[::-1] == shape:
        yield np.ascontiguousarray(weight.values.T), None if weight.axis is None else 1 - weight.axis


def _rescaled(weight: ImportedWeight, array: np.ndarray, output: int | None) -> ImportedWeight | None:
    """Return the integers with one factor a channel that makes `array` of them: along the weight's own axis,
    else along that of the outputs. A channel whose factor is negative gets its integers turned round."""
    values = weight.values
    for axis in dict.fromkeys((weight.axis, output)):
        rows = values.reshape(1, -1) if axis is None else np.moveaxis(values, axis, 0)
        real = array.reshape(1, -1) if axis is None else np.moveaxis(array, axis, 0)
        rows, real = rows.reshape(rows.shape[0], -1), real.reshape(real.shape[0], -1).astype(np.float64)
        place = (np.arange(rows.shape[0]), np.abs(rows).argmax(axis=1))
        top, held = rows[place].astype(np.float64), real[place]
        factor = np.where(top != 0, held / np.where(top != 0, top, 1.0), 1.0)
        error = np.abs(rows * factor[:, None] - real).max(axis=1, initial=0.0)
        if not (factor.all() and (error <= _RELATIVE * np.abs(real).max(axis=1, initial=0.0)).all()):
            continue
        shape = [1] * values.ndim
        if axis is not None:
            shape[axis] = -1
        turned = values * np.where(factor < 0, -1, 1).reshape(shape).astype(np.int32)
        return ImportedWeight(turned, np.abs(factor).astype(np.float32), axis, weight.name)
    return None


def grid_on_target(grid: Grid, scheme: Scheme) -> tuple[QuantizedActivation, float]:
    """Return the grid in the scheme's integers, and the growth of its rounding noise in dB (0: exact).

    Exact: the same scale, integers shifted. A centred grid that reaches one step below the scheme's lowest
    integer counts as exact too (-128 becomes -127). Else the range is kept and the scale grows.
    """
    low, high = scheme.activation_low, scheme.activation_high
    seen = (grid.minimum, grid.maximum)
    if scheme.symmetric:
        above, below = grid.high - grid.zero_point, grid.zero_point - grid.low
        if above <= high and below <= high + 1:
            return QuantizedActivation(grid.scale, 0, low, high, *seen), 0.0
    elif grid.high - grid.low <= high - low:
        # Where the user's range is narrower, what is outside was clipped before (strip_quantizers).
        return QuantizedActivation(grid.scale, grid.zero_point - grid.low + low, low, high, *seen), 0.0
    found = activation_parameters(Range(*seen), scheme)
    return found, 20.0 * math.log10(found.scale / grid.scale)


def imported_ranges(imported: ImportedQuantization, scheme: Scheme) -> dict[str, Range]:
    """Return ranges from which `activation_parameters` makes the grids of `grid_on_target`, to an ulp."""
    ranges = {}
    for name, grid in imported.ranges.items():
        on_target, _ = grid_on_target(grid, scheme)
        reach = (on_target.low - on_target.zero_point, on_target.high - on_target.zero_point)
        if scheme.symmetric:
            reach = (-on_target.high, on_target.high)
        ranges[name] = Range(reach[0] * on_target.scale, reach[1] * on_target.scale)
    return ranges


def weight_on_target(
    node: Node, weight: ImportedWeight, scheme: Scheme, least: np.ndarray | None = None
) -> tuple[QuantizedWeight, float | None]:
    """Return the weight in the scheme's integers, and its SQNR in dB against the user's (None: exact).

    least: no scale is below this ([channels] or [1]), so that the bias fits (`integer_bias.smallest_scale`).
    """
    rule = weight_rule(node, scheme)
    if rule.bits == 7:
        # Seven bits are for kernels that add pairs: eight are as safe where no pair can overflow.
        rule = weight_rule(node, replace(scheme, weight_bits=8, pair_aware=True))
    pairs = rule.pair_axis
    own = _on_axis(weight, rule)
    roomy = own is not None and (least is None or bool((own >= least.astype(np.float32)).all()))
    if own is not None and roomy and _fits(weight.values, rule, pairs):
        return QuantizedWeight(weight.values.astype(np.int8), own, rule.axis, 8), None
    real = weight.values.astype(np.float64) * weight.spread_scale().astype(np.float64)
    # Channels that fit keep their scale, hence their integers.
    smallest = least
    if own is not None and (rule.groups == 1 or rule.shared):
        smallest = np.maximum(own.astype(np.float64), 0.0 if least is None else least)
    made = quantize_by_rule(real, rule, smallest=smallest)
    error, power = float(np.square(made.dequantized() - real).sum()), float(np.square(real).sum())
    if not error:
        return made, None
    return made, 10.0 * math.log10(power / error) if power else math.inf


def _on_axis(weight: ImportedWeight, rule: WeightRule) -> np.ndarray | None:
    """Return the scale as the rule holds it (one a channel, or one), or None where it cannot."""
    one = weight.scale[:1] if (weight.scale == weight.scale[0]).all() else None
    if rule.axis is None:
        return one
    if weight.axis == rule.axis:
        return weight.scale
    return None if one is None else np.repeat(one, weight.values.shape[rule.axis])


def _fits(values: np.ndarray, rule: WeightRule, pair_axis: int | None) -> bool:
    largest = int(np.abs(values).max(initial=0))
    if rule.bits == 7:
        return largest <= _PAIR_SAFE
    if largest > rule.limit:
        return False
    return pair_axis is None or largest_pair_sum(values, pair_axis, rule.groups) <= 2 * _PAIR_SAFE


def keep_imported(
    model: Model, plan: Plan, quantized: Quantized, imported: ImportedQuantization, scheme: Scheme
) -> Kept:
    """Return what `quantize_plan` made with the user's own grids and integers put in.

    Tensors that must share one scale keep the user's grid where it is one grid; parameters that the target
    fixes for an operator's output stay.
    """
    nodes = {node.name or "": node for node in model.graph}
    shared = {name: members for members in scale_groups(model, plan, scheme) for name in members}
    writers = {v.name or "": node.op_type for node in model.graph for v in node.outputs}
    activations = dict(quantized.activations)
    coarser: dict[str, float] = {}
    for name, made in quantized.activations.items():
        grid = imported.ranges.get(name)
        if grid is None:
            continue
        others = {imported.ranges.get(other) for other in shared.get(name, ()) if other in imported.ranges}
        wanted, loss = grid_on_target(grid, scheme)
        if scheme.fixed_output(writers.get(name, "")) is not None or len(others) > 1:
            if (made.scale, made.zero_point) != (wanted.scale, wanted.zero_point):
                coarser[name] = 20.0 * math.log10(made.scale / grid.scale)
            continue
        activations[name] = wanted
        if loss:
            coarser[name] = loss
    weights = dict(quantized.weights)
    lost: dict[str, float] = {}
    for key in quantized.weights:
        weight, node = imported.weights.get(key), nodes[key[0]]
        if weight is None or not _still_there(node, weight):
            continue
        read = node.inputs[0].name if node.inputs[0] is not None else ""
        least = smallest_scale(node, activations[read or ""], scheme)
        weights[key], decibels = weight_on_target(node, weight, scheme, least)
        if decibels is not None:
            lost[source_name(node)] = decibels
    theirs = sum(name in imported.ranges for name in activations)
    held = sum(k in imported.weights and _still_there(nodes[k[0]], imported.weights[k]) for k in weights)
    put_in = replace(quantized, activations=activations, weights=weights, integer_biases={})
    return Kept(
        with_integer_biases(model, put_in, scheme), theirs - len(coarser), held - len(lost), coarser, lost
    )


def _still_there(node: Node, weight: ImportedWeight) -> bool:
    """Return whether the node still has these numbers: pruning and the like change them after the import."""
    array = constant(input_value(node, 1))
    if array is None or array.shape != weight.values.shape:
        return False
    return bool(np.allclose(array, weight.dequantized(), rtol=1e-5, atol=1e-5 * float(np.abs(array).max())))


def unranged_nodes(model: Model, plan: Plan, ranges: Mapping[str, Range]) -> dict[str, str]:
    """Return the nodes of int8 groups that read a float tensor without a range, with the reason."""
    nodes = {node.name or "": node for node in model.graph}
    found: dict[str, str] = {}
    for group in plan.groups:
        if group.precision != "int8":
            continue
        held = [nodes[name] for name in group.nodes]
        missing = [name for name in quantized_reads(held)[0] if name not in ranges]
        for node in held:
            for value in node.inputs:
                if value is not None and value.name in missing:
                    found[node.name or ""] = (
                        f"the model gives {value.name!r} no range, and there is no calibration data"
                    )
    return found
