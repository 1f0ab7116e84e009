"""Loops of a known small number of turns, written out."""

from __future__ import annotations

import numpy as np

from edgefuse.graph import (
    Graph,
    Model,
    Node,
    Value,
    add_constant,
    add_node,
    attribute,
    fresh_name,
    input_value,
    remove_node,
    replace_value,
    scalar,
)
from edgefuse.passes.contract import PassResult
from edgefuse.passes.resolve_if import move_nodes, release_bodies

__all__ = ["MAX_NODES", "MAX_TURNS", "unroll_loop"]

MAX_TURNS = 64
MAX_NODES = 4096


def unroll_loop(model: Model) -> PassResult:
    """Write out each Loop of the main graph that runs a known number of turns, in place.

    Takes: 1. a constant number of turns from 1 to MAX_TURNS (64) with no condition, or one that is and stays
    true (the body hands it through or returns a constant true).  2. carried values, scan outputs (joined
    along a new first dimension), outer values read inside.  3. 0 turns where there is no scan output.  4.
    nested Loops, as they come to the surface.
    Leaves: 5. more turns, or more than MAX_NODES (4096) nodes in
    all.  6. a number of turns or a condition that is computed.  7. Loops inside the body of a Loop, Scan or
    If that stays, and Scan itself.
    """
    unrolled = 0
    pending = [n for n in model.graph if n.op_type == "Loop" and n.domain == ""]
    while pending:
        node = pending.pop()
        turns = _turns(node)
        if turns is None:
            continue
        made = _unroll(node, turns)
        pending.extend(n for n in made if n.op_type == "Loop" and n.domain == "")
        unrolled += 1
    notes = (f"{unrolled} Loops written out",) if unrolled else ()
    return PassResult("unroll_loop", unrolled, notes)


def _turns(node: Node) -> int | None:
    """Return how often the body surely runs, or None where the Loop is to stay."""
    body: Graph = attribute(node, "body")
    count = scalar(input_value(node, 0))
    if count is None or count > MAX_TURNS or count * len(body) > MAX_NODES:
        return None
    condition = input_value(node, 1)
    if condition is not None and scalar(condition) != 1.0:
        return None
    if not _stays_true(body):
        return None
    carried = max(0, len(node.inputs) - 2)
    if count <= 0 and len(node.outputs) > carried:
        return None
    return max(0, int(count))


def _stays_true(body: Graph) -> bool:
    value: Value | None = body.outputs[0]
    while value is not None:
        if value is body.inputs[1] or scalar(value) == 1.0:
            return True
        producer = value.producer()
        if producer is not None and producer.op_type == "Constant":
            return bool(np.all(attribute(producer, "value", False)))
        if producer is None or producer.op_type not in ("Identity", "Cast"):
            return False
        value = producer.inputs[0]
    return False


def _unroll(node: Node, turns: int) -> list[Node]:
    """Put `turns` copies of the body before the node and remove it; returns the nodes made."""
    graph, body = node.graph, attribute(node, "body")
    if graph is None:
        raise ValueError(f"node {node.name!r} stands in no graph")
    carried: list[Value | None] = list(node.inputs[2:])
    scanned: list[list[Value]] = [[] for _ in node.outputs[len(carried) :]]
    made: list[Node] = []
    always = add_constant(graph, np.array(True), f"{node.name}_condition")
    for turn in range(turns):
        copy = body.clone(allow_outer_scope_values=True)
        _rename(copy, graph, turn)
        number = add_constant(graph, np.array(turn, np.int64), f"{node.name}_turn")
        fed = dict(zip(copy.inputs, [number, always, *carried], strict=True))
        nodes, outputs = move_nodes(copy, node)
        for inner, outer in fed.items():
            _feed(inner, outer)
        results = [fed.get(value, value) for value in outputs]
        carried = results[1 : 1 + len(carried)]
        for column, value in zip(scanned, results[1 + len(carried) :], strict=True):
            if value is not None:
                column.append(value)
        made.extend(nodes)
    joined = [_stacked(node, column, output) for column, output in _scans(node, scanned)]
    for old, new in zip(node.outputs, [*carried, *joined], strict=True):
        if old.name and new is not None:
            replace_value(old, new)
    remove_node(node)
    release_bodies(node)
    return made


def _scans(node: Node, scanned: list[list[Value]]) -> list[tuple[list[Value], Value]]:
    outputs = node.outputs[len(node.outputs) - len(scanned) :]
    return list(zip(scanned, outputs, strict=True))


def _feed(inner: Value, outer: Value | None) -> None:
    """Let what reads an input of the body read the value fed to it."""
    for user, index in tuple(inner.uses()):
        user.replace_input_with(index, outer)


def _rename(body: Graph, graph: Graph, turn: int) -> None:
    """Give nodes and values of a copied body names of their own in `graph`, its bodies' ones too."""
    for part in (body, *body.subgraphs()):
        for node in part:
            node.name = fresh_name(graph, f"{node.name}_turn{turn}")
            for value in node.outputs:
                value.shape = None  # a carried value may change its shape from turn to turn
                if value.name:
                    value.name = fresh_name(graph, f"{value.name}_turn{turn}")
        if part is not body:
            for value in part.inputs:
                value.name = fresh_name(graph, f"{value.name}_turn{turn}")


def _stacked(node: Node, column: list[Value], output: Value) -> Value:
    """Return the scan output: the values of all turns along a new first dimension."""
    graph = node.graph
    if graph is None:
        raise ValueError(f"node {node.name!r} stands in no graph")
    axes = add_constant(graph, np.array([0], np.int64), f"{node.name}_axis")
    rows: list[Value | None] = [
        add_node(node, "Unsqueeze", [value, axes], stem=f"{node.name}_row", sources=[node]).outputs[0]
        for value in column
    ]
    for row in rows:
        if row is not None:
            row.type = output.type
    return add_node(
        node, "Concat", rows, {"axis": 0}, like=output, stem=f"{node.name}_scan", sources=[node]
    ).outputs[0]
