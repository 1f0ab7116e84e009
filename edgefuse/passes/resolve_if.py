"""The branch of an If whose condition is known."""

from __future__ import annotations

from edgefuse.graph import (
    AttributeType,
    Graph,
    Model,
    Node,
    Value,
    attribute,
    constant,
    fresh_name,
    remove_node,
    replace_value,
)
from edgefuse.passes.contract import PassResult

__all__ = ["inline_graph", "move_nodes", "release_bodies", "resolve_if"]


def resolve_if(model: Model) -> PassResult:
    """Put the branch taken in the place of each If with a constant condition, in place.

    Takes: 1. If nodes of the main graph whose condition is a constant (after fold_constants, a computed one
    too); nested ones as they come to the surface.  2. branches that hand through outer values, constants, or
    one value twice.
    Leaves: 3. an If whose condition is computed from the input.  4. If nodes inside a Loop or Scan that
    stays.
    """
    resolved = 0
    pending = [n for n in model.graph if n.op_type == "If" and n.domain == ""]
    while pending:
        node = pending.pop()
        condition = constant(node.inputs[0])
        if condition is None or condition.size != 1:
            continue
        taken = attribute(node, "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch")
        inner = inline_graph(taken, node)
        release_bodies(node)
        pending.extend(n for n in inner if n.op_type == "If" and n.domain == "")
        resolved += 1
    notes = (f"{resolved} If nodes replaced by the branch taken",) if resolved else ()
    return PassResult("resolve_if", resolved, notes)


def inline_graph(body: Graph, node: Node) -> list[Node]:
    """Move the body of `node` before it, let the node's readers read the body's outputs, remove the node.

    The body has no inputs left that somebody reads. Returns the nodes moved.
    """
    moved, outputs = move_nodes(body, node)
    for old, new in zip(node.outputs, outputs, strict=True):
        if old.name:
            replace_value(old, new)
    remove_node(node)
    return moved


def move_nodes(body: Graph, before: Node) -> tuple[list[Node], list[Value]]:
    """Move nodes and initializers of `body` before `before`; returns the nodes, and the body's outputs."""
    graph = before.graph
    if graph is None:
        raise ValueError(f"node {before.name!r} stands in no graph")
    outputs = list(body.outputs)
    body.outputs.clear()
    for name, value in list(body.initializers.items()):
        del body.initializers[name]
        value.name = fresh_name(graph, name) if name in graph.initializers else name
        graph.register_initializer(value)
    nodes = list(body)
    body.remove(nodes)
    graph.insert_before(before, nodes)
    return nodes, outputs


def release_bodies(node: Node) -> None:
    """Let the bodies of a removed node go: they read nothing any more, so outer values lose these readers."""
    for found in node.attributes.values():
        if found.type not in (AttributeType.GRAPH, AttributeType.GRAPHS):
            continue
        for body in [found.value] if found.type == AttributeType.GRAPH else found.value:
            body.outputs.clear()
            for inner in body:
                inner.resize_inputs(0)
                release_bodies(inner)
