"""One name for one size: what shape inference names anew behind a Reshape or Expand is traced back.

onnx gives the result of Reshape(x, [-1, 2048]) a dimension of a new name, although it is the batch of x. The
new name then travels through the model, and nothing behind it is known to have the size of anything before.
"""

from __future__ import annotations

from edgefuse.graph import Model, Node, Shape, SymbolicDim, Value, attribute, dims, input_value
from edgefuse.passes.shape_values import Size, SizeTensor, SizeTracker

__all__ = ["name_dimensions"]

# What onnx's shape inference calls a dimension that it knows nothing of.
_INFERRED = "unk__"


def name_dimensions(model: Model) -> int:
    """Give inferred dimensions the name or number of the size that they are, in place; returns how many.

    Takes: the results of Reshape and Expand where input and target tell the size.  Leaves: the names that the
    user wrote into graph inputs and outputs, and every dimension that has a number.  Nodes are not touched.
    """
    kept = {d for v in model.graph.inputs for d in dims(v) or () if isinstance(d, str)}
    declared = (d for v in model.graph.outputs for d in dims(v) or () if isinstance(d, str))
    kept |= {d for d in declared if not d.startswith(_INFERRED)}
    tracker = SizeTracker()
    for node in model.graph:
        tracker.visit(node)
        rule = {"Reshape": _reshaped, "Expand": _expanded}.get(node.op_type)
        shape, target = tracker.dims_of(node.inputs[0] if node.inputs else None), _target(tracker, node)
        if rule is None or node.domain or shape is None or target is None:
            continue
        written = tracker.dims_of(node.outputs[0])
        for size, known in zip(written or (), rule(node, shape, target) or (), strict=False):
            _note(tracker, size, known, kept)
    if tracker.same:
        for graph in model.graphs():
            for node in graph:
                for value in node.outputs:
                    _rewrite(tracker, value)
    return len(tracker.same)


def _target(tracker: SizeTracker, node: Node) -> SizeTensor | None:
    found = tracker.of(input_value(node, 1))
    return found if found is not None and found.rank == 1 else None


def _note(tracker: SizeTracker, size: Size, known: Size | None, kept: set[str]) -> None:
    """Remember that `size`, a lone name nobody wrote, is `known`, a number or a name."""
    if known is None or size == known or size.number != 1 or len(size.names) != 1 or size.names[0] in kept:
        return
    plain = known.is_number or (known.number == 1 and len(known.names) == 1 and known.names[0][0] not in "(?")
    if plain and size.names[0][0] not in "(?":
        tracker.same[size.names[0]] = known


def _reshaped(node: Node, shape: tuple[Size, ...], target: SizeTensor) -> list[Size | None] | None:
    sizes: list[Size | None] = []
    for axis, size in enumerate(target.sizes):
        copied = size == Size(0) and not attribute(node, "allowzero", 0)
        if copied and axis >= len(shape):
            return None
        sizes.append(shape[axis] if copied else size)
    if Size(-1) in sizes:
        total, others = Size(1), Size(1)
        for size in shape:
            total = total.times(size)
        for known in sizes:
            others = others if known is None or known == Size(-1) else others.times(known)
        sizes = [total.over(others) if s == Size(-1) else s for s in sizes]
    return sizes


def _expanded(node: Node, shape: tuple[Size, ...], target: SizeTensor) -> list[Size | None]:
    rank = max(len(shape), len(target.sizes))
    one = (Size(1),)
    pairs = zip(
        one * (rank - len(shape)) + shape, one * (rank - len(target.sizes)) + target.sizes, strict=True
    )
    return [b if a == Size(1) else a if b in (Size(1), a) else None for a, b in pairs]


def _rewrite(tracker: SizeTracker, value: Value) -> None:
    shape = value.shape
    if shape is None or not any(isinstance(d, SymbolicDim) and str(d.value) in tracker.same for d in shape):
        return
    renamed: list[int | SymbolicDim] = []
    for d in shape:
        known = tracker.resolved(str(d.value)) if isinstance(d, SymbolicDim) else None
        if known is None:
            renamed.append(d)
        else:
            renamed.append(known.number if known.is_number else SymbolicDim(known.names[0]))
    value.shape = Shape(renamed)
