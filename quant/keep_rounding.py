"""The user's Q/DQ pairs where a float operator reads what int8 operators write or read too.

An Add behind two int8 convolutions reads integers in the user's model. `strip_quantizers` has taken that
rounding out with all others; here it comes back where the plan is int8 on one side, so that the tensor is
stored in 8 bits and the result is the user's to the last integer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from edgefuse.graph import (
    Graph,
    Model,
    Node,
    Value,
    add_constant,
    add_node,
    clone_model,
    constant,
    fresh_name,
)
from edgefuse.quant.imported import ImportedQuantization, grid_on_target
from edgefuse.quant.scheme import Scheme

__all__ = ["keep_rounding"]

_TYPES = ((0, 255, np.uint8), (-128, 127, np.int8), (-127, 127, np.int8))
# They combine tensors of one kind; integer devices run them in 8 bits, as the training simulated.
_JOINS = frozenset("Add AveragePool Concat GlobalAveragePool MaxPool ReduceMean Resize Sub Sum".split())
# One input decides their result, element by element; another is a constant.
_THROUGH = frozenset("Add Clip HardSigmoid HardSwish LeakyRelu Mul Relu Sigmoid Tanh".split())


def keep_rounding(
    model: Model, imported: ImportedQuantization, anchors: Collection[str], scheme: Scheme
) -> tuple[Model, int]:
    """Return a copy of `model` with pairs put back, and how many.

    anchors: names of the nodes that run in int8 (they round what they read themselves).  A tensor with a grid
    gets its pair where an anchor writes it (with or without an activation in between) or reads it, and
    something else reads it: a float operator or the user. So does a sum, a pool or a Concat of such tensors.
    Grids that the target cannot hold come back re-expressed (`grid_on_target`).
    """
    copy = clone_model(model)
    count = 0
    held_in_8_bits: set[str] = set()
    for value in list(_values(copy)):
        grid = imported.ranges.get(value.name or "")
        if grid is None or value.is_initializer():
            continue
        uses = tuple(value.uses())
        others = [use for use in uses if not (use.idx == 0 and use.node.name in anchors)]
        joins = _joined(value, held_in_8_bits)
        if len(others) == len(uses) and not joins and not _written_in_int8(value, anchors):
            continue
        held_in_8_bits.add(value.name or "")
        if not others and not value.is_graph_output():
            continue
        held, _ = grid_on_target(grid, scheme)
        kind = next((t for low, high, t in _TYPES if (low, high) == (held.low, held.high)), None)
        if kind is None or value.graph is None:
            continue
        rounded = _pair(copy.graph, value, held.scale, held.zero_point, kind)
        held_in_8_bits.add(rounded.name or "")
        for use in others:
            use.node.replace_input_with(use.idx, rounded)
        if value.is_graph_output():
            _take_output(copy.graph, value, rounded)
        count += 1
    return copy, count


def _values(model: Model) -> Iterable[Value]:
    yield from model.graph.inputs
    for node in model.graph:
        yield from node.outputs


def _written_in_int8(value: Value, anchors: Collection[str]) -> bool:
    node = value.producer()
    while node is not None:
        if node.name in anchors:
            return True
        running = [v for v in node.inputs if v is not None and constant(v) is None]
        if node.op_type not in _THROUGH or len(running) != 1 or len(running[0].uses()) != 1:
            return False
        node = running[0].producer()
    return False


def _joined(value: Value, held: Collection[str]) -> bool:
    """Return whether the tensor is made of tensors in 8 bits by an operator that joins them, with an
    activation behind it or not."""
    node = value.producer()
    while node is not None and node.op_type in ("Clip", "Relu"):
        source = node.inputs[0]
        node = source.producer() if source is not None and len(source.uses()) == 1 else None
    if node is None or node.op_type not in _JOINS:
        return False
    return all(v.name in held for v in node.inputs if v is not None and constant(v) is None)


def _pair(graph: Graph, value: Value, scale: float, zero_point: int, kind: type) -> Value:
    before = _after(graph, value)
    parts = [
        add_constant(graph, np.array(scale, np.float32), f"{value.name}_scale"),
        add_constant(graph, np.array(zero_point, kind), f"{value.name}_zero_point"),
    ]
    stem = f"{value.name}_kept"
    quantized = add_node(before, "QuantizeLinear", [value, *parts], stem=f"{stem}_q")
    quantized.outputs[0].type, quantized.outputs[0].shape = parts[1].type, value.shape
    return add_node(
        before, "DequantizeLinear", [quantized.outputs[0], *parts], like=value, stem=f"{stem}_dq"
    ).outputs[0]


def _after(graph: Graph, value: Value) -> Node:
    """Return the node right behind the writer of `value` (the first node for a graph input)."""
    producer, following = value.producer(), value.producer() is None
    last: Node | None = None
    for node in graph:
        if following:
            return node
        following = node is producer
        last = node
    # The writer stands last: a node behind it, to be placed before.
    assert last is not None
    end = Node("", "Identity", [value], name=fresh_name(graph, "end"))
    graph.insert_after(last, end)
    return end


def _take_output(graph: Graph, value: Value, rounded: Value) -> None:
    """Let `rounded` be the graph output in the place of `value`, under the user's name."""
    name = value.name
    value.name = fresh_name(graph, f"{name}_exact")
    rounded.name = name
    for index, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[index] = rounded
