"""A model that brings its own quantization, as the float model that it stands for.

    x ─ QuantizeLinear ─ DequantizeLinear ─ Conv ◄─ DequantizeLinear ◄─ int8 weight

becomes  x ─ Clip ─ Conv ◄─ float weight,  and what the pairs said is kept beside it. The rounding goes; the
saturation stays where it may matter, because exporters drop a ReLU or a ReLU6 that the integer range already
does: without the Clip such a model would be another one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from edgefuse.errors import UnsupportedError
from edgefuse.graph import (
    DataType,
    Model,
    Node,
    Value,
    add_constant,
    add_node,
    all_nodes,
    attribute,
    constant,
    input_value,
    remove_node,
    replace_value,
    sole_reader,
    source_name,
)
from edgefuse.graph.edit import GRID_KEY
from edgefuse.quant.grids import Grid, ImportedWeight
from edgefuse.quant.open_integer_operators import open_integer_operators
from edgefuse.quant.value_bounds import value_bounds

__all__ = ["Stripped", "strip_quantizers"]

_LIMITS = {
    DataType.INT4: (-8, 7),
    DataType.UINT4: (0, 15),
    DataType.INT8: (-128, 127),
    DataType.UINT8: (0, 255),
    DataType.INT16: (-(2**15), 2**15 - 1),
    DataType.UINT16: (0, 2**16 - 1),
    DataType.INT32: (-(2**31), 2**31 - 1),
}
# They pass integers on unchanged: what follows reads the same grid.
_MOVES_INTEGERS = frozenset("Flatten Identity MaxPool Reshape Slice Squeeze Transpose Unsqueeze".split())
# One sentence for each reason, with the first node that it holds for.
_LEFT = "{count} {what} stayed as they are, first {first!r}: {why}"


@dataclass(slots=True)
class Stripped:
    """What the Q/DQ nodes of a model said.

    grids: by the label that tagged values carry in metadata_props[GRID_KEY].  weights: in graph order.
    pairs: activations whose pair went.  clips: how many of these kept their saturation as a Clip.
    left: (what, why, node) for each quantizer that could not go.
    """

    grids: dict[str, Grid] = field(default_factory=dict)
    weights: list[ImportedWeight] = field(default_factory=list)
    pairs: int = 0
    clips: int = 0
    left: list[tuple[str, str, str]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.grids or self.weights)

    def notes(self) -> list[str]:
        """Return one line for each reason why quantizers stayed in the graph."""
        grouped: dict[tuple[str, str], list[str]] = {}
        for what, why, name in self.left:
            grouped.setdefault((what, why), []).append(name)
        return [
            _LEFT.format(count=len(names), what=what, first=names[0], why=why)
            for (what, why), names in grouped.items()
        ]


@dataclass(frozen=True, slots=True)
class _Parameters:
    """scale: float32 and zero_point: int64, both [channels] or [1]; axis: None per tensor."""

    scale: np.ndarray
    zero_point: np.ndarray
    dtype: DataType
    axis: int | None

    @property
    def grid(self) -> Grid | None:
        """Return the grid of a tensor with one scale, or None."""
        if self.axis is not None:
            return None
        return Grid(float(self.scale[0]), int(self.zero_point[0]), *_LIMITS[self.dtype])


def strip_quantizers(model: Model) -> Stripped:
    """Take the quantizers out of `model`, in place, and return what they said.

    Takes: 1. DequantizeLinear of a constant (weight, bias), per tensor or per channel, any zero point.
    2. the same behind QuantizeLinear of a constant (fake-quantized weights).  3. QuantizeLinear and the
    DequantizeLinear nodes that read it with the same parameters, one scale a tensor; a Clip stays where the
    values may leave the range by more than half a step.  4. as 3, with reshapes, transposes, slices and max
    pooling of the integers in between. QLinearConv and QLinearMatMul of constants are opened first.
    Leaves, with a note: 5. DequantizeLinear of integers that come from elsewhere (a quantized graph input):
    its result is known to lie on its grid.  6. integers that an integer operator or the user reads.
    7. scales that are computed, one a channel of an activation, not positive, or of a float type.
    8. what stands inside the bodies of If, Loop and Scan.
    Raises UnsupportedError for scales by block (`block_size`), naming the node.
    """
    _refuse_blocks(model)
    open_integer_operators(model)
    found = Stripped()
    for node in list(model.graph):
        if node.op_type == "DequantizeLinear" and node.domain in ("", "ai.onnx"):
            _strip_constant(node, found)
    for node in list(model.graph):
        if node.op_type == "QuantizeLinear" and node.domain in ("", "ai.onnx"):
            _strip_activation(node, found)
    for node in model.graph:
        if node.op_type == "DequantizeLinear":
            _tag_result(node, found)
    _note_bodies(model, found)
    return found


def _refuse_blocks(model: Model) -> None:
    for node in all_nodes(model):
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and attribute(node, "block_size", 0):
            raise UnsupportedError(
                f"node {source_name(node)!r} ({node.op_type}) has one scale for each block of "
                f"{attribute(node, 'block_size')} elements, which no target computes with",
                expected="one scale a tensor, or one for each output channel",
                hint="export the model with per-channel weights, or in float and let edgefuse quantize it",
            )


def _note_bodies(model: Model, found: Stripped) -> None:
    for node in all_nodes(model):
        if node.graph is not model.graph and node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            found.left.append(
                ("quantizers", "they stand inside the body of an If, Loop or Scan", source_name(node))
            )


def _parameters(node: Node) -> _Parameters | str:
    """Return scale and zero point of a Q or DQ node, or why they are not to be used."""
    scale, zero_value = constant(input_value(node, 1)), input_value(node, 2)
    zero = constant(zero_value)
    if scale is None or (zero_value is not None and zero is None):
        return "their scale is computed at run time"
    if zero_value is not None:
        dtype = zero_value.dtype
    elif node.op_type == "QuantizeLinear":
        dtype = DataType(attribute(node, "output_dtype", 0) or DataType.UINT8)
    else:
        dtype = node.inputs[0].dtype if node.inputs[0] is not None else None
    if dtype not in _LIMITS or dtype is None:
        return f"{dtype.name if dtype is not None else 'an unknown type'} is no integer type of 4 to 32 bits"
    scales = scale.astype(np.float32).reshape(-1)
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        return "a scale is not a positive number"
    zeros = np.zeros(scales.size, np.int64) if zero is None else zero.astype(np.int64).reshape(-1)
    if zeros.size != scales.size:
        zeros = np.broadcast_to(zeros, scales.shape)
    axis = None if scales.size == 1 else int(attribute(node, "axis", 1))
    return _Parameters(scales, zeros, dtype, axis)


def _strip_constant(node: Node, found: Stripped) -> None:
    """Cases 1 and 2: replace a dequantized constant by the float numbers that it stands for."""
    parameters = _parameters(node)
    source = node.inputs[0]
    if isinstance(parameters, str) or source is None:
        return  # case 3 or 7; noted there
    integers = _constant_integers(source, parameters)
    graph = node.graph
    if integers is None or graph is None:
        return
    axis = parameters.axis
    if axis is not None:
        axis %= max(integers.ndim, 1)
    spread = [1] * integers.ndim
    if axis is not None:
        spread[axis] = -1
    values = (integers - parameters.zero_point.reshape(spread)).astype(np.int64)
    weight = ImportedWeight(values, parameters.scale, axis, source_name(node))
    out = node.outputs[0]
    kind = out.dtype.numpy() if out.dtype is not None else np.float32
    made = add_constant(graph, weight.dequantized().astype(kind), f"{out.name}_float")
    # More than int8 less a zero point of int8 can hold is a bias, or a table.
    if integers.ndim > 1 and parameters.dtype != DataType.INT32:
        found.weights.append(ImportedWeight(values.astype(np.int32), weight.scale, weight.axis, weight.name))
    replace_value(out, made)
    remove_node(node)
    writer = source.producer()
    if writer is not None and not source.uses() and not source.is_graph_output():
        remove_node(writer)


def _constant_integers(source: Value, parameters: _Parameters) -> np.ndarray | None:
    """Return the integers of a constant, or of a QuantizeLinear of a constant, as int64; else None."""
    array = constant(source)
    if array is not None:
        return array.astype(np.int64)
    writer = source.producer()
    if writer is None or writer.op_type != "QuantizeLinear":
        return None
    real, own = constant(writer.inputs[0]), _parameters(writer)
    if real is None or isinstance(own, str) or not _same(own, parameters):
        return None
    spread = [1] * real.ndim
    if own.axis is not None:
        spread[own.axis] = -1
    low, high = _LIMITS[own.dtype]
    steps = np.rint((real.astype(np.float32) / own.scale.reshape(spread)).astype(np.float64))
    integers: np.ndarray = np.clip(steps + own.zero_point.reshape(spread), low, high).astype(np.int64)
    return integers


def _same(one: _Parameters, other: _Parameters) -> bool:
    return (
        one.dtype == other.dtype
        and one.axis == other.axis
        and np.array_equal(one.scale, other.scale)
        and np.array_equal(one.zero_point, other.zero_point)
    )


def _strip_activation(node: Node, found: Stripped) -> None:
    """Cases 3 and 4: let what reads the dequantized integers read the float tensor, clipped where needed."""
    source, written = node.inputs[0], node.outputs[0]
    assert source is not None
    parameters = _parameters(node)
    grid = None if isinstance(parameters, str) else parameters.grid
    if isinstance(parameters, str) or grid is None:
        why = parameters if isinstance(parameters, str) else "an activation has one scale for each channel"
        found.left.append(("quantizers", why, source_name(node)))
        return
    if not any(_is_convertible(use.node, use.idx, source, parameters) for use in written.uses()):
        found.left.append(("quantizers", "the integers themselves are read", source_name(node)))
        return
    held = _saturated(node, source, grid, found)
    _tag(held, grid, found)
    _convert(written, held, source, parameters, found, grid)
    found.pairs += 1
    if not written.uses() and not written.is_graph_output():
        remove_node(node)
    else:
        found.left.append(("quantizers", "the integers themselves are read", source_name(node)))


def _is_convertible(node: Node, index: int, source: Value, parameters: _Parameters) -> bool:
    """Return whether a reader of the integers may read the float tensor instead, and all that follows it."""
    if index != 0 or node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type == "DequantizeLinear":
        own = _parameters(node)
        kind = node.outputs[0].dtype
        return not isinstance(own, str) and _same(own, parameters) and kind in (None, source.dtype)
    if node.op_type not in _MOVES_INTEGERS or len(node.outputs) != 1 or node.outputs[0].is_graph_output():
        return False
    uses = node.outputs[0].uses()
    return bool(uses) and all(_is_convertible(use.node, use.idx, source, parameters) for use in uses)


def _convert(
    integers: Value, real: Value, source: Value, parameters: _Parameters, found: Stripped, grid: Grid
) -> None:
    for use in tuple(integers.uses()):
        node = use.node
        if not _is_convertible(node, use.idx, source, parameters):
            continue
        if node.op_type == "DequantizeLinear":
            replace_value(node.outputs[0], real)
            remove_node(node)
            continue
        node.replace_input_with(0, real)
        moved = node.outputs[0]
        moved.type = source.type
        _convert(moved, moved, source, parameters, found, grid)
        _tag(moved, grid, found)


def _saturated(node: Node, source: Value, grid: Grid, found: Stripped) -> Value:
    """Return the tensor with the saturation of the grid: itself where its values cannot leave the range.

    Half a step beyond an end rounds to that end, so that it counts as inside.
    """
    low, high = value_bounds(source)
    beyond = low < grid.minimum - grid.scale / 2 or high > grid.maximum + grid.scale / 2
    other = source.metadata_props.get(GRID_KEY)
    if not beyond and (other is None or found.grids[other] == grid):
        return source
    graph = node.graph
    assert graph is not None
    first, limits = source, [grid.minimum, grid.maximum]
    writer = source.producer()
    if writer is not None and writer.op_type in ("Relu", "Clip") and sole_reader(source) is node:
        own = value_bounds(source) if writer.op_type == "Clip" else (0.0, np.inf)
        bounded = writer.inputs[0]
        if bounded is not None and own[0] <= grid.maximum and own[1] >= grid.minimum:
            first, limits = bounded, [max(own[0], grid.minimum), min(own[1], grid.maximum)]
    kind = source.dtype.numpy() if source.dtype is not None else np.float32
    ends = [
        add_constant(graph, np.array(limit, kind), f"{source.name}_{end}")
        for limit, end in zip(limits, ("low", "high"), strict=True)
    ]
    made = add_node(node, "Clip", [first, *ends], like=source, stem=f"{source.name}_range", sources=[node])
    found.clips += 1
    return made.outputs[0]


def _tag(value: Value, grid: Grid, found: Stripped) -> None:
    label = f"g{len(found.grids)}"
    if value.metadata_props.setdefault(GRID_KEY, label) == label:
        found.grids[label] = grid


def _tag_result(node: Node, found: Stripped) -> None:
    """Case 5: what a DequantizeLinear that stays writes lies on its grid already."""
    parameters = _parameters(node)
    if isinstance(parameters, str):
        found.left.append(("quantizers", parameters, source_name(node)))
        return
    grid = parameters.grid
    if grid is not None and parameters.dtype != DataType.INT32:
        _tag(node.outputs[0], grid, found)
