"""Reshapes in one form, and one Reshape for several in a row."""

from __future__ import annotations

import math

import numpy as np

from edgefuse.graph import (
    Attr,
    AttributeType,
    Model,
    Node,
    Value,
    add_constant,
    add_node,
    attribute,
    constant,
    dims,
    input_value,
    remove_node,
    replace_value,
    sole_reader,
)
from edgefuse.passes.contract import PassResult

__all__ = ["cancel_reshapes"]

# Operators of one input that compute each element from the element at the same place.
POINTWISE = frozenset(
    """Abs Cast Ceil Celu Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity LeakyRelu Log Mish Neg Not
    Reciprocal Relu Round Selu Sigmoid Sign Softplus Softsign Sqrt Swish Tanh ThresholdedRelu""".split()
)

# One dimension of a target: a number, -1 (what is left), 0 (as in the input), or None (not known).
Target = list[int | None]


def cancel_reshapes(model: Model) -> PassResult:
    """Write Squeeze, Unsqueeze and Flatten as Reshape, and let a Reshape skip Reshapes before it, in place.

    Takes: 1. Squeeze, Unsqueeze and Flatten whose result has at most one unknown dimension (-1), others being
    numbers, or copied from the same place of the input (0).  2. a Reshape whose constant target can be
    written plainer: 0 and -1 become numbers where they are known.  3. a Reshape after a Reshape: it reads
    what the first one reads (the first stays where it is read elsewhere).  4. a Reshape that restores the
    shape from before a Reshape, where the one operator between works element by element, or along the last
    dimension, which both kept (an old Softmax, raised): the operator runs without them.
    Leaves: 5. unknown rank, Squeeze without axes of unknown dimensions, more than one size that is neither
    known nor copied.  6. a computed target (fold_constants makes it constant where it can), but for case 4.
    7. tensors with a dimension of 0.  8. the second of two Reshapes where a 0 stays in its target.  9. nodes
    inside bodies.
    Exact.  A runtime dimension of an unknown size is taken to be at least 1.
    """
    changed, found = 0, -1
    while found:  # each sweep leaves fewer nodes in a row, or more of them in their final form
        found = 0
        for node in list(model.graph):
            if node.domain == "" and node.op_type in _TARGETS:
                found += _without_detour(node) or _rewrite(node)
        changed += found
    notes = (f"{changed} reshaping nodes joined or put in one form",) if changed else ()
    return PassResult("cancel_reshapes", changed, notes)


def _without_detour(node: Node) -> bool:
    """Let an operator between a Reshape and its undoing run on the original shape (case 4)."""
    middle = node.inputs[0].producer() if node.op_type == "Reshape" and node.inputs[0] is not None else None
    if middle is None or middle.domain or sole_reader(middle.outputs[0]) is not node or not middle.inputs:
        return False
    flat = middle.inputs[0]
    first = flat.producer() if flat is not None else None
    if first is None or first.domain or first.op_type not in _TARGETS or first.graph is not node.graph:
        return False
    source = first.inputs[0]
    if source is None or not _restores(node, source) or not _works_alike(middle, first, source):
        return False
    middle.replace_input_with(0, source)
    middle.outputs[0].shape = source.shape.copy() if source.shape is not None else None
    replace_value(node.outputs[0], middle.outputs[0])
    remove_node(node)
    return True


def _restores(node: Node, source: Value) -> bool:
    """Return whether a Reshape surely gives its result the shape of `source`."""
    wanted = input_value(node, 1)
    maker = wanted.producer() if wanted is not None else None
    if maker is not None:
        return maker.op_type == "Shape" and maker.inputs[0] is source and not maker.attributes
    given, shape = constant(wanted), dims(source)
    if given is None or shape is None or len(shape) != given.size or 0 in shape:
        return False
    differ = [i for i, (d, n) in enumerate(zip(shape, given, strict=True)) if d != n]
    # the elements are the same in number: where all sizes but one are equal, so is the last one
    return not differ or (len(differ) == 1 and given[differ[0]] == -1)


def _works_alike(node: Node, first: Node, source: Value) -> bool:
    """Return whether the operator means the same on `source` as on the shape that `first` gives it."""
    if node.op_type in POINTWISE and len([v for v in node.inputs if v is not None]) == 1:
        return len(node.outputs) == 1
    before, after = dims(source), dims(node.inputs[0])
    if node.op_type not in ("Softmax", "LogSoftmax") or not before or not after:
        return False
    if attribute(node, "axis", -1) not in (-1, len(after) - 1):
        return False
    kept = first.op_type == "Flatten" and attribute(first, "axis", 1) in (-1, len(before) - 1)
    if kept or (isinstance(after[-1], int) and after[-1] == before[-1]):
        node.attributes["axis"] = Attr("axis", AttributeType.INT, -1)
        return True
    return False


def _rewrite(node: Node) -> bool:
    source = node.inputs[0]
    if source is None or node.graph is None:
        return False
    target = _settled(_TARGETS[node.op_type](node))
    if target is None:
        return False
    before = source.producer()
    follows = (
        before is not None
        and before.op_type == "Reshape"
        and before.domain == ""
        and before.graph is node.graph
        and 0 not in target
    )
    if follows and before is not None:
        source = before.inputs[0]
    elif node.op_type == "Reshape" and not attribute(node, "allowzero", 0):
        given = constant(input_value(node, 1))
        if given is not None and given.tolist() == target:
            return False
    wanted = add_constant(node.graph, np.array(target, np.int64), f"{node.name}_shape")
    nodes = [before, node] if follows and before is not None else [node]
    made = add_node(node, "Reshape", [source, wanted], like=node.outputs[0], stem=node.name, sources=nodes)
    replace_value(node.outputs[0], made.outputs[0])
    remove_node(node)
    return True


def _settled(target: Target | None) -> list[int] | None:
    """Return the target with its one unknown as -1 (a lone 0 too), or None where more are unknown."""
    if target is None:
        return None
    unknown = target.count(None) + target.count(-1)
    if unknown > 1:
        return None
    if unknown == 0 and target.count(0) == 1:
        return [-1 if d == 0 else int(d or 0) for d in target]
    return [-1 if d is None else d for d in target]


def _known(shape: tuple[int | str | None, ...] | None) -> Target | None:
    """Return the dimensions as numbers or None; no answer where the rank is unknown or a dimension is 0."""
    if shape is None or 0 in shape:
        return None
    return [d if isinstance(d, int) else None for d in shape]


def _reshape(node: Node) -> Target | None:
    given, shape = constant(input_value(node, 1)), _known(dims(node.inputs[0]))
    if given is None or shape is None:
        return None
    wanted = [int(d) for d in given.reshape(-1)]
    if 0 in wanted and attribute(node, "allowzero", 0):
        return None
    target: Target = []
    for axis, size in enumerate(wanted):
        copied = shape[axis] if size == 0 and axis < len(shape) else None
        target.append(copied if size == 0 and copied is not None else size)
    known = [d for d in shape if d is not None]
    if -1 in target and len(known) == len(shape) and 0 not in target:
        others = math.prod(d for d in target if d is not None and d > 0)
        if others == 0 or math.prod(known) % others:
            return None
        target = [math.prod(known) // others if d == -1 else d for d in target]
    return target


def _copied(target: Target, origin: list[int | None]) -> Target:
    """Write unknown dimensions that stay at their place as 0; `origin` holds each one's axis in the input."""
    if sum(d is None for d in target) <= 1:
        return target
    return [0 if d is None and o == i else d for i, (d, o) in enumerate(zip(target, origin, strict=True))]


def _axes(node: Node, rank: int) -> list[int] | None:
    value = input_value(node, 1)
    if value is None:
        found = attribute(node, "axes")
        return None if found is None else sorted(int(a) % rank for a in found)
    axes = constant(value)
    return None if axes is None else sorted(int(a) % rank for a in axes.reshape(-1))


def _squeeze(node: Node) -> Target | None:
    shape = _known(dims(node.inputs[0]))
    if shape is None:
        return None
    axes = _axes(node, max(1, len(shape)))
    if axes is None:
        if input_value(node, 1) is not None or None in shape:
            return None
        axes = [i for i, d in enumerate(shape) if d == 1]
    kept: list[int | None] = [i for i in range(len(shape)) if i not in axes]
    return _copied([shape[i] for i in kept if i is not None], kept)


def _unsqueeze(node: Node) -> Target | None:
    shape, given = _known(dims(node.inputs[0])), constant(input_value(node, 1))
    if shape is None or given is None:
        return None
    axes = _axes(node, len(shape) + given.size)
    origin: list[int | None] = list(range(len(shape)))
    target = list(shape)
    for axis in axes or []:
        target.insert(axis, 1)
        origin.insert(axis, None)
    return _copied(target, origin)


def _flatten(node: Node) -> Target | None:
    shape = _known(dims(node.inputs[0]))
    if shape is None:
        return None
    axis = int(attribute(node, "axis", 1))
    axis += len(shape) if axis < 0 else 0
    target: Target = []
    for part in (shape[:axis], shape[axis:]):
        numbers = [d for d in part if d is not None]
        target.append(math.prod(numbers) if len(numbers) == len(part) else None)
    return target


_TARGETS = {"Reshape": _reshape, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Flatten": _flatten}
