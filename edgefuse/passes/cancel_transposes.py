"""Transposes that undo, join or need not be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from edgefuse.graph import (
    Model,
    Node,
    Shape,
    Value,
    add_constant,
    add_node,
    attribute,
    constant,
    dims,
    remove_node,
    replace_value,
)
from edgefuse.passes.contract import PassResult

__all__ = ["cancel_transposes"]

# Operators that compute each element from the elements at the same place (scalars and constants beside).
ELEMENTWISE = frozenset(
    """Abs Acos Acosh Add And Asin Asinh Atan Atanh BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast Ceil Celu
    Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish IsInf IsNaN
    LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu
    Shrink Sigmoid
    Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor""".split()
)
# How far a pair of Transposes may stand apart.
_LONGEST_REGION = 32


def cancel_transposes(model: Model) -> PassResult:
    """Join Transposes that follow each other and remove pairs with elementwise operators between, in place.

    Takes: 1. Transpose after Transpose: one Transpose, or nothing where they undo each other (the first one
    stays where it is read elsewhere).  2. a Transpose that only moves dimensions of size one: a Reshape,
    which costs nothing and cancels further.  3. a Transpose after a region of elementwise operators all of
    whose computed inputs are Transposes of one order: the region runs on what those read, its constants in
    that order; taken only where fewer Transposes remain.
    Leaves: 4. a region read elsewhere in between or
    holding a graph output.  5. a region with an operand of lower rank that is neither constant nor of one
    element, or of unknown rank.  6. operators with an axis (Concat, Softmax, Reduce).  7. nodes inside
    bodies.
    Exact: only the order of the elements changes.
    """
    changed, found = 0, -1
    while found:  # what one rewrite uncovers; each leaves fewer Transposes or shorter chains
        found = sum(_join(node) or _through_region(node) for node in _transposes(model))
        # last, since a region wants its operands as Transposes
        found = found or sum(_to_reshape(node) for node in _transposes(model))
        changed += found
    notes = (f"{changed} Transposes joined, removed or turned into Reshape",) if changed else ()
    return PassResult("cancel_transposes", changed, notes)


def _transposes(model: Model) -> Iterator[Node]:
    """Yield the Transposes of the main graph that are still there when their turn comes."""
    for node in list(model.graph):
        if node.graph is not None and _is_transpose(node):
            yield node


def _is_transpose(node: Node | None) -> bool:
    return node is not None and node.op_type == "Transpose" and node.domain == ""


def _perm(node: Node) -> tuple[int, ...] | None:
    """Return the order of a Transpose, the default (reversed) written out; None where the rank is unknown."""
    perm = attribute(node, "perm")
    if perm is not None:
        return tuple(int(p) for p in perm)
    shape = dims(node.inputs[0])
    return None if shape is None else tuple(reversed(range(len(shape))))


def _compose(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    return tuple(first[p] for p in second)


def _inverse(perm: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argsort(perm))


def _is_idle(perm: Sequence[int]) -> bool:
    return tuple(perm) == tuple(range(len(perm)))


def _join(node: Node) -> int:
    """Let a Transpose of a Transpose read the source of both (case 1)."""
    source = node.inputs[0]
    before = source.producer() if source is not None else None
    if before is None or not _is_transpose(before) or before.graph is not node.graph:
        return 0
    first, second = _perm(before), _perm(node)
    if first is None or second is None:
        return 0
    _replace(node, before.inputs[0], _compose(first, second))
    return 1


def _replace(node: Node, source: Value | None, perm: tuple[int, ...]) -> None:
    """Put Transpose(source, perm), or source itself, in the place of the node's output."""
    output = node.outputs[0]
    if source is not None and _is_idle(perm):
        if source.shape is None:
            source.shape = output.shape
        replace_value(output, source)
    else:
        made = add_node(node, "Transpose", [source], {"perm": perm}, like=output, sources=[node])
        replace_value(output, made.outputs[0])
    remove_node(node)


def _to_reshape(node: Node) -> int:
    """Turn a Transpose that keeps the order of all dimensions above one into a Reshape (case 2)."""
    perm, shape = _perm(node), dims(node.inputs[0])
    if perm is None or shape is None or _is_idle(perm) or node.graph is None:
        return 0
    moved = [p for p in perm if shape[p] != 1]
    target = [shape[p] for p in perm]
    unknown = [i for i, d in enumerate(target) if not isinstance(d, int)]
    if moved != sorted(moved) or len(unknown) > 1 or 0 in target:
        return 0
    numbers = np.array([d if isinstance(d, int) else -1 for d in target], np.int64)
    wanted = add_constant(node.graph, numbers, f"{node.name}_shape")
    made = add_node(
        node, "Reshape", [node.inputs[0], wanted], like=node.outputs[0], stem=node.name, sources=[node]
    )
    replace_value(node.outputs[0], made.outputs[0])
    remove_node(node)
    return 1


def _through_region(last: Node) -> int:
    """Run the elementwise region before `last` on untransposed values (case 3)."""
    region, leaves = _region(last)
    perms = {_perm(leaf) for leaf in leaves}
    if not region or len(perms) != 1 or last.graph is None:
        return 0
    perm, own = perms.pop(), _perm(last)
    if perm is None or own is None or not _operands_fit(region, leaves, perm):
        return 0
    joined = _compose(perm, own)
    inside = set(region)
    dying = sum(all(use.node in inside for use in leaf.outputs[0].uses()) for leaf in leaves)
    if not _is_idle(joined) and not (dying and all(not leaf.outputs[0].is_graph_output() for leaf in leaves)):
        return 0
    _rewrite_region(region, perm)
    _replace(last, last.inputs[0], joined)
    return 1


def _region(last: Node) -> tuple[list[Node], list[Node]]:
    """Return the elementwise nodes that feed only `last`, and the Transposes that feed them."""
    region: dict[Node, None] = {}
    leaves: dict[Node, None] = {}
    stack = [last.inputs[0]]
    while stack:
        value = stack.pop()
        node = value.producer() if value is not None else None
        if value is None or node is None or node in region or node in leaves:
            continue
        if _is_transpose(node) and value is not last.inputs[0]:
            leaves[node] = None
        elif node.op_type in ELEMENTWISE and node.domain == "" and len(node.outputs) == 1:
            region[node] = None
            stack.extend(node.inputs)
        if len(region) > _LONGEST_REGION:
            return [], []
    allowed = {*region, last}
    for node in region:
        out = node.outputs[0]
        if out.is_graph_output() or any(use.node not in allowed for use in out.uses()):
            return [], []
        if node.graph is not last.graph:
            return [], []
    return list(region), list(leaves)


def _operands_fit(region: list[Node], leaves: list[Node], perm: tuple[int, ...]) -> bool:
    inner = {*region, *leaves}
    for node in region:
        computed = 0
        for value in node.inputs:
            if value is None:
                continue
            if value.producer() in inner:
                shape = dims(value)
                if shape is None or len(shape) != len(perm):
                    return False
                computed += 1
                continue
            array = constant(value)
            shape = dims(value)
            if array is not None and array.ndim <= len(perm):
                continue
            if shape is None or len(shape) > len(perm) or any(d != 1 for d in shape):
                return False
        if not computed:
            return False
    return True


def _rewrite_region(region: list[Node], perm: tuple[int, ...]) -> None:
    """Bypass the Transposes that feed the region and put its constants in their order."""
    inverse = _inverse(perm)
    inside = set(region)
    for node in region:
        for index, value in enumerate(node.inputs):
            if value is None or value.producer() in inside:
                continue
            before = value.producer()
            if (
                before is not None
                and _is_transpose(before)
                and _perm(before) == perm
                and constant(value) is None
            ):
                node.replace_input_with(index, before.inputs[0])
                continue
            array = constant(value)
            if array is None or array.ndim == 0 or array.size == 1 or node.graph is None:
                continue
            full = array.reshape((1,) * (len(perm) - array.ndim) + array.shape).transpose(inverse)
            node.replace_input_with(
                index, add_constant(node.graph, np.ascontiguousarray(full), f"{value.name}")
            )
        shape = node.outputs[0].shape
        if shape is not None:
            node.outputs[0].shape = Shape([shape[i] for i in inverse])
