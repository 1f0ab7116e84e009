"""Constants computed at build time, sizes of the graph among them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from edgefuse.errors import InputError, UnsupportedError
from edgefuse.graph import (
    DataType,
    Model,
    Node,
    Value,
    add_constant,
    add_node,
    attribute,
    constant,
    element_bytes,
    has_subgraphs,
    input_value,
    opset,
    remove_node,
    replace_value,
    static_shape,
)
from edgefuse.graph.reference import evaluate_node
from edgefuse.passes.contract import PassResult
from edgefuse.passes.eliminate_common_subexpressions import is_random
from edgefuse.passes.shape_values import Size, SizeTensor, SizeTracker, known_numbers

__all__ = ["MAX_GROWTH", "MAX_WEIGHT_BYTES", "SMALL_BYTES", "fold_constants"]

# A result is stored where it is small, or not much larger than what it is computed from; weights, which exist
# at run time anyway, are stored up to the size that still fits a model file.
SMALL_BYTES = 4 * 2**20
MAX_GROWTH = 4
MAX_WEIGHT_BYTES = 2**30

# The user's quantization; what reads it is not constant either, so weights keep their Q/DQ pair.
_QUANTIZERS = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
# Operators whose inputs from index 1 on are parameters.
_WEIGHTED = frozenset(
    {
        "Conv",
        "ConvTranspose",
        "Gemm",
        "MatMul",
        "BatchNormalization",
        "LSTM",
        "GRU",
        "RNN",
        "Mul",
        "Add",
        "PRelu",
    }
)
_GROWING = frozenset(
    {"ConstantOfShape", "Expand", "Tile", "Range", "OneHot", "Resize", "Upsample", "Pad", "EyeLike"}
)
_TO_THE_END = 2**63 - 1


def fold_constants(model: Model) -> PassResult:
    """Replace what depends on constants and known dimensions only by constants, in place.

    Takes: 1. nodes all of whose inputs are constants, while the result has at most SMALL_BYTES (4 MiB), or
    MAX_GROWTH (4) times the bytes of its inputs; a weight, read only as a parameter, up to MAX_WEIGHT_BYTES
    (1 GiB).  2. Shape and Size of known dimensions.  3. chains of sizes (Shape, Gather, Slice, Concat, Split,
    Squeeze, Unsqueeze, Cast, Add, Sub, Mul, Div, Min, Max, Equal, Where, ReduceProd ...) whose elements all
    become numbers, though other dimensions stay unknown.  4. the target of Reshape where at most one size is
    neither known nor copied from its place in the input: it is written -1, the copied ones 0.  5. the target
    of Expand whose unknown sizes are those of its input (1).  6. ends of Slice that are the size of what is
    sliced. 7. sizes of Resize that are whole multiples of the input's (scales) or known (with `axes`).
    Leaves: 8. random operators, QuantizeLinear and DequantizeLinear and what follows them, custom operators,
    nodes with bodies and nodes inside bodies, strings and sequences.  9. larger results.  10. what has no
    kernel.
    Results are those of the operator in its own dtypes. A runtime dimension is taken to be at least
    1.
    """
    tracker = SizeTracker()
    version = opset(model)
    folded = 0
    for node in list(model.graph):
        anchors = node.op_type == "Identity" and node.outputs[0].is_graph_output()
        if node.domain not in ("", "ai.onnx") or anchors:
            continue
        if _is_foldable(node):
            folded += _evaluate(node, version)
            continue
        tracker.visit(node)
        if _fold_sizes(node, tracker):
            folded += 1
            continue
        target = _TARGETS.get(node.op_type)
        if target is not None:
            folded += target(node, tracker)
    notes = (f"{folded} nodes or size inputs became constants",) if folded else ()
    return PassResult("fold_constants", folded, notes)


def _is_foldable(node: Node) -> bool:
    if not node.inputs and node.op_type != "Constant":  # one that a branch held stands here after resolve_if
        return False
    if has_subgraphs(node) or is_random(node) or node.op_type in _QUANTIZERS:
        return False
    if any(value is not None and constant(value) is None for value in node.inputs):
        return False
    return all(v.dtype != DataType.STRING for v in [*node.inputs, *node.outputs] if v is not None)


def _evaluate(node: Node, version: int) -> bool:
    """Replace the node's outputs by constants; returns whether it did."""
    inputs = [constant(value) for value in node.inputs]
    if not _is_affordable(node, inputs):
        return False
    try:
        results = evaluate_node(node, inputs, version)
    except (UnsupportedError, InputError):  # it stays, and whoever runs it says what is wrong with it
        return False
    for value, array in zip(node.outputs, results, strict=False):
        if value.name and not _is_storable(value, array):
            return False
    _replace_by_constants(node, results)
    return True


def _is_storable(value: Value, array: object) -> bool:
    if not isinstance(array, np.ndarray) or array.dtype.hasobject:
        return False
    return value.dtype is None or DataType.from_numpy(array.dtype) == value.dtype


def _is_affordable(node: Node, inputs: list[np.ndarray | None]) -> bool:
    given = sum(array.nbytes for array in inputs if array is not None)
    limit = max(SMALL_BYTES, MAX_GROWTH * given)
    if node.op_type == "Constant":
        return True
    for value in node.outputs:
        shape = static_shape(value)
        if shape is None and node.op_type == "ConstantOfShape" and inputs[0] is not None:
            shape = tuple(int(d) for d in inputs[0].reshape(-1))
        if shape is None:
            return node.op_type not in _GROWING
        if math.prod(shape) * element_bytes(value) > (MAX_WEIGHT_BYTES if _is_weight(value) else limit):
            return False
    return True


def _is_weight(value: Value) -> bool:
    uses = list(value.uses())
    return bool(uses) and all(u.idx >= 1 and u.node.op_type in _WEIGHTED for u in uses)


def _replace_by_constants(node: Node, results: list[np.ndarray]) -> None:
    graph = node.graph
    if graph is None:
        return
    for value, array in zip(node.outputs, results, strict=False):
        if value.name and (value.uses() or value.is_graph_output()):
            replace_value(value, add_constant(graph, array, f"{value.name}_folded"))
    remove_node(node)


def _fold_sizes(node: Node, tracker: SizeTracker) -> bool:
    """Replace a node by a constant where every element it computes is a number (cases 2 and 3)."""
    if not any(value.name for value in node.outputs):
        return False
    arrays = []
    for value in node.outputs:
        numbers = known_numbers(tracker.of(value))
        dtype = DataType.INT64 if node.op_type in ("Shape", "Size") else value.dtype
        if numbers is None or dtype is None or dtype in (DataType.INT4, DataType.UINT4):
            return False
        arrays.append(numbers.astype(dtype.numpy()))
    _replace_by_constants(node, arrays)
    return True


def _unsettled(node: Node, index: int, tracker: SizeTracker) -> SizeTensor | None:
    """Return what is known of a size input that is no constant yet."""
    value = input_value(node, index)
    if value is None or constant(value) is not None:
        return None
    found = tracker.of(value)
    return found if found is not None and found.rank == 1 else None


def _put(node: Node, index: int, numbers: list[int], dtype: type = np.int64) -> bool:
    graph = node.graph
    if graph is None:
        return False
    made = add_constant(graph, np.array(numbers, dtype), f"{node.name}_size")
    node.replace_input_with(index, made)
    return True


def _fold_reshape(node: Node, tracker: SizeTracker) -> bool:
    target, shape = _unsettled(node, 1, tracker), tracker.dims_of(node.inputs[0])
    if target is None:
        return False
    sizes = list(target.sizes)
    if attribute(node, "allowzero", 0) and Size(0) in sizes:
        return False
    if shape is not None:
        sizes = _rest_worked_out(sizes, shape)
    unknown = [i for i, s in enumerate(sizes) if not s.is_number]
    if len(unknown) == 1 and Size(-1) not in sizes:
        sizes[unknown[0]] = Size(-1)
    else:
        copied = [i for i in unknown if shape is not None and i < len(shape) and shape[i] == sizes[i]]
        for i in copied:
            sizes[i] = Size(0)
        rest = [i for i in unknown if i not in copied]
        if len(rest) > 1 or (rest and Size(-1) in sizes):
            return False
        for i in rest:
            sizes[i] = Size(-1)
    if Size(0) in sizes and attribute(node, "allowzero", 0):
        del node.attributes["allowzero"]
    return _put(node, 1, [s.number for s in sizes])


def _rest_worked_out(sizes: list[Size], shape: tuple[Size, ...]) -> list[Size]:
    """Replace a -1 by the number that it comes to, where input and target tell."""
    if sizes.count(Size(-1)) != 1 or Size(0) in sizes or Size(0) in shape:
        return sizes
    total, others = Size(1), Size(1)
    for size in shape:
        total = total.times(size)
    for size in sizes:
        others = others if size == Size(-1) else others.times(size)
    rest = total.over(others)
    if rest is None or not rest.is_number:
        return sizes
    return [rest if s == Size(-1) else s for s in sizes]


def _fold_expand(node: Node, tracker: SizeTracker) -> bool:
    target, shape = _unsettled(node, 1, tracker), tracker.dims_of(node.inputs[0])
    if target is None or shape is None:
        return False
    numbers = []
    for place, size in enumerate(reversed(target.sizes)):
        own = shape[len(shape) - 1 - place] if place < len(shape) else None
        if size.is_number:
            numbers.append(size.number)
        elif own == size:
            numbers.append(1)
        else:
            return False
    return _put(node, 1, numbers[::-1])


def _fold_slice(node: Node, tracker: SizeTracker) -> bool:
    target, shape = _unsettled(node, 2, tracker), tracker.dims_of(node.inputs[0])
    steps = constant(input_value(node, 4))
    if target is None or shape is None or (input_value(node, 4) is not None and steps is None):
        return False
    if steps is not None and (steps < 1).any():
        return False
    axes = constant(input_value(node, 3))
    if input_value(node, 3) is not None and axes is None:
        return False
    chosen = range(len(target.sizes)) if axes is None else [int(a) for a in axes]
    numbers = []
    for axis, size in zip(chosen, target.sizes, strict=True):
        if size.is_number:
            numbers.append(size.number)
        elif size == shape[axis]:
            numbers.append(_TO_THE_END)
        else:
            return False
    return _put(node, 2, numbers)


def _fold_resize(node: Node, tracker: SizeTracker) -> bool:
    target, shape = _unsettled(node, 3, tracker), tracker.dims_of(node.inputs[0])
    plain = (
        attribute(node, "axes") is None
        and attribute(node, "keep_aspect_ratio_policy", "stretch") == "stretch"
    )
    if target is None or shape is None or not plain or len(shape) != len(target.sizes) or node.graph is None:
        return False
    factors = [size.over(own) for size, own in zip(target.sizes, shape, strict=True)]
    moved = [i for i, f in enumerate(factors) if f != Size(1)]
    attributes = {name: attribute(node, name) for name in node.attributes}
    if all(f is not None and f.is_number and f.number >= 1 for f in factors):
        scales = np.array([f.number for f in factors if f is not None], np.float32)
        inputs = [
            node.inputs[0],
            input_value(node, 1),
            add_constant(node.graph, scales, f"{node.name}_scales"),
        ]
    elif moved and all(target.sizes[i].is_number for i in moved) and input_value(node, 1) is None:
        sizes = np.array([target.sizes[i].number for i in moved], np.int64)
        inputs = [node.inputs[0], None, None, add_constant(node.graph, sizes, f"{node.name}_sizes")]
        attributes["axes"] = tuple(moved)
    else:
        return False
    made = add_node(node, "Resize", inputs, attributes, like=node.outputs[0], stem=node.name, sources=[node])
    replace_value(node.outputs[0], made.outputs[0])
    remove_node(node)
    return True


_TARGETS: dict[str, Callable[[Node, SizeTracker], bool]] = {
    "Reshape": _fold_reshape,
    "Expand": _fold_expand,
    "Slice": _fold_slice,
    "Resize": _fold_resize,
}
