"""Merging of nodes that compute the same thing."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgefuse.graph import Model, Node, attribute, has_subgraphs, remove_node, replace_value
from edgefuse.passes.contract import PassResult

__all__ = ["eliminate_common_subexpressions"]

RANDOM_OPERATORS = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
_COMMUTATIVE = frozenset({"Add", "Mul", "And", "Or", "Xor", "Equal", "BitwiseAnd", "BitwiseOr", "BitwiseXor"})


def eliminate_common_subexpressions(model: Model) -> PassResult:
    """Merge nodes of equal operator, attributes and inputs, in place; the first in order stays.

    Takes: 1. equal nodes of the main graph; since what they fed reads one value then, whole equal subgraphs
    with equal inputs collapse in one run (weights count as equal once share_weights made them one value).
    2. operands of commutative operators in either order.  3. a node that leaves out outputs which the other
    one writes, where the fuller one stands first.  4. two graph outputs with the same content: both names
    stay (an Identity writes the second).
    Leaves: 5. random operators, and Dropout in training.  6. nodes with
    a body (If, Loop, Scan).  7. nodes inside bodies.
    """
    seen: dict[tuple[object, ...], Node] = {}
    merged = 0
    for node in list(model.graph):
        if has_subgraphs(node) or is_random(node) or node.op_type == "Identity":
            continue
        key = node_key(node)
        first = seen.setdefault(key, node)
        if first is node or not _covers(first, node):
            continue
        for old, new in zip(node.outputs, first.outputs, strict=False):
            if old.name:
                replace_value(old, new)
        remove_node(node)
        merged += 1
    notes = (f"{merged} nodes computed what another one computes",) if merged else ()
    return PassResult("eliminate_common_subexpressions", merged, notes)


def is_random(node: Node) -> bool:
    """Return whether two runs of the node may give two results (a Dropout that may be in training, too)."""
    if node.domain not in ("", "ai.onnx"):
        return True  # an unknown operator may keep a state
    if node.op_type == "Dropout":
        return len(node.inputs) > 2 and node.inputs[2] is not None
    return node.op_type in RANDOM_OPERATORS


def node_key(node: Node) -> tuple[object, ...]:
    """Return what two nodes must have in common to compute the same: operator, attributes, input values."""
    inputs = [id(value) for value in node.inputs]
    while inputs and node.inputs[len(inputs) - 1] is None:
        inputs.pop()
    if node.op_type in _COMMUTATIVE:
        inputs.sort()
    return (node.domain, node.op_type, node.version, tuple(inputs), attribute_key(node))


def attribute_key(node: Node) -> tuple[object, ...]:
    """Return the attributes in a form that can be hashed and compared, tensors by value."""
    return tuple((name, _frozen(attribute(node, name))) for name in sorted(node.attributes))


def _frozen(value: Any) -> object:
    if isinstance(value, np.ndarray):
        content = tuple(value.reshape(-1)) if value.dtype.hasobject else value.tobytes()
        return (value.shape, str(value.dtype), content)
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, tuple):
        return tuple(_frozen(v) for v in value)
    return value if isinstance(value, (int, str, bytes)) else repr(value)


def _covers(first: Node, node: Node) -> bool:
    """Return whether `first` writes every output that `node` writes."""
    return all(
        not value.name or (index < len(first.outputs) and bool(first.outputs[index].name))
        for index, value in enumerate(node.outputs)
    )
